"""Named tuples, dataclasses, enums and the collections module."""

import collections
import enum
import inspect
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from dataclasses import KW_ONLY, InitVar, asdict, astuple, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypedDict

import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t

T3 = t(3)
SIGNATURE = inspect.signature(t)

Pair = collections.namedtuple("Pair", "left right")
Defaulted = collections.namedtuple("Defaulted", ["a", "b", "c"], defaults=[2, 3])


class Point(NamedTuple):
    x: torch.Tensor
    y: float = 1.0

    def scaled(self, factor):
        return Point(self.x * factor, self.y * factor)

    @property
    def total(self):
        return self.x + self.y


@dataclass
class Layer:
    weight: torch.Tensor
    bias: float = 0.5
    history: list = field(default_factory=list)
    count: ClassVar[int] = 0

    def __call__(self, x):
        self.history.append(len(self.history))
        return x * self.weight + self.bias


@dataclass(frozen=True)
class Config:
    scale: float
    name: str = "config"

    @property
    def doubled(self):
        return self.scale * 2


@dataclass(slots=True)
class Slotted:
    value: torch.Tensor
    n: int = 3


@dataclass(order=True)
class Ranked:
    rank: int
    label: str = field(compare=False, default="")


@dataclass
class Derived(Layer):
    _: KW_ONLY
    extra: float = 2.0
    norm: float = field(init=False, default=0.0)
    seed: InitVar[int] = 1

    def __post_init__(self, seed):
        self.norm = self.extra * seed
        self.weight = self.weight + 1


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    CRIMSON = 1

    def shade(self, x):
        return x * self.value


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    AB = A | B


class Name(str, enum.Enum):
    SUM = "sum"
    MEAN = "mean"


class Options(TypedDict):
    scale: float


class Lower(UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)


@case((t(3), 2.0), (t(3), 3.0))
def namedtuples(x, n):
    pair = Pair(x + 1, n)
    left, right = pair
    changed = pair._replace(right=x * 2)
    return pair, left * right, changed, pair._fields, changed._asdict(), Pair._make([x, 1]), pair[0] is left, len(pair)


@case((t(3), Pair(1.0, t(3, seed=1))), (t(3), Pair(2.0, t(3, seed=2))))
def namedtuple_argument(x, pair):
    return pair, x * pair.left + pair.right, pair == Pair(pair.left, pair.right), Defaulted(1), Defaulted(1, c=x + 1)


@case((t(3), 2.0), (t(3), 0.5))
def namedtuple_class_with_methods(x, f):
    point = Point(x + 1)
    scaled = point.scaled(f)
    return point.total, scaled, scaled.total * 2, isinstance(scaled, tuple), point.y


@case((t(3), 1.5), (t(3), 2.5))
def dataclass_instances(x, bias):
    layer = Layer(x + 1, bias)
    y = layer(x) + layer(x * 2)
    other = Layer(x)
    other.bias += 1
    return y, layer, other, layer.history is other.history, [f.name for f in fields(layer)], is_dataclass(Layer)


@case(lambda: (t(3), Layer(t(3, seed=1), 2.0)), lambda: (t(3), Layer(t(3, seed=2), 3.0)))
def dataclass_argument_is_mutated(x, layer):
    y = layer(x)
    layer.bias *= 2
    layer.weight = y - 1
    layer.new = "attribute"
    return layer, layer(y)


@case((t(3), Config(2.0)), (t(3), Config(3.0, "other")))
def frozen_dataclass(x, config):
    y = x * config.doubled + len(config.name)
    try:
        config.scale = 5.0
    except AttributeError as error:
        return y, type(error).__name__, str(error), replace(config, name="new"), hash(config) == hash(replace(config))


@case((t(3), 2), (t(3), 5))
def dataclass_with_slots(x, n):
    item = Slotted(x + 1, n)
    item.n += 1
    item.value = item.value * item.n
    try:
        item.other = 1
    except AttributeError as error:
        return item, str(error), hasattr(item, "__dict__"), item.value - 1


