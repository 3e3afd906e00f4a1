"""Views that a graph with gradients returns of what needs none: the program may change them in place with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

Tensor = torch.Tensor


def of_an_input(w: Tensor, b: Tensor) -> Any:
    return b[1:3], w.sin()


def of_a_result(w: Tensor, b: Tensor) -> Any:
    y = b * 2
    return y[1:3], y, w.sin()


def of_a_hidden_tensor(w: Tensor, b: Tensor) -> Any:
    y = b * 2
    return y[1:3], y[:2], w.sin()


def of_what_is_detached(w: Tensor, b: Tensor) -> Any:
    return w.detach().view(2, 3)[0][:2], w.sin()


def without_gradients(w: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        view = b[1:3]
    return view, w.sin()


def one_of_several(w: Tensor, b: Tensor) -> Any:
    return b.split(2)[0], w.sin()


def behind_a_break(w: Tensor, b: Tensor) -> Any:
    view = b[1:3]
    view.mul_(w[:2])
    return view, w.sin()


@pytest.mark.parametrize(
    "program",
    [of_an_input, of_a_result, of_a_hidden_tensor, of_what_is_detached, without_gradients, one_of_several, behind_a_break],
)
def test_changed_in_place(program: Callable[..., Any]) -> None:
    seen = []
    for run in (program, quickfuse.compile(program)):
        torch.manual_seed(0)
        w, b = torch.randn(6, requires_grad=True), torch.randn(6)
        view = run(w, b)[0]
        try:
            view.mul_(w[:2].exp())
            view.sum().backward()
            seen.append(((view.detach(), b.detach(), w.grad), (b.requires_grad, b._version, view.requires_grad)))
        except RuntimeError as error:
            seen.append(((), str(error)))
    torch.testing.assert_close(seen[1][0], seen[0][0])
    assert seen[1][1] == seen[0][1]


def of_parameters(w: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        seen = w[1:3], w.view(2, 3).t(), w.view(6), b[1:3], w.detach()[1:3]
    return *seen, b.sin()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("computed", [False, True])
def test_views_of_what_needs_gradients(grad: bool, computed: bool) -> None:
    """Views that are made without gradients require them in eager, without a history, where what they show does."""
    seen = []
    for run in (of_parameters, quickfuse.compile(of_parameters)):
        leaf, b = torch.ones(6, requires_grad=True), torch.ones(6)
        w = leaf * 2 if computed else leaf
        with torch.set_grad_enabled(grad):
            views = run(w, b)
        found = [(v.requires_grad, v.is_leaf, v.grad_fn is None, v.stride(), v._is_view(), v._base is w) for v in views]
        seen.append([found])
        for view in views[:4]:
            try:
                view.add_(1)
            except RuntimeError as error:
                seen[-1].append(str(error))
        seen[-1].append(w.tolist())
    assert seen[1] == seen[0]


def of_a_view(w: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        view = w[1:3]
    return view.sin() * b[1:3]


def of_a_view_and_more(w: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        view = w[1:3]
    return view.sin() * b[1:3], view.exp() * w[:2]


def of_a_view_and_itself(w: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        view = w[1:3]
    return view.sin() * b[1:3], view


def of_a_view_that_requires_gradients(w: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        view = w[1:3].requires_grad_()
    return view.sin() * b[1:3], view


def of_a_view_of_a_result(w: Tensor, b: Tensor) -> Any:
    y = w * 2
    with torch.no_grad():
        view = y[1:3]
    return view.sin() * b[1:3]


def backward_inside(w: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        view = w[1:3]
    (view.sin() * b[1:3]).sum().backward()
    return view.grad, w.grad


def backward_inside_to_the_view(w: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        view = w[1:3].requires_grad_()
    (view.sin() * b[1:3]).sum().backward()
    return view.grad, w.grad


@pytest.mark.parametrize("parameter", [False, True])
@pytest.mark.parametrize("program", [
    of_a_view, of_a_view_and_more, of_a_view_and_itself, of_a_view_that_requires_gradients, of_a_view_of_a_result,
    backward_inside, backward_inside_to_the_view,
])  # fmt: skip
def test_results_of_views_made_without_gradients(program: Callable[..., Any], parameter: bool) -> None:
    """Such a view requires gradients and gets none: what is computed from it has a history that ends there."""
    seen = []
    for run in (program, quickfuse.compile(program)):
        torch.manual_seed(0)
        w, b = torch.randn(6, requires_grad=True), torch.randn(6)
        w = torch.nn.Parameter(w.detach()) if parameter else w
        results = run(w, b)
        results = results if isinstance(results, tuple) else (results,)
        tensors = [t for t in results if isinstance(t, Tensor)]
        found: list[Any] = [(t.requires_grad, t.grad_fn is None, t.is_leaf) for t in tensors]
        gradients = []
        for tensor in tensors:
            if tensor.grad_fn is not None:
                tensor.sum().backward(retain_graph=True)
                gradients += [t.grad for t in (w, *tensors) if t.is_leaf]
        values = [t if t is None else t.detach().clone() for t in (*results, *gradients)]
        seen.append(([*found, [t is None for t in values]], [t for t in values if t is not None]))
    assert seen[1][0] == seen[0][0]
    torch.testing.assert_close(seen[1][1], seen[0][1])


_FURTHER: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "itself": lambda view, x, w: view, "view of it": lambda view, x, w: view[0], "computed": lambda view, x, w: view * w,
    "strides of it": lambda view, x, w: view.as_strided((2,), (1,)), "both": lambda view, x, w: (view[0], view),
    "beside its base": lambda view, x, w: (view[0], x, view), "beside others": lambda view, x, w: (w * 3, view, x.clone()),
}  # fmt: skip


@pytest.mark.parametrize("further", _FURTHER)
@pytest.mark.parametrize("base", ["leaf", "computed", "hidden"])
def test_views_of_views_made_without_gradients(base: str, further: str) -> None:
    """Autograd comes to no base through a view that was made without gradients, also of a part that was taken with."""
    makers: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.view_as(x), lambda x: x.unbind()[1].expand(3, 3), lambda x: x[1].expand(3, 3), lambda x: x.t(),
    ]  # fmt: skip
    for make in makers:
        seen = []

        def function(x: Tensor, w: Tensor, make: Callable[[Tensor], Tensor] = make) -> Any:
            x = x * 2 if base == "hidden" else x
            with torch.no_grad():
                view = make(x)
            return _FURTHER[further](view, x, w)

        for run in (function, quickfuse.compile(function)):
            torch.manual_seed(0)
            leaf, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
            made = run(leaf * 2 if base == "computed" else leaf, w)
            results = made if isinstance(made, tuple) else (made,)
            seen.append([[(t.requires_grad, t.is_leaf, t.grad_fn is None, t._is_view(), t.tolist()) for t in results]])
            for tensor in results:
                if tensor.grad_fn is not None:
                    found = torch.autograd.grad(tensor.sum(), [leaf, w], retain_graph=True, allow_unused=True)
                    seen[-1].append([None if g is None else g.tolist() for g in found])
        assert seen[1] == seen[0]


_UNDER_NO_GRAD: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda x: x.view(4), "as_strided": lambda x: x.as_strided((2,), (1,)), "unbind": lambda x: x.unbind()[1],
    "dropout": lambda x: torch.nn.functional.feature_alpha_dropout(x, 0.5, True), "product": lambda x: x @ x,
    "itself": lambda x: x, "sort": lambda x: x.sort()[0], "in place": lambda x: x.clone().add_(1),
}  # fmt: skip


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", _UNDER_NO_GRAD)
def test_what_is_made_under_no_grad_of_what_may_require_gradients(name: str, first: bool) -> None:
    """Captured first for an operand that does not, or that does: results that share its memory require them as it does."""

    def function(x: Tensor) -> Any:
        with torch.no_grad():
            return _UNDER_NO_GRAD[name](x)

    compiled = quickfuse.compile(function)
    for requires_grad in (first, not first, first):
        for outside in (True, False):
            with torch.set_grad_enabled(outside):
                x = torch.randn(2, 2).requires_grad_(requires_grad)
                torch.manual_seed(0)
                wanted = function(x)
                torch.manual_seed(0)
                got = compiled(x)
            torch.testing.assert_close(got, wanted)
            properties = [(t.requires_grad, t.is_leaf, t._is_view(), t is x) for t in (got, wanted)]
            assert properties[0] == properties[1]


Outputs = tuple[Tensor, ...]


def _twice(loss: Tensor, out: Tensor) -> Outputs:
    return loss.detach(), loss.detach()


def _views(loss: Tensor, out: Tensor) -> Outputs:
    return out.detach()[0], out.detach()[1], out.detach().t()


def _with_views(loss: Tensor, out: Tensor) -> Outputs:
    kept = out.detach()
    return kept, out.detach()[0], kept[1], out.data


def _changed(loss: Tensor, out: Tensor) -> Outputs:
    kept = out.detach()
    kept.mul_(2)
    return out.detach(), kept


def _seen(outputs: Outputs) -> tuple[Any, ...]:
    memory = [t.untyped_storage().data_ptr() for t in outputs]
    facts = [(t.stride(), t.storage_offset(), t.requires_grad, t.is_leaf, t._is_view(), t._version) for t in outputs]
    same = [[t is other for other in outputs] for t in outputs]
    return [_numbers(t) for t in outputs], facts, [memory.index(m) for m in memory], same


def _numbers(tensor: Tensor) -> Any:
    """Its elements, without the last bits of products."""
    return tensor.detach().round(decimals=12).tolist()


@pytest.mark.parametrize("result", [_twice, _views, _with_views, _changed])
@pytest.mark.parametrize("back", [False, True])
def test_detached_more_than_once(result: Callable[[Tensor, Tensor], Outputs], back: bool) -> None:
    """Tensors detached from one that is not returned share its memory, as in `history.append(loss.detach())` in front of
    `return loss.detach()`, and the graph is compiled as one."""
    found: list[Any] = []
    for compiler in (lambda f: f, quickfuse.compile):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).double()

        def step(x: Tensor, model: Any = model) -> Outputs:
            out = model(x)
            loss = out.square().sum()
            if back:
                loss.backward()
            return result(loss, out)

        compiled, seen = compiler(step), []
        for _ in range(3):
            outputs = compiled(torch.randn(2, 4, dtype=torch.float64))
            seen.append(_seen(outputs))
            outputs[0].add_(1)
            seen.append(_seen(outputs))
        found.append((seen, [None if p.grad is None else _numbers(p.grad) for p in model.parameters()]))
    for one, other in zip(*found, strict=True):
        assert one == other
    reasons = quickfuse.explain(step)(torch.randn(2, 4, dtype=torch.float64)).without_kernels
    assert not any(reasons)


def test_a_view_that_a_call_makes() -> None:
    """Complex numbers are calls of PyTorch: what one returns may be a view of a hidden tensor."""

    def program(x: Tensor) -> Outputs:
        z = torch.view_as_complex(x * 2)
        return x.sin(), torch.view_as_real(z * z)

    sides = []
    for function in (program, quickfuse.compile(program)):
        x = torch.linspace(-1, 1, 8).view(4, 2).requires_grad_()
        sine, squares = function(x)
        squares.mul_(3)
        (sine.sum() + squares.square().sum()).backward()
        sides.append((sine, squares, x.grad))
    torch.testing.assert_close(sides[1], sides[0])


@pytest.mark.parametrize("enabled", [True, False])
def test_views_without_gradients_can_get_some(enabled: bool) -> None:
    """Where what has gradients is not used: a view made without recording would refuse them."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.sum(0, keepdim=True).expand(3, 3)
        _ = x @ w
        return (rows + 1).sum(), rows, rows.argmax()

    found = []
    for run in (function, quickfuse.compile(function)):
        w = torch.eye(3, requires_grad=True)
        for _ in range(2):
            with torch.set_grad_enabled(enabled):
                rows = run(torch.ones(3, 3), w)[1]
            try:
                rows[0].copy_(w[0])
                rows.square().sum().backward()
                found.append(str(w.grad))
            except RuntimeError as error:
                found.append(str(error))
    assert found[:2] == found[2:]


