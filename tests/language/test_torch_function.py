"""Objects that are no tensors and say in Python what PyTorch's functions do with them (`__torch_function__`)."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary

from language.harness import BACKENDS, case, check, names, setup, t

RULES = {}


def rule(function):
    def register(implementation):
        RULES[function] = implementation
        return implementation

    return register


class Multiple:
    """A multiple of the identity matrix: only what has a rule can be done with it."""

    def __init__(self, size, factor):
        self.size, self.factor = size, factor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in RULES or not all(issubclass(kind, (torch.Tensor, Multiple)) for kind in types):
            return NotImplemented
        return RULES[func](*args, **(kwargs or {}))


@rule(torch.matmul)
def product(left, right):
    return left.factor * right if isinstance(left, Multiple) else left * right.factor


@rule(torch.Tensor.add)
def total(left, right):
    return left + right.factor * torch.eye(right.size)


@rule(torch.stack)
def combined(parts, dim=0):
    return Multiple(parts[0].size, sum(part.factor for part in parts))


@rule(F.relu)
def positive(part, inplace=False):
    return Multiple(part.size, max(part.factor, 0))


class Logged:
    """A tensor with a history of what was done with it."""

    def __init__(self, tensor, history=()):
        self.tensor, self.history = tensor, history

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        history = ()

        def without(value):
            nonlocal history
            if isinstance(value, Logged):
                history += value.history
                return value.tensor
            return [without(element) for element in value] if isinstance(value, list) else value

        args, kwargs = [without(value) for value in args], {name: without(value) for name, value in (kwargs or {}).items()}
        return cls(func(*args, **kwargs), (*history, (getattr(func, "__name__", "?"), [kind.__name__ for kind in types])))


class Special(Logged):
    pass


class Instead:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise ValueError(f"no {func.__name__}")


SQUARES = [(t(4, 4),), (t(4, 4, seed=1),), (t(4, 4, seed=2, grad=True),)]


@case(*SQUARES, graphs=1)
def rules_for_functions(x):
    double = Multiple(4, 2)
    parts = F.relu(Multiple(4, -3)), torch.stack([double, double])
    return torch.matmul(double, x), torch.matmul(x, double), x + double, x.add(double), [part.factor for part in parts]


@case()
def a_function_without_a_rule(x):
    try:
        torch.sin(Multiple(4, 2))
    except TypeError as error:
        return str(error).partition(":")[0], x + 1


@case(graphs=1)
def functions_in_c_and_in_python(x):
    a = torch.sin(Logged(x))
    b = F.relu(torch.add(x, a))
    c = torch.stack([b, Logged(x)])
    d = F.dropout(c, 0.0, training=False)
    return d.tensor, d.history, F.softmax(d, dim=-1).tensor, F.layer_norm(Logged(x), x.shape[1:]).history


@case(graphs=1)
def operands_by_name_and_in_lists(x):
    cat = torch.cat([Logged(x), Logged(x + 1)], dim=1)
    total = torch.sum(input=Logged(x), dim=0, keepdim=True)
    chosen, zeros = torch.where(x > 0, x, Logged(x * 2)), torch.zeros_like(Logged(x))
    return cat.tensor, cat.history, total.tensor, chosen.tensor, zeros.tensor


@case(graphs=1)
def operators_of_tensors(x):
    parts = x == Logged(x), x * Logged(x), x @ Logged(x.t()), x / Logged(x + 9), x.maximum(Logged(x))
    y = x * 2
    changed = y.add_(Logged(x))
    return [(part.tensor, part.history) for part in parts], changed.tensor is y, y


@case(*SQUARES, graphs=1)
def gradients_through_them(x):
    return torch.mul(torch.sin(Logged(x * 2)), 3).tensor


def doubled(x, other=None):
    if has_torch_function((x, other)):
        return handle_torch_function(doubled, (x, other), x, other=other)
    return x * 2


@case(graphs=1)
def functions_of_their_own(x):
    asked = has_torch_function((x,)), has_torch_function((Logged(x), 1)), has_torch_function_unary(Logged(x))
    return doubled(x), doubled(Logged(x)).history, doubled(x, Logged(x)).history, asked


@case()
def classes_that_derive(x):
    alike, mixed = torch.add(Special(x), Special(x)), torch.add(Logged(x), Special(x))
    return type(torch.sin(Special(x))).__name__, alike.history, mixed.history


@case()
def with_a_subclass_of_tensors(x):
    return torch.add(x.as_subclass(Named), Logged(x)).history


class Named(torch.Tensor):
    pass


@case()
def an_exception(x):
    return torch.sin(x) + torch.cos(Instead())


@setup()
def given_to_a_module():
    layer = nn.Linear(4, 4)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)

    def run(x):
        y = layer(x)
        return (y.tensor, y.history) if isinstance(y, Logged) else y

    return run, [(Logged(t(3, 4)),), (Logged(t(3, 4, seed=1), ("before",)),), (t(3, 4),)]


@setup(steady="never")
def a_rule_that_changes():
    rules = {torch.sin: lambda x: x.tensor + 1}

    class Ruled(Logged):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return rules[func](*args)

    def run(x, factor):
        y = torch.sin(Ruled(x))
        rules[torch.sin] = lambda z: z.tensor * factor
        return y

    return run, [(t(3, 4), 2), (t(3, 4), 3), (t(3, 4), 4)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_torch_function(name, backend):
    check(__file__, name, backend)
