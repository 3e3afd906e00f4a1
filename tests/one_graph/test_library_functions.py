"""Functions, iterators and texts as libraries of models use them."""

import collections
import functools
import inspect
import logging
import math
import operator
import threading

import numpy
import pytest
import torch
from torch import nn

import quickfuse
from case_registry import case, cases
from one_graph.programs import agrees


@case
def class_getitem_call():
    class Factory:
        reg = {}

        def __class_getitem__(cls, k):
            return cls.reg[k]

        @classmethod
        def register(cls, n):
            def deco(fn):
                cls.reg[n] = fn
                return fn

            return deco

    @Factory.register("dbl")
    def dbl(x):
        return x * 2

    return (lambda x: Factory["dbl"](x),)


@case
def string_build():
    def f(x):
        name = "_".join(["layer", str(3), f"{x.shape[0]:03d}"])
        return (
            x * len(name),
            name.upper().replace("LAYER", "L").zfill(12),
            "%s-%d" % ("a", 3),
            "{:>5}|{k}".format(1, k=2),
            name.partition("_")[2],
        )

    return (f,)


@case
def products_of_anything():
    sizes = [2, 3.5]

    def f(x):
        scaled = (x * k for k in sizes)
        return math.prod([x, x + 1, x]), math.prod(scaled, start=x), math.prod(sizes) * x, math.prod(x.shape), math.prod([])

    return (f,)


@case
def assert_shapes():
    def check(t, *shape):
        assert tuple(t.shape) == shape, f"expected {shape}, got {tuple(t.shape)}"
        torch._assert(t.dim() == 2, "dim")
        torch._check(t.size(0) == 2)
        return t

    return (lambda x: check(x, 2, 2) * 2,)


@case
def module_call_super():
    class A(nn.Module):
        def forward(self, x):
            return x + 1

    class B(A):
        def __call__(self, *a, **k):
            return super().__call__(*a, **k) * 2

        def forward(self, x):
            return super().forward(x) * 3

    b = B()
    return (lambda x: b(x),)


@case
def mod_setattr_state():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 0
            self.register_buffer("ema", torch.zeros(2, 2))

        def forward(self, x):
            self.steps += 1
            self.ema = self.ema * 0.9 + x * 0.1
            self.last = x.detach()
            return x + self.ema

    m = M()
    return (lambda x: (m(x), m.steps),)


@case
def dunder_dict_update():
    class C:
        def __init__(self, **k):
            self.__dict__.update(k)

        def __repr__(self):
            return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.__dict__.items())})"

        def __eq__(self, o):
            return isinstance(o, C) and self.__dict__ == o.__dict__

    def f(x):
        c = C(a=1, b=2.5)
        return x * c.b, repr(c), c == C(a=1, b=2.5), "a" in c.__dict__

    return (f,)


@case
def sentinel_default_arg():
    _M = object()

    def get(d, k, default=_M):
        try:
            return d[k]
        except KeyError:
            if default is _M:
                raise
            return default

    return (lambda x: x * get({"a": 2}, "a") + get({}, "z", 3),)


@case
def rlock_local():
    tl = threading.local()
    tl.k = 2

    def f(x):
        return x * getattr(tl, "k", 1)

    return (f,)


@case
def logger_once():
    log = logging.getLogger("qf.lib.test")
    log.setLevel(logging.ERROR)

    @functools.lru_cache(None)
    def warn_once(self, *a):
        self.warning(*a)

    def f(x):
        warn_once(log, "hello %s")
        log.info("x %s", x.shape)
        return x * 2

    return (f,)


@case
def mro_walk():
    class A:
        tags = {"a"}

    class B(A):
        tags = {"b"}

    def f(x):
        t = set()
        for c in reversed(B.__mro__):
            t |= getattr(c, "tags", set())
        return x * len(t), sorted(t), B.__name__, [c.__name__ for c in B.__bases__]

    return (f,)


