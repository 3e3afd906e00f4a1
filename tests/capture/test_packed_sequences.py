"""Recurrent layers over sequences of several lengths: one step each, and no compilation for other lengths."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, unpack_sequence

import quickfuse
from optim.step_twins import CLOSE, difference

T = torch.Tensor
Layer = Callable[..., Any]


class Tagger(nn.Module):
    def __init__(self, layer: Layer, **packing: bool) -> None:
        super().__init__()
        self.inside = nn.Linear(3, 4)
        self.layer = layer(4, 5, batch_first=packing["batch_first"])
        self.outside = nn.Linear(5, 2)
        self.packing = packing

    def forward(self, x: T, lengths: Any) -> Any:
        packed = pack_padded_sequence(self.inside(x).relu(), lengths, **self.packing)
        y, state = self.layer(packed)
        y, found = pad_packed_sequence(y, batch_first=self.packing["batch_first"])
        return self.outside(y).log_softmax(-1), state, found


def trained(model: nn.Module, compiled: Callable[..., Any], batches: list[Any]) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @compiled
    def step(x: Any, *lengths: Any) -> Any:
        optimizer.zero_grad()
        y, *rest = model(x, *lengths)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        return loss, y, *rest

    return [step(*batch) for batch in batches], model.state_dict(), step


def compare(model: nn.Module, batches: list[Any], **settings: Any) -> Any:
    """The same training, with eager's results; what was compiled in the first call serves for all."""
    twin = copy.deepcopy(model)
    expected = trained(model, lambda function: function, batches)[:2]
    *found, step = trained(twin, lambda function: quickfuse.compile(function, **settings), batches)
    assert not (differing := difference(found, [*expected], CLOSE)), differing
    return step


def batch(k: int, batch_first: bool, enforce_sorted: bool) -> tuple[T, T]:
    torch.manual_seed(k)
    lengths = torch.randint(1, 7, (4,))
    lengths[k % 4] = 6
    x = torch.randn(4, 6, 3)
    return x if batch_first else x.transpose(0, 1), lengths.sort(descending=True)[0] if enforce_sorted else lengths


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layer", [nn.RNN, nn.GRU, nn.LSTM])
def test_padded(layer: Layer, batch_first: bool, enforce_sorted: bool, as_list: bool) -> None:
    torch.manual_seed(0)
    model = Tagger(layer, batch_first=batch_first, enforce_sorted=enforce_sorted)
    batches = [batch(k, batch_first, enforce_sorted) for k in range(6)]
    step = compare(model, [(x, lengths.tolist() if as_list else lengths) for x, lengths in batches])
    assert step.graph_count <= 4


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4, num_layers=2)

    def forward(self, sequences: list[T]) -> Any:
        packed, state = self.layer(input=pack_sequence(sequences, enforce_sorted=False))
        return state.sin(), [y.sum(0) for y in unpack_sequence(packed)]


def test_list_of_sequences() -> None:
    torch.manual_seed(0)
    batches = [([torch.randn(n, 3) for n in (2, 1 + k, 3)],) for k in range(5)]
    compare(Reader(), batches)


def test_lengths_that_are_none() -> None:
    """PyTorch refuses them: so does what is compiled."""
    model = Tagger(nn.GRU, batch_first=True, enforce_sorted=True)
    x = torch.randn(2, 6, 3)
    for lengths in (torch.tensor([6, 0]), [2, 6]):
        for call in (model, quickfuse.compile(model)):
            with pytest.raises(RuntimeError, match="(?i)length"):
                call(x, lengths)
