"""Compile time grows with a program and not with its square: no function is called more often than in proportion.

Counts do not depend on the machine, as seconds would (`quickfuse bench compile-time --growth`). Calls of builtins count, so
that a comprehension over all that there is so far is found where it calls anything.
"""

import cProfile
import pstats

import pytest
import torch

import quickfuse
from quickfuse.bench.growing_programs import SERIES

FACTOR = 4
#: What is called less often than so many times for each turn of a program says little.
FEW = 150


def _calls(name: str, length: int) -> dict[tuple[str, int, str], int]:
    """How often each function is called while a program of a series is compiled."""
    torch.manual_seed(0)
    program, arguments = SERIES[name](length)
    compiled = quickfuse.compile(program)
    profile = cProfile.Profile()
    profile.runcall(compiled, *arguments)
    return {function: calls for function, (_, calls, *_) in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in SERIES if name != "transformer"])  # which its training step has in it
def test_calls_grow_with_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickfuse.config, "verify", False)
    _calls(name, 2)  # what is made once
    length = {"transformer-step": 4, "recurrent": 12}.get(name, 20)
    short, long = _calls(name, length), _calls(name, FACTOR * length)
    assert sum(long.values()) < 1.1 * FACTOR * sum(short.values())
    growing = {
        function: (short.get(function, 0), calls) for function, calls in long.items()
        if calls > 1.3 * FACTOR * short.get(function, 0) and calls > FEW * FACTOR * length
    }  # fmt: skip
    assert not growing