_OF_COMPLEX_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "real": lambda b: b.real,
    "imag": lambda b: b.imag,
    "conj": lambda b: b.conj(),
    "a part of conj": lambda b: b.conj()[1:],
    "imag of conj": lambda b: b.conj().imag,
    "view_as_real": torch.view_as_real,
    "of what is detached": lambda b: b.detach().real,
    "conj of data": lambda b: b.data.conj(),
    "of what is detached and a part": lambda b: b[1:].detach().imag,
}


@pytest.mark.parametrize("leaf_is_a_view", (False, True))
@pytest.mark.parametrize("with_gradients", (False, True))
@pytest.mark.parametrize("name", _OF_COMPLEX_NUMBERS)
def test_of_complex_numbers(name: str, with_gradients: bool, leaf_is_a_view: bool) -> None:
    b = torch.randn(4, 2, dtype=torch.complex128)
    b = b.t()[0].requires_grad_() if leaf_is_a_view else b[:, 0].clone().requires_grad_()

    def seen(view: Tensor) -> Any:
        lies = (view.dtype, view.shape, view.stride(), view.storage_offset(), view.data_ptr() - b.data_ptr())
        autograd = (view.requires_grad, view.is_leaf, view._base is b, view.is_conj(), view.is_neg())
        return lies, autograd, view.resolve_conj().resolve_neg().tolist()

    program = _OF_COMPLEX_NUMBERS[name]
    with torch.set_grad_enabled(with_gradients):
        assert seen(quickfuse.compile(program, options={"raise_internal_errors": True})(b)) == seen(program(b))


