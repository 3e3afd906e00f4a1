"""What `compile()`, `config` and the command accept, and what they say about the rest."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from quickfuse import config, logs, settings
from quickfuse.errors import GraphBreak

T = torch.Tensor


# config and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        ("recompile_limits", 3, AttributeError, "no setting 'recompile_limits'; the settings are specialize_floats,"),
        ("recompile_limit", "3", TypeError, "recompile_limit is of type int, not '3'"),
        ("recompile_limit", True, TypeError, "recompile_limit is of type int, not True"),
        ("recompile_limit", -1, ValueError, "not negative"),
        ("specialize_floats", 1, TypeError, "specialize_floats is of type bool, not 1"),
        ("on_recompile_limit", "raise", ValueError, "one of 'warn', 'error', not 'raise'"),
    ],
)  # fmt: skip
def test_config_refuses(name: str, value: Any, error: type[Exception], says: str) -> None:
    before = getattr(config, name, None)
    with pytest.raises(error, match=says):
        setattr(config, name, value)
    assert getattr(config, name, None) == before


def test_config_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("recompile_limit", 3), ("specialize_floats", True), ("on_recompile_limit", "error")):
        monkeypatch.setattr(config, name, value)
        assert getattr(config, name) == value
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del config.pack_weights


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"options": {"no_such": 1}}, ValueError, "unknown options no_such; the options are raise_internal_errors, "),
        ({"options": {"verify": True}}, ValueError, "verify is no option but a setting of the process"),
        ({"disable": "no"}, TypeError, "disable is True or False, not 'no'"),
        ({"name": 3}, TypeError, "name is a text, not an int"),
        ({"recompile_limit": 0}, ValueError, "recompile_limit is a whole number from 1 on, not 0"),
        ({"backend": 3}, ValueError, "a backend is a name or a callable, not an int"),
        ({"options": {"max_autotune": 1}}, TypeError, "'max_autotune' is of type bool, not 1"),
        ({"options": {"raise_internal_errors": "yes"}}, TypeError, "'raise_internal_errors' is of type bool"),
        ({"options": ["max_autotune"]}, TypeError, "options are a dictionary, not a list"),
        ({"mode": "fast"}, ValueError, "unknown mode 'fast'; the modes are default, reduce-overhead, max-autotune"),
        ({"mode": 3}, ValueError, "unknown mode 3"),
        ({"backend": "inductors"}, ValueError, "unknown backend 'inductors'; the backends are"),
        ({"backend": "inductor"}, ValueError, "a part of torch.compile itself.* leave it out for quickfuse's kernels"),
        ({"fullgraph": "yes"}, TypeError, "fullgraph is True or False, not 'yes'"),
        ({"dynamic": 1}, TypeError, "dynamic is True, False or None, not 1"),
    ],
)  # fmt: skip
def test_compile_refuses(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        quickfuse.compile(lambda x: x, **arguments)


def test_names_of_torch_compile(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Accepted; what one of them does not do here is said, once."""
    monkeypatch.setattr(settings, "_said", set())
    for arguments, mode in (
        ({"mode": "max-autotune-no-cudagraphs"}, "max-autotune-no-cudagraphs"),
        ({"options": {"max_autotune": True}}, "max-autotune"),
        ({"options": {"triton.cudagraphs": True, "epilogue_fusion": True}}, "reduce-overhead"),
        ({"options": {"triton.cudagraphs": False, "fallback_random": True}}, "default"),
    ):  # fmt: skip
        compiled = quickfuse.compile(lambda x: x + 1, **arguments)
        assert compiled.settings.mode == mode and torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert not caplog.records
    for _ in range(2):
        quickfuse.compile(lambda x: x + 1, options={"shape_padding": True, "guard_filter_fn": lambda guards: guards})
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "shape_padding" in caplog.text and "not padded" in caplog.text and "no guard is ever left out" in caplog.text


