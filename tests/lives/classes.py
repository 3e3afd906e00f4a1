"""Classes of programs in `lives` that are written as in trainers, as source text; `<...>` is drawn."""

#: What a trainer calls, and what it measures by.
CALLBACKS = """
class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total = self.total + value * n
        self.count += n

    @property
    def mean(self):
        return self.total / max(self.count, 1)


class Average:
    def __init__(self, model, decay=0.9):
        self.model, self.decay, self.updates = model, decay, 0
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for n, p in self.model.named_parameters():
            if n in self.shadow:
                self.shadow[n].mul_(decay).add_(p, alpha=1 - decay)

    @contextlib.contextmanager
    def swapped(self):
        kept = {n: p.data for n, p in self.model.named_parameters()}
        for n, p in self.model.named_parameters():
            p.data = self.shadow.get(n, p.data)
        try:
            yield self.model
        finally:
            for n, p in self.model.named_parameters():
                p.data = kept[n]


class Callback:
    def __init__(self, every=1):
        self.every, self.calls = every, 0

    def on_loss(self, trainer, loss):
        self.calls += 1
        return loss if self.calls % self.every else loss * 0.5

    def on_step(self, trainer):
        notes.append(trainer.steps)


class Freezing(Callback):
    def on_step(self, trainer):
        if trainer.steps == self.every:
            for p in [*trainer.model.parameters()][:1]:
                p.requires_grad_(not p.requires_grad)


class Smoothing(Callback):
    def on_loss(self, trainer, loss):
        trainer.smooth = loss.detach() if trainer.smooth is None else 0.9 * trainer.smooth + 0.1 * loss.detach()
        return loss

    on_step = lambda self, trainer: None
"""

#: Modules that change buffers and attributes of their own.
STATEFUL = """
class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim, self.length, self.cos, self.sin = dim, 0, None, None

    def forward(self, x):
        t = x.shape[1]
        if self.cos is None or t > self.length:
            rates = 1.0 / (100 ** (torch.arange(0, self.dim, 2) / self.dim))
            angles = torch.outer(torch.arange(t).to(rates.dtype), rates)
            self.cos, self.sin, self.length = angles.cos(), angles.sin(), t
        cos, sin = self.cos[:t].to(x.dtype), self.sin[:t].to(x.dtype)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Codebook(nn.Module):
    def __init__(self, count, dim):
        super().__init__()
        self.register_buffer('codes', torch.linspace(-1, 1, count * dim).view(count, dim))
        self.register_buffer('used', torch.zeros(count))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        index = torch.cdist(flat.detach(), self.codes).argmin(1)
        found = self.codes[index].view_as(x)
        if self.training:
            hot = F.one_hot(index, len(self.codes)).to(x.dtype)
            <USED>
            with torch.no_grad():
                <CODES>
        return x + (found - x).detach(), F.mse_loss(x, found.detach())


class Queue(nn.Module):
    def __init__(self, size, dim):
        super().__init__()
        self.register_buffer('rows', torch.zeros(size, dim))
        self.register_buffer('at', torch.zeros(1, dtype=torch.long))
        self.size = size

    @torch.no_grad()
    def push(self, x):
        <AT>
        n = min(len(x), self.size - at)
        self.rows[at:at + n] = x[:n]
        self.at[0] = (at + n) % self.size


class Memory(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.cell, self.hidden, self.seen = nn.GRUCell(dim, dim), None, 0

    def reset(self):
        self.hidden = None

    def forward(self, x):
        if self.hidden is None or len(self.hidden) != len(x):
            self.hidden = x.new_zeros(len(x), x.shape[-1])
        self.hidden = self.cell(x, self.hidden.detach())
        self.seen += len(x)
        return self.hidden
"""

#: A model with heads by name.
TASKS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.heads = nn.ModuleDict({'a': nn.Linear(8, 5), 'b': nn.Linear(8, 5)})
        self.head_a, self.head_b = self.heads['a'], self.heads['b']
        self.logs = nn.ParameterDict({'a': nn.Parameter(torch.zeros(())), 'b': nn.Parameter(torch.zeros(()))})
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.gates = nn.ParameterList([nn.Parameter(torch.full((), 0.5)) for _ in range(2)])

    def shared(self, x):
        h = self.trunk(x)
        return h + <EXPERTS>

    def forward(self, x, task='a'):
        h = self.shared(x)
        return <HEAD>

    def losses(self, x, target, tasks):
        return {t: F.cross_entropy(self(x, t), target) * torch.exp(-self.logs[t]) + self.logs[t] for t in tasks}
"""

#: Optimizers and what is put around them.
OPTIMIZERS = """
class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group['params']:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state['mean'], state['step'] = torch.zeros_like(p), 0
                state['step'] += 1
                a, b = group['betas']
                p.mul_(1 - group['lr'] * group['weight_decay'])
                p.add_((state['mean'] * a + p.grad * (1 - a)).tanh(), alpha=-group['lr'])
                state['mean'].lerp_(p.grad, 1 - b)
        return loss


