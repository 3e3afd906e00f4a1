"""Dataclasses, copies and objects with attributes of their own."""

import copy
import dataclasses
import types
import typing

import pytest
import torch

from case_registry import case, cases
from one_graph.classes import DC, FDC
from one_graph.programs import agrees


@case
def dc_replace():
    def f(x):
        d = DC(1, t=x)
        e = dataclasses.replace(d, a=5)
        return e.t * e.a + e.b + len(e.l)

    return (f,)


@case
def dc_replace_outer():
    d = DC(1, 3.0)
    return ((lambda x: x * dataclasses.replace(d, a=7).a),)


@case
def dc_fields():
    def f(x):
        d = DC(1, t=x)
        return [(fl.name, getattr(d, fl.name)) for fl in dataclasses.fields(d)]

    return (f,)


@case
def dc_asdict():
    def f(x):
        d = DC(1, 3.0)
        return x * sum(v for v in dataclasses.asdict(d).values() if isinstance(v, (int, float)))

    return (f,)


@case
def dc_frozen():
    def f(x):
        d = FDC(3)
        return x * d.a + (2 if d == FDC(3) else 1) + hash(d) % 2 * 0

    return (f,)


@case
def dc_frozen_set_raises():
    def f(x):
        d = FDC(3)
        try:
            d.a = 4
        except dataclasses.FrozenInstanceError:
            return x * 2
        return x

    return (f,)


@case
def dc_is():
    return ((lambda x: x * (dataclasses.is_dataclass(DC) + dataclasses.is_dataclass(3))),)


@case
def dc_make():
    Q = dataclasses.make_dataclass("Q", ["a"])
    return ((lambda x: Q(x).a * 2),)


@case
def dc_order_repr():
    @dataclasses.dataclass(order=True)
    class P:
        a: int

    return ((lambda x: x * (2 if P(1) < P(2) else 1) + len(repr(P(3)))),)


@case
def dc_kwonly_slots_initvar():
    @dataclasses.dataclass(kw_only=True, slots=True)
    class P:
        a: int
        i: dataclasses.InitVar[int] = 3

        def __post_init__(self, i):
            self.a += i

    return ((lambda x: x * P(a=2).a),)


@case
def copy_copy():
    class C:
        def __init__(self):
            self.k = 2
            self.l = [1]

    c = C()

    def f(x):
        d = copy.copy(c)
        d.k = 5
        d.l = d.l + [2]
        return x * d.k + len(d.l) + len(c.l) + c.k

    return (f,)


@case
def copy_deep():
    c = {"a": [1, {"b": 2}], "t": (1, 2)}

    def f(x):
        d = copy.deepcopy(c)
        d["a"][1]["b"] = 9
        return x * d["a"][1]["b"] + c["a"][1]["b"]

    return (f,)


@case
def copy_deep_inner_obj():
    def f(x):
        d = DC(1, t=[1, 2])
        e = copy.deepcopy(d)
        e.t.append(3)
        return x * len(d.t) + len(e.t)

    return (f,)


class Config:
    """As those of transformers: names of attributes have other names."""

    renamed = {"width": "hidden_size"}

    def __init__(self):
        self.width = 4
        self.sizes = [1, 2]
        self.sub = None

    def __setattr__(self, name, value):
        super().__setattr__(type(self).renamed.get(name, name), value)

    def __getattribute__(self, name):
        if name != "renamed" and name in super().__getattribute__("renamed"):
            name = super().__getattribute__("renamed")[name]
        return super().__getattribute__(name)

    def to_dict(self):
        return copy.deepcopy(self.__dict__)


@case
def copy_of_a_class_with_its_own_access_to_attributes():
    config = Config()

    def f(x):
        other = copy.deepcopy(config)
        for name in other.to_dict():
            if name.startswith("hidden"):
                setattr(other, "width", 7)
        other.sizes.append(3)
        shallow = copy.copy(other)
        shallow.sub = config
        y = x * other.width + config.width + sum(other.sizes) + len(config.sizes)
        return y, shallow.sub is config, shallow.hidden_size

    return (f,)


@case
def copy_of_a_class_that_looks_into_its_parts_for_attributes():
    class Config:
        def __init__(self):
            self.own = types.SimpleNamespace(names=["a"])
            self.a, self.b = 1, 2

        def __getattribute__(self, name):
            own = super().__getattribute__("__dict__").get("own")
            if own is not None and name in own.names:
                return 10
            return super().__getattribute__(name)

    config = Config()

    def f(x):
        other = copy.copy(config)
        other.b = 5
        return x * other.a + other.b + config.b, other.__dict__["a"]

    return (f,)


