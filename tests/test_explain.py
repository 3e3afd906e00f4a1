"""What a user is told: explain(), fullgraph=True, and the logs."""

from __future__ import annotations

import functools
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.explain.hints import hint_for

T = torch.Tensor


def bar(a: T, b: T) -> T:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


BRANCH = f"{__file__}:{bar.__code__.co_firstlineno + 2}"


# explain ----------------------------------------------------------------------------------------------------------


def test_explain_bar() -> None:
    explanation = quickfuse.explain(bar)(torch.randn(10), -torch.rand(10))
    assert (explanation.graph_count, explanation.graph_break_count, explanation.op_count) == (2, 1, 7)
    assert explanation.ops_per_graph == [
        ["torch.abs", "operator.add", "operator.truediv", "Tensor.sum", "operator.lt"],
        ["operator.mul", "operator.mul"],
    ]
    (broken,) = explanation.break_reasons
    assert broken.reason == "a branch on a tensor's value"
    assert broken.source_line == "if b.sum() < 0:"
    assert broken.location == BRANCH
    assert "torch.where" in broken.hint
    assert [(frame.name, frame.line) for frame in broken.user_stack] == [("bar", "if b.sum() < 0:")]
    assert [[node.name for node in gm.graph.nodes] for gm in explanation.graphs] == [
        ["a", "b", "abs_1", "add", "x", "sum_1", "lt", "output"],
        ["b", "x", "b_1", "mul", "output"],
    ]
    assert all(isinstance(gm, torch.fx.GraphModule) for gm in explanation.graphs)
    assert set(explanation.compile_times) == {"capture", "lower", "schedule", "kernels", "glue"}
    assert all(seconds >= 0 for seconds in explanation.compile_times.values())
    assert "L['a'] is a Tensor float32[10]" in map(str, explanation.out_guards)


def test_explanation_as_text() -> None:
    text = str(quickfuse.explain(bar)(torch.randn(10), -torch.rand(10)))
    expected = f"""bar: 2 graphs with 7 operators, 1 graph break

Graph break 1: a branch on a tensor's value
  at {BRANCH}, in bar
      if b.sum() < 0:
  Instead: compute both sides and choose with torch.where(condition, this, that)"""
    assert text.startswith(expected)
    assert re.search(rf"\nGraph 1, from {re.escape(__file__)}:\d+ on, \d kernels?\n  torch.abs, operator.add, ", text)
    assert "\n  operator.mul (2)\n" in text
    assert re.search(r"\nCompiled in \d+\.\d{3} s: capture \d", text)


def test_a_break_in_an_inner_function_shows_the_way_there() -> None:
    def inner(v: T) -> T:
        print("looking", file=None)
        return v + 1

    def outer(v: T) -> T:
        return inner(v * 2)

    (broken,) = quickfuse.explain(outer)(torch.randn(3)).break_reasons
    assert [frame.name for frame in broken.user_stack] == ["outer", "inner"]
    assert f"called from {__file__}:{outer.__code__.co_firstlineno + 1}, in outer" in str(broken)
    assert 'print("looking", file=None)' in str(broken)


def test_every_break_is_listed_once() -> None:
    def function(v: T) -> list[float]:
        for _ in range(2):
            print(v.shape, file=None)
        print(v)
        print(v)
        return (v + 1).tolist()

    explanation = quickfuse.explain(function)(torch.randn(3))
    first = function.__code__.co_firstlineno
    places = [int(broken.location.rpartition(":")[2]) for broken in explanation.break_reasons if broken.reason == "print"]
    assert places == [first + 2, first + 3, first + 4]
    assert "a tensor's contents as Python objects" in {broken.reason for broken in explanation.break_reasons}
    assert len({(broken.location, broken.reason) for broken in explanation.break_reasons}) == explanation.graph_break_count


def test_explain_a_module_and_its_keywords() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, v: T, *, scale: float = 1.0) -> T:
            return self.linear(v) * scale

    model = Model()
    for what in (model, quickfuse.compile(model)):
        with torch.no_grad():
            explanation = quickfuse.explain(what)(torch.randn(2, 3), scale=2.0)
        assert (explanation.graph_count, explanation.graph_break_count) == (1, 0)
        assert str(explanation).startswith("test_explain_a_module_and_its_keywords.<locals>.Model: 1 graph") or str(
            explanation
        ).startswith("Model: 1 graph")


def test_explain_runs_the_function_once() -> None:
    calls: list[int] = []

    def function(v: T) -> T:
        calls.append(len(calls))
        return v + 1

    quickfuse.explain(function)(torch.randn(3))
    assert calls == [0]


def test_explain_what_is_not_captured() -> None:
    def generator(v: T) -> Any:
        yield v + 1

    explanation = quickfuse.explain(generator)(torch.randn(3))
    assert explanation.graph_count == 0
    (broken,) = explanation.break_reasons
    assert "generator" in broken.reason and broken.location.startswith(__file__)
    assert "Left to Python: the whole function" in str(explanation)
    explanation = quickfuse.explain(functools.partial(bar, torch.ones(3)))(torch.ones(3))
    assert explanation.graph_count == 2
    explanation = quickfuse.explain(torch.sin)(torch.ones(3))
    assert "a callable without Python code" in str(explanation)


