"""What belongs to functions changes: cells, defaults, code, caches; iterators from outside are used up."""

import functools
import inspect
import itertools
import operator
import types

import pytest
import torch

from case_registry import case, cases, x0
from changes.programs import agrees


@case
def closure_cell():
    k = 2

    def f(x):
        return x * k

    def ch(v):
        nonlocal k
        k = v

    def de():
        nonlocal k
        del k

    return f, [lambda: ch(3), lambda: ch("a"), de, lambda: ch(4)]


@case
def inner_closure_cell():
    def make(k):
        def g(x):
            return x * k

        return g

    g = make(2)

    def f(x):
        return g(x)

    return f, [
        lambda: setattr(g.__closure__[0], "cell_contents", 5),
        lambda: setattr(g.__closure__[0], "cell_contents", torch.ones(1)),
    ]


@case
def defaults_mutated_list():
    def g(x, l=[2]):
        return x * l[0]

    def f(x):
        return g(x)

    return f, [
        lambda: g.__defaults__[0].__setitem__(0, 3),
        lambda: setattr(g, "__defaults__", ([9],)),
        lambda: setattr(g, "__defaults__", None),
    ]


@case
def kwdefaults():
    def g(x, *, l=2):
        return x * l

    def f(x):
        return g(x)

    return f, [
        lambda: g.__kwdefaults__.__setitem__("l", 3),
        lambda: setattr(g, "__kwdefaults__", {"l": 4}),
        lambda: setattr(g, "__kwdefaults__", None),
    ]


@case
def own_defaults():
    def f(x, k=2, *, power=2):
        return x**power * k

    return f, [
        lambda: f.__kwdefaults__.update(power=1),
        lambda: setattr(f, "__kwdefaults__", {"power": 3}),
        lambda: setattr(f, "__defaults__", (5,)),
        lambda: setattr(f, "__defaults__", None),
        lambda: setattr(f, "__defaults__", (4,)),
        lambda: setattr(f, "__kwdefaults__", None),
    ]


@case
def own_code_with_another_signature():
    def f(x):
        return x * 2

    def loaded_again(x, k, *, power=2):
        return x**power * k

    arguments = [()]

    def change():
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            setattr(f, name, getattr(loaded_again, name))

    return f, [change, lambda: arguments.__setitem__(0, (3,)), lambda: setattr(f, "__defaults__", (2,))], (
        lambda: (x0(), *arguments[0])
    )


@case
def code_replaced():
    def g(x):
        return x * 2

    def h(x):
        return x * 3

    def f(x):
        return g(x)

    return f, [lambda: setattr(g, "__code__", h.__code__)]


@case
def partial_state():
    def g(x, k, m=1):
        return x * k + m

    p = functools.partial(g, k=2)

    def f(x):
        return p(x)

    return f, [lambda: p.keywords.__setitem__("m", 5), lambda: p.__setstate__((g, (), {"k": 7}, {}))]


@case
def partial_attr():
    p = functools.partial(int, 3)
    p.extra = 2
    return (lambda x: x * p.extra * p()), [lambda: setattr(p, "extra", 5), lambda: delattr(p, "extra")]


@case
def func_attr():
    def g(x):
        return x * g.k

    g.k = 2
    return g, [lambda: setattr(g, "k", 5), lambda: delattr(g, "k")]


@case
def func_attr_other():
    def g():
        pass

    return (lambda x: x * getattr(g, "k", 1)), [lambda: setattr(g, "k", 5), lambda: delattr(g, "k")]


@case
def method_name():
    def g():
        pass

    return (lambda x: x * len(g.__name__)), [lambda: setattr(g, "__name__", "longer")]


@case
def doc_():
    def g():
        "doc"

    return (lambda x: x * len(g.__doc__)), [lambda: setattr(g, "__doc__", "longer")]


@case
def method_obj():
    class A:
        k = 2

        def m(self, x):
            return x * self.k

    a, b = A(), A()
    b.k = 5
    ns = types.SimpleNamespace(m=a.m)
    return (lambda x: ns.m(x)), [
        lambda: setattr(a, "k", 3),
        lambda: setattr(ns, "m", b.m),
        lambda: setattr(A, "m", lambda s, x: x * 100),
    ]


