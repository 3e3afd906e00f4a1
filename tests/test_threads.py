"""Compiled functions in several threads at once, inside one another, in themselves, and in hooks of autograd."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse import config


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    """Threads take turns after a few instructions instead of every 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], Any], count: int = 4) -> list[Any]:
    """Run `work(number)` in as many threads at once; raises what any of them raised."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


def plain(x: torch.Tensor, k: float) -> torch.Tensor:
    return torch.sin(x) * k + x.sum()


def in_place(x: torch.Tensor, k: float) -> torch.Tensor:
    x = x.clone()
    x.mul_(k).add_(1)
    return x


def breaking(x: torch.Tensor, k: float) -> torch.Tensor:
    y = x * k
    if y.sum() > 0:
        y = y + 1
    quickfuse.graph_break()
    return y * k


def several_breaks(x: torch.Tensor, k: float) -> torch.Tensor:
    total = x * 0
    for n in range(4):
        total = total + breaking(x + n, k)
        print(end="")
    return total


def native_loop(x: torch.Tensor, k: float) -> torch.Tensor:
    state = 0
    for n in range(1500):
        state = (state * 31 + n) % 101
    return x * k + state


PROGRAMS = [plain, in_place, breaking, several_breaks, native_loop]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_same_function(program: Callable[..., torch.Tensor], warm: bool) -> None:
    compiled = quickfuse.compile(program)
    if warm:
        compiled(torch.ones(5), 2.0)

    def work(number: int) -> None:
        x = torch.arange(5.0) + number
        for n in range(20):
            found = compiled(x, 1.5 + n)
            assert torch.allclose(found, program(x, 1.5 + n)), (number, n)

    in_threads(work)
    alone = quickfuse.compile(program)
    for n in range(20):
        alone(torch.arange(5.0) + n % 4, 1.5 + n)
    assert compiled.graph_count == alone.graph_count, "threads that wait for a compilation use it"


@pytest.mark.parametrize("program", [plain, several_breaks])
def test_a_specialisation_for_each_thread(program: Callable[..., torch.Tensor]) -> None:
    """Shapes and types that change from call to call, others in every thread."""
    compiled = quickfuse.compile(program)

    def work(number: int) -> None:
        for n in range(6):
            x = torch.arange(float(number + 1)).to(torch.float64 if n % 2 else torch.float32)
            assert torch.allclose(compiled(x, 2.0), program(x, 2.0))

    in_threads(work, 3)


def test_modes_belong_to_threads() -> None:
    weight = torch.ones(3, requires_grad=True)
    compiled = quickfuse.compile(lambda x: (x * weight).relu())

    def work(number: int) -> None:
        context = torch.no_grad() if number % 2 else contextlib.nullcontext()
        for _ in range(20):
            with context:
                assert compiled(torch.ones(3)).requires_grad is (number % 2 == 0)

    in_threads(work)


def test_training_in_threads() -> None:
    def train(seed: int, compile_: Callable[[Any], Any]) -> list[torch.Tensor]:
        x, y = torch.linspace(-1, 1, 12).reshape(4, 3) * seed, torch.ones(4, 2)
        model = torch.nn.Linear(3, 2)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.1 * seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        step, forward = compile_(optimizer.step), compile_(lambda model, x, y: ((model(x) - y) ** 2).mean())
        for _ in range(5):
            optimizer.zero_grad()
            forward(model, x, y).backward()
            step()
        return [p.detach() for p in model.parameters()]

    found = in_threads(lambda number: train(number + 1, quickfuse.compile), 3)
    for number, parameters in enumerate(found):
        for ours, eager in zip(parameters, train(number + 1, lambda f: f), strict=True):
            assert torch.allclose(ours, eager, atol=1e-5)


def test_one_optimizer_step_function_for_many_optimizers() -> None:
    """One specialisation whose kernels' argument blocks the threads share."""
    step = quickfuse.compile(lambda optimizer: optimizer.step())

    def make(number: int) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
        parameters = [torch.nn.Parameter(torch.full((4,), float(number + k))) for k in range(5)]
        return parameters, torch.optim.SGD(parameters, lr=0.1)

    def work(number: int) -> None:
        parameters, optimizer = make(number)
        others, eager = make(number)
        for n in range(15):
            for p in (*parameters, *others):
                p.grad = torch.full((4,), float(n + number))
            step(optimizer)
            eager.step()
            for ours, theirs in zip(parameters, others, strict=True):
                assert torch.allclose(ours, theirs), (number, n)

    in_threads(work)


def test_reset_while_others_run() -> None:
    compiled = quickfuse.compile(several_breaks)
    x = torch.arange(4.0)
    expected = several_breaks(x, 2.0)

    def work(number: int) -> None:
        for _ in range(5):
            if number == 0:
                compiled.reset()
            assert torch.allclose(compiled(x, 2.0), expected)

    in_threads(work, 3)


def test_errors_in_threads() -> None:
    def program(x: torch.Tensor, k: int) -> torch.Tensor:
        if x.sum() > k:
            raise ValueError(k)
        return x * k

    compiled = quickfuse.compile(program)

    def work(number: int) -> None:
        for _ in range(8):
            if number % 2:
                with pytest.raises(ValueError, match=str(number)):
                    compiled(torch.full((3,), 9.0), number)
            else:
                assert torch.equal(compiled(torch.zeros(3), number), torch.zeros(3))

    in_threads(work)


# --- inside one another ---


