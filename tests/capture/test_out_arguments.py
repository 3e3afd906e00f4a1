"""`out=` of another type than the result, of operators that convert to it, refuse it, or compute in it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "all": lambda x, out: torch.all(x, 0, out=out),
    "any": lambda x, out: torch.any(x, 0, out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "std": lambda x, out: torch.std(x, 0, out=out),
    "take": lambda x, out: torch.take(x, torch.tensor([0, 2, 1]), out=out),
    "cummax": lambda x, out: torch.cummax(x[0], 0, out=(out, torch.empty(3, dtype=torch.int64)))[0],
    "normal": lambda x, out: torch.normal(x[0], 1.0, out=out),
    "sin": lambda x, out: torch.sin(x[0], out=out),
    "kron": lambda x, out: torch.kron(x[0], x[0, :1], out=out),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bool, torch.int64])
@pytest.mark.parametrize("operand", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", _CALLS)
def test_out_of_another_type(name: str, operand: torch.dtype, dtype: torch.dtype, gradients: bool) -> None:
    w = torch.ones(3, requires_grad=gradients)

    def function(x: Any, out: Any) -> Any:
        return _CALLS[name](x, out), out, (w * 2).sum()

    given: list[Any] = []
    for called in (function, quickfuse.compile(function)):
        torch.manual_seed(0)
        x = torch.randn(4, 3).to(operand)
        try:
            given.append([t.detach().clone() for t in called(x, torch.zeros(3, dtype=dtype))])
        except RuntimeError as error:
            given.append(str(error))
    if isinstance(given[0], str) or isinstance(given[1], str):
        assert given[0] == given[1]
    else:
        for expected, got in zip(*given, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0 if name == "normal" else 1e-6)
