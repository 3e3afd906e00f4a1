"""More of what people write between layers, after a loss and around an update, for `twists`.

Lines that begin with "init: " are for the model's `__init__`, with "setup: " for what is made once, in front of the step.
"""

from __future__ import annotations

#: Functions and classes for the top of the program.
CLASSES = '''
class Stepped(torch.autograd.Function):
    """A hard step with a soft gradient, written with `setup_context`."""

    @staticmethod
    def forward(x, width):
        return (x > 0).to(x.dtype), x.amax()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.width = inputs
        ctx.save_for_backward(x, output[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad, largest):
        x, hard = ctx.saved_tensors
        if grad is None:
            return torch.zeros_like(x), None
        return grad * (x.abs() < ctx.width) * (1 + 0.1 * hard), None


class Joined(torch.autograd.Function):
    """Any number of operands, of which some need no gradient."""

    @staticmethod
    def forward(ctx, *parts):
        ctx.count = len(parts)
        return sum(parts) / len(parts)

    @staticmethod
    def backward(ctx, grad):
        return tuple(grad / ctx.count if needed else None for needed in ctx.needs_input_grad)


class Limited(torch.autograd.Function):
    """Changes its operand in place."""

    @staticmethod
    def forward(ctx, x, most):
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.abs() < most)
        return x.clamp_(-most, most)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None


@dataclasses.dataclass
class Outputs:
    hidden: torch.Tensor
    scale: float = 0.5
    parts: list = dataclasses.field(default_factory=list)

    @property
    def scaled(self):
        return self.hidden * self.scale


Pair = collections.namedtuple("Pair", ["first", "second"])


class Stat(torch.Tensor):
    """A subclass without methods of its own."""


def residual(function):
    @functools.wraps(function)
    def called(x, *args, **kwargs):
        return x + 0.5 * function(x, *args, **kwargs)

    return called


@residual
def squashed(x, *, by=1.0):
    return torch.tanh(x * by)


def halves(x, depth):
    """A function that calls itself."""
    if depth == 0 or x.shape[-1] < 2:
        return x.tanh()
    left, right = x.split([x.shape[-1] // 2, x.shape[-1] - x.shape[-1] // 2], -1)
    return torch.cat([halves(left, depth - 1), 0.9 * right], -1)


def rows_of(x):
    for row in x:
        yield row * 0.9
    yield x[-1]


@contextlib.contextmanager
def scaled_by(model, factor):
    before = getattr(model, "factor", 1.0)
    model.factor = factor
    try:
        yield model
    finally:
        model.factor = before
'''

