"""Functions with a backward pass of their own that changes tensors in place: those that it made are nobody else's."""

import numpy as np
import pytest
import torch

import quickfuse


class Choice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, weight, chosen):
        ctx.save_for_backward(weight, chosen)
        return weight * scores.gather(-1, chosen)

    @staticmethod
    def backward(ctx, gradient):
        weight, chosen = ctx.saved_tensors
        gradient = gradient * weight
        spread = torch.zeros(2, 3).add_(gradient.sum())
        spread.scatter_add_(dim=-1, index=chosen, src=gradient)
        spread[0].mul_(2)
        return spread, gradient.neg_(), None


class Counted(torch.autograd.Function):
    """Its backward pass changes what it was given."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.save_for_backward(count)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (count,) = ctx.saved_tensors
        count.view(-1).add_(1)
        return gradient * 3, None


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_own_tensors(backend):
    def step(scores, weight, chosen):
        scores.grad = weight.grad = None
        loss = Choice.apply(scores.exp(), weight * 2, chosen).square().sum()
        loss.backward()
        return loss.detach(), scores.grad, weight.grad

    compiled = quickfuse.compile(step, backend=backend, fullgraph=True)
    for _ in range(3):
        scores, weight = torch.randn(2, 3, requires_grad=True), torch.randn(2, 1, requires_grad=True)
        chosen = torch.tensor([[0], [2]])
        found = [t.clone() for t in compiled(scores, weight, chosen)]
        torch.testing.assert_close(found, [*step(scores, weight, chosen)])


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_tensors_of_others(backend):
    def step(x, count):
        x.grad = None
        loss = Counted.apply(x.exp(), count).sum()
        loss.backward()
        return loss.detach(), x.grad

    compiled = quickfuse.compile(step, backend=backend)
    ours, eager = torch.zeros(1), torch.zeros(1)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        found = [t.clone() for t in compiled(x, ours)]
        torch.testing.assert_close(found, [*step(x, eager)])
        torch.testing.assert_close(ours, eager)


class Scaled(torch.autograd.Function):
    """It gets a dictionary and a module, which its backward pass looks into."""

    @staticmethod
    def forward(ctx, x, y, settings, layer):
        ctx.save_for_backward(x, y)
        ctx.settings, ctx.layer = settings, layer
        return x * y * settings["k"] * layer.scale

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        k = ctx.settings["k"] * ctx.layer.scale
        return gradient * y * k, gradient * x * k, None, None


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.settings, self.scale, self.linear = {"k": 3.0, "m": [1, 2]}, 2.0, torch.nn.Linear(4, 4)

    def forward(self, x):
        made = torch.tanh(self.linear(x)) * 2
        return torch.relu(Scaled.apply(made, x, self.settings, self)) + made


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_objects_as_operands(backend):
    layer = Layer()
    compiled = quickfuse.compile(layer, backend=backend, fullgraph=True)

    def gradients(function, x):
        x = x.clone().requires_grad_()
        layer.zero_grad()
        function(x).sum().backward()
        return x.grad, layer.linear.weight.grad

    changes = [
        lambda: None, lambda: None, lambda: layer.settings.update(k=5.0), lambda: setattr(layer, "settings", {"k": 1.5}),
        lambda: setattr(layer, "scale", 3.0), lambda: setattr(layer, "settings", {"k": 1.5, "j": 2}),
    ]  # fmt: skip
    for change in changes:
        change()
        x = torch.randn(3, 4)
        torch.testing.assert_close(gradients(compiled, x), gradients(layer, x))


def test_an_object_that_was_changed_before():
    layer, twin = Layer(), Layer()
    twin.load_state_dict(layer.state_dict())

    def function(layer, x):
        layer.settings["k"] = layer.settings["k"] + 1
        return layer(x).sum()

    compiled = quickfuse.compile(function)
    x = torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(layer, x), function(twin, x))


class OfTheClass(torch.autograd.Function):
    """Its methods are the class's, and it changes what it makes."""

    factor = 3.0

    @classmethod
    def scaled(cls, x):
        return x * cls.factor

    @classmethod
    def forward(cls, ctx, x, weight):
        made = cls.scaled(x)
        made += 1
        made[0] = 0
        ctx.save_for_backward(made, weight)
        return made.mul_(2) * weight

    @classmethod
    def backward(cls, ctx, gradient):
        made, weight = ctx.saved_tensors
        return cls.scaled(gradient * weight).clone().neg_(), gradient * made


class OfADerivedClass(OfTheClass):
    factor = 5.0


