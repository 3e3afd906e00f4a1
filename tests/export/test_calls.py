"""What a call of an exported program is checked for, what it says, and what `assumptions` lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from quickfuse import errors

x = torch.randn(3, 4)


def program(x: Any, scale: float = 2.0, mask: Any = None, options: Any = None) -> Any:
    if scale > 1:
        x = x * scale
    return x if mask is None else x * mask


OPTIONS = {"a": [x, "mode", 3], "b": None}


def exported() -> nn.Module:
    return quickfuse.export(program, (x, 2.0), {"options": OPTIONS}).module()


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        ((), {}, "x is missing: the exported program takes (x, scale, options)"),
        ((x,), {"options": OPTIONS}, "scale is missing"),
        ((x, 2.0, x), {"options": OPTIONS}, "mask is None in the exported program, got a Tensor"),
        ((x, 2.0), {"options": OPTIONS, "more": 1}, "more is no argument of the exported program"),
        ((x, 2.0, None, OPTIONS, 5), {}, "got 5 arguments by position"),
        ((x, 2.0), {"options": OPTIONS, "x": x}, "x is given twice"),
        ((torch.randn(2, 4), 2.0), {"options": OPTIONS}, "x.shape[0] is 3 in the exported program, got 2"),
        ((torch.randn(3, 4, 1), 2.0), {"options": OPTIONS}, "x.ndim is 2 in the exported program, got 3"),
        ((x.double(), 2.0), {"options": OPTIONS}, "x.dtype is torch.float32 in the exported program, got torch.float64"),
        ((torch.randn(4, 3).t(), 2.0), {"options": OPTIONS}, "x.stride() is (4, 1) in the exported program, got (1, 3)"),
        ((x.to("meta"), 2.0), {"options": OPTIONS}, "x.device is cpu in the exported program, got meta"),
        ((None, 2.0), {"options": OPTIONS}, "x is a Tensor in the exported program, got None"),
        ((x, 2), {"options": OPTIONS}, "scale is of type float in the exported program, got 2"),
        ((x, 0.5), {"options": OPTIONS}, "(scale > 1) is True in the exported program, got False"),
        ((x, 2.0), {"options": [x]}, "options is a dict in the exported program, got a list"),
        ((x, 2.0), {"options": {"a": [x, "mode", 3]}}, "keys of options are ['a', 'b'] in the exported program, got ['a']"),
        ((x, 2.0), {"options": {"a": [x], "b": None}}, "len(options['a']) is 3 in the exported program, got 1"),
        ((x, 2.0), {"options": {"a": [x, "other", 3], "b": None}}, "options['a'][1] is 'mode' in the exported program"),
        ((x, 2.0), {"options": {"a": [x, "mode", 3], "b": 1}}, "options['b'] is None in the exported program, got 1"),
    ],
)
def test_a_call_that_does_not_fit(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(errors.ExportedCallError) as caught:
        exported()(*args, **kwargs)
    assert message in str(caught.value)


def test_calls_that_fit() -> None:
    module = exported()
    wanted = program(x, 3.0)
    torch.testing.assert_close(module(x, 3.0, options=OPTIONS), wanted)
    torch.testing.assert_close(module(options={"b": None, "a": (OPTIONS["a"])}, scale=3.0, x=x), wanted)
    torch.testing.assert_close(module(x, 3.0, None, OPTIONS), wanted)  # a default that is given
    # what the program does not look at may be anything
    torch.testing.assert_close(module(x, 3.0, options={"a": [torch.ones(7), "mode", 8], "b": None}), wanted)


def test_a_call_that_does_not_fit_changes_nothing() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    module = quickfuse.export(Counting(), (x,)).module()
    with pytest.raises(errors.ExportedCallError):
        module(x.double())
    assert module.get_buffer("count") == 0
    module(x)
    assert module.get_buffer("count") == 1


def test_arguments_that_are_one_object_stay_one() -> None:
    module = quickfuse.export(lambda x, y: x + y, (x, x)).module()
    torch.testing.assert_close(module(x, x), x * 2)
    with pytest.raises(errors.ExportedCallError, match="y is the same object as x in the exported program, got two objects"):
        module(x, x.clone())


def test_inputs_that_are_changed_share_no_memory() -> None:
    def changing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    module = quickfuse.export(changing, (x.clone(), x.clone())).module()
    both = torch.zeros(6, 4)
    with pytest.raises(errors.ExportedCallError, match="x, which the program changes, shares memory with y"):
        module(both[:3], both[2:5])
    with pytest.raises(errors.ExportedCallError, match="x, which the program changes, shares memory with y"):
        module(both[:3], both[:3])
    torch.testing.assert_close(module(both[:3], both[3:]), torch.ones(3, 4))  # in one memory, but apart
    torch.testing.assert_close(both, torch.cat([torch.ones(3, 4), torch.zeros(3, 4)]))


def test_numbers_whose_value_matters_are_fixed() -> None:
    exported = quickfuse.export(lambda x, n: torch.roll(x, n, 0), (x, 1))
    assert "n == 1" in map(str, exported.assumptions)
    torch.testing.assert_close(exported.module()(x, 1), torch.roll(x, 1, 0))
    with pytest.raises(errors.ExportedCallError, match="n is 1 in the exported program, got 2"):
        exported.module()(x, 2)


def test_tensors_whose_contents_were_looked_at_are_looked_at_again() -> None:
    def by_count(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count += 1
        return x * 2 if count == 1 else x

    try:
        module = quickfuse.export(by_count, (x, torch.tensor(0))).module()
    except errors.GraphBreak:
        return  # also right
    torch.testing.assert_close(module(x, torch.tensor(0)), x * 2)
    with pytest.raises(errors.ExportedCallError, match="count"):
        module(x, torch.tensor(5))


def test_what_asks_about_gradients_is_checked() -> None:
    module = quickfuse.export(lambda x: x * 2 if x.requires_grad else x, (x,)).module()
    torch.testing.assert_close(module(x), x)
    with pytest.raises(errors.ExportedCallError, match="x.requires_grad is False in the exported program, got True"):
        module(x.clone().requires_grad_())
    module = quickfuse.export(lambda x: x * 2 if torch.is_grad_enabled() else x, (x,)).module()
    torch.testing.assert_close(module(x), x * 2)
    with torch.no_grad(), pytest.raises(errors.ExportedCallError, match="is_grad_enabled"):
        module(x)


def test_other_programs_run_in_any_grad_mode() -> None:
    linear = nn.Linear(4, 4)
    module = quickfuse.export(linear, (x,)).module()
    with torch.no_grad():
        assert not module(x).requires_grad
    with torch.no_grad():
        module = quickfuse.export(linear, (x,)).module()
    assert module(x).requires_grad


def test_assumptions_list_modes_numbers_and_flags() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Sequential(nn.Dropout(0.25), nn.Dropout(0.25))
            self.scale, self.kind = 0.5, "sum"

        def forward(self, x: torch.Tensor, power: float) -> torch.Tensor:
            return self.drop(x * self.scale**power) if self.kind == "sum" else x

    exported = quickfuse.export(Model().eval(), (x, 2.0))
    found = {str(a): a for a in exported.assumptions}
    assert found["training == False in drop.0 and 1 more"].where == ("drop.0", "drop.1")
    assert "scale == 0.5 in the module itself" in found or "scale == 0.5" in found
    assert any(text.startswith("kind == 'sum'") for text in found)
    assert found["x is a Tensor float32[3, 4]"].checked
    assert found["type(power) is float"].checked


def test_the_other_mode_is_an_error() -> None:
    module = quickfuse.export(nn.Sequential(nn.Dropout(0.5)).eval(), (x,)).module()
    assert not module.training
    module.eval()
    with pytest.raises(errors.ExportedCallError, match="exported in evaluation mode, and has no training mode"):
        module.train()
    quickfuse.export(nn.Linear(4, 4).eval(), (x,)).module().train()  # which has no modes


COUNT = 0
HISTORY: list[Any] = []


def _global(x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1
    return x + 1


def _append(x: torch.Tensor) -> torch.Tensor:
    HISTORY.append(x)
    return x + 1


TABLE: dict[str, Any] = {"old": 1}
SEEN: set[int] = set()


def _containers(x: torch.Tensor) -> torch.Tensor:
    TABLE["new"] = x
    del TABLE["old"]
    SEEN.add(3)
    return x + 1


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.cache: dict[str, Any] = {}
        self.last = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.cache["x"] = x
        self.last = x * 2
        return x + 1


def _enclosing() -> Any:
    total = 0

    def program(x: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += 1
        return x + 1

    return program


@pytest.mark.parametrize(
    "function, named",
    [
        (_global, ["the global COUNT is set"]),
        (_append, ["the global HISTORY, a list, is changed"]),
        (_containers, ["the global TABLE['new'] is set", "the global TABLE['old'] is deleted", "the global SEEN, a set"]),
        (Holder(), ["self.steps is set", "self.cache['x'] is set", "self.last is set"]),
        (_enclosing(), ["the variable total of an enclosing function is set"]),
        (lambda x: (torch.set_grad_enabled(False), x + 1)[1], ["the grad mode is left changed"]),
    ],
)
def test_side_effects_are_errors_that_name_them(function: Any, named: list[str]) -> None:
    with pytest.raises(errors.ExportError) as caught:
        quickfuse.export(function, (x,))
    for text in named:
        assert text in str(caught.value)
    exported = quickfuse.export(function, (x,), strict=False)
    left_out = [str(a) for a in exported.assumptions if str(a).startswith("left out: ")]
    assert all(any(text in said for said in left_out) for text in named)
    torch.testing.assert_close(exported.module()(x), x + 1)
    assert COUNT == 0 and HISTORY == [] and not SEEN
    assert TABLE == {"old": 1}


def test_side_effects_on_arguments() -> None:
    def program(x: torch.Tensor, found: list[Any]) -> torch.Tensor:
        found.append(x * 2)
        return x

    with pytest.raises(errors.ExportError, match="found, a list, is changed"):
        quickfuse.export(program, (x, []))