FORWARD: dict[tuple[str, ...], float] = {
    ("hard, largest = Stepped.apply(x, 1.0)", "x = x + 0.1 * hard + 0.01 * largest"): 1,
    ("hard, _ = Stepped.apply(x, 1.0)", "x = x + 0.1 * hard"): 0.7,
    ("x = Joined.apply(x, x.detach(), 2 * x)",): 1,
    ("x = Joined.apply(*x.split(1))",): 0.7,
    ("x = Limited.apply(x * 1.0, 2.0)",): 1,
    ("x = Outputs(x, parts=[x.mean()]).scaled",): 0.7,
    ("pair = Pair(x, second=x.mean(-1, keepdim=True))", "x = pair._replace(first=pair.first * 0.5)",
     "x = x.first + x.second"): 0.7,
    ("x = squashed(x, by=0.5)",): 0.7,
    ("x = halves(x, 3)",): 1,
    ("x = torch.stack([*rows_of(x)][:-1])",): 0.7,
    ("with scaled_by(self, 0.7) as scaled:", "    x = x * scaled.factor", "x = x * getattr(self, 'factor', 1.0)"): 0.7,
    ("x = functools.reduce(torch.add, [x, x.sin(), x.cos()]) / 3",): 0.7,
    ("x = functools.partial(torch.lerp, x, weight=0.2)(x.roll(1, 0))",): 0.7,
    ("total = 0", "def add(t):", "    nonlocal total", "    total = total + t.mean()", "    return t",
     "x = add(add(x) * 0.9) + total"): 0.7,
    ("match x.ndim:", "    case 2:", "        x = x * 0.9", "    case 3 | 4 if self.training:",
     "        x = x * 0.8", "    case _:", "        x = -x"): 0.7,
    ("if (width := x.shape[-1]) > 2:", "    x = x / width**0.1"): 0.5,
    ("x = x[(slice(None),) * (x.ndim - 1) + (torch.arange(x.shape[-1], device=x.device).flip(0),)]",): 0.7,
    ("x = x.reshape(x.shape[0], -1, x.shape[-1]).transpose(0, 1).reshape(-1, *x.shape[:1], "
     "x.shape[-1]).transpose(0, 1).reshape(x.shape)",): 0.7,
    ("out = torch.zeros_like(x)", "for k in range(len(x)):",
     "    out[k] = x[k].tanh() + (0.1 * out[k - 1] if k else 0)", "x = out"): 1.5,
    ("out = x.new_zeros(x.shape)", "out[..., 1:] = x[..., :-1]", "out[..., 0] = x[..., -1]", "x = 0.5 * (x + out)"): 1,
    ("x = x.clone()", "x.flatten(0, -2)[0].mul_(0.5)"): 1,
    ("x = x.clone()", "x.unbind(-1)[0].add_(1)"): 0.3,
    ("x = x.clone()", "first, last = x[..., 0].clone(), x[..., -1].clone()", "x[..., 0], x[..., -1] = last, first"): 1,
    ("x = x.clone()", "for part in x.tensor_split(3, -1):", "    part *= 0.9"): 0.3,
    ("x = x.clone()", "view = x[..., :1]", "x.mul_(2)", "x = 0.5 * x + 0.1 * view"): 1,
    ("x = x.clone()", "x.view(-1)[::3] = 0.5"): 1,
    ("x = x.clone()", "x.diagonal(dim1=0, dim2=-1).mul_(0.5)"): 1,
    ("y = x.tanh()", "x = y.mul(2)", "with torch.no_grad():", "    x.add_(0.1)"): 1,
    ("y = 2 * x", "y.detach().clamp_(-5, 5)", "x = y * 0.5"): 1,
    ("y = torch.empty_like(x)", "y.copy_(x)", "y[:1] += 1", "x = y"): 1,
    ("y = x.new_empty((2, *x.shape))", "y[0], y[1] = x, x.sin()", "x = y.mean(0)"): 1,
    ("with torch.enable_grad():", "    z = x.detach().requires_grad_()",
     "    (slope,) = torch.autograd.grad(z.tanh().square().sum(), z)", "x = x + 0.1 * slope"): 1,
    ("with torch.enable_grad():", "    z = x.detach().clone().requires_grad_()", "    for _ in range(2):",
     "        (slope,) = torch.autograd.grad((z**2 + z.sin()).sum(), z)",
     "        z = (z - 0.1 * slope).detach().requires_grad_()", "x = x + 0.1 * z.detach()"): 1,
    ("x = x + 0.1 * torch.func.grad(lambda t: t.tanh().square().sum())(x)",): 1,
    ("x = x + 0.1 * torch.vmap(torch.func.grad(lambda t: t.sin().sum()))(x)",): 1,
    ("x = torch.vmap(lambda t, s: t * s, in_dims=(0, None))(x, x.mean())",): 0.7,
    ("x = torch.vmap(lambda t: t.softmax(-1) + t, in_dims=-1, out_dims=-1)(x)",): 0.7,
    ("x = torch.vmap(torch.vmap(torch.sin))(x)",): 0.5,
    ("z = x.detach().mean().tanh()", "x = x * torch.func.jacfwd(lambda t: t * t)(z)"): 0.5,
    ("(x, kept) = (checkpoint(lambda a, b: (a * b, a.sum()), x, x.sigmoid(), use_reentrant=False))",
     "x = x + 0.001 * kept"): 1,
    ("x = checkpoint(self.inner, x, use_reentrant=False)",
     "init: self.inner = nn.Sequential(nn.Tanh(), nn.Hardtanh(-0.9, 0.9))"): 1,
    ("x = torch.utils.checkpoint.checkpoint_sequential([torch.tanh, torch.sin], 2, x, use_reentrant=False)",): 0.5,
    ("init: self.pair = nn.Parameter(torch.tensor([0.8, 0.6]))",
     "x = (x * torch.view_as_complex(self.pair)).real.to(x.dtype)"): 1,
    ("init: self.pair = nn.Parameter(torch.tensor([0.8, 0.6]))",
     "z = torch.fft.fft(x.to(self.pair.dtype)) * torch.complex(*self.pair)",
     "x = torch.fft.ifft(z).real.to(x.dtype)"): 1,
    ("init: self.wide = nn.Parameter(0.3 * torch.randn(8, 8))", "head = x[..., :4]",
     "x = torch.cat([head @ self.wide[: head.shape[-1], : head.shape[-1]].to(x.dtype), x[..., 4:]], -1)"): 1,
    ("init: self.wide = nn.Parameter(0.3 * torch.randn(8, 8))",
     "w = self.wide + (self.wide.sign() * self.wide.abs().mean() - self.wide).detach()",
     "x = x + 0.1 * (w @ w.mT).diagonal().mean()"): 1,
    ("init: self.wide = nn.Parameter(0.3 * torch.randn(4, 4))", "skew = self.wide - self.wide.mT",
     "turn = torch.linalg.matrix_exp(skew)", "x = x + 0.1 * (turn @ turn.mT).sum()"): 0.7,
    ("init: self.wide = nn.Parameter(0.3 * torch.randn(4, 4))",
     "turn = torch.linalg.solve(torch.eye(4, device=x.device, dtype=self.wide.dtype) + 0.1 * self.wide, "
     "self.wide)",
     "x = x + 0.1 * turn.sum()"): 0.7,
    ("init: self.wide = nn.Parameter(0.3 * torch.randn(4, 4))",
     "spread = self.wide @ self.wide.mT + torch.eye(4, device=x.device, dtype=self.wide.dtype)",
     "x = x * (1 + 0.01 * torch.linalg.cholesky(spread).diagonal().log().sum())"): 0.7,
    ("init: self.many = nn.ParameterList([nn.Parameter(torch.full((1,), 0.1 * k)) for k in range(3)])",
     "x = x + sum(p * x**k for k, p in enumerate(self.many, 1)) * 0.1"): 1,
    ("init: self.named = nn.ParameterDict({'a': nn.Parameter(torch.ones(())), 'b': "
     "nn.Parameter(torch.zeros(1))})",
     "for name, p in self.named.items():", "    x = x * p if name == 'a' else x + p"): 1,
    ("init: self.gate = nn.Parameter(torch.zeros(2))", "a, b = self.gate.softmax(0)", "x = a * x + b * x.tanh()"): 1,
    ("init: self.gate = nn.Parameter(torch.zeros(2))",
     "x = torch.einsum('k...,k->...', torch.stack([x, x.sin()]), F.softplus(self.gate).to(x.dtype))"): 1,
    ("init: self.register_buffer('bank', torch.zeros(4))",
     "self.bank = torch.cat([self.bank[1:], x.detach().mean()[None].to(self.bank.dtype)])",
     "x = x + 0.1 * self.bank.mean()"): 1,
    ("init: self.register_buffer('bank', torch.zeros(4)); self.place = 0",
     "self.bank[self.place % 4] = x.detach().mean()", "self.place += 1", "x = x + 0.1 * self.bank.sum()"): 1,
    ("init: self.register_buffer('bank', torch.zeros(4)); self.register_buffer('where', torch.zeros(1, "
     "dtype=torch.long))",
     "self.bank[self.where] = x.detach().mean().to(self.bank.dtype)", "self.where.copy_((self.where + 1) % 4)",
     "x = x + 0.1 * self.bank.sum()"): 1,
    ("init: self.register_buffer('seen', torch.zeros((), dtype=torch.long))", "self.seen += x.numel()",
     "x = x * (1 + 1 / (1 + self.seen))"): 1,
    ("init: self.history = []", "self.history.append(x.detach().mean())",
     "x = x + 0.1 * torch.stack(self.history[-3:]).mean()"): 1,
    ("init: self.cache = collections.OrderedDict()", "self.cache[len(self.cache)] = x.detach().amax()",
     "if len(self.cache) > 2:", "    self.cache.popitem(last=False)", "x = x + 0.01 * sum(self.cache.values())"): 1,
    ("init: self.acts = nn.ModuleDict({'tanh': nn.Tanh(), 'relu': nn.ReLU(inplace=True)})",
     "x = self.acts['relu'](x * 1.0) + self.acts['tanh'](x)"): 0.7,
    ("init: self.acts = {k: f for k, f in enumerate([torch.sin, torch.tanh, F.silu])}; self.turn = 0",
     "x = self.acts[self.turn % 3](x)", "self.turn += 1"): 1,
    ("init: self.extra = None", "if self.extra is None:", "    self.extra = x.detach().std()",
     "x = x / (0.1 + self.extra)"): 1,
    ("if x.requires_grad:", "    x.register_hook(lambda grad: grad / grad.norm().clamp(min=1.0))"): 1,
    ("if x.requires_grad:", "    x.register_hook(lambda grad, s=x.detach().sign(): grad * (1 + 0.1 * s))"): 1,
    ("y = x.tanh()", "if y.requires_grad:", "    y.register_hook(lambda grad: None)",
     "    y.register_hook(torch.neg)", "x = x + 0.1 * y"): 1,
    ("a, b = x.tanh(), x.sin()", "if a.requires_grad:",
     "    torch.autograd.graph.register_multi_grad_hook((a, b), lambda grads: None)", "x = a + b"): 0.5,
    ("with torch.autograd.graph.save_on_cpu():", "    x = (x * x.sigmoid()).tanh()"): 0.5,
    ("with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):", "    x = x * x.tanh()"): 0.5,
    ("x = torch.where(x.isnan() | x.isinf(), torch.zeros_like(x), x)",): 0.5,
    ("x = torch.nan_to_num(x.log(), nan=0.1) * 0.1 + x",): 0.3,
    ("norm = x.norm(dim=-1, keepdim=True)", "x = torch.where(norm > 1, x / norm, x)"): 1,
    ("spread = torch.cdist(x.flatten(1), x.flatten(1) + 1)", "x = x + 0.01 * spread.mean()"): 0.7,
    ("q = torch.quantile(x.detach().float().flatten(), 0.5)", "x = x - 0.1 * q.to(x.dtype)"): 0.7,
    ("order = x.detach().flatten(1).sum(1).argsort(stable=True)", "x = x[order][order.argsort()] + 0.1 * x[order]"): 1,
    ("length = torch.arange(1, len(x) + 1, device=x.device)",
     "mask = torch.arange(x.shape[-1], device=x.device) < length[:, None]",
     "x = x * mask.view(len(x), *(1,) * (x.ndim - 2), -1)"): 1,
    ("x = x.masked_fill(torch.rand(x.shape, device=x.device) < 0, 0.0)",): 0.3,
    ("ids = torch.arange(x.numel(), device=x.device) % 3", "sums = x.new_zeros(3).index_add(0, ids, x.flatten())",
     "x = x + 0.1 * sums[ids].view_as(x) / x.numel()"): 1,
    ("ids = (x.detach() * 2).long().clamp(0, 3)",
     "x = x + 0.1 * F.embedding(ids, torch.arange(8.0, device=x.device, dtype=x.dtype).view(4, 2)).sum(-1)"): 1,
    ("starts = x[..., :1].detach() * 0", "x = torch.cat([starts, x], -1).diff(dim=-1).cumsum(-1)"): 0.7,
    ("x = F.pad(x, (1, 1), mode='constant', value=0.1).unfold(-1, 3, 1).mean(-1)",): 1,
    ("x = F.avg_pool1d(x.flatten(1)[:, None], 3, 1, 1).view(x.shape)",): 0.7,
    ("x = F.conv1d(x.flatten(1)[:, None], x.new_ones(1, 1, 3) / 3, padding=1).view(x.shape)",): 0.7,
    ("x = F.interpolate(x.flatten(1)[:, None], scale_factor=2, mode='linear').view(*x.shape, 2).mean(-1)",): 0.7,
    ("x = torch.trapezoid(torch.stack([x, x.sin(), x.cos()]), dx=0.5, dim=0)",): 0.5,
    ("x = torch.logaddexp(x, -x) - 0.5",): 0.5,
    ("x = torch.special.expit(x) + torch.special.entr(x.sigmoid()) + torch.special.erfcx(x.abs())",): 0.5,
    ("x = x.frac() + x.trunc() * 0.5 + x.fmod(0.7)",): 0.5,
    ("x = torch.complex(x.double(), x.double().roll(1, 0)).abs().to(x.dtype)",): 0.7,
    ("w = torch.stack([p.norm() for p in self.parameters()]).mean()", "x = x / (1 + 0.1 * w)"): 0.7,
    ("assert x.shape[0] > 0 and not torch.isnan(x).any(), f'bad {tuple(x.shape)}'",): 0.7,
    ("x = x.as_subclass(Stat).as_subclass(torch.Tensor) * 0.9",): 0.3,
    ("self.calls = [*getattr(self, 'calls', []), x.shape]", "x = x * (0.9 if len(self.calls) % 2 else 1.0)"): 0.5,
    ("x = torch.utils.checkpoint.checkpoint(Swish.apply, x, use_reentrant=False)",): 0.7,
    ("for name, buffer in self.named_buffers():", "    x = x + 0.01 * buffer.to(x.dtype).mean()"): 0.5,
    ("x = torch.stack([torch.where(torch.arange(len(x), device=x.device).view(-1, *(1,) * (x.ndim - 1)) == k, "
     "x * k, x) for k in range(2)]).mean(0)",): 0.5,
    ("for _ in range(int(x.ndim)):", "    x = 0.5 * (x + x.flip(0))"): 0.5,
    ("k = 0", "while k < 3:", "    k += 1", "    if k == 2:", "        continue", "    x = x + 0.1 * k * x.sin()",
     "else:", "    x = x * 0.9"): 0.5,
    ("try:", "    x = x / len(x)", "    raise KeyError('x')", "except KeyError as error:",
     "    x = x * len(error.args)", "finally:", "    x = x + 0.1"): 0.5,
}  # fmt: skip

