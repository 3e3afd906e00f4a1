"""Hooks of every kind that modules, tensors, optimizers and autograd's nodes have."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from language.harness import BACKENDS, case, check, names, setup, t


def leaf(*shape, seed=0):
    return t(*shape, seed=seed, grad=True)


def xs(*shape):
    return [(t(*shape),), (t(*shape, seed=1),)]


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


@setup(steady="never")
def hooks_with_keywords():
    class Scaled(nn.Module):
        def forward(self, x, scale=1.0):
            return x * scale

    model = Scaled()
    seen = []

    def before(module, args, kwargs):
        return args, {**kwargs, "scale": kwargs.get("scale", 1.0) * 2}

    def after(module, args, kwargs, output):
        seen.append(sorted(kwargs))
        return output + kwargs["scale"]

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)

    def run(x, scale):
        return model(x, scale=scale) + model(x), len(seen)

    return run, [(t(3), 2.0), (t(3, seed=1), 3.0)]


@setup(steady="never")
def order_of_hooks():
    model = two_layers()
    order = []
    for name in "abc":
        model.register_forward_hook(lambda m, a, o, name=name: order.append(name), prepend=name == "c")
        model.register_forward_pre_hook(lambda m, a, name=name: order.append("pre " + name), prepend=name == "b")

    def run(x):
        y = model(x)
        return y, list(order[-6:])

    return run, xs(3, 4)


@setup(steady="never")
def hooks_that_are_always_called():
    model = nn.Linear(4, 4)
    seen = []
    model.register_forward_hook(lambda m, a, o: seen.append("always"), always_call=True)
    model.register_forward_hook(lambda m, a, o: seen.append("normal"))

    def run(x, bad):
        try:
            y = model(x if not bad else x[:, :2])
        except RuntimeError:
            y = x
        return y * 2, list(seen)

    return run, [(t(3, 4), False), (t(3, 4), True), (t(3, 4, seed=1), False)]


@setup(steady="never")
def hook_handles_inside():
    model = nn.Linear(4, 4)

    def run(x):
        seen = []
        with model.register_forward_hook(lambda m, a, o: seen.append(o.shape)):
            y = model(x)
        handle = model.register_forward_pre_hook(lambda m, a: (a[0] * 2,))
        z = model(x)
        handle.remove()
        return y + model(x), z, seen, len(model._forward_hooks)

    return run, xs(3, 4)


@setup(steady="never")
def full_backward_hooks():
    model = two_layers()
    seen = []
    model[0].register_full_backward_hook(lambda m, gin, gout: (gin[0] * 2,) if gin[0] is not None else None)
    model[2].register_full_backward_pre_hook(lambda m, gout: seen.append(gout[0].shape))

    def run(x):
        return model(x).square(), len(seen)

    return run, [(leaf(3, 4),), (leaf(3, 4, seed=1),)]


@setup(steady="never")
def full_backward_hooks_and_backward_inside():
    model = two_layers()
    seen = []
    model[0].register_full_backward_hook(lambda m, gin, gout: seen.append("full"))
    model[2].register_full_backward_pre_hook(lambda m, gout: (gout[0] * 3,))

    def run(x):
        model.zero_grad()
        model(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()], x.grad + 1, list(seen)

    return run, [(leaf(3, 4),), (leaf(3, 4, seed=1),)]


@setup(steady="never")
def hooks_for_all_modules():
    model = two_layers()
    seen = []

    def run(x, install):
        if not install:
            return model(x), len(seen)
        handle = torch_module.register_module_forward_hook(lambda m, a, o: seen.append(type(m).__name__))
        try:
            return model(x), list(seen)
        finally:
            handle.remove()

    return run, [(t(3, 4), False), (t(3, 4), True), (t(3, 4, seed=1), False)]


@setup()
def state_dict_hooks():
    model = two_layers()
    model.register_state_dict_post_hook(lambda m, state, prefix, meta: state.__setitem__(prefix + "extra", torch.ones(1)))
    model.register_load_state_dict_pre_hook(lambda m, state, *rest: state.pop("extra", None))

    def run(x):
        state = model.state_dict()
        model.load_state_dict({name: v * 0.5 for name, v in state.items()}, strict=False)
        return model(x), sorted(state)

    return run, xs(3, 4)


@setup(steady="later")
def tensor_hooks_inside():
    weight = nn.Parameter(t(4))

    def run(x):
        seen = []
        y = x * weight
        handle = y.register_hook(lambda g: g * 2)
        z = (y.sin() * 3).sum()
        z.backward()
        handle.remove()
        first = weight.grad.clone()
        weight.grad = None
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
        (x * weight).sum().backward()
        return first, len(seen), weight.grad + 0

    return run, [(leaf(4),), (leaf(4, seed=1),)]


@setup(steady="later")
def a_hook_after_its_tensor_was_used():
    def run(x):
        y = x * 2
        z = y + 1
        seen = []
        y.register_hook(lambda g: seen.append(g) or g * 2)
        w = y * 3
        (z + w).sum().backward()
        return z, w, seen, x.grad

    return run, [(leaf(4),), (leaf(4, seed=1),)]


@setup(steady="later")
def gradients_retained_after_use():
    def run(x):
        y = x.sin()
        z = (y + 1).sum()
        y.retain_grad()
        (z + (y * 3).sum()).backward()
        return y.grad, x.grad

    return run, [(leaf(4),), (leaf(4, seed=1),)]


@setup(steady="later")
def optimizer_in_backward():
    model = two_layers()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)

    def run(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach(), [p.grad is None for p in model.parameters()]

    return run, xs(3, 4)


@case((leaf(3),), (leaf(3, seed=1),))
def retained_gradients(x):
    y = x * 2
    y.retain_grad()
    z = (y**2).sum()
    z.backward()
    return y.grad, x.grad, y.retains_grad


@case((leaf(3),), (leaf(3, seed=1),))
def saved_tensor_hooks(x):
    packed = []

    def pack(v):
        packed.append(v.shape)
        return v * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda v: v):
        y = (x * x.detach()).exp()
    y.sum().backward()
    return x.grad, len(packed)


@case((leaf(3),), (leaf(3, seed=1),))
def saved_on_cpu(x):
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).exp()
    return y.sum()


@case((leaf(3),), (leaf(3, seed=1),))
def anomaly_mode(x):
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        y = (x * 2).exp().sum()
        y.backward()
    return x.grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_hooks(name, backend):
    check(__file__, name, backend)