@case
def copy_of_a_class_that_makes_attributes_up():
    class Lazy:
        def __init__(self):
            self.known = {"a": 3}

        def __getattr__(self, name):
            if name.startswith("__") or name == "known":
                raise AttributeError(name)
            return self.known[name]

    lazy = Lazy()

    def f(x):
        other = copy.deepcopy(lazy)
        other.known["a"] += 1
        return x * other.a + lazy.a

    return (f,)


@case
def fields_that_check_their_types():
    def checked(cls):
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}

        def __setattr__(self, name, value):
            kind = kinds[name]
            if typing.get_origin(kind) is types.UnionType and not isinstance(value, typing.get_args(kind)):
                raise TypeError(f"{name} is no {kind}")
            object.__setattr__(self, name, value)

        cls.__setattr__ = __setattr__
        return cls

    @checked
    @dataclasses.dataclass
    class Sizes:
        width: int | None = None
        names: list | None = None

    sizes = Sizes(3)

    def f(x):
        other = copy.deepcopy(sizes)
        other.width = other.width * 2
        other.names = ["a"]
        return x * other.width + sizes.width

    return (f,)


@case
def an_annotated_list():
    def f(x):
        found = torch.jit.annotate(typing.List[torch.Tensor], [])
        found.append(x * 2)
        return found[0]

    return (f,)


@case
def a_module_that_computes_attributes():
    class Lazy(types.ModuleType):
        def __init__(self, name):
            super().__init__(name)
            self.parts = {"__version__": "4.56.1"}

        def __getattr__(self, name):
            if name in self.parts:
                return self.parts[name]
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    lazy = Lazy("lazy")

    def f(x):
        return x * int(lazy.__version__.split(".")[1]) + getattr(lazy, "missing", 3)

    return (f,)


@case
def a_counter_in_a_class():
    class Counter:
        n = 0

        @property
        def double(self):
            return self.n * 2

        @classmethod
        def count(cls, by=1):
            cls.n += by
            return cls.n

    counter = Counter()

    def f(x):
        Counter.count()
        counter.count(2)
        for _ in range(3):
            Counter.n += 1
        return x * counter.double + getattr(Counter, "n"), Counter.n

    return (f,)


@case
def attributes_of_classes_that_derive_from_each_other():
    class Base:
        n = 0

    class Middle(Base):
        n = 1

    class Last(Middle):
        pass

    def f(x):
        Middle.n += 1
        Base.n += 2
        return x * Last.n + Last().n + Base.n, (Base.n, Middle.n, Last.n)

    return (f,)


@case
def a_module_that_keeps_its_last_result_in_its_class():
    class Model(torch.nn.Module):
        calls = 0
        last = None

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            Model.calls += 1
            y = self.layer(x) * self.calls
            before, type(self).last = self.last, y.detach()
            return y if before is None else y + before + self.last.sum()

    model = Model()
    return lambda x: model(x[:, :1].expand(-1, 4)),


@case
def new_attributes_of_classes():
    class Base:
        n = 1

    class Derived(Base):
        pass

    class Last(Derived):
        pass

    def f(x):
        Derived.n += 1
        Base.m = Derived.n * 2
        setattr(Last, "k", x.sum())
        return x * Last.n + Derived().m + Base.n + Last().k, hasattr(Derived, "k"), Last.m

    return (f,)


@case
def a_flag_in_a_class():
    class Flags:
        n = 0
        late = False

    def f(x):
        Flags.n += 1
        if Flags.n > 2:
            Flags.late = True
        return (x * 2 if Flags.late else x), Flags.n, Flags.late

    return (f,)


@case
def tensor_types():
    weight, names = torch.nn.Parameter(torch.ones(4)), torch.zeros(2, dtype=torch.int64)
    types = [torch.FloatTensor, torch.LongTensor, torch.DoubleTensor, torch.cuda.FloatTensor, torch.sparse.FloatTensor]

    def f(x):
        found = [isinstance(value, kind) for value in (x, x.double(), weight, names, 3) for kind in types]
        return x * isinstance(x, (torch.LongTensor, torch.FloatTensor)), found

    return (f,)


@case
def aliases_in_typing():
    class Sized:
        def __len__(self):
            return 3

    sized, kinds = Sized(), (typing.Sized, int)

    def f(x):
        found = [isinstance(value, typing.Sequence) for value in ([1], "a", (1,), {}, sized, x)]
        found += [isinstance(sized, kinds), isinstance({}, typing.Dict), issubclass(list, typing.Sequence)]
        return x * isinstance(x, typing.Callable), found, isinstance([], (typing.List, str))

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
