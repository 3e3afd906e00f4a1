"""Lists, tuples, dictionaries, sets, bytes: methods, aliasing, nesting, and tensors in them."""

import copy
import operator
from collections import OrderedDict, deque, namedtuple

import pytest
import torch

from language.harness import BACKENDS, case, check, names, t


@case((t(3), [1, 2, 3]), (t(3), [4, 5, 6, 7]), (t(3), [1, 1, 2]))
def list_methods(x, values):
    values.append(x + 1)
    values.extend([7, 8])
    popped = values.pop(1), values.pop()
    values.remove(values[0])
    values.insert(0, x * 2)
    values.reverse()
    copied = values.copy()
    values.clear()
    return popped, copied, values, copied[-1] - copied[0]


@case((t(3),), (t(3, seed=1),))
def list_slices_are_assigned(x):
    values = [x, x + 1, x + 2, x + 3, x + 4]
    values[1:3] = [x * 10]
    values[::2] = [0, 1]
    del values[-1]
    values[len(values):] = [x.sin()]
    values *= 2
    return values, values[1:] + [x], [x] * 2


@case((t(3), [3, 1, 2, 1]), (t(3), [5, 1]))
def list_queries(x, values):
    position = values.index(1)
    y = x + values.count(1) * position
    try:
        values.index(99)
    except ValueError as error:
        return y.exp(), str(error), 3 in values, values < [9], values == list(values), [1, 2] + values


@case((t(3), [1, 2]), (t(3), [3]))
def list_aliases(x, values):
    alias = values
    nested = [values, values]
    nested[0].append(x + 1)
    other = list(values)
    other.append(x * 2)
    return alias, nested, other, nested[0] is nested[1], values


@case((t(3), {"a": 1, "b": 2}), (t(3), {"c": 3}), (t(3), {"a": 5, "c": 1, "b": 0}))
def dict_methods(x, table):
    y = x * table.get("a", 10) + table.setdefault("z", 4)
    popped = table.pop("b", None)
    table.update({"n": x + 1}, m=2)
    last = table.popitem()
    missing = table.pop("missing", x)
    return y, popped, last, missing is x, list(table), list(table.items()), table.copy(), dict.fromkeys("ab", 0)


@case((t(3), {"a": 1.0, "b": 2.0}), (t(3), {"b": 3.0}))
def dict_views_and_merging(x, table):
    keys, values = table.keys(), table.values()
    table["late"] = 5.0
    merged = table | {"a": -1.0, "x": x * 2}
    table |= {"in": x + 1}
    return x * sum(v for v in values if isinstance(v, float)), list(keys), merged, keys & {"a", "late"}, "a" in keys


@case((t(3), (1, "a")), (t(3), (2, "b")), (t(3), (3, "a")))
def dict_with_many_kinds_of_keys(x, key):
    table = {(1, "a"): x + 1, 2: x * 2, None: x, True: x.sin(), frozenset([1]): x.cos(), torch.float32: x.exp()}
    table[2.0] = x - 1
    return table.get(key, x), len(table), table[x.dtype] + table[True], table[2], list(table)[:3]


@case((t(3), "a"), (t(3), "zz"))
def dict_missing_key(x, key):
    table = {"a": x + 1, "b": x * 2}
    try:
        y = table[key] * 3
    except KeyError as error:
        y = x - 1
        table[error.args[0]] = y
    del table["b"]
    return y, table


@case((t(3),), (t(3, seed=1),))
def dict_order_is_insertion_order(x):
    table = {}
    for name in ("z", "a", "m"):
        table[name] = x * len(table)
    table["z"] = x + 100
    del table["a"]
    table["a"] = x - 100
    first = next(iter(table))
    return table, first, list(reversed(table)), list(table.values())[-1] + 1


@case((t(3), {1, 2, 3}), (t(3), {3, 4}), (t(3), set()))
def set_methods(x, values):
    y = (x * len(values)).exp() - x
    values.add(10)
    values.discard(99)
    values |= {3, 5}
    joined = values | {7}
    return y, joined & {3, 10, 7}, joined - {3}, {3} ^ {4, 3}, {3} <= joined, joined.isdisjoint({0}), 10 in values


@case((t(3), frozenset({1, 2})), (t(3), frozenset()))
def frozensets(x, values):
    bigger = values | {3}
    y = x + len(bigger)
    if 1 in values:
        y = y * 2
    return y, bigger, values.union([4]), hash(values) == hash(frozenset(values)), {values: x - 1}[values]


@case((t(3), [2, 1, 3]), (t(3), [1, 1]))
def set_remove_and_iteration(x, values):
    seen = set()
    for v in values:
        if v in seen:
            continue
        seen.add(v)
        x = x * 2 + v
    try:
        seen.remove(3)
    except KeyError as error:
        return x, sorted(seen), error.args
    return x.sin(), sorted(seen)


