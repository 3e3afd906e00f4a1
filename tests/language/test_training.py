"""Training steps as one function: zero_grad, forward, loss, backward, clipping, optimizer and schedule."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from language.harness import BACKENDS, case, check, names, setup, t


def leaf(*shape, seed=0):
    return t(*shape, seed=seed, grad=True)


def small_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, padding=1, bias=False), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(32, 3),
    )  # fmt: skip


def batches():
    return [(t(2, 1, 4, 4, seed=k), torch.tensor([k % 3, 2])) for k in range(4)]


@setup(graphs=1, at_most=2, steady="later")
def whole_step():
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, gamma=0.5)

    def train(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        return loss.detach(), norm

    return train, batches()


@setup(graphs=1, at_most=2, steady="later")
def whole_step_that_zeroes_in_place():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    return train, batches()


@setup(at_most=3, steady="later")
def step_with_a_closure():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

    def train(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    return train, [(t(3, 4),), (t(3, 4, seed=1),)]


@setup(steady="later")
def accumulation_then_step():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(batches):
        for batch in batches:
            (model(batch).pow(2).mean() / len(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        return [p.grad for p in model.parameters()]

    return train, [([t(2, 4), t(2, 4, seed=1)],), ([t(2, 4, seed=2), t(2, 4, seed=3)],)]


@setup(graphs=1, steady="later")
def frozen_unused_and_shared_parameters():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.again = torch.nn.Linear(4, 4)
            self.again.weight = self.first.weight
            self.frozen = torch.nn.Linear(4, 4).requires_grad_(False)
            self.unused = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.again(self.frozen(self.first(x)).tanh())

    model = Model()

    def train(x):
        model.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss.detach(), [p.grad is None for p in model.parameters()]

    return train, [(t(3, 4),), (t(3, 4, seed=1),)]


@setup(steady="later")
def mixed_precision_step():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def train(x):
        optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return train, [(t(3, 4),), (t(3, 4, seed=1),)]


@setup(steady="later")
def step_that_prints_and_branches():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 1.0)
        if norm > 0.5:
            print("large")
        optimizer.step()
        return loss.item(), norm

    return train, [(t(3, 4),), (t(3, 4, seed=1) * 0.01,)]


@setup(steady="later")
def two_models_and_two_losses():
    generator, critic = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    first = torch.optim.Adam(generator.parameters(), lr=0.1)
    second = torch.optim.Adam(critic.parameters(), lr=0.1)

    def train(noise, real):
        fake = generator(noise)
        second.zero_grad()
        loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        other = F.softplus(-critic(fake)).mean()
        other.backward()
        first.step()
        return loss.detach(), other.detach()

    return train, [(t(2, 3), t(2, 4)), (t(2, 3, seed=1), t(2, 4, seed=1))]


@setup(steady="later")
def hooks_on_parameters():
    model = torch.nn.Linear(4, 2)
    seen = []
    model.weight.register_hook(lambda g: g * 2)
    model.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))

    def train(x):
        model.zero_grad()
        model(x).sum().backward()
        return model.weight.grad.clone(), len(seen), seen[-1] + 1

    return train, [(t(3, 4),), (t(3, 4, seed=1),)]


@setup(steady="never")
def hooks_that_come_later():
    model = torch.nn.Linear(4, 2)
    calls = []

    def train(x, hook):
        if hook:
            model.weight.register_hook(lambda g: calls.append("hook"))
        model.zero_grad()
        model(x).sum().backward()
        return model.weight.grad.clone(), len(calls)

    return train, [(t(3, 4), False), (t(3, 4, seed=1), True), (t(3, 4), False)]


@case((leaf(3, 4), leaf(3)), (leaf(3, 4, seed=1), leaf(3)), graphs=1)
def gradients_with_weights(x, w):
    y = (x * 2).sum(1) * w
    y.backward(torch.ones(3) * 0.5, retain_graph=True)
    first = x.grad.clone()
    torch.autograd.backward([y, (x**2).sum()], [y.detach(), None])
    return first, x.grad + 1, w.grad


@case((leaf(3), leaf(3, seed=1)), (leaf(3, seed=2), leaf(3)), graphs=1)
def only_some_inputs(x, w):
    y = (x * w).sum()
    y.backward(inputs=[x])
    return x.grad + 1, w.grad


@case((leaf(4, 3),), (leaf(3, 4),), graphs=1)
def gradient_of_a_transposed_leaf(x):
    w = torch.empty_strided((3, 4), (1, 3)).fill_(0.0).requires_grad_()
    loss = (w.sum() * 2 + (w * 3).t().reshape(-1)[0]) * x.sum()
    loss.backward()
    return w.grad, w.grad.stride(), x.grad, x.grad.is_contiguous(), w.is_leaf, w


@case((leaf(3),), (leaf(3, seed=1),), graphs=1)
def gradients_that_are_one_tensor(x):
    y = torch.ones(3, requires_grad=True)
    (x + y).sum().backward()
    x.grad.add_(1)
    return x.grad, y.grad, x.grad is y.grad


@case((leaf(3),), (leaf(3, seed=1),), graphs=1)
def writes_through_views(x):
    y = torch.zeros(2, 3)
    y[0] = x * 2
    z = y[1]
    z.copy_(x**2)
    (y * torch.arange(6.0).view(2, 3)).sum().backward()
    return x.grad + 0, y, z


@case((leaf(3),), (leaf(3, seed=1),))
def write_to_a_view_that_raises(x):
    y = torch.zeros(2, 3)
    z = y[1]
    y[0] = x * 2
    z.copy_(x**2)
    return y, z


@case((leaf(3), leaf(3, seed=1)), (leaf(3), leaf(3, seed=2)), graphs=1)
def what_is_written_later_does_not_count(x, w):
    y = x * 2
    loss = y.sum()
    y.add_(w)
    loss.backward()
    return x.grad, w.grad, y


@case((leaf(3),), (leaf(3, seed=1),), graphs=1)
def backward_without_grad_mode(x):
    loss = (x**2).sum()
    with torch.no_grad():
        loss.backward()
        y = x - 0.1 * x.grad
        x.grad.zero_()
    return y, x.grad, torch.is_grad_enabled()


@case((leaf(3),), (leaf(3, seed=1),))
def leaf_made_inside_is_returned(x):
    w = torch.full((3,), 2.0, requires_grad=True)
    before = w.grad, w.is_leaf, torch.zeros(2, requires_grad=True).is_leaf
    (w * x.detach()).sum().backward()
    return w, w.grad, before


@case((leaf(3),), (leaf(3, seed=1),))
def loss_is_used_again_outside(x):
    loss = (x**2).sum()
    loss.backward(retain_graph=True)
    return loss


@case((leaf(3),), (leaf(3, seed=1),))
def second_backward_raises(x):
    loss = (x**2).sum()
    loss.backward()
    try:
        torch.autograd.grad(loss, x)
    except RuntimeError:
        return x.grad


@case((leaf(3),), (leaf(3, seed=1),))
def wrong_calls_of_backward(x):
    messages = []
    for program in (
        lambda: (x * 2).backward(), lambda: x.detach().sum().backward(), lambda: x.sum().backward(torch.ones(2)),
        lambda: torch.autograd.grad(x.sum(), [torch.ones(3, requires_grad=True)]),
        lambda: torch.autograd.grad(x.sum(), []),
    ):  # fmt: skip
        try:
            program()
        except RuntimeError as error:
            messages.append(str(error).splitlines()[0])
    return messages, x * 2


@case((leaf(3), leaf(3, seed=1)), (leaf(3), leaf(3, seed=2)), graphs=1)
def gradients_of_inner_tensors(x, w):
    y = x * w
    z = y.exp().sum()
    gy, gx = torch.autograd.grad(z, (y, x), retain_graph=True)
    unused = torch.autograd.grad(z, (w, torch.ones(1, requires_grad=True)), allow_unused=True)
    zeros = torch.autograd.grad((x * 3).sum(), [x, w], materialize_grads=True)
    return gy, gx * 2, unused, zeros, [g.stride() for g in zeros]


@case((leaf(3), leaf(3, seed=1)), (leaf(3), leaf(3, seed=2)), graphs=1)
def gradient_penalty(x, w):
    score = (x * w).tanh().sum()
    (gradient,) = torch.autograd.grad(score, x, create_graph=True)
    penalty = (gradient.norm() - 1) ** 2
    return penalty, gradient.requires_grad, gradient


@case((leaf(3), leaf(3, seed=1)), (leaf(3), leaf(3, seed=2)))
def backward_through_a_gradient(x, w):
    score = (x * w).sum()
    (gradient,) = torch.autograd.grad(score, x, create_graph=True)
    (gradient**2).sum().backward()
    return w.grad, x.grad


@case((leaf(2, 3),), (leaf(2, 3, seed=1),), graphs=1)
def inner_loop_of_meta_learning(x):
    w = torch.ones(3, requires_grad=True)
    fast = w
    for _ in range(3):
        loss = ((x * fast).sum(1) - 1).square().mean()
        (step,) = torch.autograd.grad(loss, fast, create_graph=True)
        fast = fast - 0.1 * step
    return ((x * fast).sum(1) - 2).square().mean(), fast.detach()


@case((leaf(3),), (leaf(3, seed=1),))
def grad_of_non_leaf_from_a_break(x):
    y = x * 2
    print("break")
    z = (y * y).sum()
    z.backward()
    return x.grad + 1


@case((leaf(3), 0), (leaf(3), 1))
def exception_behind_backward(x, n):
    try:
        (x**2).sum().backward()
        if n:
            raise ValueError("n")
        x.grad.add_(1)
    except ValueError:
        x.grad.mul_(3)
    return x.grad.clone()


@case((leaf(3),), (leaf(3, seed=1),), graphs=1)
def numbers_from_the_loss(x):
    total = 0.0
    for k in range(2):
        loss = (x * (k + 1)).square().sum()
        loss.backward()
        total += loss.item()
    return total, x.grad


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return (x * scale).round() / scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        inner = x * 0.5
        return g * (inner.abs() < 1), None


class Splitting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k, x.sum() + k

    @staticmethod
    def backward(ctx, a, b):
        return a * ctx.k * 10 + b, None


@case((leaf(3), leaf(3, seed=1)), (leaf(3, seed=2), leaf(3)), graphs=1)
def through_custom_functions(x, scale):
    y = Rounded.apply(x * 3, scale)
    a, b = Splitting.apply(y, 2.0)
    (a * b).sum().backward()
    return x.grad + 1, scale.grad, y


@case((leaf(3), []), (leaf(3, seed=2), []), steady="never")
def through_a_custom_function_with_side_effects(x, seen):
    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            return v * 2

        @staticmethod
        def backward(ctx, g):
            seen.append(g.shape)
            return g * 3

    Noting.apply(x).sum().backward()
    return x.grad, len(seen)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_training(name, backend):
    check(__file__, name, backend)
