"""Compiled functions keep nothing of the user's alive: no model, tensor, optimizer, closure, nor the function itself."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

BACKENDS = ("quickfuse", "eager")
MODEL: Any = None


class Thing:
    """An object of the user's."""

    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale
        self.tensor = torch.ones(4)

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.tensor


def who_holds(reference: weakref.ref[Any]) -> str:
    """For the message of a failing test: chains of what keeps an object alive."""
    lines = []
    level = [reference()]
    for _ in range(5):
        found = [
            r for o in level for r in gc.get_referrers(o) if r is not level and not isinstance(r, type(gc.get_referrers))
        ]
        lines += [f"{type(r).__name__}: {str(r)[:120]}" for r in found]
        level = found[:3]
    return "\n".join(lines)


def check(*references: weakref.ref[Any]) -> None:
    gc.collect()
    for reference in references:
        assert reference() is None, who_holds(reference)


def model_of(kind: str) -> torch.nn.Module:
    if kind == "normed":
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Dropout(0.1))
    return torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(5)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["linear", "normed"])
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_models(backend: str, kind: str, grad: bool) -> None:
    """The compiled function outlives the models that it was called with."""
    compiled = quickfuse.compile(lambda model, x: model(x).sum(), backend=backend)
    for calls in (1, 4):
        with torch.set_grad_enabled(grad):
            model = model_of(kind)
            x = torch.randn(3, 4)
            for _ in range(calls):
                out = compiled(model, x)
                if grad:
                    out.backward()
        references = [weakref.ref(o) for o in (model, x, out, *model.parameters(), *model.modules())]
        del model, x, out
        check(*references)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_models(backend: str) -> None:
    """A compiled model that is dropped takes the original with it."""
    model = model_of("linear")
    compiled = quickfuse.compile(model, backend=backend)
    for _ in range(4):
        compiled(torch.randn(2, 4)).sum().backward()
    references = [weakref.ref(o) for o in (model, compiled, *model.parameters())]
    del model, compiled
    check(*references)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.SGD])
