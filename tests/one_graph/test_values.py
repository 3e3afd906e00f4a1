"""Containers, iterators, numbers and texts."""

import bisect
import collections
import functools
import itertools
import math
import operator
import re
import statistics
import types

import numpy
import pytest
import torch

import quickfuse
from case_registry import case, cases
from one_graph.programs import agrees, x_and
from whole_programs import difference

PAT = re.compile(r"layer\.(\d+)\.(?P<n>\w+)")


@case
def counter_():
    def f(x):
        c = collections.Counter([1, 1, 2])
        c.update([2, 2])
        c[5] += 1
        return (
            x * c[1]
            + c.most_common(1)[0][0]
            + sum(c.values())
            + c[99]
            + len(list(c.elements()))
            + (c - collections.Counter([1]))[1]
            + c.total()
        )

    return (f,)


@case
def defaultdict_():
    def f(x):
        d = collections.defaultdict(list)
        d["a"].append(x)
        d["a"].append(x + 1)
        e = collections.defaultdict(int)
        e["q"] += 2
        g = collections.defaultdict(lambda: 5)
        return sum(d["a"]) + e["q"] + g[0] + len(d)

    return (f,)


@case
def ordereddict_():
    def f(x):
        d = collections.OrderedDict()
        d["b"] = x
        d["a"] = x + 1
        d.move_to_end("b")
        k, v = d.popitem(last=False)
        return v * len(d) + next(iter(d.values())), list(d), next(reversed(d))

    return (f,)


@case
def chainmap_():
    base = {"a": 1, "b": 2}

    def f(x):
        c = collections.ChainMap({"a": 5}, base)
        d = c.new_child({"z": 1})
        d["q"] = 7
        return x * c["a"] + c["b"] + d["z"] + len(d) + c.get("nope", 3) + ("b" in c) + sum(dict(c).values())

    return (f,)


@case
def deque_():
    def f(x):
        d = collections.deque([1, 2, 3], maxlen=3)
        d.append(4)
        d.appendleft(0)
        d.rotate(1)
        d.extend([8])
        q = d.pop()
        p = d.popleft()
        return x * q + p + len(d) + sum(d)

    return (f,)


@case
def itertools_all():
    def f(x):
        s = 0
        for a, b in itertools.product([1, 2], [3]):
            s += a * b
        for a in itertools.chain([1], (2,), range(2)):
            s += a
        for a in itertools.chain.from_iterable([[1], [2]]):
            s += a
        for a in itertools.islice(itertools.count(1), 3):
            s += a
        for a in itertools.islice(itertools.cycle([1, 2]), 3):
            s += a
        for a, b in itertools.zip_longest([1], [2, 3], fillvalue=0):
            s += a + b
        for a, b in itertools.pairwise([1, 2, 4]):
            s += a * b
        for a in itertools.combinations(range(3), 2):
            s += sum(a)
        for a in itertools.permutations(range(3), 2):
            s += a[0]
        for a in itertools.accumulate([1, 2, 3]):
            s += a
        for a in itertools.accumulate([1, 2, 3], operator.mul, initial=1):
            s += a
        for k, g in itertools.groupby([1, 1, 2]):
            s += k * len(list(g))
        for a in itertools.starmap(pow, [(2, 3)]):
            s += a
        for a in itertools.takewhile(lambda k: k < 2, [1, 2]):
            s += a
        for a in itertools.dropwhile(lambda k: k < 2, [1, 2]):
            s += a
        for a in itertools.filterfalse(lambda k: k < 2, [1, 2]):
            s += a
        for a in itertools.compress([1, 2], [0, 1]):
            s += a
        for a in itertools.repeat(2, 3):
            s += a
        p, q = itertools.tee([1, 2])
        s += sum(p) + sum(q)
        for a in itertools.batched([1, 2, 3], 2):
            s += len(a)
        return x * s

    return (f,)


@case
def itertools_tensors():
    def f(x):
        l = list(itertools.accumulate([x, x, x], lambda a, b: a + b))
        return (
            sum(itertools.chain(l, [x])),
            functools.reduce(operator.add, l),
            [a * b for a, b in itertools.product(l, l)][0],
        )

    return (f,)


