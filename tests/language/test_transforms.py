"""`torch.func` and checkpoints inside of the compiled function."""

import collections

import pytest
import torch
import torch.nn.functional as F
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from language.harness import BACKENDS, case, check, names, setup, t

RATE = torch.tensor([0.5, 1.0, 2.0])


def leaf(*shape, seed=0):
    return t(*shape, seed=seed, grad=True)


def loss_of(w, x):
    return ((x * w).sum() - RATE.sum()) ** 2


gradient_of_loss = grad(loss_of)
per_sample = vmap(grad(loss_of), in_dims=(None, 0))
Pair = collections.namedtuple("Pair", "first second")


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3)), graphs=1)
def gradient(w, x):
    return grad(loss_of)(w, x) + 1, grad(loss_of, argnums=1)(w, x), grad(loss_of, argnums=(0, 1))(w, x)


@case((t(3), t(3, seed=1), 2.0), (t(3, seed=2), t(3), 3.0), graphs=1)
def gradient_with_closure_and_numbers(w, x, scale):
    y = x * 2

    def f(v, *, power):
        z = v * y * scale
        return (z**power).sum() / 10, {"z": z.detach()}

    g, aux = grad(f, has_aux=True)(w, power=2)
    (g2, (value, aux2)) = grad_and_value(f, has_aux=True)(w, power=3)
    return g, aux, g2 * 2, value, aux2


@case((t(3), t(4, 3, seed=1)), (t(3, seed=2), t(4, 3)), graphs=1)
def transformed_outside(w, x):
    return gradient_of_loss(w, x[0]), per_sample(w, x) * 2, gradient_of_loss.__name__


@case((t(3), t(4, 3, seed=1)), (t(3, seed=2), t(4, 3)))
def made_before_a_break(w, x):
    f = vmap(grad(loss_of), in_dims=(None, 0))
    print("break")
    return f(w, x) + 1, callable(f)


@case((t(4, 3), t(3, seed=1)), (t(2, 3), t(3, seed=1)), graphs=1)
def batches(x, w):
    a = vmap(torch.dot, in_dims=(0, None))(x, w)
    b = vmap(lambda row: {"mean": row.mean(), "rest": (row - row.mean(), 1.0)}, out_dims=0)(x) if False else 0
    c = vmap(lambda column: column.cumsum(0), in_dims=1, out_dims=1)(x)
    d = vmap(lambda p: p["a"] * p["b"][0], in_dims=({"a": 0, "b": [None]},))({"a": x, "b": [w]})
    e = vmap(vmap(lambda u, v: u * v, in_dims=(0, None)), in_dims=(None, 0))(w, x)
    f = vmap(lambda v, s: v * s, in_dims=(-1, None))(x, 2.0)
    return a, b, c, d, e, f


@case((t(4, 3),), (t(2, 3),))
def batches_with_random_numbers(x):
    same = vmap(lambda v: v + torch.rand(3), randomness="same")(x)
    different = vmap(lambda v: F.dropout(v, 0.5), randomness="different")(x)
    try:
        vmap(lambda v: v + torch.rand(3))(x)
    except RuntimeError as error:
        message = "random" in str(error)
    return same, different, message


@case((t(4, 3),), (t(2, 3),))
def batches_in_chunks_and_wrong_ones(x):
    y = vmap(lambda v: v * 2, chunk_size=2)(x)
    messages = []
    for in_dims in (3, (0, 0), "a"):
        try:
            vmap(lambda v: v, in_dims=in_dims)(x)
        except (ValueError, RuntimeError, TypeError) as error:
            messages.append(type(error).__name__)
    try:
        grad(lambda v: v * 2)(x)
    except RuntimeError as error:
        messages.append(str(error)[:30])
    return y, messages


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3)), graphs=1)
def jacobians(x, v):
    def f(a):
        return a**2 * a.sum(), a.sin()

    rev = jacrev(f)(x)
    fwd = jacfwd(lambda a: a.tanh() * v)(x)
    hess = hessian(lambda a: (a**3).sum() * v[0])(x)
    both = jacrev(lambda a, b: a * b, argnums=(0, 1))(x, v)
    return rev, fwd, hess, both


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3)), graphs=1)
def products(x, v):
    def f(a):
        return a**2 * a.sum(), {"sin": a.sin()}

    out, tangent = jvp(f, (x,), (v,))
    out2, pull = vjp(f, x)
    (back,) = pull((v, {"sin": v * 2}))
    value, tangent2, aux = jvp(lambda a: (a * 2, a + 1), (x,), (v,), has_aux=True)
    return out, tangent, out2, back, value, tangent2, aux


