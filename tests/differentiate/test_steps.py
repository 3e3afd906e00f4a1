"""Whole training steps, with `backward()` inside, and autocast: graphs of ATen operators like those of gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quickfuse
from differentiate.twins import check, compiled, leaf, reasons
from seeding import seed_torch


def model():
    return nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 8), nn.GELU(),
        nn.Linear(8, 3),
    )  # fmt: skip


def step_of(net, optimizer, clip):
    def step(x, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_training_step(make, clip) -> None:
    seed_torch(0)
    eager = model()
    mine = copy.deepcopy(eager)
    optimizers = [make(net.parameters()) for net in (eager, mine)]
    runs = [step_of(eager, optimizers[0], clip), compiled(step_of(mine, optimizers[1], clip))]
    for number in range(4):
        losses = []
        for optimizer, run in zip(optimizers, runs, strict=True):
            seed_torch(number)
            optimizer.param_groups[0]["lr"] = 0.01 / (number + 1)
            losses.append(run(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])))
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
        for (name, one), (_, other) in zip(mine.named_parameters(), eager.named_parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
        for one, other in zip(mine.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(one, other)
    assert not reasons(runs[1])


@pytest.mark.parametrize("forget", ["optimizer", "module"])
def test_gradients_that_are_forgotten_are_not_asked_for(forget: str) -> None:
    """The first step, before which there are no gradients, has the graph of all others."""
    twins = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(2)]
    twins[1].load_state_dict(twins[0].state_dict())
    found = []
    for net in twins:
        net.register_parameter("unused", nn.Parameter(torch.ones(2)))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

        def step(x, net=net, optimizer=optimizer):
            (optimizer if forget == "optimizer" else net).zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compiled(step) if net is twins[1] else step
        seed_torch(0)
        kept = []
        for number in range(5):
            if number == 3:  # gradients that others left, also where backward leaves none
                for parameter in net.parameters():
                    parameter.grad = torch.full_like(parameter, 7.0)
            kept.append(net[0].weight.grad)
            kept.append(run(torch.randn(5, 4)))
            assert net.unused.grad is None
        found.append([*kept, *(p.detach() for p in net.parameters()), *(net[0].weight.grad, net[2].bias.grad)])
    assert run.graph_count == 1
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("forget", ["optimizer", "module"])
def test_gradients_that_become_zeros(forget: str) -> None:
    twins = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(2)]
    twins[1].load_state_dict(twins[0].state_dict())
    found = []
    for net in twins:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x, forgets, net=net, optimizer=optimizer):
            (optimizer if forget == "optimizer" else net).zero_grad(set_to_none=forgets)
            net(x).square().mean().backward()
            optimizer.step()

        run = compiled(step) if net is twins[1] else step
        seed_torch(0)
        held = []
        for forgets in (False, False, True, False):
            held.append(net[0].weight.grad)  # which is changed in place
            run(torch.randn(5, 4), forgets)
        found.append([*held, *(p.detach() for p in net.parameters()), *(p.grad for p in net.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_results_whose_history_is_used_up() -> None:
    """`backward()` frees what it needed; a loss that is returned afterwards still says that it requires a gradient."""

    def step(x, w):
        y = (x * w).sin()
        loss = y.sum()
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad)
        return loss, x.cos() * 2, y.detach()

    found = []
    twin = compiled(step)
    for run in (step, twin):
        x, w = leaf(3, 4), leaf(3, 4, seed=1)
        for _ in range(2):
            loss, other, _ = run(x, w)
            assert loss.requires_grad and other.requires_grad
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()
            other.sum().backward()
        found.append((loss, x.grad, w.grad, w))
    torch.testing.assert_close(found[1], found[0])
    assert not reasons(twin)


def test_a_graph_that_is_retained() -> None:
    def function(x, w):
        loss = (x * w).sin().sum()
        loss.backward(retain_graph=True)
        return loss * 2

    check(function, (leaf(3, 4), leaf(3, 4, seed=1)))


def test_gradients_without_strides_of_their_own() -> None:
    def function(x, w):
        (x.sum() + w.t().sum(0).sum()).backward()
        return x.grad * 1, w.grad + 1

    twin = check(function, (leaf(3, 4), leaf(4, 3, seed=1).detach().t().requires_grad_()))
    assert not reasons(twin)


def test_gradients_taken_inside() -> None:
    def function(x, w):
        y = (x * w).sin()
        (first,) = torch.autograd.grad(y.sum(), [x], create_graph=True)
        return (first**2).sum() + y.sum()

    check(function, (leaf(3, 4), leaf(3, 4, seed=1)))


def test_autocast() -> None:
    linear = nn.Linear(8, 8)

    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(linear(x).relu())
            z = y.float().softmax(-1)
        return z.sum(0) * x, y

    check(function, (leaf(4, 8),), (leaf(4, 8, seed=1),), rtol=2e-2, atol=2e-2)
    assert not torch.is_autocast_enabled("cpu")
    with torch.no_grad():
        check(function, (leaf(4, 8),), rtol=2e-2, atol=2e-2)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_maximum_of_what_two_kernels_need(seed: int) -> None:
    """The gradient of a maximum goes where the value equals it: what is compared is computed once, in float32 above all."""
    seed_torch(seed)
    x, scale, kernel, bias = torch.randn(3, 8, 7, 7), torch.rand(8), torch.randn(8, 4, 3, 3) / 3, torch.randn(8)

    def loss(x, scale, kernel, bias):
        y = F.layer_norm(x.permute(0, 2, 3, 1), (8,), scale).permute(0, 3, 1, 2)
        return (y + F.celu(F.conv2d(y, kernel, bias, padding=1, groups=2), 0.7)).amax((2, 3)).square().sum()

    gradients = []
    for wrap in (lambda step: step, quickfuse.compile):
        inputs = [t.clone().requires_grad_() for t in (x, scale, kernel, bias)]
        wrap(lambda inputs=inputs: loss(*inputs).backward())()
        gradients.append([t.grad for t in inputs])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (1 - x.tanh() ** 2)


def test_an_optimizer_with_numbers_that_change_after_a_call_with_gradients_of_its_own() -> None:
    found = []
    for wrap in (lambda step: step, compiled):
        seed_torch(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        optimizer = torch.optim.Rprop(net.parameters(), lr=0.01, etas=(0.6, 1.1))
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=10, cycle_momentum=False)

        def step(x, y, net=net, optimizer=optimizer, scheduler=scheduler):
            optimizer.zero_grad()
            loss = (net[1](_Tanh.apply(net[0](x))) - y).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss.detach()

        run = wrap(step)
        losses = [run(torch.full((5, 4), 0.1 * n), torch.ones(5, 2)) for n in range(4)]
        found.append([*losses, *net.parameters(), *[p.grad for p in net.parameters()]])
    torch.testing.assert_close(found[1], found[0])
    assert not [reason for reason in reasons(run) if "operator by operator" in reason]


def _rows():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
    return net, lambda: net(torch.linspace(-1, 1, 12).view(3, 4)).float().square().mean()


def _images():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return net, lambda: net(torch.linspace(-1, 1, 384).view(2, 3, 8, 8)).mean()


def _cell():
    net = nn.LSTMCell(5, 7)
    return net, lambda: sum(t.float().square().sum() for t in net(torch.linspace(-1, 1, 15).view(3, 5)))


@pytest.mark.parametrize("make", [_rows, _images, _cell])
@pytest.mark.parametrize("inside", [False, True])
def test_gradients_under_autocast(make, inside) -> None:
    found = []
    for wrap in (lambda step: step, compiled):
        seed_torch(0)
        net, loss_of = make()

        def step(net=net, loss_of=loss_of):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of()
                if inside:
                    return loss.detach(), torch.autograd.grad(loss, [*net.parameters()])
            return loss.detach(), torch.autograd.grad(loss, [*net.parameters()])

        run = wrap(step)
        found.append([run() for _ in range(2)])
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=2e-2)
    assert not reasons(run)
    assert not torch.is_autocast_enabled("cpu")


def test_a_penalty_on_gradients_under_autocast() -> None:
    seed_torch(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def step(x):
        x = x.detach().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [*net.parameters()], allow_unused=True)

    run, x = compiled(step), torch.randn(3, 4)
    for found, wanted in zip(run(x), step(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert not reasons(run)


def test_autocast_around_what_is_made_inside() -> None:
    """A graph without any tensor of its caller's."""

    @quickfuse.compile
    def made():
        with torch.autocast("cpu", torch.bfloat16):
            return torch.ones(3, 3) @ torch.full((3, 3), 2.0)

    assert torch.equal(made(), torch.full((3, 3), 6.0, dtype=torch.bfloat16))
    assert made().dtype == torch.bfloat16


