"""Loops with a break in their body: the code after the break goes on through the next turn, with the iterator as it is then.

Each program is compared with eager: what it returns, what the break saw, what the iterators have left. How many graphs are
compiled does not depend on how many turns there are, but where the value of a number or text from the iterator matters.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.ir.iterating import advance, ahead, is_readable
from quickfuse.ir.reading import MISSING

T = torch.Tensor
TENSORS = [torch.full((3,), float(k)) for k in range(4)]
TABLE = {"a": torch.ones(3), "b": torch.zeros(3), "c": torch.full((3,), 2.0)}
SEEN: list[float] = []


class Layer(torch.nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((3,), float(k)), requires_grad=False)

    def forward(self, x: T) -> T:
        return (x * self.w).tanh() + 1


LAYERS = torch.nn.ModuleList([Layer(k) for k in range(5)])
BY_NAME = torch.nn.ModuleDict({f"m{k}": Layer(k) for k in range(5)})


@quickfuse.disable
def see(x: T) -> None:
    SEEN.append(round(x.sum().item(), 3))


def modules(x):
    for layer in LAYERS:
        x = layer(x)
        see(x)
    return x


def named_modules(x):
    for name, layer in BY_NAME.items():
        x = layer(x)
        see(x)
    return x, name


def enumerated(x):
    for k, layer in enumerate(LAYERS, 2):
        x = layer(x) * k
        see(x)
    return x


def zipped_into_a_list(x):
    results = []
    for a, layer in zip(TENSORS, LAYERS):
        x = layer(x) + a
        see(x)
        results.append(x)
    return x, results


def values_of_a_dictionary(x):
    for v in TABLE.values():
        see(x)
        x = x + v
    return x


def counted(x):
    for k in range(40):
        x = x * 0.9 + k
        see(x)
    return x


def rows(x):
    for row in torch.stack(TENSORS):
        see(row)
        x = x + row
    return x


def reversed_list(x):
    for v in reversed(TENSORS):
        see(x)
        x = x * v + 1
    return x


def deque(x):
    for v in collections.deque(TENSORS):
        see(x)
        x = x * v + 1
    return x


def set_of_numbers(x):
    for v in {1.0, 2.0, 3.0}:
        see(x)
        x = x * v + 1
    return x


def pairs_kept(x):
    pairs = []
    for pair in enumerate(TENSORS):
        see(x)
        pairs.append(pair)
        x = x + pair[1]
    return x, pairs


def nested(x):
    for k, (_, v) in enumerate(TABLE.items()):
        see(x)
        for _ in range(2):
            x = x + v * k
            see(x)
    return x


def leaves_by_value(x):
    for v in TENSORS:
        if v.sum() > 3:
            break
        x = x + v
    else:
        return x * 7
    return x


def advanced_in_the_body(x):
    iterator = iter(TENSORS)
    for v in iterator:
        see(v)
        x = x + v
        other = next(iterator, None)
        if other is not None:
            x = x * other
    return x, next(iterator, 7)


def rest_after_a_break(x):
    iterator, others = iter(TENSORS), enumerate(TENSORS)
    next(iterator), next(others)
    see(x)
    return [v + x for v in iterator], list(iterator), sum(v for _, v in others), list(others)


def one_graph_with_zip(x):
    iterator = iter(TENSORS)
    see(x)
    return [a * k for a, k in zip(iterator, range(3))], list(iterator)


ONE_A_TURN = {
    modules: 2, named_modules: 2, enumerated: 2, zipped_into_a_list: 2, values_of_a_dictionary: 2, counted: 2, rows: 3,
    reversed_list: 2, deque: 2, set_of_numbers: 2, pairs_kept: 2, leaves_by_value: 2, advanced_in_the_body: 2,
    rest_after_a_break: 1, one_graph_with_zip: 1, nested: 2,
}  # fmt: skip


def columns_by_number(x):
    y = torch.stack([x, x + 1, x + 2])
    for k in range(3):
        column = y[:, k]
        see(column)
        y = y + column.sum()
    return y


def columns_by_mask(x):
    y, parts = 10 * torch.arange(12.0).view(4, 3) + x, []
    for k in range(3):
        column = y[:, k]
        column = column[column > 40 * k + 5]
        parts.append(torch.cat([column * 2, torch.full_like(column, k)]))
    return torch.cat(parts)


def modules_by_number(x):
    for k in range(3):
        x = LAYERS[k](x)
        see(x)
    return x


def entries_by_name(x):
    for k, name in enumerate(["c", "a", "b"]):
        x = x + TABLE[name]
        see(x)
        x = x.view(1 + 2 * (k > 0), -1).flatten()
    return x


#: One graph for each turn and one at the end, where what is done depends on a number or name. Turns of few operators are
#: left to Python from the second one on.
ONE_EACH_TURN = {columns_by_number: 2, columns_by_mask: 3, modules_by_number: 3, entries_by_name: 4}


def many_modules_by_number(x):
    for k in range(15):
        x = LAYERS[k % 5](x)
        see(x)
    return x


def many_columns_by_number(x):
    y = torch.ones(3, 40) * x.sum()
    for k in range(40):
        see(x)
        y = y + y[:, k].mean()
    return y


def elements_by_two_numbers(x):
    y = torch.ones(6, 6) * x.sum()
    for row in range(6):
        for column in range(6):
            y = y + y[row, column] * 0.01
            see(y)
    return y


#: What keeps changing is left to Python after a few turns.
MANY_TURNS = {many_modules_by_number: 8, many_columns_by_number: 8, elements_by_two_numbers: 6}


def pairs_of_one_iterator(x):
    iterator = iter(range(7))
    for a, b in zip(iterator, iterator):
        see(x)
        x = x + a * b
    return x, next(iterator, None)


def two_that_share(x):
    iterator = iter(range(9))
    for a, b in zip(iterator, TENSORS):
        see(x)
        x = x + b * a + next(iterator)
    return x, list(iterator)


def list_that_grows(x):
    values = list(TENSORS)
    for v in values:
        see(v)
        x = x + v
        if len(values) < 8:
            values.append(x)
    return x, len(values)


def list_that_shrinks(x):
    values = list(TENSORS)
    for v in values:
        see(v)
        x = x + v
        if len(values) > 2:
            del values[0]
    return x, len(values)


def dictionary_with_new_values(x):
    values = dict(TABLE)
    for name, v in values.items():
        see(v)
        x = x + v
        values["c"] = x
        values[name] = v - 1
    return x, values


def dictionary_that_grows(x):
    values = dict(TABLE)
    try:
        for name in values:
            see(x)
            x = x + values[name]
            values[name + "z"] = x
    except RuntimeError as error:
        return x, str(error), list(values)


def dictionary_of_an_object(x):
    class Box:
        pass

    box = Box()
    box.a, box.b = x, x + 1
    for name, v in vars(box).items():
        see(v)
        x = x + v
        setattr(box, name, x)
        box.b = x
    return x, vars(box)


def strictly_zipped(x):
    for a, b in zip(TENSORS, TENSORS[:2], strict=True):
        see(x)
        x = x + a * b
    return x


def names_that_matter(x):
    for name in "abcde":
        x = x + ord(name)
        see(x)
    return x


def shapes_that_differ(x):
    for v in (torch.ones(2, 3), torch.ones(3), torch.ones(()), torch.ones(4, 1, 1)):
        see(x)
        x = x + v
    return x


OTHERS = (
    pairs_of_one_iterator, two_that_share, list_that_grows, list_that_shrinks, dictionary_with_new_values,
    dictionary_that_grows, dictionary_of_an_object, strictly_zipped, names_that_matter, shapes_that_differ,
)  # fmt: skip


def outcome(function: Callable[..., Any], *args: Any) -> str:
    SEEN.clear()
    try:
        result = function(*args)
    except ValueError as error:
        result = str(error)
    return f"{result} {SEEN} {[list(a) for a in args[1:]]}"


@pytest.mark.parametrize("backend", ["quickfuse", "eager"])
@pytest.mark.parametrize("function", [*ONE_A_TURN, *ONE_EACH_TURN, *MANY_TURNS, *OTHERS], ids=lambda f: f.__name__)
def test_as_eager(function: Callable[..., Any], backend: str) -> None:
    compiled = quickfuse.compile(function, backend=backend)
    for x in (torch.ones(3), torch.full((3,), 0.5), -torch.ones(3), torch.ones(3)):
        assert outcome(compiled, x.clone()) == outcome(function, x.clone())
    known = ONE_A_TURN | ONE_EACH_TURN
    assert function not in known or compiled.graph_count == known[function]
    assert compiled.graph_count <= MANY_TURNS.get(function, 100)


def takes_two(x, first, second):
    for a in first:
        x = x + a
        b = next(second, None)
        if b is not None:
            x = x * b
    return x


def test_iterators_as_arguments() -> None:
    compiled = quickfuse.compile(takes_two, fullgraph=True)
    x = torch.ones(3)
    for make in (
        lambda: (iter([1.5, 2.5]), iter([3.5])),
        lambda: (iter([1.5, 2.5, 4.5]), iter([3.5])),
        lambda: (iter([1.5, 2.5]), iter([3.5])),
        lambda: (iter((1.5, 2.5)), iter((3.5,))),
    ):
        mine, eagers = make(), make()
        assert outcome(compiled, x, *mine) == outcome(takes_two, x, *eagers)
    shared, other = iter([1.5, 2.5, 3.5]), iter([1.5, 2.5, 3.5])
    same = quickfuse.compile(takes_two)
    same(x, iter([1.5, 2.5, 3.5]), iter([1.5, 2.5, 3.5]))
    assert outcome(same, x, shared, shared) == outcome(takes_two, x, other, other)


def extends(x, values, others):
    for v in values:
        others.append(x)
        x = x + v
        if len(others) > 5:
            break
    return x


def test_a_list_that_is_iterated_over_and_changed() -> None:
    """That the two are different is guarded."""

    def program(x, same):
        values = list(TENSORS)
        iterator = iter(values)
        see(x)
        return extends(x, iterator, values if same else []), len(values)

    compiled = quickfuse.compile(program)
    for same in (False, True, False, True):
        assert str(compiled(torch.ones(3), same)) == str(program(torch.ones(3), same))


@pytest.mark.parametrize(
    "make",
    [
        lambda: iter([1, 2, 3, 4]), lambda: iter([]), lambda: iter((1, 2)), lambda: iter("abc"), lambda: iter("a\u1234"),
        lambda: iter(b"abc"), lambda: iter(range(9, 1, -2)), lambda: iter(range(1 << 65, (1 << 65) + 3)),
        lambda: reversed([1, 2, 3]), lambda: iter(collections.deque([1, 2])), lambda: iter(TABLE.items()),
        lambda: reversed(TABLE), lambda: iter(collections.OrderedDict(TABLE).values()), lambda: iter({1, 2, 3}),
        lambda: enumerate([5, 6], 3), lambda: zip([1, 2, 3], (4, 5)), lambda: zip(*[iter(range(7))] * 2),
        lambda: enumerate(zip("abc", TABLE)), lambda: zip(),
    ],
)  # fmt: skip
def test_looking_ahead(make: Callable[[], Any]) -> None:
    """At any place of an iterator, and past its end, looking ahead tells what it gives then."""
    whole = list(make())
    for taken in range(len(whole) + 2):
        iterator = make()
        advance(iterator, taken)
        assert is_readable(iterator)
        upcoming = ahead(iterator)
        found = [upcoming[k] for k in range(len(whole) + 1)]
        rest = whole[taken:]
        assert found == [*rest, *[MISSING] * (len(found) - len(rest))]
        assert list(iterator) == rest
