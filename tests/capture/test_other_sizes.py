"""Tensors that have other sizes in each call: what masks select, the targets of a batch of images. What computes with them
is left to Python, and all else stays compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quickfuse

CALLS = 40


class Net(nn.Module):
    """Enough operators that a loss is the smaller part of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x * 0.5
        return x


def similarities(features: Any, labels: Any) -> Any:
    similarity = (features @ features.t()).view(-1)
    same = (labels[:, None] == labels[None]).triu(1).view(-1)
    return similarity[same], similarity[~same]


def circle_loss(positive: Any, negative: Any) -> Any:
    p = -torch.clamp_min(-positive.detach() + 1.25, 0) * (positive - 0.75)
    n = torch.clamp_min(negative.detach() + 0.25, 0) * (negative - 0.25)
    return F.softplus(torch.logsumexp(n, 0) + torch.logsumexp(p, 0))


def of_pairs(out: Any, labels: Any, seen: list[Any]) -> Any:
    return circle_loss(*similarities(F.normalize(out), labels))


def in_variables(out: Any, labels: Any, seen: list[Any]) -> Any:
    positive, negative = similarities(F.normalize(out), labels)
    seen.append(positive.detach().sum())
    loss = circle_loss(positive, negative)
    return loss * 2 + out.square().mean()


def in_its_own_lines(out: Any, labels: Any, seen: list[Any]) -> Any:
    chosen = out[labels > 1]
    centred = chosen - chosen.mean(0)
    spread = centred.square().sum(1)
    seen.append(spread.detach())
    return spread.mean() + out.sum() * 0.1


def kept(out: Any, labels: Any, seen: list[Any]) -> Any:
    chosen = out[labels > 1]
    seen.append(chosen)
    pair = chosen, {"all": out}
    seen.append(pair[0] is chosen and pair[0] is not None and isinstance(chosen, torch.Tensor))
    return pair[0].sum() + pair[1]["all"].mean() * len(chosen)


def changed_in_place(out: Any, labels: Any, seen: list[Any]) -> Any:
    chosen = out.detach()[labels > 1]
    chosen.mul_(2)
    chosen[:1] = 0
    seen.append(chosen)
    return (out * out.detach()).sum() + chosen.sum()


def with_a_tensor_of_one_size(out: Any, labels: Any, seen: list[Any]) -> Any:
    places = (labels > 1).nonzero()[:, 0]
    rows = torch.zeros_like(out).index_copy(0, places, out[places] * 2)
    return rows.exp().mean() + places.shape[0]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    "loss_of", [of_pairs, in_variables, in_its_own_lines, kept, changed_in_place, with_a_tensor_of_one_size]
)
def test_what_masks_select(loss_of: Callable[..., Any], inside: bool) -> None:
    def build() -> tuple[Any, Any, list[Any]]:
        torch.manual_seed(0)
        net, seen = Net(), []
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

        def step(x: Any, labels: Any) -> Any:
            if not inside:
                return loss_of(net(x), labels, seen)
            optimizer.zero_grad()
            loss = loss_of(net(x), labels, seen)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, net, seen

    batches = [(torch.randn(12, 6), torch.randint(0, 4, (12,))) for _ in range(CALLS)]
    batches[5][1].zero_()  # nothing is selected, or all
    batches[6][1].fill_(3)
    _agrees(build, batches, backward=not inside)


def criterion(out: Any, targets: Any) -> Any:
    """As in DETR: each prediction is matched to the nearest target, and all targets are joined."""
    with torch.no_grad():
        distance = torch.cdist(out.detach().flatten(0, 1), torch.cat([t["boxes"] for t in targets]))
        sizes = [len(t["boxes"]) for t in targets]
        matched = [d[k].argmin(0) for k, d in enumerate(distance.view(*out.shape[:2], -1).split(sizes, -1))]
    batch = torch.cat([torch.full_like(m, k) for k, m in enumerate(matched)])
    boxes = torch.cat([t["boxes"] for t in targets])
    difference = F.l1_loss(out[batch, torch.cat(matched)], boxes, reduction="none")
    labels = torch.zeros(out.shape[:2], dtype=torch.int64)
    labels[batch, torch.cat(matched)] = torch.cat([t["labels"] for t in targets])
    return {"boxes": difference.sum() / sum(sizes), "labels": F.cross_entropy(out.transpose(1, 2), labels)}


