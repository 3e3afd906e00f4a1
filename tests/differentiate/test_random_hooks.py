"""Some of the random functions of `random_hooks.py`, which runs more of them."""

from __future__ import annotations

import pytest

from differentiate.random_hooks import difference


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(40))
def test_random_function(seed: int) -> None:
    assert not (found := difference(seed)), found