@case
def string_formatting():
    def f(x, k):
        s = f"{k:>5}|{k!r}|{k:03d}|{'a':^3}|{x.dtype}" + "%d-%s" % (k, "z") + "{0}{a}".format(k, a=2)
        return x * len(s), s

    return f, x_and(3), x_and(42)


@case
def string_shape():
    return ((lambda x: (x * 2, f"{x.shape} {tuple(x.shape)} {x.device} {list(x.size())}", str(x.shape), repr(x.dtype))),)


@case
def string_methods():
    def f(x, s):
        a = s.split(".")
        b = ".".join(a[::-1])
        c = s.replace("w", "q").upper().startswith("LAYER")
        d = s.partition(".")
        e = s.rsplit(".", 1)[0]
        g = s.find("1")
        h = s.isdigit()
        i = s.strip("l").title().zfill(20)
        j = s.encode().decode()
        k = s.removeprefix("layer.").removesuffix(".w")
        l = s.casefold() in ("a", s)
        m = s.translate(str.maketrans({"a": "b"}))
        return x * (len(b) + c + len(d) + g + h + len(i) + int(k) + l), b, e, j, m

    return f, x_and("layer.12.w"), x_and("layer.3.w")


@case
def re_():
    def f(x, s):
        m = PAT.match(s)
        if m is None:
            return x
        k = int(m.group(1)) + len(m.group("n")) + len(m.groups()) + m.start() + len(m.groupdict())
        return (
            x * k
            + len(re.sub(r"\d", "#", s))
            + len(re.findall(r"[a-z]+", s))
            + (re.search("q", s) is None)
            + len(re.split(r"\.", s))
            + (re.fullmatch(".*", s) is not None)
            + len(m[0])
            + m.span()[1]
        )

    return f, x_and("layer.12.w"), x_and("layer.3.ww"), x_and("z")


@case
def math_all():
    def f(x, k):
        s = (
            math.sqrt(k)
            + math.log(k)
            + math.ceil(k / 2)
            + math.prod([k, 2])
            + math.gcd(12, 18)
            + math.isqrt(17)
            + math.pow(k, 2)
            + math.log2(8)
            + math.fabs(-k)
            + math.hypot(3, 4)
            + math.isclose(1, 1)
            + math.copysign(1, -2)
            + math.trunc(2.5)
            + math.comb(4, 2)
            + math.factorial(4)
            + math.fsum([0.1] * 3)
            + math.tanh(k)
            + math.erf(0.5)
            + math.atan2(1, 2)
            + math.degrees(1)
            + math.fmod(5, 3)
            + math.modf(2.5)[0]
            + math.frexp(8)[1]
            + math.ldexp(1, 2)
            + math.lcm(4, 6)
            + math.isnan(k)
            + math.isinf(k)
            + math.isfinite(k)
        )
        return x * s

    return f, x_and(3), x_and(7), x_and(2.5)


@case
def dict_ops():
    def f(x):
        d = {"a": 1} | {"b": 2}
        d |= {"c": x}
        d.setdefault("d", 4)
        e = d.pop("a")
        k = {**d, "z": 3}
        return (
            x * e
            + len(k)
            + d["d"]
            + sum(1 for _ in d.items())
            + ("b" in d.keys())
            + len(d.keys() & {"b"})
            + len(d.keys() - {"b"})
            + k.get("zz", 1),
            list(d),
            sorted(d),
            dict(zip("ab", [1, 2])),
            dict.fromkeys("ab", 3),
            {v: k for k, v in [("a", 1)]},
        )

    return (f,)


@case
def set_ops():
    def f(x):
        s = {1, 2} | {3}
        s.add(4)
        s.discard(1)
        s -= {2}
        return x * len(s & {3, 4}) + sum(sorted(s ^ {9})) + ({3} <= s) + s.issuperset({3}) + len(frozenset([1, 1])), sorted(
            s
        )

    return (f,)


@case
def nested_sequences():
    """As versions of libraries are compared."""
    wanted, here = (0, (2, 1), (3, 0)), [(0, (2, 1), (2, 9)), (0, (2, 1), (3, 0)), (1, (2,), [3])]

    def f(x):
        asked = [(k < wanted, k == wanted, k >= (0, (2, 1), (3, 0)), k != wanted) for k in here]
        return x * sum(map(sum, asked)), asked, wanted in here, here.index(wanted), here.count((0, (2, 1), (3, 0)))

    return (f,)


