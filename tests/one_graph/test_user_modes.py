"""The program's own `TorchFunctionMode`s, which see every call of PyTorch's functions and every attribute that is read."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

import quickfuse


class Log(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, types, len(args), sorted(kwargs or {})))
        return func(*args, **(kwargs or {}))


class CosForSin(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.sin, torch.Tensor.sin):
            return torch.cos(*args)
        if func is F.relu:
            return args[0] * 100
        return func(*args, **(kwargs or {}))


class Scaled(TorchFunctionMode):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made * self.factor if func is torch.sin else made


LAYER, NORM, DROP = torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Dropout(0.0)


def changed(x):
    y = x.clone()
    y += 1
    y *= 2
    y[0] = 3.0
    y[1] += 1
    return y.mul_(2)


def without_gradients(x):
    with torch.no_grad():
        return x * 2


def hung_on(x):
    y = x.clone()
    y.factor = 3
    return y * y.factor


SEEN = {
    "functions": lambda x: torch.sin(x) + 1,
    "methods": lambda x: x.sin().add(1, alpha=2) * 2 - x,
    "attributes": lambda x: x.T @ x * x.shape[0] + x.to(x.dtype) * (x.requires_grad + x.ndim) + x.data,
    "sizes": lambda x: x.size(0) * x + x.numel() + x.dim() + x.is_contiguous(),
    "indices": lambda x: x[0] + x[:, 1] + x[None, 1:, ..., 0][0, 0],
    "layers": lambda x: NORM(DROP(F.relu(LAYER(x)))),
    "loss": lambda x: F.cross_entropy(x.softmax(1), torch.tensor([0, 1, 2])) + F.mse_loss(x, x * 2),
    "constructors": lambda x: torch.zeros(3) + torch.ones(3, 3) + torch.arange(3) + torch.tensor([1.0, 2.0, 3.0]) * x,
    "others": lambda x: torch.as_tensor([1.0, 2.0, 3.0]) * torch.full((3,), 2.0) + torch.zeros_like(x) + x.new_ones(3),
    "lists": lambda x: torch.cat([x, torch.stack([x[0], x[1]])]).sum() + torch.broadcast_tensors(x, x[0])[1],
    "numbers first": lambda x: 1 / x + 2**x - (3 - x) + abs(x) - (-x),
    "changes": changed,
    "grad mode": without_gradients,
    "hung on": hung_on,
    "comparisons": lambda x: torch.where(x > 0.7, x, -x) + (x == x) + x.max(1).values,
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "overloads": lambda x: torch.ops.aten.sin(x) + torch.ops.aten.cos.default(x),
    "questions": lambda x: x * isinstance(x, torch.Tensor) + torch.is_tensor(x) + torch.is_floating_point(x),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x) + torch.norm(x) + x.std(),
}
#: What ends the graph in front of the block.
IN_PYTHON = {
    "iteration": lambda x: sum(row for row in x),
    "length": lambda x: x * len(x),
    "truth": lambda x: x * 2 if bool((x > 0).all()) else x,
    "contents": lambda x: x * x.tolist()[0][0] + x.sum().item(),
    "membership": lambda x: x * (1.0 in x),
    "NumPy": lambda x: x * float(x.detach().numpy().sum()),
    "seeds": lambda x: torch.rand(3, generator=torch.Generator().manual_seed(0)) + x,
    "a break": lambda x: (x * 2, quickfuse.graph_break(), x.sin())[2],
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", [*SEEN, *IN_PYTHON])
def test_what_a_mode_sees(name, gradients):
    program = SEEN.get(name) or IN_PYTHON[name]

    def f(x):
        with Log() as log:
            y = program(x)
        return y.sin(), log.seen

    compiled = quickfuse.compile(f, fullgraph=name in SEEN)
    for _ in range(3):
        x = torch.rand(3, 3, requires_grad=gradients)
        (wanted, seen), (found, noted) = f(x), compiled(x)
        assert noted == seen
        assert_close(found, wanted)
        assert torch._C._len_torch_function_stack() == 0
        if gradients and wanted.requires_grad:
            one, other = (torch.autograd.grad(y.sum(), x)[0] for y in (found, wanted))
            assert_close(one, other, rtol=1e-4, atol=1e-4)


def replaced(x):
    with CosForSin():
        y = torch.sin(x) + x.sin() + F.relu(x)
    return y + torch.sin(x)


def nested(x):
    with Log() as outer, Scaled(3.0), Log() as inner:
        y = torch.sin(x) * 2
    return y, [func for func, *_ in outer.seen], [func for func, *_ in inner.seen]


def from_outside(x, mode=Scaled(5.0)):
    with mode:
        y = torch.sin(x)
    mode.factor = 2.0
    with mode:
        z = torch.sin(x)
    mode.factor = 5.0
    return y, z


def of_numbers(x, n=3, factor=0.25):
    with Scaled(factor):
        return torch.sin(x * n) + x.sum(n - 3)


def in_a_loop(x):
    for k in range(4):
        with Scaled(float(k)):
            if k == 1:
                continue
            x = torch.sin(x)
            if k == 3:
                break
    return x


def left_by_an_exception(x):
    try:
        with Scaled(2.0):
            x = torch.sin(x)
            raise ValueError("in the block")
    except ValueError:
        return torch.sin(x)


class Refuses(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.cos:
            raise KeyError("cos")
        return func(*args, **(kwargs or {}))


def refused(x):
    try:
        with Refuses():
            x = torch.sin(x)
            x = torch.cos(x)
    except KeyError as error:
        return x * 2, str(error), torch.cos(x)


class Again(TorchFunctionMode):
    """Sees what it calls itself, once."""

    def __init__(self):
        super().__init__()
        self.depth = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.depth:
            return func(*args, **(kwargs or {})) + 1 if func is torch.sin else func(*args, **(kwargs or {}))
        self.depth += 1
        try:
            with self:
                return func(*args, **(kwargs or {}))
        finally:
            self.depth -= 1


def entered_again(x):
    with Again():
        return torch.sin(x) * 2


def parts(value):
    return value if isinstance(value, tuple) else (value,)


def _equal(one, other):
    assert one == other


PROGRAMS = [
    replaced, nested, from_outside, of_numbers, in_a_loop, left_by_an_exception, refused, entered_again,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("function", PROGRAMS)
def test_what_a_mode_does(function, backend):
    compiled = quickfuse.compile(function, backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.rand(3, 3)
        for one, other in zip(parts(compiled(x)), parts(function(x)), strict=True):
            assert_close(one, other) if isinstance(one, torch.Tensor) else _equal(one, other)
        assert torch._C._len_torch_function_stack() == 0


class Silent(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return NotImplemented


class Breaks(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        quickfuse.graph_break()
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    pass


def test_left_to_python():
    def silent(x):
        with Silent():
            return torch.sin(x)

    def broken(x):
        x = x * 2
        with Breaks():
            x = torch.sin(x)
        return torch.cos(x)

    def of_a_class(x):
        with Log() as log:
            y = torch.sin(x.as_subclass(Own)).as_subclass(torch.Tensor)
        return y, log.seen

    def around(x):
        with Scaled(2.0), torch.device("cpu"):
            return torch.sin(x) + torch.ones(3)

    x = torch.rand(3)
    for function in (broken, of_a_class, around):
        found, wanted = quickfuse.compile(function)(x), function(x)
        assert str(found) == str(wanted)
    for function in (silent, quickfuse.compile(silent)):
        with pytest.raises(TypeError):
            function(x)
    assert torch._C._len_torch_function_stack() == 0


def test_a_training_step_in_a_mode():
    def f(model, x):
        with Log() as log:
            loss = model(x).square().mean()
        loss.backward()
        return loss, [func for func, *_ in log.seen]

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)), torch.randn(5, 3)
    gradients = []
    for function in (f, quickfuse.compile(f, fullgraph=True)):
        model.zero_grad()
        gradients.append((function(model, x), [parameter.grad.clone() for parameter in model.parameters()]))
    assert gradients[0][0][1] == gradients[1][0][1]
    assert_close(gradients[0][0][0], gradients[1][0][0])
    assert_close(gradients[0][1], gradients[1][1])


def test_bound_methods_of_builtin_classes():
    """Those that change what they are bound to."""

    def function(x):
        numbers, names, known = [1, 2, 3], [0, 1, 2], {"a": 1}
        numbers.__init__()
        names.__setitem__(1, "here")
        known.__delitem__("a")
        grown = [5, 6].__imul__(2)
        return numbers, names, known, grown, x + len(numbers)

    x = torch.ones(2)
    assert str(quickfuse.compile(function)(x)) == str(function(x))