class Lookahead:
    def __init__(self, base, every=2, alpha=0.5):
        self.base, self.every, self.alpha, self.calls = base, every, alpha, 0
        self.slow = [[p.detach().clone() for p in g['params']] for g in base.param_groups]

    def __getattr__(self, name):
        return getattr(self.__dict__['base'], name)

    def zero_grad(self, **options):
        self.base.zero_grad(**options)

    @torch.no_grad()
    def step(self):
        self.base.step()
        self.calls += 1
        if self.calls % self.every == 0:
            for group, slow in zip(self.base.param_groups, self.slow):
                for p, s in zip(group['params'], slow):
                    s.add_(p - s, alpha=self.alpha)
                    p.copy_(s)


class Clipped(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group['params']:
                if p.grad is not None:
                    p.grad.clamp_(-0.1, 0.1)
        return super().step(closure)


class Centered(torch.optim.AdamW):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group['params']:
                if p.grad is not None and p.ndim > 1:
                    p.grad -= p.grad.mean(dim=tuple(range(1, p.ndim)), keepdim=True)
        made = super().step(closure)
        self.done = getattr(self, 'done', 0) + 1
        return made


class Accumulating:
    def __init__(self, base, every=2):
        self.base, self.every, self.at = base, every, 0
        self.param_groups, self.state = base.param_groups, base.state

    def zero_grad(self, **options):
        if self.at % self.every == 0:
            self.base.zero_grad(**options)

    def step(self):
        self.at += 1
        if self.at % self.every == 0:
            self.base.step()
"""

#: What passes calls and attributes on.
WRAPPERS = """
class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.calls = module, 0

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def forward(self, *args, **kwargs):
        self.calls += 1
        return self.module(*args, **kwargs)


class Net(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk, self.head, self.temperature = trunk, nn.Linear(8, 5), 1.0

    @property
    def device(self):
        return next(self.parameters()).device

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    def forward(self, x, scale=None):
        x = x.to(device=self.device, dtype=self.dtype)
        out = self.head(self.trunk(x)) / self.temperature
        return out if scale is None else out * scale


class Called(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __call__(self, x):
        return super().__call__(x) + 1

    def forward(self, x):
        return self.inner(x)
"""

#: What a step is given in place of a tuple.
BATCHES = {
    "dataclass": """
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    target: torch.Tensor
    weight: float = 1.0
    extra: dict = dataclasses.field(default_factory=dict)

    def half(self):
        return dataclasses.replace(self, weight=self.weight / 2)

    @property
    def size(self):
        return self.x.shape[0]
""",
    "named": """
class Batch(typing.NamedTuple):
    x: torch.Tensor
    target: torch.Tensor
    weight: float = 1.0

    def half(self):
        return self._replace(weight=self.weight / 2)

    @property
    def size(self):
        return len(self.x)
""",
    "dictionary": """
class Batch(dict):
    def __init__(self, x, target, weight=1.0):
        super().__init__(x=x, target=target, weight=weight)

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def half(self):
        return Batch(self['x'], self['target'], self['weight'] / 2)

    @property
    def size(self):
        return self['x'].size(0)
""",
    "class": """
class Batch:
    weight = 1.0
    __slots__ = ('x', 'target', '__dict__')

    def __init__(self, x, target):
        self.x, self.target = x, target

    def half(self):
        made = Batch(self.x, self.target)
        made.weight = self.weight / 2
        return made

    def __len__(self):
        return self.size

    size = property(lambda self: len(self.x))
""",
}
BATCHES["frozen"] = BATCHES["dataclass"].replace("@dataclasses.dataclass", "@dataclasses.dataclass(frozen=True)")
BATCHES["ordered"] = BATCHES["dictionary"].replace("(dict)", "(collections.OrderedDict)")

#: What a forward gives, and how it is asked for more.
OUTPUTS = """
class Mode(enum.Enum):
    PLAIN = 'plain'
    SQUARED = 'squared'


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    hidden: typing.Optional[torch.Tensor] = None

    def __getitem__(self, k):
        return (self.loss, self.logits)[k]
"""

#: What gives batches.
LOADERS = """
def generated(batches):
    for made in batches:
        yield made


class Dataset(torch.utils.data.Dataset):
    def __init__(self, whole):
        self.whole = whole

    def __len__(self):
        return len(self.whole[0])

    def __getitem__(self, k):
        return tuple(t[k] for t in self.whole)


class Batches:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)
"""


def lines(source: str, **drawn: str) -> list[str]:
    """The lines of one of them, with what was drawn in its places."""
    for name, text in drawn.items():
        source = source.replace(f"<{name.upper()}>", text)
    return [line for line in source.split("\n") if line]
