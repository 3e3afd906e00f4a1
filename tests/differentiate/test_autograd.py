"""What autograd promises about a result, whoever computed it: hooks, errors, second backward, higher order."""

from __future__ import annotations

import copy
import gc
import types
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint

import quickfuse
from differentiate.twins import check, compiled, joined, leaf
from quickfuse.launch import joined as joined_calls
from quickfuse.pipeline import joining


def model(x, w):
    hidden = torch.tanh(x @ w)
    return (hidden * hidden.exp()).sum(1)


def pair(function, *args):
    """The eager function and its twin, each with copies of the arguments."""
    return ((function, copy.deepcopy(args)), (compiled(function), copy.deepcopy(args)))


def both(function, use, *args):
    """`use(run, *args)` in eager and compiled; returns the two results."""
    found = [use(run, *mine) for run, mine in pair(function, *args)]
    torch.testing.assert_close(found[1], found[0], equal_nan=True, rtol=1e-4, atol=1e-5)
    return found


def test_gradients_with_respect_to_some_inputs() -> None:
    both(model, lambda run, x, w: torch.autograd.grad(run(x, w).sum(), [w]), leaf(3, 4), leaf(4, 5))
    both(model, lambda run, x, w: torch.autograd.grad(run(x * 2, w).sum(), [x, w]), leaf(3, 4), leaf(4, 5))


def test_retain_graph() -> None:
    def use(run, x, w):
        y = run(x, w).sum()
        y.backward(retain_graph=True)
        y.backward()
        return x.grad, w.grad

    both(model, use, leaf(3, 4), leaf(4, 5))


def test_backward_a_second_time() -> None:
    for run, (x, w) in pair(model, leaf(3, 4), leaf(4, 5)):
        y = run(x, w).sum()
        y.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()


def test_a_fault_of_ours_in_backward_is_eagers_business(monkeypatch, caplog) -> None:
    x, w = leaf(3, 4), leaf(4, 5)
    loss = compiled(model)(x, w).sum()

    def broken(*args, **kwargs):
        raise KeyError("a fault")

    monkeypatch.setattr(joining, "begin_kernels", broken)
    monkeypatch.setattr(quickfuse.config, "raise_internal_errors", False)
    expected = torch.autograd.grad(model(x, w).sum(), [x, w])
    torch.testing.assert_close(torch.autograd.grad(loss, [x, w]), expected)
    assert "internal error while compiling a backward graph (KeyError" in caplog.text


def test_saved_tensor_changed_in_place() -> None:
    for run, (x, w) in pair(model, leaf(3, 4), leaf(4, 5)):
        y = run(x, w).sum()
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_output_that_eager_saves_changed_in_place() -> None:
    for run, (x,) in pair(lambda x: x.sigmoid(), leaf(3, 4)):
        y = run(x)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_inputs_and_outputs_that_eager_does_not_save_may_change() -> None:
    def function(x, bias):
        out = x + bias
        return out, (out * 2 + bias).relu().sin()

    def use(run, x, bias):
        out, second = run(x, bias)
        with torch.no_grad():
            bias.mul_(100)
            x.mul_(50)
        out.detach().zero_()
        second.sum().backward()
        return x.grad, bias.grad

    both(function, use, leaf(3, 4), leaf(4, seed=1))


def test_changes_of_a_result_in_place() -> None:
    def function(x, w):
        y = x * w
        return y, y.view(-1), (x + w).t()

    def use(run, x, w):
        a, b, c = run(x, w)
        c.mul_(3)
        b.add_(1)
        (a.sum() + (b * c.reshape(-1)).sum()).backward()
        return a, x.grad, w.grad

    both(function, use, leaf(3, 4), leaf(3, 4, seed=1))


def test_hooks_on_tensors_and_parameters() -> None:
    def use(run, x, w):
        seen = []
        inner = x * 1
        inner.register_hook(lambda g: seen.append(("inner", g.clone())))
        w.register_hook(lambda g: g * 2)
        w.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.grad.clone())))
        y = run(inner, w)
        y.register_hook(lambda g: seen.append(("result", g.clone())))
        y.sum().backward()
        return [name for name, _ in seen] == ["result", "inner", "after"], [g for _, g in seen], x.grad, w.grad

    def check_order(run, x, w):
        ordered, *rest = use(run, x, w)
        return sorted(map(float, [g.sum() for g in rest[0]])), *rest[1:]

    both(model, check_order, leaf(3, 4), leaf(4, 5))


def test_second_derivatives() -> None:
    def use(run, x, w):
        (first,) = torch.autograd.grad(run(x, w).sum(), [x], create_graph=True)
        (first**2).sum().backward()
        return first, x.grad, w.grad

    both(model, use, leaf(3, 4), leaf(4, 5))


