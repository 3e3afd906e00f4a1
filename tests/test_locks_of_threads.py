"""Locks of the program's, in compiled functions that several threads call."""

import threading
import time

import pytest
import torch

import quickfuse

_TIMEOUT = 60.0


def _in_threads(*functions):
    """Run functions at the same time, each in a thread of its own, to their ends."""
    errors = []

    def run(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT)
    assert not any(thread.is_alive() for thread in threads), "a dead lock"
    assert not errors, errors


class Counter:
    def __init__(self):
        self.lock = threading.Lock()
        self.count = 0
        self.total = torch.zeros(4)

    def add(self, x):
        y = x * 2
        with self.lock:
            self.count += 1
            self.total = self.total + y
        return y + 1


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_no_update_is_lost(backend):
    counter = Counter()
    add = quickfuse.compile(counter.add, backend=backend)
    add(torch.ones(4))

    def calls():
        for _ in range(300):
            add(torch.ones(4))

    _in_threads(calls, calls, calls)
    assert counter.count == 901
    assert torch.equal(counter.total, torch.full((4,), 1802.0))
    assert not counter.lock.locked() and not add.breaks and add.graph_count <= 2


def test_the_lock_is_held_while_the_graph_runs():
    counter, seen = Counter(), []

    def backend(module, inputs):
        def run(*args):
            seen.append(counter.lock.locked())
            return module(*args)

        return run

    add = quickfuse.compile(counter.add, backend=backend, fullgraph=True)
    add(torch.ones(4))
    add(torch.ones(4))
    assert seen == [True, True] and not counter.lock.locked()


def test_a_lock_that_is_taken_is_waited_for():
    counter = Counter()
    add = quickfuse.compile(counter.add)
    add(torch.ones(4))
    counter.lock.acquire()
    done = []

    def wait():
        add(torch.ones(4))
        done.append(counter.count)

    def release():
        time.sleep(0.2)
        assert not done and counter.count == 1
        counter.count = 10
        counter.lock.release()

    _in_threads(wait, release)
    assert done == [11] and not counter.lock.locked()


def test_locks_in_turn_do_not_meet():
    """One after the other, in two orders: nobody has both."""
    first, second = threading.Lock(), threading.Lock()

    def in_turn(x, a, b):
        with a:
            x = x * 2
        with b:
            x = x + 1
        return x

    compiled = quickfuse.compile(in_turn)
    x = torch.ones(3)
    torch.testing.assert_close(compiled(x, first, second), x * 2 + 1)

    def calls(a, b):
        for _ in range(300):
            compiled(x, a, b)

    _in_threads(lambda: calls(first, second), lambda: calls(second, first))
    assert not first.locked() and not second.locked() and not compiled.breaks


def test_after_a_guard_that_fails_the_lock_is_free():
    counter = Counter()
    add = quickfuse.compile(counter.add, fullgraph=True)
    for size in (4, 4):
        add(torch.ones(size))
    counter.total = torch.zeros(4, dtype=torch.float64)
    add(torch.ones(4))
    assert not counter.lock.locked() and counter.total.dtype == torch.float64 and counter.count == 3
    counter.total = "none"
    with pytest.raises(TypeError):
        add(torch.ones(4))
    assert not counter.lock.locked()
    counter.lock = threading.RLock()
    counter.total = torch.zeros(4)
    with counter.lock:
        add(torch.ones(4))
    assert not counter.lock._is_owned()


def test_a_function_that_takes_the_lock_itself():
    """Code of the program's that a graph calls did not have the lock there."""
    lock = threading.Lock()

    @torch.library.custom_op("quickfuse_tests::takes_a_lock", mutates_args=())
    def takes_a_lock(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x + 1

    takes_a_lock.register_fake(torch.empty_like)

    def f(x):
        with lock:
            y = x * 2
        return takes_a_lock(y) * 3

    compiled = quickfuse.compile(f)
    results = []
    _in_threads(lambda: results.extend(compiled(torch.ones(2)) for _ in range(3)))
    for result in results:
        torch.testing.assert_close(result, torch.full((2,), 9.0))
    assert len(results) == 3 and not lock.locked()


def test_export_says_that_a_lock_is_not_taken():
    counter = Counter()

    class Held(torch.nn.Module):
        def forward(self, x):
            with counter.lock:
                return x * 2

    with pytest.raises(quickfuse.errors.ExportError, match="takes locks"):
        quickfuse.export(Held(), (torch.ones(2),))
    program = quickfuse.export(Held(), (torch.ones(2),), strict=False)
    assert any("is not taken" in assumption.text for assumption in program.assumptions)