#: Where the program's numbers are of double precision: random ones are others in single.
RANDOM: dict[tuple[str, ...], float] = {
    ("x = x + 0.01 * torch.randn_like(x)",): 1,
    ("x = x * torch.empty_like(x[..., :1]).bernoulli_(0.8) / 0.8",): 1,
    ("x = 0.9 * x + 0.1 * x[torch.randperm(len(x), device=x.device)]",): 1,
    ("if self.training and torch.rand(()) < 0.5:", "    x = x * 0.9"): 1,
    ("x = F.dropout1d(x, 0.3, self.training) if x.ndim == 3 else F.dropout(x, 0.3, self.training)",): 1,
    ("x = checkpoint(lambda t: F.dropout(t, 0.3).tanh(), x, use_reentrant=False)",): 1,
    ("x = F.gumbel_softmax(x, tau=0.7, dim=-1) + x",): 1,
    ("mean, spread = x, F.softplus(x)", "x = mean + 0.1 * spread * torch.randn(x.shape, dtype=x.dtype)"): 1,
    ("x = torch.distributions.Normal(x, 0.1).rsample()",): 1,
    ("noise = torch.zeros(x.shape, dtype=x.dtype).uniform_(-0.1, 0.1)", "x = x + noise * (torch.rand(()) > 0.5)"): 1,
    ("keep = torch.rand(len(x)).argsort()[: max(len(x) // 2, 1)]", "x = x.index_fill(0, keep, 0.1)"): 1,
    ("x = F.alpha_dropout(x, 0.2, self.training)",): 0.5,
    ("x = x * (1 + 0.1 * random.random())",): 0.5,
    ("if random.random() < 0.5:", "    x = x.flip(0)"): 0.5,
    ("x = F.rrelu(x, training=self.training)",): 0.5,
    ("x = x + 0.1 * torch.multinomial(x.detach().flatten(1).softmax(-1), 1).view(-1, *(1,) * (x.ndim - 1)) / "
     "x.numel()",): 0.5,
}  # fmt: skip