def _parts(x: Tensor) -> Any:
    g = x * 2
    return g[:, :2].detach(), g[:, 2].detach(), x.sin()


def _one_with_gradients(x: Tensor) -> Any:
    g = x * 2
    return g[:, :2].detach(), g[:, 2], x.sin()


def _one_not_detached(x: Tensor) -> Any:
    g = x.detach() * 2
    return g[:, :2].detach(), g[:, 2], x.sin()


def _changed_between(x: Tensor) -> Any:
    g = x.detach() * 2
    g.add_(1)
    first = g[:, :2].detach()
    g.mul_(2)
    return first, g[:, 2], x.sin()


def _of_a_split(x: Tensor) -> Any:
    a, b = (x.detach() * 2).split([1, 2], 1)
    return a.detach(), b.detach().t(), x.sin()


def _of_a_transposed_tensor(x: Tensor) -> Any:
    g = (x.detach() * 2).t()
    a, b = g.unbind(1)[:2]
    return a.detach(), b, g[1:].data, x.sin()


def _of_what_was_changed_with_gradients(x: Tensor) -> Any:
    y = (x * 2).relu_()
    return y[0].detach(), y[1:].detach().view(-1), x.sin()


def _of_part_of_the_memory(x: Tensor) -> Any:
    g = torch.zeros(3, 6)[:, ::2]
    g.copy_(x.detach())
    return g[0].detach(), g[1:].data, x.sin()


