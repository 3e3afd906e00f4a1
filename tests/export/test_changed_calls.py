"""An exported program in calls that differ from the example in one way: each is eager's, or a clear error.

The matrix is every program of `changed_programs` with every change of `changed_calls`, for programs out of files and for
compiled ones.
"""

from __future__ import annotations

import contextlib
import copy
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import quickfuse
from export.changed_calls import CHANGES, NOT_FOR_STEPS, SURROUNDINGS, Given, example
from export.changed_programs import PROGRAMS, Program, Step
from export.programs import through_file
from quickfuse import errors
from quickfuse.export import Exported
from seeding import seed_torch


@dataclass
class Outcome:
    """What a call gives: the leaves of its value, gradients, what it left in its arguments; or an error."""

    leaves: list[Any] = field(default_factory=list)
    error: Exception | None = None


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [type(value), *[leaf for key, inner in value.items() for leaf in (key, *leaves(inner))]]
    if isinstance(value, (list, tuple)):
        return [type(value), *[leaf for inner in value for leaf in leaves(inner)]]
    return [value]


def outcome(function: Callable[..., Any], given: Given, around: Callable[[Given], Any] | None) -> Outcome:
    seed_torch(0)
    found = Outcome()
    try:
        with around(given) if around is not None else contextlib.nullcontext():
            found.leaves = leaves(function(*given.args, **given.kwargs))
            if forward_ad._current_level >= 0:
                found.leaves += [forward_ad.unpack_dual(t).tangent for t in found.leaves if isinstance(t, torch.Tensor)]
        _differentiate([t for t in found.leaves if isinstance(t, torch.Tensor) and t.requires_grad and t.numel()])
    except Exception as error:
        return Outcome(error=error)
    found.leaves += [*given.args, *[a.grad for a in given.args if isinstance(a, torch.Tensor) and a.is_leaf]]
    return found


def _differentiate(results: list[torch.Tensor]) -> None:
    if results and all(t.device.type == "cpu" for t in results):
        torch.stack([t.abs().square().sum().double() for t in results]).sum().backward()


def difference(wanted: Any, found: Any) -> str:
    """How two leaves differ; "" where they do not."""
    if not isinstance(wanted, torch.Tensor) or not isinstance(found, torch.Tensor):
        same = type(wanted) is type(found) and (wanted is found or wanted == found or wanted != wanted)
        return "" if same else f"{found!r} instead of {wanted!r}"
    for name in ("dtype", "shape", "device", "layout", "requires_grad"):
        if getattr(wanted, name) != getattr(found, name):
            return f"{name} {getattr(found, name)} instead of {getattr(wanted, name)}"
    if {type(wanted), type(found)} - {torch.Tensor, nn.Parameter} and type(wanted) is not type(found):
        return f"a {type(found).__name__} instead of a {type(wanted).__name__}"
    if wanted.device.type == "meta" or wanted.layout != torch.strided:
        return ""
    if wanted.numel() > 1 and wanted.stride() != found.stride():
        return f"strides {found.stride()} instead of {wanted.stride()}"
    one, two = (t.detach().as_subclass(torch.Tensor).to(torch.complex128) for t in (wanted, found))
    return "" if torch.allclose(one, two, rtol=1e-4, atol=1e-5, equal_nan=True) else f"{found} instead of {wanted}"


def differences(wanted: list[Any], found: list[Any]) -> str:
    if len(wanted) != len(found):
        return f"{len(found)} leaves instead of {len(wanted)}"
    return next((text for one, two in zip(wanted, found, strict=True) if (text := difference(one, two))), "")


def state(module: nn.Module, names: list[str]) -> list[Any]:
    tensors = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])
    return [part for name in names for tensor in [tensors.get(name)] for part in (tensor, getattr(tensor, "grad", None))]


def verdict(wanted: Outcome, found: Outcome) -> str:
    """What is wrong with a call beside eager's; "" where it is right, or a clear error."""
    if isinstance(found.error, errors.ExportedCallError):
        return ""
    if found.error is not None:
        raised = f"{type(found.error).__name__}: {found.error}"
        return "" if wanted.error is not None else f"it raises {raised}, which does not say what is wrong with the call"
    if wanted.error is not None:
        return f"it is accepted, where eager raises {type(wanted.error).__name__}: {wanted.error}"
    return differences(wanted.leaves, found.leaves)


class Pair:
    """The original and the exported module in the same calls."""

    def __init__(self, original: Program, exported: Exported, compiled: bool) -> None:
        self.original = copy.deepcopy(original)
        self.module = exported.module()
        self.function = quickfuse.compile(self.module) if compiled else self.module
        self.names = [*dict(original.named_parameters(remove_duplicate=False)), *dict(original.named_buffers())]

    def call(self, change: Callable[[Given], Any] | None, around: Callable[[Given], Any] | None = None) -> tuple[str, bool]:
        """What is wrong with a call, and whether there may be another one."""
        pair = [example(self.original), example(self.module)]
        raised = [_raised(change, given) for given in pair]
        if any(raised):
            clear = raised[0] is not None or isinstance(raised[1], errors.ExportedCallError)
            return "" if clear else f"the change is refused: {raised[1]}", False
        before = [copy.deepcopy(t) for t in state(self.module, self.names)]
        wanted, found = outcome(self.original, pair[0], around), outcome(self.function, pair[1], around)
        wrong = verdict(wanted, found)
        if found.error is not None:
            if not wrong and isinstance(found.error, errors.ExportedCallError):
                wrong = differences(before, state(self.module, self.names))  # nothing has been changed
            return wrong, False
        wrong = wrong or differences(state(self.original, self.names), state(self.module, self.names))
        return wrong, not wrong


