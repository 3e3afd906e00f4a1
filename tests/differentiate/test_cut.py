"""Minimum cuts, and what waits for each other in a circle, against networkx."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from quickfuse.differentiate.cut import ENDLESS, Network
from quickfuse.schedule.copies import _components

networkx = pytest.importorskip("networkx")

Edges = dict[tuple[int, int], int]


def network(count: int, edges: Edges) -> Network:
    made = Network()
    for _ in range(count - 2):
        made.node()
    for (tail, head), capacity in edges.items():
        made.edge(tail, head, capacity)
    return made


def expected(count: int, edges: Edges) -> set[int]:
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    for (tail, head), capacity in edges.items():
        graph.add_edge(tail, head, capacity=capacity)
    return set(networkx.minimum_cut(graph, 0, 1)[1][1])


@pytest.mark.parametrize("seed", range(50))
def test_the_cut_closest_to_the_sink(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        count = draw.randint(2, 20)
        edges: Edges = {}
        for _ in range(draw.randint(0, 4 * count)):
            tail, head = draw.randrange(count), draw.randrange(count)
            if tail not in (1, head) and head != 0:
                edges[tail, head] = draw.choice([1, 2, 5, 100, ENDLESS])
        assert network(count, edges).before_sink() == expected(count, edges)


def test_a_long_chain_takes_no_longer_than_its_length() -> None:
    """Values, each computed from the one before it and another one, that backward reads, or every second one."""
    edges: Edges = {}
    before, count = 0, 2
    for k in range(5000):
        value, kept, other = count, count + 1, count + 2
        count += 3
        edges |= {(value, kept): 1024, (0, other): 4096, (other, value): ENDLESS, (before, value): ENDLESS}
        if k % 2:
            edges[kept, 1] = ENDLESS
        before = kept
    made = network(count, edges)
    begun = time.process_time()
    assert len(made.before_sink()) == 2500 + 1
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("seed", range(50))
def test_what_waits_for_each_other(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        count = draw.randint(1, 20)
        edges = [(draw.randrange(count), draw.randrange(count)) for _ in range(draw.randint(1, 2 * count))]
        graph = networkx.DiGraph(edges)
        found = networkx.strongly_connected_components(graph)
        circles = [sorted(c) for c in found if len(c) > 1 or any(graph.has_edge(node, node) for node in c)]
        assert sorted(map(sorted, _components(edges))) == sorted(circles)  # type: ignore[arg-type]


def test_training_imports_no_library_for_it() -> None:
    program = (
        "import sys, torch, quickfuse; w = torch.ones(3, requires_grad=True);"
        "quickfuse.compile(lambda x: (x * w).exp().sum())(torch.ones(3)).backward(); assert w.grad is not None;"
        "assert 'networkx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