@case
def mappingproxy_():
    p = types.MappingProxyType({"a": 2})
    return ((lambda x: x * p["a"] + len(p) + p.get("z", 1) + ("a" in p) + sum(p.values())),)


@case
def userdict_():
    d = collections.UserDict(a=2)

    def f(x):
        e = collections.UserDict(b=x)
        e["c"] = 3
        return x * d["a"] + len(d) + e["b"] + e["c"] + ("zz" in d) + d.get("q", 1)

    return (f,)


@case
def sum_of_tensors_reduce():
    return (
        (
            lambda x: (
                functools.reduce(torch.maximum, [x, x + 1, x - 1]) + sum([x, x]) + torch.stack([*map(torch.sin, [x])])[0]
            )
        ),
    )


@case
def numpy_scalars_as_numbers():
    def f(x, n):
        return x * n.item(), type(n.item()).__name__, n.item() + 1, str(n.item())

    numbers = numpy.float32(2.5), numpy.float64(1.5), numpy.float16(0.1), numpy.int64(3), numpy.int8(-7), numpy.bool_(True)
    return f, *[x_and(n) for n in numbers]


@case
def sorted_lists():
    def f(x):
        kept = [1, 3]
        bisect.insort(kept, 2)
        bisect.insort_left(kept, x.shape[0])
        return x * kept[1], kept

    return (f,)


@case
def statistics_of_numbers():
    losses = [0.5, 2.0, 1.25]

    def f(x):
        try:
            failed = statistics.stdev(x.shape[:1])
        except statistics.StatisticsError as error:
            failed = str(error)
        means = statistics.mean(losses), statistics.mean(x.shape), statistics.fmean(v * 2 for v in losses)
        spread = statistics.stdev(losses), statistics.pvariance(losses, mu=means[0]), statistics.quantiles(losses, n=3)
        spread[2].append(statistics.median({"a": 1, "b": 4}.values()))
        return x * means[0] + spread[0], means, spread, statistics.mode("hello"), statistics.multimode([1, 1, 2, 2]), failed

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)


class Lengths(torch.nn.Module):
    """What a chain of convolutions makes of a length, as models of speech compute it."""

    def __init__(self, layers=24):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Conv1d(1, 1, 3, padding=1) for _ in range(layers))
        self.rate = 2

    def forward(self, x):
        length = x.shape[0]
        for layer in self.layers:
            taken = layer.dilation[0] * (layer.kernel_size[0] - 1)
            length = int((length + 2 * layer.padding[0] - taken - 1) / layer.stride[0] + 1)
        for _ in range(40):
            length = (length * self.rate + 1) % 1009
        return x * length


def test_a_long_calculation_of_settings():
    model = Lengths()
    compiled = quickfuse.compile(model.forward)
    x = torch.ones(7)
    for rate in (2, 2, 3, 4, 5, 6, 7, 8):
        model.rate = rate
        torch.testing.assert_close(compiled(x), model(x))
        if rate == 2:
            assert compiled.graph_count == 1 and not compiled.breaks
    model.layers[3].padding = (2,)
    torch.testing.assert_close(compiled(x), model(x))


def test_a_long_calculation_of_arguments():
    def calculated(x, n):
        for _ in range(80):
            n = (n * 3 + 1) % 1009
        return x * n

    compiled = quickfuse.compile(calculated)
    for n in range(6):
        torch.testing.assert_close(compiled(torch.ones(3), n), calculated(torch.ones(3), n))
    assert compiled.graph_count <= 2


class Packed(collections.namedtuple("Packed", ("data", "sizes"))):
    """As `torch.nn.utils.rnn.PackedSequence`: of a class with a `__dict__`."""

    def __new__(cls, data, sizes=None):
        return super().__new__(cls, data, sizes)

    @property
    def total(self):
        return self.data.sum()


def test_fields_of_a_derived_named_tuple():
    def read(packed, x):
        made = Packed(x, packed.sizes)
        return packed.data * 2 + packed.total + packed[0], made.data + made.total, made, packed.sizes

    compiled = quickfuse.compile(read, fullgraph=True)
    for sizes in (None, 3, 4):
        packed, x = Packed(torch.ones(2), sizes), torch.zeros(2)
        assert difference(read(packed, x), compiled(packed, x)) is None
