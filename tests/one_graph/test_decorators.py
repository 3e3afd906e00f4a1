"""Decorators of every style, caches and registries."""

import pytest

from one_graph.programs import agrees, cases


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)