#: After the line that computes `loss`; of `x`, `out`, `target`, `model` and `trained`.
AFTER_LOSS: dict[tuple[str, ...], float] = {
    ("loss = loss + 0.01 * torch.distributions.Normal(out.double(), 1.0).log_prob(torch.zeros((), "
     "dtype=torch.float64, device=DEVICE)).mean()",): 1,
    ("loss = loss - 0.01 * torch.distributions.Categorical(logits=out).entropy().mean()",): 1,
    ("loss = loss + 0.01 * torch.distributions.kl_divergence(torch.distributions.Normal(out, 1.0), "
     "torch.distributions.Normal(0.0, 1.0)).mean()",): 1,
    ("centred = out - out.mean(0)", "loss = loss + 0.01 * (centred.mT @ centred).triu(1).square().mean()"): 1,
    ("spread = out.var(0) if len(out) > 1 else out.square().mean(0)",
     "loss = loss + 0.01 * F.relu(1 - (spread + 1e-4).sqrt()).mean()"): 1,
    ("hard = out.square().flatten()", "loss = loss + 0.01 * hard.topk(max(len(hard) // 3, 1)).values.mean()"): 1,
    ("error = out.flatten()", "loss = loss + 0.01 * torch.maximum(0.7 * error, -0.3 * error).mean()"): 1,
    ("errors, _ = out.flatten().abs().sort(descending=True, stable=True)",
     "loss = loss + 0.01 * (errors * torch.linspace(1, 0, len(errors), device=DEVICE, "
     "dtype=errors.dtype)).sum()"): 1,
    ("mask = out.detach() > 0", "loss = loss + 0.01 * out[mask].sum()"): 1,
    ("mask = out.detach() > 0", "loss = loss + 0.01 * (out * mask).sum() / mask.sum().clamp(min=1)"): 1,
    ("if loss > 1e4:", "    loss = loss / 2"): 0.7,
    ("loss = torch.stack([loss, 0.1 * out.mean()]).logsumexp(0)",): 1,
    ("loss = sum({'main': loss, 'small': 0.01 * out.abs().mean()}.values())",): 1,
    ("loss = loss * (1 - 0.1 * torch.exp(-loss.detach()))",): 1,
    ("teacher = out.detach().roll(1, 0)",
     "loss = loss + 0.1 * F.kl_div(out.log_softmax(-1), teacher.softmax(-1), reduction='batchmean')"): 1,
    ("scores = F.normalize(out, dim=-1) @ F.normalize(out.detach(), dim=-1).mT",
     "loss = loss + 0.01 * F.cross_entropy(scores / 0.2, torch.arange(scores.shape[-1], device=DEVICE)) if "
     "scores.ndim == 2 else loss"): 1,
    ("p = out.softmax(-1)", "for _ in range(3):", "    p = p / p.sum(0, keepdim=True)",
     "    p = p / p.sum(-1, keepdim=True)", "loss = loss + 0.01 * (p * out).sum()"): 1,
    ("slopes = torch.autograd.grad(out.square().sum(), [p for p in trained if p.ndim > 1][-1:], "
     "create_graph=True)",
     "loss = loss + 1e-4 * sum(s.square().sum() for s in slopes)"): 1,
    ("loss = loss + torch.zeros_like(loss).requires_grad_()",): 0.3,
    ("losses = [loss, 0.1 * out.square().mean()]",
     "weights = torch.stack([l.detach() for l in losses]).softmax(0)",
     "loss = sum(w * l for w, l in zip(weights, losses))"): 1,
    ("setup: uncertain = nn.Parameter(torch.zeros(2, dtype=dtype)); other_rate = 0.01",
     "loss = (-uncertain).exp()[0] * loss + uncertain.sum() * 0.1"): 1,
    ("correct = (out.detach().argmax(-1) == 0).float().mean()", "loss = loss + 0.01 * correct * out.mean()"): 1,
    ("loss, = torch.atleast_1d(loss)",): 0.5,
    ("loss = loss.float()",): 0.5,
    ("loss = loss[None].squeeze(0) if loss.requires_grad else loss",): 0.5,
}  # fmt: skip