def test_optimizers(backend: str, cls: type[torch.optim.Optimizer]) -> None:
    parameters = [torch.nn.Parameter(torch.randn(3)) for _ in range(5)]
    optimizer = cls(parameters, lr=0.1)  # type: ignore[call-arg]
    step = quickfuse.compile(optimizer.step, backend=backend)
    for _ in range(4):
        for p in parameters:
            p.grad = torch.ones(3)
        step()
    references = [weakref.ref(o) for o in (optimizer, *parameters, parameters[0].grad)]
    del p, parameters, optimizer, step
    check(*references)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_and_closures(backend: str) -> None:
    thing = Thing()
    captured = torch.ones(4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return thing.method(x) + captured  # noqa: F821

    compiled = quickfuse.compile(function, backend=backend)
    for _ in range(3):
        compiled(torch.ones(4))
    references = [weakref.ref(o) for o in (thing, captured, function, compiled)]
    del thing, captured, function, compiled
    check(*references)


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_of_every_kind(backend: str) -> None:
    def function(x: torch.Tensor, thing: Thing, table: dict[str, Any], *rest: Any, key: Any) -> Any:
        thing.last = x * table["t"] + rest[0].tensor + key.method(x)
        table["new"] = thing.last + 1
        return [thing, table, thing.last]

    compiled = quickfuse.compile(function, backend=backend)
    for _ in range(2):
        things = [Thing(), Thing(), Thing()]
        x, t = torch.ones(4), torch.ones(4)
        result = compiled(x, things[0], {"t": t}, things[1], key=things[2])
        references = [weakref.ref(o) for o in (*things, x, t, result[2])]
        del things, x, t, result
        check(*references)


@pytest.mark.parametrize("place", ["global", "closure", "attribute", "list", "dictionary"])
def test_what_is_replaced(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a model came from, another is put: the first is gone, though the function was compiled with it."""
    holder = Thing()
    holder.things = [model_of("linear"), {"m": model_of("linear")}, model_of("linear")]
    inner = model_of("linear")
    monkeypatch.setitem(globals(), "MODEL", model_of("linear"))
    get: dict[str, Callable[[], torch.nn.Module]] = {
        "global": lambda: MODEL, "closure": lambda: inner, "attribute": lambda: holder.things[2],
        "list": lambda: holder.things[0], "dictionary": lambda: holder.things[1]["m"],
    }  # fmt: skip
    find = get[place]
    compiled = quickfuse.compile(lambda x: find()(x))
    for _ in range(4):
        compiled(torch.ones(2, 4))
    reference = weakref.ref(find())
    holder.things[0] = holder.things[1]["m"] = holder.things[2] = inner = model_of("linear")
    globals()["MODEL"] = inner
    check(reference)
    assert torch.allclose(compiled(torch.ones(2, 4)), inner(torch.ones(2, 4)), atol=1e-6)
    check(reference)


def test_functions_that_are_made_in_every_call() -> None:
    compiled = quickfuse.compile(lambda f, x: f(x) + 1)
    for k in range(3):
        thing = Thing(float(k))
        function = lambda x, thing=thing: thing.method(x)  # noqa: E731
        compiled(function, torch.ones(4))
        references = [weakref.ref(thing), weakref.ref(function)]
        del thing, function
        check(*references)


BREAKS: dict[str, Callable[..., Any]] = {}


def breaking(function: Callable[..., Any]) -> Callable[..., Any]:
    BREAKS[function.__name__] = function
    return function


@breaking
def branch(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    y = thing.method(x)
    if y.sum() > 0:
        y = y + thing.tensor
    return thing.method(y)


@breaking
def called(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    y = branch(thing, x) * 2
    print(end="")
    return branch(thing, y)


@breaking
def loop(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    for _ in range(40):
        x = thing.method(x).clone()
        quickfuse.graph_break()
    return x


@breaking
def native_loop(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    total = 0
    for k in range(2000):
        total += k % 3
    return thing.method(x) * total


@breaking
def caught(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    try:
        if x.sum() > 0:
            raise ValueError(thing)
    except ValueError as error:
        return thing.method(x) + error.args[0].scale
    return x


@breaking
def with_block(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = thing.method(x)
        print(end="")
        return y + thing.tensor


@breaking
def generator(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    def parts() -> Any:
        for k in range(3):
            print(end="")
            yield thing.method(x) * k

    return sum(parts(), thing.tensor)


@pytest.mark.parametrize("name", BREAKS)
def test_breaks(name: str) -> None:
    compiled = quickfuse.compile(BREAKS[name])
    for calls in (1, 3):
        thing, x = Thing(), torch.ones(4)
        for _ in range(calls):
            out = compiled(thing, x)
        references = [weakref.ref(o) for o in (thing, x, out, thing.tensor)]
        del thing, x, out
        check(*references)


def raising(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    y = thing.method(x)
    if y.sum() > 0:
        raise RuntimeError("no")
    return y


def failing(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    return thing.method(x) @ torch.ones(5, 5)


def raising_at_once(thing: Thing, x: torch.Tensor) -> torch.Tensor:
    thing.seen = x + 1
    raise RuntimeError("no")


@pytest.mark.parametrize("function", [raising, failing, raising_at_once])
def test_exceptions(function: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(function)
    for _ in range(3):
        thing, x = Thing(), torch.ones(4)
        with pytest.raises(RuntimeError) as caught_error:
            compiled(thing, x)
        references = [weakref.ref(o) for o in (thing, x, thing.tensor)]
        caught_error.value.__traceback__ = None
        del thing, x, caught_error
        check(*references)


def test_recompilation_and_limit(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickfuse.config, "recompile_limit", 3)
    quickfuse.set_logs(recompiles=True, guards=True, graph_breaks=True)
    try:
        compiled = quickfuse.compile(lambda thing, x: thing.method(x).sum())
        references = []
        with caplog.at_level(logging.WARNING):
            for k in range(6):
                thing, x = Thing(), torch.ones(k + 1, 4)
                compiled(thing, x)
                references += [weakref.ref(thing), weakref.ref(x)]
                del thing, x
        check(*references)
        assert any("Recompiling" in record.getMessage() for record in caplog.records)
    finally:
        quickfuse.set_logs(recompiles=False, guards=False, graph_breaks=False)


@pytest.mark.parametrize("function", [Thing.method, branch, native_loop])
def test_explanations(function: Callable[..., Any]) -> None:
    thing, x = Thing(), torch.ones(4)
    explanation = quickfuse.explain(function)(thing, x)
    text = str(explanation)
    references = [weakref.ref(o) for o in (thing, x, thing.tensor)]
    del thing, x
    check(*references)
    assert text == str(explanation)


def test_custom_backends_get_their_examples_for_the_call_only() -> None:
    seen = []

    def backend(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        seen.extend(weakref.ref(e) for e in examples)
        return module.forward

    compiled = quickfuse.compile(lambda x, y: x * y + 1, backend=backend)
    compiled(torch.ones(3), torch.ones(3))
    assert seen
    check(*seen)


def test_disabled_and_captured_natively() -> None:
    thing, x = Thing(), torch.ones(4)
    compiled = quickfuse.compile(lambda thing, x: thing.method(x) + outside(thing, x))

    @quickfuse.disable
    def outside(thing: Thing, x: torch.Tensor) -> torch.Tensor:
        return thing.method(x)

    for _ in range(3):
        compiled(thing, x)
    references = [weakref.ref(o) for o in (thing, x, thing.tensor)]
    del thing, x
    check(*references)


def test_reset_lets_go() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    layer = Layer()
    compiled = quickfuse.compile(lambda x: layer(x) + 1)  # noqa: F821
    compiled(torch.ones(2))
    references = [weakref.ref(layer), weakref.ref(Layer)]
    quickfuse.reset()
    del layer, Layer, compiled
    check(*references)


def test_nothing_grows() -> None:
    """A thousand calls leave no more objects behind than ten."""
    compiled = quickfuse.compile(called)
    thing, x = Thing(), torch.ones(4)

    def objects_after(calls: int) -> int:
        for _ in range(calls):
            compiled(thing, x)
        gc.collect()
        return len(gc.get_objects())

    before = objects_after(10)
    assert objects_after(300) - before < 20


class Noted:
    """Notes its end."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __del__(self) -> None:
        self.log.append("end")


def in_a_traceback(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    def fail() -> None:
        noted = Noted(log)  # noqa: F841
        raise ValueError

    try:
        fail()
    except ValueError:
        log.append("handled")
    log.append("after")
    return x + 1


def with_a_finalizer(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    thing = Thing()
    finalizer = weakref.finalize(thing, log.append, "end")
    log.append(finalizer.alive)
    del thing
    log.append(finalizer.alive)
    return x + 1


def among_weak_values(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    things = weakref.WeakValueDictionary()
    thing = things["a"] = Thing()
    log.append(len(things))
    del thing
    log.append(len(things))
    return x + 1


def a_tensor(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    y = x * 2
    reference = weakref.ref(y)
    log.append(reference() is y)
    x = y + 1
    del y
    log.append(reference() is None)
    return x


@pytest.mark.parametrize("function", [in_a_traceback, with_a_finalizer, among_weak_values, a_tensor])
def test_what_ends_inside(function: Callable[..., Any]) -> None:
    """Objects whose end can be seen end where they do in Python."""
    logs: list[list[Any]] = []
    compiled = quickfuse.compile(function)
    for called in (function, compiled, compiled):
        logs.append([])
        called(torch.ones(2), logs[-1])
    assert logs[1] == logs[2] == logs[0]


def test_objects_made_inside_end_where_python_lets_go_of_them() -> None:
    """Not when the garbage of a capture that ended at a break is collected."""

    def run(x: torch.Tensor) -> list[str]:
        log = []

        class Resource:
            def __init__(self, name: str) -> None:
                self.name = name

            def __del__(self) -> None:
                log.append(self.name)

        item = Resource("a")
        x.sin()
        del item
        log.append("after")
        Resource("b")
        return log

    gc.collect()
    gc.disable()
    try:
        compiled = quickfuse.compile(run)
        assert [compiled(torch.ones(3)) for _ in range(3)] == [["a", "after", "b"]] * 3
    finally:
        gc.enable()


_seen: list[bool] = []
_watched: list[weakref.ref[Any]] = []


@torch.library.custom_op("quickfuse_tests::looks_at_gradients", mutates_args=())
def looks_at_gradients(x: torch.Tensor) -> torch.Tensor:
    _seen.extend(reference() is None for reference in _watched)
    return x.clone()


@looks_at_gradients.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("layers", [2, 8])
@pytest.mark.parametrize("keeps", ["nothing", "returned", "asked"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_last_gradients_are_gone_before_the_next_ones_are_computed(layers: int, keeps: str, compiled: bool) -> None:
    """A whole step that sets them to None takes no memory for both."""
    model = torch.nn.Sequential(*[torch.nn.Linear(160, 160) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watched = model[0].weight

    def step(x: torch.Tensor) -> Any:
        before: Any = None
        if keeps == "returned":
            before = watched.grad
        elif keeps == "asked":
            before = watched.grad is not None
        optimizer.zero_grad()
        with torch.no_grad():
            x = looks_at_gradients(x)
        model(x).square().mean().backward()
        optimizer.step()
        return before

    function = quickfuse.compile(step, fullgraph=True) if compiled else step
    for call in range(6):
        _seen.clear()
        _watched[:] = [] if watched.grad is None else [weakref.ref(watched.grad)]
        content = None if watched.grad is None else watched.grad.clone()
        before = function(torch.randn(4, 160))
        if call == 5:  # before, guards may be taken notes of, once, with what they read
            assert _seen == [keeps != "returned"]
        if keeps == "returned" and call:
            assert torch.equal(before, content)
        elif keeps == "asked":
            assert before is (call > 0)
