"""Objects and modules as libraries of models use them."""

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import operator
import sys
import types
import typing
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import data

import quickfuse
from case_registry import case, cases
from one_graph.programs import agrees, x_and


@case
def named_tuple_made_in_forward():
    def forward(x, fields="features scores"):
        Output = collections.namedtuple("Output", fields, defaults=[2])
        out = Output(x * 2)
        changed = out._replace(scores=x + 1)
        return [v * 2 for v in changed], out[0] + changed.scores, out._fields, out._asdict()["scores"], Output.__name__

    return forward, x_and()


@case
def lengths_of_data():
    class Numbers(data.Dataset):
        def __len__(self):
            return self.size

    numbers, rows = Numbers(), data.TensorDataset(torch.randn(11, 2))
    numbers.size = 7
    weighted = data.BatchSampler(data.WeightedRandomSampler([0.1] * 5, 4), 3, False)
    loaders = [
        data.DataLoader(rows, 4), data.DataLoader(rows, 4, drop_last=True, shuffle=True), data.DataLoader(numbers, None),
        data.DataLoader(data.Subset(numbers, [1, 2, 3]), 2), data.DataLoader(numbers, batch_sampler=weighted),
        data.DataLoader(data.ConcatDataset([numbers, rows]), 5, sampler=data.SubsetRandomSampler([1, 2])),
    ]  # fmt: skip

    def f(x, size):
        numbers.size = size
        return [(x * len(loader), len(loader.dataset), 100.0 / len(loader)) for loader in loaders]

    return f, x_and(7), x_and(20)


@case
def types_of_tensors():
    kinds = (torch.FloatTensor, torch.LongTensor, torch.cuda.FloatTensor, torch.sparse.FloatTensor, torch.BoolTensor)
    values = [torch.ones(2).double(), torch.ones(2).long(), nn.Parameter(torch.ones(2)), torch.ones(2) > 0, 3, "text"]

    def f(x):
        told = [[isinstance(v, k) for k in (*kinds, kinds[1:])] for v in (x, *values)]
        return x + 1 if isinstance(x.data, torch.cuda.FloatTensor) else x - 1, told

    return f, x_and()


@case
def attn_registry():
    class Interface(collections.UserDict):
        _global = {"eager": lambda q, s: q * s, "sdpa": lambda q, s: q + s}

        def __init__(self):
            super().__init__()
            self._local = {}

        def __getitem__(self, k):
            return self._local[k] if k in self._local else self._global[k]

        def get_interface(self, k, d):
            return self[k] if k in self._global else d

    I = Interface()

    class Cfg:
        _attn = "sdpa"

    c = Cfg()

    def f(x):
        fn = I.get_interface(c._attn, None)
        return fn(x, 2.0)

    return (f,)


@case
def can_return_tuple():
    @dataclasses.dataclass
    class Out(collections.OrderedDict):
        logits: Any = None
        hidden: Any = None

        def __post_init__(self):
            for fd in dataclasses.fields(self):
                v = getattr(self, fd.name)
                if v is not None:
                    self[fd.name] = v

        def to_tuple(self):
            return tuple(self[k] for k in self.keys())

    def can_return_tuple(fn):
        @functools.wraps(fn)
        def w(self, *a, **k):
            rd = k.pop("return_dict", self.return_dict)
            out = fn(self, *a, **k)
            return out if rd else out.to_tuple()

        return w

    class M(nn.Module):
        return_dict = False

        @can_return_tuple
        def forward(self, x, **kw):
            return Out(logits=x * 2)

    m = M()
    return (lambda x: m(x)[0] + m(x, return_dict=True)["logits"],)


@case
def cache_class():
    class Layer:
        def __init__(s):
            s.k = None

        def update(s, k):
            s.k = k if s.k is None else torch.cat([s.k, k], -1)
            return s.k

    class Cache:
        def __init__(s, n):
            s.layers = [Layer() for _ in range(n)]

        def __len__(s):
            return len(s.layers)

        def __iter__(s):
            for l in s.layers:
                yield l.k

        def update(s, k, i):
            return s.layers[i].update(k)

    def f(x):
        c = Cache(2)
        for i in range(len(c)):
            c.update(x, i)
            c.update(x + 1, i)
        return [k for k in c if k is not None]

    return (f,)


