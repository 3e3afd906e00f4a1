"""Every module of PyTorch's database, each in some of the ways of using it; `run.py` has all inputs in all ways."""

from __future__ import annotations

import pytest
import torch

from modules.module_cases import MODULES, WAYS, cases, faults

_PARTS = 6
#: How many ways each module is used in here.
_WAYS_EACH = 3


def _faults_of(name: str, number: int) -> list[str]:
    """In ways that differ from one module to the next, and with other inputs for each."""
    ways = list(WAYS)
    found = []
    for k in range(_WAYS_EACH):
        training, gradients = (number + k) % 2 == 0, (number + k) % 3 > 0
        chosen = list(cases(name, torch.float64, training, gradients, count=12))
        case = chosen[(number + 5 * k) % len(chosen)]
        way = ways[(number + k * len(ways) // _WAYS_EACH) % len(ways)]
        found += [f"{case.label}, {way}: {fault}" for fault in faults(case, WAYS[way])]
    return found


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_module(part: int) -> None:
    found = [fault for k, name in enumerate(MODULES) if k % _PARTS == part for fault in _faults_of(name, k)]
    assert not found, "\n".join(found[:10])
