"""Containers change in place, and in their order."""

import array
import collections
import inspect
import json
import types

import numpy as np
import pytest

from case_registry import case, cases
from changes.programs import agrees


@case
def dict_order():
    d = {"a": 1, "b": 2}

    def f(x):
        for k, v in d.items():
            x = x * v + 1
        return x

    def re():
        v = d.pop("a")
        d["a"] = v

    return f, [re, lambda: d.update(c=5), lambda: d.pop("b")]


@case
def dict_first_key():
    d = {"a": 1, "b": 2}

    def f(x):
        return x * d[next(iter(d))]

    return f, [lambda: d.pop("a"), lambda: d.clear()]


@case
def set_contents():
    s = {1, 2}
    return (lambda x: x * sum(s)), [lambda: s.add(5), lambda: s.remove(1), lambda: s.clear()]


@case
def set_membership():
    s = {"a"}
    return (lambda x: x * 2 if "b" in s else x), [lambda: s.add("b"), lambda: s.discard("b")]


@case
def frozenset_attr():
    ns = types.SimpleNamespace(s=frozenset({1}))
    return (lambda x: x * len(ns.s)), [lambda: setattr(ns, "s", frozenset({1, 2})), lambda: setattr(ns, "s", {1, 2, 3})]


@case
def chainmap():
    a, b = {"k": 1}, {"k": 2, "m": 3}
    c = collections.ChainMap(a, b)
    return (lambda x: x * c["k"] + c.get("m", 0)), [
        lambda: a.update(m=7),
        lambda: a.pop("k"),
        lambda: c.maps.insert(0, {"k": 50}),
        lambda: b.clear(),
    ]


@case
def deque_():
    d = collections.deque([1, 2], maxlen=3)
    return (lambda x: x * d[0] + len(d)), [lambda: d.append(5), lambda: d.append(6), lambda: d.rotate(1), lambda: d.clear()]


@case
def memview():
    b = bytearray(b"\x02\x03")
    m = memoryview(b)
    return (lambda x: x * m[0]), [lambda: b.__setitem__(0, 7)]


@case
def called_memview():
    m = memoryview(bytearray(b"\x02\x03"))

    def f(x):
        y = x + 1
        try:
            m()
        except TypeError as error:
            return y * 2, str(error)

    return f, []


@case
def bytearray_():
    b = bytearray(b"\x02\x03")
    return (lambda x: x * b[0] + len(b)), [lambda: b.__setitem__(0, 7), lambda: b.append(3)]


@case
def array_():
    b = array.array("d", [2.0, 3.0])
    return (lambda x: x * b[0] + len(b)), [lambda: b.__setitem__(0, 7), lambda: b.append(3)]


@case
def range_attr():
    ns = types.SimpleNamespace(r=range(3))
    return (lambda x: x * len(ns.r) + sum(ns.r)), [
        lambda: setattr(ns, "r", range(5)),
        lambda: setattr(ns, "r", range(0, 9, 3)),
    ]


@case
def slice_attr():
    ns = types.SimpleNamespace(r=slice(0, 1))
    return (lambda x: x[ns.r]), [
        lambda: setattr(ns, "r", slice(1, 2)),
        lambda: setattr(ns, "r", slice(None)),
        lambda: setattr(ns, "r", 0),
    ]


@case
def userdict():
    d = collections.UserDict(a=1)
    return (lambda x: x * d["a"] + len(d) + d.get("b", 0)), [lambda: d.update(b=4), lambda: d.data.update(a=7)]


@case
def userlist():
    d = collections.UserList([1])
    return (lambda x: x * d[0] + len(d)), [lambda: d.append(4), lambda: d.data.__setitem__(0, 7)]


@case
def mappingproxy():
    d = {"a": 1}
    p = types.MappingProxyType(d)
    return (lambda x: x * p["a"] + len(p) + p.get("b", 0) + ("c" in p)), [
        lambda: d.update(b=4),
        lambda: d.update(a=7),
        lambda: d.update(c=7),
    ]


@case
def proxy_changes():
    d = {"a": 1}
    p = types.MappingProxyType(d)
    return (lambda x: (x * p["a"] + len(p), list(p), list(p.items()), dict(p), {**p}, "b" in p, p.get("b"), p)), [
        lambda: d.update(b=3),
        lambda: d.pop("a"),
        lambda: d.update(a=2),
    ]


