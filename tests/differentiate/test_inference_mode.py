"""`torch.inference_mode` around a part of a graph: kernels run all of it, unless what was made inside is handed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chains.prelude import Doubled
from differentiate.twins import compiled, leaf, reasons

decorated = torch.inference_mode()(lambda x, w: torch.tanh(x @ w))


def teacher(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        soft = (x @ w).softmax(-1)
    return F.kl_div((x @ w.t()).log_softmax(-1), soft.log(), reduction="batchmean", log_target=True)


def saved_for_backward(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        soft = x @ w
    return (w * soft).sum()


def copied(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        soft = x @ w
    return (w * soft.clone()).sum()


def a_view_that_is_saved(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        soft = x @ w
    return (w * soft.t()).sum()


def the_decorated(x: Tensor, w: Tensor) -> Tensor:
    return decorated(x, w) * 2 + w


def changed_inside(x: Tensor, w: Tensor) -> Tensor:
    made = x * 2
    with torch.inference_mode():
        made.add_(w)
    return made * w


def changed_outside(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        made = x * 2
    made.add_(1)
    return made * 2


def input_changed_inside(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        x.mul_(w.sum())
    return (x * w).sum()


def result_changed_inside(x: Tensor, w: Tensor) -> Tensor:
    made = w * 2
    with torch.inference_mode():
        made.mul_(x)
    return made + x


def left_and_entered(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        made = x * 2
        with torch.inference_mode(False):
            inner = w.sin()
        made = made + inner
    return inner * 2 + made.sum() * w


def under_no_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad(), torch.inference_mode():
        made = w * 2
    return made + w


def view_made_inside(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    with torch.inference_mode():
        part = y[0]
    return (part * w).sum()


def handed_out(x: Tensor, w: Tensor) -> list[Tensor]:
    with torch.inference_mode():
        made = x * 2
    return [made, made[0], made + 1, w * 2]


def detached_outside(x: Tensor, w: Tensor) -> list[Tensor]:
    with torch.inference_mode():
        made = x * 2
        both = x.max(0)
    return [made.detach(), both.values.detach(), (x + 1).detach()]


def data_outside(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        made = x * 2
    return made.data


def whole_step(x: Tensor, w: Tensor) -> Tensor:
    with torch.inference_mode():
        soft = x.sin()
    loss = (w * 3 + soft).square().mean()
    loss.backward()
    return loss.detach()


def step_that_hands_out(x: Tensor, w: Tensor) -> list[Tensor]:
    with torch.inference_mode():
        soft = x.sin()
    loss = (w * 3 + soft).sum()
    loss.backward()
    return [loss.detach(), soft]


@torch.inference_mode()
def all_of_it(x: Tensor, w: Tensor) -> list[Tensor]:
    return [x * w[0], (x @ w.t()).sin(), w]


@torch.inference_mode()
def all_of_it_under_autocast(x: Tensor, w: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        return [F.linear(x, w, w[0]).softmax(-1), x.sin()]


@torch.inference_mode()
def all_of_it_with_a_view_handed_out(x: Tensor, w: Tensor) -> list[Tensor]:
    return [x * 2, w[0]]


@torch.inference_mode()
def all_of_it_with_a_transform(x: Tensor, w: Tensor) -> list[Tensor]:
    return [torch.func.vmap(lambda row: w @ row)(x), x + w[0]]


@torch.inference_mode()
def all_of_it_with_a_transform_that_differentiates(x: Tensor, w: Tensor) -> list[Tensor]:
    return [torch.func.vmap(torch.func.grad(lambda row: (w @ row).sin().sum()))(x), x + w[0]]  # the first is made outside


#: Programs, and whether they have kernels.
PROGRAMS: dict[Callable[..., Any], bool] = {
    teacher: True, saved_for_backward: False, copied: True, a_view_that_is_saved: False, the_decorated: True,
    changed_inside: True, changed_outside: False, input_changed_inside: True, result_changed_inside: True,
    left_and_entered: False, under_no_grad: True, view_made_inside: True, handed_out: False, detached_outside: False,
    data_outside: False, whole_step: True,
    step_that_hands_out: False, all_of_it: True, all_of_it_under_autocast: True, all_of_it_with_a_view_handed_out: False,
    all_of_it_with_a_transform: True, all_of_it_with_a_transform_that_differentiates: False,
}  # fmt: skip


def outcome(function: Callable[..., Any], seed: int, grad: bool) -> list[Any]:
    x, w = leaf(3, 3, seed=seed, grad=False), leaf(3, 3, seed=seed + 10, grad=grad)
    try:
        results = function(x, w)
        results = results if isinstance(results, list) else [results]
        flags = [(t.is_inference(), t.requires_grad, t.is_leaf, None if t.is_inference() else t._version) for t in results]
        needing = [t.sum() for t in results if t.requires_grad]
        if needing:
            torch.stack(needing).sum().backward()
        values = [t.detach().clone() for t in results]
    except RuntimeError as error:
        return [str(error).split(":")[0], x._version, w.grad]
    return [flags, values, x, x._version, w.grad]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_a_part_in_inference_mode(function: Callable[..., Any], grad: bool) -> None:
    twin = compiled(function)
    for seed in range(3):
        expected, found = outcome(function, seed, grad), outcome(twin, seed, grad)
        assert type(found[0]) is type(expected[0])
        assert found[:1] == expected[:1] and len(found) == len(expected)
        torch.testing.assert_close(found[1:], expected[1:], rtol=1e-5, atol=1e-6)
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
    if grad and PROGRAMS[function]:
        assert not reasons(twin)


def test_a_transform_beside_a_change_in_place_in_inference_mode() -> None:
    """What is made there does not count its changes."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + 1
        rows = torch.func.vmap(lambda row: row.sin() * row.sum())(w)
        return h.tanh_(), rows.mul_(2)

    with torch.inference_mode():
        expected, made = function(leaf(3, 4), leaf(3, 4, seed=1)), compiled(function)(leaf(3, 4), leaf(3, 4, seed=1))
    torch.testing.assert_close(made, expected)
    assert all(t.is_inference() for t in made)


