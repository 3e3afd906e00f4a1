"""Numbers, keys, texts and functions that everyday programs read, changed between calls."""

import datetime
import decimal
import fractions
import os
import pathlib
import re
import sys
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from case_registry import case, cases
from changes.programs import agrees


@case
def default_mutable():
    def g(x, acc=[]):
        acc.append(1)
        return x * len(acc)

    return lambda x: g(x), [lambda: g.__defaults__[0].clear(), lambda: setattr(g, "__defaults__", ([1, 1],))]


@case
def kwonly_changed():
    def g(x, *, k=1, **kw):
        return x * k + len(kw)

    opts = {"k": 2}
    return lambda x: g(x, **opts), [lambda: opts.update(z=1), lambda: opts.pop("k"), lambda: g.__kwdefaults__.update(k=5)]


@case
def star_args_len():
    args = [1, 2]

    def g(x, *a):
        return x * sum(a) + len(a)

    return lambda x: g(x, *args), [lambda: args.append(3), args.clear]


@case
def string_keys():
    cfg = {"act": "relu", "p": 0.5}

    def f(x):
        return getattr(F, cfg["act"])(x - 2) * cfg.get("p", 1)

    return f, [lambda: cfg.update(act="gelu"), lambda: cfg.pop("p"), lambda: cfg.update(p="x"), lambda: cfg.update(p=True)]


@case
def path_and_json():
    cfg = pathlib.PurePosixPath("/a/b/model_3.pt")
    holder = [cfg]

    def f(x):
        return x * int(holder[0].stem.split("_")[1]), holder[0].suffix

    return f, [lambda: holder.__setitem__(0, pathlib.PurePosixPath("m_7.bin"))]


@case
def regex_attr():
    r = [re.compile(r"layer(\d+)")]
    names = ["layer3", "x"]

    def f(x):
        for n in names:
            if m := r[0].match(n):
                x = x * int(m.group(1))
        return x

    return f, [lambda: names.append("layer2"), lambda: r.__setitem__(0, re.compile(r"(?:a|x)(\d*)"))]


@case
def format_spec():
    k = [3.14159, ".2f"]

    def f(x):
        return x * float(format(k[0], k[1])), f"{k[0]:{k[1]}}"

    return f, [lambda: k.__setitem__(1, ".0f"), lambda: k.__setitem__(0, 2.71)]


@case
def decimal_and_fraction():
    k = [fractions.Fraction(1, 3)]

    def f(x):
        return x * float(k[0]), k[0] + 1

    return f, [lambda: k.__setitem__(0, fractions.Fraction(1, 2)), lambda: k.__setitem__(0, decimal.Decimal("1.5"))]


@case
def timedelta():
    k = [datetime.timedelta(seconds=3)]

    def f(x):
        return x * k[0].total_seconds()

    return f, [lambda: k.__setitem__(0, datetime.timedelta(seconds=5))]


@case
def complex_number():
    k = [1 + 2j]

    def f(x):
        return (x * k[0]).real, k[0].imag

    return f, [lambda: k.__setitem__(0, 2 - 1j), lambda: k.__setitem__(0, 3)]


@case
def bool_vs_int_key():
    d = {1: 2.0}
    k = [1]

    def f(x):
        return x * d[k[0]]

    return f, [
        lambda: k.__setitem__(0, True),
        lambda: k.__setitem__(0, 1.0),
        lambda: d.update({True: 5.0}),
        lambda: k.__setitem__(0, 0),
    ]


@case
def nan_key():
    nan = float("nan")
    k = [nan]
    d = {nan: 3.0}

    def f(x):
        return x * d.get(k[0], 7.0)

    return f, [lambda: k.__setitem__(0, float("nan")), lambda: k.__setitem__(0, nan)]


