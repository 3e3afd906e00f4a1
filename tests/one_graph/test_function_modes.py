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


def of_device(x):
    with torch.device("cpu") as device:
        y = torch.ones(2) * x + torch.arange(2) + torch.tensor([1.0, 2.0]) + torch.full((2,), 3, device=None)
        with torch.device(x.device):
            y = y + torch.as_tensor(2) * torch.eye(2, device="cpu")
        y = torch.nn.functional.dropout(y, 0.5) + torch.nn.functional.one_hot(torch.arange(2)) + torch.rand(2)
    return y + torch.zeros(2), device, y.device


def of_device_in_a_loop(x):
    for k in range(3):
        with torch.device("cpu"):
            if k == 1:
                continue
            x = x + torch.ones(2) * k
    return x


def of_device_with_an_exception(x):
    try:
        with torch.device("cpu"):
            x = x + torch.ones(2)
            raise ValueError("in the block")
    except ValueError:
        x = x * torch.ones(2)
    return x


def of_device_left_by_return(x):
    with torch.device("cpu"):
        return torch.nn.Linear.reset_parameters, torch.ones(2) + x


def of_device_with_a_break(x):
    x = x * 2
    with torch.device("cpu"):
        x = x + torch.ones(2)
        known = torch._C._len_torch_function_stack(), torch.get_default_device(), x.tolist()
        x = x + torch.ones(2)
    return x * 2, known, torch.get_default_device()


def of_device_that_is_asked(x):
    with torch.device("cpu"):
        known = torch.overrides.has_torch_function((x,)), torch._C._len_torch_function_stack()
        layer = torch.nn.Linear(2, 2)
    return layer(x).shape, known


def of_meta(x):
    with torch.device("meta"):
        y = torch.ones(2)
    return x * 2, y.device, y.shape


def of_device_asked_in_a_generator(x):
    def parts():
        with torch.device("cpu"):
            yield torch.ones(2)
            yield torch.ones(2) * 2

    return [x * part + torch.zeros(2) for part in parts()], next(parts()) + x


IN_ONE_GRAPH = [of_device, of_device_in_a_loop, of_device_with_an_exception, of_device_left_by_return]
IN_PARTS = [of_device_with_a_break, of_device_that_is_asked, of_meta, of_device_asked_in_a_generator]


@pytest.mark.parametrize("function", [*IN_ONE_GRAPH, *IN_PARTS])
def test_blocks_of_a_device(function):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    if function in IN_ONE_GRAPH:
        assert str(quickfuse.compile(function, fullgraph=True)(x))
    compiled = quickfuse.compile(function)
    for around in (None, "cpu", "meta", None):
        torch.set_default_device(around)
        try:
            for _ in range(2):
                torch.manual_seed(1)
                wanted = _outcome(function, x)
                torch.manual_seed(1)
                assert _outcome(compiled, x) == wanted
                assert torch._C._len_torch_function_stack() == (around is not None)
        finally:
            torch.set_default_device(None)
    assert torch._C._len_torch_function_stack() == 0


def _outcome(function, x):
    try:
        return str(function(x))
    except (RuntimeError, NotImplementedError) as error:
        return type(error).__name__


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
