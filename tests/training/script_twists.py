"""What scripts keep in Python around a step and read in it: counters, averages as floats, objects as losses, hooks that look
at what changes, gradients as scratch memory, groups and states of an optimizer, copies of the model.

Lines are those of `more_twists`; besides, a line that begins with "first: " stands at the beginning of the step, with
"backward: " after the gradients are there, and with "update: " after the update.
"""

from __future__ import annotations

Table = dict[tuple[str, ...], float]

#: Functions and classes for the top of the program.
CLASSES = '''
class Weighted:
    """A loss that is an object, and counts its calls."""

    def __init__(self, weight):
        self.weight, self.calls = weight, 0

    def __call__(self, out):
        self.calls += 1
        return self.weight * out.square().mean() / self.calls


class Counted:
    """A counter of the class, which all instances share."""

    calls = 0

    @classmethod
    def again(cls):
        cls.calls = 0
        return [cls.calls]

    def count(self):
        type(self).calls += 1
        return type(self).calls


class Positive(nn.Module):
    def forward(self, weight):
        return F.softplus(weight)


@torch.no_grad()
def track(module, x, rate=0.1):
    module.tracked.lerp_(x.mean().to(module.tracked.dtype), rate)
    return module.tracked


def clipped_weights(module):
    if hasattr(module, "weight") and isinstance(module.weight, nn.Parameter):
        module.weight.data.clamp_(-2.0, 2.0)


def unused(parameters):
    return sum(0.0 * p.sum() for p in parameters)
'''