@case((t(3), 2.0), (t(3), 3.0))
def dataclass_inheritance_and_post_init(x, extra):
    item = Derived(x, extra=extra, seed=3)
    return item(x) * item.norm, item, isinstance(item, Layer)


@case((t(3), 1, 2), (t(3), 2, 1), (t(3), 2, 2))
def dataclass_comparison(x, a, b):
    left, right = Ranked(a, "l"), Ranked(b, "r")
    if left < right:
        x = x + 1
    if left == right:
        x = x * 3
    return x.sin(), left >= right, max(left, right).label, sorted([left, right])[0].label


@case((t(3),), (t(3, seed=1),), steady="later")
def dataclass_to_dict_and_tuple(x):
    config = Config(2.0)
    layer = Layer(x * 2, 1.0, [1])
    return asdict(config), astuple(config), replace(layer, bias=3.0), repr(config), asdict(layer)["weight"] + 1


@case((t(3), [("a", 1), ("b", 2)]), (t(3), [("c", 3), ("a", 4)]))
def ordered_dict(x, items):
    table = OrderedDict(items)
    table["x"] = x + 1
    table.move_to_end("a")
    first = table.popitem(last=False)
    table.move_to_end("x", last=False)
    return table, first, list(table)[0], OrderedDict(a=1) == {"a": 1}, x * len(table)


@case((t(3), ["a", "b", "a"]), (t(3), ["c"]))
def defaultdicts(x, keys):
    groups = defaultdict(list)
    counts = defaultdict(int)
    for key in keys:
        groups[key].append(x * len(groups))
        counts[key] += 1
    sums = defaultdict(lambda: x * 0)
    sums["a"] = sums["a"] + x
    return groups, counts, counts["missing"], dict(sums), groups.get("none"), "missing" in counts


@case((t(3), 3), (t(3), 5))
def deques(x, n):
    window = deque(maxlen=3)
    for k in range(n):
        window.append(x + k)
    window.appendleft(x * 10)
    window.rotate(1)
    last = window.pop()
    return window, last, window.popleft(), len(window), window.maxlen, list(window)


@case((t(3), deque([1, 2, 3], maxlen=4)), (t(3), deque([4], maxlen=2)))
def deque_argument(x, queue):
    y = x * queue[0] + len(queue)
    queue.append(y)
    queue.append("more")
    queue.extendleft([7])
    numbers = deque([1, 7, 7]) + deque([3])
    return y.exp() + 1, queue, numbers.count(7), 7 in numbers, queue[-1], numbers


@case((t(3), "abca"), (t(3), "zz"))
def counters(x, text):
    count = Counter(text)
    count.update(["a", "q"])
    total = x * count["a"] + count["missing"]
    both = count + Counter(a=2), count - Counter(a=1), count & Counter(a=1)
    return total, count, count.most_common(1), both, sum(count.values())


@case((t(3), {"a": 1.0}), (t(3), {"b": 3.0}))
def chain_maps(x, overrides):
    settings = ChainMap(overrides, {"a": 10.0, "b": 20.0})
    y = x * settings["a"] + settings["b"]
    settings["c"] = y
    child = settings.new_child({"a": 0.5})
    return y, child["a"] * x, overrides, sorted(settings), len(settings), settings.maps[0] is overrides


@case((t(3), Color.RED), (t(3), Color.GREEN), (t(3), Color.CRIMSON))
def enums(x, color):
    if color is Color.RED:
        x = x + 1
    elif color == Color.GREEN:
        x = x * 2
    return color.shade(x), color.name, color, Color(2), Color["GREEN"], len(Color), [c.value for c in Color], {color: 1}


@case((t(3), Level.LOW), (t(3), Level.HIGH), (t(3), 4))
def int_enums(x, level):
    y = x * level + Level.HIGH
    return y, level > Level.LOW, level + 1, Level.LOW == 1, isinstance(level, int), sorted([Level.HIGH, Level.LOW])