@case
def number_protocol():
    class S:
        def __init__(s, v):
            s.v = v

        def __float__(s):
            return float(s.v)

        def __int__(s):
            return int(s.v)

        def __index__(s):
            return int(s.v)

        def __round__(s, n=0):
            return round(s.v, n)

        def __bool__(s):
            return s.v > 0

    def f(x):
        s = S(1.6)
        return x * float(s) + int(s) + [5, 6, 7][s] + round(s) + (1 if s else 0)

    return (f,)


@case
def slices():
    class V:
        def __getitem__(s, k):
            return (k.start, k.stop, k.step) if isinstance(k, slice) else k

    def f(x):
        sl = slice(0, None, 2)
        return x[sl] * 2, V()[1:2], V()[..., None], list(range(10))[slice(*sl.indices(5))], x[..., -1:], x[None, :, 0]

    return (f,)


@case
def del_and_global_dict():
    def f(x):
        d = {"a": 1, "b": 2}
        del d["a"]
        d.setdefault("c", []).append(3)
        d |= {"z": 1}
        l = [1, 2, 3, 4]
        del l[1:3]
        l[0:0] = [9]
        l.insert(1, 7)
        l.remove(4)
        l.reverse()
        return x * len(d) + sum(l), d, l, l.index(9), l.count(7)

    return (f,)


@case
def nn_init_inside():
    def f(x):
        w = torch.empty(2, 2)
        nn.init.ones_(w)
        nn.init.constant_(w, 0.5)
        return x @ w

    return (f,)


@case
def make_module_inside():
    def f(x):
        m = nn.ReLU()
        n = nn.Sequential(m, nn.Identity())
        return n(x - 2)

    return (f,)


@case
def signature_bind():
    def g(a, b=2, *c, d, **e):
        return a

    def f(x):
        ba = inspect.signature(g).bind(x, d=1)
        ba.apply_defaults()
        return x * len(ba.arguments), list(ba.arguments)

    return (f,)


@case
def np_math():
    import numpy as np

    def f(x):
        return x * np.pi * np.sqrt(4.0) + int(np.prod([2, 3])) + np.ceil(1.5)

    return (f,)


@case
def callable_instance_in_list():
    class Scale:
        def __init__(s, k):
            s.k = k

        def __call__(s, x):
            return x * s.k

    class Compose:
        def __init__(s, ts):
            s.ts = ts

        def __call__(s, x):
            for t in s.ts:
                x = t(x)
            return x

        def __add__(s, o):
            return Compose([*s.ts, *o.ts])

    c = Compose([Scale(2), torch.relu]) + Compose([Scale(3.0)])
    return (lambda x: c(x),)


@case
def dict_views_set_ops():
    def f(x):
        a, b = {"p": 1, "q": 2}, {"q": 3, "r": 4}
        return (
            x * len(a.keys() & b.keys()) + len(a.keys() | b),
            sorted(a.keys() - b.keys()),
            a.items() >= {("p", 1)},
            list(reversed(a)),
        )

    return (f,)


@case
def reduce_getattr():
    m = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))

    def f(x):
        return functools.reduce(getattr, "0.0".split("."), m)(x), operator.attrgetter("0.0.weight")

    return (lambda x: f(x)[0],)


@case
def while_else_loops():
    def f(x):
        k = 0
        while k < 3:
            k += 1
            if k == 5:
                break
        else:
            x = x + 1
        for i in range(3):
            if i == 1:
                continue
            x = x + i
        else:
            x = x * 2
        return x

    return (f,)


@case
def deques_become_tensors():
    recent = collections.deque([1.0, 2.0], maxlen=3)

    def f(x):
        recent.append(recent[-1] * 2)
        return x * torch.tensor(recent).mean() + torch.as_tensor(recent, dtype=torch.float64).sum(), len(recent)

    return (f,)