FORWARD: Table = {
    ("init: self.register_buffer('hits', torch.zeros(4)); self.register_buffer('means', torch.zeros(4))",
     "with torch.no_grad():", "    place = torch.arange(4, device=x.device) == len(x) % 4",
     "    self.hits.mul_(0.9).add_(place.to(self.hits.dtype))",
     "    self.means.copy_(torch.where(place, x.mean(), self.means))", "    self.means[self.hits < 0.5] = 0.0",
     "x = x + 0.1 * self.means.mean()"): 1.5,
    ("init: self.register_buffer('codes', torch.linspace(-1, 1, 5)); self.register_buffer('sizes', torch.ones(5))",
     "codes = self.codes.to(x.dtype)", "which = (x.detach()[..., None] - codes).abs().argmin(-1)", "chosen = codes[which]",
     "with torch.no_grad():", "    counts = F.one_hot(which.flatten(), 5).sum(0)",
     "    self.sizes.mul_(0.9).add_(counts, alpha=0.1)", "    self.codes[counts == 0] += 0.01",
     "x = x + 0.1 * (chosen - x).detach()"): 1,
    ("init: self.register_buffer('tracked', torch.zeros(()))", "x = x + 0.1 * track(self, x)"): 1,
    ("init: self.register_buffer('front', torch.zeros(())); self.register_buffer('back', torch.ones(()))",
     "self.front, self.back = self.back, self.front", "with torch.no_grad():", "    self.front.add_(0.1)",
     "x = x + 0.1 * self.front"): 1,
    ("init: self.register_buffer('kept', torch.zeros(2))", "before = self.kept", "del self.kept",
     "self.register_buffer('kept', 0.5 * before + 0.1)", "x = x + 0.01 * self.kept.sum()"): 0.5,
    ("init: self.register_buffer('work', torch.zeros(3))", "with torch.no_grad():",
     "    torch.add(self.work, 0.5, out=self.work)", "x = x + 0.01 * self.work.sum()"): 0.7,
    ("init: self.gain = 1.0", "self.gain = 0.9 * self.gain", "if x.requires_grad:",
     "    x.register_hook(lambda grad: grad * self.gain)"): 1.5,
    ("init: self.norms = []", "if x.requires_grad:", "    x.register_hook(lambda grad: self.norms.append(grad.norm()))",
     "if len(self.norms) > 0:", "    x = x / (1 + self.norms[-1].detach())"): 1.5,
    ("init: self.state = {'turn': 0, 'scale': 1.0}", "state = self.state", "state['turn'] += 1", "def scaled(grad):",
     "    return grad * state['scale'] if state['turn'] % 2 else None", "if x.requires_grad:",
     "    x.register_hook(scaled)", "state['scale'] *= 0.9"): 1.5,
    ("count = 0", "def counted(grad):", "    nonlocal count", "    count += 1", "    return grad / count",
     "y, z = x * 0.5, x.sin()", "if x.requires_grad:", "    y.register_hook(counted)", "    z.register_hook(counted)",
     "x = y + z"): 1,
    ("setup: counted = Counted.again()", "x = x * (1 + 0.1 / Counted().count())"): 1,
    ("rows, means = zip(*[(row, row.mean()) for row in x])",
     "x = torch.stack([r - 0.1 * m for r, m in zip(rows, means)])"): 1,
    ("init: self.inner = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1))",
     "params = {n: p * 0.9 for n, p in self.inner.named_parameters()}",
     "x = x + 0.1 * torch.func.functional_call(self.inner, params, (x[..., None],))[..., 0]"): 1,
    ("init: self.inner = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1))",
     "params = dict(self.inner.named_parameters())", "with torch.enable_grad():",
     "    error = torch.func.functional_call(self.inner, params, (x.detach()[..., None],)).square().mean()",
     "    slopes = torch.autograd.grad(error, list(params.values()), create_graph=True)",
     "params = {n: p - 0.1 * s for (n, p), s in zip(params.items(), slopes)}",
     "x = x + 0.1 * torch.func.functional_call(self.inner, params, (x[..., None],))[..., 0]"): 1,
    ("init: self.weigh = nn.utils.parametrizations.weight_norm(nn.Linear(1, 1))",
     "x = x + 0.1 * self.weigh(x[..., None])[..., 0]"): 1,
    ("init: self.weigh = nn.Linear(1, 1, bias=False); nn.utils.parametrize.register_parametrization(self.weigh, "
     "'weight', Positive())", "with nn.utils.parametrize.cached():",
     "    x = self.weigh(x[..., None])[..., 0] + 0.1 * self.weigh.weight.sum()"): 1,
    ("init: self.slopes = nn.ParameterDict({f'k{k}': nn.Parameter(torch.full((), 0.5)) for k in range(3)}); self.turn = 0",
     "self.turn += 1", "x = x * self.slopes[f'k{self.turn % 3}']"): 1,
    ("init: self.gate0 = nn.Parameter(torch.ones(())); self.gate1 = nn.Parameter(torch.zeros(())); self.calls = 0",
     "x = x * getattr(self, f'gate{self.calls % 2}')", "setattr(self, 'calls', self.calls + 1)"): 1,
    ("init: self.mixed = nn.Parameter(torch.zeros(3))", "order = sorted(range(3), key=lambda k: -k)",
     "x = x + sum(self.mixed[k] * (k + 1) for k in order)"): 1,
    ("lengths = 1 + torch.arange(len(x), device=x.device) % x.shape[-1]",
     "mask = torch.arange(x.shape[-1], device=x.device)[None] < lengths[:, None]",
     "flat = x.reshape(len(x), -1, x.shape[-1])[:, 0]", "packed = flat[mask].tanh()", "padded = torch.zeros_like(flat)",
     "padded[mask] = packed", "x = x + 0.1 * padded.view(len(x), *(1,) * (x.ndim - 2), -1)"): 1.5,
    ("weights = torch.autograd.functional.jacobian(lambda z: z.tanh().sum(), x.detach())", "x = x * weights"): 0.7,
    ("with torch.enable_grad():", "    hidden = x.detach().requires_grad_()", "    aux = (hidden.sin() * hidden).sum()",
     "    aux.backward()", "x = x + 0.1 * hidden.grad"): 1,
    ("if x.requires_grad:", "    (pull,) = torch.autograd.grad(x.square().mean(), x, retain_graph=True)",
     "    x = x - 0.1 * pull.detach()"): 1,
    ("self.seen = x", "if x.requires_grad:", "    x.retain_grad()", "backward: model.noted = model.seen.grad is None"): 1,
    ("with torch.set_grad_enabled(self.training):", "    x = x * x.sigmoid()"): 1,
    ("with torch.set_grad_enabled(not self.training):", "    y = x.tanh()", "x = x + 0.1 * y"): 0.7,
    ("init: self.depth = 1", "for k in range(4):", "    if k >= self.depth:", "        break", "    x = x + 0.1 * x.sin()",
     "self.depth = self.depth % 3 + 1"): 1,
    ("init: self.norm = nn.LayerNorm(1); self.gains = [1.0]", "self.gains.append(self.gains[-1] * 0.9)",
     "x = x * sum(self.gains) / len(self.gains) + self.norm(x[..., None])[..., 0]"): 1,
    ("handle = self.register_forward_hook(lambda m, args, out: out * 0.9)", "handle.remove()", "x = x.clone()",
     "with torch.no_grad():", "    x.clamp_(-4, 4)"): 0.7,
    ("if not all(p.isfinite().all() for p in self.parameters()):", "    raise ValueError('lost')"): 0.7,
    ("x = next(iter([x])) if x.requires_grad else x", "x = max((x, x * 0.5), key=lambda t: t.ndim)"): 0.5,
    ("init: self.chain = [nn.Tanh(), nn.Sigmoid()]", "for act in self.chain:", "    x = x + 0.1 * act(x)",
     "self.chain = self.chain[::-1]"): 1,
    ("total, best = 0.0, None", "for row in x.unbind(0):", "    total = total + row.mean()",
     "    best = row if best is None else torch.maximum(best, row)", "x = x + 0.1 * total + 0.1 * best"): 1,
    ("with torch.no_grad():", "    drift = [p.mean() for p in self.parameters()]", "    drift = torch.stack(drift).mean()",
     "x = torch.where(drift > 0, x, 0.9 * x)"): 1,
    ("y = x.clone()", "with torch.no_grad():", "    y[..., -1] = 0", "x = x + 0.1 * y"): 1,
    ("base = x.detach().clone()", "base[0] = x[0] * 2", "base[-1] += x[-1]", "x = 0.5 * (x + base)"): 1,
    ("buf = torch.zeros(2, *x.shape, dtype=x.dtype, device=x.device)", "buf[0] = x", "buf[1] = buf[0] * 2 + x.sin()",
     "buf[0] *= 0.5", "x = buf.sum(0)"): 1,
}  # fmt: skip