def test_a_change_in_place_before_a_call_between_graphs() -> None:
    """Nor does what a part of the graph makes there, though an input needs gradients."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total = x.sum()
        total.mul_(2)
        return total, torch.addmv(torch.tensor([1j, 2]), w.expand(2, 4), w)

    x, w = leaf(4), torch.ones(4, dtype=torch.complex64, requires_grad=True)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(function)(x, w), function(x, w))


def test_a_view_as_the_type_that_it_has() -> None:
    def function(x: Tensor) -> list[Tensor]:
        made = (x * 2).view(x.dtype)
        return [x.view(x.dtype), x.view(dtype=torch.float32), x.view(torch.int32), x.view(-1), x.detach(), made]

    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        x = leaf(3, 4, grad=mode is torch.enable_grad)
        with mode():
            expected, found = function(x), compiled(function)(x)
        for e, f in zip(expected, found, strict=True):
            assert torch.equal(e, f) and (e.data_ptr() == x.data_ptr()) == (f.data_ptr() == x.data_ptr())
            assert (e.is_inference(), e.requires_grad, e.is_leaf) == (f.is_inference(), f.requires_grad, f.is_leaf)


def test_data_of_what_is_made_there_changes_in_place() -> None:
    def function(x: Tensor) -> list[Tensor]:
        made, given = x.sum().data, x.data
        return [made.masked_fill_(made > 0, -1), made, given.mul_(2)]

    twin = compiled(function)
    for seed in range(2):
        x, y = (leaf(3, 4, seed=seed, grad=False) for _ in range(2))
        with torch.inference_mode():
            expected, found = function(x), twin(y)
        torch.testing.assert_close(found, expected)
        assert [t.is_inference() for t in found] == [t.is_inference() for t in expected]
        assert found[2]._version == expected[2]._version
    assert not reasons(twin)


def asked(x: Tensor, w: Tensor) -> Any:
    made = -w
    return made * 2 if made.requires_grad else made * 3, made.requires_grad, w[0].requires_grad


def leaf_inside(x: Tensor, w: Tensor) -> Any:
    start = x.detach().requires_grad_()
    return (start * 2).requires_grad, start.requires_grad


def gradient_inside(x: Tensor, w: Tensor) -> Any:
    start = x.detach().requires_grad_()
    return torch.autograd.grad((start * 2).sum(), start)


def checkpointed(x: Tensor, w: Tensor) -> Any:
    made = torch.utils.checkpoint.checkpoint(torch.neg, w, use_reentrant=False)
    return made, made.requires_grad


def changed(x: Tensor, w: Tensor) -> Any:
    made = torch.zeros_like(x)
    made += w
    made[0] = w[1]
    return made, made.requires_grad


def of_a_class(x: Tensor, w: Tensor) -> Any:
    made = Doubled.apply(w)
    return made, made.requires_grad, (made * 2).requires_grad


def after_a_break(x: Tensor, w: Tensor) -> Any:
    made = w * 2
    print(end="")
    return made, made.requires_grad, (w * made).requires_grad


def by_a_function(x: Tensor, w: Tensor) -> Any:
    return torch.autograd.functional.vjp(lambda t: t.sin(), x, x)[1]


def _facts(result: Any) -> Any:
    if not isinstance(result, Tensor):
        return result
    return result.requires_grad, result.is_inference(), result.detach().tolist()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    "function",
    [asked, leaf_inside, gradient_inside, checkpointed, changed, of_a_class, after_a_break, by_a_function],
    ids=lambda f: f.__name__,
)
def test_gradients_enabled_in_inference_mode(function: Callable[..., Any], inside: bool) -> None:
    """Autograd notes nothing there, whatever the grad mode is: a branch on `requires_grad` took the other side."""

    def program(x: Tensor, w: Tensor) -> Any:
        with torch.inference_mode(), torch.enable_grad():
            return function(x, w)

    def run(called: Callable[..., Any]) -> list[Any]:
        seen: list[Any] = []
        for seed in range(3):
            x, w = leaf(3, 3, seed=seed, grad=False), leaf(3, 3, seed=seed + 5)
            try:
                with torch.inference_mode(not inside), torch.set_grad_enabled(True):
                    results = called(x, w)
            except RuntimeError as error:
                results = str(error)[:40]
            seen += map(_facts, results if isinstance(results, tuple) else (results,))
        return seen

    body = program if inside else function
    expected = run(body)
    if function is checkpointed and isinstance(expected[0], str):
        pytest.skip("PyTorch 2.11 refuses that")
    assert run(compiled(body)) == expected