def test_second_derivatives_through_inputs_that_depend_on_each_other() -> None:
    def use(run, x, w):
        y = x.exp()
        (first,) = torch.autograd.grad(run(y, (y.sum() * w)).sum(), [x], create_graph=True)
        first.sum().backward()
        return first, x.grad, w.grad

    both(model, use, leaf(3, 4), leaf(4, 5))


def test_third_derivative() -> None:
    def use(run, x):
        y = run(x).sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), [x], create_graph=True)
        return y

    both(lambda x: x.sin() * x.exp(), use, leaf(5))


def test_second_derivative_of_an_input_that_only_the_graph_has() -> None:
    def use(run, x):
        (first,) = torch.autograd.grad(run(x * 2).sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.square().sum(), x)

    both(lambda x: x.exp().sin(), use, leaf(3, 4))


def changed_through_an_alias(x):
    x.detach().mul_(1.1)
    return x.exp()


def changed_after_its_use(x):
    y = x.exp()
    with torch.no_grad():
        x.mul_(1.1)
    return y * 2


def changed_by_less_than_it_was(x):
    y = x.exp()
    x.detach().mul_(1.1)
    return y * x


@pytest.mark.parametrize("function", [changed_through_an_alias, changed_after_its_use, changed_by_less_than_it_was])
def test_second_derivative_of_an_input_that_the_graph_changes(function) -> None:
    def use(run, x):
        inner = x * 1
        (first,) = torch.autograd.grad(run(inner).sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.square().sum(), x), inner

    both(function, use, leaf(3, 4))


@pytest.mark.parametrize("norm", [torch.nn.utils.spectral_norm, torch.nn.utils.parametrizations.spectral_norm])
def test_penalty_on_gradients_of_a_module_that_updates_buffers(norm) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(norm(torch.nn.Linear(4, 4)), torch.nn.BatchNorm1d(4), torch.nn.Tanh())
    found = []
    for run in (lambda module: module, compiled):
        module = torch.nn.Sequential(norm(torch.nn.Linear(4, 4)), torch.nn.BatchNorm1d(4), torch.nn.Tanh())
        module.load_state_dict(plain.state_dict())
        twin, x = run(module), leaf(5, 4)
        for _ in range(2):
            (gradient,) = torch.autograd.grad(twin(x).square().sum(), x, create_graph=True)
            gradient.norm().backward()
        found.append([*module.state_dict().values(), x.grad, *[p.grad for p in module.parameters()]])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_inputs_are_freed_after_backward_and_those_that_are_large_before(monkeypatch) -> None:
    for limit, freed in ((1 << 26, False), (10, True)):
        monkeypatch.setattr(joined_calls, "HELD_BYTES", limit)
        twin = compiled(lambda x: x.exp().sin())
        inner = leaf(3, 4) * 2
        ref = weakref.ref(inner)
        y = twin(inner)
        del inner
        gc.collect()
        assert (ref() is None) == freed
        y.sum().backward()
        gc.collect()
        assert ref() is None


def test_second_derivative_with_dropout_and_batch_norm() -> None:
    norm = torch.nn.BatchNorm1d(4)

    def use(run, x):
        norm.reset_running_stats()
        torch.manual_seed(3)
        (first,) = torch.autograd.grad(run(x).sum(), [x], create_graph=True)
        after = torch.rand(3)
        (first**2).sum().backward()
        return first, x.grad, after, norm.running_mean.clone(), norm.num_batches_tracked.clone()

    both(lambda x: F.dropout(norm(x).sigmoid(), 0.5) ** 2, use, leaf(6, 4))


def test_outputs_without_a_gradient() -> None:
    def function(x, w):
        return (x * 2).sum(), x.abs().sqrt(), w * 3

    def use(run, x, w):
        loss, _, _ = run(x, w)
        loss.backward()
        assert w.grad is None  # nothing that was used depends on it
        return x.grad

    zero = torch.zeros(3, requires_grad=True)  # the root's derivative there is infinite
    both(function, use, zero, leaf(3))


def test_nothing_is_computed_where_no_output_has_a_gradient() -> None:
    def use(run, x):
        a, b = run(x)
        (a.detach() * 2 + x).sum().backward()
        return x.grad

    both(lambda x: (x.sin(), x.cos()), use, leaf(3))


def test_saved_tensors_hooks() -> None:
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.detach().clone().t().contiguous().t() if tensor.ndim == 2 else tensor.clone()

    def use(run, x, w):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = run(x, w).sum()
        y.backward()
        return x.grad, w.grad

    both(model, use, leaf(3, 4), leaf(4, 5))
    assert packed


