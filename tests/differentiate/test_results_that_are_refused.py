"""Results whose backward raises, as the graph changes in place what they were computed from after it took gradients."""

import pytest
import torch

import quickfuse


def step_of(change):
    """A training step that keeps its graph, and returns losses whose gradients lead through what it changes."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        hidden = net[0](x)
        losses = ((net[2](net[1](hidden)) - y) ** 2).mean(0)
        optimizer.zero_grad()
        losses.sum().backward(retain_graph=True)
        change(net, optimizer)
        return losses, hidden.sum(), hidden.detach()

    return step, net


def by_optimizer(net, optimizer):
    optimizer.step()


def by_hand(net, optimizer):
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad


def one_layer(net, optimizer):
    with torch.no_grad():
        net[0].weight.mul_(0.5)  # which no gradient of a parameter needs


@pytest.mark.parametrize("change", [by_optimizer, by_hand, one_layer])
def test_agrees_with_eager(change):
    (step, net), (same_step, twin) = step_of(change), step_of(change)
    compiled = quickfuse.compile(same_step, fullgraph=True)
    for turn in range(4):
        x, y = torch.randn(5, 4), torch.randn(5, 2)
        expected, found = step(x, y), compiled(x, y)
        torch.testing.assert_close(found, expected)
        assert [r.requires_grad for r in found] == [r.requires_grad for r in expected]
        outcomes = []
        for results in (expected, found):
            try:
                results[turn % 2].sum().backward()
                outcomes.append(None)
            except RuntimeError as error:
                outcomes.append(str(error)[:90])
        assert outcomes[0] == outcomes[1]
        for p, q in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close([p, p.grad], [q, q.grad])
    assert not any(s.without_kernels for s in compiled.specialisations)


def test_both_results_at_once():
    (step, _), (same_step, _) = step_of(by_optimizer), step_of(by_optimizer)
    compiled = quickfuse.compile(same_step)
    x, y = torch.randn(5, 4), torch.randn(5, 2)
    for _ in range(2):
        for f in (step, compiled):
            losses, hidden, _ = f(x, y)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                (losses.sum() + hidden).backward()
