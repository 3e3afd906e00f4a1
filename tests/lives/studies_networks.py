"""Programs of `lives` by what their networks are made of; see `studies.py` for how they are written."""

from __future__ import annotations

from typing import Any

#: A step of any model, and its evaluation.
STEP = """
@compiled
def step(x, target):
    optimizer.zero_grad(<< || set_to_none=False>>)
    loss = <<F.cross_entropy(model(x), target) || F.cross_entropy(model(x), target, label_smoothing=0.1)>>
    loss.backward()
    <<optimizer.step() || nn.utils.clip_grad_norm_(model.parameters(), 0.5); optimizer.step()>>
    return loss.detach()
@compiled
def evaluate(x):
    <<with torch.no_grad(): || with torch.inference_mode():>>
        return model(x)<< || .argmax(-1) || .softmax(-1).max(-1)>>
@compiled
def losses(x, target):
    return F.cross_entropy(model(x), target)
"""
CALLS = {
    "step": "seen(step(*{batch}))",
    "outside": "optimizer.zero_grad()\nloss = losses(*{batch})\nloss.backward()\noptimizer.step()\nseen(loss)",
    "evaluate": "model.eval()\nseen(evaluate({batch}[0]))\nmodel.train()",
}
OPTIMIZER = """
optimizer = torch.optim.<<SGD || Adam || AdamW || RMSprop || Adagrad || NAdam>>(model.parameters(), lr=0.02)
"""
ROWS = """
def batch(n=4):
    return torch.randn(n, 6), torch.randint(5, (n,))
"""
SEQUENCES = """
def batch(n=4, t=5):
    return torch.randn(n, t, 6), torch.randint(5, (n,))
"""
IMAGES = """
def batch(n=4):
    return torch.randn(n, 3, 8, 8), torch.randint(5, (n,))
"""
TOKENS = """
def batch(n=4, t=5):
    return torch.randint(1, 11, (n, t)), torch.randint(5, (n,))
"""


def classifier(model: str, inputs: str, **more: Any) -> dict[str, Any]:
    """A study of a class `Model`, trained to tell classes apart."""
    return {
        "setup": f"{model}\nmodel = Model()\n{OPTIMIZER}{inputs}{STEP}", "calls": CALLS,
        "lengths": "t=5" in inputs, **more,
    }  # fmt: skip