def _parts_of_complex_numbers(x: Tensor) -> Any:
    g = x.detach() * 1j
    return g.real.detach(), g.imag.detach(), x.sin()


@pytest.mark.parametrize("program", [
    _parts, _one_with_gradients, _one_not_detached, _changed_between, _of_a_split, _of_a_transposed_tensor,
    _of_what_was_changed_with_gradients, _of_part_of_the_memory, _parts_of_complex_numbers,
], ids=lambda program: program.__name__)  # fmt: skip
def test_views_that_are_detached(program: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(program)
    for seed in range(2):
        seen = []
        for run in (program, compiled):
            torch.manual_seed(seed)
            x = torch.randn(3, 3, requires_grad=True)
            results = run(x)
            looks = [(t.storage_offset(), t.stride(), t._is_view(), t.requires_grad, t._version) for t in results]
            places = [t.untyped_storage().data_ptr() for t in results]
            with torch.no_grad():
                results[0].add_(1)  # which the others see
            sum(t.sum() for t in results if t.requires_grad).backward()  # type: ignore[union-attr]
            values = [t.detach().clone() for t in results]
            seen.append((looks, [a == b for a in places for b in places], values, x.grad))
        assert seen[0][:2] == seen[1][:2]
        torch.testing.assert_close(seen[1][2:], seen[0][2:])
    assert all(not s.without_kernels for s in compiled.specialisations)


def changed_before(w: Tensor) -> Tensor:
    y = w * 2
    view = y.expand(3, 6)
    y.add_(1)
    return view


@pytest.mark.parametrize(
    "program",
    [
        lambda w: (w * 2).expand(3, 6), lambda w: w.sin().view(1, 2, 3).expand(4, 2, 3)[1:].mT, lambda w: w.sum().expand(4),
        lambda w: ((w * 2).expand(3, 6), w.sum())[0], changed_before,
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "change",
    [lambda r: r[0].mul_(2), lambda r: r.fill_diagonal_(3) if r.dim() == 2 else r, lambda r: r.sin(), lambda r: r.detach_()],
)
def test_expanded_results_are_views(program: Callable[..., Any], change: Callable[..., Any]) -> None:
    """What is changed in a part of one is written to the memory that all of its elements are views of."""
    seen = []
    for run in (program, quickfuse.compile(program, options={"raise_internal_errors": True})):
        w = torch.arange(6.0, requires_grad=True)
        view = run(w)
        try:
            change(view)
            (view * view).sum().backward()
            seen.append((w.grad, view.detach(), torch.tensor(view._is_view())))
        except RuntimeError as error:
            seen.append(str(error)[:40])
    if isinstance(seen[0], str):
        assert seen[1] == seen[0]
    else:
        torch.testing.assert_close(seen[1], seen[0])