def test_explain_says_why_there_are_no_kernels() -> None:
    weight = torch.ones(3, requires_grad=True)
    explanation = quickfuse.explain(lambda v: v * weight)(torch.randn(3))
    assert explanation.without_kernels == ["its results need gradients"] or explanation.kernels_per_graph == [1]


def test_explain_uses_the_backend_of_a_compiled_function() -> None:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        seen.append(gm)
        return gm.forward

    seen: list[torch.fx.GraphModule] = []
    explanation = quickfuse.explain(quickfuse.compile(bar, backend=backend))(torch.randn(3), torch.randn(3))
    assert len(seen) == explanation.graph_count == 2
    assert "backend" in explanation.compile_times


def test_explain_needs_a_callable() -> None:
    with pytest.raises(TypeError, match="callable"):
        quickfuse.explain(3)  # type: ignore[arg-type]


# hints ------------------------------------------------------------------------------------------------------------


def reads_clock(v: T) -> T:
    return v * time.time()


def draws(v: T) -> T:
    return v * random.sample([1, 2], 1)[0]


def selects(v: T) -> T:
    return v[v > 0].sort().values


def listed(v: T) -> list[float]:
    return (v + 1).tolist()


def to_numpy(v: T) -> Any:
    return (v + 1).numpy() * 2


def calls_back(v: T) -> T:
    v.requires_grad_()
    (v * v).sum().backward()
    return v.grad  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (bar, "torch.where"), (reads_clock, "pass the time as an argument"), (draws, "draw random numbers before"),
        (selects, "mask"), (listed, "keep it a tensor"), (to_numpy, "keep it a tensor"),
    ],
)  # fmt: skip
def test_hints_say_what_to_write_instead(function: Callable[..., Any], advice: str) -> None:
    args = [torch.randn(3)] * function.__code__.co_argcount
    hints = [broken.hint for broken in quickfuse.explain(function)(*args).break_reasons]
    assert any(advice in hint for hint in hints), hints


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("print", "print before or after"),
        ("a branch on a tensor's value (through item())", "torch.where"),
        ("backward() inside the compiled function", "outside of the compiled function"),
        ("the first import of json", "import it at the top"),
        ("the native function math.fsum", "capture cannot look into it"),
        ("something that nobody thought of", "move this line out"),
    ],
)
def test_hints_by_reason(reason: str, advice: str) -> None:
    assert advice in hint_for(reason)


def test_a_hint_of_the_reason_itself() -> None:
    assert hint_for("something that nobody thought of", "write it twice") == "write it twice"


# fullgraph --------------------------------------------------------------------------------------------------------


def test_fullgraph_tells_all() -> None:
    with pytest.raises(quickfuse.errors.GraphBreak) as raised:
        quickfuse.compile(bar, fullgraph=True)(torch.randn(3), torch.randn(3))
    error = raised.value
    assert (error.reason, error.location, error.source_line) == ("a branch on a tensor's value", BRANCH, "if b.sum() < 0:")
    assert "torch.where" in error.hint and [frame.name for frame in error.user_stack] == ["bar"]
    assert str(error).splitlines() == [
        f"{BRANCH}: a branch on a tensor's value",
        "    if b.sum() < 0:",
        f"  hint: {error.hint}",
    ]


def test_fullgraph_of_what_cannot_begin() -> None:
    def generator(v: T) -> Any:
        yield v + 1

    with pytest.raises(quickfuse.errors.GraphBreak) as raised:
        quickfuse.compile(generator, fullgraph=True)(torch.randn(3))
    assert raised.value.location == f"{__file__}:{generator.__code__.co_firstlineno}"


# logs -------------------------------------------------------------------------------------------------------------


def test_every_channel_says_something(caplog: pytest.LogCaptureFixture) -> None:
    quickfuse.set_logs(**dict.fromkeys(quickfuse.logs.CHANNELS, True))

    def different(a: T, b: T, name: str) -> T:
        c = a.cosh() / b.sinh().atan() + len(name)
        return bar(c.to(torch.float64), b)

    compiled = quickfuse.compile(different)
    compiled(torch.randn(4), -torch.rand(4), "first")
    compiled(torch.randn(4), -torch.rand(4), "second")
    quickfuse.compile(lambda v: v.sin())(torch.ones(3, requires_grad=True))
    channels = {message.partition("]")[0].strip("[") for message in caplog.messages}
    assert channels == set(quickfuse.logs.CHANNELS)
    graphs = [message for message in caplog.messages if message.startswith("[graph]")]
    assert "c = a.cosh() / b.sinh().atan() + len(name)" in graphs[0]
    (first, *_) = [message for message in caplog.messages if message.startswith("[graph_breaks]")]
    assert first.splitlines()[:2] == [f"[graph_breaks] graph break at {BRANCH}: a branch on a tensor's value",
                                      "    if b.sum() < 0:"]  # fmt: skip
    assert first.splitlines()[2].startswith("  hint: ")