def test_anomaly_mode() -> None:
    with torch.autograd.set_detect_anomaly(True):
        both(model, lambda run, x, w: torch.autograd.grad(run(x, w).sum(), [w]), leaf(3, 4), leaf(4, 5))
        x = torch.zeros(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="returned nan values"), pytest.warns(UserWarning):
            (compiled(lambda x: (x * 0).sqrt() * x)(x)).sum().backward()


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_for_several_gradients_at_once(create_graph: bool) -> None:
    """For backward they come as one tensor, batched by a transform of PyTorch's that sees its operators only."""

    def use(run, x, w):
        y = run(x, w)
        given = torch.arange(2.0 * y.numel()).view(2, *y.shape)
        found = torch.autograd.grad(y, [x, w], given, is_grads_batched=True, create_graph=create_graph, retain_graph=True)
        mapped = torch.func.vmap(lambda g: torch.autograd.grad(y, x, g, retain_graph=True)[0])(given)
        return *found, mapped

    both(model, use, leaf(3, 4), leaf(4, 5))


def test_vectorized_jacobian_and_hessian() -> None:
    from torch.autograd.functional import hessian, jacobian

    def use(run, x, w):
        run(x, w)
        rows = jacobian(run, (x, w), vectorize=True)
        return [*rows, *(h for row in hessian(run, (x, w), vectorize=True) for h in row)]

    both(lambda x, w: model(x, w).sum(), use, leaf(3, 4), leaf(4, 5))


def test_several_gradients_at_once_of_a_function_that_draws() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    def use(run, x):
        torch.manual_seed(0)
        y = run(x)
        return torch.autograd.grad(y, x, torch.stack([torch.ones_like(y), torch.zeros_like(y)]), is_grads_batched=True)

    both(lambda x: Scaled.apply(F.dropout(x.sin(), 0.5)) * x, use, leaf(3, 4))


def test_gradients_of_other_layouts() -> None:
    def use(run, x, w):
        y = run(x, w)
        y.backward(torch.ones(6)[::2])
        y = run(x, w)
        y.backward(torch.ones(()).expand(3))
        return x.grad, w.grad

    both(model, use, leaf(3, 4), leaf(4, 5))


def test_nothing_is_copied_that_has_the_right_layout(monkeypatch) -> None:
    from quickfuse.launch import compiled_graph as module

    def refuse(*_):
        raise AssertionError("copied")

    monkeypatch.setattr(module, "laid_out", refuse)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    twin = compiled(lambda x: model(x).sin())
    for seed in range(3):
        twin(leaf(5, 4, seed=seed)).backward(torch.ones(5, 3))
    assert twin.specialisations[0].glue.constants["_joined"].backwards[frozenset(), False, ()].kernels


def test_numbers_are_not_baked_in() -> None:
    def function(x, scale, n):
        return (x.sin() * scale + n) / (scale + 1) - x * n

    twin = check(function, *[(leaf(3), scale, n) for scale, n in ((2.5, 2), (0.1, 3), (-4.0, 7))])
    assert twin.graph_count == 1


def test_numbers_in_formulas_of_gradients() -> None:
    twin = check(lambda x, p: (x.abs() ** p).sin() * 2, (leaf(3), 2.5), (leaf(3), 3.5), (leaf(3), 2.0))
    assert twin.graph_count == 1


def test_a_changed_buffer() -> None:
    def function(x, count, mean):
        count += 1
        mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return (x * 2).sin()

    check(function, (leaf(3, 4), torch.zeros((), dtype=torch.int64), torch.zeros(4)))


def test_a_changed_input_that_needs_gradients() -> None:
    def function(x, w):
        y = x * 1
        return y.mul_(w), y

    check(function, (leaf(3), leaf(3, seed=1)))

    def use(run, x, w):
        y = x * 1
        z = run(y, w)
        (z + y).sum().backward()
        return x.grad, w.grad, y

    both(lambda y, w: y.mul_(w).sin(), use, leaf(3), leaf(3, seed=1))


def test_custom_functions_run_their_own_backward() -> None:
    calls = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            calls.append(1)
            return grad * 100

    def function(x):
        return Double.apply(x.sin()).cos()

    both(function, lambda run, x: torch.autograd.grad(run(x).sum(), [x]), leaf(3))
    assert len(calls) == 2


def test_custom_functions_between_operators() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y, x - y

        @staticmethod
        def backward(ctx, a, b):
            x, y = ctx.saved_tensors
            return a * y * 10 + b, (a * x).cos()

    def function(x, w, scale):
        y = (x.sin() * scale).exp()
        a, b = Scaled.apply(y, w.cos() * scale)
        return (a * b * scale + y).relu(), y.view(-1), b.t()

    twin = check(function, (leaf(3, 4), leaf(3, 4, seed=1), 2.5), (leaf(3, 4, seed=2), leaf(3, 4, seed=1), 0.5))
    assert twin.specialisations[0].kernels >= 2

    def use(run, x, w):
        out, _, _ = run(x, w, 1.5)
        (first,) = torch.autograd.grad(out.sum(), [x], create_graph=True)
        (first**2).sum().backward()
        return first, x.grad, w.grad

    both(function, use, leaf(3, 4), leaf(3, 4, seed=1))


