"""What people write between the layers of a model, put into a drawn training step: functions with gradients of their own,
recomputation, buffers that follow activations, changes in place, hooks, breaks, and gradients of gradients.

They have random numbers of their own: without them a seed is the program that it always was.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from training import more_twists, script_twists
from training.draft import Draft

#: Classes for the top of the program.
CLASSES = '''
class Damped(torch.autograd.Function):
    """Gradients that are not the function's own."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class Halves(torch.autograd.Function):
    """Two results, of which the second has no gradient."""

    @staticmethod
    def forward(ctx, x):
        half, sign = 0.5 * x, x > 0
        ctx.mark_non_differentiable(sign)
        ctx.save_for_backward(sign)
        return half, sign

    @staticmethod
    def backward(ctx, grad, _):
        (sign,) = ctx.saved_tensors
        return torch.where(sign, 0.5 * grad, 0.4 * grad)


class Shared:
    """A context and a decorator of the program's own."""

    depth = 0

    def __enter__(self):
        Shared.depth += 1
        return self

    def __exit__(self, *raised):
        Shared.depth -= 1
        return False
'''

#: Lines in `forward`, by how often they are drawn; `x` is what the layers before gave.
TWISTS: dict[tuple[str, ...], float] = {
    ("x = Damped.apply(x, 0.5)",): 3,
    ("x = Swish.apply(x)",): 3,
    ("half, sign = Halves.apply(x)", "x = torch.where(sign, half, 0.4 * x)"): 1,
    ("x = checkpoint(torch.tanh, x, use_reentrant=False)",): 1,
    ("x = checkpoint(lambda z: z * torch.sigmoid(z), x, use_reentrant=False)",): 2,
    ("with torch.no_grad():", "    self.followed.mul_(0.9).add_(x.mean(), alpha=0.1)", "x = x + self.followed"): 2,
    ("self.followed = 0.9 * self.followed + 0.1 * x.detach().mean()", "x = x - self.followed"): 1,
    ("x = x.detach() + 0.5 * (x - x.detach())",): 1,
    ("x = x.clone()", "x[..., 0] *= 0.5"): 2,
    ("x = x.clone()", "x[:1] = x[:1].tanh()"): 1,
    ("x = x * 1.5", "x += 0.1"): 1,
    ("x = 0.5 * x", "x.mul_(2.0).sub_(x.mean())"): 1,
    ("x = x.clone()", "x.masked_fill_(x > 3.0, 3.0)"): 1,
    ("if x.requires_grad:", "    x.register_hook(lambda grad: 0.5 * grad)"): 1.5,
    ("if x.requires_grad:", "    x.retain_grad()"): 0.5,
    ("with torch.autocast(DEVICE, enabled=False):", "    x = torch.sin(x)"): 1,
    ("x = x if x.mean() > -1e6 else -x",): 1,
    ("print(end='')",): 1,
    ("assert x.isfinite().all()",): 1,
    ("x = torch.stack(x.unbind(0))",): 0.7,
    ("x = torch.stack([*map(torch.tanh, x)])",): 0.7,
    ("x = torch.vmap(torch.tanh)(x)",): 1,
    ("x = x.transpose(0, -1).contiguous().transpose(0, -1)",): 1,
    ("x = x.expand(2, *x.shape).mean(0)",): 0.7,
    ("x = x + 1e-3 * sum(p.sum() for p in self.parameters())",): 1,
    ("if x.requires_grad:", "    (slope,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)",
     "    x = x + 0.1 * slope"): 1,
    ("self.calls = getattr(self, 'calls', 0) + 1", "x = x * (1 + 0.1 * (self.calls % 2))"): 1,
    ("with Shared():", "    x = x / (1 + Shared.depth)"): 1,
    ("try:", "    x = x @ x.new_ones(1, 2, 3, 4, 5)", "except RuntimeError:", "    x = 0.9 * x"): 0.7,
    ("largest = x.detach().abs().amax().item()", "x = x / max(1.0, largest)"): 1,
    ("x = torch.fft.irfft(torch.fft.rfft(x.double()) * 0.9, n=x.shape[-1]).to(x.dtype)",): 1,
    ("x = torch.fft.fft2(x.double()).abs().log1p().to(x.dtype) - x",): 0.5,
    ("z = torch.complex(x.double(), 0.5 * x.double())",
     "x = (z * z.conj() * torch.exp(1j * z.angle())).real.to(x.dtype)"): 1,
    ("x = torch.view_as_real(torch.polar(x.double().abs() + 0.1, x.double())).sum(-1).to(x.dtype)",): 0.7,
    ("x = torch.einsum('...i,...j->...i', x, 0.3 * x.roll(1, -1)) + x",): 1,
    ("x = torch.einsum('...i,i->...i', x, torch.linspace(0.5, 1, x.shape[-1], device=x.device, dtype=x.dtype))",): 1,
    ("top, where = x.topk(2, -1)", "x = x.scatter(-1, where, 0.5 * top)"): 1,
    ("top, where = x.topk(1, 0)", "x = x.scatter_add(0, where, 0.5 * top)"): 0.7,
    ("x = x.sort(-1, descending=True).values",): 1,
    ("order = torch.arange(len(x), device=x.device).flip(0)", "x = x.index_add(0, order, 0.1 * x)"): 1,
    ("place = torch.zeros_like(x, dtype=torch.long)",
     "x = x + torch.zeros_like(x).scatter_reduce(0, place, x, 'amax', include_self=False)"): 1,
    ("x = x.cumsum(-1) / x.shape[-1]",): 0.7,
    ("x = x + 0.1 * x.logcumsumexp(-1)",): 0.5,
    ("x = x + 0.1 * torch.cummax(x, -1).values",): 0.5,
    ("x = x - 0.1 * x.diff(dim=-1, prepend=x[..., :1])",): 0.7,
    ("size = x.square().sum(-1, keepdim=True)", "x = x * torch.linalg.vector_norm(x, dim=-1, keepdim=True) / (1 + size)"): 1,
    ("mask = x.detach() > 0", "x = x.masked_scatter(mask, 0.5 * x[mask])"): 1,
    ("mask = x > 0", "x = x.clone()", "x[mask] = x[mask] * 1.1"): 1,
    ("x = torch.cat([part * (k + 1) for k, part in enumerate(x.split(1))]) / len(x)",): 0.7,
    ("x = torch.hypot(x, x.new_ones(())) - 1", "x = torch.atan2(x, 1 + x.abs())"): 0.7,
    ("x = torch.addcmul(x, x, x.tanh(), value=0.1).lerp(x.mean(), 0.3)",): 0.7,
    ("x = x + 0.1 * torch.xlogy(x.abs(), x.abs() + 0.1)",): 0.5,
    ("x = torch.renorm(x, 2, 0, 5.0)",): 0.5,
    ("x = torch.func.vjp(torch.sin, x)[1](torch.ones_like(x))[0]",): 0.7,
    ("x = torch.func.jvp(torch.tanh, (x,), (torch.ones_like(x),))[1] + x",): 0.7,
    ("values, inverse = x.detach().round(decimals=0).unique(return_inverse=True)", "x = x + 0.01 * values[inverse]"): 0.5,
    ("rows = [*x]", "rows.sort(key=lambda row: float(row.detach().sum()))", "x = x + 0.1 * torch.stack(rows)"): 0.5,
    ("k = int(x.detach().flatten().argmax()) % len(x)", "x = torch.cat([x[k:], x[:k]])"): 0.5,
    ("with torch.no_grad():", "    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-3)", "x = x / scale"): 1,
    ("memory = self.__dict__.setdefault('memory', {})", "key = tuple(x.shape)",
     "x = x + 0.1 * memory.get(key, 0.0)", "memory[key] = x.detach()"): 1,
    ("parts = torch.tensor_split(x, 3, -1)", "x = torch.cat([F.softplus(parts[0]), -parts[1], *parts[2:]], -1)"): 0.7,
    ("x = F.normalize(x, p=1.0, dim=0) + x",): 0.5,
    ("x = x.mT.contiguous().mT if x.ndim > 2 else x.t().contiguous().t()",): 0.7,
    ("x = torch.block_diag(*x.flatten(1).unbind(0)[:2]).sum() * 0.01 + x",): 0.4,
    ("x = x + 0.1 * torch.kthvalue(x, 1, dim=-1, keepdim=True).values",): 0.5,
    ("x = x - 0.1 * x.std(-1, correction=0, keepdim=True) - 0.1 * torch.var_mean(x, 0)[0]",): 0.5,
    ("kept = {'x': x}", "kept |= {name: -t for name, t in kept.items()}", "x = 0.5 * (x - kept['x'])"): 0.7,
}

#: Lines in the step that replace `loss.backward()`.
BACKWARDS: dict[tuple[str, ...], float] = {
    ("slopes = torch.autograd.grad(loss, trained, create_graph=True, allow_unused=True)",
     "loss = loss + 1e-3 * sum(g.square().sum() for g in slopes if g is not None)", "loss.backward()"): 1,
    ("loss.backward(retain_graph=True)", "loss.backward()"): 1,
    ("(0.5 * loss).backward(retain_graph=True)", "(0.5 * loss).backward()"): 0.5,
    ("torch.autograd.backward([loss], inputs=trained)",): 1,
    ("slopes = torch.autograd.grad(loss, trained, allow_unused=True)", "for p, g in zip(trained, slopes):",
     "    p.grad = g if p.grad is None or g is None else p.grad + g"): 1,
}  # fmt: skip


def drawn(rng: random.Random) -> Iterator[tuple[str, ...]]:
    """One to four of them."""
    for _ in range(rng.randint(1, 4)):
        yield _pick(rng, TWISTS)


def _pick(rng: random.Random, table: dict[tuple[str, ...], float]) -> tuple[str, ...]:
    return rng.choices([*table], [*table.values()])[0]


def twist(d: Draft, seed: int) -> None:
    """Put some of them into a program."""
    rng = random.Random(f"twists {seed}")
    for lines in drawn(rng):
        _into_forward(d, lines, rng)
    d.init.append("self.register_buffer('followed', torch.zeros(()))")
    if rng.random() < 0.3 and "loss.backward()" in d.step:
        at = d.step.index("loss.backward()")
        d.step[at : at + 1] = _pick(rng, BACKWARDS)
    if rng.random() < 0.6:
        _twist_more(d, rng)
    scripts = random.Random(f"scripts {seed}")
    if scripts.random() < 0.6:
        _twist_scripts(d, scripts)


def _twist_more(d: Draft, rng: random.Random) -> None:
    d.uses("twisted more")
    doubles = d.precision == "float64"
    random_too = more_twists.RANDOM if doubles else {}
    for _ in range(rng.randint(1, 4)):
        _into_forward(d, _pick(rng, more_twists.FORWARD | random_too), rng)
    if rng.random() < 0.4:
        _into_step(d, "loss = ", _pick(rng, more_twists.AFTER_LOSS))
    if rng.random() < 0.4:
        _into_step(d, "loss.backward()", _pick(rng, more_twists.AFTER_BACKWARD))
    if rng.random() < 0.4:
        numbers_too = more_twists.NUMBERS_AFTER_UPDATE if doubles else {}
        _into_step(d, "optimizer.step()", _pick(rng, more_twists.AFTER_UPDATE | numbers_too))


def _twist_scripts(d: Draft, rng: random.Random) -> None:
    d.uses("twisted by scripts")
    doubles = d.precision == "float64"
    for _ in range(rng.randint(0, 3)):
        _into_forward(d, _pick(rng, script_twists.FORWARD | (script_twists.NUMBERS if doubles else {})), rng)
    if rng.random() < 0.5:
        _into_step(d, "loss = ", _pick(rng, script_twists.AFTER_LOSS))
    if rng.random() < 0.25 and "loss.backward()" in d.step:
        at = d.step.index("loss.backward()")
        d.step[at : at + 1] = _without_setup(d, _pick(rng, script_twists.BACKWARDS))
    if rng.random() < 0.4:
        _into_step(d, "loss.backward()", _pick(rng, script_twists.AFTER_BACKWARD))
    if rng.random() < 0.4 and "optimizer.step()" in d.step:
        at = d.step.index("optimizer.step()")
        d.step[at:at] = _without_setup(d, _pick(rng, script_twists.OF_OPTIMIZERS))
    if rng.random() < 0.4:
        numbers_too = script_twists.NUMBERS_AFTER_UPDATE if doubles else {}
        _into_step(d, "optimizer.step()", _pick(rng, script_twists.AFTER_UPDATE | numbers_too))


def _into_forward(d: Draft, lines: tuple[str, ...], rng: random.Random) -> None:
    places = [k for k in range(1, len(d.forward) + 1) if k == len(d.forward) or _begins(d.forward[k])]
    at = rng.choice(places)
    d.forward[at:at] = _elsewhere(d, lines)
    d.uses("twisted")


def _into_step(d: Draft, after: str, lines: tuple[str, ...]) -> None:
    """After the last line that begins so, if there is one, and as deep."""
    places = [k for k, line in enumerate(d.step) if line.lstrip().startswith(after)]
    if places:
        indent = d.step[places[-1]][: -len(d.step[places[-1]].lstrip())]
        d.step[places[-1] + 1 : places[-1] + 1] = [indent + line for line in _elsewhere(d, lines)]


def _elsewhere(d: Draft, lines: tuple[str, ...]) -> list[str]:
    """The lines that stand where they were drawn for; the others are put where their beginnings say."""
    for place, after in {"backward: ": "loss.backward()", "update: ": "optimizer.step()"}.items():
        moved = tuple(line.removeprefix(place) for line in lines if line.startswith(place))
        if moved:
            _into_step(d, after, moved)
    d.step[:0] = [line[7:] for line in lines if line.startswith("first: ")]
    return _without_setup(d, tuple(line for line in lines if not line.startswith(("first: ", "backward: ", "update: "))))


def _without_setup(d: Draft, lines: tuple[str, ...]) -> list[str]:
    for line in lines:
        if line.startswith("init: ") and line[6:] not in d.init:
            d.init.append(line[6:])
        elif line.startswith("setup: "):
            d.setup.append(line[7:])
            names = line[7:].partition(" = ")[0].split(", ")
            d.watched += [name for name in names if name not in d.watched]
    return [line for line in lines if not line.startswith(("init: ", "setup: "))]


def _begins(line: str) -> bool:
    return not line.startswith((" ", "else", "elif", "except", "finally", "case"))