#: Only in single numbers of double precision: a float that the program reads decides nothing by its last bits there.
NUMBERS: Table = {
    ("init: self.ema = 0.0", "self.ema = 0.9 * self.ema + 0.1 * x.detach().abs().mean().item()",
     "x = x / (1 + self.ema)"): 1,
    ("init: self.limit = float('inf')", "size = x.detach().norm().item()", "if size < self.limit:",
     "    self.limit = size", "x = x * (1 + 0.01 * (size <= self.limit))"): 1,
    ("order = sorted(self.parameters(), key=lambda p: p.norm().item())", "x = x + 0.01 * order[0].mean()"): 1,
    ("gains = [round(float(row.mean()), 3) for row in x.detach()]", "x = x + 0.1 * sum(gains)"): 0.7,
    ("init: self.noise = torch.Generator().manual_seed(3)",
     "x = x + 0.01 * torch.rand(x.shape, generator=self.noise, dtype=x.dtype)"): 0.7,
    ("with torch.random.fork_rng():", "    torch.manual_seed(5)", "    x = x + 0.01 * torch.randn_like(x)"): 0.7,
    ("if x.requires_grad:", "    x.register_hook(lambda grad: grad + 0.01 * torch.randn_like(grad))"): 0.7,
}  # fmt: skip

