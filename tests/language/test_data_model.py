"""What special methods may give, what containers do while code looks at them, and numbers that are hard to write down."""

import cmath
import collections
import copy
import decimal
import functools
import itertools
import math
import types

import numpy as np
import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t

T3 = t(3)
INFINITY = float("inf")


class Answers:
    """An object whose special methods give what they are told."""

    def __init__(self, **answers):
        self.__dict__.update(answers)


class WithLength(Answers):
    def __len__(self):
        return self.length


class WithIterator(Answers):
    def __iter__(self):
        return self.iterator


class WithIndex(Answers):
    def __index__(self):
        return self.index


class WithInt(int):
    def __int__(self):
        return "no number"


class Complex(complex):
    def __complex__(self):
        return 42j


def told(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


@case((T3, 2), (T3, 0), (T3, -1), (T3, 1 << 80))
def truth_by_length(x, length):
    return x + 1, told(lambda: bool(WithLength(length=length)))


@setup()
def length_outside():
    item = WithLength(length=3)

    def function(x, length):
        item.length = length
        return x + 1 if item else x - 1

    return function, [(T3, 3), (T3, 4), (T3, 0)]


@case((T3,), (t(4),))
def no_iterator(x):
    outcomes = [told(iter, WithIterator(iterator=found)) for found in ([1, 2], 3)]
    mine = WithIterator()
    mine.iterator = mine
    return x + 1, outcomes, told(list, mine)[0]


@case((T3,), (t(4),))
def conversions_by_index(x):
    value = WithIndex(index=7)
    return x * int(value), float(value), told(int, Answers())[0], told(float, {})[0], int(bytearray(b"12"))


@case((T3,), (t(4),))
def conversions_that_give_something_else(x):
    return x + 1, told(int, WithInt(3)), told(int, WithIndex(index=2.5)), complex(Complex(1j)), told(abs, "text")


@case((T3,), (t(4),))
def builtins_refuse(x):
    refused = [told(round, Answers()), told(sum, ["a", "b"], ""), told(max), told(setattr, Answers(), 1, 2)]
    return x + 1, [outcome[0] for outcome in refused]


@case((T3, [3, 1, 2]), (T3, [1, 2]))
def list_while_it_is_sorted(x, given):
    values, seen = list(given), []
    values.sort(key=lambda value: seen.append(len(values)) or -value)
    return x + 1, values, seen


@case((T3, [3, 1, "a", 2]), (T3, [2, 1]))
def list_that_cannot_be_sorted(x, given):
    values = list(given)
    outcome = told(values.sort)
    return x + 1, values, outcome


@case((T3,), (t(4),))
def list_changed_by_a_key(x):
    values = [3, 1, 2]
    return x + 1, told(lambda: values.sort(key=lambda value: values.append(1) or value)), values


@case((T3,), (t(4),), steady="never")
def list_changed_by_a_comparison(x):
    class Clears:
        def __init__(self, values):
            self.values = values

        def __eq__(self, other):
            self.values.clear()
            return NotImplemented

    first, second, third, fourth = [], [], [], [1, 2, 3]
    first.append(Clears(second))
    second.append(Clears(first))
    third += [Clears(third), 1]
    return x + 1, first == second, told(third.index, 5), fourth.count(Clears(fourth)), fourth


@case((T3, INFINITY), (T3, float("nan")), (T3, 1.0))
def nan_is_found_by_identity(x, value):
    return x + 1, value in [value], [1.0, value].index(value), (value,).count(value), [value] == [value]


@setup()
def same_nan():
    nan = float("nan")
    return lambda x, a, values: (x + 1, a in values, values.count(a)), [(T3, nan, [nan]), (T3, 1.0, [1.0])]


@case((T3, [INFINITY]), (T3, [INFINITY, INFINITY]), (T3, [1.0]), (T3, [-INFINITY]))
def infinity_as_a_key(x, values):
    return x * {1.0: 2.0, INFINITY: 3.0, -INFINITY: 4.0}[values[0]]


@case((T3, INFINITY), (T3, -1.0))
def finite_parts(x, value):
    return x + 1, cmath.isfinite(complex(value, 1.0)), math.isfinite(value)


@case((T3, 10**700 + 1), (T3, 3))
def long_integers(x, number):
    return x * (number % 7), number > 10**800, (10**900, number), {10**700 + 1: 1.0, 3: 2.0}[number]


@case((T3, frozenset({1, 2})), (T3, frozenset()))
def frozenset_of_a_frozenset(x, values):
    mine = frozenset([1, 2])
    return x + len(values), frozenset(values) is values, frozenset(mine) is mine


@case((T3,), (t(4),))
def text_that_contains_itself(x):
    values, table = [1], {}
    values.append(values)
    table["table"] = table
    return x + 1, repr(values), str(table)


@case((T3,), (t(4),))
def deep_text(x):
    values = [1]
    for _ in range(400):
        values = [values]
    return x + 1, repr(values)


class Reflects:
    def __add__(self, other):
        return NotImplemented

    def __radd__(self, other):
        return "radd"

    def __or__(self, other):
        return "or"

    def __ror__(self, other):
        return "ror"


class Inherits(Reflects):
    pass


class SaysAnew(Reflects):
    def __ror__(self, other):
        return "ror of what derives"


class Blocks:
    __radd__ = None
    __eq__ = None


class Steps:
    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        if self.count > 3:
            raise StopIteration
        return self.count


class Own(collections.OrderedDict):
    pass


class Fills(collections.defaultdict):
    def __init__(self):
        self.default_factory = list


class Text(str):
    def __str__(self):
        return "another text"


class Derived(str):
    pass


class Written:
    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


class Equals(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Rounded(float):
    def __floor__(self):
        return 42

    def __trunc__(self):
        return 44


class Bytes(bytes):
    def __bytes__(self):
        return b"abc"


@case((T3,), (t(4),))
def who_is_asked_first(x):
    same, other = told(lambda: Reflects() + Reflects()), Reflects() + Inherits()
    return x + 1, same, other, Reflects() | Inherits(), Reflects() | SaysAnew()


@case((T3,), (t(4),))
def operators_that_are_none(x):
    return x + 1, told(lambda: Reflects() + Blocks()), told(lambda: Blocks() == 1)


@case((T3,), (t(4),))
def an_iterator_is_itself(x):
    steps = Steps()
    iterator = iter(steps)
    first = next(iterator)
    chained = list(itertools.chain.from_iterable([Steps(), [7]]))
    return x * first, iterator is steps, iterator.count, isinstance(iterator, Steps), chained


@setup()
def an_iterator_outside_is_itself():
    return lambda x, steps: (x * next(iter(steps)), iter(steps) is steps), [(T3, Steps()), (T3, Steps())]


@setup()
def merged_dictionaries():
    def function(x, table):
        return x + 1, {1: 2} | table, table | {1: 2}

    tables = [Own(a=1), collections.OrderedDict(a=1), collections.defaultdict(int, a=1), {"a": 1}]
    return function, [(T3, table) for table in [*tables, types.MappingProxyType({"a": 1})]]


@case((T3,), (t(4),))
def dictionaries_with_attributes(x):
    made, ordered = Fills(), collections.OrderedDict(a=1)
    made["a"].append(1)
    ordered.note = 3
    return x + 1, made.default_factory, made["b"], made, vars(copy.copy(ordered)), ordered.note


@setup()
def dictionary_with_attributes_outlives():
    def function(x):
        made, ordered = Fills(), collections.OrderedDict(a=1)
        ordered.note = 3
        return x + 1, made, ordered

    def used(x):
        _, made, ordered = function(x)
        return made["b"], ordered.note

    return used, [(T3,), (T3,)]


@case((T3,), (t(4),))
def keywords_of_any_name(x):
    called = functools.partial(dict, self=5, function=3, i=3)()
    ordered = collections.OrderedDict(self=1, values=3, i=3)
    filled = collections.defaultdict(None, factory=4, values=1)
    return x + 1, called, ordered, filled, "{value} {i}".format(value=1, i=2), told({}.update, (), ())


@setup()
def text_of_derived_classes():
    def function(x, text):
        written = Written(text)
        return x + 1, "%s" % text, f"{text}", type(str(written)), "a" in written.text

    return function, [(T3, Text("q")), (T3, Derived("q")), (T3, "q")]


@setup()
def numbers_of_derived_classes():
    def function(x, value):
        return x * math.floor(value), math.trunc(value), math.ceil(value)

    return function, [(T3, Rounded(1.5)), (T3, 1.5)]


@setup()
def found_by_equality():
    def function(x, value):
        return x + 1, value in range(10), value in (11, 12), told(range(10).index, value)

    return function, [(T3, Equals(30)), (T3, 3), (T3, 11)]


@setup()
def bytes_of_derived_classes():
    return lambda x, value: (x + 1, bytes(value)), [(T3, Bytes(b"z")), (T3, b"z"), (T3, 3)]


@case((T3,), (t(4),))
def long_ranges(x):
    return x + 1, told(len, range(1 << 70)), range(1 << 70)[1 << 69], bool(range(1 << 70))


class Frozen(frozenset):
    pass


@setup()
def frozensets_of_derived_classes():
    def function(x, values):
        return x + len(values), "m" in values, values & {"m"}, values == {"m"}, told(values.__init__, "abc"), values

    return function, [(T3, Frozen(text)) for text in ("simsalabim", "madagascar", "m", "")]


@setup(steady="later")
def sets_of_sets():
    def function(x, values):
        mine = {frozenset([1]), frozenset([2])}
        found = {1} in mine, told(mine.remove, {1}), told(mine.discard, {3}), told(mine.remove, {7})[0], {1} in values
        return x + 1, found, mine, told(values.add, []), told(values.update, [[1]]), told(values.add, 7), len(values)

    return function, [(T3, {frozenset([1])}), (T3, {1, 2}), (T3, {1, 2})]


class Counted(tuple):
    """A tuple of more than its elements, of which builtin methods and comparisons know nothing."""

    __slots__ = ()

    def __new__(cls, text):
        return super().__new__(cls, map(int, text))

    def __len__(self):
        raise NotImplementedError

    def __iter__(self):
        return iter("other elements")


@setup()
def comparisons_of_derived_tuples():
    def function(x, outside):
        mine, twin, other = Counted("12"), Counted("12"), Counted("13")
        compared = mine == twin, mine != other, mine < other, mine >= other, mine in (other, twin), outside == twin
        return x + 1, compared, mine.count(2), other.index(3), outside.count(1), outside in (other, twin)

    return function, [(T3, Counted("12")), (T3, Counted("123")), (T3, Counted("12"))]


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


class HalfSlotted:
    __slots__ = ("__dict__", "a")

    def __init__(self, a):
        self.a, self.b = a, 2 * a


@setup()
def copies_of_objects_with_slots():
    def function(x, value):
        copied = copy.copy(value), copy.deepcopy(value)
        return x + 1, [(one.a, getattr(one, "b", None)) for one in copied]

    return function, [(T3, Slotted(1)), (T3, HalfSlotted(2)), (T3, Slotted(3))]


@case((T3,), (t(4),))
def copies_of_made_objects_with_slots(x):
    return x + 1, copy.copy(Slotted(1)).a, copy.deepcopy(HalfSlotted(2)).a


@case((T3,), (t(4),), steady="later")
def what_contains_itself(x):
    values = []
    outer = (values, 1)
    values.append(outer)
    return x + 1, values[0] is outer, outer


@setup()
def attributes_that_only_code_in_c_knows():
    def function(x, context):
        return x * context.prec, len(context.traps), hasattr(context, "flags"), told(lambda: context.nothing)

    return function, [(T3, decimal.Context(prec=3)), (T3, decimal.Context(prec=3))]


@case((T3,), (t(4),), steady="never")
def containers_changed_by_a_comparison(x):
    class Clears:
        def __init__(self, values):
            self.values = values

        def __eq__(self, other):
            self.values.clear()
            return NotImplemented

        __hash__ = object.__hash__

    numbers, table = collections.deque([1, 2, 3]), {1: 2, 3: 4}
    found = told(lambda: Clears(numbers) in numbers), told(lambda: (1, Clears(table)) in table.items())
    return x + 1, found, numbers, table


@case((T3,), (t(4),))
def changed_partial(x):
    made = functools.partial(max, 1)
    outcome = told(setattr, made, "func", min)
    made.note = 3
    return x * made(5), outcome, made.note


@setup()
def partial_with_attributes_outlives():
    def function(x):
        made = functools.partial(max, 1)
        made.note = 3
        return x + 1, made

    return lambda x: (function(x)[0], vars(function(x)[1])), [(T3,), (T3,)]


@case((T3,), (t(4),))
def no_function_of_a_method(x):
    return x + 1, told(types.MethodType, 3, 1)


@case((T3,), (t(4),))
def deque_that_changed_since(x):
    values = collections.deque([1, 2, 3])
    iterator, other = iter(values), iter(values)
    first = next(iterator), next(other)
    values.append(4)
    print("changed")
    return x * first[0], told(next, iterator), told(list, other), list(values)


class OddFloat(float):
    def __float__(self):
        return 7.0


class OddInt(int):
    def __index__(self):
        return 3

    def __int__(self):
        return 5

    def __float__(self):
        return 9.0


class PlainFloat(float):
    pass


class PlainInt(int):
    pass


ODD = (OddFloat(2.0), OddInt(2), PlainFloat(2.0), PlainInt(2))


@case(*[(T3, number) for number in ODD])
def numbers_whose_class_says_how_to_convert_them(x, v):
    one = [np.sum([v, v]), np.mean([v, 1.0]), np.array([v]).tolist(), np.sqrt(v), np.multiply(v, 2), np.dot([v, v], [1, 1])]
    two = [math.sqrt(v), math.fsum([v, v]), math.trunc(v), float(v), int(v), round(v)]
    three = [f"{v:.2f}", "%.2f %s" % (v, v), f"{v}", str(v)]
    return x * v, torch.full((2,), v), [*map(repr, one)], two, three, (np.zeros(2) + v).tolist()


@case(*[(T3, number) for number in (*ODD, 2.0, 3, np.float64(2.0), np.int64(3))])
def numbers_beside_those_of_numpy(x, v):
    one = [np.float64(3) * v, v + np.float64(3), np.float32(3) * v, np.int64(3) - v, v / np.int64(3)]
    one += [np.float64(3) < v, np.float64(3) ** v, max(np.float64(3), v)]
    return x + 1, [*map(repr, one)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_data_model(name, backend):
    check(__file__, name, backend)
