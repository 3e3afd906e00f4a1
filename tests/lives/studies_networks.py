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
}
