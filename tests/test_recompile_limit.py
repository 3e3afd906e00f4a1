"""At the limit of specialisations: one warning that says which guard, where and what to do, and eager's results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse import config

X = torch.arange(6.0)


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(config, "recompile_limit", 4)
    before = quickfuse.logs.log.propagate
    quickfuse.logs.log.propagate = True
    yield
    quickfuse.logs.log.propagate = before


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def shapes(k: int) -> tuple[Any, ...]:
    return (torch.ones(k + 1, 2),)


def dtypes(k: int) -> tuple[Any, ...]:
    kinds = (torch.float32, torch.float64, torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8, torch.float16)
    return (torch.ones(3, dtype=kinds[k]),)


def keyed(x: torch.Tensor, table: dict[str, float]) -> torch.Tensor:
    return x * sum(table.values())


def alike(x: torch.Tensor, things: list[torch.Tensor]) -> torch.Tensor:
    return x + sum(things)


def typed(x: torch.Tensor, thing: Any) -> torch.Tensor:
    return x * thing.scale


def thing_of_new_class(k: int) -> Any:
    return type(f"Kind{k}", (), {"scale": float(k)})()


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], str, str]] = {
    "sizes": (lambda x: x * 2, shapes, "L['x'] is a Tensor float32[", "a few sizes"),
    "types": (lambda x: x + x, dtypes, "L['x'] is a Tensor ", "one type"),
    "keys": (keyed, lambda k: (X, {f"k{k}": 1.0}), "list(L['table']) == ['k", "the same keys"),
    "lengths": (alike, lambda k: (X, [X] * (k + 1)), "L['things']", ""),
    "classes": (typed, lambda k: (X, thing_of_new_class(k)), "type(L['thing']) is Kind", "one type"),
}


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("lengths", "sizes")])
def test_one_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    function, arguments, guard, advice = CASES[name]
    compiled = quickfuse.compile(function)
    calls = [arguments(k) for k in range(8)]
    for args in (*calls, *calls):
        assert torch.equal(compiled(*args), function(*args))
    said = warnings_in(caplog)
    assert len(said) == 1, said
    assert "was compiled 4 times; the guard that keeps failing is " in said[0]
    assert guard in said[0] and advice in said[0] and "config.recompile_limit" in said[0]
    assert "test_recompile_limit.py:" in said[0]
    assert len(compiled.entry.specialisations) == 4


@pytest.mark.parametrize("name", CASES)
def test_one_warning_behind_a_break(name: str, caplog: pytest.LogCaptureFixture) -> None:
    function, arguments, _, _ = CASES[name]

    def with_break(*args: Any) -> Any:
        quickfuse.graph_break()
        return function(*args)

    compiled = quickfuse.compile(with_break)
    calls = [arguments(k) for k in range(8)]
    for args in (*calls, *calls):
        assert torch.equal(compiled(*args), function(*args))
    said = warnings_in(caplog)
    limited = [p for p in (compiled.entry, *compiled.points.values()) if len(p.specialisations) >= 4]
    assert len(said) == len(limited), said
    if name == "sizes":
        assert "was called with more than 4 sizes of L['args'][0]" in said[0]
    else:
        assert all("the guard that keeps failing is " in text and " on was compiled" in text for text in said)
    assert len(said) == (name not in ("lengths", "keys")), "these are left to Python before that"


def test_error_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "on_recompile_limit", "error")
    compiled = quickfuse.compile(lambda x: x + 1)
    for k in range(1, 5):
        compiled(torch.zeros(k))
    for k in (5, 6):
        with pytest.raises(quickfuse.errors.RecompileLimit, match=r"L\['x'\] is a Tensor float32"):
            compiled(torch.zeros(k))
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2)), "what was compiled stays"


def test_error_behind_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "on_recompile_limit", "error")
    seen = []

    def program(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        print(end="")
        return x * 2 + 1

    compiled = quickfuse.compile(program)
    with pytest.raises(quickfuse.errors.RecompileLimit, match="keeps failing"):
        for k in range(1, 9):
            compiled(torch.zeros(k))
    assert seen == list(range(1, len(seen) + 1)), "nothing runs twice"


def test_what_was_compiled_is_still_used(caplog: pytest.LogCaptureFixture) -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            graphs.append(args[0].shape)
            return module.forward(*args)

        return run

    compiled = quickfuse.compile(lambda x: x * 2, backend=backend)
    for k in range(7):
        compiled(*dtypes(k))
    assert len(graphs) == 4
    compiled(*dtypes(1))
    compiled(*dtypes(6))
    assert len(graphs) == 5
    compiled.reset()
    compiled(*dtypes(6))
    assert len(graphs) == 6, "after a reset it is compiled again"
    assert len(warnings_in(caplog)) == 1


def test_limit_of_modules(caplog: pytest.LogCaptureFixture) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kind: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if self.kind is None else x * 3

    layer = Layer()
    compiled = quickfuse.compile(layer)
    for k in range(7):
        layer.kind = type(f"Kind{k}", (), {}) if k else None
        assert torch.equal(compiled(X), X * (3 if k else 2))
    said = warnings_in(caplog)
    assert len(said) == 1 and "L['self'].kind is Kind" in said[0], said
    assert "Layer.forward was compiled 4 times" in said[0]


def test_guard_that_fails_most(caplog: pytest.LogCaptureFixture) -> None:
    """Where several guards fail, it is the one that fails for most specialisations that is named."""
    compiled = quickfuse.compile(lambda x, y: x.sum() + y.sum())
    compiled(torch.ones(2, dtype=torch.float64), torch.ones(3))
    for k in range(7):
        compiled(torch.ones(2), *dtypes(k))
    said = warnings_in(caplog)
    assert len(said) == 1 and "is L['y'] is a Tensor " in said[0], said


def test_turns_of_a_loop_without_tensors_are_soon_left_to_python(caplog: pytest.LogCaptureFixture) -> None:
    """Each turn could be compiled for the class that it is about, and none of that would be of use."""
    kinds = [type(f"Kind{k}", (), {}) for k in range(30)]

    def program(x: torch.Tensor, objects: Any) -> torch.Tensor:
        found = 0
        if x.sum() > 0:
            for kind in iter(objects, None):
                if issubclass(kind, kinds[7]) or kind is kinds[9]:
                    found += 1
        return x * found

    compiled = quickfuse.compile(program)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2), iter([*kinds, None]).__next__), torch.full((2,), 2.0))
    assert len(compiled.specialisations) < 12
    assert not [record for record in caplog.records if "was compiled" in record.getMessage()]


def test_a_loop_over_pairs_of_classes_is_captured() -> None:
    table = {(int, str): 1.0, (float, str): 2.0, (bool, bytes): 3.0}

    def program(x: torch.Tensor) -> torch.Tensor:
        total = sum([number for (kind, _), number in table.items() if issubclass(kind, int)])
        return x * total * table[float, str] if (str, str) not in table else x

    compiled = quickfuse.compile(program, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    table[str, str] = 4.0
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))


def test_a_divergence_of_distributions(caplog: pytest.LogCaptureFixture) -> None:
    """PyTorch looks for its formula among all pairs of classes in the first call."""
    kinds = torch.distributions

    def program(mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return kinds.kl_divergence(kinds.Gumbel(mean, scale), kinds.Normal(0.0, 1.0)).sum()

    mean, scale = torch.zeros(2), torch.ones(2)
    compiled = quickfuse.compile(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(mean, scale), program(mean, scale))
    assert not [record for record in caplog.records if "was compiled" in record.getMessage()]


def test_keys_that_keep_changing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left to Python: a hook that is registered and removed in each call has another key each time."""
    monkeypatch.setattr(config, "recompile_limit", 16)
    network = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU())

    def function(x: torch.Tensor) -> torch.Tensor:
        handle = network[0].register_forward_hook(lambda module, args, result: result * 2)
        y = network(x)
        handle.remove()
        return y.sin()

    for called, arguments in ((function, lambda k: (X,)), (keyed, CASES["keys"][1])):
        compiled, captures = quickfuse.compile(called), []
        for k in range(16):
            torch.testing.assert_close(compiled(*arguments(k)), called(*arguments(k)))
            captures.append(compiled.captures)
        assert captures[9] == captures[-1]
    assert not warnings_in(caplog)


