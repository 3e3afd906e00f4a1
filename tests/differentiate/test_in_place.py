"""Operators that write their results to a tensor they are given, in graphs with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quickfuse

TYPES = (torch.float32, torch.float16, torch.int64, torch.int32, torch.complex64)


@pytest.mark.filterwarnings("ignore:.*discards the imaginary part")
@pytest.mark.parametrize("name", ["mean", "sum", "prod", "nansum", "cumsum", "softmax", "log_softmax", "argmax", "var"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_results_in_given_memory(name: str, dtype: torch.dtype) -> None:
    """A reduction computes in the type of the tensor that gets the result; it is asked for no device, as `eye` is."""
    function = getattr(torch, name)
    for out in TYPES:

        def program(a: torch.Tensor, b: torch.Tensor, out: torch.dtype = out) -> Any:
            result = torch.zeros((2, 3) if name in ("cumsum", "softmax", "log_softmax") else 3, dtype=out)
            function(a, 0, out=result)
            return result, b * 2

        a, b = torch.arange(6).reshape(2, 3).to(dtype), torch.ones(2, requires_grad=True)
        try:
            expected = program(a, b)
        except (RuntimeError, TypeError) as error:  # which one it is for complex numbers depends on the version
            with pytest.raises(type(error)):
                quickfuse.compile(program)(a, b)
        else:
            torch.testing.assert_close(quickfuse.compile(program)(a, b), expected)


@pytest.mark.parametrize("shape", [(0,), (9,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_results_that_no_version_counts(shape: tuple[int, ...], dtype: torch.dtype, autocast: bool) -> None:
    """`kron` writes to `out` through a view that shares no count of changes with it."""

    def program(a: torch.Tensor, b: torch.Tensor, given: torch.Tensor) -> Any:
        made = torch.ones(shape, dtype=dtype)
        with torch.autocast("cpu", enabled=autocast):
            torch.kron(a, b, out=made)
            torch.kron(b, a, out=given)
        return made, given + 1

    given, expected = torch.zeros(9), torch.zeros(9)
    a, b = torch.arange(3.0), torch.arange(3.0) - 1
    torch.testing.assert_close(quickfuse.compile(program)(a, b, given), program(a, b, expected))
    torch.testing.assert_close(given, expected)


def test_views_that_are_not_declared() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        with torch.autocast("cpu"):
            torch.ops.aten._unsafe_view(y, (2, 2)).mul_(3)
        return y

    torch.testing.assert_close(quickfuse.compile(program)(torch.arange(4.0)), program(torch.arange(4.0)))


@pytest.mark.parametrize("reads", [False, True])
def test_a_detached_result_with_gradients_of_its_own(reads: bool) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x * 2
        z = y.detach().mul_(2)
        z.addcmul_(w, w)
        return (y, z, y[0] + 1) if reads else (y, z)

    found = []
    for function in (program, quickfuse.compile(program)):
        x, w = torch.ones(3, requires_grad=True), torch.arange(3.0).requires_grad_()
        results = function(x, w)
        sum((k + 1) * t.sum() for k, t in enumerate(results)).backward()
        found.append(([t.detach() for t in results], [t.requires_grad for t in results], x.grad, w.grad))
    torch.testing.assert_close(found[1], found[0])


def test_a_detached_result_that_is_made_a_leaf() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y.detach().requires_grad_(), y[0] + 1

    y, leaf, part = quickfuse.compile(program, fullgraph=True)(torch.ones(3, requires_grad=True))
    assert leaf.is_leaf and leaf.requires_grad and y.grad_fn is not None and part.requires_grad