#: After the gradients are there, in front of clipping and update.
AFTER_BACKWARD: dict[tuple[str, ...], float] = {
    ("for p in trained:", "    if p.grad is not None:", "        p.grad = p.grad.clone().clamp_(-0.5, 0.5)"): 1,
    ("for p in trained:", "    if p.grad is not None and not torch.isfinite(p.grad).all():", "        p.grad.zero_()"): 1,
    ("with torch.no_grad():", "    for p in trained:", "        if p.grad is not None and p.ndim > 1:",
     "            p.grad.add_(p, alpha=0.01)"): 1,
    ("grads = [p.grad for p in trained if p.grad is not None]", "torch._foreach_mul_(grads, 0.5)"): 1,
    ("grads = [p.grad for p in trained if p.grad is not None]",
     "norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))",
     "torch._foreach_mul_(grads, (1 / (norm + 1e-6)).clamp(max=1.0))"): 1,
    ("for p in trained:", "    if p.grad is not None:",
     "        p.grad.data = p.grad.data.flip(0) if p.grad.ndim else p.grad.data"): 0.5,
    ("flat = torch.cat([p.grad.flatten() for p in trained if p.grad is not None])",
     "share = flat / flat.norm().clamp(min=1e-3)", "at = 0", "for p in trained:", "    if p.grad is not None:",
     "        p.grad.copy_(share[at : at + p.numel()].view_as(p))", "        at += p.numel()"): 1,
    ("for p in trained:", "    if p.grad is not None and p.grad.ndim == 2 and min(p.shape) > 1:",
     "        g = p.grad / (p.grad.norm() + 1e-3)", "        for _ in range(3):",
     "            g = 1.5 * g - 0.5 * g @ g.mT @ g", "        p.grad = g"): 1,
    ("setup: held = {}", "for k, p in enumerate(trained):", "    if p.grad is not None:",
     "        held[k] = 0.9 * held.get(k, 0.0) + p.grad", "        p.grad = held[k].clone()"): 1,
    ("setup: shared = [torch.zeros_like(p) for p in trained]", "for s, p in zip(shared, trained):",
     "    if p.grad is not None:", "        s.mul_(0.5).add_(p.grad)", "        p.grad = s"): 0.7,
    ("for p in trained:", "    if p.grad is not None:", "        mask = p.grad.abs() >= p.grad.abs().mean()",
     "        p.grad *= mask"): 1,
    ("for p in trained:", "    if p.grad is not None:", "        kept = p.grad.sign() * p.grad.abs().mean()",
     "        p.grad.copy_(0.5 * (kept + p.grad))"): 0.5,
}  # fmt: skip