@case
def method_compare():
    class A:
        def m(self):
            pass

    a, b = A(), A()
    ns = types.SimpleNamespace(m=a.m)
    return (lambda x: x * 2 if ns.m == a.m else x), [
        lambda: setattr(ns, "m", b.m),
        lambda: setattr(ns, "m", a.m),
        lambda: setattr(a, "m", 1),
    ]


@case
def builtin_bound():
    l = [1, 2]
    ns = types.SimpleNamespace(m=l.index)
    return (lambda x: x * ns.m(2)), [
        lambda: l.insert(0, 5),
        lambda: setattr(ns, "m", [2].index),
        lambda: setattr(ns, "m", {2: 7}.get),
    ]


@case
def wraps_chain():
    def d(fn):
        @functools.wraps(fn)
        def w(*a, **k):
            return fn(*a, **k) * w.scale

        w.scale = 2
        return w

    @d
    @d
    def g(x):
        return x + 1

    return (lambda x: g(x)), [lambda: setattr(g, "scale", 3), lambda: setattr(g.__wrapped__, "scale", 5)]


@case
def wrapped_attr():
    def a(x):
        return x * 2

    @functools.wraps(a)
    def b(x):
        return b.__wrapped__(x)

    return (lambda x: b(x)), [lambda: setattr(b, "__wrapped__", lambda x: x * 5)]


@case
def lru_cached():
    state = [2]

    @functools.lru_cache(None)
    def g(k):
        return k * state[0]

    return (lambda x: x * g(3)), [lambda: state.__setitem__(0, 5), lambda: g.cache_clear()]


@case
def lru_method():
    class A:
        k = 2

        @functools.lru_cache(maxsize=4)
        def m(self, n):
            return self.k * n

    a, b = A(), A()
    ns = types.SimpleNamespace(o=a, n=3)

    def f(x):
        return x * ns.o.m(ns.n) + A.m.cache_info().currsize * 0

    return f, [
        lambda: setattr(A, "k", 5),
        lambda: setattr(ns, "o", b),
        lambda: setattr(ns, "n", 4),
        lambda: A.m.cache_clear(),
        lambda: setattr(a, "k", 9),
        lambda: setattr(ns, "o", a),
    ]


@case
def lru_of_modules():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))

        @functools.lru_cache
        def layers(self, module):
            return tuple([m for m in module.modules() if isinstance(m, torch.nn.Linear)])

        def forward(self, x):
            for layer in self.layers(self):
                x = layer(x)
            return x, self.layers(self) is self.layers(self), Net.layers.cache_info()[:2]

    net = Net()
    return (lambda x: net(x)), [
        lambda: net.parts.append(torch.nn.Linear(4, 4)),
        lambda: Net.layers.cache_clear(),
        lambda: net.parts.pop(0),
        lambda: net.layers(net.parts),
        lambda: Net.layers.cache_clear(),
    ]


@case
def lru_of_objects():
    class Recipe:
        def __init__(self, names, n):
            self.names, self.order, self.known = names, list(range(n)), {"n": n}

    @functools.lru_cache(4)
    def parse(pattern, *, n):
        return Recipe(pattern.split(), n)

    @functools.lru_cache(None, typed=True)
    def cook(recipe, shape):
        return [n + recipe.order[k] for k, n in enumerate(shape)], recipe.known, {"a": recipe.names}

    def f(x):
        recipe = parse("a b", n=x.ndim)
        sizes, known, names = cook(recipe, x.shape)
        return x * sum(sizes) + known["n"], sizes, names, recipe is parse("a b", n=1), parse.cache_info(), cook.cache_info()

    return f, [
        lambda: parse.cache_clear(),
        lambda: parse("a b", n=1).order.append(7),
        lambda: parse("a b", n=1).known.update(n=9),
        lambda: cook(parse("a b", n=1), torch.Size([4]))[0].insert(0, 5),
        lambda: cook.cache_clear(),
        lambda: [parse("a b", n=n) for n in range(2, 8)],
    ]


@case
def lru_after_changes():
    o = types.SimpleNamespace(n=1)

    @functools.lru_cache
    def sizes(k):
        return [k, o.n]

    @functools.lru_cache
    def others(k):
        return [k, k + 1]

    def f(x):
        o.n += 1
        return x * sum(sizes(3)), x * sum(others(o.n)), sizes.cache_info(), others.cache_info()

    return f, [lambda: sizes.cache_clear(), lambda: others.cache_clear(), lambda: setattr(o, "n", 5)]


