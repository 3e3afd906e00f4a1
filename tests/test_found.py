"""Bugs that testing against eager found: each the smallest case that failed."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from differential import check, outcome, same
from quickfuse import config

T = torch.Tensor


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", True)


def ones(count: int = 3) -> T:
    return torch.ones(count)


# numbers --------------------------------------------------------------------------------------------------------


def test_infinite_bound() -> None:
    """A constant infinity in a guard is no name of the generated code."""
    check(lambda x, s: x + 1 if s < math.inf else x - 1, (ones(), 2.0), (ones(), math.inf), (ones(), math.nan))


def test_negative_base() -> None:
    """`(-2) ** n` keeps its parentheses in a guard."""
    check(lambda x, n: x + 1 if (-2) ** n > 0 else x - 1, (ones(), 2), (ones(), 3), (ones(), 4))


@pytest.mark.parametrize("before", ["guard", "body"])
def test_arithmetic_that_raises_later(before: str) -> None:
    """What the function did before it divides by zero has happened."""

    def in_guard(x: T, n: int, log: list[int]) -> T:
        log.append(n)
        return x + 1 if 10 / n > 3 else x - 1

    def in_body(x: T, n: int, log: list[int]) -> T:
        log.append(n)
        return x * (1 / n)

    check(in_guard if before == "guard" else in_body, (ones(), 2, []), (ones(), 0, []), (ones(), 9, []))


def test_power_changes_kind() -> None:
    """`2 ** n` is a float for a negative `n`, and a power of a negative number may be complex."""
    check(lambda x, n: x * 2**n, (torch.arange(3), 2), (torch.arange(3), -1))
    check(lambda x, a, b: x * a**b, (ones(), -2.0, 2.0), (ones(), -2.0, 0.5))


def test_maximum_changes_kind() -> None:
    """`max` of an int and a float is either."""
    check(lambda x, a, b: x * max(a, b), (torch.arange(3), 3, 2.5), (torch.arange(3), 1, 2.5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_integers_beyond_64_bits(dtype: torch.dtype) -> None:
    """Eager raises where a kernel's argument would wrap around."""
    x = torch.arange(3).to(dtype)
    check(lambda x, n: x + n, (x, 3), (x, 2**70), (x, -(2**63)), (x, 2**63))


@pytest.mark.parametrize(
    ("function", "dtype", "numbers"),
    [
        (lambda x, n: x.fill_(n), torch.float16, (3.0, 1e10, math.inf)),
        (lambda x, n: x.fill_(n), torch.float32, (3.0, 1e300, math.nan)),
        (lambda x, n: x.clamp(max=n), torch.uint8, (3, 300)),
        (lambda x, n: x.masked_fill(x > 0, n), torch.int32, (3, 2**40)),
        (lambda x, n: torch.full((3,), n, dtype=torch.uint8) + x, torch.uint8, (3, 300)),
    ],
)
def test_number_beyond_the_dtype(function: Callable[..., T], dtype: torch.dtype, numbers: tuple[Any, ...]) -> None:
    """Operators that convert a number to the tensor's dtype raise where it does not fit."""
    check(function, *((torch.ones(3, dtype=dtype), n) for n in numbers))


def test_sign_of_zero() -> None:
    """0.0 and -0.0 are equal and not the same."""
    check(lambda x, s: x * math.copysign(1.0, s), (ones(), 0.0), (ones(), -0.0))


