"""More programs of `lives` by what their networks are made of: kernels, caches, rounding, loops that end, structures."""

from __future__ import annotations

from typing import Any

from lives.studies_networks import IMAGES, ROWS, SEQUENCES, classifier

STUDIES: dict[str, dict[str, Any]] = {
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
