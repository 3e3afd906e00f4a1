"""Classes that derive from builtin ones get methods of their own after the first calls, or have their instances as keys."""

import collections

import pytest
import torch

import quickfuse
from case_registry import case, cases
from changes.programs import agrees
from matrix.combinations import described

_METHODS = {
    "__getitem__": lambda self, key: 9,
    "__contains__": lambda self, key: False,
    "__setitem__": lambda self, key, value: None,
    "__missing__": lambda self, key: 8,
    "__init__": lambda self, *args: None,
    "keys": lambda self: ["a"],
}
_USES = {
    "setdefault": lambda d: (d.setdefault("a", 3), d.setdefault("zz", 3)),
    "pop": lambda d: (d.pop("zz", 4), d.pop("a")),
    "popitem": lambda d: d.popitem(),
    "copy": lambda d: list(d.copy().values()),
    "ordered": lambda d: list(collections.OrderedDict(d).items()),
    "another": lambda d: list(dict.items(type(d)(d))),
}


@pytest.mark.parametrize("base", [dict, collections.OrderedDict])
@pytest.mark.parametrize("method", _METHODS)
@pytest.mark.parametrize("use", _USES)
def test_method_of_a_dictionary_that_is_added_later(base, method, use):
    results = []
    for compile_ in (lambda function: function, lambda function: quickfuse.compile(function, backend="eager")):
        made = type("Derived", (base,), {})
        function = compile_(lambda x, table: (x * 2, _USES[use](table)))
        given = []
        for change in (lambda: None, lambda: setattr(made, method, _METHODS[method]), lambda: delattr(made, method)):
            table = made({"a": 1, 1: 2, "b": 3})
            change()
            for _ in range(2):
                try:
                    given.append(described(function(torch.ones(2), table)))
                except KeyError as error:
                    given.append(repr(error))
                given.append(described(table))
        results.append(given)
    assert results[0] == results[1]


@case
def default_values_of_a_derived_class():
    class Lists(collections.defaultdict):
        pass

    def f(x):
        made = Lists(list, {"a": [1]})
        made["b"].append(2)
        try:
            Lists({"a": 1})
        except TypeError as error:
            return x * 2, dict(made), str(error)
        return x, made

    return f, [lambda: setattr(Lists, "__init__", lambda self, *args: self.update(a=[3], b=[]))]


@case
def none_in_place_of_a_native_method():
    class Items(set):
        pass

    class Text(dict):
        pass

    items, text = Items({1}), Text(a=1)

    def f(x):
        return x * 2 if items else x, "a" in text, callable(items)

    return f, [
        lambda: setattr(Text, "__contains__", None),
        lambda: delattr(Text, "__contains__"),
        lambda: setattr(Items, "__len__", None),
        lambda: delattr(Items, "__len__"),
        lambda: setattr(Items, "__call__", None),
        lambda: delattr(Items, "__call__"),
    ]


@case
def exceptions_get_an_init():
    class Wrong(ValueError):
        pass

    def f(x):
        try:
            raise Wrong("a", 2)
        except Wrong as error:
            return x * len(error.args), getattr(error, "note", None)

    def note(self, *args):
        self.note = args

    return f, [lambda: setattr(Wrong, "__init__", note), lambda: delattr(Wrong, "__init__")]


class _Number(int):
    pass


class _Text(str):
    pass


class _Hashed(int):
    def __hash__(self):
        return 77


class _Equal(int):
    def __eq__(self, other):
        return other == "q"

    __hash__ = int.__hash__


class _Table(dict):
    def __missing__(self, key):
        return type(key).__name__


def _as_keys(x, key, table):
    table[key] = 5
    table.setdefault(key, 6)
    missing, made = _Table(), {1: 5, 2: 6, "s": 3}
    try:
        found = made[key]
    except KeyError as error:
        found = type(error.args[0])
    told = key in made, made.get(key, 8), made.pop(key, 7), missing[key], key in {1, 2, "s"}
    made[key] = x
    return x * 2, found, told, made, {key, 9}, {(key, 1): 3}


@pytest.mark.parametrize("key", [_Number(2), _Number(7), _Text("s"), _Text("z"), _Hashed(2), _Equal(2), 2, 2.0, True])
@pytest.mark.parametrize("held", [{}, {2: 4}])
def test_numbers_and_texts_of_classes_as_keys(key, held):
    results = []
    for function in (_as_keys, quickfuse.compile(_as_keys, backend="eager")):
        table = dict(held)
        results.append([described(function(torch.ones(2), key, table)) for _ in range(2)] + [described(table)])
    assert results[0] == results[1]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
