"""Methods of iterators that a program calls by their names, as `iterator.__next__()`, and the classes that it sees."""

import collections
import functools
import itertools
import operator
import re

import pytest
import torch

import quickfuse
from matrix.combinations import described


class _Items:
    def __getitem__(self, index):
        if index > 2:
            raise IndexError
        return index


_OUTSIDE = {3, 1, 2}


def _generator(x):
    yield x * 3
    yield 5


_ITERATORS = {
    "map": lambda x: map(lambda element: element * 2, [x, 1]),
    "map of a class": lambda x: map(str, [1, 2]),
    "zip": lambda x: zip([1, 2], (x, x), strict=True),
    "filter": lambda x: filter(None, [0, 1, 2]),
    "enumerate": lambda x: enumerate([x, x]),
    "reversed": lambda x: reversed([1, x]),
    "islice": lambda x: itertools.islice([1, 2, x], 2),
    "chain": lambda x: itertools.chain([1], [x]),
    "generator": _generator,
    "list": lambda x: iter([1, x]),
    "dictionary": lambda x: iter({1: x, 2: x}.items()),
    "accumulate": lambda x: itertools.accumulate([x, x]),
    "product": lambda x: itertools.product([1, 2], [x]),
    "takewhile": lambda x: itertools.takewhile(lambda element: element < 3, [1, 2]),
    "dropwhile": lambda x: itertools.dropwhile(lambda element: element < 1, [1, 2]),
    "starmap": lambda x: itertools.starmap(torch.add, [(x, 1), (x, 2)]),
    "tee": lambda x: itertools.tee([1, x])[0],
    "compress": lambda x: itertools.compress([1, x], [1, 1]),
    "groupby": lambda x: itertools.groupby([1, 1, 2]),
    "items": lambda x: iter(_Items()),
    "tensor": lambda x: iter(x),
    "set": lambda x: iter({4, 5}),
    "set from outside": lambda x: iter(_OUTSIDE),
    "matches": lambda x: re.finditer("[ab]", "abc"),
    "matches of a pattern": lambda x: re.compile("[ab]").finditer("abc"),
}


def _next_of_none(iterator):
    rest = len(list(iterator))
    try:
        return rest, iterator.__next__()
    except StopIteration as stop:
        return rest, stop.value


_USES = {
    "__next__": lambda iterator: (iterator.__next__(), iterator.__next__()),
    "__iter__": lambda iterator: iterator.__iter__() is iterator,
    "of its class": lambda iterator: (type(iterator).__next__(iterator), type(iterator).__iter__(iterator) is iterator),
    "bound": lambda iterator: [function() for function in [iterator.__next__, functools.partial(iterator.__next__)]],
    "its end": _next_of_none,
    "name of the class": lambda iterator: (iterator.__class__.__name__, iterator.__next__.__self__ is iterator),
    "protocols": lambda iterator: [isinstance(iterator, getattr(collections.abc, c)) for c in ("Iterator", "Generator")],
    "hint of a length": lambda iterator: operator.length_hint(iterator, 7),
    "close": lambda iterator: iterator.close(),
    "send": lambda iterator: iterator.send(None),
    "an attribute that it has not": lambda iterator: iterator.other,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", _USES)
@pytest.mark.parametrize("kind", _ITERATORS)
def test_method_of_an_iterator(kind, use):
    def function(x):
        return x * 2, _USES[use](_ITERATORS[kind](x))

    results = []
    for called in (function, quickfuse.compile(function, backend="eager")):
        given = []
        for _ in range(2):
            try:
                given.append(described(called(torch.arange(2.0))))
            except AttributeError as error:
                given.append(str(error))
        results.append(given)
    assert results[0] == results[1]


def _grown(x, elements):
    for element in elements:
        x = x + element
        elements.add(element + 10)
    return x


def _across_a_break(x, elements):
    iterator, matches = iter(elements), re.finditer("[ab]", "abab")
    taken = next(iterator), next(matches).group()
    print(x.shape)
    return x, taken, [*iterator], [match.start() for match in matches], type(iterator).__name__


def _grown_before_a_break(x, elements):
    iterator = iter(elements)
    first = next(iterator)
    elements.add(12)
    print(x.shape)
    return x, first, [*iterator]


@pytest.mark.parametrize("function", [_grown, _across_a_break, _grown_before_a_break])
def test_set_from_outside(function):
    outcomes = []
    for called in (function, quickfuse.compile(function, backend="eager")):
        try:
            outcomes.append(described(called(torch.arange(2.0), {1, 2})))
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
