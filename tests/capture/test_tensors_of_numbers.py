"""Tensors that are made of numbers and of tensors with a number each."""

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
