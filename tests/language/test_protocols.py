"""Special methods: operators, containers, iteration, attribute access, descriptors, calls, conversion."""

import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t


class Vector:
    """Wraps a tensor; has every arithmetic operator."""

    def __init__(self, data, trace=None):
        self.data = data
        self.trace = trace if trace is not None else []

    def _make(self, data, name):
        self.trace.append(name)
        return Vector(data, self.trace)

    @staticmethod
    def _value(other):
        return other.data if isinstance(other, Vector) else other

    def __add__(self, other):
        if isinstance(other, str):
            return NotImplemented
        return self._make(self.data + self._value(other), "add")

    def __radd__(self, other):
        return self._make(other + self.data, "radd")

    def __iadd__(self, other):
        self.data = self.data + self._value(other)
        self.trace.append("iadd")
        return self

    def __sub__(self, other):
        return self._make(self.data - self._value(other), "sub")

    def __rsub__(self, other):
        return self._make(other - self.data, "rsub")

    def __mul__(self, other):
        return self._make(self.data * self._value(other), "mul")

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self._make(self.data / self._value(other), "truediv")

    def __rtruediv__(self, other):
        return self._make(other / self.data, "rtruediv")

    def __pow__(self, n):
        return self._make(self.data**n, "pow")

    def __matmul__(self, other):
        return self._make(self.data @ self._value(other), "matmul")

    def __neg__(self):
        return self._make(-self.data, "neg")

    def __invert__(self):
        return self._make(self.data.flip(0), "invert")

    def __abs__(self):
        return self._make(abs(self.data), "abs")

    def __divmod__(self, n):
        return self // n, self % n

    def __floordiv__(self, n):
        return self._make(self.data // n, "floordiv")

    def __mod__(self, n):
        return self._make(self.data % n, "mod")

    def __lshift__(self, n):
        return self._make(self.data.roll(-n), "lshift")

    def __and__(self, other):
        return self._make(torch.minimum(self.data, self._value(other)), "and")


class Interval:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __eq__(self, other):
        return isinstance(other, Interval) and (self.low, self.high) == (other.low, other.high)

    def __lt__(self, other):
        return self.high < other.low

    def __le__(self, other):
        return self.high <= other.low

    def __contains__(self, value):
        return self.low <= value <= self.high

    def __bool__(self):
        return self.low < self.high

    def __len__(self):
        return self.high - self.low

    def __hash__(self):
        return hash((self.low, self.high))

    def __int__(self):
        return self.low

    def __float__(self):
        return float(self.high)

    def __str__(self):
        return f"[{self.low}, {self.high}]"


class Table:
    def __init__(self, values):
        self.values = dict(values)
        self.log = []

    def __getitem__(self, key):
        self.log.append(("get", str(key)))
        return self.values[key]

    def __setitem__(self, key, value):
        self.log.append(("set", str(key)))
        self.values[key] = value

    def __delitem__(self, key):
        del self.values[key]

    def __contains__(self, key):
        return key in self.values

    def __iter__(self):
        return iter(self.values)

    def __len__(self):
        return len(self.values)


class Counter3:
    """An iterator that is its own iterable."""

    def __init__(self, x, n):
        self.x, self.n, self.k = x, n, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.k >= self.n:
            raise StopIteration
        self.k += 1
        return self.x * self.k


class Lazy:
    """Attributes that are found by `__getattr__`."""

    def __init__(self, **known):
        self.known = known
        self.asked = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.asked.append(name)
        try:
            return self.known[name]
        except KeyError:
            raise AttributeError(f"no {name} here") from None


class Watched:
    """Sees every access."""

    def __init__(self, x):
        object.__setattr__(self, "log", [])
        self.x = x

    def __getattribute__(self, name):
        if name not in ("log", "__class__"):
            object.__getattribute__(self, "log").append(f"get {name}")
        return object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        self.log.append(f"set {name}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append(f"del {name}")
        object.__delattr__(self, name)


class Typed:
    """A data descriptor."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name) * 2

    def __set__(self, instance, value):
        if value is None:
            raise TypeError("None is not allowed")
        setattr(instance, self.name, value)

    def __delete__(self, instance):
        delattr(instance, self.name)


class Cached:
    """A non-data descriptor, which the instance hides after the first use."""

    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner=None):
        value = instance.__dict__[self.function.__name__] = self.function(instance)
        return value


class Described:
    weight = Typed()

    def __init__(self, weight):
        self.weight = weight
        self.computed = 0

    @Cached
    def expensive(self):
        self.computed += 1
        return self.weight.exp() + self.computed


@case((t(3), 2.0), (t(3), 3))
def arithmetic(x, n):
    a, b = Vector(x), Vector(x + 1)
    c = (a + b) * n - b / 2
    d = abs(-c) ** 2
    return d.data, c.trace, (a @ b).data, (~a).data, (a << 1).data, (a & b).data, [v.data for v in divmod(a, 2.0)]


@case((t(3), 2.0), (t(3), 3))
def reflected_operators(x, n):
    a = Vector(x)
    return (n + a).data, (n - a).data, (n * a).data, (n / a).data, a.trace, (torch.ones(3) * n).add(a.data)


@case((t(3), 2.0), (t(3), 3))
def in_place_operators(x, n):
    a = Vector(x)
    alias = a
    a += n
    a *= n
    holder = [Vector(x)]
    holder[0] += 1
    return a.data, alias.data, alias is a, a.trace, holder[0].data


@case((t(3), 1), (t(3), "text"))
def operators_that_do_not_apply(x, other):
    try:
        y = Vector(x + 1) + other
    except TypeError as error:
        return x * 2, str(error)
    try:
        y < other
    except TypeError as error:
        return y.data * 3, str(error)


@case((t(3), 1, 5), (t(3), 4, 4), (t(3), 6, 9))
def comparison_truth_and_containment(x, low, high):
    here, there = Interval(low, high), Interval(5, 7)
    if here:
        x = x + len(here)
    if 4 in here:
        x = x * 2
    if here < there or here == there:
        x = x - 1
    return x.sin(), here != there, not here, here <= there, {here: 1}.get(Interval(low, high)), here in [there, here]


@case((t(3), 2, 6), (t(3), 3, 4))
def conversion(x, low, high):
    interval = Interval(low, high)
    return x * int(interval) + float(interval), str(interval), f"{interval!s:>8}", bool(interval), len(interval) * x


@case((t(3), "a"), (t(3), "c"))
def items(x, key):
    table = Table({"a": x + 1, "b": x * 2})
    table["c"] = table["a"] - table["b"]
    table[key] += 1
    del table["b"]
    return [table[k] for k in table], len(table), "b" in table, table.log, list(table)


@case((t(4, 4),), (t(5, 5),), steady="never")
def slices_reach_getitem(x):
    class Echo:
        def __getitem__(self, key):
            return key

    echo = Echo()
    a, b = echo[1:3, ::2], echo[..., None, -1]
    return x[a] + 1, x[b] * 2, a, b, echo[x.shape[0]], echo[[1, 2]], echo["k", 1]


@case((t(3), 3), (t(3), 0))
def iterators(x, n):
    counter = Counter3(x, n)
    first = next(counter, None)
    rest = [v + 1 for v in counter]
    total = sum(Counter3(x, 4))
    return first, rest, total, counter.k, list(Counter3(x, 2)), max((v.shape[0] for v in Counter3(x, 2)), default=0)


@case((t(3),), (t(3, seed=1),), steady="never")
def iteration_by_getitem(x):
    class Old:
        def __getitem__(self, k):
            if k > 2:
                raise IndexError(k)
            return x * k

    return [v + 1 for v in Old()], sum(Old()), list(zip(Old(), "ab")), 3 in [1, 2], [*Old()][1]


@case((t(3), "scale"), (t(3), "weight"), (t(3), "missing"))
def getattr_hook(x, name):
    lazy = Lazy(scale=x + 1, weight=2.0)
    try:
        y = x * getattr(lazy, name)
    except AttributeError as error:
        return x - 1, str(error), lazy.asked
    return y + lazy.scale, lazy.asked, hasattr(lazy, "nothing"), getattr(lazy, "nothing", 5), lazy.asked


@case((t(3),), (t(3, seed=1),))
def getattribute_hook(x):
    watched = Watched(x + 1)
    watched.y = watched.x * 2
    del watched.x
    try:
        watched.x
    except AttributeError as error:
        return watched.y - 1, watched.log, str(error)


@case((t(3),), (t(3, seed=1),))
def data_descriptor(x):
    item = Described(x + 1)
    y = item.weight - 1
    item.weight = y
    try:
        item.weight = None
    except TypeError as error:
        text = str(error)
    z = item.weight
    del item.weight
    return z, text, hasattr(item, "weight"), type(Described.weight).__name__, vars(item)


@case((t(3),), (t(3, seed=1),))
def non_data_descriptor_caches(x):
    item = Described(x)
    a, b = item.expensive, item.expensive
    return a * 2, a is b, item.computed, sorted(vars(item))


@setup(steady="later")
def descriptor_on_an_outside_object():
    item = Described(t(3))

    def run(x):
        item.weight = x
        return item.weight + item.expensive, item.computed

    return run, [(t(3),), (t(3, seed=1),)]


@case((t(3), 2), (t(3), 3), steady="never")
def callable_objects(x, n):
    class Repeat:
        def __init__(self, f, times):
            self.f, self.times = f, times

        def __call__(self, v, *args, **kwargs):
            for _ in range(self.times):
                v = self.f(v, *args, **kwargs)
            return v

    twice = Repeat(torch.add, n)
    nested = Repeat(Repeat(lambda v: v.sin() + 1, 2), n)
    return twice(x, 1, alpha=0.5), nested(x), callable(twice), list(map(Repeat(torch.neg, 1), [x, x + 1]))


@case((t(3),), (t(3, seed=1),), steady="never")
def length_makes_truth(x):
    class Bag:
        def __init__(self, *values):
            self.values = values

        def __len__(self):
            return len(self.values)

    empty, full = Bag(), Bag(1, 2)
    y = x + 1 if full else x - 1
    z = y * 2 if empty else y * 3
    return z, bool(empty), not full, empty or "fallback", full and "taken"


@case((t(3),), (t(3, seed=1),), steady="never")
def equality_of_objects_with_tensors(x):
    class Same:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return self.value.shape == other.value.shape

        def __ne__(self, other):
            return "custom"

    a, b = Same(x), Same(x + 1)
    return a == b, a != b, a in [b], [a].index(b), a.value * b.value


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3, seed=3)))
def torch_function_protocol(x, y):
    class Tagged:
        def __init__(self, value, tags=()):
            self.value, self.tags = value, tags

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            values = [a.value if isinstance(a, Tagged) else a for a in args]
            return cls(func(*values, **(kwargs or {})), (*args[0].tags, func.__name__))

    out = torch.mul(torch.add(Tagged(x), y), Tagged(y))
    return out.value, out.tags, torch.sum(out).value


@case((t(3),), (t(3, seed=1),))
def hash_and_sets_of_objects(x):
    items = {Interval(1, 2), Interval(1, 2), Interval(3, 4)}
    table = {Interval(1, 2): x + 1}
    table[Interval(1, 2)] = table[Interval(1, 2)] * 2
    return len(items), table[Interval(1, 2)], Interval(3, 4) in items


@case((t(3), 5), (t(3), 2), steady="never")
def format_index_and_reversed(x, n):
    class Number:
        def __init__(self, n):
            self.n = n

        def __index__(self):
            return self.n

        def __format__(self, spec):
            return spec + str(self.n)

        def __reversed__(self):
            yield from range(self.n, 0, -1)

    number = Number(n)
    return x + sum(reversed(number)), f"{number:>>}", list(range(10))[number], hex(number), x.expand(number, 3).sum(0)


class Rewound(Counter3):
    """A loader that begins anew where a loop does."""

    def __iter__(self):
        self.k = 0
        return self

    def __length_hint__(self):
        self.hints = getattr(self, "hints", 0) + 1
        return self.n


@case((t(3), 2), (t(3), 1), (t(3), 0), graphs=1)
def the_rest_of_an_iterator_that_begins_anew(x, n):
    loader = Rewound(x, n)
    try:
        first, *rest = loader
    except ValueError as error:
        return x, str(error)
    *all_but_last, last = Counter3(x, n + 1)
    head, *middle, tail = (row * n for row in x)
    return first, rest, all_but_last, last, middle, tail, loader.k, loader.hints, list(loader)


class Scaled:
    def __init__(self, value, scale):
        self.value = value
        self.scale = scale

    def __rmul__(self, factor):
        return Scaled(self.value * factor, self.scale)

    def __eq__(self, other):
        return isinstance(other, Scaled) and self.scale == other.scale

    def __ne__(self, other):
        return super().__ne__(other)


@case((t(3), 2), (t(3), 3), graphs=1)
def number_times_an_object(x, n):
    try:
        return (2 * Scaled(x, 1)).value + (n * Scaled(x, 1)).value
    except TypeError:
        return x


@case((t(3), 1), (t(3), 2), graphs=1)
def unequal_is_not_equal(x, scale):
    return x + 1 if Scaled(x, scale) != Scaled(x, 1) else x - 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_protocols(name, backend):
    check(__file__, name, backend)