def test_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    def function(x, w):
        return checkpoint(model, x, w, use_reentrant=False).sin()

    check(function, (leaf(3, 4), leaf(4, 5)), fallback=True)


def test_a_checkpoint_that_changes_again_what_was_changed_before_it() -> None:
    state = types.SimpleNamespace(n=0, sizes=[0])

    def scaled(x):
        state.n += 1
        state.sizes[0] = state.n
        return x.sin() * state.n

    def function(x):
        state.n = state.sizes[0] = 5
        return torch.utils.checkpoint.checkpoint(scaled, x, use_reentrant=False)

    def use(run, x):
        run(x).sum().backward()
        return x.grad, state.n, [*state.sizes]

    both(function, use, leaf(3))


def test_a_checkpoint_that_looks_into_a_list() -> None:
    sizes = [1, 2, 3]

    def function(x):
        return torch.utils.checkpoint.checkpoint(lambda x: x.sin() * sum(sizes), x, use_reentrant=False)

    check(function, (leaf(3, 4),), fallback=False)


def test_a_leaf_made_inside() -> None:
    def function(x):
        w = x.detach().sin().requires_grad_()
        return w, (w * x).sum()

    def use(run, x):
        w, y = run(x)
        y.backward()
        return x.grad, w.grad, w.is_leaf

    both(function, use, leaf(3))


@pytest.mark.parametrize("grad", [True, False])
def test_a_leaf_made_of_a_part_of_an_input(grad) -> None:
    def function(x):
        w = x[0].detach().requires_grad_()
        return x.sin(), w.exp(), w

    def use(run, x):
        first, second, w = run(x)
        second.sum().backward()
        return first, w.grad, x.grad is None, w.is_leaf

    both(function, use, leaf(3, 4, grad=grad))


def test_a_leaf_made_of_what_a_custom_function_or_a_checkpoint_returns() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient * ctx.saved_tensors[0]

    def use(run, x):
        w, y = run(x)
        y.backward()
        return x.grad, w.grad, w.requires_grad, w.is_leaf

    for inner in (Square.apply, lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)):

        def function(x, inner=inner):
            w = inner(x).detach().requires_grad_()
            return w, (w * x).sum()

        both(function, use, leaf(3))


def test_dropout_draws_eagers_numbers() -> None:
    def function(x):
        return F.dropout(x.sin(), 0.5) * F.dropout(x, 0.1), torch.rand_like(x) * x

    check(function, (leaf(20, 30),), (leaf(20, 30, seed=1),))


def test_nothing_keeps_inputs_and_results_alive() -> None:
    twin = compiled(model)
    x, w = leaf(3, 4), leaf(4, 5)
    y = twin(x, w)
    y.sum().backward()
    refs = [weakref.ref(t) for t in (x, w, y)]
    del x, w, y
    gc.collect()
    assert [r() for r in refs] == [None] * 3
    assert joined(twin)


def test_two_devices_of_threads() -> None:
    """Forward and backward of one function in several threads at once."""
    import threading

    twin = compiled(model)
    twin(leaf(3, 4), leaf(4, 5)).sum().backward()
    failures = []

    def work(seed):
        for k in range(20):
            x, w = leaf(3, 4, seed=seed + k), leaf(4, 5, seed=k)
            twin(x, w).sum().backward()
            x2, w2 = x.detach().requires_grad_(), w.detach().requires_grad_()
            model(x2, w2).sum().backward()
            if not torch.allclose(x.grad, x2.grad, atol=1e-5) or not torch.allclose(w.grad, w2.grad, atol=1e-5):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures


def test_numbers_on_both_sides_of_a_function_of_the_users() -> None:
    """A number that is computed before the call, and one computed of it after the call."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        half = n // 2
        y = Double.apply(x.sin() * half)
        return y.cos() * (half * 3) + y

    compiled = quickfuse.compile(function)
    for n in (4, 6, 9):
        mine, theirs = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
        theirs.data.copy_(mine.data)
        compiled(mine, n).sum().backward()
        function(theirs, n).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert compiled.graph_count == 1


def test_numbers_that_are_equal_by_accident() -> None:
    """Both halves of an even number are equal, those of an odd one are not: neither graph nor result may rely on either."""

    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        half = n // 2
        return (x * half).sin() * (n - half)

    compiled = quickfuse.compile(function)
    for n in (4, 5, 7, 8):
        mine = torch.rand(3, requires_grad=True)
        theirs = mine.detach().clone().requires_grad_()
        compiled(mine, n).sum().backward()
        function(theirs, n).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