AFTER_LOSS: Table = {
    ("loss = loss + 0 * sum(p.sum() for p in trained)",): 1,
    ("loss = loss + unused(model.parameters())",): 1,
    ("terms = dict(main=loss, size=0.01 * out.square().mean())", "terms['all'] = 0.1 * sum(terms.values())",
     "loss = sum(terms.values())"): 1,
    ("setup: extra = Weighted(0.1)", "loss = loss + extra(out)"): 1.5,
    ("setup: smooth = functools.partial(F.smooth_l1_loss, beta=0.5, reduction='none')",
     "loss = loss + 0.01 * smooth(out, torch.zeros_like(out)).mean()"): 1,
    ("guide = copy.deepcopy(model)", "with torch.no_grad():", "    soft = guide(x)",
     "loss = loss + 0.01 * (out.flatten()[: soft.numel()] * soft.flatten()[: out.numel()].to(out.dtype)).mean()"): 1,
    ("(push,) = torch.autograd.grad(out.square().sum(), out, retain_graph=True)",
     "loss = loss + 0.01 * (out * push.detach()).mean()"): 1,
    ("(slope,) = torch.autograd.grad(loss, out, create_graph=True)", "loss = loss + 0.01 * slope.square().sum()"): 1,
    ("(slope,) = torch.autograd.grad(loss, out, retain_graph=True)",
     "loss = loss + 0.01 * ((out - slope).detach() * out).mean()"): 1,
    ("setup: rates = {'loss': 1.0}", "loss.register_hook(lambda grad: grad * rates['loss'])", "rates['loss'] *= 0.9"): 1.5,
    ("setup: rates = {'loss': 1.0}", "if out.requires_grad:", "    out.register_hook(lambda grad: grad * rates['loss'])",
     "backward: rates['loss'] *= 0.9"): 1.5,
    ("setup: turns = [0]", "turns[0] += 1",
     "handles = [p.register_hook(lambda grad, k=k: grad / (k + turns[0])) for k, p in enumerate(trained)]",
     "backward: for handle in handles:", "backward:     handle.remove()"): 1.5,
    ("setup: given = []", "handle = trained[0].register_hook(lambda grad: given.append(grad.abs().mean()))",
     "backward: handle.remove()", "backward: del given[:-2]"): 1,
    ("caught = {}", "handle = model.register_forward_hook(lambda m, args, y: caught.update(y=y))", "model(x)",
     "handle.remove()", "loss = loss + 0.01 * caught['y'].square().mean()"): 1,
    ("out.retain_grad()", "backward: loss = loss + 0.0 * (out.grad.norm() if out.grad is not None else 0.0)"): 1,
    ("first: if x.is_floating_point():", "first:     x = x.detach().clone().requires_grad_()",
     "backward: if x.grad is not None:", "backward:     pushed = (x + 0.01 * x.grad.sign()).detach()",
     "backward:     (0.1 * model(pushed).square().mean()).backward()"): 1.5,
    ("hidden = out.detach().requires_grad_()", "aux = (hidden.tanh() * hidden).mean()", "aux.backward()",
     "loss = loss + 0.1 * (out * hidden.grad).sum()"): 1.5,
    ("setup: memory = collections.deque(maxlen=2)", "for old in memory:", "    if old.shape == out.shape:",
     "        loss = loss + 0.01 * F.mse_loss(out, old)", "memory.append(out.detach())"): 1,
    ("setup: weights = torch.ones(3, dtype=dtype)", "index = torch.arange(out.numel(), device=DEVICE) % 3",
     "loss = loss + 0.01 * (weights[index] * out.flatten()).mean()", "weights[index[:1]] *= 0.9"): 1,
    ("hessian = torch.autograd.functional.hvp(lambda z: z.tanh().sum(), out.detach(), torch.ones_like(out))[1]",
     "loss = loss + 0.01 * (hessian * out).mean()"): 0.7,
    ("for scale in (0.5, 2.0):", "    with torch.no_grad():", "        moved = [p.clone() for p in trained]",
     "        torch._foreach_mul_(moved, scale)",
     "    loss = loss + 1e-3 * sum((p * m).sum() for p, m in zip(trained, moved))"): 1,
}  # fmt: skip