@case((t(3), Flags.A), (t(3), Flags.AB), (t(3), Flags.B))
def flags(x, flag):
    if flag & Flags.A:
        x = x + 1
    if Flags.B in flag:
        x = x * 2
    return x.cos(), flag | Flags.B, flag ^ Flags.A, Flags.AB.value, bool(flag & Flags.B)


@case((t(2, 3), Name.SUM), (t(2, 3), Name.MEAN), (t(2, 3), "sum"))
def string_enums(x, name):
    y = getattr(x, Name(name).value)(dim=0)
    table = {"sum": 1.0, "mean": 2.0}
    return y * table[name], name == "sum", Name.MEAN.upper(), str.__str__(Name.SUM)


@case((t(3), {"scale": 2.0}), (t(3), {"scale": 3.0}))
def typed_dicts_and_namespaces(x, options: Options):
    made = Options(scale=1.0)
    space = types.SimpleNamespace(x=x * options["scale"], n=1)
    space.n += 1
    space.y = space.x + 1
    return made, space, space.y * space.n


@case((t(3), {"Key": 2.0}), (t(3), {"key": 3.0}))
def user_dict_and_list(x, values):
    table = Lower(values)
    table["OTHER"] = x + 1
    items = UserList([1, 2])
    items.append(x)
    return x * table["key"], dict(table), items.data, len(items), "other" in table


@case(lambda: (t(3), types.MappingProxyType({"a": 2.0})), lambda: (t(3), types.MappingProxyType({"a": 3.0})))
def mapping_proxy(x, view):
    return x * view["a"] + len(view), list(view), "a" in view


@case(lambda: (t(3), types.MappingProxyType({"a": 2.0, "b": 3.0})))
def mapping_proxy_over_breaks(x, view):
    found, values = [], view.values()
    for value in view.values():
        if x.sum() > value:
            found.append(x * value)
    for name in view:
        if x.sum() > view[name]:
            found.append(name)
    return found, list(values), list(view.items()), len(view.keys())


@case((t(3), SIGNATURE), steady="never")
def signature_over_breaks(x, signature):
    found, parameters = [], signature.parameters.values()
    for name in signature.parameters:
        if x.sum() > 0:
            found.append(name)
    same = signature.parameters is signature.parameters
    return found, [str(p.kind) for p in parameters], list(signature.parameters.keys()), same


@case((t(3),), (t(3, seed=1),), steady="never")
def dictionary_subclass_with_missing(x):
    class Powers(dict):
        def __missing__(self, n):
            self[n] = x**n
            return self[n]

    powers = Powers()
    y = powers[2] + powers[3] + powers[2]
    return y, list(powers), powers.get(9), len(powers)


@case((t(3),), (t(3, seed=1),), steady="never")
def list_subclass(x):
    class Stack(list):
        def push(self, value):
            self.append(value)
            return self

        @property
        def top(self):
            return self[-1]

    stack = Stack([x]).push(x + 1).push(x * 2)
    return stack.top - stack[0], len(stack), isinstance(stack, list), list(stack), stack


@dataclass
class State:
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    step: int = 0
    extra: Any = None


@case(lambda: (t(3), State()), lambda: (t(3), State({"m": t(3)}, 4)))
def state_of_an_optimizer_by_hand(grad, state):
    state.step += 1
    m = state.tensors.get("m")
    m = grad.clone() if m is None else m.mul_(0.9).add_(grad, alpha=0.1)
    state.tensors["m"] = m
    state.extra = (m, state.step)
    return m / (1 - 0.9**state.step), state


class Ordered(collections.OrderedDict):
    """Fills itself past its own `__setitem__`, as outputs of models do."""

    def __init__(self, **entries):
        self.written = 0
        super().__init__(**entries)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.written += 1