def test_default_dtype_changes() -> None:
    """Dividing integers gives the default dtype."""
    compiled = quickfuse.compile(lambda x: x / 2)
    assert compiled(torch.arange(3)).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(torch.arange(3)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


# aliasing -------------------------------------------------------------------------------------------------------


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


def _append(a: list[T], b: list[T], x: T) -> Any:
    a.append(x + 1)
    return len(b), x * len(b)


def _insert(a: dict[str, T], b: dict[str, T], x: T) -> Any:
    a["k"] = x + 1
    return "k" in b, x * len(b)


def _assign(a: Box, b: Box, x: T) -> Any:
    a.value = a.value + 1
    b.value = b.value + 1
    return a.value, x * b.value


@pytest.mark.parametrize(("function", "make"), [(_append, list), (_insert, dict), (_assign, lambda: Box(1))])
@pytest.mark.parametrize("shared_first", [True, False])
def test_arguments_become_one_object(function: Any, make: Callable[[], Any], shared_first: bool) -> None:
    """What is written to one argument is read from the other where both are one object."""
    compiled = quickfuse.compile(function)
    for shared in (shared_first, not shared_first) * 2:
        results = []
        for run in (function, compiled):
            first = make()
            results.append(run(first, first if shared else make(), ones()))
        assert same(*results)
    assert compiled.graph_count == 2


def test_results_of_unravel_index_that_change_share_memory() -> None:
    """They are views of one tensor. One that was changed in place became a tensor of its own."""

    def program(x: T) -> Any:
        rows, columns = torch.unravel_index(x, (2, 3))
        columns.mul_(2)
        return rows, columns

    twin = quickfuse.compile(program)
    for _ in range(2):
        expected, found = program(torch.arange(6)), twin(torch.arange(6))
        assert [t.tolist() for t in found] == [t.tolist() for t in expected]
        assert [t.stride() for t in found] == [t.stride() for t in expected] == [(2,), (2,)]
        assert found[0].untyped_storage().data_ptr() == found[1].untyped_storage().data_ptr()
    assert twin.graph_count == 1


# changes of code ------------------------------------------------------------------------------------------------


def test_defaults_replaced() -> None:
    """New default arguments of the compiled function count."""

    def scale(x: T, factor: float = 1.0) -> T:
        return x * factor

    compiled = quickfuse.compile(scale)
    compiled(ones())
    scale.__defaults__ = (5.0,)
    assert torch.equal(compiled(ones()), ones() * 5)


def test_mutable_default_of_a_helper() -> None:
    """A list that is a default argument outlives the call."""

    def helper(x: T, log: list[int] = []) -> T:  # noqa: B006
        log.append(1)
        return x + len(log)

    compiled = quickfuse.compile(lambda x: helper(x))
    assert [compiled(torch.zeros(1)).item() for _ in range(4)] == [1, 2, 3, 4]


def test_object_as_default_of_a_helper() -> None:
    """An object that is a default argument may change, or be replaced."""
    box = Box(2.0)

    def helper(x: T, box: Box = box) -> T:
        return x + box.value

    compiled = quickfuse.compile(lambda x: helper(x))
    assert compiled(torch.zeros(1)).item() == 2
    box.value = 3.0
    assert compiled(torch.zeros(1)).item() == 3
    helper.__defaults__ = (Box(9.0),)
    assert compiled(torch.zeros(1)).item() == 9


@pytest.mark.parametrize("inlined", [True, False])
def test_code_replaced(inlined: bool) -> None:
    """Reloading a module in place gives functions new code."""

    def before(x: T) -> T:
        return x + 1

    def after(x: T) -> T:
        return x + 2

    compiled = quickfuse.compile((lambda x: before(x)) if inlined else before)
    compiled(torch.zeros(1))
    before.__code__ = after.__code__
    assert compiled(torch.zeros(1)).item() == 2


def test_method_overridden_later() -> None:
    """A subclass gets the method or attribute that was found in its base."""

    class Base:
        factor = 1.0

        def add(self, x: T) -> T:
            return x + 1

    class Derived(Base):
        pass

    instance = Derived()
    compiled = quickfuse.compile(lambda x: instance.add(x) * instance.factor)
    assert compiled(torch.zeros(1)).item() == 1
    Derived.add = lambda self, x: x + 5  # type: ignore[method-assign]
    assert compiled(torch.zeros(1)).item() == 5
    Derived.factor = 2.0
    assert compiled(torch.zeros(1)).item() == 10


# effects --------------------------------------------------------------------------------------------------------


class Doubling:
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value * 2)