@case
def proxy_of_an_ordered_dictionary():
    d = collections.OrderedDict(a=1, b=2)
    p = types.MappingProxyType(d)
    return (lambda x: (x * p["a"] + len(p), list(p), list(p.items()), "c" in p, p.get("c"), list(reversed(p)))), [
        lambda: d.update(c=3),
        lambda: d.move_to_end("a"),
        lambda: d.pop("b"),
        lambda: d.update(a=2),
    ]


@case
def signature():
    held = [inspect.signature(lambda a, b=2: 0)]

    def f(x):
        bound = held[0].bind(1)
        bound.apply_defaults()
        parameters = held[0].parameters
        return x * sum(bound.args), list(parameters), [p.default for p in parameters.values() if p.default == 3]

    return f, [
        lambda: held.__setitem__(0, inspect.signature(lambda a, c=3: 0)),
        lambda: held.__setitem__(0, inspect.signature(lambda z: 0)),
    ]


@case
def dict_views():
    d = {"a": 1}
    v, k, i = d.values(), d.keys(), d.items()
    return (lambda x: x * sum(v) + len(k) + len(i) + ("b" in k)), [lambda: d.update(b=4), lambda: d.update(a=7)]


@case
def counter():
    d = collections.Counter("aab")
    return (lambda x: x * d["a"] + d["z"] + sum(n for _, n in d.most_common(1))), [
        lambda: d.update("aaa"),
        lambda: d.update("zzzzzzz"),
        lambda: d.__delitem__("a"),
    ]


@case
def defaultdict_():
    d = collections.defaultdict(lambda: 3, a=1)
    return (lambda x: x * d["a"] + d.get("b", 0)), [
        lambda: d["b"],
        lambda: setattr(d, "default_factory", lambda: 5),
        lambda: d.pop("a"),
    ]


@case
def defaultdict_missing():
    d = collections.defaultdict(lambda: 3, a=1)
    return (lambda x: x * d["q"]), [lambda: d.pop("q"), lambda: setattr(d, "default_factory", lambda: 5), lambda: d.pop("q")]


@case
def ordereddict_move():
    d = collections.OrderedDict(a=1, b=2)

    def f(x):
        for v in d.values():
            x = x * v + 1
        return x

    return f, [lambda: d.move_to_end("a"), lambda: d.popitem(last=False)]


@case
def max_key():
    d = {"a": 1, "b": 2}
    return (lambda x: x * ord(max(d, key=d.get))), [lambda: d.update(a=5)]


@case
def list_alias_identity():
    a = [1]
    ns = types.SimpleNamespace(a=a, b=a)

    def f(x):
        ns.a.append(1)
        return x * len(ns.b)

    return f, [lambda: setattr(ns, "b", []), lambda: setattr(ns, "b", ns.a)]


@case
def lists_nested():
    l = [[1, [2]], {"a": [3]}]
    return (lambda x: x * l[0][1][0] + l[1]["a"][-1]), [
        lambda: l[0][1].__setitem__(0, 9),
        lambda: l[1]["a"].append(7),
        lambda: l.reverse(),
    ]


@case
def unhashable_set_elem():
    s = {(1, 2), "a"}
    return (lambda x: x * len(s) + ((1, 2) in s)), [lambda: s.discard((1, 2)), lambda: s.add(frozenset([1]))]


@case
def set_of_objects():
    class O:
        pass

    a, b = O(), O()
    s = {a}
    return (lambda x: x * 2 if b in s else x), [lambda: s.add(b), lambda: s.clear()]


@case
def dict_of_objects():
    class O:
        k = 2

    a, b = O(), O()
    d = {a: 1}

    def f(x):
        for o, v in d.items():
            x = x * v + o.k
        return x

    return f, [lambda: d.update({b: 5}), lambda: setattr(b, "k", 9), lambda: d.pop(a)]


@case
def walrus_loop_queue():
    q = collections.deque([1, 2, 3, 4])

    def f(x):
        while q and (k := q.popleft()) < 3:
            x = x * k
        return x

    return f, [lambda: q.extend([1, 1, 9])]


@case
def id_hash():
    a = object()
    d = {id(a): 3}
    return (lambda x: x * d.get(id(a), 1)), [lambda: d.clear()]


@case
def json_const():
    ns = types.SimpleNamespace(s='{"k": 2}')
    return (lambda x: x * json.loads(ns.s)["k"]), [lambda: setattr(ns, "s", '{"k": 5}')]


@case
def np_list_of_scalars():
    l = list(np.arange(3))

    def f(x):
        for k in l:
            x = x + k
        return x, x[l[0] % 2]

    return f, [lambda: l.__setitem__(0, np.int64(5))]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
