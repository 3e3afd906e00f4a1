"""Tensors whose sizes grow by one from call to call, such as a cache of keys: symbols stand for such sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import quickfuse

LENGTHS = 9

#: What is called with one token `x` and what was gathered so far, `k`; it returns the longer `k` first. Beside each, how
#: many graphs there are at the end: one for each of the first two lengths, and one for the others.
PROGRAMS: list[tuple[Callable[..., Any], int]] = []


def program(graphs: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append((function, graphs))
        return function

    return register


@program(3)
def attention(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    weights = torch.softmax(x @ k.transpose(1, 2) * 8**-0.5, -1)
    return k, torch.relu(weights @ k) + x


@program(3)
def in_place_of_what_is_new(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    doubled = k * 2
    doubled += 1
    doubled.mul_(3.0)
    return k, doubled, doubled.sum(1), k.contiguous(), k.to(torch.float32), k.to(torch.float64)


@program(3)
def made_of_sizes(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    n = k.shape[1]
    return k, torch.arange(n), torch.zeros(1, n), k[:, -1], k[:, -1:], k[:, : n // 2], n


@program(3)
def what_python_sees(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    a, b = k.chunk(2, 2)
    told = k.size(), k.shape[:2], k.shape[:1] + (3,), k.numel(), k.shape[-1], len(k.shape), torch.is_tensor(k), k is None
    return k, a.mean(), b.transpose(1, 2) @ a, *told


@program(3)
def views(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    return k, k.view(-1), k.flatten(1).sum(1), k.reshape(k.size(0), -1, 2, 4).permute(0, 2, 1, 3)


@program(4)
def branch_on_a_size(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    return (k, k.sum()) if k.shape[1] > 6 else (k, k.mean())


@program(3)
def named_results(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    return k, [k[:, j] for j in range(2)], k.max(1), torch.topk(k, 2, 1), {"a": k}


@program(3)
def masks(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    seen = torch.ones(k.shape[1], k.shape[1], dtype=torch.bool).tril()
    return k, seen, torch.where(seen, 1.0, 2.0), k.repeat(1, 2, 1), k.unsqueeze(1).expand(-1, 3, -1, -1).reshape(2, -1, 8)


@program(3)
def input_in_place(x: Any, k: Any) -> Any:
    x.add_(1)
    return torch.cat([k, x], 1), x


@program(3)
def made_and_changed(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    y = x * 2
    y += k.sum(1)[:, None]
    return k, y


# what ends a graph is right all the same


@program(0)
def expanded_to_a_size(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    y = x * 2
    return k, y.expand(2, k.shape[1], 8), y


@program(0)
def items_set(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    k[:, 0] = 0
    return k, k.sum()


@program(0)
def in_place_with_a_view(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    v = k.transpose(1, 2)
    k += 1
    return k, v


@program(0)
def in_place_of_two_names(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    w = k.contiguous()
    w += 1
    return k, w


@program(0)
def loop_over_a_size(x: Any, k: Any) -> Any:
    k = torch.cat([k, x], 1)
    total = torch.zeros(2, 8)
    for j in range(k.shape[1]):
        total = total + k[:, j]
    return k, total


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        for element in value:
            yield from leaves(element)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    else:
        yield value


def same(expected: Any, found: Any) -> None:
    one, two = list(leaves(expected)), list(leaves(found))
    assert [type(v) for v in one] == [type(v) for v in two]
    for a, b in zip(one, two, strict=True):
        if isinstance(a, torch.Tensor):
            assert (a.dtype, a.shape, a.stride(), a.is_inference()) == (b.dtype, b.shape, b.stride(), b.is_inference())
            torch.testing.assert_close(a, b)
        else:
            assert a == b
    assert memory(one) == memory(two)


def memory(values: list[Any]) -> list[tuple[int, int, bool]]:
    """Which tensors share memory, and which are one object."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    place = [t.untyped_storage().data_ptr() for t in tensors]
    pairs = [(i, j) for j in range(len(tensors)) for i in range(j)]
    return [(i, j, tensors[i] is tensors[j]) for i, j in pairs if place[i] == place[j]]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("function", "graphs"), PROGRAMS, ids=[f.__name__ for f, _ in PROGRAMS])
def test_growing(function: Callable[..., Any], graphs: int, mode: Any) -> None:
    compiled = quickfuse.compile(function)
    with mode():
        for _ in range(2):
            k = torch.randn(2, 2, 8)
            k2 = k.clone()
            for _ in range(LENGTHS):
                x = torch.randn(2, 1, 8)
                x2 = x.clone()
                expected, found = function(x, k), compiled(x2, k2)
                same([*expected, x], [*found, x2])
                k, k2 = expected[0], found[0]
    assert not graphs or (compiled.graph_count, compiled.breaks) == (graphs, [])