def test_effects_before_an_operator_that_raises() -> None:
    """What the function did before an operator fails has happened, and the traceback leads to the operator."""

    def pick(x: T, index: T, log: list[int]) -> T:
        log.append(1)
        return x.cumsum(0)[index]

    compiled = check(pick, *((ones(), torch.tensor([index]), []) for index in (1, 9, 2)))
    with pytest.raises(IndexError) as caught:
        compiled(ones(), torch.tensor([9]), [])
    assert caught.traceback[-1].name == "pick"


def test_own_setattr_runs_once() -> None:
    """Replaying an assignment does not call the class's `__setattr__` again."""

    def assign(target: Any, x: T) -> T:
        target.value = 3
        return x + 1

    check(assign, (Doubling(), ones()))


@pytest.mark.parametrize("new", [True, False])
def test_order_of_keys(new: bool) -> None:
    """A key that is deleted and set again goes to the end."""

    def change(entries: dict[str, Any], x: T) -> T:
        key = "c" if new else "a"
        entries[key] = 1
        entries["d"] = 2
        del entries[key]
        entries[key] = x + 1
        return x

    check(change, ({"a": 1, "b": 2}, ones()))


def test_key_of_another_type() -> None:
    """1, True and 1.0 are equal keys and different factors."""
    check(lambda d, x: x * next(iter(d)), *(({key: 0}, torch.arange(2)) for key in (1, True, 1.0)))


@pytest.mark.parametrize("name", ["my attribute", "class"])
def test_attribute_that_is_no_identifier(name: str) -> None:
    """`setattr` takes any name."""

    def change(box: Box, x: T) -> Any:
        setattr(box, name, x + 1)
        return getattr(box, name) * 2 + getattr(box, "old " + name)

    box = Box(1)
    setattr(box, "old " + name, 2.0)
    check(change, (box, ones()))


def test_argument_named_like_a_builtin() -> None:
    """Arguments that hide builtins do not hide them from the generated code."""

    def scale(x: T, len: int, type: float, max: float, data: list[int]) -> T:
        return x * len + type + max + data[0]

    compiled = check(scale, (ones(), 2, 1.5, 1.0, [1]), (ones(), 3, 1.5, 2.0, [1]))
    assert compiled.graph_count == 1


def test_arguments_named_like_what_the_generated_code_uses() -> None:
    def change(x: T, _placer: str, _unversioned: int) -> Any:
        x.mul_(2)
        return x + _unversioned, _placer

    check(change, (ones(), "name", 1), (ones(), "other", 2))


def test_random_numbers_are_drawn_once() -> None:
    """Capturing a function that draws random numbers draws none."""

    def draw(x: T) -> T:
        torch.rand(3)
        return x + torch.rand(3)

    compiled = quickfuse.compile(draw)
    for seed in (0, 1):
        torch.manual_seed(seed)
        expected, state = draw(ones()), torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(compiled(ones()), expected) and torch.equal(torch.get_rng_state(), state)


def test_no_tensor_inputs() -> None:
    """A graph of constants alone has no inputs to place."""
    check(lambda n: torch.ones(2) * n, (2,), (3,))


@pytest.mark.parametrize("change", [lambda x: x.t_(), lambda x: x.unsqueeze_(0), lambda x: x.squeeze_()])
def test_shape_changed_in_place(change: Callable[[T], T]) -> None:
    """Operators that give a tensor another shape."""
    check(lambda x: change(x) * 2, (torch.ones(2, 1),))


def test_out_of_another_shape() -> None:
    """`out=` resizes an empty tensor."""
    check(lambda x, out: torch.add(x, 1, out=out), (ones(), ones()), (ones(), torch.empty(0)))


def test_strides_of_axes_with_one_element() -> None:
    """Operands that are contiguous but for axes of one element give contiguous results."""
    check(lambda a, b: a * b + 1, (torch.ones(1, 3).t(), torch.ones(3, 1)))
    check(lambda a: a.double(), (torch.arange(2)[::2],))