@case
def config_dc_inherit():
    @dataclasses.dataclass
    class Base:
        hidden: int = 2
        act: str = "silu"
        extra: dict = dataclasses.field(default_factory=dict)

        @classmethod
        def from_dict(cls, d):
            return cls(**{k: v for k, v in d.items() if k in {f.name for f in dataclasses.fields(cls)}})

        def to_dict(self):
            return copy.deepcopy(self.__dict__)

    @dataclasses.dataclass
    class Big(Base):
        hidden: int = 4

    def f(x):
        c = Big.from_dict({"act": "relu", "zzz": 1})
        return getattr(F, c.to_dict()["act"])(x) * c.hidden

    return (f,)


@case
def property_setter_deleter():
    class A:
        @property
        def v(self):
            return getattr(self, "_v", 1.0)

        @v.setter
        def v(self, k):
            self._v = k

        @v.deleter
        def v(self):
            del self._v

    def f(x):
        a = A()
        a.v = 3.0
        y = x * a.v
        del a.v
        return y + a.v

    return (f,)


@case
def kwargs_filtering():
    def inner(x, scale=1.0, *, bias=None):
        return x * scale + (bias if bias is not None else 0)

    def call(fn, *a, **k):
        allowed = set(inspect.signature(fn).parameters)
        return fn(*a, **{n: v for n, v in k.items() if n in allowed})

    return (lambda x: call(inner, x, scale=2.0, bias=1, junk=object),)


@case
def deep_module_iter():
    m = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))

    def f(x):
        n = (
            sum(p.numel() for p in m.parameters())
            + len(list(m.named_modules()))
            + sum(isinstance(q, nn.Linear) for q in m.modules())
        )
        for name, child in m.named_children():
            x = child(x)
        return x * n, [k for k, _ in m.named_parameters(recurse=True)][:2]

    return (f,)


@case
def get_submodule():
    m = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))

    def f(x):
        return m.get_submodule("1.0")(x) + m.get_parameter("0.weight").sum(), m[1][0].in_features

    return (f,)


@case
def einops_like():
    @functools.lru_cache(256)
    def parse(p):
        l, r = p.split("->")
        return tuple(l.split()), tuple(r.split())

    def rearrange(x, p):
        l, r = parse(p)
        return x.permute(*[l.index(a) for a in r])

    return (lambda x: rearrange(x, "a b -> b a") * 2,)


@case
def einops_like_with_recipes():
    class Recipe:
        def __init__(self, left, right):
            self.order = [left.index(a) for a in right]

    @functools.lru_cache(256)
    def parse(p, *, names, ndim):
        left, right = (side.split() for side in p.split("->"))
        assert len(left) == ndim and {*names} <= {*left}
        return Recipe(left, right)

    @functools.lru_cache(256)
    def cook(recipe, shape, lengths):
        return recipe.order, [shape[k] for k in recipe.order], dict(lengths)

    def rearrange(x, p, **lengths):
        order, shape, lengths = cook(parse(p, names=tuple(lengths), ndim=x.ndim), x.shape, tuple(lengths.items()))
        return x.permute(order).reshape(*shape, *lengths.values())

    return (lambda x: rearrange(x, "a b -> b a", a=1) * 2 + rearrange(x, "a b -> b a", b=1),)


@case
def partial_method_table():
    class T:
        def _op(self, x, k):
            return x * k

        double = functools.partialmethod(_op, k=2)
        table = {"d": double}

    t = T()
    return (lambda x: t.double(x),)


@case
def str_enum_dispatch():
    class K(str, enum.Enum):
        A = "a"
        B = "b"

        @classmethod
        def parse(cls, v):
            return cls(v.lower())

    def f(x, v):
        k = K.parse(v)
        return x * {K.A: 2, K.B: 3}[k] + (k == "a"), k.value, K.B.name

    return f, x_and("A"), x_and("b")


@case
def int_flag():
    class P(enum.IntFlag):
        R = 1
        W = 2
        X = 4

    def f(x):
        p = P.R | P.X
        return x * int(p) + (P.W in p), bool(p & P.X)

    return (f,)


@case
def generic_class():
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v: T):
            self.v = v

        def map(self, fn):
            return Box(fn(self.v))

    return (lambda x: Box[torch.Tensor](x).map(lambda t: t * 2).v,)


@case
def nested_context():
    @contextlib.contextmanager
    def tag(stack, n):
        stack.append(n)
        try:
            yield stack
        finally:
            stack.pop()

    def f(x):
        s = []
        with contextlib.ExitStack() as es:
            for n in range(3):
                es.enter_context(tag(s, n))
            x = x * len(s)
        with contextlib.nullcontext(3) as k, contextlib.suppress(KeyError):
            x = x + k
            {}["q"]
        return x, s

    return (f,)