def test_targets_of_a_batch() -> None:
    def build() -> tuple[Any, Any, list[Any]]:
        torch.manual_seed(0)
        net, seen = Net(), []
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

        def step(x: Any, targets: Any) -> Any:
            losses = criterion(net(x), targets)
            loss = sum(losses[k] * w for k, w in (("boxes", 5), ("labels", 1)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append({k: v.item() for k, v in losses.items()})
            return loss.detach()

        return step, net, seen

    def targets() -> Any:
        sizes = torch.randint(1, 6, (3,)).tolist()
        return [{"boxes": torch.rand(n, 6), "labels": torch.randint(0, 6, (n,))} for n in sizes]

    batches = [(torch.randn(3, 8, 6), targets()) for _ in range(CALLS)]
    compiled = _agrees(build, batches)
    assert any(b.reason == "a tensor that has other sizes in each call" for b in compiled.breaks)


def test_a_part_of_a_parameter() -> None:
    """`table[:n]`, where `n` is another number in each call."""
    def build() -> tuple[Any, Any, list[Any]]:
        torch.manual_seed(0)
        net = Net()
        net.table = nn.Parameter(torch.randn(40, 6))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: Any, n: int) -> Any:
            optimizer.zero_grad()
            out = net(x)
            loss = out.square().mean() + net.table[:n].square().sum() * 0.01
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, net, []

    _agrees(build, [(torch.randn(3, 6), 1 + k * 7 % 31) for k in range(20)])


def test_few_sizes_are_compiled() -> None:
    net = Net()
    compiled = quickfuse.compile(lambda x: net(x).sum())
    for n in (3, 4, 5, 6, 7, 8, 9):
        x = torch.randn(n, 6)
        torch.testing.assert_close(compiled(x), net(x).sum())
    assert compiled.graph_count == 7
    assert not compiled.breaks


def test_what_is_handed_on_may_be_anything() -> None:
    """No guard knows more of it than its class."""
    net = Net()

    def step(x: Any, targets: list[Any], kept: list[Any]) -> Any:
        out = net(x)
        kept.append(targets[0])
        return out.sum() + loss(targets)

    def loss(targets: list[Any]) -> Any:
        return targets[0].sum() * 2

    compiled = quickfuse.compile(step)
    x, expected, found = torch.randn(4, 6), [], []
    others = [torch.rand(n) for n in range(1, 9)]
    others += [torch.rand(3, 2), torch.ones(4, dtype=torch.int64), torch.rand(4, requires_grad=True), torch.rand(0)]
    others += [torch.rand(2, 3).t(), torch.rand(3).to_sparse(), torch.tensor(2.0), nn.Parameter(torch.rand(2))]
    for target in others:
        one, two = step(x, [target], expected), compiled(x, [target], found)
        torch.testing.assert_close(two, one)
        assert expected[-1] is found[-1] is target


def _agrees(build: Callable[[], Any], batches: list[Any], backward: bool = False) -> Any:
    plain, plain_net, plain_seen = build()
    step, net, seen = build()
    compiled = quickfuse.compile(step)
    counts = []
    for batch in batches:
        expected, found = plain(*copy.deepcopy(batch)), compiled(*copy.deepcopy(batch))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        if backward:
            for result, module in ((expected, plain_net), (found, net)):
                module.zero_grad()
                result.backward()
            for mine, theirs in zip(net.parameters(), plain_net.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5, equal_nan=True)
        counts.append(compiled.graph_count)
    torch.testing.assert_close(dict(net.named_parameters()), dict(plain_net.named_parameters()), rtol=1e-3, atol=1e-4,
                               equal_nan=True)  # fmt: skip
    torch.testing.assert_close(seen, plain_seen, rtol=1e-3, atol=1e-4, equal_nan=True)
    assert counts[-1] == counts[-5], counts  # and goes on without compiling
    return compiled