@case((t(3), (1, 2)), (t(3), (3, 4, 5)))
def tuple_operations(x, values):
    longer = values + (x + 1, x * 2)
    y = longer[-1] - longer[-2]
    return y, longer, values * 2, values.index(values[0]), values.count(3), values < (2,), hash(values) == hash((*values,))


@case((t(3), (1, [2])), (t(3), (3, [])))
def tuple_with_a_list_inside(x, pair):
    pair[1].append(x + 1)
    try:
        pair[0] = 5
    except TypeError as error:
        return pair, pair[1][-1] * 2, str(error)


@case((t(3),), (t(3, seed=1),))
def nested_structures(x):
    tree = {"layers": [{"w": x + 1, "b": (x, x * 2)}, {"w": x - 1, "b": (x.sin(), None)}], "n": 2}
    total = x * 0
    for layer in tree["layers"]:
        total = total + layer["w"]
        for part in layer["b"]:
            if part is not None:
                total = total * 0.5 + part
    tree["layers"][0]["w"] = total
    tree["layers"].append(tree["layers"][0])
    return tree


@case((t(3), [1, 2], [1, 2]), (t(3), [1], [1, 2]), (t(3), [2], [1, 5]))
def comparisons_of_containers(x, a, b):
    if a == b:
        x = x + 1
    if a < b:
        x = x * 2
    return x.exp(), a != b, a is b, (1, a) == (1, b), {"k": a} == {"k": b}, set(a) < set(b), max(a, b)


@case((t(3), {"a": [1]}), (t(3), {"b": [2, 3]}), steady="never")
def copies(x, table):
    shallow, deep = copy.copy(table), copy.deepcopy(table)
    for values in table.values():
        values.append(9)
    y = x * len(shallow) + sum(len(v) for v in deep.values())
    return y, shallow, deep, shallow is table, list(shallow.values())[0] is list(table.values())[0]


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3, seed=3)), steady="never")
def copies_of_tensors(x, y):
    holder = {"x": x, "again": x, "y": [y]}
    deep = copy.deepcopy(holder)
    shallow = copy.copy(holder)
    x.add_(1)
    return deep, deep["x"] is deep["again"], shallow["x"] is x, deep["x"] * 2 + shallow["y"][0]


@case((t(3), b"abc"), (t(3), b"xy"))
def bytes_and_bytearrays(x, data):
    buffer = bytearray(data)
    buffer.append(65)
    buffer[0] = 66
    y = (x + data[0] * len(buffer)).sin() * x
    joined = b"-".join([data, b"z"])
    return y, buffer, joined, data.decode(), data.hex(), data.find(b"c"), joined.split(b"-"), bytes([1, 2]), data[1:]


@case((t(4, 2),), (t(3, 2),))
def grouping_rows(x):
    groups = {}
    for k, row in enumerate(x.unbind()):
        groups.setdefault("even" if k % 2 == 0 else "odd", []).append(row * k)
    means = {name: torch.stack(rows).mean(0) for name, rows in groups.items()}
    return means, {name: len(rows) for name, rows in groups.items()}


@case((t(3), [[1, 2], [3]]), (t(3), [[], [4, 5, 6]]))
def flattening_and_transposing(x, rows):
    flat = [v for row in rows for v in row]
    padded = [row + [0] * (3 - len(row)) for row in rows]
    columns = list(zip(*padded))
    return x * sum(flat), columns, [list(c) for c in columns], torch.tensor(padded) + x.sum()


@case((t(2, 3), 0), (t(2, 3), 1), (t(2, 3), 5))
def index_errors(x, k):
    values = [x + 1, x * 2]
    try:
        y = values[k]
    except IndexError as error:
        return x - 1, str(error)
    return y.sum(k) + 1


@case((t(3),), (t(3, seed=1),))
def recursive_list(x):
    loop = [x + 1]
    loop.append(loop)
    y = loop[1][1][0] * 2
    return y, loop


@case((t(3),), (t(3, seed=1),), steady="never")  # identities differ with each call
def tensors_in_containers_by_identity(x):
    y = x + 1
    values = [x, y, x]
    ids = {id(v) for v in values}
    positions = [k for k, v in enumerate(values) if v is x]
    return len(ids), positions, values, any(v is y for v in values), values[0] + values[1]


@case((t(3), [4, 2, 9]), (t(3), [1]))
def stack_and_queue_use(x, work):
    done = []
    while work:
        n = work.pop(0) if len(work) % 2 else work.pop()
        done.append(n)
        x = x + n * len(done)
    return x, done, work, bool(work), not done


@case((t(3), [1, 2, 3]), (t(3), [1]))
def unpacking_into_containers(x, values):
    table = {}
    table["first"], *table["rest"] = values
    values[0], values[-1] = values[-1], values[0]
    return x * table["first"] + len(table["rest"]), table, values