@pytest.mark.parametrize("breaks", [False, True])
def test_classes_made_anew(breaks: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that each call makes anew is no reason to compile up to the limit."""
    monkeypatch.setattr(config, "recompile_limit", 16)

    def scaled(x: torch.Tensor, thing: Any) -> torch.Tensor:
        if breaks:
            quickfuse.graph_break()
        return x * thing.scale

    compiled = quickfuse.compile(scaled)
    for k in range(12):
        thing = type("Scaled", (), {"scale": float(k)})()
        assert torch.equal(compiled(X, thing), X * k)
    said = warnings_in(caplog)
    assert len(said) == 1 and "runs natively: each call makes Scaled (" in said[0], said
    assert compiled.captures <= 7


def test_a_limit_and_a_name_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    few = quickfuse.compile(scaled, recompile_limit=2, name="the scale", isolate_recompiles=True)
    usual = quickfuse.compile(scaled)
    for _ in range(2):
        for k in range(6):
            (x,) = dtypes(k)
            torch.testing.assert_close(few(x), scaled(x))
            torch.testing.assert_close(usual(x), scaled(x))
    assert (few.graph_count, usual.graph_count) == (2, 4)
    assert [message.partition(" ")[0] + " " + message.split(" ")[1] for message in warnings_in(caplog)][:1] == ["the scale"]