STUDIES: dict[str, dict[str, Any]] = {
    "spectral": classifier(
        """
class Spectral(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(0.1 * torch.randn(width, width, modes, dtype=torch.cdouble))
    def forward(self, x):
        f = torch.fft.rfft(x<< || , norm='ortho'>>)
        modes = min(self.modes, f.shape[-1])
        <MIX>
        return torch.fft.irfft(out, n=x.shape[-1]<< || , norm='ortho'>>)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mix, self.head = nn.Linear(6, 4), Spectral(4, 3), nn.Linear(4, 5)
        self.window = <<None || torch.hann_window(5)>>
        self.gain = nn.Parameter(torch.ones(4, dtype=torch.cdouble))
    def forward(self, x):
        x = self.up(x).transpose(1, 2)
        if self.window is not None and x.shape[-1] == len(self.window):
            x = x * self.window.to(x.dtype)
        <<x = x + self.mix(x) || x = F.gelu(self.mix(x)) + x || x = x + torch.fft.fft2(x).real>>
        << || x = torch.fft.ifft(torch.fft.fft(x) * self.gain[:, None]).real || x = (x * self.gain[:, None]).abs()>>
        return self.head(x.mean(-1))
""",
        SEQUENCES,
        parts={"MIX": (
            "out = torch.zeros(*f.shape, dtype=f.dtype)\n"
            "out[..., :modes] = torch.einsum('bim,iom->bom', f[..., :modes], self.weight[..., :modes])",
            "mixed = torch.einsum('bim,iom->bom', f[..., :modes], self.weight[..., :modes])\n"
            "out = F.pad(torch.view_as_real(mixed), (0, 0, 0, f.shape[-1] - modes))\nout = torch.view_as_complex(out)",
            "mixed = (f[:, :, None, :modes] * self.weight[None, :, :, :modes]).sum(1)\n"
            "out = torch.cat([mixed, f[..., modes:]], -1)",
            "r, p = f.abs(), f.angle()\nout = torch.polar(F.softplus(r), p)",
            "w = torch.view_as_real(self.weight).mean()\nout = torch.complex(f.real * w, f.imag - w)",
        )},
        events={"modes": "model.mix.modes = 1 + <K>", "phase": "with torch.no_grad():\n    model.gain.mul_(1j)"},
    ),
    "message_passing": {
        "setup": """
class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message, self.update, self.score = nn.Linear(2 * width, width), nn.GRUCell(width, width), nn.Linear(width, 1)
    def forward(self, x, edges):
        source, to = edges
        m = F.relu(self.message(torch.cat([x[source], <<x[to] || x.index_select(0, to) || x[to] - x[source]>>], 1)))
        <AGGREGATE>
        return <<self.update(total, x) || x + torch.tanh(total)>>
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.layers = nn.Linear(6, 8), nn.ModuleList(Layer(8) for _ in range(2))
        self.head, self.loops = nn.Linear(8, 5), <<True || False>>
    def forward(self, x, edges, graph=None):
        h = torch.tanh(self.up(x))
        if self.loops:
            loop = torch.arange(len(x))
            edges = torch.cat([edges, <<torch.stack([loop, loop]) || loop.expand(2, -1) || loop.repeat(2, 1)>>], 1)
        for layer in self.layers:
            h = layer(h, edges)
        if graph is not None:
            count = <<int(graph.max()) + 1 || graph.unique().numel() || graph.amax().item() + 1>>
            total = h.new_zeros(count, 8).index_add_(0, graph, h)
            h = (total / torch.bincount(graph, minlength=count).clamp(min=1)[:, None])[graph]
        return self.head(h)
model = Model()
optimizer = torch.optim.<<Adam || SGD || AdamW>>(model.parameters(), lr=0.02)
def batch(n=5):
    return torch.randn(n, 6), torch.randint(5, (n,))
def edges_of(n, count=7):
    return torch.randint(max(n, 1), (2, count))
def graph_of(n):
    return torch.arange(n) // 2
@compiled
def step(x, target, edges, graph=None):
    optimizer.zero_grad()
    out = model(x, edges, graph)
    mask = <<torch.arange(len(x)) % 2 == 0 || target < 4 || torch.ones(len(x), dtype=torch.bool)>>
    loss = <<F.cross_entropy(out[mask], target[mask]) || (F.cross_entropy(out, target, reduction='none') * mask).mean()>>
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def sampled(x, edges, keep):
    kept = <<edges[:, :keep] || edges[:, torch.rand(edges.shape[1]) < 0.7] || edges[:, torch.randperm(edges.shape[1])[:keep]]>>
    return model(x, kept).log_softmax(-1)
@compiled
def clean(x, edges):
    << || edges = edges[:, edges[0] != edges[1]] || edges = torch.unique(edges, dim=1)>>
    << || edges = torch.cat([edges, edges.flip(0)], 1)>>
    degree = torch.zeros(len(x)).scatter_add_(0, edges[1], torch.ones(edges.shape[1]))
    norm = degree.clamp(min=1).pow(-0.5)
    adjacency = torch.zeros(len(x), len(x))
    adjacency[edges[1], edges[0]] = <<norm[edges[1]] * norm[edges[0]] || 1.0>>
    return adjacency @ model.up(x)
""",
        "parts": {"AGGREGATE": (
            "total = torch.zeros_like(x).index_add(0, to, m)", "total = torch.zeros_like(x).index_add_(0, to, m)",
            "total = x.new_zeros(len(x), 8).scatter_add(0, to[:, None].expand_as(m), m)",
            "total = torch.zeros_like(x).scatter_reduce(0, to[:, None].expand(-1, 8), m, '<<amax || mean || sum || amin>>', "
            "include_self=<<False || True>>)",
            "total = torch.zeros_like(x).index_reduce(0, to, m, '<<mean || amax>>')",
            "total = torch.zeros_like(x)\ntotal.index_put_((to,), m, accumulate=True)",
            "e = F.leaky_relu(self.score(m), 0.2).squeeze(-1)\n"
            "top = torch.full((len(x),), float('-inf')).scatter_reduce(0, to, e.detach(), 'amax')\n"
            "w = torch.exp(e - top[to])\nw = w / torch.zeros(len(x)).index_add(0, to, w)[to]\n"
            "total = torch.zeros_like(x).index_add(0, to, w[:, None] * m)",
            "order = to.argsort()\ncounts = torch.bincount(to, minlength=len(x))\n"
            "total = torch.stack([part.sum(0) for part in m[order].split(counts.tolist())])",
            "total = torch.segment_reduce(m[to.argsort()], 'sum', lengths=torch.bincount(to, minlength=len(x)), axis=0)",
        )},
        "calls": {
            "step": "x, target = {batch}\nseen(step(x, target, edges_of(len(x))))",
            "of graphs": "x, target = {batch}\nseen(step(x, target, edges_of(len(x)), graph_of(len(x))))",
            "more edges": "x, target = {batch}\nseen(step(x, target, edges_of(len(x), 3 + len(notes) % 5)))\nnotes.append('')",
            "sampled": "x, _ = {batch}\nseen(sampled(x, edges_of(len(x)), 4))",
            "clean": "x, _ = {batch}\nseen(clean(x, edges_of(len(x), 5)))",
        },
        "events": {"loops": "model.loops = not model.loops", "a layer more": "model.layers.append(Layer(8))"},
    },
    "ragged": {
        "setup": """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence, unpad_sequence
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.<<GRU || LSTM || RNN>>(6, 8, batch_first=True<< || , bidirectional=True || , num_layers=2>>)
        width = 8 * (1 + self.rnn.bidirectional)
        self.score, self.head = nn.Linear(width, 1), nn.Linear(width, 5)
    def forward(self, rows):
        lengths = <<torch.tensor([len(row) for row in rows]) || torch.as_tensor([*map(len, rows)])>>
        x = pad_sequence(rows, batch_first=True)
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        <RUN>
        <POOL>
        return self.head(pooled)
model = Model()
optimizer = torch.optim.<<Adam || SGD || RMSprop>>(model.parameters(), lr=0.02)
def batch(n=4, t=5):
    return torch.randn(n, t, 6), torch.randint(5, (n,))
def rows_of(x, shift=0):
    return [row[:1 + (k + shift) % max(len(row), 1)] for k, row in enumerate(x)]
@compiled
def step(rows, target):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(rows), target)
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def each(rows):
    << || rows = sorted(rows, key=len, reverse=True)>>
    return [<<model([row]) || model.rnn(row[None])[0].mean((0, 1)) || row.mean(0) @ torch.ones(6)>> for row in rows]
@compiled
def flat(rows):
    lengths = [row.shape[0] for row in rows]
    whole = torch.tanh(torch.cat(rows)) - 0.5
    << || whole = whole - whole.mean(0)>>
    parts = whole.split(lengths)
    return [<<part.logsumexp(0) || part.max(0).values || part.cumsum(0)>> for part in parts], max(lengths)
""",
        "parts": {
            "RUN": (
                "packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)\n"
                "y, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)",
                "y = self.rnn(x)[0]", "y = self.rnn(x)[0] * mask[..., None]",
                "y = pad_sequence([self.rnn(row[None])[0][0] for row in rows], batch_first=True)",
            ),
            "POOL": (
                "pooled = (y * mask[..., None]).sum(1) / lengths[:, None]",
                "pooled = y.masked_fill(~mask[..., None], float('-inf')).amax(1)",
                "pooled = y[torch.arange(len(rows)), lengths - 1]",
                "pooled = y.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, y.shape[2])).squeeze(1)",
                "w = self.score(y).squeeze(-1).masked_fill(~mask, float('-inf')).softmax(1)\npooled = (w[..., None] * y).sum(1)",
                "w = self.score(y).squeeze(-1).where(mask, torch.tensor(-1e9)).softmax(1)\npooled = torch.einsum('bt,btw->bw', w, y)",
                "pooled = torch.stack([row[:n].mean(0) for row, n in zip(y, lengths.tolist())])",
                "pooled = y[mask].new_zeros(len(rows), y.shape[2]).index_add(0, mask.nonzero()[:, 0], y[mask])",
            ),
        },
        "calls": {
            "step": "x, target = {batch}\nseen(step(rows_of(x), target))",
            "shifted": "x, target = {batch}\nnotes.append('')\nseen(step(rows_of(x, len(notes)), target))",
            "equal": "x, target = {batch}\nseen(step([*x], target))",
            "each": "seen(each(rows_of({batch}[0], 1)))", "flat": "seen(flat(rows_of({batch}[0])))",
        },
        "lengths": True,
    },
    "experts": classifier(
        """
class Router(nn.Module):
    def __init__(self, width, count, top):
        super().__init__()
        self.gate, self.top, self.loss = nn.Linear(width, count, bias=False), top, 0.0
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width)) for _ in range(count))
        self.register_buffer('load', torch.zeros(count))
    def forward(self, x):
        logits = self.gate(x)
        << || logits = logits + 0.1 * torch.randn_like(logits) * self.training>>
        p = logits.softmax(-1)
        weight, chosen = p.topk(self.top, -1)
        << || weight = weight / weight.sum(-1, keepdim=True)>>
        count = len(self.experts)
        hot = F.one_hot(chosen, count).sum(1).to(x.dtype)
        self.loss = count * (hot.mean(0) * p.mean(0)).sum()
        if self.training:
            <<self.load += hot.detach().sum(0) || self.load.lerp_(hot.detach().mean(0), 0.1)>>
        out = torch.zeros_like(x)
        <ROUTE>
        return out
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.moe, self.head = nn.Linear(6, 6), Router(6, 3, <<1 || 2>>), nn.Linear(6, 5)
    def forward(self, x):
        x = torch.tanh(self.first(x))
        out = self.head(x + self.moe(x))
        return out << || + 0.01 * self.moe.loss>>
""",
        ROWS,
        parts={"ROUTE": (
            "for k, expert in enumerate(self.experts):\n    row, place = torch.where(chosen == k)\n"
            "    if <<len(row) || row.numel() > 0 || row.shape[0] == 0>>:\n"
            "        out.index_add_(0, row, expert(x[row]) * weight[row, place, None])",
            "for k in range(count):\n    mask = (chosen == k).any(-1)\n    if mask.any():\n"
            "        out[mask] += self.experts[k](x[mask]) * (weight * (chosen == k)).sum(-1)[mask][:, None]",
            "for k, expert in enumerate(self.experts):\n    w = (weight * (chosen == k)).sum(-1, keepdim=True)\n"
            "    out = out + w * expert(x)",
            "made = torch.stack([e(x) for e in self.experts], 1)\n"
            "out = (made.gather(1, chosen[..., None].expand(-1, -1, x.shape[1])) * weight[..., None]).sum(1)",
            "order = chosen.flatten().argsort(<<stable=True || >>)\nrows = x.repeat_interleave(self.top, 0)[order]\n"
            "sizes = torch.bincount(chosen.flatten(), minlength=count).tolist()\n"
            "parts = [e(part) for e, part in zip(self.experts, rows.split(sizes))]\n"
            "flat = torch.empty_like(rows)\nflat[order] = torch.cat(parts)\n"
            "out = (flat.view(len(x), self.top, -1) * weight[..., None]).sum(1)",
            "for k in chosen.unique().tolist():\n    rows = (chosen == k).nonzero()\n"
            "    out[rows[:, 0]] = out[rows[:, 0]] + self.experts[k](x[rows[:, 0]]) * weight[rows[:, 0], rows[:, 1]][:, None]",
            "w1 = torch.stack([e[0].weight for e in self.experts])[chosen]\n"
            "w2 = torch.stack([e[2].weight for e in self.experts])[chosen]\n"
            "h = torch.einsum('bd,bkhd->bkh', x, w1).relu()\nout = torch.einsum('bkh,bkdh,bk->bd', h, w2, weight)",
            "for row in range(len(x)):\n    for place, k in enumerate(chosen[row].tolist()):\n"
            "        out[row] = out[row] + weight[row, place] * self.experts[k](x[row])",
        )},
        events={"an expert more": "model.moe.experts.append(copy.deepcopy(model.moe.experts[0]))\n"
                "model.moe.gate, model.moe.load = nn.Linear(6, len(model.moe.experts), bias=False), torch.zeros(len(model.moe.experts))",
                "top": "model.moe.top = 1 + <K> % 3", "load zero": "model.moe.load.zero_()"},
    ),
    "stochastic_depth": classifier(
        """
import random as chance
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), <<nn.LayerNorm(6) || nn.BatchNorm1d(6) || nn.Identity()>>, nn.GELU()) for _ in range(3))
        self.head, self.rate, self.last, self.order = nn.Linear(6, 5), 0.4, None, [0, 1, 2]
    def forward(self, x):
        used = []
        for k in self.order:
            block = self.blocks[k]
            <DROP>
            used.append(k)
        self.last = used
        return self.head(x)
""",
        ROWS,
        parts={"DROP": (
            "if self.training and chance.random() < self.rate:\n    continue\nx = x + block(x)",
            "if self.training and torch.rand(()) < self.rate * (k + 1) / 3:\n    continue\nx = x + block(x)",
            "if not self.training or torch.rand(1).item() >= self.rate:\n    x = x + block(x)",
            "keep = torch.empty(len(x), 1).bernoulli_(1 - self.rate) / (1 - self.rate) if self.training else 1.0\n"
            "x = x + block(x) * keep",
            "y = block(x)\nx = x + (F.dropout(y, self.rate, self.training) if k % 2 else y)",
            "kept = torch.randperm(len(x))[:max(1, len(x) // 2)] if self.training else slice(None)\n"
            "<<x = x.index_add(0, kept, block(x[kept])) if self.training else x + block(x) || x = x.clone(); x[kept] = x[kept] + block(x[kept])>>",
            "x = torch.lerp(x, block(x), torch.rand(len(x), 1)) if self.training else x + 0.5 * block(x)",
        )},
        events={"rate": "model.rate = <F> / 2", "order": "model.order = model.order[1:] + model.order[:1]",
                "rate none": "model.rate = 0.0", "python seed": "chance.seed(<K>)",
                "fewer": "model.order = model.order[:2]"},
    ),
    "normalizing_flow": {
        "setup": """
from torch import distributions as dist
class Coupling(nn.Module):
    def __init__(self, dim, flip):
        super().__init__()
        self.net, self.flip, self.half = nn.Sequential(nn.Linear(dim // 2, 8), nn.Tanh(), nn.Linear(8, dim)), flip, dim // 2
    def forward(self, x, reverse=False):
        a, b = <<x.chunk(2, -1) || x.split(self.half, -1) || (x[:, :self.half], x[:, self.half:])>>
        if self.flip:
            a, b = b, a
        shift, scale = self.net(a).chunk(2, -1)
        scale = <<torch.tanh(scale) || scale.clamp(-2, 2) || F.logsigmoid(scale + 2)>>
        b = (b - shift) * torch.exp(-scale) if reverse else b * scale.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], -1), scale.sum(-1) * (-1 if reverse else 1)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(6, k % 2 == 1) for k in range(2))
        self.mean, self.spread = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))
        self.mixing = nn.Parameter(torch.zeros(3))
        self.centres = nn.Parameter(torch.linspace(-1, 1, 18).view(3, 6))
        self.lower = nn.Parameter(torch.eye(6))
    @property
    def prior(self):
        <PRIOR>
    def forward(self, x):
        total = x.new_zeros(len(x))
        for layer in self.layers:
            x, det = layer(x)
            total = total + det
        return x, total
    def log_prob(self, x):
        z, det = self(x)
        return self.prior.log_prob(z) + det
    def sample(self, n):
        x = <<self.prior.sample((n,)) || self.mean + torch.randn(n, 6) * self.spread.exp()>>
        for layer in reversed(self.layers):
            x, _ = layer(x, reverse=True)
        return x
model = Model()
optimizer = torch.optim.<<Adam || AdamW || Adamax>>(model.parameters(), lr=0.02)
def batch(n=4):
    return torch.randn(n, 6), torch.rand(n, 6)
@compiled
def step(x, target):
    optimizer.zero_grad()
    loss = -model.log_prob(x).mean()
    << || loss = loss + 0.1 * dist.kl_divergence(dist.Normal(model.mean, model.spread.exp()), dist.Normal(0.0, 1.0)).sum()>>
    << || q = dist.Normal(model.mean, model.spread.exp()); z = q.rsample((3,)); loss = loss - 0.01 * q.log_prob(z).mean()>>
    << || loss = loss + 0.01 * F.binary_cross_entropy_with_logits(model.mean.expand_as(target), target)>>
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def sample(n):
    with torch.no_grad():
        return model.sample(n)
@compiled
def estimate(x):
    q = <<dist.Gamma(model.spread.exp(), 1.0) || dist.Beta(model.spread.exp(), 2.0) || dist.Laplace(model.mean, 1.0) || dist.StudentT(3.0, model.mean) || dist.LogNormal(model.mean, 0.5) || dist.Gumbel(model.mean, 1.0) || dist.Dirichlet(model.spread.exp()) || dist.RelaxedOneHotCategorical(torch.tensor(0.7), logits=model.mean) || dist.Kumaraswamy(model.spread.exp(), 2.0)>>
    z = q.rsample((4,))
    return <<z.mean(0) || (z * x.mean()).sum() || q.log_prob(z.detach().clamp(1e-3, 0.999) if False else z.detach()).mean()>>
""",
        "parts": {"PRIOR": (
            "return dist.Independent(dist.Normal(self.mean, self.spread.exp()), 1)",
            "return dist.MultivariateNormal(self.mean, scale_tril=torch.tril(self.lower, -1) + torch.diag(self.spread.exp()))",
            "each = dist.Independent(dist.Normal(self.centres, self.spread.exp()), 1)\n"
            "return dist.MixtureSameFamily(dist.Categorical(logits=self.mixing), each)",
            "base = dist.Normal(torch.zeros(6), torch.ones(6))\n"
            "return dist.Independent(dist.TransformedDistribution(base, [dist.AffineTransform(self.mean, self.spread.exp())]), 1)",
            "return dist.Independent(dist.Laplace(self.mean, F.softplus(self.spread)), 1)",
            "return dist.LowRankMultivariateNormal(self.mean, self.centres.t(), self.spread.exp())",
        )},
        "calls": {"step": "seen(step(*{batch}))", "sample": "seen(sample(3))", "sample more": "seen(sample(2 + len(notes) % 3))",
                  "estimate": "loss = estimate({batch}[0]).sum()\nloss.backward()\nseen(loss)",
                  "log_prob": "model.log_prob({batch}[0]).sum().backward()"},
    },
    "kernel_methods": {
        "setup": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.length, self.noise = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.tensor(-1.0))
        self.weight, self.first = nn.Parameter(torch.ones(())), nn.Linear(6, 6)
        self.points = nn.Parameter(torch.linspace(-1, 1, 18).view(3, 6))
    def kernel(self, a, b):
        a, b = a / self.length.exp(), b / self.length.exp()
        <DISTANCE>
        return self.weight.exp() * <<torch.exp(-0.5 * d2) || (1 + d2).pow(-1.0) || torch.exp(-(d2 + 1e-6).sqrt())>>
    def forward(self, x):
        return self.kernel(x, self.points)
model = Model()
optimizer = torch.optim.<<Adam || SGD || LBFGS>>(model.parameters(), lr=0.02)
def batch(n=5):
    return torch.randn(n, 6), torch.randn(n)
@compiled
def losses(x, target):
    k = model.kernel(model.first(x), model.first(x)) + (model.noise.exp() + 1e-3) * torch.eye(len(x))
    <LIKELIHOOD>
@compiled
def step(x, target):
    def closure():
        optimizer.zero_grad()
        loss = losses(x, target)
        loss.backward()
        return loss
    return <<optimizer.step(closure).detach() || optimizer.step(closure)>>
@compiled
def predict(x, target, at):
    k = model.kernel(x, x) + 0.1 * torch.eye(len(x))
    factor, info = torch.linalg.cholesky_ex(k)
    << || if info.any(): raise ArithmeticError('not positive')>>
    cross = model.kernel(at, x)
    solved = torch.linalg.solve_triangular(factor, cross.t(), upper=False)
    return cross @ torch.cholesky_solve(target[:, None], factor), 1 - solved.square().sum(0)
""",
        "parts": {
            "DISTANCE": ("d2 = (a[:, None] - b[None]).square().sum(-1)",
                         "d2 = (a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * a @ b.t()).clamp(min=0)",
                         "d2 = torch.cdist(a, b).square()"),
            "LIKELIHOOD": (
                "factor = torch.linalg.cholesky(k)\nalpha = torch.cholesky_solve(target[:, None], factor)\n"
                "return 0.5 * (target @ alpha[:, 0]) + factor.diagonal().log().sum()",
                "return 0.5 * target @ torch.linalg.solve(k, target) + 0.5 * torch.linalg.slogdet(k)[1]",
                "return 0.5 * target @ torch.linalg.inv(k) @ target + 0.5 * torch.logdet(k)",
                "d = torch.distributions.MultivariateNormal(torch.zeros(len(x)), k)\nreturn -d.log_prob(target)",
                "e, v = torch.linalg.eigh(k)\nreturn ((v.t() @ target).square() / e).sum() + e.log().sum()",
                "q, r = torch.linalg.qr(k)\nreturn target @ torch.linalg.solve_triangular(r, (q.t() @ target)[:, None], upper=True)[:, 0]",
                "return torch.linalg.lstsq(k, target[:, None]).solution.square().sum() + k.diagonal().log().sum()",
            ),
        },
        "calls": {
            "step": "seen(step(*{batch}))", "losses": "loss = losses(*{batch})\nloss.backward()\nseen(loss)",
            "predict": "x, target = {batch}\nseen(predict(x, target, x[:2] + 0.1))",
        },
        "events": {"lengths": "with torch.no_grad():\n    model.length.fill_(<F> - 1)"},
    },
    "memory_and_caches": classifier(
        """
class Attention(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads, self.masks, self.cache = heads, {}, None
        self.qkv, self.out, self.bias = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Embedding(16, heads)
    def mask(self, t):
        if t not in self.masks:
            self.masks[t] = torch.ones(t, t, dtype=torch.bool).tril()
        return self.masks[t]
    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)<< || .unbind(0)>>
        if not self.training:
            <CACHE>
        <ATTEND>
        return self.out(y.transpose(1, 2).reshape(b, t, w))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks, self.head = nn.Linear(6, 6), nn.ModuleList(Attention(6) for _ in range(2)), nn.Linear(6, 5)
        self.norms = [nn.LayerNorm(6), nn.RMSNorm(6)]
        self.calls, self.shapes = 0, []
    def forward(self, x):
        self.calls += 1
        if tuple(x.shape) not in self.shapes:
            self.shapes.append(tuple(x.shape))
        x = self.first(x)
        for norm, block in zip(self.norms, self.blocks):
            x = x + block(norm(x))
        return self.head(x<<.mean(1) || [:, -1] || .amax(1)>>)
""",
        SEQUENCES,
        parts={
            "CACHE": ("self.cache = (k.detach(), v.detach())",
                      "if self.cache is not None and self.cache[0].shape == k.shape:\n    v = v + 0.1 * self.cache[1]\n"
                      "self.cache = k.detach(), v.detach()",
                      "self.cache = {'k': k, 'v': v, **(self.cache or {})}\nk = self.cache['k'] if self.cache['k'].shape == k.shape else k"),
            "ATTEND": (
                "y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(t))",
                "y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)",
                "far = (torch.arange(t)[:, None] - torch.arange(t)[None]).clamp(0, 15)\n"
                "y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(far).permute(2, 0, 1))",
                "s = torch.einsum('bhid,bhjd->bhij', q, k) / q.shape[-1] ** 0.5\n"
                "s = s.masked_fill(~self.mask(t), torch.finfo(s.dtype).min)\ny = torch.einsum('bhij,bhjd->bhid', s.softmax(-1), v)",
                "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):\n"
                "    y = F.scaled_dot_product_attention(q, k, v, scale=0.3)",
                "slopes = 2.0 ** -torch.arange(1.0, self.heads + 1)\nalibi = -slopes[:, None, None] * torch.arange(t).flip(0)\n"
                "y = (q @ k.mT / 2 + alibi.to(q.dtype)).softmax(-1) @ v",
                "outs = []\nfor i in range(t):\n    s = (q[:, :, i:i + 1] * k[:, :, :i + 1]).sum(-1)\n"
                "    outs.append((s.softmax(-1)[..., None] * v[:, :, :i + 1]).sum(2))\ny = torch.stack(outs, 2)",
            ),
        },
        events={"caches emptied": "for block in model.blocks:\n    block.cache = None\n    block.masks.clear()",
                "norms elsewhere": "model.norms.reverse()", "calls": "model.calls = 0", "heads": "model.blocks[0].heads = 3"},
    ),
    "quantized": classifier(
        """
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()
    @staticmethod
    def backward(ctx, grad):
        return grad
class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('low', torch.tensor(float('inf')))
        self.register_buffer('high', torch.tensor(float('-inf')))
        self.enabled, self.bits = True, 4
    def forward(self, x):
        if self.training and self.enabled:
            <OBSERVE>
        levels = 2 ** self.bits - 1
        scale = ((self.high - self.low) / levels).clamp(min=1e-3)
        <ROUND>
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.seen, self.steps = nn.Linear(6, 8), nn.Linear(8, 5), Observer(), 0
        self.step_size = nn.Parameter(torch.tensor(0.1))
    def forward(self, x):
        w = self.one.weight
        <WEIGHTS>
        return self.two(self.seen(F.relu(F.linear(x, q, self.one.bias))))
""",
        ROWS,
        parts={
            "OBSERVE": ("self.low.copy_(torch.minimum(self.low, x.detach().min()))\nself.high.copy_(torch.maximum(self.high, x.detach().max()))",
                        "self.low = torch.min(self.low, x.detach().amin())\nself.high = torch.max(self.high, x.detach().amax())",
                        "low, high = torch.aminmax(x.detach())\n"
                        "self.low.data = low if self.low == float('inf') else 0.9 * self.low + 0.1 * low\n"
                        "self.high.data = high if self.high == float('-inf') else 0.9 * self.high + 0.1 * high"),
            "ROUND": ("return x + ((x / scale).round().clamp(0, levels) * scale - x).detach()",
                      "return Round.apply((x / scale).clamp(0, levels)) * scale",
                      "return torch.fake_quantize_per_tensor_affine(x, float(scale), 0, 0, levels)",
                      "return torch.fake_quantize_per_tensor_affine(x.float(), scale.float(), torch.zeros((), dtype=torch.int32), 0, levels).to(x.dtype)",
                      "if self.enabled:\n    x = x + torch.rand_like(x) * scale - scale / 2\nreturn x"),
            "WEIGHTS": ("q = w + (torch.sign(w) * w.abs().mean(1, keepdim=True) - w).detach()",
                        "q = Round.apply(w / self.step_size) * self.step_size",
                        "ternary = torch.where(w.abs() > 0.7 * w.abs().mean(), w.sign(), torch.zeros_like(w))\nq = (ternary - w).detach() + w",
                        "q = (w.sign() - w.tanh()).detach() + w.tanh()",
                        "self.steps += 1\nq = w if self.steps < 3 else w + (w.half().to(w.dtype) - w).detach()",
                        "q = w.to(torch.bfloat16).to(w.dtype)", "q = (w * 127).to(torch.int8).to(w.dtype) / 127 + 0 * w"),
        },
        events={"observer off": "model.seen.enabled = False", "observer on": "model.seen.enabled = True",
                "bits": "model.seen.bits = 2 + <K>", "observed anew": "model.seen.low.fill_(0)\nmodel.seen.high.fill_(1)"},
    ),
    "spiking": classifier(
        """
class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, slope=2.0):
        ctx.save_for_backward(v)
        ctx.slope = slope
        return (v > 0).to(v.dtype)
    @staticmethod
    def backward(ctx, grad):
        v, = ctx.saved_tensors
        return grad / (1 + ctx.slope * v.abs()).square(), None
