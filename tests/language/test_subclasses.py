"""Tensor subclasses: plain ones, with `__torch_function__`, with data of their own, parameters, modes."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from language.harness import BACKENDS, case, check, names, setup, t


class Named(torch.Tensor):
    """A subclass that changes nothing but has a method."""

    def doubled(self):
        return self * 2


class Logged(torch.Tensor):
    """Writes down which functions it meets."""

    seen: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Tagged(torch.Tensor):
    """Carries a tag from inputs to results."""

    @staticmethod
    def __new__(cls, data, tag="none"):
        made = torch.Tensor._make_subclass(cls, data)
        made.tag = tag
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        tags = [a.tag for a in args if isinstance(a, Tagged) and hasattr(a, "tag")]
        if isinstance(result, Tagged) and tags:
            result.tag = "+".join(tags)
        return result


class Meters(torch.Tensor):
    """Adds only to its own kind."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.add and not all(issubclass(k, Meters) for k in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result.as_subclass(cls) if isinstance(result, torch.Tensor) else result


class Masked(torch.Tensor):
    """A wrapper of two tensors, with rules for operators below autograd."""

    @staticmethod
    def __new__(cls, data, mask):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)

    def __init__(self, data, mask):
        self.data_, self.mask_ = data, mask

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        mask = next(a.mask_ for a in args if isinstance(a, Masked))
        out = func(*[a.data_ if isinstance(a, Masked) else a for a in args], **(kwargs or {}))
        return Masked(out, mask)