def test_compiled_functions_call_one_another() -> None:
    inner = quickfuse.compile(plain)
    middle = quickfuse.compile(lambda x, k: inner(x, k) + breaking(x, k))
    outer = quickfuse.compile(lambda x, k: middle(inner(x, k), k) * 2)
    x = torch.arange(3.0)

    def eager(x: torch.Tensor, k: float) -> torch.Tensor:
        y = plain(x, k)
        return (plain(y, k) + breaking(y, k)) * 2

    for k in (1.0, 2.0, 3.0):
        assert torch.allclose(outer(x, k), eager(x, k))
    in_threads(lambda number: [torch.testing.assert_close(outer(x, 1.0 + number), eager(x, 1.0 + number)) for _ in range(5)])


def test_compiled_functions_that_are_called_natively() -> None:
    """From the other side of a break: a disabled function calls a compiled one, that calls a disabled one."""
    inner = quickfuse.compile(breaking)

    @quickfuse.disable(recursive=False)
    def natively(x: torch.Tensor, k: float) -> torch.Tensor:
        return inner(x, k) + 1

    outer = quickfuse.compile(lambda x, k: natively(x * 2, k) * 3)
    x = torch.arange(3.0)
    for k in (1.0, 2.0):
        for _ in range(3):
            assert torch.allclose(outer(x, k), (breaking(x * 2, k) + 1) * 3)
    assert inner.graph_count > 0


@pytest.mark.parametrize("breaks", [False, True])
def test_recursion(breaks: bool) -> None:
    def power(x: torch.Tensor, n: int) -> torch.Tensor:
        if breaks:
            quickfuse.graph_break()
        if n == 0:
            return torch.ones_like(x)
        return x * recursive(x, n - 1)

    recursive: Any = quickfuse.compile(power)
    x = torch.tensor([1.0, 2.0])
    for n in (0, 1, 3, 5, 3):
        assert torch.allclose(recursive(x, n), x**n)


def test_recursion_through_a_tensor() -> None:
    def halve(x: torch.Tensor) -> torch.Tensor:
        return recursive(x / 2) + 1 if x.sum() > 1 else x

    recursive: Any = quickfuse.compile(halve)
    plain_halve: Any = lambda x: plain_halve(x / 2) + 1 if x.sum() > 1 else x  # noqa: E731
    for value in (0.5, 3.0, 40.0):
        assert torch.allclose(recursive(torch.full((2,), value)), plain_halve(torch.full((2,), value)))


# --- hooks ---


def test_from_hooks_of_autograd() -> None:
    clip = quickfuse.compile(lambda g: g.clamp(-0.5, 0.5) * 2)
    w = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    w.register_hook(clip)
    forward = quickfuse.compile(lambda w: (w * w).sum())
    for _ in range(3):
        w.grad = None
        forward(w).backward()
        assert torch.allclose(w.grad, (2 * w.detach()).clamp(-0.5, 0.5) * 2)


def test_a_function_that_is_its_own_hook() -> None:
    """The engine may call the function from inside of the very call that is running."""

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = quickfuse.compile(double)
    w = torch.ones(3, requires_grad=True)
    w.register_hook(compiled)

    def step(w: torch.Tensor) -> torch.Tensor:
        w.grad = None
        loss = compiled(w).sum()
        loss.backward()
        return w.grad

    whole = quickfuse.compile(step)
    for _ in range(3):
        assert torch.equal(step(w), torch.full((3,), 4.0))
        assert torch.equal(whole(w), torch.full((3,), 4.0))


def test_optimizer_step_in_backward() -> None:
    w = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    step = quickfuse.compile(optimizer.step)

    def step_and_clear(parameter: torch.Tensor) -> None:
        step()
        optimizer.zero_grad()

    w.register_post_accumulate_grad_hook(step_and_clear)
    forward = quickfuse.compile(lambda w: (w * 3).sum())
    for k in range(4):
        forward(w).backward()
        assert torch.allclose(w.detach(), torch.full((3,), 1 - 0.3 * (k + 1)))


def test_from_module_hooks() -> None:
    scale = quickfuse.compile(lambda module, args, out: out * 2 + module.bias.detach())
    layer = torch.nn.Linear(3, 3)
    plain_out = layer(torch.ones(2, 3))
    layer.register_forward_hook(scale)
    compiled = quickfuse.compile(layer)
    for _ in range(3):
        assert torch.allclose(compiled(torch.ones(2, 3)), plain_out * 2 + layer.bias)


def test_from_finalizers() -> None:
    """A finalizer that runs in the middle of a call, and calls the same function."""
    compiled = quickfuse.compile(plain)
    x = torch.arange(3.0)
    expected = plain(x, 2.0)
    found = []

    class Loop:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            found.append(compiled(x, 2.0))

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(30):
            Loop()
            assert torch.allclose(compiled(x, 2.0), expected)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert len(found) == 30 and all(torch.allclose(f, expected) for f in found)


def test_deep_recursion_raises_what_python_raises() -> None:
    def endless(x: torch.Tensor) -> torch.Tensor:
        return endless(x + 1)

    with pytest.raises(RecursionError):
        quickfuse.compile(endless)(torch.ones(2))


def test_the_limit_is_one_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "recompile_limit", 3)
    compiled = quickfuse.compile(plain)

    def work(number: int) -> None:
        for n in range(4):
            x = torch.arange(float(4 * number + n + 1))
            assert torch.allclose(compiled(x, 2.0), plain(x, 2.0))

    in_threads(work, 3)
    assert len(compiled.specialisations) == 3
