"""Modules and tensors change between calls."""

import pytest
import torch

from case_registry import case, cases
from changes.programs import agrees


@case
def module_hooks():
    m = torch.nn.Linear(2, 2)
    h = []
    return (lambda x: m(x)), [
        lambda: h.append(m.register_forward_hook(lambda m, i, o: o * 2)),
        lambda: h.pop().remove(),
        lambda: h.append(torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 3)),
        lambda: h.pop().remove(),
    ]


@case
def module_forward_patched():
    m = torch.nn.Linear(2, 2)
    return (lambda x: m(x)), [lambda: setattr(m, "forward", lambda x: x * 7), lambda: delattr(m, "forward")]


@case
def module_children():
    m = torch.nn.Sequential(torch.nn.ReLU())
    return (lambda x: m(x)), [lambda: m.append(torch.nn.Tanh()), lambda: m.pop(0), lambda: m.insert(0, torch.nn.Sigmoid())]


@case
def module_params_loop():
    m = torch.nn.Linear(2, 2)
    return (lambda x: x * len(list(m.parameters())) + sum(1 for _ in m.named_buffers())), [
        lambda: m.register_buffer("b", torch.ones(1)),
        lambda: m.register_parameter("p", torch.nn.Parameter(torch.ones(1))),
        lambda: setattr(m, "bias", None),
    ]


@case
def tensor_attr():
    t = torch.ones(2)
    return (lambda x: x * getattr(t, "k", 2)), [lambda: setattr(t, "k", 5), lambda: delattr(t, "k")]


@case
def tensor_grad():
    t = torch.ones(2, requires_grad=True)
    return (lambda x: x * 2 if t.grad is None else x * t.grad), [
        lambda: (t * 3).sum().backward(),
        lambda: setattr(t, "grad", None),
    ]


@case
def tensor_list_alias():
    a = torch.ones(2, 2)
    l = [a, a.clone()]

    def f(x):
        l[0].add_(1)
        return l[0] + l[1]

    return f, [lambda: l.__setitem__(1, l[0]), lambda: l.__setitem__(1, l[0].clone())]


@case
def module_dict_attr():
    m = torch.nn.Linear(2, 2)
    m.cfg = {"k": 1}
    return (lambda x: m(x) * m.cfg["k"]), [
        lambda: m.cfg.update(k=4),
        lambda: setattr(m, "cfg", {"k": 9}),
        lambda: setattr(type(m), "zz", 3),
    ]


@case
def module_training():
    m = torch.nn.Sequential(torch.nn.Dropout(1.0))
    return (lambda x: m(x)), [lambda: m.eval(), lambda: m.train(), lambda: m[0].eval(), lambda: setattr(m[0], "p", 0.0)]


@case
def requires_grad_flip():
    m = torch.nn.Linear(2, 2)
    return (lambda x: m(x).requires_grad), [lambda: m.requires_grad_(False), lambda: m.weight.requires_grad_(True)]


@case
def tensor_data_swap():
    m = torch.nn.Linear(2, 2)

    def sw():
        m.weight.data = torch.ones(2, 2, dtype=torch.float64)
        m.bias.data = torch.ones(2, dtype=torch.float64)

    return (lambda x: m(x.to(m.weight.dtype))), [sw]


@case
def buffers_set():
    m = torch.nn.BatchNorm1d(2)
    return (lambda x: m(x)), [
        lambda: setattr(m, "momentum", None),
        lambda: setattr(m, "track_running_stats", False),
        lambda: m.eval(),
        lambda: setattr(m, "running_mean", None),
    ]


@case
def shared_param():
    m = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])

    def f(x):
        return sum(p.sum() for p in set(m.parameters())) * 0 + len(set(m.parameters())) * x

    return f, [lambda: setattr(m[1], "weight", m[0].weight)]


@case
def optimizer_groups():
    p = torch.nn.Parameter(torch.ones(2, 2))
    o = torch.optim.SGD([p], lr=0.1)

    def f(x):
        p.grad = x.clone()
        o.step()
        return p.detach().clone()

    return f, [
        lambda: o.param_groups[0].update(lr=0.5),
        lambda: o.param_groups[0].update(momentum=0.9),
        lambda: o.param_groups[0].update(maximize=True),
        lambda: o.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}),
    ]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