@case
def parameters_by_their_id():
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layers[1].weight = layers[0].weight

    def f(x):
        seen, total = set(), 0
        for p in [*layers.parameters(), layers[1].weight]:
            if id(p) not in seen:
                seen.add(id(p))
                total = total + (p * x[:1, :1]).sum()
        first = {id(m): name for name, m in layers.named_modules()}
        return total.detach(), len(seen), first[id(layers[1])], id(x) == id(x), id(layers) == id(layers[0])

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)


# numbers of NumPy's -----------------------------------------------------------------------------------------------


def drawn_by_numpy(x):
    scale = numpy.random.uniform(0.5, 1.5)
    shift = numpy.random.rand() + numpy.random.randn() * numpy.random.random()
    return x * scale + shift


def drawn_of_other_kinds(x):
    share = numpy.random.beta(0.4, 0.4)
    share = max(share, 1 - share)
    noise = numpy.random.normal() + numpy.random.normal(1.0, 0.1) * numpy.random.standard_normal()
    noise += numpy.random.exponential(0.5) * numpy.random.lognormal() + numpy.random.laplace() - numpy.random.gamma(2.0)
    return share * x + (1 - share) * noise


def drawn_for_a_branch_in_training(x, training=False):
    for _ in range(3):
        skipped = training and numpy.random.uniform(0, 1) < 0.5
        x = x if skipped else x.sin()
    return x


def stored_in_a_tensor(x):
    limit = numpy.log(numpy.exp(1 - 0.001) - 1)
    x = x.clone()
    x[..., 0] = limit
    return x


def of_a_legacy_class(x):
    sizes = torch.IntTensor([3, 5])
    same = torch.Tensor(x := x * 2)
    same += torch.Tensor([True, 2, x.shape[0] / 3])
    return x * sizes[0] + torch.FloatTensor([0.1, 2])[1] + torch.LongTensor((1,))


def of_a_legacy_class_by_its_shape(x):
    first = torch.Tensor(2, x.size(1)).zero_()
    first[0] = x.sum(0)
    labels = torch.LongTensor(x.size(0)).fill_(1)
    return first + torch.FloatTensor(x.size()).uniform_(-1, 1) + labels[:, None] + torch.Tensor(0).sum()


TABLE = numpy.arange(6).reshape(2, 3)


def of_a_legacy_class_by_an_array(x):
    shared = torch.LongTensor(TABLE)
    shared[0, 0] += 1
    return x + torch.FloatTensor(TABLE) + shared + torch.BoolTensor([True, False, True]) + torch.ByteTensor(2, 3).fill_(2)


@pytest.mark.parametrize(
    "function",
    [
        drawn_by_numpy, drawn_of_other_kinds, drawn_for_a_branch_in_training, stored_in_a_tensor, of_a_legacy_class,
        of_a_legacy_class_by_its_shape, of_a_legacy_class_by_an_array,
    ],
)  # fmt: skip
def test_numbers_of_numpy(function):
    compiled = quickfuse.compile(function)
    for seed in range(3):
        x = torch.rand(2, 3)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        TABLE[:] = seed
        wanted, after = function(x), numpy.random.rand()
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        changed, TABLE[:] = TABLE.copy(), seed
        found = compiled(x)
        assert (TABLE == changed).all()
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted)
        assert numpy.random.rand() == after
    assert compiled.graph_count == 1 and not compiled.breaks


def test_the_first_call_of_a_cached_method_that_gives_modules():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

        @functools.lru_cache
        def layers(self, module):
            return tuple([m for m in module.modules() if isinstance(m, nn.Linear)])

        def forward(self, x):
            for layer in self.layers(self):
                x = layer(x)
            return x, self.layers(self)

    net, x = Net(), torch.randn(2, 4)
    wanted, counted = net(x), Net.layers.cache_info()
    Net.layers.cache_clear()
    compiled = quickfuse.compile(net, fullgraph=True)
    made = compiled(x)
    torch.testing.assert_close(made[0], wanted[0])
    assert made[1] == wanted[1] and Net.layers.cache_info() == counted
    assert made[1] is net.layers(net)