class CountingMode(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", "?"))
        return func(*args, **(kwargs or {}))


class DoublingMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.ops.aten.sin.default else out


@case(lambda: (t(3).as_subclass(Named),), lambda: (t(3, seed=1).as_subclass(Named),), lambda: (t(3),))
def plain_subclass_argument(x):
    y = x.doubled() + 1 if isinstance(x, Named) else x * 3
    return y.sin(), type(y).__name__, type(y + torch.ones(3)).__name__


@case((t(3),), (t(3, seed=1),))
def subclass_made_inside(x):
    y = x.as_subclass(Named)
    z = y.doubled() - x
    return z, z.as_subclass(torch.Tensor) + 1, isinstance(z, Named)


@case(lambda: (t(3).as_subclass(Logged), t(3)), lambda: (t(3), t(3, seed=1).as_subclass(Logged)), steady="later")
def torch_function_sees_every_call(x, y):
    Logged.seen.clear()
    z = torch.sin(x + y) * 2
    z.add_(1)
    return z, list(Logged.seen), z.shape


@case(lambda: (Tagged(t(3), "a"), t(3)), lambda: (Tagged(t(3), "b"), Tagged(t(3, seed=1), "c")))
def tags_travel(x, y):
    z = x * 2 + y
    return z, z.tag, torch.exp(z).tag


@case(lambda: (t(3).as_subclass(Meters), t(3).as_subclass(Meters)), lambda: (t(3).as_subclass(Meters), t(3)))
def not_implemented_for_other_types(x, y):
    z = x * 2
    try:
        return x.add(y) + z
    except TypeError as error:
        return z, "no implementation" in str(error)


@case(lambda: (t(3), t(3) > 0), lambda: (t(3, seed=1), t(3) > 1))
def wrapper_subclass(x, mask):
    y = torch.sin(Masked(x, mask) * 2) + 1
    return y.data_, y.mask_, type(y).__name__, y.data_ * 3


@case(lambda: (torch.nn.Parameter(t(3)), t(3)), lambda: (torch.nn.Parameter(t(3, seed=1)), t(3, seed=2)))
def parameters_are_subclasses(p, x):
    y = p * x + 1
    q = torch.nn.Parameter(y.detach() * 2)
    return y, q, isinstance(p, torch.nn.Parameter), type(y) is torch.Tensor, isinstance(q, torch.Tensor)


@case((t(3),), (t(3, seed=1),))
def function_mode_inside(x):
    y = x + 1
    with CountingMode() as mode:
        z = torch.sin(y) * 2
    return z - 1, mode.names


@case((t(3),), (t(3, seed=1),))
def dispatch_mode_inside(x):
    y = x + 1
    with DoublingMode():
        z = torch.sin(y)
    return z * 3


@setup()
def default_device_context():
    def run(x):
        with torch.device("cpu"):
            y = torch.ones(3) * 2
        return x * y + 1

    return run, [(t(3),), (t(3, seed=1),)]


@case(lambda: (t(3, 3).to_sparse(),), lambda: (t(3, 3, seed=1).to_sparse(),))
def sparse_argument(x):
    y = x.to_dense() * 2
    return torch.sparse.mm(x, y) + 1, x.is_sparse, x


@case((t(3),), (t(3, seed=1),))
def meta_tensors(x):
    ghost = torch.empty(3, 4, device="meta") + 1
    return x * ghost.shape[1], ghost.shape, ghost.device.type, x.sum() + ghost.numel()


class Unit(torch.Tensor):
    """Knows its unit, and that squares of metres are not metres."""

    unit = "m"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func in (torch.mul, torch.Tensor.mul) and isinstance(args[1], cls):
            result.power = 2
        return result


@case(lambda: (t(3, 4).as_subclass(Unit), t(3, 4)), lambda: (t(3, 4, seed=1).as_subclass(Unit), t(3, 4)), graphs=1)
def torch_function_that_decides(x, y):
    a = x * 2 + y
    b = a * x
    c = torch.cat([a, x]).sum(0)
    d = -x[0] / 2
    x[1] = 5.0
    return a, b, c, d, type(a).__name__, type(b).__name__, isinstance(c, Unit), a.unit, b.power


@case(lambda: (t(3, grad=True).as_subclass(Named), t(3)), lambda: (t(3, seed=1).as_subclass(Named), t(3, seed=2)))
def plain_subclass_in_many_operators(x, y):
    a = torch.cat([x, y]) @ torch.stack([y, x]).T.reshape(6)
    b, c = (x * y).split([1, 2])
    d = F.softmax(x, -1) + y.as_subclass(Named).doubled()
    e = x.detach().clone()
    e.mul_(2)
    return a, b, c, d, e, [type(v).__name__ for v in (a, b, c, d, e, x.real, x.shape)]


def scaled_product(a, b):
    """A function that asks the classes of its arguments, as PyTorch's own do."""
    if torch.overrides.has_torch_function((a, b)):
        return torch.overrides.handle_torch_function(scaled_product, (a, b), a, b)
    return a * b + 1


class Answering:
    """No tensor, but what PyTorch's functions do with it, it says."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func.__name__, [type(a).__name__ for a in args]


@case(
    lambda: (t(3).as_subclass(Logged), t(3)), lambda: (t(3), t(3, seed=1).as_subclass(Logged)), lambda: (t(3), t(3)),
    lambda: (t(3).as_subclass(Named), t(3)), lambda: (Answering(), t(3)), steady="never",
)  # fmt: skip
def functions_that_ask_the_classes_of_arguments(x, y):
    Logged.seen.clear()
    asked = torch.overrides.has_torch_function_unary(x), torch.overrides.has_torch_function_variadic(x, y)
    return scaled_product(x, y), F.relu(x), list(Logged.seen), asked


@case(lambda: (t(3).as_subclass(Logged),), lambda: (t(3).as_subclass(Named),), lambda: (t(3),), steady="later")
def classes_that_are_not_asked(x):
    Logged.seen.clear()
    with torch._C.DisableTorchFunctionSubclass():
        inside = torch.sin(x) * 2, torch.overrides.has_torch_function((x,))
    return inside, torch.sin(x) * 2, list(Logged.seen)


class Counted(torch.Tensor):
    """Counts the functions of PyTorch that led to it, which are called as if it were a plain tensor."""

    def __new__(cls, data, count):
        made = data.as_subclass(cls)
        made.count = count
        return made

    def __init__(self, data, count):
        pass

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and isinstance(args[0], Counted):
            return cls(result, args[0].count + 1)
        return result


class Apart(torch.Tensor):
    @staticmethod
    def __new__(cls, data, scale=1):
        return torch.Tensor._make_subclass(cls, data)

    def __init__(self, data, scale=1):
        self.scale = scale


@case((t(3, grad=True),), (t(3, seed=1, grad=True),), graphs=1)
def back_to_a_plain_tensor(x):
    y = Counted(x * 2, 1).sin() * 2
    return y.count, torch.Tensor.as_subclass(y, torch.Tensor), y.as_subclass(torch.Tensor) * 2, type(y.cos()).__name__


@case((t(3, grad=True),), (t(3, seed=1, grad=True),), (t(3, seed=2),), graphs=1)
def made_apart_from_autograd(x):
    y = Apart(x * 2, 3)
    y.add_(1)
    return y.sin() * y.scale, type(y + x).__name__, y.requires_grad, y + x, isinstance(y, Apart)


@case((t(3, grad=True),), (t(3, seed=1, grad=True),))
def made_of_an_argument(x):
    y = Apart(x)
    return y * 2, torch.Tensor._make_subclass(Apart, x.detach(), True) * 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_subclasses(name, backend):
    check(__file__, name, backend)
