"""Reordered weights are never stale."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import quickfuse
from quickfuse.launch.packed import Checksum, PackedConvolution

Change = Callable[[torch.nn.Parameter], object]
CHANGES: dict[str, Change] = {
    "in place": lambda w: w.mul_(2),
    "one element through data": lambda w: w.data[3, 5, 1, 1].add_(1),
    "through numpy": lambda w: w.detach().numpy().__setitem__((0, 0, 0, 0), 7.0),
    "two elements swapped": lambda w: w.data.view(-1)[[0, 64]].copy_(w.data.view(-1)[[64, 0]].clone()),
    "other memory": lambda w: setattr(w, "data", torch.randn_like(w)),
    "negative": lambda w: w.data.neg_(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_used(change: str) -> None:
    convolution = torch.nn.Conv2d(24, 40, 3, padding=1)
    compiled = quickfuse.compile(convolution, fullgraph=True)
    x = torch.randn(2, 24, 9, 9)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), convolution(x), atol=1e-4, rtol=1e-4)
        CHANGES[change](convolution.weight)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), convolution(x), atol=1e-4, rtol=1e-4)


def test_a_weight_that_keeps_changing_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []
    original = PackedConvolution._pack
    monkeypatch.setattr(PackedConvolution, "_pack", lambda self, *args: (packed.append(self), original(self, *args)))
    convolution = torch.nn.Conv2d(24, 40, 3)
    compiled = quickfuse.compile(convolution)
    x = torch.randn(2, 24, 9, 9)
    with torch.no_grad():
        for _ in range(20):
            convolution.weight.mul_(0.9)
            torch.testing.assert_close(compiled(x), convolution(x), atol=1e-4, rtol=1e-4)
    assert 0 < len(packed) < 8


def test_checksums_depend_on_every_element_and_its_place() -> None:
    data = torch.randn(1003)
    checksum = Checksum(data.numel() * 4)
    found = {checksum.of(data.data_ptr())}
    copy = data.clone()
    assert found == {checksum.of(copy.data_ptr())}
    for k in range(data.numel()):
        other = data.clone()
        other[k] += 1
        found.add(checksum.of(other.data_ptr()))
    for k in range(1, data.numel()):
        other = data.clone()
        other[[k - 1, k]] = data[[k, k - 1]]
        found.add(checksum.of(other.data_ptr()))
    assert len(found) == 1 + data.numel() + data.numel() - 1
