"""A tensor of one element where an operator wants a number: a length, an axis, a limit. Its value counts, in each call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from comparing import differences, outcome_of

T = torch.Tensor
_FIRST = torch.zeros(2, 4, 1, dtype=torch.long)

#: Functions of an image `x` of shape (2, 4, 16) and a number `k` between 2 and 4.
PROGRAMS: dict[str, Callable[[T, T], Any]] = {
    "adaptive_avg_pool1d": lambda x, k: F.adaptive_avg_pool1d(x, k),
    "adaptive_avg_pool2d": lambda x, k: F.adaptive_avg_pool2d(x, (k, k + 1)),
    "adaptive_max_pool1d": lambda x, k: F.adaptive_max_pool1d(x, k),
    "add": lambda x, k: torch.add(x, x, alpha=k),
    "addmm": lambda x, k: torch.addmm(x[0, :, :4], x[0, :, :4], x[0, :, :4], beta=k),
    "amax": lambda x, k: x.amax((k - 2,)),
    "arange": lambda x, k: torch.arange(k) + x.sum(),
    "as_strided": lambda x, k: x.as_strided((k, 2), (2, 1)),
    "avg_pool1d": lambda x, k: F.avg_pool1d(x, k),
    "batch_norm": lambda x, k: F.batch_norm(x, None, None, training=True, momentum=k * 0.1),
    "cat": lambda x, k: torch.cat([x, x], k - 2),
    "cdist": lambda x, k: torch.cdist(x, x, p=k * 1.0),
    "chunk": lambda x, k: x.chunk(k - 1, 1),
    "clamp": lambda x, k: x.clamp(max=k * 0.1),
    "conv1d padding": lambda x, k: F.conv1d(x, torch.ones(4, 4, 3), padding=k),
    "conv1d paddings": lambda x, k: F.conv1d(x, torch.ones(4, 4, 3), padding=(k,)),
    "conv1d stride": lambda x, k: F.conv1d(x, torch.ones(4, 4, 3), stride=k),
    "cross_entropy": lambda x, k: F.cross_entropy(x[:, :, 0], torch.tensor([1, 2]), ignore_index=k),
    "cumsum": lambda x, k: x.cumsum(k - 2),
    "diag": lambda x, k: x[0].diag(k),
    "diagonal": lambda x, k: x.diagonal(k - 3, 1, 2),
    "elu": lambda x, k: F.elu(x, k * 0.5),
    "embedding": lambda x, k: F.embedding(torch.tensor([1]), x[0], padding_idx=k),
    "expand": lambda x, k: x[:, :, None].expand(2, 4, k, 16),
    "eye": lambda x, k: torch.eye(k) + x[0, 0, 0],
    "flatten": lambda x, k: x.flatten(k - 3, k - 2),
    "flip": lambda x, k: x.flip(k - 2),
    "full": lambda x, k: torch.full((k, 2), k) + x[0, 0, 0],
    "gather": lambda x, k: x.gather(k - 2, _FIRST),
    "getitem": lambda x, k: x[k - 2],
    "group_norm": lambda x, k: F.group_norm(x, k - 1),
    "hsplit": lambda x, k: torch.hsplit(x, k - 1)[0],
    "index_select": lambda x, k: x.index_select(k - 2, torch.tensor([1])),
    "interpolate": lambda x, k: F.interpolate(x[None], size=(k, k + 1), mode="bilinear"),
    "interpolate factor": lambda x, k: F.interpolate(x, scale_factor=k * 0.5),
    "kthvalue": lambda x, k: x.kthvalue(k).values,
    "layer_norm": lambda x, k: F.layer_norm(x, (16,), eps=k * 1e-3),
    "linspace": lambda x, k: torch.linspace(0, 1, k) + x[0, 0, 0],
    "linspace end": lambda x, k: torch.linspace(0, k, 5) + x[0, 0, 0],
    "matrix_power": lambda x, k: torch.linalg.matrix_power(x[0, :, :4], k),
    "max_pool1d": lambda x, k: F.max_pool1d(x, k, stride=k - 1),
    "narrow": lambda x, k: x.narrow(1, k - 2, 2),
    "new_zeros": lambda x, k: x.new_zeros(k, 2),
    "norm": lambda x, k: x.norm(k * 1.0),
    "one_hot": lambda x, k: F.one_hot(torch.arange(3), k),
    "pad": lambda x, k: F.pad(x, (k, 1)),
    "pad computed": lambda x, k: F.pad(x, (k + 1, 1), "reflect"),
    "pad value": lambda x, k: F.pad(x, (1, 1), value=k * 0.5),
    "permute": lambda x, k: x.permute(k - 2, 0, 1),
    "pixel_shuffle": lambda x, k: F.pixel_shuffle(x[:, :, :4].reshape(2, 4, 2, 2), k - 1),
    "pow": lambda x, k: x.pow(k),
    "range": lambda x, k: sum(x[:, i] for i in range(k)),
    "repeat": lambda x, k: x.repeat(1, k, k - 1),
    "repeat_interleave": lambda x, k: x.repeat_interleave(k, 1),
    "reshape": lambda x, k: x.reshape(k - 1, -1),
    "rfft": lambda x, k: torch.fft.rfft(x, n=k + 5).abs(),
    "roll": lambda x, k: x.roll(k, 0),
    "rot90": lambda x, k: torch.rot90(x, k),
    "scatter": lambda x, k: x.scatter(k - 2, _FIRST, k),
    "sdpa": lambda x, k: F.scaled_dot_product_attention(x, x, x, scale=k * 0.1),
    "slice": lambda x, k: x[:, :k],
    "softmax": lambda x, k: x.softmax(k - 2),
    "sort": lambda x, k: x.sort(k - 2).values,
    "split": lambda x, k: x.split(k - 1, 1),
    "squeeze": lambda x, k: x[:, :1].squeeze(k - 2),
    "stack": lambda x, k: torch.stack([x, x], k - 2),
    "sum": lambda x, k: x.sum(k - 2),
    "tensor_split": lambda x, k: x.tensor_split(k)[0],
    "tensordot": lambda x, k: torch.tensordot(x, x, k),
    "threshold": lambda x, k: F.threshold(x, k * 0.1, k * 0.2),
    "tile": lambda x, k: torch.tile(x, (k, 1)),
    "topk": lambda x, k: x.topk(k).values,
    "transpose": lambda x, k: x.transpose(k - 2, k - 1),
    "tril": lambda x, k: x.tril(k),
    "triu_indices": lambda x, k: torch.triu_indices(k, k) + x[0, 0, 0],
    "unfold": lambda x, k: x.unfold(2, k, 1),
    "unsqueeze": lambda x, k: x.unsqueeze(k - 2),
    "var": lambda x, k: x.var(k - 2, correction=k),
    "where": lambda x, k: torch.where(x > 0, x, k),
    "zeros": lambda x, k: torch.zeros(k, k + 1),
}


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_value_counts(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled: Any = quickfuse.compile(program, backend=backend, options={"raise_internal_errors": True})
    x = torch.randn(2, 4, 16)
    for value in (3, 3, 4, 2):
        expected, found = (outcome_of(f, [x, torch.tensor(value)]) for f in (program, compiled))
        assert expected[0] == found[0]
        if expected[0] == "returned":
            if backend == "eager":
                assert not list(differences(expected[1], found[1], "result"))
            torch.testing.assert_close(found[1], expected[1])
        else:
            assert expected[1] is found[1]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_tensor_split_asks_for_the_type_of_its_indices(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        return x.tensor_split(torch.tensor([1, 2], dtype=dtype))

    x = torch.randn(4, 3)
    expected, found = outcome_of(program, [x]), outcome_of(quickfuse.compile(program), [x])
    assert expected[0] == found[0] == ("returned" if dtype is torch.int64 else "raised")


_WARNING = """
import math, sys, warnings
import torch, quickfuse

def function(t):
    with torch.no_grad():
        before = float(t)
    return t * 2, int(t), {expression}

t = torch.tensor(2.0, requires_grad=True)
for run in (quickfuse.compile(function) if sys.argv[1] == "compiled" else function,) * 2:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("{filter}")
        try:
            print(run(t)[2])
        except UserWarning as warning:
            print("raised", warning)
    print([str(warning.message) for warning in seen])
"""


@pytest.mark.usefixtures("forked_interpreters")
@pytest.mark.parametrize(("expression", "filter"), [("float(t)", "always"), ("math.sqrt(t)", "error")])
def test_a_number_without_gradients_is_warned_of_once(expression: str, filter: str) -> None:
    program = _WARNING.format(expression=expression, filter=filter)
    eager, compiled = (
        subprocess.run([sys.executable, "-c", program, kind], capture_output=True, text=True, check=True).stdout
        for kind in ("eager", "compiled")
    )
    assert compiled == eager