def test_memory_that_is_shared_later() -> None:
    """The graph changes `x`, of which `k` is a view in one call."""

    def step(x: Any, k: Any) -> Any:
        total = k.sum(1)
        x.add_(1)
        return total, k * 2, x

    compiled = quickfuse.compile(step)
    with torch.no_grad():
        for n in range(2, 8):
            x, k = torch.randn(2, 20, 8), torch.randn(2, n, 8)
            same(step(x.clone(), k), compiled(x.clone(), k))
        for n in range(2, 8):
            x = torch.randn(2, 20, 8)
            x2 = x.clone()
            same(step(x, x[:, :n]), compiled(x2, x2[:, :n]))


def test_sizes_that_do_not_grow() -> None:
    """Other sizes are compiled for, as long as there are few of them."""
    compiled = quickfuse.compile(lambda x: torch.sin(x) + 1)
    with torch.no_grad():
        for n in (32, 8, 16, 7, 32):
            torch.testing.assert_close(compiled(torch.ones(n)), torch.sin(torch.ones(n)) + 1)
    assert compiled.graph_count == 4


def test_gradients_want_sizes() -> None:
    compiled = quickfuse.compile(lambda x: torch.sin(x).sum())
    for n in range(2, 7):
        x = torch.ones(n, requires_grad=True)
        compiled(x).backward()
        torch.testing.assert_close(x.grad, torch.cos(torch.ones(n)))


def test_wrong_guess_of_a_size() -> None:
    """A size that grows with the operand's up to some length."""

    def step(k: Any) -> Any:
        window = k[:, -40:]
        return window * 2, window.shape[1], window.mean(1)

    compiled = quickfuse.compile(step)
    with torch.no_grad():
        for n in range(2, 60):
            k = torch.randn(2, n, 4)
            same(step(k), compiled(k))


def test_size_of_one_and_none() -> None:
    def step(k: Any, w: Any) -> Any:
        return (k * w).sum(1), k.squeeze(1).shape, k + 1

    compiled = quickfuse.compile(step)
    with torch.no_grad():
        for n in (2, 3, 4, 5, 1, 0, 6):
            k, w = torch.randn(2, n, 4), torch.randn(2, 1, 4)
            same(step(k, w), compiled(k, w))


def test_attributes_that_results_lack():
    def step(cache, x):
        cache["k"] = k = torch.cat([cache["k"], x], 1)
        scaled = k * 2
        return scaled.sum(1) if not hasattr(scaled, "jax") else scaled

    compiled = quickfuse.compile(step)
    caches = [{"k": torch.randn(2, 1, 4)} for _ in range(2)]
    caches[1]["k"] = caches[0]["k"].clone()
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(2, 1, 4)
            torch.testing.assert_close(compiled(caches[0], x), step(caches[1], x))
    assert compiled.graph_count <= 4 and not compiled.breaks


def test_a_cache_that_is_empty_first():
    """Its first length is the second call's; a mask has grown from the first call on."""

    def step(cache, x, mask):
        k = x if cache.get("k") is None else torch.cat([cache["k"], x], 1)
        cache["k"] = k
        return torch.nn.functional.scaled_dot_product_attention(x[:, None], k[:, None], k[:, None], mask[:, None, None])

    compiled = quickfuse.compile(step)
    caches = [{}, {}]
    with torch.no_grad():
        for n in range(1, 12):
            x, mask = torch.randn(2, 1, 4), torch.randn(2, n)
            torch.testing.assert_close(compiled(caches[0], x, mask), step(caches[1], x, mask))
    assert compiled.graph_count <= 6


def test_an_index_that_grows():
    """As `transformers` looks up a padding mask for all keys."""

    def step(cache, x, rows):
        cache["k"] = k = torch.cat([cache["k"], x], 1)
        places = torch.arange(k.shape[1])
        mask = cache["mask"] = torch.cat([cache["mask"], torch.ones(2, 1, dtype=torch.bool)], 1)
        known = mask[rows[:, None], places] & (places <= k.shape[1])
        return (k * known[..., None].expand(2, k.shape[1], 4)).sum(1), k[rows, places[-2:]]

    compiled = quickfuse.compile(step)
    k, mask = torch.randn(2, 3, 4), torch.tensor([[False, True, True], [True, True, True]])
    caches = [{"k": k.clone(), "mask": mask.clone()} for _ in range(2)]
    with torch.no_grad():
        for _ in range(9):
            x, rows = torch.randn(2, 1, 4), torch.tensor([1, 0])
            torch.testing.assert_close(compiled(caches[0], x, rows), step(caches[1], x, rows))
            torch.testing.assert_close(*caches)
    assert compiled.graph_count <= 4