BACKWARDS: Table = {
    ("torch.autograd.backward(loss, inputs=trained[: max(len(trained) // 2, 1)], retain_graph=True)",
     "loss.backward(inputs=trained[max(len(trained) // 2, 1) :]) if len(trained) > 1 else None"): 1,
    ("loss.backward(inputs=[p for p in trained if p.requires_grad])",): 1,
    ("if out.requires_grad:", "    (pull,) = torch.autograd.grad(loss, out, retain_graph=True)",
     "    out.backward(0.9 * pull, retain_graph=True)", "else:", "    loss.backward()"): 1,
    ("loss.backward(torch.full_like(loss, 0.5), retain_graph=True)",
     "kept = [None if p.grad is None else p.grad.clone() for p in trained]", "for p in trained:", "    p.grad = None",
     "loss.backward()", "for p, k in zip(trained, kept):", "    if p.grad is not None:", "        p.grad += k"): 1,
    ("(loss * 8).backward()", "finite = True", "for p in trained:", "    if p.grad is not None:",
     "        p.grad.mul_(1 / 8)", "        finite = finite and bool(p.grad.isfinite().all())"): 1,
    ("setup: scaler = torch.amp.GradScaler('cpu', init_scale=4.0, growth_interval=2)", "scaler.scale(loss).backward()",
     "for p in trained:", "    if p.grad is not None:", "        p.grad.div_(scaler.get_scale())"): 0.7,
    ("pieces = torch.stack([loss, 0.5 * loss])",
     "pieces.backward(torch.tensor([0.5, 1.0], device=DEVICE).to(pieces.dtype))"): 0.7,
    ("slopes = torch.autograd.grad(loss, trained, create_graph=True, allow_unused=True)",
     "size = sum(g.square().sum() for g in slopes if g is not None)",
     "more = torch.autograd.grad(size, trained, retain_graph=True, allow_unused=True)",
     "for p, g, m in zip(trained, slopes, more):", "    if g is not None:",
     "        p.grad = g.detach() + (0 if m is None else 1e-3 * m)"): 1,
}  # fmt: skip

AFTER_BACKWARD: Table = {
    ("for p in trained:", "    if p.grad is not None:", "        p.grad.mul_(p.grad.sign()).sqrt_().mul_(0.1)"): 1,
    ("for p in trained:", "    if p.grad is not None:", "        work = p.grad",
     "        work.copy_(0.5 * work + 0.01 * p.detach())", "        p.grad = work"): 1,
    ("with torch.no_grad():", "    for p in trained:", "        if p.grad is not None:",
     "            torch.mul(p.grad, 0.5, out=p.grad)", "            torch.add(p.grad, p, alpha=0.01, out=p.grad)"): 1,
    ("setup: held = [None]", "mine = [None if p.grad is None else p.grad.clone() for p in trained]",
     "if held[0] is not None:", "    for p, h in zip(trained, held[0]):",
     "        if h is not None and p.grad is not None:", "            dot = (p.grad * h).sum()",
     "            p.grad -= torch.where(dot < 0, dot / (h.square().sum() + 1e-3), 0.0) * h", "held[0] = mine"): 1.5,
    ("setup: spare = [torch.zeros_like(p) for p in trained]", "for k, p in enumerate(trained):",
     "    if p.grad is not None:", "        spare[k], p.grad = p.grad, spare[k]", "        p.grad.add_(spare[k])"): 1.5,
    ("named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}", "for name in sorted(named):",
     "    named[name] *= 0.9 if name.endswith('weight') else 1.1"): 1,
    ("norms = torch.stack([p.grad.norm() for p in trained if p.grad is not None])", "most = norms.max()",
     "for p in trained:", "    if p.grad is not None:", "        p.grad.div_(most + 0.1)"): 1,
    ("grads = [p.grad for p in trained if p.grad is not None]", "total = torch.nn.utils.get_total_norm(grads)",
     "torch.nn.utils.clip_grads_with_norm_([p for p in trained if p.grad is not None], 0.5, total)"): 1,
    ("setup: sums = {}", "for name, p in model.named_parameters():", "    if p.grad is not None:",
     "        sums[name] = sums[name] + p.grad if name in sums else p.grad.clone()",
     "        p.grad = 0.5 * sums[name]"): 1,
    ("with torch.no_grad():", "    moves = [0.05 * p.grad if p.grad is not None else None for p in trained]",
     "    for p, e in zip(trained, moves):", "        if e is not None:", "            p.add_(e)",
     "again = model(x).square().mean()", "(0.1 * again).backward()", "with torch.no_grad():",
     "    for p, e in zip(trained, moves):", "        if e is not None:", "            p.sub_(e)"): 1.5,
    ("for p in trained:", "    if p.grad is not None:",
     "        p.grad, p.data = p.data * 0.01 + p.grad, p.data - 0.01 * p.grad"): 1,
    ("for p in trained[::2]:", "    if p.grad is not None:",
     "        p.grad = p.grad.detach().clone().requires_grad_(False)", "        p.grad.data.mul_(0.5)"): 0.7,
    ("for p in trained:", "    if p.grad is not None and p.ndim > 1:",
     "        p.grad = (p.grad - p.grad.mean()).contiguous(memory_format=torch.contiguous_format)"): 0.7,
    ("for p in {p for p in trained if p.grad is not None and p.grad.ndim == 1}:", "    p.grad.zero_()"): 0.5,
    ("small = min((p for p in trained if p.grad is not None), key=lambda p: p.numel(), default=None)",
     "if small is not None:", "    small.grad = small.grad * 2"): 1,
}  # fmt: skip