@case
def tuple_keys():
    d = {(1, "a"): 2.0}
    k = [1, "a"]

    def f(x):
        return x * d.get(tuple(k), 9.0), (1, "a") in d

    return f, [lambda: k.__setitem__(0, 2), lambda: d.update({(2, "a"): 4.0}), lambda: d.clear()]


@case
def frozen_set_ops():
    a, b = {1, 2}, [2, 3]

    def f(x):
        return x * len(a & set(b)) + len(a | set(b)) + sum(sorted(a ^ set(b)))

    return f, [lambda: a.add(3), lambda: b.append(1), a.clear]


@case
def is_same_object():
    a = [1]
    h = [a, a]

    def f(x):
        return x * (2 if h[0] is h[1] else 3) + (h[0] == h[1])

    return f, [lambda: h.__setitem__(1, [1]), lambda: h.__setitem__(1, h[0])]


@case
def id_of():
    h = [object(), object()]

    def f(x):
        return x * (id(h[0]) == id(h[1]))

    return f, [lambda: h.__setitem__(1, h[0])]


@case
def sys_stuff():
    def f(x):
        return x * sys.getrecursionlimit() / 1000, len(sys.argv) > 100, sys.maxsize > 1, sys.platform

    return f, [lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 500)]


@case
def os_environ_in():
    def f(x):
        return x * (2 if "QF_T" in os.environ else 3), os.environ.get("QF_T", "0")

    return f, [lambda: os.environ.update(QF_T="1"), lambda: os.environ.update(QF_T="2"), lambda: os.environ.pop("QF_T")]


@case
def thread_name():
    def f(x):
        return x * len(threading.current_thread().name), threading.active_count() > 0

    old = threading.current_thread().name
    return f, [
        lambda: setattr(threading.current_thread(), "name", "abc"),
        lambda: setattr(threading.current_thread(), "name", old),
    ]


@case
def torch_defaults():
    def f(x):
        return torch.tensor(1.0).dtype, torch.zeros(2) + x, torch.get_default_dtype()

    return f, [lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)]


@case
def num_threads():
    def f(x):
        return x * torch.get_num_threads()

    n = torch.get_num_threads()
    return f, [lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(n)]


@case
def grad_mode():
    w = torch.ones(2, 2, requires_grad=True)

    def f(x):
        return (x * w).requires_grad, torch.is_grad_enabled(), (x * w)

    return f, [lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)]


@case
def finfo_dtype():
    d = [torch.float32]

    def f(x):
        return x + torch.finfo(d[0]).eps, torch.finfo(d[0]).bits

    return f, [lambda: d.__setitem__(0, torch.float16), lambda: d.__setitem__(0, torch.float64)]


@case
def device_str():
    d = ["cpu"]

    def f(x):
        return x.to(d[0]) + 1, str(torch.device(d[0])), x.device == torch.device(d[0])

    return f, [lambda: d.__setitem__(0, torch.device("cpu")), lambda: d.__setitem__(0, "meta")]


@case
def numpy_arr_shape():
    a = [np.ones((2, 2), np.float32)]

    def f(x):
        return x * a[0].shape[0] + torch.from_numpy(a[0]), a[0].dtype.name, a[0].ndim

    return f, [lambda: a.__setitem__(0, np.ones((1, 2), np.float64)), lambda: a[0].__setitem__((0, 0), 5)]


@case
def generator_function_state():
    def gen():
        k = 0
        while True:
            k += 1
            yield k

    g = gen()

    def f(x):
        return x * next(g)

    return f, [lambda: next(g)]


@case
def iterator_class():
    class It:
        def __init__(s, n):
            s.n = n
            s.k = 0

        def __iter__(s):
            s.k = 0
            return s

        def __next__(s):
            if s.k >= s.n:
                raise StopIteration
            s.k += 1
            return s.k

    it = It(3)

    def f(x):
        for k in it:
            x = x + k
        return x, sum(it), max(it)

    return f, [lambda: setattr(it, "n", 2), lambda: setattr(it, "n", 0)]


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
