"""Whole training steps that take gradients of gradients: one graph of kernels, and what eager computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacrev, jvp, vjp, vmap

from case_registry import case, case_of, cases
from differentiate.twins import compare, compiled, gradients_of, reasons
from seeding import seed_torch


def layers(*sizes, act=nn.Tanh):
    made = [layer for a, b in zip(sizes, sizes[1:], strict=False) for layer in (nn.Linear(a, b), act())]
    return nn.Sequential(*made[:-1])


def minimise(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def normal(*shapes):
    return tuple([torch.randn(shape) for shape in shapes])


# A case gives the step, what makes its arguments, and the modules and optimizers that it changes.


@case
def penalty_of_a_critic():
    critic, generator = layers(4, 8, 8, 1, act=nn.LeakyReLU), layers(2, 8, 4)
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.9))

    def step(real, z):
        with torch.no_grad():
            fake = generator(z)
        share = torch.rand(real.size(0), 1)
        x = (share * real + (1 - share) * fake).requires_grad_(True)
        scores = critic(x)
        (slope,) = torch.autograd.grad(scores, x, torch.ones_like(scores), create_graph=True, retain_graph=True)
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        return minimise(critic(fake).mean() - critic(real).mean() + 10 * penalty, optimizer), penalty.detach()

    return step, lambda: normal((5, 4), (5, 2)), [critic, optimizer]


@case
def several_steps_without_gradients_of_the_last_bias():
    critic = layers(4, 8, 1)
    optimizer = torch.optim.SGD(critic.parameters(), 0.1)

    def step(x):
        losses = []
        for part in x:
            part = part.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(critic(part).sum(), part, create_graph=True)
            losses.append(minimise(((slope.norm(2, dim=1) - 1) ** 2).mean(), optimizer))
        return torch.stack(losses)

    return step, lambda: normal((3, 5, 4)), [critic, optimizer]


@case
def equation_in_a_loss():
    net = layers(2, 8, 8, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def step(x, t):
        x.requires_grad_(True)
        t.requires_grad_(True)
        u = net(torch.cat([x, t], 1))
        u_x, u_t = torch.autograd.grad(u.sum(), [x, t], create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)
        return minimise((u_t + u * u_x - 0.01 * u_xx).pow(2).mean(), optimizer)  # no gradient for the last bias

    return step, lambda: normal((6, 1), (6, 1)), [net, optimizer]


@case
def slopes_as_targets():
    net = layers(2, 8, 8, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def step(places, slopes):
        x = places.clone().detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(net(x).sum(), [x], create_graph=True)
        laplace = sum(torch.autograd.grad(slope[:, k].sum(), x, create_graph=True)[0][:, k] for k in range(2))
        return minimise(((slope - slopes) ** 2).mean() + laplace.square().mean(), optimizer)

    return step, lambda: normal((6, 2), (6, 2)), [net, optimizer]


@case
def learning_to_learn():
    net, other = layers(1, 8, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.05, momentum=0.9)

    def step(x, y):
        fast = [*net.parameters(), *other.parameters()]
        for _ in range(2):
            loss = F.mse_loss(F.linear(torch.tanh(F.linear(x, fast[0], fast[1])), fast[2], fast[3]), y)
            slopes = torch.autograd.grad(loss, fast, create_graph=True, allow_unused=True)
            fast = [w if slope is None else w - 0.1 * slope for w, slope in zip(fast, slopes, strict=True)]
        out = F.linear(torch.tanh(F.linear(x, fast[0], fast[1])), fast[2], fast[3]) + F.linear(x, fast[4], fast[5])
        return minimise(F.mse_loss(out, y), optimizer)

    return step, lambda: normal((5, 1), (5, 1)), [net, other, optimizer]


@case
def two_backward_passes():
    critic = nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), nn.Softplus(), nn.Flatten(), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3)

    def step(real):
        real = real.detach().requires_grad_(True)
        optimizer.zero_grad()
        scores = critic(real)
        loss = F.softplus(-scores).mean()
        loss.backward(retain_graph=True)
        (slope,) = torch.autograd.grad(scores.sum(), real, create_graph=True)
        (slope.square().sum([1, 2, 3]).mean() * 5).backward()
        optimizer.step()
        return loss.detach()

    return step, lambda: normal((3, 2, 4, 4)), [critic, optimizer]


@case
def through_norms_and_attention():
    layer = nn.Sequential(nn.Linear(4, 12), nn.LayerNorm(12), nn.GELU())
    head = nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ELU(), nn.GroupNorm(2, 4), nn.MaxPool1d(2))
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], 0.01, momentum=0.9)

    def step(x):
        x = x.clone().requires_grad_()
        query, key, value = layer(x).chunk(3, -1)
        y = head(((query @ key.transpose(1, 2) / 2).softmax(-1) @ value).transpose(1, 2))
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return minimise(y.square().mean() + slope.norm(dim=-1).mean(), optimizer)

    return step, lambda: normal((2, 6, 4)), [layer, head, optimizer]


@case
def learning_to_learn_by_transforms():
    net = layers(1, 8, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(params, x, y):
        return F.mse_loss(functional_call(net, params, (x,)), y)

    def of_task(params, x, y, other, others):
        slopes = grad(loss_of)(params, x, y)
        return loss_of({name: params[name] - 0.1 * slopes[name] for name in params}, other, others)

    def step(*tasks):
        params = dict(net.named_parameters())
        losses = vmap(lambda *task: of_task(params, *task))(*tasks)
        return minimise(losses.mean() + of_task(params, *[t[0] for t in tasks]), optimizer)

    return step, lambda: normal(*[(3, 5, 1)] * 4), [net, optimizer]


@case
def clipped_for_each_sample():
    net = layers(3, 6, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def loss_of(params, x, y):
        return F.mse_loss(functional_call(net, params, (x[None],)), y[None])

    def step(x, y):
        params = dict(net.named_parameters())
        slopes, losses = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))(params, x, y)
        norms = torch.stack([s.flatten(1).norm(dim=1) for s in slopes.values()]).norm(dim=0)
        for name, p in params.items():
            p.grad = torch.einsum("i,i...->...", (1 / (norms + 1e-6)).clamp(max=1.0), slopes[name]).detach()
        optimizer.step()
        return losses.mean().detach()

    return step, lambda: normal((5, 3), (5, 2)), [net, optimizer]


@case
def derivatives_by_transforms():
    net = layers(3, 6, 2)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def step(x, v):
        jacobian = vmap(jacrev(net))(x)
        curvature = vmap(hessian(lambda z: net(z).sum()))(x).diagonal(dim1=1, dim2=2).sum(1)
        y, along = jvp(net, (x,), (v,))
        (back,) = vjp(net, x)[1](along)
        return minimise(sum(t.square().mean() for t in (jacobian, curvature, y, along, back)), optimizer)

    return step, lambda: normal((4, 3), (4, 3)), [net, optimizer]


@case
def without_gradients_of_a_target():
    net, target = layers(3, 6, 1), layers(3, 6, 1)
    optimizer = torch.optim.Adam([*net.parameters(), *target.parameters()], 1e-3)

    def of_sample(x, following):
        with torch.no_grad():
            wanted = target(following)
        return (net(x) - wanted - net(following).detach()).square().sum()

    def step(x, following):
        return minimise(vmap(of_sample)(x, following).mean(), optimizer)

    return step, lambda: normal((4, 3), (4, 3)), [net, target, optimizer]


@case
def derivatives_by_functions():
    net = layers(3, 6, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def step(x, v):
        functional = torch.autograd.functional
        jacobian = functional.jacobian(net, x[0], create_graph=True)
        curvature = functional.hessian(lambda z: net(z).sum(), x[0]).trace()
        along = functional.vhp(lambda z: net(z).sum(), x, v, create_graph=True)[1]
        return minimise(jacobian.square().sum() + along.square().sum() + curvature * net(x).mean(), optimizer)

    return step, lambda: normal((4, 3), (4, 3)), [net, optimizer]


@case
def backward_that_creates_a_graph():
    net = layers(3, 6, 1)
    averages = [torch.zeros_like(p) for p in net.parameters()]

    def step(x):
        parameters = list(net.parameters())
        loss = net(x).square().mean()
        loss.backward(create_graph=True)
        loss.sin().backward(create_graph=True)
        signs = [torch.randint_like(p, 0, 2) * 2.0 - 1.0 for p in parameters]
        curvatures = torch.autograd.grad([p.grad for p in parameters], parameters, grad_outputs=signs)
        with torch.no_grad():
            for p, curvature, average in zip(parameters, curvatures, averages, strict=True):
                average.mul_(0.9).addcmul_(curvature, curvature, value=0.1)
                p.add_(p.grad / (average.sqrt() + 1e-2), alpha=-1e-3)
                p.grad = None
        return loss.detach()

    return step, lambda: normal((5, 3)), [net, averages]


@case
def gradients_that_are_left_with_a_history():
    net = layers(3, 6, 1)

    def step(x):
        for p in net.parameters():
            p.grad = None
        net(x).square().sum().backward(create_graph=True)
        return [p.grad.square().sum() for p in net.parameters()]  # which the test goes on to differentiate

    return step, lambda: normal((5, 3)), [net]


@case
def a_leaf_that_retains_its_gradient():
    encoder, decoder = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()), nn.Linear(3, 4)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-2)

    def step(x):
        x.requires_grad_(True)
        x.retain_grad()
        code = encoder(x)
        code.backward(torch.ones_like(code), retain_graph=True)
        penalty = x.grad.square().sum().sqrt()
        x.grad.data.zero_()
        return minimise(F.mse_loss(decoder(code), x.detach()) + 0.1 * penalty, optimizer)

    return step, lambda: normal((5, 4)), [encoder, decoder, optimizer]


def state_of(parts: Any) -> Any:
    modules = [p for p in parts if isinstance(p, nn.Module)]
    parameters = [p for m in modules for p in m.parameters()]
    states = [[*o.state_dict()["state"].values()] for o in parts if isinstance(o, torch.optim.Optimizer)]
    return [parameters, [b for m in modules for b in m.buffers()], states, [p for p in parts if isinstance(p, list)]]


@pytest.mark.parametrize("name", cases(__name__))
def test_step(name) -> None:
    make = case_of(__name__, name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        sides = []
        for compiling in (False, True):
            seed_torch(0)
            step, arguments, parts = make()
            sides.append((compiled(step) if compiling else step, arguments, parts))
        for number in range(4):
            found = []
            for run, arguments, parts in sides:
                seed_torch(number)
                result = run(*arguments())
                gradients_of(result, number)
                found.append([result, state_of(parts), torch.rand(1)])
            compare(found[0], found[1], rtol=1e-9, atol=1e-9)
    finally:
        torch.set_default_dtype(before)
    twin = sides[1][0]
    assert not reasons(twin)
    assert not twin.breaks