AFTER_UPDATE: Table = {
    ("setup: turns = [0]", "turns[0] += 1", "trained[0].requires_grad_(turns[0] % 2 == 0)", "with torch.no_grad():",
     "    model(x)", "trained[0].requires_grad_(True)"): 1,
    ("model.apply(clipped_weights)",): 1.5,
    ("model.double()", "model.to(dtype)"): 1,
    ("setup: slow = copy.deepcopy(model)", "with torch.no_grad():",
     "    for s, p in zip(slow.parameters(), model.parameters()):", "        s.lerp_(p, 0.2)",
     "for s, p in zip(slow.parameters(), model.parameters()):", "    s.data, p.data = p.data, s.data",
     "with torch.no_grad():", "    checked = model(x).mean()", "for s, p in zip(slow.parameters(), model.parameters()):",
     "    s.data, p.data = p.data, s.data"): 1.5,
    ("setup: start = copy.deepcopy(model.state_dict()); turns = [0]", "turns[0] += 1", "if turns[0] % 2 == 0:",
     "    now = model.state_dict()",
     "    model.load_state_dict({n: 0.5 * (t + now[n]) if t.is_floating_point() else now[n] for n, t in "
     "start.items()})"): 1,
    ("with torch.no_grad():", "    for p in trained:", "        if p.ndim == 2:",
     "            dead = p.abs().sum(1) < 0.5", "            p[dead] = 0.1"): 1,
    ("setup: masks = [(p.detach().abs() > 0.05).to(p.dtype) for p in trained]", "with torch.no_grad():",
     "    for p, m in zip(trained, masks):", "        p.mul_(m)", "        if p.grad is not None:",
     "            p.grad.mul_(m)"): 1,
    ("before = [p.detach().clone() for p in trained]", "with torch.no_grad():", "    for p, b in zip(trained, before):",
     "        torch.where(b.abs() > 1, b * 0.9, b, out=p)"): 0.7,
    ("for name, module in model.named_modules():", "    for key, p in [*module._parameters.items()]:",
     "        if p is not None and p.ndim == 1:", "            p.data = p.data.clone()"): 1,
    ("setup: history = []", "history.append({'loss': loss.detach(), 'size': trained[0].detach().norm()})",
     "recent = torch.stack([h['loss'] for h in history[-2:]]).mean()", "for p in trained:",
     "    p.data.mul_(1 - 0.001 * torch.tanh(recent).to(p.dtype))"): 1,
    ("copied = copy.deepcopy(model)", "with torch.no_grad():",
     "    for a, b in zip(copied.parameters(), model.parameters()):", "        b.copy_(0.5 * (a + b))"): 1,
    ("for p in trained:", "    with torch.no_grad():", "        p.set_((p * 0.999).detach())"): 0.4,
}  # fmt: skip

