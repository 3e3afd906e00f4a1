"""How objects and classes come about: `__new__`, metaclasses, `__init_subclass__`, class bodies, copies, weak references."""

import copy
import functools
import weakref

import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t


class Meta(type):
    created: list = []

    def __new__(mcls, name, bases, namespace, **kwargs):
        namespace["made_by"] = mcls.__name__
        namespace["options"] = kwargs
        mcls.created.append(name)
        return super().__new__(mcls, name, bases, namespace)

    def __init__(cls, name, bases, namespace, **kwargs):
        super().__init__(name, bases, namespace)
        cls.order = len(Meta.created)

    def __call__(cls, *args, **kwargs):
        instance = super().__call__(*args, **kwargs)
        instance.called = True
        return instance

    def __len__(cls):
        return 7

    def __contains__(cls, value):
        return value == cls.__name__

    @property
    def label(cls):
        return f"<{cls.__name__}>"


class Base(metaclass=Meta, scale=2.0):
    def __init__(self, x):
        self.x = x

    def run(self):
        return self.x * self.options["scale"] + 1


class Singleton:
    instance = None

    def __new__(cls, *args):
        if cls.instance is None:
            cls.instance = super().__new__(cls)
            cls.instance.count = 0
        return cls.instance

    def __init__(self, x):
        self.count += 1
        self.x = x


