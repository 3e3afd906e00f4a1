"""`step()` of every optimizer of torch.optim, in every configuration of PyTorch's own database, is one graph.

The captured graph runs with eager's operators, so that parameters and state must be equal to the last bit. What the
kernels make of it is tested on one configuration of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from optim.optim_db_cases import MAY_BREAK, Case, cases
from optim.step_twins import CLOSE, EXACT, Twins, compile_step, compiled_count, difference, frozen

STEPS = 6
CASES = cases()

#: Steps, counted from 0, that may compile: the first, and the second, where the state that the first made is new.
USUAL = {0, 1}
#: RAdam's own branch: its variance is rectified once `rho_t > 5`, which is in the sixth step for the default betas.
LATER = {"RAdam": {5}}

#: Sums of kernels are added up in another order than eager's, and a line search that branches on them amplifies it: in
#: float32, eager's own parameters, off by a last bit, are 2e-5 apart after two steps, and 2e-3 after four. So double.
SEARCHED = (1e-9, 1e-11)

#: One configuration of each kind through the whole pipeline.
WITH_KERNELS = {
    "Adadelta": "nonzero-weight_decay-for", "Adafactor": "default-for", "Adagrad": "lr_decay-foreach",
    "Adam": "nonzero-weight_decay-tensor-lr-for", "AdamW": "amsgrad-foreach", "Adamax": "maximize-weight_decay-foreach",
    "ASGD": "nonzero-weight_decay-for", "Muon": "default", "NAdam": "decoupled_weight_decay-foreach",
    "RAdam": "nonzero-weight_decay-for", "RMSprop": "momentum-foreach", "Rprop": "default-for", "SGD": "nesterov-foreach",
    "LBFGS": "strong_wolfe", "SparseAdam": "default",
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrix products of a few elements: on a busy machine two threads spend seconds on waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def over(chosen: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.id)


def test_database_is_complete() -> None:
    """Every optimizer that torch.optim exports is tested here."""
    assert {case.name for case in CASES} == {name for name in torch.optim.__all__ if name[0].isupper()} - {"Optimizer"}
    assert len({case.id for case in CASES}) == len(CASES)
    assert {f"{name}-{rest}" for name, rest in WITH_KERNELS.items()} <= {case.id for case in CASES}


@over([case for case in CASES if case.name not in MAY_BREAK])
def test_step_is_one_graph(case: Case) -> None:
    twins = Twins(case.make, case.shapes)
    given = frozen(twins.optimizer.param_groups)
    compiled = compile_step(twins.optimizer.step)
    counts = []
    for _ in range(STEPS):
        twins.gradients()
        assert twins.eager.step() is None
        assert compiled() is None
        twins.check()
        counts.append(compiled_count(compiled))
    assert frozen(twins.optimizer.param_groups) == given, "the options, capturable among them, are the user's"
    grown = {k for k, count in enumerate(counts) if count > ([0, *counts])[k]}
    assert counts[-1] <= 2 and grown <= USUAL | LATER.get(case.name, set()), f"specialisations after each step: {counts}"


class Loss:
    """A closure: a new loss and new gradients for the parameters as they are, as LBFGS asks for several times a step."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.calls = 0

    def __call__(self) -> torch.Tensor:
        self.calls += 1
        for parameter in self.parameters:
            parameter.grad = None
        loss = torch.stack([(p.tanh() ** 2 + 0.1 * p).sum() for p in self.parameters]).sum()
        loss.backward()
        return loss


def run_lbfgs(case: Case, backend: str, tolerance: Any, dtype: torch.dtype = torch.float32) -> None:
    twins = Twins(case.make, case.shapes, dtype)
    compiled = compile_step(twins.optimizer.step, fullgraph=False, backend=backend)
    mine, theirs = Loss(twins.parameters), Loss(twins.eager_parameters)
    for _ in range(STEPS):
        expected, found = twins.eager.step(theirs), compiled(mine)
        torch.testing.assert_close(found, expected, rtol=tolerance[0], atol=tolerance[1])
        assert mine.calls == theirs.calls
        if tolerance == EXACT:
            twins.check()
        else:  # its history of directions is noise where the gradient is almost zero
            assert not (found := difference(twins.parameters, twins.eager_parameters, tolerance)), found


def run_sparse(case: Case, backend: str, tolerance: Any) -> None:
    twins = Twins(case.make, ((6, 3), (4, 2)))
    compiled = compile_step(twins.optimizer.step, fullgraph=False, backend=backend)
    for _ in range(STEPS):
        for mine, theirs in zip(twins.parameters, twins.eager_parameters, strict=True):
            rows = torch.randint(0, len(mine), (3,), generator=twins.generator)[None]
            values = torch.randn(3, mine.shape[1], generator=twins.generator)
            for parameter in (mine, theirs):
                parts = rows.clone(), values.clone()
                parameter.grad = torch.sparse_coo_tensor(*parts, mine.shape, check_invariants=True)
        twins.eager.step()
        compiled()
        twins.check(tolerance)


BREAKING: dict[str, Callable[..., None]] = {"LBFGS": run_lbfgs, "SparseAdam": run_sparse}


@over([case for case in CASES if case.name in MAY_BREAK])
def test_step_that_breaks(case: Case) -> None:
    BREAKING[case.name](case, "eager", EXACT)


@over([case for case in CASES if case.id == f"{case.name}-{WITH_KERNELS[case.name]}"])
def test_kernels(case: Case) -> None:
    if case.name == "LBFGS":
        run_lbfgs(case, "quickfuse", SEARCHED, torch.float64)
        return
    if case.name in MAY_BREAK:
        BREAKING[case.name](case, "quickfuse", CLOSE)
        return
    twins = Twins(case.make, case.shapes)
    compiled = compile_step(twins.optimizer.step, backend="quickfuse")
    for _ in range(STEPS):
        twins.gradients()
        twins.eager.step()
        compiled()
        twins.check(CLOSE)
    assert any(s.kernels for s in compiled.specialisations)
