"""User classes: attributes, properties, inheritance, class attributes, objects that are made inside."""

import abc
import types

import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t


class Linear:
    instances = 0
    default_scale = 2.0

    def __init__(self, weight, bias=0.0):
        self.weight = weight
        self.bias = bias
        type(self).instances += 1

    def __call__(self, x):
        return x * self.weight + self.bias

    @property
    def norm(self):
        return self.weight.abs().sum()

    @norm.setter
    def norm(self, value):
        self.weight = self.weight * (value / self.weight.abs().sum())

    @norm.deleter
    def norm(self):
        self.weight = None

    @classmethod
    def ones(cls, n):
        return cls(torch.ones(n) * cls.default_scale)

    @staticmethod
    def mix(a, b, share=0.5):
        return a * share + b * (1 - share)

    def chained(self, value):
        self.bias = self.bias + value
        return self

    def __repr__(self):
        return f"Linear(bias={self.bias})"


class Shifted(Linear):
    default_scale = 3.0

    def __init__(self, weight, bias=0.0, shift=1.0):
        super().__init__(weight, bias)
        self.shift = shift

    def __call__(self, x):
        return super().__call__(x) + self.shift

    @property
    def norm(self):
        return super().norm * 10


class Left:
    def run(self, x, trace):
        trace.append("Left")
        return x + 1


class A(Left):
    def run(self, x, trace):
        trace.append("A")
        return super().run(x, trace) * 2


class B(Left):
    def run(self, x, trace):
        trace.append("B")
        return super().run(x, trace) - 3


class Diamond(A, B):
    def run(self, x, trace):
        trace.append("Diamond")
        return super().run(x, trace).sin()


class Abstract(abc.ABC):
    @abc.abstractmethod
    def forward(self, x): ...

    def __call__(self, x):
        return self.forward(x) + 1


class Concrete(Abstract):
    def forward(self, x):
        return x.cos()


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Mixin:
    log: list = []

    def note(self, text):
        self.log.append(text)


class Noting(Mixin, Linear):
    pass


@case((t(3), 2.0), (t(3), 3.0), (t(3), 2))
def objects_made_and_returned(x, bias):
    layer = Linear(x + 1, bias)
    y = layer(x) * 2
    layer.extra = y
    return layer, y, layer.chained(1.0) is layer, repr(layer), Linear.instances


@case(lambda: (t(3), Linear(t(3, seed=1), 2.0)), lambda: (t(3), Linear(t(3, seed=2), 4.0)))
def object_argument_is_mutated(x, layer):
    y = layer(x)
    layer.bias = layer.bias * 2 + 1
    layer.weight.mul_(0.5)
    layer.last = y
    del layer.weight
    return layer, y + 1, hasattr(layer, "weight")


@case(lambda: (t(3), Linear(t(3, seed=1))), lambda: (t(3), Shifted(t(3, seed=1))), lambda: (t(3), Linear(t(3, seed=2))))
def properties(x, layer):
    before = layer.norm
    y = x * before
    try:
        layer.norm = 5.0
        z = layer.norm + y
        del layer.norm
    except AttributeError as error:
        return y, str(error)
    return y, z, layer.weight


@case((t(3),), (t(3, seed=1),), steady="later")
def class_and_static_methods(x):
    a, b = Linear.ones(3), Shifted.ones(3)
    return a(x), b(x), Linear.mix(x, x + 1), a.mix(x, x * 2, share=0.1), type(b).default_scale, Shifted.instances


@case((t(3),), (t(3, seed=1),))
def class_attributes(x):
    y = x * Linear.default_scale
    layer = Linear(x)
    layer.default_scale = 7.0
    Linear.default_scale += 0.5
    z = y * layer.default_scale + Linear.default_scale
    Linear.default_scale -= 0.5
    del layer.default_scale
    return z, layer.default_scale, "default_scale" in vars(layer), Shifted.default_scale


@case((t(3),), (t(3, seed=1),), steady="later")  # the first call gives the class its attribute
def class_counter_is_written(x):
    Linear.total = getattr(Linear, "total", 0) + 1
    layers = [Linear(x, k) for k in range(3)]
    y = x
    for layer in layers:
        y = layer(y)
    return y, Linear.instances, Linear.total