def test_a_cached_function_that_makes_tensors_ends_a_graph_in_its_first_call_alone():
    calls = []

    @functools.lru_cache
    def grid(rows, columns):
        calls.append(rows)
        return torch.arange(rows * columns).view(rows, columns)

    compiled = quickfuse.compile(lambda x: (x * 2 + grid(*x.shape)).relu())
    for rows in (2, 2, 3, 3, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), (x * 2 + torch.arange(rows * 4).view(rows, 4)).relu())
    assert calls == [2, 3] and grid.cache_info()[:2] == (3, 2)
    assert compiled.entry.specialisations[0].segment.pause is None


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without torch.distributed")
def test_questions_about_processes_that_train_together():
    def shared(x):
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            x = x / torch.distributed.get_world_size() + torch.distributed.get_rank()
        return x * 2

    compiled = quickfuse.compile(shared, fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x * 2)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.testing.assert_close(compiled(x), x * 2)
        assert compiled.graph_count == 2
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(compiled(x), x * 2)
    assert compiled.graph_count == 2


def clamped(x: torch.Tensor, bound: float) -> torch.Tensor:
    return (x / bound).tanh() * bound


def added(x: torch.Tensor, y: torch.Tensor | None = None, turns: int = 2) -> torch.Tensor:
    if y is not None:
        x = x + y
    for _ in range(turns):
        x = x * 2
    return x


def paired(
    a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    return a[0] * b[0], a[1] + b[1]


def other_when_scripted(x: torch.Tensor) -> torch.Tensor:
    if torch.jit.is_scripting():
        return x + 1
    return x


def checked(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 3:
        raise ValueError("three rows")
    return x * 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_functions_that_were_scripted():
    clamp, add = torch.jit.script(clamped), torch.jit.script(added)
    compiled = quickfuse.compile(lambda x, n: clamp(x * 2, 3.0) + add(x, turns=3) + add(x, x) + clamp(x, n), fullgraph=True)
    for n in (1.5, 2.5):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, n), clamped(x * 2, 3.0) + added(x, turns=3) + added(x, x) + clamped(x, n))
    pairs = torch.jit.script(paired)
    for kind in (tuple, list):  # compiled code takes lists for tuples
        compiled = quickfuse.compile(lambda x, kind=kind: pairs(kind([x, x + 1]), b=kind([x * 2, x])), fullgraph=True)
        torch.testing.assert_close(compiled(x), paired((x, x + 1), (x * 2, x)))
    others = [torch.jit.script(function) for function in (other_when_scripted, checked)]
    for function, args in [(clamp, (3,)), (add, (True,)), *[(function, ()) for function in others]]:
        x, compiled = torch.randn(4), quickfuse.compile(lambda x, function=function, args=args: function(x + 1, *args))
        outcomes = []
        for run in (compiled, lambda x, function=function, args=args: function(x + 1, *args)):
            try:
                outcomes.append(run(x).tolist())
            except Exception as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]
    with pytest.raises(torch.jit.Error, match="three rows"):
        quickfuse.compile(lambda x, check=others[1]: check(x + 1))(torch.randn(3))


def test_a_branch_on_a_number_of_numpy():
    compiled = quickfuse.compile(drawn_for_a_branch_in_training)
    for seed in range(6):
        x = torch.rand(2, 3)
        numpy.random.seed(seed)
        wanted, after = drawn_for_a_branch_in_training(x, True), numpy.random.rand()
        numpy.random.seed(seed)
        torch.testing.assert_close(compiled(x, True), wanted)
        assert numpy.random.rand() == after


def test_seeding_between_draws_of_numpy():
    def seeded(x):
        first = numpy.random.rand()
        numpy.random.seed(5)
        return x * first + numpy.random.uniform(high=2.0)

    compiled = quickfuse.compile(seeded)
    for seed in range(3):
        numpy.random.seed(seed)
        wanted = seeded(torch.ones(3))
        numpy.random.seed(seed)
        torch.testing.assert_close(compiled(torch.ones(3)), wanted)
