"""A fixed sample of programs composed of fragments; `python -m fragments.run FIRST LAST` (in `tests/`) tries more seeds."""

from __future__ import annotations

import random

import pytest

from .class_fragments import FRAGMENTS as CLASSES
from .compose import difference, program
from .flow_fragments import FRAGMENTS as FLOW
from .tensor_fragments import FRAGMENTS as TENSORS


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("fragments", [[*CLASSES, *FLOW], TENSORS], ids=["python", "tensors"])
def test_as_in_eager(fragments: list[tuple[str, str]], seed: int) -> None:
    assert difference(program(random.Random(seed), fragments)) is None


@pytest.mark.parametrize("fragment", [*CLASSES, *FLOW, *TENSORS], ids=range(len(CLASSES) + len(FLOW) + len(TENSORS)))
def test_each_alone(fragment: tuple[str, str]) -> None:
    assert difference(program(random.Random(1), [fragment])) is None