class Neurons(nn.Module):
    def __init__(self, beta=0.8):
        super().__init__()
        self.beta, self.v, self.rates = <<nn.Parameter(torch.tensor(beta)) || beta>>, None, []
    def reset(self):
        self.v = None
        self.rates = []
    def forward(self, current):
        if self.v is None:
            self.v = torch.zeros_like(current)
        self.v = <<self.beta * self.v + current || torch.lerp(self.v, current, 0.3)>>
        out = <<Spike.apply(self.v - 1.0) || Spike.apply(self.v - 0.5, 3.0) || torch.sigmoid(4 * self.v - 4)>>
        self.v = <<self.v - out.detach() || self.v * (1 - out) || torch.where(out > 0.5, torch.zeros_like(self.v), self.v)>>
        self.rates.append(out.<<detach().mean() || mean()>>)
        return out
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.first, self.two, self.second = nn.Linear(6, 8), Neurons(), nn.Linear(8, 5), Neurons()
    def forward(self, x):
        <<for m in self.modules(): || for m in (self.first, self.second):>>
            if isinstance(m, Neurons):
                m.reset()
        total = 0
        for now in <<x.unbind(1) || x.transpose(0, 1) || [x[:, k] for k in range(x.size(1))]>>:
            total = total + self.second(self.two(self.first(self.one(now))))
        << || total = total + 0.1 * torch.stack(self.first.rates).mean()>>
        return total / x.shape[1] << || + self.second.v>>