def _raised(change: Callable[[Given], Any] | None, given: Given) -> Exception | None:
    try:
        if change is not None:
            change(given)
    except Exception as error:
        return error
    return None


def wrong_calls(program: str, exported: Exported, original: Program, compiled: bool) -> Iterator[str]:
    """A call as in the example, one that is changed, and one as in the example again."""
    cases = {name: (change, None) for name, change in CHANGES.items()}
    cases |= {name: (None, around) for name, around in SURROUNDINGS.items()}
    for name, changed in cases.items():
        if isinstance(original, Step) and name in NOT_FOR_STEPS:
            continue
        if compiled:
            quickfuse.reset()
        pair = Pair(original, exported, compiled)
        for change, around in ((None, None), changed, (None, None)):
            wrong, go_on = pair.call(change, around)
            if wrong:
                yield f"{program}, {name}: {wrong}"
            if not go_on:
                break


def check_calls(program: str, compiled: bool, tmp_path: Path) -> None:
    original = PROGRAMS[program]()
    given = example(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = through_file(quickfuse.export(copy.deepcopy(original), tuple(given.args), given.kwargs), tmp_path)
        assert [*wrong_calls(program, exported, original, compiled)] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_call_is_right_or_a_clear_error(program: str, tmp_path: Path) -> None:
    check_calls(program, False, tmp_path)


#: All are compiled by `make export-long`, which takes minutes.
COMPILED = PROGRAMS if os.environ.get("EXPORT_LONG") else ("in place", "running average", "branches", "asks for gradients")


@pytest.mark.slow
@pytest.mark.parametrize("program", COMPILED)
def test_each_call_of_compiled_code_is_right_or_a_clear_error(program: str, tmp_path: Path) -> None:
    check_calls(program, True, tmp_path)


def test_exported_under_autocast(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Softmax(-1)), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        module = through_file(quickfuse.export(model, (x,)), tmp_path).module()
        torch.testing.assert_close(module(x), model(x), rtol=0, atol=0)
    for wrong in (torch.autocast("cpu", torch.float16), contextlib.nullcontext()):
        with wrong, pytest.raises(errors.ExportedCallError, match="autocast"):
            module(x)


class Shared(nn.Module):
    """A buffer that is a part of another one, which is changed: in place, or by assigning a new tensor."""

    whole: torch.Tensor
    part: torch.Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("part", self.whole[1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            self.whole += 1
        else:
            self.whole = self.whole + 1
        return x + self.part.sum()


@pytest.mark.parametrize("in_place", [True, False])
def test_buffers_that_share_memory(in_place: bool) -> None:
    with pytest.raises(errors.ExportError, match="whole, which the program changes, shares memory with part"):
        quickfuse.export(Shared(in_place), (torch.ones(2),))


def test_overlapping_arguments_in_compiled_code() -> None:
    """A call without an overlap, one with it, where the code that is there must not run, and one without it again."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    module = quickfuse.export(program, (torch.zeros(3), torch.zeros(3))).module()
    memory = torch.zeros(6)
    quickfuse.compile(module, fullgraph=True)(memory[:3], memory[3:])
    compiled = quickfuse.compile(module)
    for _ in range(2):
        torch.testing.assert_close(compiled(memory[:3], memory[3:]), memory[:3] + memory[3:])
        before = memory.clone()
        for overlap in (memory[2:5], memory[:3], memory[1:4]):
            with pytest.raises(errors.ExportedCallError, match="x, which the program changes, shares memory with y"):
                compiled(memory[:3], overlap)
        torch.testing.assert_close(memory, before, rtol=0, atol=0)


def test_overlapping_arguments_inside_of_compiled_code() -> None:
    """Tensors that the compiled function makes itself."""
    module = quickfuse.export(lambda x, y: x.add_(1) + y, (torch.zeros(3), torch.zeros(3))).module()

    @quickfuse.compile
    def inside(x: torch.Tensor, overlaps: bool) -> torch.Tensor:
        made = x * 2
        return module(made[:3], made[2:5] if overlaps else x[:3])

    x = torch.ones(6)
    torch.testing.assert_close(inside(x, False), torch.full((3,), 4.0))
    with pytest.raises(errors.ExportedCallError, match="shares memory with y"):
        inside(x, True)


def test_other_parameters_for_one_call() -> None:
    """`torch.func.functional_call`, `vmap` and `grad` of an exported module."""
    model, x = nn.Linear(4, 2), torch.randn(5, 4)
    module = quickfuse.export(model, (x[0],)).module()
    others = {"weight": torch.randn(2, 4), "bias": torch.randn(2)}
    for each in (model, module):
        wanted = torch.func.functional_call(model, others, (x[0],))
        torch.testing.assert_close(torch.func.functional_call(each, others, (x[0],)), wanted)
    torch.testing.assert_close(torch.func.vmap(module)(x), model(x))
    wanted = torch.func.grad(lambda v: model(v).sum())(x[0])
    torch.testing.assert_close(torch.func.grad(lambda v: module(v).sum())(x[0]), wanted)