@case
def chained_iters():
    def f(x):
        a = list(itertools.chain.from_iterable([[1, 2], (3,)]))
        b = dict(itertools.zip_longest("ab", [1], fillvalue=0))
        c = [sum(g) for _, g in itertools.groupby(sorted(a), key=lambda v: v % 2)]
        d = list(itertools.accumulate(a, operator.mul))
        e = [*map(operator.itemgetter(1), enumerate(a, 1))]
        return x * sum(a + c + d + e) + b["a"], max(a, key=lambda v: -v), min("b", "a"), any(a), all([])

    return (f,)


@case
def tree_map():
    def tree_map(fn, t):
        if isinstance(t, dict):
            return type(t)((k, tree_map(fn, v)) for k, v in t.items())
        if isinstance(t, tuple) and hasattr(t, "_fields"):
            return type(t)(*(tree_map(fn, v) for v in t))
        if isinstance(t, (list, tuple)):
            return type(t)(tree_map(fn, v) for v in t)
        return fn(t)

    N = collections.namedtuple("N", "a b")
    return (lambda x: tree_map(lambda v: v * 2, {"a": [x, (x, 1)], "n": N(x, 2)}),)


@case
def torch_pytree():
    import torch.utils._pytree as P

    def f(x):
        flat, spec = P.tree_flatten({"a": x, "b": [x, 1]})
        return P.tree_unflatten([v * 2 for v in flat], spec)

    return (f,)


@case
def trees_of_torch_pytree():
    import torch.utils._pytree as P

    Point = collections.namedtuple("Point", "x y")

    def f(x):
        several = P.tree_map(lambda a, b: a + b, {"k": [x, 1], "n": Point(x, 2)}, {"k": [x * 2, 3], "n": Point(x, 4)})
        greatest = P.tree_map(lambda part: part * 2, x.max(0))
        return several, greatest.values, type(greatest).__name__, type(greatest)([x, x + 1]).indices

    return (f,)


@case
def local_import():
    def f(x):
        import math as m

        from torch.nn.functional import relu as r

        return r(x) * m.pi

    return (f,)


@case
def star_unpack():
    def f(x):
        a, *b, c = [x, 1, 2, x + 1]
        d = {**{"a": 1}, "b": 2}

        def g(*p, q=0, **k):
            return p[0] * sum(p[1:]) + q + sum(k.values())

        return g(a, *b, q=3, **d) + c

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)


class LazyModule(types.ModuleType):
    """A module that computes what is asked for, as libraries that import their parts late."""

    def __getattr__(self, name):
        if name in ("scale", "version"):
            return self._objects[name]
        raise AttributeError(name)


def imports_what_is_computed(x):
    from a_lazy_module import scale, version

    return x * scale if version > "1.0" else x + scale


def imports_for_the_first_time(x):
    from a_package import beside, scale
    from a_package.within import factor

    return x * scale * beside.shift + factor


def test_first_imports_of_the_modules_of_a_package(tmp_path, monkeypatch):
    package = tmp_path / "a_package"
    package.mkdir()
    for name, text in (("__init__", "scale = 3"), ("beside", "shift = 2"), ("within", "factor = 5")):
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("a_package")
    x = torch.arange(3.0)
    try:
        compiled = quickfuse.compile(imports_for_the_first_time)
        for _ in range(4):
            torch.testing.assert_close(compiled(x), x * 6 + 5)
        captures = compiled.captures
        assert captures > 1 and compiled.entry.specialisations[0].segment.pause is None
        torch.testing.assert_close(compiled(x), x * 6 + 5)
        assert compiled.captures == captures
    finally:
        for name in [name for name in sys.modules if name.startswith("a_package")]:
            del sys.modules[name]


@pytest.mark.parametrize("by_class", [True, False])
def test_from_import_of_what_a_module_computes(monkeypatch, by_class):
    module = (LazyModule if by_class else types.ModuleType)("a_lazy_module")
    module._objects = {"scale": 3.0, "version": "1.2"}
    if not by_class:
        module.__getattr__ = functools.partial(LazyModule.__getattr__, module)
    monkeypatch.setitem(sys.modules, "a_lazy_module", module)
    compiled = quickfuse.compile(imports_what_is_computed)
    x = torch.arange(3.0)
    torch.testing.assert_close(compiled(x), imports_what_is_computed(x))
    assert compiled.graph_count == 1 and not compiled.breaks
    module._objects["version"] = "0.9"
    torch.testing.assert_close(compiled(x), imports_what_is_computed(x))
    module.scale = 4.0
    torch.testing.assert_close(compiled(x), imports_what_is_computed(x))
    monkeypatch.delitem(sys.modules, "a_lazy_module")
    with pytest.raises(ModuleNotFoundError):
        compiled(x)