class Registered:
    registry: dict = {}

    def __init_subclass__(cls, name=None, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.registry[name or cls.__name__] = cls

    def apply(self, x):
        return x


class Double(Registered, name="double"):
    def apply(self, x):
        return x * 2


class Shift(Registered):
    def apply(self, x):
        return x + 1


class Celsius(float):
    def __new__(cls, value):
        return super().__new__(cls, value + 0.5)

    def fahrenheit(self):
        return self * 1.8 + 32


class Size(tuple):
    def __new__(cls, *sizes):
        return super().__new__(cls, sizes)

    @property
    def area(self):
        return self[0] * self[1]


class Generic:
    def __class_getitem__(cls, item):
        return (cls.__name__, item)


@case((t(3),), (t(3, seed=1),))
def metaclass_of_an_outside_class(x):
    item = Base(x)
    return item.run(), item.called, Base.made_by, Base.label, len(Base), "Base" in Base, type(Base) is Meta, Base.order


@case((t(3), 3.0), (t(3), 4.0), steady="never")
def class_with_a_metaclass_made_inside(x, scale):
    class Inner(Base, scale=scale):
        def run(self):
            return super().run() * 2

    inner = Inner(x + 1)
    return inner.run(), Inner.options, Inner.order, inner.called, isinstance(inner, Base)


@case((t(3),), (t(3, seed=1),), steady="later")
def new_returns_the_same_object(x):
    a = Singleton(x)
    b = Singleton(x + 1)
    return a is b, a.x * 2, b.count


@case((t(3), "double"), (t(3), "Shift"), (t(3), "none"))
def registry_by_init_subclass(x, name):
    kind = Registered.registry.get(name, Registered)
    y = kind().apply(x) * 3
    return y, sorted(Registered.registry)


@case((t(3),), (t(3, seed=1),), steady="never")
def init_subclass_inside(x):
    seen = []

    class Plugin:
        def __init_subclass__(cls, /, weight=1.0, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.weight = weight
            seen.append(cls.__name__)

    class First(Plugin, weight=2.0):
        pass

    class Second(First):
        pass

    return x * First.weight + Second.weight, seen


@case((t(3), 20.0), (t(3), 3.0))
def float_subclass(x, value):
    temperature = Celsius(value)
    return x * temperature + temperature.fahrenheit(), temperature, type(temperature + 1), isinstance(temperature, float)


@case((t(3), 2, 3), (t(3), 4, 5))
def tuple_subclass_with_new(x, h, w):
    size = Size(h, w)
    y = x.expand(size[0], 3) * size.area
    return y.sum(0), size, len(size), h in size


@case((t(3),), (t(3, seed=1),), steady="never")
def new_returns_another_class(x):
    class Chooser:
        def __new__(cls, value):
            return value * 2 if isinstance(value, torch.Tensor) else super().__new__(cls)

        def __init__(self, value):
            self.value = value

    return Chooser(x) + 1, Chooser(3).value, type(Chooser(x)) is torch.Tensor


@case((t(3),), (t(3, seed=1),), steady="never")
def class_body_runs_code(x):
    class Computed:
        table = {}
        for k in range(3):
            table[k] = x * k
        if len(table) > 2:
            big = True

        def get(self, k):
            return self.table[k] + 1

        del k

    own = sorted(n for n in vars(Computed) if not n.startswith("_"))
    return Computed().get(2), Computed.big, own, hasattr(Computed, "k")


@case((t(3),), (t(3, seed=1),), steady="never")
def class_decorators(x):
    def with_scale(value):
        def decorate(cls):
            cls.scale = value
            cls.extra = lambda self, v: v * self.scale
            return cls

        return decorate

    @with_scale(4.0)
    class Plain:
        def run(self, v):
            return self.extra(v) + 1

    return Plain().run(x), Plain.scale, Plain.__name__


@case((t(3),), (t(3, seed=1),), steady="never")
def nested_classes(x):
    class Outer:
        class Inner:
            def __init__(self, v):
                self.v = v * 2

        def make(self, v):
            return self.Inner(v + 1)

    made = Outer().make(x)
    return made.v, type(made).__qualname__.split(".")[-1], isinstance(made, Outer.Inner)


@case((t(3),), (t(3, seed=1),))
def class_getitem_and_generic_alias(x):
    y = (x * len(Generic[int])).sin() + x
    return y, Generic[int, str], list[int], dict[str, int].__origin__, list[int].__args__


@case((t(3),), (t(3, seed=1),), steady="never")
def copy_protocol(x):
    class Custom:
        def __init__(self, value):
            self.value = value
            self.copies = 0

        def __copy__(self):
            other = Custom(self.value + 1)
            other.copies = self.copies + 1
            return other

        def __deepcopy__(self, memo):
            return Custom(self.value * 10)

    item = Custom(x)
    return copy.copy(item).value, copy.copy(copy.copy(item)).copies, copy.deepcopy(item).value, copy.copy([item])[0] is item


@setup()
def weak_references():
    class Owner:
        def __init__(self, weight):
            self.weight = weight

    owner = Owner(t(3, seed=9))
    reference = weakref.ref(owner)

    def run(x):
        alive = reference()
        return x * alive.weight + 1, alive is owner

    return run, [(t(3),), (t(3, seed=1),)]


@case((t(3),), (t(3, seed=1),), steady="never")
def deletion_runs_finalizers(x):
    log = []

    class Resource:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            log.append(self.name)

    item = Resource("a")
    y = x * 2
    del item
    log.append("after")
    Resource("b")
    return y + 1, log


@case((t(3),), (t(3, seed=1),), steady="never")
def instance_and_subclass_hooks(x):
    class Duck(type):
        def __instancecheck__(cls, value):
            return hasattr(value, "quack")

        def __subclasscheck__(cls, other):
            return "quack" in vars(other)

    class Quacker(metaclass=Duck):
        pass

    class Real:
        def quack(self, v):
            return v.sin()

    real = Real()
    y = real.quack(x) if isinstance(real, Quacker) else x
    return y * 2, isinstance(3, Quacker), issubclass(Real, Quacker)


@case((t(3),), (t(3, seed=1),), steady="never")
def prepare_of_a_metaclass(x):
    class Ordered(type):
        @classmethod
        def __prepare__(mcls, name, bases):
            return {"prepared": name}

    class Made(metaclass=Ordered):
        seen = prepared + "!"  # noqa: F821

        def run(self, v):
            return v + len(self.seen)

    return Made().run(x) * 2, Made.prepared


@case((t(3), 2), (t(3), 3), steady="never")
def generated_methods(x, n):
    class Auto:
        pass

    for k in range(n):
        setattr(Auto, f"times{k}", lambda self, v, k=k: v * k + 1)
    auto = Auto()
    return [getattr(auto, f"times{k}")(x) for k in range(n)], sorted(m for m in vars(Auto) if m.startswith("times"))


class Shape:
    def __new__(cls, kind):
        return object.__new__(Round if kind == "round" else cls)

    def __init__(self, kind):
        self.sides = 4


class Round(Shape):
    def __init__(self, kind):
        self.radius = 2


class Prepared:
    def prepare(self, factor, x):
        self.x = x * factor

    __init__ = functools.partialmethod(prepare, 3)


@case((t(3),), (t(3, seed=1),))
def init_of_what_new_gives(x):
    made = Shape("round"), Shape("square"), Round("square")
    return x + 1, [(type(m).__name__, vars(m)) for m in made], Prepared(x).x


class Above:
    rate = 3

    @property
    def computed(self):
        return "computed"

    def plain(self, x):
        return self, x

    @classmethod
    def named(cls, x):
        return cls.__name__, x

    @staticmethod
    def alone(x):
        return x


class Below(Above):
    rate = 4

    @classmethod
    def named(cls, x):
        above = super()
        return above.named(x), above.plain(1, x), above.alone(x), above.rate, above.computed is Above.computed


@case((t(3), Below()), (t(3, seed=1), Below()))
def super_of_a_class(x, below):
    return Below.named(x * 2), below.named(x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_metaclasses(name, backend):
    check(__file__, name, backend)
