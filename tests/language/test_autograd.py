"""Gradients: requires_grad, .grad, backward and autograd.grad inside, custom functions, checkpoints, torch.func."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, grad_and_value, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

from language.harness import BACKENDS, case, check, names, setup, t


def leaf(*shape, seed=0):
    return t(*shape, seed=seed, grad=True)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2 * ctx.scale, None


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clamp(-1, 1)


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, da, db):
        x, y = ctx.saved_tensors
        return da * y + db, da * x + db if ctx.needs_input_grad[1] else None


class OneTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        result, other = x * 2, x + 1
        if y:
            ctx.mark_dirty(x)  # which is not returned
        return result, other, result

    @staticmethod
    def backward(ctx, first, other, second):
        return first * 2 + other + second * 3, None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2


@case((leaf(3), False), (t(3), False), (t(3), True))
def one_tensor_is_returned_twice(x, wrong):
    first, other, second = OneTwice.apply(x, wrong)
    same = first is second, first is other
    (gradient,) = torch.autograd.grad((first * 3 + other * other).sum(), x)
    return first, second, same, gradient


@case((leaf(3),), (t(3),), (leaf(3, seed=1),))
def result_needs_gradients(x):
    y = (x * 2).sin() + x**2
    return y.sum(), y, y.requires_grad, y.is_leaf


@case((leaf(3), t(3, seed=1)), (leaf(3), leaf(3, seed=1)), (t(3), t(3, seed=2)))
def some_inputs_need_gradients(x, w):
    y = F.relu(x * w + 1)
    z = y.detach() * x
    return y, z, y.requires_grad, (x.requires_grad, w.requires_grad)


@case((t(3),), (t(3, seed=1),))
def requires_grad_is_set_inside(x):
    w = (x * 2).requires_grad_()
    y = (w**2).sum() * x.sum()
    y.backward()
    return w.grad, y.detach() + 1, w.requires_grad


@case((leaf(3),), (leaf(3, seed=1),))
def backward_inside(x):
    loss = (x.exp() * 2).sum()
    loss.backward()
    first = x.grad.clone()
    (x * 3).sum().backward()
    return first, x.grad, loss.detach() + 1


@case((leaf(3),), (leaf(3, seed=1),))
def gradient_is_reset_and_edited(x):
    if x.grad is not None:
        x.grad = None
    (x**2).sum().backward()
    x.grad.mul_(0.1)
    with torch.no_grad():
        x -= x.grad
    x.grad.zero_()
    return x.detach().clone()


@case((leaf(3), 3), (leaf(3, seed=1), 2))
def gradient_descent(x, steps):
    w = torch.zeros(3, requires_grad=True)
    for _ in range(steps):
        loss = ((w - x.detach()) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, w)
        w = (w - 0.1 * gradient).detach().requires_grad_()
    return w, loss


@case((leaf(3),), (leaf(3, seed=1),))
def double_backward(x):
    y = (x**3).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    penalty = (first.norm() - 1) ** 2
    return second, penalty


@case((leaf(3), leaf(3, seed=1)), (leaf(3, seed=2), leaf(3, seed=3)))
def autograd_grad_of_several(x, y):
    z = x * y.detach() + 1
    grads = torch.autograd.grad(z.sum(), [x, y], allow_unused=True)
    weighted = torch.autograd.grad((x * y), (x, y), grad_outputs=torch.ones(3) * 2)
    return grads[0], grads[1], [g + 1 for g in weighted]


@case((leaf(3),), (leaf(3, seed=1),))
def retain_graph_and_retain_grad(x):
    y = x * 2
    y.retain_grad()
    z = (y**2).sum()
    z.backward(retain_graph=True)
    a = y.grad.clone()
    z.backward()
    return a, y.grad + 1, x.grad.clone()


@case((leaf(3),), (leaf(3, seed=1),))
def backward_twice_raises(x):
    y = (x.exp()).sum()
    y.backward()
    try:
        y.backward()
    except RuntimeError as error:
        return x.grad * 2, "second time" in str(error)


@case((t(3),), (t(3, seed=1),))
def backward_of_what_needs_none(x):
    y = (x * 2).sum()
    y.backward()
    return y


@case((leaf(3), 2.0), (leaf(3, seed=1), 3.0), (t(3), 1.0))
def custom_function(x, scale):
    y = Cube.apply(x * 2, scale)
    return y + 1, Cube.apply(y, 0.5)


@case((leaf(3),), (leaf(3, seed=1),))
def custom_function_with_setup_context(x):
    return StraightThrough.apply(x * 3) * 2 + x


@case((leaf(3), leaf(3, seed=1)), (leaf(3), t(3, seed=1)))
def custom_function_with_two_outputs(x, y):
    product, total = TwoOutputs.apply(x, y)
    return product.sin() + total, total


@case((leaf(3),), (t(3),))
def custom_function_that_writes_in_place(x):
    y = x * 1.5
    z = InPlace.apply(y)
    return z + 1, y is z


@case((leaf(3),), (leaf(3, seed=1),), steady="never")
def custom_function_made_inside(x):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            return v * 4

        @staticmethod
        def backward(ctx, g):
            return g * 40

    return Scale.apply(x.sin()) + 1


@setup()
def checkpointed_layers():
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])

    def run(x):
        for layer in layers:
            x = checkpoint(lambda v: F.gelu(layer(v)) + v, x, use_reentrant=False)
        return x * 2

    return run, [(leaf(3, 4),), (leaf(3, 4, seed=1),)]


@case((leaf(3),), (leaf(3, seed=1),))
def checkpoint_of_a_local_function(x):
    def inner(a, b):
        return (a * b).sin() * a.exp()

    y = checkpoint(inner, x, x + 1, use_reentrant=False)
    return y + 1


@case((t(3),), (t(3, seed=1),))
def func_grad(x):
    def loss(v):
        return (v**2).sin().sum()

    value_and = grad_and_value(loss)(x)
    return grad(loss)(x) + 1, value_and, grad(lambda v: grad(loss)(v).sum())(x)


@case((t(4, 3),), (t(5, 3, seed=1),), steady="never")
def func_vmap(x):
    def normalised(row):
        return (row - row.mean()) / (row.std() + 1e-5)

    pairs = vmap(vmap(torch.dot, in_dims=(None, 0)), in_dims=(0, None))(x, x)
    return vmap(normalised)(x) * 2, pairs, vmap(lambda v, s: v * s, in_dims=(0, None))(x, 2.0)


@case((t(4, 3), t(3, seed=1)), (t(2, 3), t(3, seed=2)))
def func_per_sample_gradients(batch, w):
    def loss(weights, sample):
        return ((sample * weights).sum() - 1) ** 2

    per_sample = vmap(grad(loss), in_dims=(None, 0))(w, batch)
    return per_sample, per_sample.mean(0) * 2


@case((t(3),), (t(3, seed=1),))
def func_jacobians_and_products(x):
    def f(v):
        return v**2 * v.sum()

    out, tangent = jvp(f, (x,), (torch.ones(3),))
    out2, pull = vjp(f, x)
    return jacrev(f)(x) + 1, tangent, pull(torch.ones(3))[0], out - out2


@setup()
def func_functional_call():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def run(x, factor):
        parameters = {name: p.detach() * factor for name, p in model.named_parameters()}
        y = functional_call(model, parameters, (x,))
        gradients = grad(lambda p: functional_call(model, p, (x,)).sum())(parameters)
        return y + 1, gradients

    return run, [(t(3, 4), 1.0), (t(3, 4, seed=1), 0.5)]


@case((leaf(3), True), (leaf(3), False))
def grad_switch_by_flag(x, training):
    with torch.set_grad_enabled(training):
        y = (x * 2).exp()
    if y.requires_grad:
        return y.sum()
    return y * 0.5


@case((leaf(3),), (leaf(3, seed=1),))
def detach_stops_gradients(x):
    target = (x * 2).detach()
    y = ((x - target) ** 2).mean()
    z = x.detach().clone().requires_grad_()
    (z**2).sum().backward()
    return y, z.grad, target.requires_grad, (x * z.grad).sum()


@case((leaf(3),), (leaf(3, seed=1),))
def grad_fn_is_looked_at(x):
    y = x * 2
    z = y.detach()
    return y + 1, y.grad_fn is None, z.grad_fn is None, y.grad_fn is not None, x.is_leaf, y.is_leaf


@case((leaf(3),), (leaf(3, seed=1),))
def data_is_written(x):
    x.data.mul_(0.5)
    x.data = x.data + 1
    y = x * 2
    return y.sum(), x


@case((leaf(3), t(3, seed=1)), (leaf(3, seed=2), t(3, seed=3)))
def grad_is_assigned(x, g):
    x.grad = g * 2
    y = x * x.grad
    x.grad = x.grad + 1 if x.grad is not None else None
    return y


@case((t(3), t(3, seed=1)), (t(4), t(4, seed=2)))
def forward_mode_inside(x, v):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x * 2, v)
        primal, tangent = torch.autograd.forward_ad.unpack_dual(dual.sin() * x)
    return primal, tangent, x + 1


@case((leaf(3), 2.0), (leaf(3, seed=1), 3.0))
def custom_function_in_a_block_without_inference_mode(x, scale):
    with torch.inference_mode(False):
        y = Cube.apply(x, scale)
    with torch.autocast("cpu", torch.bfloat16):
        z = Cube.apply(x, 2.0)
    return y.sum(), z


@case((t(3), 2.0), (leaf(3), 2.0), (leaf(3, seed=1), 3.0))
def custom_function_of_what_later_needs_gradients(x, scale):
    y = StraightThrough.apply(x)
    return y.sum()


@case((t(3),), (leaf(3),), (leaf(3, seed=1),))
def custom_function_before_a_break_of_what_later_needs_gradients(x):
    y = Cube.apply(x, 2.0)
    print("between")
    return (y * x).sum()


@setup(steady="later")
def accumulation_over_micro_batches():
    model = torch.nn.Linear(4, 1)

    def run(batches):
        model.zero_grad(set_to_none=True)
        total = 0.0
        for batch in batches:
            loss = model(batch).pow(2).mean() / len(batches)
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        return total, norm

    return run, [([t(2, 4), t(2, 4, seed=1)],), ([t(2, 4, seed=2), t(2, 4, seed=3), t(2, 4)],)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_autograd(name, backend):
    check(__file__, name, backend)