@case((t(3), 0.5), (t(3), 1.5), steady="later")  # the first call gives `Shifted` a counter of its own
def super_in_methods_and_properties(x, shift):
    layer = Shifted(x, 1.0, shift=shift)
    return layer(x), layer.norm, Linear.__call__(layer, x), super(Shifted, layer).__call__(x), isinstance(layer, Linear)


class WithoutSelf(Linear):
    @staticmethod
    def nothing():
        return super().norm

    @staticmethod
    def unnamed(*args):
        return super().norm

    @staticmethod
    def alone():
        return super(WithoutSelf).norm

    def no_instance(self):
        return super().norm


def without_class_cell(self):
    return super().norm


@case((t(3), "nothing"), (t(3), "unnamed"), (t(3), "no_instance"), (t(3), "without_class_cell"), (t(3), "alone"))
def super_without_its_arguments(x, name):
    called = {
        "nothing": lambda: WithoutSelf.nothing(),
        "unnamed": lambda: WithoutSelf.unnamed(x),
        "no_instance": lambda: WithoutSelf.no_instance(x),
        "without_class_cell": lambda: without_class_cell(WithoutSelf(x)),
        "alone": lambda: WithoutSelf.alone(),
    }
    y = x + 1
    try:
        return y, called[name]()
    except (RuntimeError, TypeError, AttributeError) as error:
        return y, type(error), str(error), error.__context__


@case((t(3),), (t(3, seed=1),))
def method_resolution_order(x):
    trace = []
    y = Diamond().run(x, trace)
    return y, trace, [c.__name__ for c in Diamond.__mro__], Diamond.__bases__, A.run is Diamond.run


@case((t(3),), (t(3, seed=1),))
def abstract_base_class(x):
    y = Concrete()(x)
    try:
        Abstract()
    except TypeError as error:
        return y * 2, str(error), isinstance(Concrete(), Abstract)


@case((t(3),), (t(3, seed=1),))
def slots(x):
    item = Slots(x + 1)
    item.b = item.a * 2
    missing = []
    for name in ("c", "a"):
        try:
            setattr(item, name, 5)
            missing.append(getattr(item, name))
        except AttributeError as error:
            missing.append(str(error))
    del item.b
    return item, missing, hasattr(item, "b"), x.exp()


@case((t(3),), (t(3, seed=1),), steady="never")
def mixins_and_shared_class_list(x):
    layer = Noting(x + 2)
    layer.note("first")
    other = Noting(x)
    other.log = ["own"]
    other.note("second")
    return layer(x) * 2, layer.log is Mixin.log, other.log


@case((t(3), 2), (t(3), 3), steady="never")
def class_made_inside(x, n):
    class Scale:
        factor = n * 2

        def __init__(self, base):
            self.base = base

        def apply(self, v):
            return v * self.factor + self.base

    scale = Scale(x)
    return scale.apply(x + 1), Scale.factor, Scale.__name__, isinstance(scale, Scale)


@case((t(3),), (t(3, seed=1),), steady="never")
def class_made_inside_is_returned(x):
    class Holder:
        values = [x + 1]

        def total(self):
            return sum(self.values)

    return Holder, Holder().total() * 2


@case((t(3), 2), (t(3), 4), steady="never")
def class_made_by_type(x, n):
    Made = type("Made", (Linear,), {"default_scale": n, "double": lambda self, v: self(v) * 2})
    made = Made.ones(3)
    return made.double(x), Made.__name__, made.default_scale, type(made) is Made


@case((t(3),), (t(3, seed=1),))
def bound_methods_as_values(x):
    layer = Linear(x + 1, 1.0)
    method = layer.__call__
    unbound = Linear.mix
    table = {"call": layer.chained, "mix": unbound}
    table["call"](3.0)
    return method(x), table["mix"](x, x + 1), method.__self__ is layer, method.__func__ is Linear.__call__


@case((t(3),), (t(3, seed=1),))
def method_is_patched_on_the_instance(x):
    layer = Linear(x + 1)
    layer.chained = lambda value: layer(value) * 100
    y = layer.chained(x)
    del layer.chained
    return y, layer.chained(2.0)(x)