class Defaults(dict):
    def __missing__(self, key):
        return len(key)


@case((t(3), "ab"), (t(3), "cde"), graphs=1)
def dictionary_made_inside_says_what_is_missing(x, key):
    table = Defaults(known=1)
    try:
        return x + table[key] + table["known"], len(table)
    except KeyError:
        return x


@case((t(3), 1), (t(3), 2), (t(3), -2), graphs=1)
def index_searches_from_a_position(x, start):
    values, several = [2, 1, 2, 1], (1, 3, 2, 1)
    return x + values.index(1, start) * 10 + several.index(1, start), values.index(2, 1, 3)


@case((t(3), "ab c"), (t(3), "ab d"), graphs=1)
def text_is_compared_by_the_method_of_its_class(x, text):
    return x + str.__eq__("".join(["ab", " ", "c"]), text), str.__len__(text), int.__add__(2, len(text))


@case((t(3), {"a": 1, "b": 2}), (t(3), {"b": 1, "c": 2}), graphs=1)
def dictionary_methods_by_their_class(x, table):
    made = {"b": x}
    both = dict.__or__(made, table)
    return dict.get(made, "b") + dict.get(table, "b"), list(both), dict.__eq__(made, table), made.keys().isdisjoint(["a"])


def said(function, *args):
    try:
        return function(*args)
    except (TypeError, ValueError) as error:
        return type(error).__name__, str(error)


@case((t(3), [1, 2], OrderedDict(a=1)), (t(3), [3], OrderedDict(b=2)))
def methods_of_builtin_classes_refuse_objects_of_others(x, values, table):
    unbound = tuple.__len__, list.__len__, list.count, deque.index, dict.__contains__, set.__or__, str.join, OrderedDict.keys
    receivers = values, (1, 2), {1: x}, table, {1}, deque([1]), "a", 1.5
    wrong = [said(method, v, 1) for method in unbound for v in receivers if not isinstance(v, method.__objclass__)]
    return x + len(wrong), wrong, dict.copy(table), said(object.__eq__, {1: 2}, {1: 2})


@case((t(3), 2), (t(3), 3), (t(3), 0))
def lists_are_repeated_in_place(x, n):
    values, several, queue = [x], Listed([1]), deque([1])
    before = values, several, queue
    values *= 2
    several *= n
    queue *= 3
    return before[0] is values, before[1] is several, before[2] is queue, before, values[1] + n


class Listed(list):
    pass


class Uncounted(list):
    def __len__(self):
        raise ValueError("not counted")


class Uncountable(tuple):
    def __len__(self):
        raise TypeError("not countable")


class Counted:
    asked = 0

    def __iter__(self):
        return iter([1, 2])

    def __len__(self):
        self.asked += 1
        return 7


def into(elements):
    values = [0]
    values.extend(elements)
    return values


@case((t(3), Uncounted([1, 2])), (t(3), Uncountable([1, 2])), (t(3), Counted()))
def lists_ask_for_the_number_of_elements(x, values):
    made = type(values)() if isinstance(values, Counted) else type(values)((3, 4))
    makers = list, tuple, sorted, into, set, (lambda a: [*a]), (lambda a: [0, *a]), (lambda a: max(*a))
    return x + 1, [said(make, v) for make in makers for v in (values, made)], getattr(values, "asked", 0)


class Unhashable:
    __hash__ = None


@case((t(3), {1: 2}, {1, 2}, OrderedDict(a=1)), (t(3), {2: 3}, {3}, OrderedDict(b=2)))
def what_cannot_be_hashed_says_what_it_was_to_be(x, table, values, ordered):
    made, found = {1: x}, []
    for key in ([], Unhashable(), ([1],), deque()):
        for mapping in (table, made, ordered, OrderedDict(made)):
            readers = dict.get, dict.__contains__, operator.getitem, operator.delitem
            found += [said(method, mapping, key) for method in readers]
            found += [said(method, mapping, key, 1) for method in (dict.setdefault, operator.setitem)]
            found += [said(mapping.pop, key), said(mapping.pop, key, 1), said(mapping.update, [(key, 1)])]
        for elements in (values, {1}, frozenset({2})):
            found += [said(getattr(elements, name), [key]) for name in ("union", "intersection", "difference", "issuperset")]
            found += [said(lambda e, k: k in e, elements, key), said(elements.isdisjoint, [key])]
        for elements in (values, {1}):
            found += [said(getattr(elements, name), key) for name in ("add", "discard", "remove")]
            found += [said(elements.update, [key])]
        makers = (lambda k: {k}), (lambda k: {k: 1}), (lambda k: {j: 1 for j in [k]}), hash
        found += [said(maker, key) for maker in makers]
        found += [said(maker, [key]) for maker in (set, frozenset, dict.fromkeys, OrderedDict.fromkeys, lambda k: {*k})]
        found += [said(dict, [(key, 1)]), said(OrderedDict, [(key, 1)])]
    return x + 1, found


