"""Workloads as data: shapes, bytes, and the parameters made from them."""

from __future__ import annotations

import math

import pytest
import torch

from quickfuse.bench import workloads
from quickfuse.bench.optimizers import OPTIMIZERS
from quickfuse.bench.variants import make_parameters
from quickfuse.bench.workloads import OptimizerWorkload, PointwiseWorkload, Workload


def test_gpt2_has_148_parameters_and_124_million_elements() -> None:
    shapes = workloads.gpt2_shapes()
    assert len(shapes) == 148
    assert sum(map(math.prod, shapes)) == 124_439_808


def test_bytes_of_an_adam_step_are_seven_passes() -> None:
    assert OptimizerWorkload("10", (1024, 1024)).bytes_moved == 7 * 4 * 10 * 1024 * 1024
    assert OptimizerWorkload("10", (1024, 1024), dtype="bfloat16").bytes_moved == 7 * 2 * 10 * 1024 * 1024


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_moved_tensors_follow_from_the_optimizers_real_state(name: str) -> None:
    spec = OPTIMIZERS[name]
    parameters = make_parameters(OptimizerWorkload("1", (3, 5), name))
    opt = spec.torch_optimizer(parameters)
    opt.step()
    state = [value for value in opt.state[parameters[0]].values() if isinstance(value, torch.Tensor)]
    full_size = sum(value.shape == parameters[0].shape for value in state)
    assert spec.moved == 3 + 2 * full_size  # the parameter is read and written, the gradient read, the state both


@pytest.mark.parametrize("workload", [OptimizerWorkload("gpt2", device="cuda"), PointwiseWorkload((3, 4), "float64")])
def test_workloads_survive_json(workload: Workload) -> None:
    assert workloads.from_dict(workloads.to_dict(workload)) == workload


@pytest.mark.parametrize("text", ["", "x", "3x", "0x4", "-1x4", "axb", "3,4"])
def test_malformed_shapes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no shape"):
        workloads.parse_shape(text)


def test_shapes_of_any_rank_are_read() -> None:
    assert workloads.parse_shape("7") == (7,)
    assert workloads.parse_shape("2x3X4") == (2, 3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": "0"}, "parameter set"),
        ({"params": "gpt3"}, "parameter set"),
        ({"optimizer": "Adan"}, "unknown optimizer 'Adan'; known are Adam"),
        ({"dtype": "int8"}, "unknown dtype"),
    ],
)
def test_unknown_options_are_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerWorkload(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("workload", [OptimizerWorkload("10", (64, 64)), OptimizerWorkload("40", (8, 8))])
def test_gradients_are_neither_zero_nor_denormal(workload: OptimizerWorkload) -> None:
    for parameter in make_parameters(workload):
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 1e-12


def test_variants_start_from_the_same_numbers() -> None:
    first, second = (make_parameters(OptimizerWorkload("3", (4, 4))) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
        assert a.grad is not None and b.grad is not None
        assert torch.equal(a.grad, b.grad)
