"""Some of the random programs of `random_growing.py`, which runs more of them."""

from __future__ import annotations

import pytest

from capture.random_growing import difference


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("seed", range(30))
def test_random_program(seed: int) -> None:
    assert (found := difference(seed)) is None, found