def test_classes() -> None:
    """Calls of a class's objects are compiled, and those of its subclasses; what cannot be compiled so."""

    @quickfuse.compile
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).relu() * 2

    class Shifted(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    @quickfuse.compile(fullgraph=True)
    class Multiply:
        factor = 2.0

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor + 1

    assert isinstance(Scaled, type) and Scaled.__name__ == "Scaled"
    x = torch.randn(2, 3)
    for kind in (Scaled, Shifted):
        module = kind()
        module.register_forward_hook(lambda module, args, result: result * 3)
        before = logs.counts["kernel launches"]
        found = module(x)
        assert logs.counts["kernel launches"] > before
        torch.testing.assert_close(found, ((module.layer(x).relu() * 2) + (kind is Shifted)) * 3)
        found.sum().backward()
        assert module.layer.weight.grad is not None
    multiply, module = Multiply(), Scaled()
    for factor in (2.0, 3.0):
        Multiply.factor = factor
        torch.testing.assert_close(multiply(x), x * factor + 1)
        within = quickfuse.compile(lambda x: multiply(module(x)), fullgraph=True)
        torch.testing.assert_close(within(x), module.layer(x).relu() * 2 * factor + 1)

    with pytest.raises(TypeError, match=r"PyTorch's own class: compile an object of it, quickfuse.compile\(Linear\(...\)\)"):
        quickfuse.compile(nn.Linear)
    with pytest.raises(TypeError, match="a function, a method or a module, not the class Plain"):

        @quickfuse.compile
        class Plain:
            pass

    with pytest.raises(TypeError, match="needs a callable, not an int"):
        quickfuse.compile(3)  # type: ignore[call-overload]


# fullgraph --------------------------------------------------------------------------------------------------------


class Own(Exception):
    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


def raises_own(x: T) -> T:
    if x.shape[0] == 3:
        raise Own("mine", 3) from ValueError("the cause")
    return x


def _calls(x: T) -> T:
    return raises_own(x * 2) + 1


@pytest.mark.parametrize(
    "function",
    [
        _calls, lambda x: x + {}["key"], lambda x: x.no_such, lambda x: x.view(7), lambda x: torch.ones(3) @ torch.ones(4),
        lambda x: x + int("q"), lambda x: x + undefined, lambda x: [x][3], lambda x: raises_own(x, 1),  # noqa: F821
        lambda x: x.sum(5), lambda x: torch.cat([x, torch.ones(2, 2)]),
    ],
)  # fmt: skip
def test_fullgraph_lets_the_programs_exception_through(function: Callable[..., Any]) -> None:
    """The same type, text, attributes, cause and traceback."""

    def raised_by(call: Callable[..., Any]) -> BaseException:
        with pytest.raises(Exception) as raised:
            call(torch.ones(3))
        return raised.value

    wanted, compiled = raised_by(function), quickfuse.compile(function, fullgraph=True)
    for _ in range(2):
        found = raised_by(compiled)
        assert type(found) is type(wanted) and str(found) == str(wanted) and vars(found) == vars(wanted)
        assert type(found.__cause__) is type(wanted.__cause__) and type(found.__context__) is type(wanted.__context__)
        own = [frame for frame in traceback.extract_tb(found.__traceback__) if frame.filename == __file__]
        own_wanted = [frame for frame in traceback.extract_tb(wanted.__traceback__) if frame.filename == __file__]
        assert [(f.name, f.lineno) for f in own[1:]] == [(f.name, f.lineno) for f in own_wanted[1:]]


def test_fullgraph_arguments_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        quickfuse.compile(lambda x, y: x + y, fullgraph=True)(torch.ones(2))


def test_fullgraph_effects_before_the_exception_happen_once() -> None:
    seen = []

    def function(x: T) -> T:
        seen.append(1)
        x.add_(1)
        raise Own("mine", 1)

    x = torch.zeros(2)
    with pytest.raises(Own):
        quickfuse.compile(function, fullgraph=True)(x)
    assert seen == [1] and x.tolist() == [1, 1]


def test_fullgraph_breaks_are_still_breaks() -> None:
    """Also where the program handles what an operator raises; a branch of which one side only raises is none."""

    def branches(x: T) -> T:
        if x.sum() > 0:
            return x * 2
        return x

    def checks(x: T) -> T:
        if x.sum() > 0:
            raise Own("mine", 1)
        return x

    def handles(x: T) -> T:
        seen.append(1)
        try:
            return x.view(7)
        except RuntimeError:
            return x

    seen: list[int] = []
    with pytest.raises(GraphBreak, match="a branch on a tensor's value"):
        quickfuse.compile(branches, fullgraph=True)(torch.ones(2))
    with pytest.raises(Own, match="mine"):
        quickfuse.compile(checks, fullgraph=True)(torch.ones(2))
    try:
        assert torch.equal(quickfuse.compile(handles, fullgraph=True)(torch.ones(2)), torch.ones(2))
    except GraphBreak:
        assert not seen, "what breaks has not run"


# reports ----------------------------------------------------------------------------------------------------------


def test_a_report_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The program runs on; the log has the report."""
    from quickfuse.pipeline import compiling

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("an accident")

    monkeypatch.setattr(config, "raise_internal_errors", False)
    monkeypatch.setattr(compiling, "specialise", fails)
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    for function in (lambda x: x + 1, lambda x: x[0] + 1):
        assert torch.equal(quickfuse.compile(function)(torch.ones(2)), function(torch.ones(2)))
    assert "internal error" in caplog.text and "an accident" in caplog.text and "cannot be written" in caplog.text


# the command ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked_interpreters")
def test_python_m_and_version() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "quickfuse", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    done = run("--version")
    assert done.returncode == 0 and done.stdout.startswith(f"quickfuse {quickfuse.__version__} (PyTorch {torch.__version__}")
    assert "Usage: quickfuse" in run("--help").stdout


def test_newer_settings_of_precision() -> None:
    """With one of these PyTorch raises where it is asked for the older one."""
    before = torch.backends.mkldnn.matmul.fp32_precision

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            y = x @ x
        return y.float().sin() + x @ x

    x = torch.randn(3, 3)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        for backend in ("quickfuse", "eager"):
            compiled = quickfuse.compile(function, fullgraph=True, backend=backend, options={"raise_internal_errors": True})
            torch.testing.assert_close(compiled(x), function(x))
            assert quickfuse.compile(torch.nn.Linear(3, 3))(x).shape == x.shape
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