""",
        SEQUENCES,
    ),
    "deep_equilibrium": classifier(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.u, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        with torch.no_grad():
            self.w.weight.mul_(0.3)
        self.tol, self.limit, self.turns = 1e-3, 8, 0
    def cell(self, z, x):
        return torch.tanh(self.w(z) + self.u(x))
    def forward(self, x):
        <SOLVE>
        return self.head(z)
""",
        ROWS,
        parts={"SOLVE": (
            "with torch.no_grad():\n    z = torch.zeros_like(x)\n    for self.turns in range(self.limit):\n"
            "        new = self.cell(z, x)\n        if (new - z).norm() < self.tol * (1e-6 + new.norm()):\n            break\n"
            "        z = new\nz = self.cell(z, x)",
            "z = torch.zeros_like(x)\nk = 0\nwhile k < self.limit:\n    new = self.cell(z, x)\n"
            "    error, z, k = (new - z).detach().abs().max().item(), new, k + 1\n    if error < self.tol:\n        break\nself.turns = k",
            "with torch.no_grad():\n    z = x\n    for _ in range(self.limit):\n        z = self.cell(z, x)\n"
            "z = self.cell(z, x)\nif z.requires_grad:\n    z0 = z.detach().requires_grad_()\n    f0 = self.cell(z0, x)\n"
            "    def solve(grad):\n        g = grad\n        for _ in range(4):\n"
            "            g = torch.autograd.grad(f0, z0, g, retain_graph=True)[0] + grad\n        return g\n"
            "    z.register_hook(solve)",
            "z, t, h = x, 0.0, 0.25\nwhile t < 1.0 - 1e-9:\n    h = min(h, 1.0 - t)\n    a = self.cell(z, x) - z\n"
            "    b = self.cell(z + h * a, x) - z\n    error = (h * (b - a)).abs().max().item()\n"
            "    if error < 0.5:\n        z, t = z + h * (a + b) / 2, t + h\n        h = h * 1.5\n    else:\n        h = h / 2",
            "done = torch.zeros(len(x), dtype=torch.bool)\nz = x\nfor _ in range(self.limit):\n    new = self.cell(z, x)\n"
            "    done = done | ((new - z).abs().amax(1) < self.tol)\n    z = torch.where(done[:, None], z, new)\n    if done.all():\n        break",
            "zs, fs = [x], [self.cell(x, x)]\nfor k in range(3):\n    zs.append(fs[-1])\n    fs.append(self.cell(zs[-1], x))\n"
            "g = torch.stack([f - z for f, z in zip(fs, zs)], 1)\n"
            "a = torch.linalg.solve(g @ g.mT + 1e-2 * torch.eye(4), torch.ones(len(x), 4, 1)).squeeze(-1)\n"
            "a = a / a.sum(1, keepdim=True)\nz = (a[..., None] * torch.stack(fs, 1)).sum(1)",
            "p, left, z, h = x.new_zeros(len(x)), x.new_ones(len(x)), torch.zeros_like(x), x\nfor k in range(self.limit):\n"
            "    h = self.cell(h, x)\n    halt = torch.sigmoid(h.mean(1)) if k < self.limit - 1 else torch.ones_like(left)\n"
            "    z = z + (left * halt)[:, None] * h\n    left = left * (1 - halt)\n    if left.max() < 0.05:\n        break",
        )},
        events={"tolerance": "model.tol = 10.0 ** -(1 + <K>)", "limit": "model.limit = 2 + <K>"},
    ),
    "structured_outputs": {
        "setup": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.rnn, self.head = nn.Embedding(11, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 4)
        self.moves, self.start = nn.Parameter(0.1 * torch.randn(4, 4)), nn.Parameter(torch.zeros(4))
    def forward(self, x):
        return self.head(self.rnn(self.tokens(x))[0])
    def partition(self, e, mask):
        alpha = self.start + e[:, 0]
        for k in range(1, e.shape[1]):
            new = <<torch.logsumexp(alpha[:, :, None] + self.moves + e[:, k, None], 1) || (alpha.unsqueeze(2) + self.moves).logsumexp(1) + e[:, k]>>
            alpha = torch.where(mask[:, k, None], new, alpha)
        return alpha.logsumexp(1)
    def score(self, e, tags, mask):
        total = self.start[tags[:, 0]] + e[:, 0].gather(1, tags[:, :1])[:, 0]
        for k in range(1, e.shape[1]):
            total = total + (self.moves[tags[:, k - 1], tags[:, k]] + e[:, k].gather(1, tags[:, k, None])[:, 0]) * mask[:, k]
        return total
    def decode(self, e):
        best, back = self.start + e[:, 0], []
        for k in range(1, e.shape[1]):
            value, place = (best[:, :, None] + self.moves).max(1)
            best = value + e[:, k]
            back.append(place)
        path = [best.argmax(1)]
        for place in reversed(back):
            path.append(place.gather(1, path[-1][:, None])[:, 0])
        return torch.stack(path[::-1], 1), best.max(1)[0]
model = Model()
optimizer = torch.optim.<<Adam || SGD || Adagrad>>(model.parameters(), lr=0.05)
def batch(n=3, t=5):
    return torch.randint(11, (n, t)), torch.randint(1, 4, (n, t))
@compiled
def step(x, target):
    optimizer.zero_grad()
    e, mask = model(x), <<torch.ones_like(target, dtype=torch.bool) || torch.arange(x.shape[1]) < 1 + torch.arange(len(x))[:, None]>>
    <LOSS>
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def decode(x):
    with torch.no_grad():
        return model.decode(model(x))
@compiled
def texts(x):
    with torch.no_grad():
        found = model(x).argmax(-1)
    out = []
    for row in found<<.tolist() || >>:
        kept, last = [], None
        for k in row:
            k = int(k)
            if k != last and k != 0:
                kept.append(k)
            last = k
        out.append(<<kept || ''.join('-abc'[k] for k in kept) || tuple(kept)>>)
    return out
""",
        "parts": {"LOSS": (
            "loss = (model.partition(e, mask) - model.score(e, target, mask)).mean()",
            "loss = F.ctc_loss(e.log_softmax(-1).transpose(0, 1), target[:, :2], torch.full((len(x),), x.shape[1]), "
            "torch.full((len(x),), 2), zero_infinity=True)",
            "loss = F.cross_entropy(e.flatten(0, 1), target.flatten(), ignore_index=<<0 || 1>>)",
            "loss = (F.cross_entropy(e.mT, target, reduction='none') * mask).sum() / mask.sum()",
            "loss = F.multilabel_margin_loss(e.mean(1), F.pad(target, (0, 4), value=-1)[:, :4])",
            "y = F.gumbel_softmax(e, hard=<<True || False>>)\nloss = F.mse_loss(y, F.one_hot(target, 4).to(y.dtype))",
            "d = torch.zeros(len(x), x.shape[1] + 1)\nfor k in range(x.shape[1]):\n"
            "    d[:, k + 1] = d[:, k] + F.softplus(-e[:, k, 0])\nloss = d[:, -1].mean()",
            "p, at = e.softmax(-1).cumprod(1), torch.arange(len(x))\nloss = -p[at, -1, target[:, -1]].clamp(min=1e-6).log().mean()",
            "costs = torch.cdist(e, F.one_hot(target, 4).to(e.dtype))\nk = (-costs).exp()\nu = torch.ones(len(x), x.shape[1])\n"
            "for _ in range(3):\n    v = 1 / torch.einsum('bij,bi->bj', k, u)\n    u = 1 / torch.einsum('bij,bj->bi', k, v)\n"
            "loss = (u[:, :, None] * k * v[:, None] * costs).sum((1, 2)).mean()",
        )},
        "calls": {"step": "seen(step(*{batch}))", "decode": "seen(decode({batch}[0]))", "texts": "seen(texts({batch}[0]))"},
        "lengths": True,
    },
    "vision": classifier(
        """
class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.cls = nn.Conv2d(3, 6, 4, 4), nn.Parameter(torch.zeros(1, 1, 6))
    def forward(self, x):
        x = self.proj(x).flatten(2).mT
        return torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.head = Patches(), nn.Linear(6, 5)
        self.a, self.b = nn.Conv2d(3, 6, 3, padding='same'), nn.ConvTranspose2d(6, 6, 3, stride=2, padding=1, output_padding=1)
        self.place, self.c3 = nn.Linear(3 * 64, 6), nn.Conv3d(1, 2, 3, padding=1)
        self.offset, self.pool = nn.Conv2d(3, 2, 3, padding=1), nn.MaxPool2d(2, return_indices=True)
        self.norm, self.un = <<nn.BatchNorm2d(6) || nn.LocalResponseNorm(2) || nn.InstanceNorm2d(6) || nn.GroupNorm(3, 6)>>, nn.MaxUnpool2d(2)
        self.act = <<nn.RReLU() || nn.Hardshrink() || nn.Threshold(0.1, 0.0) || nn.GLU(dim=1) || nn.Softmax2d() || nn.ReLU6()>>
    def forward(self, x):
        <BODY>
""",
        IMAGES,
        parts={"BODY": (
            "return self.head(self.patches(x)[:, 0] + self.patches(x).mean(1))",
            "y = self.a(x)\ny, k = self.pool(self.norm(y))\nreturn self.head((self.un(y, k) * 2).mean((2, 3)))",
            "theta = self.place(x.flatten(1)).tanh().view(-1, 2, 3)\n"
            "grid = F.affine_grid(theta, x.shape, align_corners=<<False || True>>)\n"
            "y = F.grid_sample(x, grid, mode='<<bilinear || nearest || bicubic>>', padding_mode='<<zeros || border || reflection>>', align_corners=False)\n"
            "return self.head(self.a(y).amax((2, 3)))",
            "y = self.b(F.relu(self.a(x)))\nreturn self.head(F.<<lp_pool2d(y, 2.0, 2) || adaptive_max_pool2d(y, 3) || avg_pool2d(y, 3, 2, ceil_mode=True) || max_pool2d(y, 3, 2, dilation=2)>>.mean((2, 3)))",
            "cols = F.unfold(x, 3, padding=1)\nw = self.a.weight.flatten(1)\ny = F.fold((w @ cols)[:, :6], (8, 8), 1)\nreturn self.head(self.norm(y).mean((2, 3)))",
            "y = self.act(F.pixel_shuffle(F.interpolate(torch.cat([self.a(x), self.a(x)], 1), scale_factor=0.5, mode='bilinear', antialias=<<True || False>>), 2))\n"
            "return self.head(F.pad(y.mean((2, 3)), (0, 6 - y.shape[1])))",
            "y = self.c3(x[:, None]).flatten(1, 2)\nreturn self.head(F.<<adaptive_avg_pool2d(y, 1) || adaptive_max_pool2d(y, (1, 1))>>.flatten(1))",
            "flow = self.offset(x).permute(0, 2, 3, 1).tanh() * 0.2\nr = torch.linspace(-1, 1, 8)\n"
            "grid = torch.stack(torch.meshgrid(r, r, indexing='xy'), -1).to(flow.dtype) + flow\n"
            "return self.head(self.a(F.grid_sample(x, grid, align_corners=True)).mean((2, 3)))",
            "y = F.pad(self.a(x), (1, 1, 1, 1), mode='<<reflect || replicate || circular>>')\n"
            "y = y.unfold(2, 4, 2).unfold(3, 4, 2).amax((-1, -2))\nreturn self.head(y.std((2, 3)))",
            "y = self.a(x)\nw = y.view(*y.shape[:2], 4, 2, 4, 2).permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(1, 2)\n"
            "y = torch.roll(w, 1, 1).softmax(-1) @ w.new_ones(6, 6)\nreturn self.head(y.mean((1, 2)))",
            "k = self.place(x.flatten(1)).view(len(x), 6, 1, 1, 1).expand(-1, 6, 3, 3, 3)\n"
            "w = (self.a.weight[None] * (1 + k)).flatten(0, 1)\ny = F.conv2d(x.reshape(1, -1, 8, 8), w, groups=max(1, len(x)))\n"
            "return self.head(y.view(len(x), 6, -1).mean(2))",
            "x = x - x.mean((0, 2, 3), keepdim=True)\ny = self.act(self.a(x))\nreturn self.head(F.pad(y.flatten(2).median(-1).values, (0, 6 - y.shape[1])))",
        )},
    ),
    "sparse": {
        "setup": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        sparse = <<True || True || False>>
        self.items = nn.Embedding(12, 6, sparse=sparse)
        self.bag = nn.EmbeddingBag(12, 6, mode='sum', sparse=sparse)
        self.head = nn.Linear(6, 5)
    def forward(self, x, adjacency=None):
        h = <<self.items(x).mean(1) || self.items(x).mean(1) + self.bag(x) || self.bag(x, per_sample_weights=torch.ones(x.shape).div(2))>>
        if adjacency is not None:
            h = <<torch.sparse.mm(adjacency, h) || adjacency @ h || h + torch.mm(adjacency, h)>>
        return self.head(h)
model = Model()
dense = [*model.head.parameters()]
optimizer = torch.optim.<<SGD(model.parameters(), lr=0.1) || SparseAdam([*model.items.parameters(), *model.bag.parameters()], lr=0.1) || Adagrad(model.parameters(), lr=0.1)>>
other = torch.optim.Adam(dense, lr=0.01)
def batch(n=4, t=5):
    return torch.randint(12, (n, t)), torch.randint(5, (n,))
def adjacency_of(n):
    return <<torch.eye(n).to_sparse() || torch.ones(n, n).tril().to_sparse_csr() || torch.eye(n).roll(1, 0).to_sparse_coo()>>
@compiled
def losses(x, target, adjacency=None):
    return F.cross_entropy(model(x, adjacency), target)
@compiled
def update():
    optimizer.step()
    other.step()
@compiled
def step(x, target, adjacency=None):
    optimizer.zero_grad()
    other.zero_grad()
    loss = F.cross_entropy(model(x, adjacency), target)
    loss.backward()
    optimizer.step()
    other.step()
    return loss.detach()
@compiled
def built(x):
    index = torch.stack([torch.arange(len(x)), torch.arange(len(x)).flip(0)])
    made = torch.sparse_coo_tensor(index, torch.ones(len(x)), (len(x), len(x)))
    return <<torch.sparse.mm(made, model.items(x).mean(1).detach()) || made.coalesce().values() * 2 || made.to_dense() @ model.bag(x).detach()>>
@compiled
def normed():
    return [<<p.grad.coalesce().values().norm() || p.grad.to_dense().norm()>> if p.grad.is_sparse else p.grad.norm() for p in model.parameters() if p.grad is not None]
""",
        "calls": {
            "step": "seen(step(*{batch}))", "graph": "x, target = {batch}\nseen(step(x, target, adjacency_of(len(x))))",
            "outside": "optimizer.zero_grad()\nloss = losses(*{batch})\nloss.backward()\nupdate()\nseen(loss)",
            "built": "seen(built({batch}[0]))", "normed": "seen(normed())",
        },
        "lengths": True, "watched": "optimizer other", "optimizers": "optimizer other",
    },
}