#: The same, where numbers are of double precision.
NUMBERS_AFTER_UPDATE: Table = {
    ("setup: follow = {'loss': None}", "now = loss.item()",
     "follow['loss'] = now if follow['loss'] is None else 0.9 * follow['loss'] + 0.1 * now"): 1,
    ("setup: best = [float('inf'), 0]", "if loss.item() < best[0]:", "    best[0], best[1] = loss.item(), 0", "else:",
     "    best[1] += 1"): 1,
    ("setup: parts = collections.defaultdict(list)", "parts['loss'].append(loss.item())",
     "parts['mean'].append(sum(parts['loss']) / len(parts['loss']))"): 1,
    ("setup: kept = {}", "if not kept or float(loss) < kept['loss']:",
     "    kept.update(loss=float(loss), model=copy.deepcopy(model.state_dict()))"): 1,
}  # fmt: skip

#: Where there is an optimizer of `torch.optim`: before its step.
OF_OPTIMIZERS: Table = {
    ("for group in optimizer.param_groups:", "    group['lr'] = group['lr'] * 0.9"): 1,
    ("setup: turns = [0]", "turns[0] += 1", "for k, group in enumerate(optimizer.param_groups):",
     "    group['weight_decay'] = 0.01 * ((turns[0] + k) % 2)"): 1,
    ("for group in optimizer.param_groups:", "    for p in group['params']:", "        if p.grad is not None:",
     "            p.grad.add_(p.detach(), alpha=0.01 * group['lr'])"): 1,
    ("for p in trained:", "    buf = optimizer.state[p].get('momentum_buffer') if p in optimizer.state else None",
     "    if buf is not None and p.grad is not None:",
     "        p.grad.mul_(torch.where((buf * p.grad).sum() > 0, 1.0, 0.5))"): 1.5,
    ("for p in trained:", "    state = optimizer.state.get(p, {})", "    if 'exp_avg' in state and p.grad is not None:",
     "        p.grad.add_(state['exp_avg'], alpha=0.1)"): 1.5,
    ("for state in optimizer.state.values():", "    for key, value in state.items():",
     "        if torch.is_tensor(value) and value.ndim:", "            value.mul_(0.9)"): 1,
    ("alike = [p for p in optimizer.state if p.shape == trained[0].shape]", "if len(alike) > 1:",
     "    a, b = alike[0], alike[-1]",
     "    optimizer.state[a], optimizer.state[b] = optimizer.state[b], optimizer.state[a]"): 1,
    ("alike = [s for p, s in optimizer.state.items() if p.shape == trained[0].shape and 'momentum_buffer' in s]",
     "if len(alike) > 1:", "    a, b = alike[0], alike[-1]",
     "    a['momentum_buffer'], b['momentum_buffer'] = b['momentum_buffer'], a['momentum_buffer']"): 1,
    ("setup: turns = [0]", "turns[0] += 1", "if turns[0] == 2:", "    optimizer.state.clear()"): 1,
    ("setup: turns = [0]", "turns[0] += 1", "if turns[0] == 2:",
     "    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))"): 1,
    ("with torch.no_grad():", "    for group in optimizer.param_groups:", "        for p in group['params']:",
     "            p.mul_(1 - group['lr'] * 0.1)"): 1,
    ("count = sum(p.numel() for group in optimizer.param_groups for p in group['params'])", "for p in trained:",
     "    if p.grad is not None:", "        p.grad.mul_(p.numel() / count + 0.5)"): 0.7,
    ("first, *rest = optimizer.param_groups", "optimizer.param_groups[:] = [*rest, first]"): 0.7,
}  # fmt: skip