@case((leaf(3), t(3, seed=1)), (leaf(3, seed=2), t(3)), graphs=1)
def gradients_flow_through(w, x):
    g = grad(lambda v: ((v * w) ** 2).sum())(x)
    h = vmap(lambda v: v * w)(torch.stack([x, x]))
    return g.sum(), h, g.requires_grad


@case((leaf(3),), (leaf(3, seed=2),), graphs=1)
def without_grad_mode(x):
    with torch.no_grad():
        g = grad(lambda v: (v**2).sum())(x)
        h = vmap(lambda v: v * 2)(x)
    return g, h, g.requires_grad, torch.is_grad_enabled()


@case((t(4, 3),), (t(2, 3),), graphs=1)
def tensors_made_inside(x):
    def f(v):
        places = torch.arange(3) + torch.tensor([1, 0, 2])
        return F.cross_entropy((v * places)[None], torch.zeros(1, dtype=torch.long)) * torch.ones(2, device="cpu")

    return vmap(f)(x), grad(lambda a: vmap(f)(a).sum())(x), vmap(lambda v: torch.ones(2))(x)


@case((t(3), t(3, seed=1)), (t(3, seed=2) / 0, t(3)), graphs=1)
def derivatives_that_are_not_there(x, w):
    return jvp(lambda v: v * w, (x,), (w,)), jacfwd(lambda v: torch.stack([(v.detach() * w).sum(), (w * v).sum()]))(x)


@case((t(4, 3), t(3, seed=1)), (t(2, 3), t(3)), graphs=1)
def under_autocast(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        a = vmap(lambda v: torch.outer(v, w) @ v)(x)
        b = grad(lambda v: (x @ v).float().square().sum())(w)
    return a, a.dtype, b, b.dtype


@case((t(3),), (t(3, seed=2),), graphs=1)
def grad_modes_inside(x):
    def f(v):
        with torch.no_grad():
            c = v**2
        return (v - c).sum()

    return grad(f)(x), x


@case((t(3), []), (t(3, seed=2), [1]))
def side_effects_inside(x, seen):
    count = [0]

    def f(v):
        count[0] += 1
        seen.append(count[0])
        return (v**2).sum()

    return grad(f)(x), count, len(seen)


@case((t(3),), (t(3, seed=2),))
def tensors_that_leave(x):
    kept = []

    def f(v):
        kept.append((v * 2).detach())
        return (v**2).sum()

    g = grad(f)(x)
    return g, len(kept), type(kept[0]).__name__


@case((t(3),), (t(3, seed=2),))
def in_place_inside(x):
    def f(v):
        y = v * 2
        y.mul_(v)
        return y.sum()

    def g(v):
        x.add_(1)
        return (v * x).sum()

    return grad(f)(x), grad(g)(x * 2), x


@case((t(3),), (t(3, seed=2),))
def questions_inside(x):
    seen = []

    def f(v):
        seen.append((v.requires_grad, v.shape, v.dtype, v.is_leaf))
        if v.sum() > 100:
            return v.sum()
        return (v**2).sum()

    try:
        return grad(f)(x), seen
    except RuntimeError as error:
        return str(error)[:20], seen


@case((t(3), 0), (t(3), 1))
def exceptions_inside(x, n):
    def f(v):
        if n:
            raise ValueError("inside")
        return (v**2).sum()

    try:
        return grad(f)(x)
    except ValueError as error:
        return str(error), x + 1


@setup(graphs=1)
def functional_training():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p, x, y):
        return F.mse_loss(functional_call(model, p, (x,)), y)

    def train(x, y):
        current = parameters
        for _ in range(2):
            gradients, value = grad_and_value(loss)(current, x, y)
            current = {name: p - 0.1 * gradients[name] for name, p in current.items()}
        return current, value

    return train, [(t(2, 3), t(2, 1)), (t(2, 3, seed=1), t(2, 1, seed=1))]


