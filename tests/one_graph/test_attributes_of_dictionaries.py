"""Attributes of dictionaries: what an ordered one has of its own, as the dictionaries that modules save their state in."""

import collections
import copy

import pytest
import torch
from torch import nn

import quickfuse
from whole_programs import difference

LAYER = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
SAVED = copy.deepcopy(LAYER.state_dict())


def loads(x, table):
    missing = LAYER.load_state_dict(table)
    return LAYER(x).detach(), str(missing)


def asks(x, table):
    return x * len(getattr(table, "_metadata", ())), hasattr(table, "_metadata"), list(vars(table))


def sets(x, table):
    table._metadata = {"total": x.sum()}
    return x * table._metadata["total"]


def deletes(x, table):
    if hasattr(table, "extra"):
        del table.extra
        return x * 2
    table.extra = x.sum()
    return x * 3


def outcomes(called):
    torch.manual_seed(0)
    found = []
    tables = [collections.OrderedDict(SAVED), copy.deepcopy(SAVED), collections.OrderedDict(SAVED), copy.deepcopy(SAVED)]
    for table in tables * 2:
        found += [called(torch.randn(4, 2), table), {k: str(v) for k, v in vars(table).items()}]
    return found


@pytest.mark.parametrize("program", [loads, asks, sets, deletes], ids=lambda p: p.__name__)
def test_one_graph(program):
    compiled = quickfuse.compile(program, options={"raise_internal_errors": True})
    assert difference(outcomes(program), outcomes(compiled)) is None
    assert not compiled.breaks


def test_settings_of_containers():
    recent, found = collections.deque([1.0], maxlen=3), collections.defaultdict(list)

    def function(x):
        return x * recent.maxlen, found.default_factory is list

    compiled, x = quickfuse.compile(function), torch.randn(2)
    assert difference(function(x), compiled(x)) is None
    recent, found.default_factory = collections.deque(maxlen=5), None
    assert difference(function(x), compiled(x)) is None
    assert not compiled.breaks
