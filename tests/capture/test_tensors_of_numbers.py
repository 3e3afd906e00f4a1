"""Tensors that are made of numbers and of tensors with a number each."""

import numpy as np
import pytest
import torch

import quickfuse
from differential import check

PROGRAMS = {
    "a tensor and a number": lambda x, t: torch.tensor([x.mean(), t, 1.0]) * 2,
    "nested": lambda x, t: torch.tensor([[x[0, 0], t], (2, x[1].sum())]) @ x,
    "types": lambda x, t: [
        torch.tensor([x[0, 0].half(), 1.0]), torch.tensor([x.double().sum(), t]), torch.tensor([(x > 0).sum(), 3]),
        torch.tensor([(x > 0).any(), 3]), torch.tensor([(x > 0).sum(), 1.5]), torch.tensor([x[0, 0], (x > 0).sum(), True]),
    ],
    "a type that is asked for": lambda x, t: [
        torch.tensor([x[0, 0].double(), t], dtype=torch.float32), torch.tensor([x[0, 0], t], dtype=torch.float64),
        torch.tensor([(x > 0).sum(), 1], dtype=torch.float32), torch.tensor([(x > 0).any(), 1], dtype=torch.long),
        torch.as_tensor([x[0, 0], t]), torch.tensor([x.min(), x.max(), t], device="cpu"),
    ],
    "gradients begin": lambda x, t: torch.tensor([x[0, 0], t], requires_grad=True).sin().sum(),
    "of another tensor's type": lambda x, t: [
        x.new_tensor([t, 1]), x.new_tensor(t), x.long().new_tensor([1, 2]), x.new_tensor([x[0, 0], t]),
        x.new_tensor([t, 0], dtype=torch.float64), x.new_tensor(((t, 1.0), (2.0, t))) @ x, x.new_tensor(True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_eager_in_one_graph(name):
    compiled = check(PROGRAMS[name], *[(torch.randn(2, 2), t) for t in (0.5, 1.5, -2.0, 3.0)])
    assert len(compiled.specialisations) <= 2
    if name != "gradients begin":
        assert not any(s.without_kernels for s in compiled.specialisations)
        quickfuse.compile(PROGRAMS[name], fullgraph=True)(torch.randn(2, 2), 0.5)


HALF, BYTE = np.float16(0.1), np.uint8(200)
BYTES = np.arange(-20, 80)


def positions(x, rate):
    angles = torch.tensor([1 / np.power(10000, 2 * k / 8) for k in range(4)])
    table = torch.tensor([[p / np.power(10000, 2 * (k // 2) / 8) for k in range(4)] for p in range(3)], dtype=torch.float32)
    return x.flatten()[:4] * angles, table @ angles.float(), angles


def of_several_classes(x, rate):
    lists = [
        [np.float32(0.1), np.float32(2)], [np.int64(3), np.int64(4)], (np.float64(1), 2.5, 3), [np.int32(1), 2],
        [np.True_, np.False_], [HALF], [BYTE, 7], [np.float32(0.1), np.float64(0.1)], [np.int64(1), 0.5],
        [[np.float64(np.pi)], [1]],
        [np.float64(np.inf), np.float64(np.nan), np.float64(-0.0)], [True, np.float64(0.1)],
    ]  # fmt: skip
    made = [torch.tensor(numbers) for numbers in lists] + [torch.as_tensor(numbers) for numbers in lists]
    made += [torch.tensor(numbers, dtype=torch.float64) for numbers in lists]
    return x * 2, made, torch.tensor(np.float64(0.1), dtype=None), torch.tensor([np.float64(0.1)], dtype=None, device="cpu")


def of_changing_numbers(x, rate):
    lists = [1 / np.power(10.0, rate), rate], [np.sqrt(rate), np.sqrt(rate) * 2], [rate, 1]
    return x * rate, [torch.tensor(numbers) for numbers in lists]


def of_changing_whole_numbers(x, rate):
    number = BYTES[int(rate * 4)]
    return x * 2, torch.tensor([number, 1]), torch.tensor([number], dtype=torch.int8 if rate < 1 else torch.int16)


@pytest.mark.parametrize("function", [positions, of_several_classes, of_changing_numbers, of_changing_whole_numbers])
def test_numbers_of_numpy(function):
    for cls in (float, np.float64, np.float32):
        compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
        for rate in (0.5, 1.5, 2.5, 3.5, 0.75, 4.5):
            x = torch.randn(2, 4)
            expected, found = function(x, cls(rate)), compiled(x, cls(rate))
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, equal_nan=True)
        if cls is not np.float32 and function is not of_changing_whole_numbers:
            assert compiled.graph_count == 1 and not compiled.breaks


def test_numbers_of_numpy_and_the_default_type():
    compiled = quickfuse.compile(lambda x: (torch.tensor([np.float64(0.1), 1]), torch.tensor([np.int64(2), 0.1]), x * 2))
    for default in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(default)
        try:
            found = compiled(torch.ones(2))
            expected = torch.tensor([np.float64(0.1), 1]), torch.tensor([np.int64(2), 0.1]), torch.ones(2) * 2
        finally:
            torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=0)


ODD = {
    "whole numbers of a tensor of floats": lambda x: torch.tensor([x[0, 0], 1], dtype=torch.long),
    "rows of several lengths": lambda x: torch.tensor([[x[0, 0], 1.0], [1.0]]),
    "a tensor among lists": lambda x: torch.tensor([x[0, 0], [1.0]]),
    "one element": lambda x: torch.tensor([x[0, :1], 1.0]),
    "rows": lambda x: torch.tensor([x[0], [1.0, 2.0]]),
    "complex": lambda x: torch.tensor([x[0, 0], 1j]),
    "half": lambda x: torch.tensor([x[0, 0], 1.5], dtype=torch.float16),
    "nothing": lambda x: torch.tensor([[], []]) + x[0, 0],
    "an object": lambda x: x.new_tensor(None),
    "a complex number of NumPy's": lambda x: torch.tensor([np.complex64(1j), 1]) * x.sum(),
    "numbers of NumPy's in rows of several lengths": lambda x: torch.tensor([[np.float64(1)], [1.0, x.numel()]]),
    "numbers of NumPy's and a text": lambda x: torch.tensor([np.float64(1), "a"]),
    "a whole number of NumPy's that does not fit": lambda x: (x * 2, torch.tensor([np.uint64(2**63), 1])),
    "one for a type that it does not fit": lambda x: (x * 2, torch.tensor([np.int64(300), 1], dtype=torch.uint8)),
    "numbers of NumPy's and tensors": lambda x: torch.tensor([np.float64(0.1), x[0, 0]]),
    "an infinite one as a whole number": lambda x: (x * 2, torch.tensor([np.float64(np.inf)], dtype=torch.long)),
    "a tensor of a tensor": lambda x: x.new_tensor([x[0, 0], x[0, 1]]).sum(),
}


@pytest.mark.parametrize("name", ODD)
def test_what_pytorch_refuses_or_makes_otherwise(name):
    check(ODD[name], (torch.randn(2, 2),), (torch.randn(2, 2),))


def test_the_default_type_and_device():
    compiled = quickfuse.compile(lambda x: torch.tensor([x[0], 1.0]))
    x = torch.tensor([2, 3])
    assert compiled(x).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert compiled(x).device.type == "meta"
    assert compiled(x).dtype == torch.float32
