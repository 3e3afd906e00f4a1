"""`copy.deepcopy` of modules: of what they hold, and of what is in it twice."""

import copy

import pytest
import torch
from torch import nn

import quickfuse


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4)])
        self.register_buffer("scale", torch.tensor([2.0]), persistent=False)
        self.settings, self.again = {"names": ["one", "two"]}, self.blocks[0]
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x):
        x = self.second(self.first(x)) * self.scale + self.frozen
        for block in self.blocks:
            x = block(x)
        return self.again(x) * len(self.settings["names"])


MODULES = {
    "linear": lambda: nn.Linear(4, 4),
    "layers": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.0)),
    "tied": Tied,
    "evaluated": lambda: Tied().eval(),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_called_in_place_of_the_module(name, gradients):
    def f(module, x):
        return copy.deepcopy(module)(x).sin()

    torch.manual_seed(0)
    module, compiled = MODULES[name](), quickfuse.compile(f, fullgraph=True)
    before = copy.deepcopy(module.state_dict())
    for _ in range(2):
        x = torch.randn(3, 4, requires_grad=gradients)
        with torch.set_grad_enabled(gradients):
            wanted, found = f(module, x), compiled(module, x)
        torch.testing.assert_close(found, wanted)
        if gradients:
            one, other = (torch.autograd.grad(y.sum(), x)[0] for y in (found, wanted))
            torch.testing.assert_close(one, other)
    torch.testing.assert_close(module.state_dict(), before)
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("name", MODULES)
def test_that_outlives_the_graph(name):
    def f(module, x):
        made = copy.deepcopy(module)
        return made, x * 2

    module = MODULES[name]()
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
        parameter.label = "hung on it"
    compiled = quickfuse.compile(f)
    for _ in range(2):
        found, wanted = compiled(module, torch.ones(2))[0], copy.deepcopy(module)
        assert type(found) is type(wanted) and str(found) == str(wanted) and list(vars(found)) == list(vars(wanted))
        torch.testing.assert_close(found.state_dict(), wanted.state_dict())
        pairs = zip(found.named_parameters(), wanted.named_parameters(), strict=True)
        for (one, parameter), (other, like) in pairs:
            assert one == other and type(parameter) is nn.Parameter and parameter.is_leaf and parameter.grad is None
            assert parameter.requires_grad == like.requires_grad and not hasattr(parameter, "label")
        x = torch.randn(3, 4)
        torch.testing.assert_close(found(x), wanted(x))
        found(x).sum().backward()
        with torch.no_grad():
            next(found.parameters()).zero_()
        assert next(module.parameters()).abs().sum() > 0
    if name == "tied":
        assert found.first.weight is found.second.weight and found.again is found.blocks[0]


class Says(nn.Linear):
    def __setstate__(self, state):
        super().__setstate__(state)
        self.restored = True


class Deeply(nn.Linear):
    def __deepcopy__(self, memo):
        return Deeply(2, 2)


@pytest.mark.parametrize("cls", [Says, Deeply])
def test_classes_that_say_how(cls):
    def f(module, x):
        made = copy.deepcopy(module)
        return x * 2, getattr(made, "restored", False), made.out_features

    module = cls(4, 4)
    assert str(quickfuse.compile(f)(module, torch.ones(2))) == str(f(module, torch.ones(2)))