@pytest.mark.parametrize("needs", [False, True])
def test_autocast_of_products_within_a_kernel(needs: bool) -> None:
    layer = nn.Bilinear(4, 5, 2).requires_grad_(needs)

    def function(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x.sin(), y).exp()

    x, y = torch.randn(3, 4), torch.randn(3, 5)
    torch.testing.assert_close(quickfuse.compile(function)(x, y), function(x, y))


@pytest.mark.parametrize(
    "used",
    [
        lambda a, b: b.expand_as(a), lambda a, b: b.sin().view_as(a), lambda a, b: b.t().reshape_as(a),
        lambda a, b: b.type_as(a), lambda a, b: b.to(a), lambda a, b: torch.broadcast_tensors(b, a)[0],
        lambda a, b: torch.meshgrid(a.float()[0], b[0], indexing="ij")[1],
        lambda a, b: torch.atleast_3d(a, b)[1],
        lambda a, b: torch.stack(torch.broadcast_tensors(b, a.float())),
        lambda a, b: torch.utils.checkpoint.checkpoint(lambda a, b: b.view_as(a).sin(), a, b, use_reentrant=False),
        lambda a, b: F.hinge_embedding_loss(b.double(), a),
        lambda a, b: F.hinge_embedding_loss(target=a, input=b.double()),
    ],
)  # fmt: skip
def test_leaves_that_give_a_shape_or_a_type_alone(used) -> None:
    """They get no gradient, nor do those that only choose."""

    def step(a, b):
        used(a, b).sum().backward()

    twin = compiled(step, fullgraph=True)
    for _ in range(2):
        grads = []
        for function in (step, twin):
            a, b = leaf(2, 2, dtype=torch.float64), leaf(2, 2, seed=1)
            function(a, b)
            grads.append([a.grad, b.grad])
        assert [g is None for g in grads[0]] == [g is None for g in grads[1]]
        torch.testing.assert_close(grads[1][1], grads[0][1])


@pytest.mark.parametrize(
    "empty", [lambda a: a.new_zeros(2, 2), torch.zeros_like, lambda a: a.type(torch.int64).double(), lambda a: (a > 0).to(a)]
)
def test_leaves_whose_shape_is_filled(empty) -> None:
    """What a tensor without gradients was made like has none of what is then assigned to parts of it."""

    def step(a, b):
        out = empty(a)
        out[0] = b.sum()
        out[1].copy_(b[0] * 2)
        loss = (out.sin() * 2).sum()
        loss.backward()
        return loss.detach()

    twin = compiled(step, fullgraph=True)
    for _ in range(2):
        found = []
        for function in (step, twin):
            a, b = leaf(2, 2, dtype=torch.float64), leaf(2, 2, dtype=torch.float64, seed=1)
            found.append([function(a, b), b.grad])
            assert a.grad is None
        torch.testing.assert_close(found[1], found[0])