def test_unknown_channels() -> None:
    with pytest.raises(ValueError, match="recompiles, graph_breaks, guards, graph, joint, loops, segments, kernels"):
        quickfuse.set_logs(nonsense=True)


@pytest.mark.usefixtures("forked_interpreters")
def test_channels_from_the_environment() -> None:
    program = "import torch, quickfuse; quickfuse.compile(lambda v: print(v) or v + 1)(torch.ones(3))"
    environment = {**os.environ, "QUICKFUSE_LOGS": "graph_breaks, nonsense"}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "[quickfuse] [graph_breaks] graph break at <string>:1: print" in result.stderr
    assert "unknown channels nonsense; known are recompiles" in result.stderr


def test_recompilation_by_shape_says_what_it_is_now(caplog: pytest.LogCaptureFixture) -> None:
    quickfuse.set_logs(recompiles=True)
    compiled = quickfuse.compile(lambda v: v + 1)
    compiled(torch.ones(3))
    compiled(torch.ones(4))
    if caplog.messages:  # sizes that are symbols need no recompilation
        assert "- L['v'] is a Tensor float32[3]  # now float32[4]" in caplog.messages[0]


def test_recompilation_behind_a_decorator(caplog: pytest.LogCaptureFixture) -> None:
    def decorator(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> T:
            return function(*args, **kwargs)

        return wrapper

    class Options:
        def __init__(self) -> None:
            self.steps = 1

    @decorator
    def stepped(v: T, options: Options, *, flag: bool = False) -> T:
        return v + 1 if options.steps > 2 else v - 1

    quickfuse.set_logs(recompiles=True)
    compiled, options = quickfuse.compile(stepped), Options()
    compiled(torch.ones(3), options)
    options.steps = 3
    compiled(torch.ones(3), options)
    compiled(torch.ones(3), options, flag=True)
    first = caplog.messages[0].splitlines()
    inner = stepped.__wrapped__  # type: ignore[attr-defined]
    assert first[0] == f"[recompiles] Recompiling function stepped in {__file__}:{inner.__code__.co_firstlineno}"
    assert first[1:] == [
        "    triggered by the following guard failure(s):",
        f"    - not (L['options'].steps > 2)  # {__file__}:{inner.__code__.co_firstlineno + 2}",
    ]


def test_recompilation_of_a_method_and_of_a_module(caplog: pytest.LogCaptureFixture) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.depth = 1

        def forward(self, v: T) -> T:
            return v + 1 if self.depth > 2 else v - 1

    quickfuse.set_logs(recompiles=True)
    for compile_it in (quickfuse.compile, lambda model: quickfuse.compile(model.forward)):
        caplog.clear()
        model = Model()
        compiled = compile_it(model)
        compiled(torch.ones(3))
        model.depth = 3
        compiled(torch.ones(3))
        (message,) = caplog.messages
        assert "Recompiling function forward in" in message and "- not (L['self'].depth > 2)" in message


def test_recompilation_in_the_middle_names_the_place(caplog: pytest.LogCaptureFixture) -> None:
    def function(v: T, n: int) -> T:
        if v.sum() > 0:
            v = v + 1
        return v * n if n > 2 else v

    quickfuse.set_logs(recompiles=True)
    compiled = quickfuse.compile(function)
    compiled(torch.ones(3), 1)
    compiled(torch.ones(3), 4)
    (message,) = caplog.messages
    first = function.__code__.co_firstlineno
    assert f"Recompiling function function in {__file__}:{first}, from {__file__}:{first + 2} on" in message
    assert "- not (L['n'] > 2)" in message


def test_the_recompile_limit_names_the_guard(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(quickfuse.config, "recompile_limit", 2)
    compiled = quickfuse.compile(lambda v, name: v + len(name))
    for name in ("a", "bb", "ccc", "dddd"):
        compiled(torch.ones(3), name)
    (message,) = caplog.messages
    assert re.search(r"was compiled 2 times; the guard that keeps failing is L\['name'\] == '(a|bb)'", message)


def test_reasons_are_short() -> None:
    """They quote what the program raises, which may be of any length."""

    def raising(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        raise ValueError("spam\n" * 1000 + str(y.shape))

    compiled = quickfuse.compile(raising, backend="eager")
    with pytest.raises(ValueError, match="spam"):
        compiled(torch.ones(3))
    assert all(len(pause.reason) <= 200 and "\n" not in pause.reason for pause in compiled.breaks) and compiled.breaks


def test_arguments_in_the_wrong_place():
    with pytest.raises(TypeError, match=r"quickfuse.explain\(function\)\(\*args\)"):
        quickfuse.explain(torch.sin, torch.ones(3))


def test_channels_are_given_by_name():
    with pytest.raises(TypeError, match=r"set_logs\(recompiles=True\), not set_logs\('graph'\)"):
        quickfuse.set_logs("graph")