@setup(steady="never")
def method_is_patched_on_the_class_between_calls():
    layer = Linear(t(3))
    original = Linear.mix

    def run(x, patch):
        if patch:
            Linear.mix = staticmethod(lambda a, b, share=0.5: a - b)
        else:
            Linear.mix = staticmethod(original)
        return layer.mix(x, x * 3) + layer(x)

    return run, [(t(3), False), (t(3), True), (t(3), False)]


@setup()
def bound_method_is_compiled():
    layer = Shifted(t(3, seed=5), 2.0)
    return layer.chained(1.0).__call__, [(t(3),), (t(3, seed=1),)]


@setup(steady="never")
def attribute_counter():
    class Counting:
        def __init__(self):
            self.calls = 0
            self.last = None

        def run(self, x):
            self.calls += 1
            self.last = x * self.calls
            if self.calls > 3:
                return self.last.sin()
            return self.last + 1

    counting = Counting()
    return counting.run, [(t(3),), (t(3, seed=1),)]


@setup()
def attributes_that_change_between_calls():
    layer = Linear(t(3, seed=5), 2.0)

    def run(x, bias):
        layer.bias = bias
        y = layer(x)
        layer.weight = layer.weight * 0.5
        return y - layer.weight

    return run, [(t(3), 1.0), (t(3), 2.0), (t(3), 1)]


@case((t(3),), (t(3, seed=1),), steady="never")
def objects_that_refer_to_each_other(x):
    class Node:
        def __init__(self, value, parent=None):
            self.value = value
            self.parent = parent
            self.children = []
            if parent is not None:
                parent.children.append(self)

    root = Node(x)
    child = Node(x + 1, root)
    grandchild = Node(x * 2, child)
    total = grandchild.value + grandchild.parent.value + grandchild.parent.parent.value
    return root, total, grandchild.parent.parent is root


@case((t(3),), (t(3, seed=1),), steady="never")
def name_mangling_and_private_state(x):
    class Private:
        def __init__(self):
            self.__value = x + 1

        def get(self):
            return self.__value * 2

    private = Private()
    return private.get(), list(vars(private)), private._Private__value - 1


@case((t(3), False), (t(3), True), steady="never")
def init_raises(x, bad):
    class Checked:
        def __init__(self, value, fail):
            self.value = value * 2
            if fail:
                raise ValueError("bad value")

    try:
        y = Checked(x, bad).value + 1
    except ValueError as error:
        y = x - 1
        return y, str(error)
    return y


@case((t(3),), (t(3, seed=1),))
def instance_dict(x):
    layer = Linear(x)
    layer.__dict__["scale"] = 4.0
    layer.__dict__.update(bias=x * 2)
    y = layer(x) * layer.scale
    return y, sorted(layer.__dict__), vars(layer) is layer.__dict__, layer.__class__, layer.__class__.__name__


@case((t(3),), (t(3, seed=1),))
def class_is_reassigned(x):
    layer = Linear(x + 1)
    layer.shift = 5.0
    before = layer(x)
    layer.__class__ = Shifted
    return before, layer(x), type(layer) is Shifted, layer.norm


@case((t(3), 3), (t(3), 5), steady="never")
def builder_with_fluent_calls(x, n):
    class Pipeline:
        def __init__(self):
            self.steps = []

        def add(self, step, *args):
            self.steps.append((step, args))
            return self

        def run(self, v):
            for step, args in self.steps:
                v = getattr(v, step)(*args)
            return v

    return Pipeline().add("mul", n).add("sin").add("clamp", -0.5, 0.5).run(x)


@case(lambda: (t(3), {}), lambda: (t(3), {"a": 1}))
def views_of_dictionaries_that_change(x, table):
    mine = {}
    views = types.MappingProxyType(mine), types.MappingProxyType(table)
    mine["b"], table["b"] = x, x * 2
    return x + 1, [(len(view), list(view), view["b"]) for view in views]


def _table_and_view():
    table = {"a": 1}
    return t(3), table, types.MappingProxyType(table)


@case(_table_and_view)
def a_view_beside_its_dictionary(x, table, view):
    before = len(view)
    table["b"] = x * 2
    return x + 1, before, len(view), view["b"], "b" in view


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_classes(name, backend):
    check(__file__, name, backend)