@case
def lru_once():
    n = []

    @functools.lru_cache(None)
    def once(lg, msg):
        n.append(msg)
        print("once", msg)

    o = object()

    def f(x):
        once(o, "a")
        return x * len(n)

    return f, [lambda: once.cache_clear()]


@case
def singledispatch():
    @functools.singledispatch
    def g(v, x):
        return x

    @g.register
    def _(v: int, x):
        return x * 2

    ns = types.SimpleNamespace(k=1)
    return (lambda x: g(ns.k, x)), [
        lambda: setattr(ns, "k", 1.5),
        lambda: g.register(float, lambda v, x: x * 7),
        lambda: setattr(ns, "k", True),
    ]


@case
def sd_more():
    import collections.abc

    @functools.singledispatch
    def g(v):
        return 1

    g.register(collections.abc.Sized)(lambda v: 2)

    class P:
        pass

    ns = types.SimpleNamespace(v=P())
    return (lambda x: x * g(ns.v)), [
        lambda: g.register(P)(lambda v: 5),
        lambda: setattr(ns, "v", [1]),
        lambda: g.register(list)(lambda v: 7),
    ]


@case
def inspect_sig():
    def g(x, a, b=2):
        return x

    return (lambda x: x * len(inspect.signature(g).parameters)), [
        lambda: setattr(g, "__signature__", inspect.signature(lambda q: q)),
        lambda: delattr(g, "__signature__"),
        lambda: setattr(g, "__code__", (lambda x, a: x).__code__),
    ]


@case
def annotations_hints():
    def g(x: int):
        return x

    return (lambda x: x * (2 if g.__annotations__.get("x") is int else 1)), [
        lambda: g.__annotations__.update(x=float),
        lambda: setattr(g, "__annotations__", {}),
    ]


@case
def starargs():
    a = [1, 2]
    k = {"c": 3}

    def g(x, a, b, c=0):
        return x * a + b * c

    return (lambda x: g(x, *a, **k)), [
        lambda: a.__setitem__(0, 5),
        lambda: k.update(c=9),
        lambda: k.clear(),
        lambda: a.append(7),
    ]


@case
def nested_global_function_replaced():
    ns = {"torch": torch}
    exec("def h(x): return x*2\ndef g(x): return h(x)\ndef f(x): return g(x)", ns)
    return ns["f"], [
        lambda: ns.__setitem__("h", lambda x: x * 3),
        lambda: ns.__setitem__("g", lambda x: x * 4),
        lambda: ns.pop("g"),
    ]


@case
def operator_getters():
    ns = types.SimpleNamespace(a=types.SimpleNamespace(b=2))
    g = operator.attrgetter("a.b")
    h = operator.itemgetter(0)
    l = [3]
    return (lambda x: x * g(ns) + h(l)), [lambda: setattr(ns.a, "b", 5), lambda: l.__setitem__(0, 9)]


@case
def gen_outside():
    def g():
        k = 1
        while True:
            yield k
            k += 1

    it = g()
    return (lambda x: x * next(it)), []


@case
def iter_outside():
    it = iter([1, 2, 3, 4, 5, 6, 7])
    return (lambda x: x * next(it, 100)), []


@case
def for_iter_outside():
    it = iter([1, 2, 3, 4, 5, 6, 7])

    def f(x):
        for k in it:
            x = x * k
            if k % 2 == 0:
                break
        return x

    return f, []


@case
def count_outside():
    it = itertools.count()
    return (lambda x: x + next(it)), []


@case
def cycle_outside():
    it = itertools.cycle([1, 2, 3])
    return (lambda x: x + next(it)), []


@case
def zip_outside():
    it = iter(range(100))
    return (lambda x: x + sum(a * b for a, b in zip([1, 2], it))), []


@case
def map_outside():
    it = map(lambda k: k * 2, range(10))
    return (lambda x: x + next(it)), []


@case
def mod_all_registry():
    reg = {}

    def register(n):
        def d(fn):
            reg[n] = fn
            return fn

        return d

    @register("a")
    def a(x):
        return x * 2

    return (lambda x: reg["a"](x)), [lambda: register("a")(lambda x: x * 3), lambda: reg.pop("a")]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