@setup()
def ensemble():
    models = [torch.nn.Linear(3, 2) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = models[0]

    def call(p, b, x):
        return functional_call(base, (p, b), (x,))

    def run(x):
        return vmap(call, in_dims=(0, 0, None))(parameters, buffers, x), x

    return run, [(t(2, 3),), (t(2, 3, seed=1),)]


@case((leaf(3), leaf(3, seed=1)), (leaf(3, seed=2), leaf(3)), graphs=1)
def checkpointed(x, w):
    def f(a, scale=1.0):
        return (a * w).sin() * scale, {"square": a**2}

    y, more = checkpoint(f, x * 2, scale=3.0, use_reentrant=False)
    return y + 1, more["square"] * 2


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3)), graphs=1)
def checkpointed_without_gradients(x, w):
    with torch.no_grad():
        y = checkpoint(torch.mul, x, w, use_reentrant=False)
    return y + 1


@setup()
def checkpointed_modules():
    layers = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2)
    )

    def run(x):
        y = checkpoint(layers, x, use_reentrant=False)
        return y.sum(), y

    return run, [(leaf(3, 4),), (leaf(3, 4, seed=1),)]


@setup()
def checkpointed_reentrant_and_in_sequence():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4), torch.nn.Tanh())

    def run(x):
        y = checkpoint(lambda v: layers[0](v).relu(), x, use_reentrant=True)
        return checkpoint_sequential(layers, 2, y, use_reentrant=False).sum()

    return run, [(leaf(3, 4),), (leaf(3, 4, seed=1),)]


@setup(steady="later")
def backward_through_a_reentrant_checkpoint():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def run(x):
        layers.zero_grad()
        loss = (checkpoint(layers, x * 2, use_reentrant=True) + x).square().mean()
        loss.backward()
        return loss.detach(), [p.grad.clone() for p in layers.parameters()]

    return run, [(leaf(3, 4),), (leaf(3, 4, seed=1),)]


@case((leaf(3), []), (leaf(3, seed=1), []))
def checkpointed_side_effects(x, seen):
    def f(a):
        seen.append("called")
        return a.exp() * a

    y = checkpoint(f, x, use_reentrant=False)
    y.sum().backward()
    return x.grad, y.detach()


@setup(steady="later")
def checkpointed_training_step():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x):
        optimizer.zero_grad()
        loss = checkpoint(model, x, use_reentrant=False).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train, [(t(3, 4),), (t(3, 4, seed=1),)]


class Reversed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return -g


class Negated(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return -g


@case((t(3),), (t(3, seed=1),))
def custom_functions_inside(x):
    a = grad(lambda v: Negated.apply(v).sum())(x)
    b = vmap(lambda v: Reversed.apply(v))(x)
    return a, b, checkpoint(Negated.apply, x, use_reentrant=False)


@case((leaf(6, 4),), (leaf(5, 4, seed=1),), graphs=1)
def in_chunks(x):
    rows = vmap(lambda row: (row.sin() * 2).sum(), chunk_size=2)(x)
    columns = vmap(lambda a, b: (a * b, a.sum()), in_dims=(1, None), out_dims=(1, 0), chunk_size=3)(x, x[:, 0])
    within = vmap(vmap(torch.sin, chunk_size=2), chunk_size=100)(x)
    drawn = vmap(lambda row: row * torch.rand(4), randomness="different", chunk_size=2)(x)
    return rows, columns, within, drawn, torch.autograd.grad(rows.sum(), x, retain_graph=True)[0]


@case((leaf(6, 4), 2), (leaf(6, 4, seed=1), 2), (leaf(6, 4), 1))
def jacobian_in_chunks(x, size):
    return jacrev(lambda v: (v.sin() @ v.t()).sum(1), chunk_size=size)(x.detach())


@case((t(5, 4), 2), (t(5, 4, seed=1), 3))
def the_same_numbers_for_each_chunk(x, size):
    return vmap(lambda row: row * torch.rand(4), randomness="same", chunk_size=size)(x)


@case((t(5, 4), 0), (t(5, 4, seed=1), 3))
def chunks_of_a_size_that_is_refused(x, size):
    return vmap(torch.sin, chunk_size=size)(x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_transforms(name, backend):
    check(__file__, name, backend)
