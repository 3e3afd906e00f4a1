"""Functions with a backward pass of their own that changes tensors in place: those that it made are nobody else's."""

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