def test_and_is_not_in_place() -> None:
    """`operator.and_` has an underscore at its end and changes nothing."""
    compiled = check(lambda a, b: a & b, (torch.tensor([1]).expand(3), torch.tensor([1, 2, 3])))
    assert compiled.specialisations[0].kernels == 1


def test_error_for_an_empty_tensor() -> None:
    """An operator that has no kernel for a dtype raises for empty tensors too."""
    check(lambda a: a & a, (torch.ones(0, dtype=torch.float16),))


# autograd -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_backward_notices_changes(compiled: bool) -> None:
    """A tensor that a kernel changed since it was saved for backward has a new version."""

    def change(x: T) -> None:
        x.add_(1)

    run = quickfuse.compile(change) if compiled else change
    weight, x = ones(), ones().requires_grad_()
    loss = (x * weight).sum()
    run(weight)
    assert weight._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_tensor_outside_of_inference_mode() -> None:
    """An inference tensor must not change outside of inference mode."""

    def change(x: T) -> T:
        return x.add_(1)

    compiled = quickfuse.compile(change)
    compiled(ones())
    with torch.inference_mode():
        x, y = ones(), ones()
    assert outcome(compiled, (x,)) == outcome(change, (y,)) and torch.equal(x, y)
    with torch.inference_mode():
        assert torch.equal(compiled(x), change(y))


def test_forward_mode() -> None:
    """Tangents are not dropped."""
    compiled = quickfuse.compile(lambda x: x * x + 1)
    compiled(ones())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(ones(), ones() * 2)
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(compiled(dual)).tangent, ones() * 4)


# life -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [50, 400_000])
def test_threads(size: int) -> None:
    """Threads that call one compiled function get results of their own."""
    compiled = quickfuse.compile(lambda x, s: x * s + 1)
    compiled(torch.ones(size), 1.0)
    wrong: list[float] = []

    def work(k: int) -> None:
        for j in range(10_000_000 // (size + 10_000)):
            number = float(1000 * k + j)
            if not torch.equal(compiled(torch.ones(size), number), torch.ones(size) * number + 1):
                wrong.append(number)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong and compiled.graph_count == 1


def test_call_from_within_a_call() -> None:
    """A finalizer or a callback of the garbage collector may call the function that it interrupts."""
    compiled = quickfuse.compile(lambda x, s: x * s)
    compiled(ones(), 2.0)
    inner: list[float] = []

    def call_again(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            inner.append(compiled(ones(), 7.0)[0].item())

    def work() -> None:
        outer.extend(compiled(ones(), float(k))[0].item() for k in range(500))

    outer: list[float] = []
    thresholds = gc.get_threshold()
    gc.callbacks.append(call_again)
    gc.set_threshold(1, 1, 1)
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
        thread.join(60)
    finally:
        gc.callbacks.remove(call_again)
        gc.set_threshold(*thresholds)
    assert outer == [float(k) for k in range(500)] and set(inner) == {7.0}


def test_first_call_lets_go_of_its_arguments() -> None:
    """Capture leaves no reference to the user's tensors, not even in a cycle."""
    compiled = quickfuse.compile(lambda x, y: [x + 1, y])
    x = ones()
    gc.collect()
    gc.disable()
    try:
        compiled(x, x)
        alive = weakref.ref(x)
        del x
        assert alive() is None
    finally:
        gc.enable()


@quickfuse.compile
def increment(x: T) -> T:
    return x + 1


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: T) -> Any:
        return self.linear(x)


def test_copy_and_pickle() -> None:
    """A compiled method of a copied module is the copy's; a compiled function is pickled by name."""
    layer = Layer()
    layer.forward = quickfuse.compile(layer.forward)  # type: ignore[method-assign]
    layer(torch.ones(2))
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.linear.weight.zero_()
        other.linear.bias.zero_()
    assert torch.equal(other(torch.ones(2)), torch.zeros(2)) and not torch.equal(layer(torch.ones(2)), torch.zeros(2))
    assert pickle.loads(pickle.dumps(increment)) is increment