@case((t(3),), (t(3, seed=1),))
def ordered_dictionary_of_a_class(x):
    made = Ordered(b=x, a=x * 2)
    made["c"] = x + 1
    made.update(d=x - 1)
    made.move_to_end("b")
    made.setdefault("e", x * 3)
    copied = Ordered(**made)
    del copied["a"]
    copied.pop("b")
    return made, copied, list(made), list(copied.items()), next(reversed(made))


@case((t(3),), (t(3, seed=1),))
def iterators_by_their_methods(x):
    made = Ordered(b=x, a=x * 2)
    first = iter(made.values())
    print("here")
    return reversed(made).__next__(), first.__next__(), iter(made.items()).__next__(), iter([x]).__length_hint__()


class Noted(list):
    def __init__(self, values, log):
        super().__init__(values)
        self.log = log

    def __len__(self):
        self.log.append("length")
        return 2

    def __iter__(self):
        self.log.append("elements")
        return list.__iter__(self)


class NotedTuple(tuple):
    LOG = []

    def __len__(self):
        self.LOG.append("length")
        return 2


@setup(steady="never")
def added_to_a_list():
    log = []

    def function(x, noted, pair):
        values = [0]
        values += noted
        values += pair
        values += Noted([5], log)
        return x + 1, values, list(log), list(NotedTuple.LOG)

    return function, [(T3, Noted([1, 2], log), NotedTuple((3, 4))), (T3, Noted([1], log), NotedTuple((3, 4)))]


class Count(int):
    pass


def repeated(count, values):
    try:
        count *= values
    except TypeError as error:
        return str(error)
    return count


@case((T3, Count(3)), (T3, 2), (T3, Count(2)))
def repeats_in_place(x, count):
    return x + 1, repeated(count, [1, 2]), repeated([1], count), repeated("ab", count), count * [1], repeated(2, (1,))


class WithoutIt:
    pass


class Derived(WithoutIt):
    def lacking(self):
        return super().lacking()

    @classmethod
    def lacking_class(cls):
        return super().lacking_class


@setup()
def attribute_that_no_base_has():
    derived = Derived()

    def function(x):
        found = []
        for lacks in (derived.lacking, Derived.lacking_class):
            try:
                lacks()
            except AttributeError as error:
                found += [error.name, type(error.obj) is super, error.obj.__class__ is type(derived), str(error)]
        return x + 1, found

    return function, [(T3,), (T3,)]


class NamedOrder(collections.OrderedDict):
    pass


@setup()
def views_of_ordered_dictionaries():
    tables = [collections.OrderedDict(a=1, b=2), NamedOrder(c=3), {"d": 4}, collections.defaultdict(int, e=5)]

    def function(x, table):
        views = [table.keys(), table.values(), table.items()]
        kinds = [type(view).__name__ for view in views]
        print("a break")
        return x + 1, kinds, views, [isinstance(views[0], type(other.keys())) for other in tables]

    return function, [(T3, table) for table in tables]


class OddSet(set):
    def __iter__(self):
        return iter([5])


class OddFrozenset(frozenset):
    def __iter__(self):
        return iter([5])


def changed(method, operand):
    members = {1, 5, 7}
    getattr(members, method)(operand)
    return members


@case((t(3), OddSet([1, 2])), (t(3), OddFrozenset([1, 2])))
def sets_take_other_sets_past_their_iterators(x, odd):
    made = OddSet([1, 2])
    found = []
    for other in (odd, made):
        found += [{*other}, set(other), frozenset(other), {1}.union(other), {1}.difference(other)]
        found += [{1, 5}.intersection(other), {1}.symmetric_difference(other)]
        found += [{1, 5}.issuperset(other), {1, 5}.issubset(other), {5}.isdisjoint(other)]
        updates = ("update", "difference_update", "intersection_update", "symmetric_difference_update")
        found += [changed(update, other) for update in updates]
        found.append(list(set.__iter__(OddSet(other))))
        found += [list(other), {1} | set(other), sorted(other)]
    return x * 2, found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_collections(name, backend):
    check(__file__, name, backend)
