"""Looking at objects: isinstance, hasattr, getattr, vars, type, callable, inspect, and branches on what they say."""

import inspect
import numbers
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
import torch

from language.harness import BACKENDS, Keywords, case, check, names, setup, t


class Shape:
    sides = 0

    def area(self, x):
        return x * self.sides


class Square(Shape):
    sides = 4
    color: str = "red"

    def __init__(self):
        self.visible = True


typing.get_type_hints(Square)  # from Python 3.14 on `dir()` finds in a class that its annotations were asked for


def typed(x: torch.Tensor, n: int = 2, *, scale: float = 1.0) -> torch.Tensor:
    """Multiply."""
    return x * n * scale


@typing.runtime_checkable
class Runs(typing.Protocol):
    def area(self, x): ...


@case((t(3), 1), (t(3), 2.5), (t(3), True), (t(3), "abc"), (t(3), [1, 2]), (t(3), {"a": 1}), (t(3), None))
def isinstance_of_many_kinds(x, value):
    if isinstance(value, bool):
        y = x * 3 if value else x
    elif isinstance(value, numbers.Integral):
        y = x + value
    elif isinstance(value, float):
        y = x / value
    elif isinstance(value, Mapping):
        y = x * len(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        y = x - sum(value)
    elif isinstance(value, Iterable):
        y = x.sin()
    else:
        y = x.cos()
    return y + 1, isinstance(value, Callable)


@case(lambda: (t(3), Square()), lambda: (t(3), Shape()), lambda: (t(3), "no shape"))
def isinstance_of_user_classes(x, shape):
    if isinstance(shape, Shape):
        x = shape.area(x) + 1
    if type(shape) is Square:
        x = x * 2
    return x.exp(), issubclass(type(shape), Shape), isinstance(shape, (Square, str)), isinstance(shape, Runs)


@case(lambda: (t(3), Square()), lambda: (t(3), Shape()))
def hasattr_getattr_with_defaults(x, shape):
    if hasattr(shape, "visible"):
        x = x * 2
    y = x + getattr(shape, "sides") + getattr(shape, "missing", 0.5)
    try:
        getattr(shape, "missing")
    except AttributeError as error:
        return y.sin(), str(error), error.obj is shape


@case(lambda: (t(3), Square(), "width"), lambda: (t(3), Square(), "visible"))
def setattr_and_delattr(x, shape, name):
    setattr(shape, name, x + 1)
    y = getattr(shape, name) * 2
    delattr(shape, name)
    shape.kept = y
    return y, hasattr(shape, name), sorted(vars(shape))


@case(lambda: (t(3), Square()), lambda: (t(3), Shape()))
def vars_and_dict(x, shape):
    vars(shape)["scale"] = 3.0
    shape.__dict__["n"] = 2
    for key, value in list(vars(shape).items()):
        if isinstance(value, (int, float)):
            x = x * value + len(key)
    return x, shape.scale, vars(shape) == shape.__dict__


@case(lambda: (t(3), Square()),)
def dir_and_annotations(x, shape):
    own = [name for name in dir(shape) if not name.startswith("_")]
    y = (x * len(own)).relu() - x
    return y, own, Square.__annotations__, typing.get_type_hints(Square), Square.__dict__.get("sides")


@case((t(3), torch.sin), (t(3), typed), (t(3), lambda v: v + 1), (t(3), 5))
def callables(x, f):
    y = f(x) if callable(f) else x * f
    return y + 1, callable(f), inspect.isfunction(f), inspect.isbuiltin(f), getattr(f, "__name__", None)


@case((t(3), Keywords(n=3)), (t(3), Keywords(scale=2.0)))
def signatures(x, **options):
    signature = inspect.signature(typed)
    accepted = {k: v for k, v in options.items() if k in signature.parameters}
    bound = signature.bind(x, **accepted)
    bound.apply_defaults()
    return typed(*bound.args, **bound.kwargs) + 1, list(signature.parameters), str(signature)


@case((t(3),), (t(3, seed=1),))
def function_metadata(x):
    y = typed(x)
    facts = typed.__name__, typed.__doc__, typed.__defaults__, typed.__kwdefaults__, typed.__module__ == __name__
    return y + typed.__code__.co_argcount, facts, list(typed.__annotations__), typed.__code__.co_varnames


@case((t(3), t(3, dtype=torch.float64)), (t(3), torch.arange(3)), (t(3), t(3) > 0))
def type_of_tensors(x, other):
    if other.is_floating_point():
        x = x * other
    elif other.dtype == torch.bool:
        x = torch.where(other, x, -x)
    else:
        x = x + other
    return x.sin(), type(x) is torch.Tensor, x.type(), isinstance(x, torch.FloatTensor), torch.is_tensor(other), x.dtype


@case((t(3),), (t(3, seed=1),))
def identity(x):
    a, b = x, x
    c = x + 0
    values = [a, c]
    return id(a) == id(b), id(a) == id(c), a is not c, values.index(c) if values[0] is c else 1, c * 2


@case((t(3), "sin"), (t(3), "mul_by_two"), (t(3), "nothing"), steady="never")
def method_lookup_by_name(x, name):
    class Ops:
        def sin(self, v):
            return v.sin()

        def mul_by_two(self, v):
            return v * 2

    ops = Ops()
    method = getattr(ops, name, None)
    if method is None:
        return x - 1, [m for m in ("sin", "cos") if hasattr(ops, m)]
    return method(x) + 1, method.__self__ is ops, method.__func__ is Ops.__dict__[name]


@case((t(3), [1, "a", 2.0]), (t(3), [None, (1,)]))
def dispatch_on_type(x, values):
    table = {int: lambda v: x + v, str: lambda v: x * len(v), float: lambda v: x - v}
    results = [table.get(type(v), lambda v: x.exp())(v) for v in values]
    return results, [type(v).__name__ for v in values], {type(v): 1 for v in values}


@setup()
def module_is_inspected():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

    def run(x):
        for layer in module:
            if isinstance(layer, torch.nn.Linear):
                x = layer(x) * layer.in_features
            elif hasattr(layer, "inplace") and not layer.inplace:
                x = layer(x) + 1
        return x, type(module[0]).__name__, [n for n, _ in module.named_parameters()], len(list(module.buffers()))

    return run, [(t(2, 3),), (t(2, 3, seed=1),)]


@case((t(3), 3), (t(3), 4))
def sizes_and_identities_of_types(x, n):
    kinds = [type(v) for v in (n, n / 2, "s", x, [n], (n,), None, type)]
    y = x * kinds.count(int) + len(kinds)
    return y, kinds, kinds[0] is int, int.__name__, type(int) is type, bool.__bases__, int.__mro__[-1] is object


@case((t(3), 3), (t(3), "3"), (t(3), [3]))
def duck_typing(x, value):
    try:
        n = value + 1
    except TypeError:
        n = len(value)
    try:
        y = x * n.real
    except AttributeError:
        y = x
    return y.sin() + 1, n


def told(function, *args):
    try:
        return function(*args)
    except (AttributeError, TypeError) as error:
        return type(error), str(error)


class WithNew:
    def __new__(cls, *args):
        return object.__new__(cls)


class WithInit:
    def __init__(self, *args):
        pass


class WithNeither:
    pass


@case((t(3), 1), (t(3), 2))
def objects_made_with_arguments(x, given):
    made = [told(object.__new__, cls, *args) for cls in (WithNew, WithInit, WithNeither) for args in ((), (given,))]
    return x + 1, [value if isinstance(value, tuple) else type(value).__name__ for value in made]


class Slotted:
    __slots__ = ("held",)


@case((t(3), [1], {2: 3}, Slotted(), WithNeither()), (t(3), [2], {}, Slotted(), WithNeither()))
def attributes_that_an_object_cannot_have(x, *values):
    made = [], {}, {1}, Slotted(), WithNeither(), object(), 3
    found = [told(delattr, value, name) for value in (*values, *made) for name in ("other", "__doc__")]
    return x + 1, found, [told(setattr, value, "__doc__", 1) for value in (*values, *made)[:3]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_reflection(name, backend):
    check(__file__, name, backend)