class SetUp(torch.autograd.Function):
    @classmethod
    def forward(cls, x):
        return x.clone().add_(1)

    @classmethod
    def setup_context(cls, ctx, inputs, output):
        ctx.save_for_backward(output)

    @classmethod
    def backward(cls, ctx, gradient):
        return gradient * ctx.saved_tensors[0]


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_methods_of_the_class_and_changes_of_what_forward_makes(backend, monkeypatch):
    def step(x, weight):
        x.grad = weight.grad = None
        loss = (OfTheClass.apply(x.exp(), weight) + OfADerivedClass.apply(x, weight * 2) * SetUp.apply(x.sin())).sum()
        if loss.requires_grad:
            loss.backward()
        return loss.detach(), x.grad, weight.grad

    compiled = quickfuse.compile(step, backend=backend, fullgraph=True)
    for turn in range(4):
        x, weight = (torch.randn(3, 2, requires_grad=turn < 3) for _ in range(2))
        found = compiled(x, weight)
        torch.testing.assert_close(found, step(x, weight))
        if turn == 1:
            monkeypatch.setattr(OfTheClass, "factor", 2.0)


@pytest.mark.parametrize("changed", [lambda t: t.add_(1), lambda t: t.detach().add_(1), lambda t: t.view(1).mul_(2)])
@pytest.mark.parametrize("made", [False, True])
def test_a_number_out_of_a_tensor_that_changes_before_the_call(made, changed):
    def make():
        count = torch.tensor(2.0)

        def step(x):
            state = count * 1 if made else count
            number = state.item()
            changed(state)
            y = OfADerivedClass.apply(x * 2, x.exp())
            scaled = number * 0.5
            state.mul_(2)
            return (y * number).sin().sum() * scaled + state

        return step

    compiled, plain = quickfuse.compile(make()), make()
    for _ in range(3):
        leaves = [torch.linspace(0, 1, 6).double().view(3, 2).requires_grad_() for _ in range(2)]
        for run, leaf in zip((plain, compiled), leaves, strict=True):
            result = run(leaf)
            result.backward()
            leaf.found = result.detach()
        torch.testing.assert_close(leaves[1].found, leaves[0].found)
        torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    assert all(not s.without_kernels for s in compiled.specialisations)


class Reversed(torch.autograd.Function):
    """Gradients with a strength of their own, which a schedule changes from step to step, and the classes of what it got."""

    seen = []

    @staticmethod
    def forward(ctx, x, strength, more):
        ctx.strength, ctx.more = strength, more
        return x.sin() * strength if strength > 0.5 else x.cos() * (strength + more)

    @staticmethod
    def backward(ctx, gradient):
        Reversed.seen.append((type(ctx.strength), float(ctx.strength), type(ctx.more), ctx.more))
        return -gradient * ctx.strength * (2 if ctx.strength > 0.7 else 3) + ctx.more, None, None


NUMBERS = {
    "an argument": lambda x, a: Reversed.apply(x * 2, a, 1).sum(),
    "computed": lambda x, a: Reversed.apply(x * 2, a * 0.5 + 0.1, 1).sum(),
    "computed, and used behind": lambda x, a: (lambda b: (Reversed.apply(x * 2, b, 1) * b).sum())(a * 0.5 + 0.1),
    "of NumPy's, computed": lambda x, a: Reversed.apply(x * 2, 2.0 / (1.0 + np.exp(-10 * a)) - 1, 2).sum(),
    "two": lambda x, a: (Reversed.apply(x * 2, a, int(a * 10)) * Reversed.apply(x, a, 0)).sum(),
    "without gradients": lambda x, a: Reversed.apply(x.detach() * 2, a, 1).sum() + x.sum(),
}


@pytest.mark.parametrize("convert", [float, np.float64, np.float32])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_change(name, convert):
    function = NUMBERS[name]
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})

    def outcome(run, turn):
        generator, a = torch.Generator().manual_seed(turn), [0.1, 0.6, 0.8, 0.8, 0.3, 0.9, -0.0, 0.0, 0.55, 0.95][turn]
        x = torch.randn(3, generator=generator, requires_grad=True)
        Reversed.seen.clear()
        result = run(x, convert(a))
        result.backward()
        return result.detach(), x.grad, [*Reversed.seen]

    for turn in range(10):
        found, gradient, seen = outcome(compiled, turn)
        expected, wanted, given = outcome(function, turn)
        torch.testing.assert_close((found, gradient), (expected, wanted))
        assert seen == given
    assert compiled.graph_count <= 6
    assert not compiled.breaks