#: After the update.
AFTER_UPDATE: dict[tuple[str, ...], float] = {
    ("setup: slow, turns = [p.detach().clone() for p in trained], [0]", "turns[0] += 1", "if turns[0] % 2 == 0:",
     "    with torch.no_grad():", "        for s, p in zip(slow, trained):", "            s.lerp_(p, 0.5)",
     "            p.copy_(s)"): 1,
    ("with torch.no_grad():", "    for p in trained:", "        p.clamp_(-3.0, 3.0)"): 1,
    ("with torch.no_grad():", "    for p in trained:", "        if p.ndim == 2:",
     "            p.div_(p.norm(dim=1, keepdim=True).clamp(min=1.0))"): 1,
    ("for p in trained:", "    p.data.mul_(0.999)"): 1,
    ("for p in trained:", "    if p.ndim > 1:",
     "        p.data = torch.where(p.data.abs() < 1e-3, torch.zeros_like(p), p.data)"): 1,
    ("setup: running = torch.zeros((), dtype=torch.float64)", "running.mul_(0.9).add_(loss.detach(), alpha=0.1)"): 1,
    ("for p in trained:", "    p.grad = None"): 1,
    ("with torch.no_grad():", "    after = model(x)", "    model.train(model.training)"): 1,
    ("model.eval()", "with torch.no_grad():", "    checked = model(x).sum()", "model.train()"): 1,
    ("with torch.inference_mode():", "    checked = model(x).mean()"): 0.7,
    ("with torch.no_grad():", "    a, b = trained[0], trained[-1]", "    if a.shape == b.shape and a is not b:",
     "        held_a = a.clone()", "        a.copy_(b)", "        b.copy_(held_a)"): 1,
    ("torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(trained) * 0.99, trained)",): 1,
    ("model.load_state_dict({n: t * 0.99 if t.is_floating_point() else t for n, t in model.state_dict().items()})",): 1,
}  # fmt: skip

#: The same, where numbers are of double precision: numbers of Python's are compared as such.
NUMBERS_AFTER_UPDATE: dict[tuple[str, ...], float] = {
    ("setup: best = {'loss': float('inf')}", "if loss.item() < best['loss']:", "    best['loss'] = loss.item()",
     "    best['state'] = {n: t.detach().clone() for n, t in model.state_dict().items()}"): 1,
    ("setup: log = []", "log.append(loss.item())", "if len(log) > 1 and log[-1] > log[-2]:",
     "    for p in trained:", "        p.data.mul_(0.99)"): 1,
    ("setup: counter = {'n': 0, 'sum': 0.0}", "counter['n'] += 1", "counter['sum'] += float(loss)"): 1,
}  # fmt: skip
