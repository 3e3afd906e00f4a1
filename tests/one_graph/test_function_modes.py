"""PyTorch's mode that keeps indices of one element tensors, around masks that are made by vmap."""

import pytest
import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.overrides import TorchFunctionMode

import quickfuse


def mask_of(function, x):
    for axes in ((None, None, 0), (None, 0, None), (0, None, None)):
        function = torch.vmap(function, in_dims=axes)
    with TransformGetItemToIndex():
        return function(torch.arange(2), torch.arange(2), torch.arange(2)), x * 2


def allowed(x):
    return mask_of(lambda batch, row, column: (x[batch, column] > 1) & (row >= column) & (x[0, row] < 4), x)


def with_other_indices(x):
    with TransformGetItemToIndex():
        y = x[torch.tensor(1)] + x[0] + x[:, 1] + x[None, ..., 0][0]
        return y, x[x > 1].sum()


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("function", [allowed, with_other_indices])
def test_like_eager(backend, function):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    compiled = quickfuse.compile(function, backend=backend, fullgraph=function is allowed)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), function(x))
        assert torch._C._len_torch_function_stack() == 0


def test_other_modes_see_every_call():
    class Count(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    def f(x):
        with Count() as count:
            y = (x + 1).sin()[0] * x.shape[0]
        return y, count.names

    x = torch.ones(2, 2)
    compiled = quickfuse.compile(f)
    for _ in range(3):
        (y, names), (wanted, wanted_names) = compiled(x), f(x)
        torch.testing.assert_close(y, wanted)
        assert names == wanted_names
