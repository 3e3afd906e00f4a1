"""When a function is specialised again, and what the log says about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quickfuse
from quickfuse import config
from quickfuse.emit import failed_guards
from quickfuse.ir.guard import Guard

T = torch.Tensor


def test_numbers_do_not_recompile() -> None:
    compiled = quickfuse.compile(lambda x, s, n: x * s + n)
    for k in range(5):
        x = torch.randn(3)
        assert torch.allclose(compiled(x, 0.5 * k, k), x * (0.5 * k) + k)
    assert compiled.graph_count == 1


def test_outcome_guard() -> None:
    compiled = quickfuse.compile(lambda x, n: x + 1 if n < 5 else x - 1)
    x = torch.zeros(2)
    assert [compiled(x, n)[0].item() for n in (1, 2, 4, 5, 9, 3)] == [1, 1, 1, -1, -1, 1]
    assert compiled.graph_count == 2


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(4)[::2], torch.zeros(2, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2)),
    ],
    ids=["shape", "dtype", "stride", "requires_grad", "class"],
)  # fmt: skip
def test_tensor_properties_recompile(other: T) -> None:
    compiled = quickfuse.compile(lambda x: x * 2 + 1)
    x = torch.zeros(2)
    for argument in (x, other, x, other):
        expected = argument * 2 + 1
        found = compiled(argument)
        assert torch.equal(found, expected) and found.requires_grad == expected.requires_grad
        assert found.stride() == expected.stride()
    assert compiled.graph_count == 2


def test_grad_mode_recompiles() -> None:
    compiled = quickfuse.compile(lambda x: x * 2)
    x = torch.zeros(2, requires_grad=True)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad
    assert compiled.graph_count == 2


SCALE = 2.0


def helper(x: T) -> T:
    return x * SCALE


def test_replaced_global_function(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = quickfuse.compile(lambda x: helper(x))
    x = torch.ones(2)
    assert torch.equal(compiled(x), x * 2)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert torch.equal(compiled(x), x * 5)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1)
    assert torch.equal(compiled(x), x - 1)


class Layer:
    def forward(self, x: T) -> T:
        return x + 1


def test_replaced_method(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer()
    compiled = quickfuse.compile(lambda x: layer.forward(x))
    x = torch.ones(2)
    assert torch.equal(compiled(x), x + 1)
    monkeypatch.setattr(Layer, "forward", lambda self, x: x + 2)
    assert torch.equal(compiled(x), x + 2)
    layer.forward = lambda x: x + 3  # type: ignore[method-assign]
    assert torch.equal(compiled(x), x + 3)


def test_log_names_guard_and_line(caplog: pytest.LogCaptureFixture) -> None:
    quickfuse.set_logs(recompiles=True)
    quickfuse.logs.log.propagate = True

    def step(x: T, group: dict[str, Any]) -> T:
        if group["nesterov"]:
            return x + 1
        return x * group["lr"]

    compiled = quickfuse.compile(step)
    x = torch.ones(2)
    compiled(x, {"nesterov": False, "lr": 0.1})
    compiled(x, {"nesterov": False, "lr": 0.2})
    assert not caplog.records
    compiled(x, {"nesterov": True, "lr": 0.1})
    assert "Recompiling function" in caplog.text and "step in" in caplog.text
    assert "L['group']['nesterov'] is False" in caplog.text
    assert f"{__file__}:{step.__code__.co_firstlineno + 1}" in caplog.text
    caplog.clear()
    compiled(torch.ones(3), {"nesterov": True, "lr": 0.1})
    assert "L['x'] is a Tensor float32[2]" in caplog.text


def test_specialize_floats(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(config, "specialize_floats", True)
    quickfuse.set_logs(recompiles=True)
    quickfuse.logs.log.propagate = True
    compiled = quickfuse.compile(lambda x, lr: x * lr)
    for k in range(3):
        compiled(torch.ones(2), 0.5 + k)
    assert compiled.graph_count == 3
    assert "L['lr'] == 0.5" in caplog.text


def test_recompile_limit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(config, "recompile_limit", 3)
    quickfuse.logs.log.propagate = True
    dtypes = (torch.float32, torch.float64, torch.int32, torch.int64, torch.int16, torch.float16)
    compiled = quickfuse.compile(lambda x: x + 1)
    for dtype in dtypes:
        assert torch.equal(compiled(torch.zeros(2, dtype=dtype)), torch.ones(2, dtype=dtype))
    assert compiled.graph_count == 3
    assert caplog.text.count("the guard that keeps failing") == 1
    monkeypatch.setattr(config, "on_recompile_limit", "error")
    compiled.reset()
    with pytest.raises(quickfuse.errors.RecompileLimit):
        for dtype in dtypes:
            compiled(torch.zeros(2, dtype=dtype))


def test_replaced_function_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = quickfuse.compile(lambda x: torch.relu(x) + 1)
    x = torch.tensor([-1.0, 2.0])
    assert torch.equal(compiled(x), torch.tensor([1.0, 3.0]))
    monkeypatch.setattr(torch, "relu", lambda x: x * 2)
    assert torch.equal(compiled(x), torch.tensor([-1.0, 5.0]))


def test_replaced_step_of_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    compiled = quickfuse.compile(lambda: optimizer.step())
    compiled()
    assert torch.equal(parameter.detach(), torch.full((2,), 0.5))
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, closure=None: None)
    compiled()
    assert torch.equal(parameter.detach(), torch.full((2,), 0.5))


def test_capture_is_not_tried_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    quickfuse.set_logs(graph_breaks=True)
    quickfuse.logs.log.propagate = True

    def generator(x: torch.Tensor) -> Any:
        yield x + 1

    compiled = quickfuse.compile(generator)
    for _ in range(6):
        assert torch.equal(next(compiled(torch.ones(2))), torch.full((2,), 2.0))
    assert caplog.text.count("runs natively") == config.capture_attempts + 1


def test_many_constants_of_graph_and_guards() -> None:
    """Constants of the computing part and of the guards have names of their own."""
    layer = torch.nn.LayerNorm(8)
    x = torch.randn(2, 8)
    with torch.no_grad():
        assert torch.allclose(quickfuse.compile(lambda x: layer(x) + 1)(x), layer(x) + 1)
        assert torch.allclose(quickfuse.compile(layer)(x), layer(x))
        convolution = torch.nn.Conv2d(3, 4, 3)
        image = torch.randn(1, 3, 8, 8)
        assert torch.allclose(quickfuse.compile(lambda x: convolution(x))(image), convolution(image), atol=1e-6)


def test_slices_as_arguments() -> None:
    compiled = quickfuse.compile(lambda x, s: x[s] + 1)
    x = torch.arange(6.0)
    for s in (slice(0, 3), slice(2, 5), slice(0, 3)):
        assert torch.equal(compiled(x, s), x[s] + 1)
    assert compiled.graph_count == 2


def test_the_guard_that_fails_is_looked_for_among_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code is compiled for each look, which took a fifth of a recompilation."""
    net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(20)))
    compiled = quickfuse.compile(lambda x: net(x))
    compiled(torch.ones(2, 4))
    looks: list[tuple[list[Guard], int | None]] = []
    asked = failed_guards._failing

    def look(guards: list[Guard], *rest: Any) -> int | None:
        looks.append((guards, asked(guards, *rest)))
        return looks[-1][1]

    monkeypatch.setattr(failed_guards, "_failing", look)
    net[15][1].inplace = True
    torch.testing.assert_close(compiled(torch.ones(2, 4)), net(torch.ones(2, 4)))
    some, position = looks[-1]
    assert position is not None and "inplace" in str(some[position])
    failed = compiled.specialisations[-1].segment.guards.index(some[position])
    assert failed > 200 and len(looks) <= failed / failed_guards._TOGETHER + 1