@case((t(3), 3), (t(3), None), (t(3), 4.5), (t(3), 5))
def unpacking_what_has_no_elements(x, value):
    makers = (lambda v: [*v]), (lambda v: [1, *v]), (lambda v: (*v,)), (lambda v: {*v}), (lambda v: {**v}), list, tuple, set
    calls = (lambda v: max(*v)), (lambda v: max(1, *v)), (lambda v: said(*v)), (lambda v: max(**v))
    return x + 1, [said(make, value) for make in (*makers, *calls)]


@case((t(3), Listed([1]), deque([1, 2])), (t(3), Listed([2, 3]), deque([3])))
def messages_name_the_classes_of_operands(x, values, queue):
    table = {1: 2}
    outcomes = [said(operator.add, (1,), values), said(operator.lt, values, 3), said(operator.iadd, (1,), 3)]
    return x, outcomes, said(operator.imul, frozenset([1]), 3), said(operator.ior, table, [1]), said(dict, [1]), str(queue)


SPARSE = {*"abcdefgh"} - {"f", "c"}


@case((t(3), {10, 1, 99, 8, 16, 0}), (t(3), {10, 1, 99, 8, 16, 0} - {8}), (t(3), frozenset([10, 1, 99])))
def texts_and_copies_of_sets_keep_their_order(x, values):
    copied = set(values)
    return x + 1, f"{values}", str(SPARSE), "%s" % (SPARSE,), [*SPARSE], [*copied], str(frozenset(values)), repr(copied)


@case((t(3), [1, 1, 2, 3, 2]), (t(3), [2, 2]))
def what_gives_elements_sees_those_before(x, values):
    unique, added, mapped, tensors = [], [], [], []
    unique.extend(v for v in values if v not in unique)
    added += (v for v in values if v not in added)
    mapped.extend(map(lambda v: v + len(mapped), values))
    tensors.extend(x * len(tensors) for _ in values)
    ends, latest = deque(), deque(maxlen=2)
    ends.extendleft(v for v in values if v not in ends)
    latest.extend(v + len(latest) for v in values)
    seen, left = set(), set(range(8))
    seen.update([9], (v + 10 * len(seen) for v in values))
    left.difference_update(v + (len(left) > 6) for v in values)
    table, ordered = {}, OrderedDict()
    table.update((v + len(table), v) for v in values)
    ordered.update((v + len(ordered), v) for v in values)
    return x + 1, unique, added, mapped, tensors, ends, latest, sorted(seen), sorted(left), table, ordered


@case(lambda: (t(3), [1, 1, 2], [], deque(), {}, set()), lambda: (t(3), [3, 3], [3], deque([3]), {3: 3}, {3}))
def what_gives_elements_sees_those_of_the_callers_before(x, values, kept, queue, table, seen):
    kept.extend(v for v in values if v not in kept)
    queue.extend(v for v in values if v not in queue)
    table.update((v + len(table), v) for v in values)
    seen.update(v + 10 * len(seen) for v in values)
    return x + len(kept)


def two_and_then_none(elements):
    yield from elements
    raise ValueError("no more")


@case(lambda: (t(3), [], deque(), {}, set()))
def elements_before_one_that_raises_are_kept(x, kept, queue, table, seen):
    mine = []
    for add in (mine.extend, kept.extend, queue.extend, seen.update):
        said(add, two_and_then_none((6, 3)))
    said(table.update, two_and_then_none(((1, 6), (2, 3))))
    return x, mine


def _one_list(cls):
    values = cls([t(3)])
    return values, values


@case(lambda: _one_list(list), lambda: _one_list(Listed))
def a_list_extended_by_itself_under_another_name(values, same):
    values.extend(same)
    return same[1] + 1, len(same)


class Several(tuple):
    pass


class Fixed(frozenset):
    pass


Pair = namedtuple("Pair", "first second")


@case((t(3), Several((0, 1))), (t(3), Pair(1, t(2))), (t(3), (1, 2)), (t(3), torch.Size([1, 2])))
def all_elements_of_a_tuple(x, values):
    made = values + (), () + values, values * 1, 1 * values, values[:], tuple(values), (*values,)
    return x + 1, made, [type(v) for v in made], [v is values for v in made]


@case((t(3), Fixed((0, 1))), (t(3), frozenset((1, 2))))
def all_elements_of_a_frozenset(x, values):
    made = values | frozenset(), values & values, frozenset(values), values.copy()
    return x + 1, made, [type(v) for v in made], [v is values for v in made]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_containers(name, backend):
    check(__file__, name, backend)
