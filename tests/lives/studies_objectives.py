"""Programs of `lives` by what they minimise, and in which numbers."""

from __future__ import annotations

from typing import Any

from lives.studies_loops import MODEL, ROWS

STUDIES: dict[str, dict[str, Any]] = {
    "master_weights": {
        "setup": f"""
torch.set_default_dtype(torch.float32)
{MODEL}{ROWS}"""
        """
<<model.bfloat16() || model.body.bfloat16() || model.half() || model.head.bfloat16()>>
<<for m in model.modules(): || for m in ():>>
    if isinstance(m, (nn.LayerNorm, nn.BatchNorm1d)):
        m.float()
masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.<<SGD(masters, lr=0.05, momentum=0.9) || Adam(masters, lr=0.02) || AdamW(masters, lr=0.02, foreach=True)>>
shadow, scale = copy.deepcopy(model), {'value': 8.0, 'good': 0}
def call(x):
    h = model.body[0](x.to(model.body[0].weight.dtype))
    m = model.body[1]
    h = m(h.to(next(m.parameters()).dtype) if [*m.parameters()] else h)
    return model.head(h.to(model.head.weight.dtype)).float()
@compiled
def step(x, target):
    loss = F.cross_entropy(call(x), target)
    (loss * scale['value']).backward()
    <COLLECT>
    finite = <<all(bool(m.grad.isfinite().all()) for m in masters) || torch.stack([m.grad.isfinite().all() for m in masters]).all().item() || True>>
    if finite:
        << || nn.utils.clip_grad_norm_(masters, 1.0)>>
        optimizer.step()
        scale['good'] += 1
    else:
        scale['value'] /= 2
        scale['good'] = 0
    if scale['good'] == 3:
        scale['value'], scale['good'] = scale['value'] * 2, 0
    with torch.no_grad():
        <<for p, m in zip(model.parameters(), masters): || for m, p in zip(masters, [*model.parameters()]):>>
            <<p.copy_(m) || p.data = m.data.to(p.dtype) || p.data.copy_(m.data)>>
    model.zero_grad()
    return loss.detach()
@compiled
def followed():
    with torch.no_grad():
        for s, m in zip(shadow.parameters(), masters):
            <<s.lerp_(m.to(s.dtype), 0.1) || s.mul_(0.9).add_(m, alpha=0.1) || s.copy_(0.9 * s.float() + 0.1 * m)>>
        return sum((s.float() - m).square().sum() for s, m in zip(shadow.parameters(), masters))
""",
        "parts": {"COLLECT": (
            "for p, m in zip(model.parameters(), masters):\n    m.grad = p.grad.float() / scale['value']",
            "for p, m in zip(model.parameters(), masters):\n    if m.grad is None:\n        m.grad = torch.empty_like(m)\n    m.grad.copy_(p.grad).div_(scale['value'])",
            "grads = torch._foreach_div([p.grad.float() for p in model.parameters()], scale['value'])\nfor m, g in zip(masters, grads):\n    m.grad = g",
        )},
        "calls": {"step": "seen(step(*{batch}))", "followed": "seen(followed())"},
        "events": {"scale": "scale['value'] = 2.0 ** <K>", "masters anew": "with torch.no_grad():\n    for p, m in zip(model.parameters(), masters):\n        m.copy_(p)"},
        "watched": "optimizer masters scale", "models": "model shadow",
    },
    "dictionaries": {
        "setup": f"""
import collections, dataclasses, functools, typing
@dataclasses.dataclass
class Config:
    width: int = 8
    act: str = 'tanh'
    weights: dict = dataclasses.field(default_factory=lambda: {{'ce': 1.0, 'l2': 0.01, 'entropy': 0.1}})
    warmup: int = 2
    use: typing.Optional[bool] = None
    @property
    def extra(self):
        return bool(self.use) and self.width > 4
    def get(self, name, default=None):
        return getattr(self, name, default)
ACTS = {{'tanh': torch.tanh, 'relu': F.relu, 'gelu': functools.partial(F.gelu, approximate='tanh'), 'silu': nn.SiLU()}}
LOSSES = {{}}
def registered(name):
    def add(function):
        LOSSES[name] = function
        return function
    return add
@registered('ce')
def cross_entropy(out, target, **_):
    return F.cross_entropy(out, target)
@registered('l2')
def squares(*_, model, **__):
    return sum(p.square().sum() for p in model.parameters())
@registered('entropy')
def entropy(out, *_, temperature=1.0, **__):
    p = (out / temperature).softmax(-1)
    return -(p * p.clamp(min=1e-9).log()).sum(-1).mean()
class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layers = {{'in': nn.Linear(6, config.width), 'out': nn.Linear(config.width, 5)}}
        for name, layer in self.layers.items():
            self.add_module(f'layer_{{name}}', layer)
        self.side, self.outputs = nn.Linear(6, 5), {{}}
    def forward(self, x):
        h = ACTS[self.config.act](self.layers['in'](x))
        out = {{'hidden': h, 'logits': self.layers['out'](h)}}
        if self.config.extra:
            out['logits'] = out['logits'] + self.side(x)
        << || self.outputs.update(out) || self.outputs = {{k: v.detach() for k, v in out.items()}}>>
        return <<out || collections.OrderedDict(out) || {{**out, 'norm': h.norm()}}>>
config = Config()
model, logs, meters = Model(config), [], collections.defaultdict(float)
optimizer = torch.optim.<<SGD || Adam || AdamW>>(model.parameters(), lr=0.05)
{ROWS}"""
        """
@compiled
def step(x, target, number=0):
    optimizer.zero_grad()
    out = model(x)
    found = {name: LOSSES[name](out['logits'], target, model=model<< || , temperature=0.7>>) for name in <<config.weights || sorted(config.weights) || config.weights.keys()>>}
    loss = sum(<<config.weights[k] * v for k, v in found.items() || w * found[k] for k, w in config.weights.items() if w>>)
    << || loss = loss + config.get('margin', 0.0) * out['hidden'].abs().mean()>>
    loss.backward()
    if number < config.warmup:
        for group in optimizer.param_groups:
            group['lr'] = 0.05 * (number + 1) / max(config.warmup, 1)
    optimizer.step()
    for name, value in found.items():
        meters[name] += <<value.item() || float(value) || value.detach()>>
    << || logs.append(f'{number}: ' + ', '.join(f'{k}={v:.1f}' for k, v in meters.items())) || logs.append({'loss': loss.detach(), 'step': number})>>
    return <<{**found, 'loss': loss} || dataclasses.asdict(config)['weights'] || {k: v.detach() for k, v in found.items()} || {'loss': loss.detach(), **vars(config)['weights']}>>
@compiled
def sweep(x):
    with torch.no_grad():
        return {act: ACTS[act](model.layers['in'](x)).mean() for act in ACTS}
@compiled
def hooked(x):
    << || seen_ = []>>
    out = model(x)
    return {k: v.shape for k, v in out.items()}, {k: tuple(v.detach().sum(0)[:2].tolist()) for k, v in out.items() if v.ndim > 1}
""",
        "calls": {"step": "seen(step(*{batch}))", "numbered": "for number in range(3):\n    seen(step(*{batch}, number))",
                  "sweep": "seen(sweep({batch}[0]))", "hooked": "seen(hooked({batch}[0]))",
                  "other config": "config, model.config = dataclasses.replace(config, act='relu'), config\nmodel.config = config\nseen(step(*{batch}))"},
        "events": {"act": "config.act = [*ACTS][<K>]", "weights": "config.weights['l2'] = 0.01 * <F>", "a loss less": "config.weights.pop('entropy', None)",
                   "a loss more": "LOSSES['size'] = lambda out, *_, **__: out.abs().mean()\nconfig.weights['size'] = <F>", "use": "config.use = not config.use",
                   "warmup": "config.warmup = <K>", "a layer replaced": "model.layers['out'] = model.layer_out = nn.Linear(config.width, 5)",
                   "margin": "config.margin = <F>", "meters": "meters.clear()", "width": "config.width = 3 if config.width == 8 else 8"},
        "watched": "optimizer meters config",
    },
    "consistency": {
        "setup": f"""
import numpy as np
import random as chance
{MODEL}
predictor, target_net = nn.Linear(5, 5), copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.<<SGD || Adam || AdamW>>([*model.parameters(), *predictor.parameters()], lr=0.02)
centre, bank, state = torch.zeros(5), torch.zeros(8, 5), {{'at': 0, 'step': 0}}
{ROWS}"""
        """
def view(x):
    <<return x + 0.1 * torch.randn_like(x) || return x * (torch.rand(x.shape) > 0.2) || return F.dropout(x, 0.2) || return x[:, torch.randperm(x.shape[1])]>>
@compiled
def step(x, target):
    optimizer.zero_grad()
    a, b = model(view(x)), model(view(x))
    <LOSS>
    loss.backward()
    optimizer.step()
    state['step'] += 1
    decay = <<0.9 || 1 - 0.1 * (1 + state['step'] / 10) ** -1 || min(0.99, state['step'] / (state['step'] + 3))>>
    with torch.no_grad():
        for t, p in zip(target_net.parameters(), model.parameters()):
            <<t.mul_(decay).add_(p, alpha=1 - decay) || t.lerp_(p, 1 - decay) || t.data = decay * t.data + (1 - decay) * p.data>>
    return loss.detach()
@compiled
def mixed(x, target):
    optimizer.zero_grad()
    <MIX>
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def semi(x, target):
    optimizer.zero_grad()
    with torch.no_grad():
        p, guess = model(view(x)).softmax(-1).max(-1)
    sure = p > <<0.25 || p.median() || 0.9>>
    loss = (F.cross_entropy(model(x), guess, reduction='none') * sure).mean()
    << || if sure.any(): loss = loss + F.cross_entropy(model(x[sure]), guess[sure])>>
    loss = loss + F.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    return loss.detach(), sure.sum()
""",
        "parts": {
            "LOSS": (
                "z = F.normalize(torch.cat([a, b]), dim=1)\ns = z @ z.t() / 0.5\ns.fill_diagonal_(float('-inf'))\n"
                "n = len(x)\nloss = F.cross_entropy(s, torch.cat([torch.arange(n) + n, torch.arange(n)]))",
                "with torch.no_grad():\n    t = target_net(x)\nloss = 2 - 2 * F.cosine_similarity(predictor(a), t).mean()",
                "a, b = (a - a.mean(0)) / (a.std(0) + 1e-3), (b - b.mean(0)) / (b.std(0) + 1e-3)\nc = a.t() @ b / len(x)\n"
                "on = (c.diagonal() - 1).square().sum()\nloss = on + 0.01 * (c.square().sum() - c.diagonal().square().sum())",
                "cov = (a - a.mean(0)).t() @ (a - a.mean(0)) / max(len(x) - 1, 1)\noff = cov - torch.diag(cov.diagonal())\n"
                "loss = F.mse_loss(a, b) + F.relu(1 - (a.var(0) + 1e-4).sqrt()).mean() + off.square().sum() / 5",
                "with torch.no_grad():\n    t = ((target_net(x) - centre) / 0.1).softmax(-1)\n"
                "    centre.mul_(0.9).add_(target_net(x).mean(0), alpha=0.1)\nloss = -(t * (a / 0.2).log_softmax(-1)).sum(-1).mean()",
                "k = F.normalize(target_net(x), dim=1)\npositive = (F.normalize(a, dim=1) * k).sum(1, keepdim=True)\n"
                "loss = F.cross_entropy(torch.cat([positive, a @ bank.t().clone()], 1), torch.zeros(len(x), dtype=torch.long))\n"
                "n = min(len(x), 8 - state['at'])\nbank[state['at']:state['at'] + n] = k[:n].detach()\nstate['at'] = (state['at'] + n) % 8",
                "q = torch.exp(a.detach() / 0.5).t()\nfor _ in range(3):\n    q = q / q.sum(1, keepdim=True) / 5\n    q = q / q.sum(0, keepdim=True) / len(x)\n"
                "loss = -((q * len(x)).t() * b.log_softmax(1)).sum(1).mean()",
                "d = torch.pdist(a)\nloss = torch.exp(-2 * d.square()).mean().add(1e-3).log() + F.pairwise_distance(a, b).mean()",
                "g = torch.Generator().manual_seed(3)\npairs = torch.randperm(len(x), generator=g)\nloss = F.triplet_margin_loss(a, b, b[pairs])",
            ),
            "MIX": (
                "share = <<float(np.random.beta(0.5, 0.5)) || np.random.beta(1.0, 1.0) || chance.betavariate(0.5, 0.5) || torch.distributions.Beta(0.5, 0.5).sample()>>\n"
                "order = torch.randperm(len(x))\nout = model(share * x + (1 - share) * x[order])\n"
                "loss = share * F.cross_entropy(out, target) + (1 - share) * F.cross_entropy(out, target[order])",
                "low = chance.randrange(3)\nx = x.clone()\nx[:, low:low + 2] = x.flip(0)[:, low:low + 2]\nloss = F.cross_entropy(model(x), target)",
                "if np.random.rand() < 0.5:\n    x = x.flip(1)\nloss = F.cross_entropy(model(x), target)",
                "each = F.cross_entropy(model(x), target, reduction='none')\nloss = each.topk(max(1, len(x) // 2)).values.mean()",
                "each = F.cross_entropy(model(x), target, reduction='none')\nhard = each.detach() > each.detach().mean()\nloss = each[hard].sum() / hard.sum().clamp(min=1)",
                "w = torch.bincount(target, minlength=5).to(x.dtype)\nw = (1 / w.clamp(min=1)) / (1 / w.clamp(min=1)).sum()\nloss = F.cross_entropy(model(x), target, weight=w)",
                "x = x.clone().requires_grad_()\nfirst = F.cross_entropy(model(x), target)\ng, = torch.autograd.grad(first, x<< || , create_graph=True || , retain_graph=True>>)\n"
                "loss = first + F.cross_entropy(model(x + 0.05 * g.sign()), target)",
                "delta = torch.zeros_like(x).uniform_(-0.1, 0.1).requires_grad_()\nfor _ in range(2):\n    F.cross_entropy(model(x + delta), target).backward()\n"
                "    with torch.no_grad():\n        delta += 0.05 * delta.grad.sign()\n        delta.clamp_(-0.1, 0.1)\n    delta.grad<< = None || .zero_()>>\n"
                "optimizer.zero_grad()\nloss = F.cross_entropy(model(x + delta.detach()), target)",
            ),
        },
        "calls": {"step": "seen(step(*{batch}))", "mixed": "np.random.seed(3)\nseen(mixed(*{batch}))", "semi": "seen(semi(*{batch}))"},
        "events": {"centre": "centre.zero_()", "bank": "bank = torch.ones(8, 5)", "python seed": "chance.seed(<K>)", "at": "state['at'] = 2 * <K>"},
        "models": "model target_net predictor", "watched": "optimizer centre bank state",
    },
    "diffusion": {
        "setup": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.label = nn.Linear(6, 8), nn.Linear(8, 6), nn.Embedding(6, 8)
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
    def embed(self, t):
        rates = torch.exp(-torch.arange(4) * (torch.log(torch.tensor(100.0)) / 4)).to(self.one.weight.dtype)
        angles = t<<[:, None].to(rates.dtype) || .view(-1, 1).double()>> * rates
        return self.time(torch.cat([angles.sin(), angles.cos()], -1).to(rates.dtype))
    def forward(self, x, t, label=None):
        h = self.one(x) + self.embed(t)
        if label is not None:
            h = h + self.label(label)
        return self.two(F.silu(h))
class Schedule(nn.Module):
    def __init__(self, steps=6):
        super().__init__()
        betas = <<torch.linspace(1e-2, 0.3, steps) || torch.sigmoid(torch.linspace(-4, 0, steps))>>
        for name, value in dict(betas=betas, alphas=(1 - betas).cumprod(0)).items():
            self.register_buffer(name, value)
        self.steps = steps
    def noised(self, x, t, noise):
        a = <<self.alphas[t][:, None] || self.alphas.gather(0, t)[:, None] || self.alphas[t].view(-1, *(1,) * (x.ndim - 1))>>
        return a.sqrt() * x + (1 - a).sqrt() * noise
model, schedule = Model(), Schedule()
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.<<Adam || AdamW>>(model.parameters(), lr=0.02)
def batch(n=4):
    return torch.randn(n, 6), torch.randint(5, (n,))
@compiled
def step(x, label):
    t = <<torch.randint(schedule.steps, (len(x),)) || torch.randint(0, schedule.steps, (x.shape[0],)).sort().values>>
    noise = torch.randn_like(x)
    << || label = torch.where(torch.rand(len(x)) < 0.3, 5, label)>>
    given = <<label || None || label if torch.rand(()) > 0.3 else None>>
    noisy = schedule.noised(x, t, noise)
    optimizer.zero_grad()
    guess = model(noisy, t, given)
    each = F.mse_loss(guess, noise, reduction='none').mean(1)
    w = <<1.0 || (schedule.alphas / (1 - schedule.alphas)).clamp(max=5)[t] || torch.minimum(schedule.alphas[t], torch.tensor(0.5))>>
    loss = (w * each).mean()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    return loss.detach()
@compiled
def sample(n, scale=1.0):
    <<with torch.no_grad(): || with torch.inference_mode():>>
        x = torch.randn(n, 6)
        for k in <<reversed(range(schedule.steps)) || range(schedule.steps - 1, -1, -1) || torch.arange(schedule.steps).flip(0)>>:
            t = <<torch.full((n,), int(k)) || torch.ones(n, dtype=torch.long) * int(k)>>
            guess = average(x, t)
            if scale != 1.0:
                guess = guess + scale * (average(x, t, torch.zeros(n, dtype=torch.long)) - guess)
            b, a = schedule.betas[int(k)], schedule.alphas[int(k)]
            x = (x - b / (1 - a).sqrt() * guess) / (1 - b).sqrt()
            if k > 0:
                x = x + b.sqrt() * torch.randn_like(x)
        return x<< || .clamp(-3, 3)>>
@compiled
def matched(x, label):
    optimizer.zero_grad()
    t = torch.rand(len(x), 1)
    << || t = torch.sigmoid(torch.randn(len(x), 1))>>
    start = torch.randn_like(x)
    now = <<torch.lerp(start, x, t) || (1 - t) * start + t * x>>
    loss = (model(now, t.squeeze(1) * 6, label) - (x - start)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def scores(x, label):
    x = x.detach().requires_grad_()
    s = model(x, torch.zeros(len(x)), None)
    v = torch.randn_like(x)
    g, = torch.autograd.grad((s * v).sum(), x, create_graph=True)
    return ((g * v).sum(1) + 0.5 * s.square().sum(1)).mean()
""",
        "calls": {"step": "seen(step(*{batch}))", "sample": "seen(sample(3))", "guided": "seen(sample(2, scale=<<2.0 || 1.5>>))", "matched": "seen(matched(*{batch}))",
                  "scores": "optimizer.zero_grad()\nloss = scores(*{batch})\nloss.backward()\noptimizer.step()\nseen(loss)"},
        "events": {"steps": "schedule = Schedule(4 + <K>)", "average anew": "average = torch.optim.swa_utils.AveragedModel(model)"},
        "models": "model average schedule",
    },
    "second_derivatives": {
        "setup": f"""{MODEL}{ROWS}"""
        """
trained = [*model.parameters()]
optimizer = torch.optim.<<SGD || Adam>>(trained, lr=0.02)
fisher, old = [torch.zeros_like(p) for p in trained], [p.detach().clone() for p in trained]
stats, momentum = {}, [torch.zeros_like(p) for p in trained]
def products(loss, vectors):
    grads = torch.autograd.grad(loss, trained, create_graph=True)
    dot = sum((g * v).sum() for g, v in zip(grads, vectors))
    return torch.autograd.grad(dot, trained)
@compiled
def curvature(x, target):
    loss = F.cross_entropy(model(x), target)
    signs = [<<torch.randint(2, p.shape).to(p.dtype) * 2 - 1 || torch.randn_like(p) || torch.empty_like(p).bernoulli_(0.5).mul_(2).sub_(1)>> for p in trained]
    found = products(loss, signs)
    with torch.no_grad():
        for p, s, h, f in zip(trained, signs, found, fisher):
            f.mul_(0.9).add_((s * h).abs(), alpha=0.1)
            p.sub_(0.01 * torch.sign(p) / (f + 0.1))
    return loss.detach()
@compiled
def conjugate(x, target):
    b = torch.autograd.grad(F.cross_entropy(model(x), target), trained)
    z = [torch.zeros_like(g) for g in b]
    r, p = [g.clone() for g in b], [g.clone() for g in b]
    rr = sum((g * g).sum() for g in r)
    for _ in range(3):
        ap = [h + 0.1 * v for h, v in zip(products(F.cross_entropy(model(x), target), p), p)]
        alpha = rr / (sum((u * v).sum() for u, v in zip(p, ap)).abs() + 1e-6)
        z = [u + alpha * v for u, v in zip(z, p)]
        r = [u - alpha * v for u, v in zip(r, ap)]
        new = sum((g * g).sum() for g in r)
        << || if new < 1e-8: break || if new.sqrt().item() < 1e-4: break>>
        p = [u + new / (rr + 1e-9) * v for u, v in zip(r, p)]
        rr = new
    with torch.no_grad():
        torch._foreach_add_(trained, z, alpha=-0.05)
    return rr.detach()
@compiled
def anchored(x, target):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), target)
    loss = loss + sum((f * (p - o).square()).sum() for f, p, o in zip(fisher, trained, old))
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def squared(x, target):
    total = [torch.zeros_like(p) for p in trained]
    for k in range(len(x)):
        grads = torch.autograd.grad(F.cross_entropy(model(x[k:k + 1]), target[k:k + 1]), trained)
        total = [<<t + g.square() || torch.addcmul(t, g, g)>> for t, g in zip(total, grads)]
    with torch.no_grad():
        for f, t, o, p in zip(fisher, total, old, trained):
            f.copy_(t / max(len(x), 1))
            o.copy_(p)
    return sum(f.sum() for f in fisher)
@compiled
def orthogonal(x, target):
    grads = torch.autograd.grad(F.cross_entropy(model(x), target), trained)
    with torch.no_grad():
        for p, g, m in zip(trained, grads, momentum):
            m.mul_(0.9).add_(g)
            if p.ndim < 2:
                p.sub_(0.02 * m)
                continue
            u = m / (m.norm() + 1e-7)
            << || if u.shape[0] > u.shape[1]: u = u.t()>>
            for _ in range(2):
                u = 1.5 * u - 0.5 * u @ u.t() @ u
            p.sub_(0.02 * (u if u.shape == p.shape else u.t()))
    return momentum[0].norm()
@compiled
def evolved(x, target, count=3, sigma=0.05):
    with torch.no_grad():
        base = nn.utils.parameters_to_vector(trained)
        total = torch.zeros_like(base)
        for k in range(count):
            << || torch.manual_seed(k)>>
            noise = torch.randn_like(base)
            scores = []
            for sign in (1, -1):
                nn.utils.vector_to_parameters(base + sign * sigma * noise, trained)
                scores.append(F.cross_entropy(model(x), target)<< || .item()>>)
            total += (scores[0] - scores[1]) / (2 * sigma) * noise
        nn.utils.vector_to_parameters(base - 0.05 * total / count, trained)
    return total.norm()
""",
        "calls": {name: f"seen({name}(*{{batch}}))" for name in ("curvature", "conjugate", "anchored", "squared", "orthogonal", "evolved")},
        "events": {"old": "old = [p.detach().clone() for p in trained]", "fisher": "for f in fisher:\n    f.fill_(0.1)", "fewer": "trained = trained[:2]",
                   "all": "trained = [*model.parameters()]\nfisher, old, momentum = ([torch.zeros_like(p) for p in trained] for _ in range(3))"},
        "watched": "optimizer fisher old momentum",
    },
}
