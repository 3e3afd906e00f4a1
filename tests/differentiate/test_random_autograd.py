"""Some of the random functions of `random_autograd.py`, which runs more of them."""

from __future__ import annotations

import pytest

from differentiate.random_autograd import difference


@pytest.mark.parametrize("seed", [*range(40), *range(1001, 1041, 2)])
def test_random_function(seed: int) -> None:
    assert (found := difference(seed)) is None, found
