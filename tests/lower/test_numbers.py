"""Python numbers: those that the host knows, and those that come out of tensors."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from quickfuse.errors import Unsupported
from quickfuse.ir.kernel import KernelCall
from quickfuse.ir.loop import HostScalar
from quickfuse.ir.values import NumberMeta, TensorMeta
from quickfuse.lower import lower
from schedule_interpreter import Interpreter, assert_same, check, fused


def test_arithmetic_on_the_host() -> None:
    def function(x: torch.Tensor, a: float, b: float) -> Any:
        c = 1 - a * b
        d = (c**2 - abs(-b)) / 3.5 + 7 // a
        return x * d + c, c, d, -b

    schedule = check(function, torch.randn(5), 0.3, 1.7)
    assert [type(o) for o in schedule.program.outputs[1:]] == [HostScalar] * 3


def test_equal_numbers_are_computed_once() -> None:
    """So that parameters with the same formula share a kernel call."""

    def function(lr: float, *xs: torch.Tensor) -> None:
        for x in xs:
            x.mul_(1 - lr * 0.1)

    schedule = check(lambda *args: function(args[-1], *args[:-1]), *(torch.randn(n) for n in (3, 4, 5)), 0.5)
    (call,) = schedule.steps
    assert isinstance(call, KernelCall) and len(call.members) == 3 and len(call.scalars) == 1


def test_infinite_and_negative_constants() -> None:
    check(lambda x, a: (x * (a - math.inf), x + (-3.0 - a) ** 2, x - -a), torch.randn(3), 0.5)


def test_numbers_from_tensors() -> None:
    def function(x: torch.Tensor, step: torch.Tensor, lr: float) -> torch.Tensor:
        step += 1
        s = step.item()
        size = lr / (1 - 0.9**s)
        x.mul_(size).add_(x, alpha=-size)
        return x * (s // 2 + s % 2) - abs(-s)

    schedule = check(function, torch.randn(4, 3), torch.tensor(3.0), 0.1)
    # First whether Python refuses the power or the quotient, and nothing has changed yet; then `x` and `step`.
    assert [call.body.ndim for call in schedule.steps if isinstance(call, KernelCall)] == [0, 1, 0]


def test_a_number_is_what_the_tensor_held_then() -> None:
    def function(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        before = step.item()
        step.mul_(2)
        return x * before + step.item()

    check(function, torch.randn(4), torch.tensor(3.0))
    check(function, torch.randn(4), torch.tensor([[3.0]], dtype=torch.float64))


def test_python_arithmetic_is_in_64_bits() -> None:
    """`1 - 0.999 ** step` of a float32 step, as Python computes it."""

    def function(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return x * (1 - 0.999 ** step.item())

    check(function, torch.ones(1, dtype=torch.float64), torch.tensor(7.0), ulps=1)


def _graph_of(function: Any, *operands: Any, kind: type, tensor: torch.Tensor) -> GraphModule:
    """`y * function(x.item(), ...)` with None among `operands` for the item."""
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["val"] = TensorMeta(tensor.dtype, (), (), tensor.device)
    y.meta["val"] = TensorMeta(torch.float64, (2,), (1,), tensor.device)
    item = graph.call_method("item", (x,))
    item.meta["val"] = NumberMeta(type(tensor.item()), from_tensor=True)
    number = graph.call_function(function, tuple(item if o is None else o for o in operands))
    number.meta["val"] = NumberMeta(kind, from_tensor=True)
    result = graph.call_function(torch.mul, (y, number))
    result.meta["val"] = y.meta["val"]
    graph.output((result,))
    return GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    "function,operands",
    [
        (max, (None, 2.5)), (max, (3, None)), (min, (None, 1, 9)), (min, (-1.0, None)), (round, (None,)), (int, (None,)),
        (float, (None,)), (abs, (None,)), (math.sqrt, (None,)), (math.exp, (None,)), (math.log, (None,)),
        (operator.mod, (None, 2)), (operator.floordiv, (None, 2)), (operator.truediv, (1, None)),
        (operator.lt, (None, 3)), (operator.eq, (None, 4)), (operator.not_, (None,)), (operator.pos, (None,)),
        (operator.pow, (None, 2)), (bool, (None,)), (operator.iadd, (None, 2)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [torch.tensor(3.5), torch.tensor(4), torch.tensor(2.5, dtype=torch.bfloat16)], ids=str)
def test_functions_of_a_number_from_a_tensor(function: Any, operands: tuple[Any, ...], value: torch.Tensor) -> None:
    expected = function(*(value.item() if o is None else o for o in operands))
    gm = _graph_of(function, *operands, kind=type(expected), tensor=value)
    y = torch.tensor([1.0, -2.0], dtype=torch.float64)
    (result,) = Interpreter(fused(lower(gm.graph)), ["x", "y"])(value, y)
    assert_same(result, y * expected)


@pytest.mark.parametrize(
    "function,operands",
    [(operator.mod, (3, None)), (operator.floordiv, (None, 0)), (operator.pow, (2, None)), (divmod, (None, 2))],
)
def test_what_python_may_refuse(function: Any, operands: tuple[Any, ...]) -> None:
    """Division of integers by zero is an error, negative powers of them are floats: left to Python."""
    gm = _graph_of(function, *operands, kind=int, tensor=torch.tensor(4))
    with pytest.raises(Unsupported):
        lower(gm.graph)


def test_a_tensor_where_a_number_is_expected() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        return [x.add(y, alpha=value), x.addcmul(y, y, value=value), torch.full_like(x, value)]

    check(function, torch.randn(4), torch.randn(4), torch.tensor(0.3))


def test_numbers_as_arguments_of_pytorch() -> None:
    def function(x: torch.Tensor, p: float) -> torch.Tensor:
        return torch.renorm(x + 1, p=p * 2, dim=0, maxnorm=p)

    check(function, torch.randn(4, 3), 1.25)
    check(lambda x, s: torch.renorm(x, s.item(), 0, 1.0), torch.randn(4, 3), torch.tensor(1.5))


def test_stacked_numbers() -> None:
    """As `foreach` optimizers give `addcdiv` the step sizes while compiling."""

    def function(xs: list[torch.Tensor], steps: list[torch.Tensor]) -> Any:
        sizes = torch.stack([1 / step for step in steps])
        torch._foreach_addcdiv_(xs, xs, [x.exp() for x in xs], sizes)
        return sizes[1] * xs[0]

    xs, steps = [torch.randn(n) for n in (3, 4, 5)], [torch.tensor(float(n)) for n in (1, 2, 3)]
    schedule = check(function, xs, steps)
    assert all(isinstance(step, KernelCall) for step in schedule.steps)
    check(lambda xs, steps: (function(xs, steps), torch.stack(steps), torch.stack(steps).sum()), xs, steps)
    check(lambda xs, steps: torch.stack(steps).mul_(2)[0] * xs[0], xs, steps)
