"""Numbers, texts and NumPy's values become others."""

import datetime
import decimal
import fractions
import math
import random
import re
import types

import numpy as np
import pytest
import torch

from case_registry import case, cases
from changes.programs import agrees


@case
def numpy_scalar_attr():
    ns = types.SimpleNamespace(k=np.float32(2))
    return (lambda x: x * ns.k), [
        lambda: setattr(ns, "k", np.float32(3)),
        lambda: setattr(ns, "k", np.float64(3)),
        lambda: setattr(ns, "k", np.int64(3)),
    ]


@case
def numpy_of_other_things():
    ns = types.SimpleNamespace(k=2, t=np.timedelta64(3))
    return (lambda x: (x + 1, np.maximum(ns.k, ns.k), np.max([ns.k]), type(ns.t)(ns.t))), [
        lambda: setattr(ns, "k", "a"),
        lambda: setattr(ns, "k", b"a"),
        lambda: setattr(ns, "t", np.timedelta64(4)),
        lambda: setattr(ns, "t", np.timedelta64(4, "s")),
        lambda: setattr(ns, "t", np.timedelta64("NaT")),
        lambda: setattr(ns, "k", None),
    ]


@case
def a_duration_as_an_index():
    ns = types.SimpleNamespace(t=np.timedelta64(1, "D"))

    def f(x):
        told = []
        for use in (lambda: x[0, ns.t], lambda: x[: ns.t], lambda: [1, 2][ns.t]):
            try:
                told.append(use())
            except (IndexError, TypeError) as error:
                told.append(type(error))
        return x * 2, told

    return f, [lambda: setattr(ns, "t", 1), lambda: setattr(ns, "t", np.timedelta64(1))]


@case
def numpy_zero_dim():
    a = np.array(2.0)
    return (lambda x: x * float(a)), [lambda: a.__setitem__((), 5.0)]


@case
def numpy_array_item():
    a = np.array([2.0, 3.0])
    return (lambda x: x * a[0]), [lambda: a.__setitem__(0, 5.0)]


@case
def numpy_array_if():
    a = np.array([2.0, 3.0])
    return (lambda x: x * 2 if a[0] > 2 else x), [lambda: a.__setitem__(0, 5.0)]


@case
def numpy_array_arith():
    a = np.array([2, 3])
    return (lambda x: x * int(a.sum()) + a.shape[0]), [lambda: a.__setitem__(0, 5), lambda: a.resize(3, refcheck=False)]


@case
def np_from():
    a = np.ones((2, 2), dtype=np.float32)
    return (lambda x: x * torch.from_numpy(a)), [lambda: a.__setitem__(0, 5)]


@case
def np_bool():
    ns = types.SimpleNamespace(b=np.bool_(True))
    return (lambda x: x * 2 if ns.b else x), [lambda: setattr(ns, "b", np.bool_(False)), lambda: setattr(ns, "b", False)]


@case
def np_str():
    ns = types.SimpleNamespace(b=np.str_("sin"))
    return (lambda x: getattr(torch, ns.b)(x)), [lambda: setattr(ns, "b", np.str_("cos"))]


@case
def np_dtype():
    ns = types.SimpleNamespace(b=np.dtype("float32"))
    return (lambda x: x * ns.b.itemsize), [lambda: setattr(ns, "b", np.dtype("float64"))]


@case
def np_struct():
    a = np.zeros(2, dtype=[("a", "i4")])
    return (lambda x: x * int(a["a"][0]) + len(a)), [lambda: a["a"].__setitem__(0, 4)]


@case
def np_array_shape_reshape():
    a = np.arange(6)

    def rs():
        a.shape = (2, 3)

    return (lambda x: x * a.shape[0] + a.ndim), [rs]


@case
def np_loop():
    a = np.arange(3)

    def f(x):
        for k in a:
            x = x * 2 + k
        return x

    return f, [lambda: a.__setitem__(0, 5)]


@case
def np_random():
    r = np.random.RandomState(5)
    return (lambda x: x * r.rand()), []


@case
def neg_bits():
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    ns = types.SimpleNamespace(t=z.imag)
    return (lambda x: x + ns.t), [lambda: setattr(ns, "t", z.conj().imag), lambda: setattr(ns, "t", z.real)]


@case
def conj_bits():
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    ns = types.SimpleNamespace(t=z)
    return (lambda x: x * ns.t), [lambda: setattr(ns, "t", z.conj()), lambda: setattr(ns, "t", z)]


@case
def random_():
    return (lambda x: x * random.random()), []


@case
def random_inst():
    r = random.Random(5)
    return (lambda x: x * r.randint(1, 100)), []


@case
def random_choice_branch():
    r = random.Random(5)

    def f(x):
        if r.random() < 0.5:
            return x * 2
        return x * 3

    return f, []


@case
def decimal_frac():
    ns = types.SimpleNamespace(d=decimal.Decimal("1.5"), q=fractions.Fraction(1, 2))
    return (lambda x: x * float(ns.d) + float(ns.q)), [
        lambda: setattr(ns, "d", decimal.Decimal("2.5")),
        lambda: setattr(ns, "q", fractions.Fraction(3, 2)),
    ]


@case
def decimal_context():
    a, b = decimal.Decimal(1), decimal.Decimal(3)
    return (lambda x: x * float(a / b)), [
        lambda: setattr(decimal.getcontext(), "prec", 3),
        lambda: setattr(decimal.getcontext(), "prec", 28),
    ]


@case
def datetime_():
    ns = types.SimpleNamespace(d=datetime.date(2020, 1, 1))
    return (lambda x: x * ns.d.year), [lambda: setattr(ns, "d", datetime.date(2021, 1, 1))]


@case
def str_subclass_attr():
    class S(str):
        k = 1

    ns = types.SimpleNamespace(s=S("ab"))
    return (lambda x: x * len(ns.s) + ns.s.k), [lambda: setattr(ns.s, "k", 9), lambda: setattr(ns, "s", S("abc"))]


@case
def bool_int_float():
    ns = types.SimpleNamespace(k=1)
    return (lambda x: (x * ns.k, ns.k, type(ns.k).__name__)), [
        lambda: setattr(ns, "k", True),
        lambda: setattr(ns, "k", 1.0),
        lambda: setattr(ns, "k", 1 + 0j),
    ]


@case
def neg_zero():
    ns = types.SimpleNamespace(k=0.0)
    return (lambda x: (x / ns.k, math.copysign(1, ns.k), ns.k)), [
        lambda: setattr(ns, "k", -0.0),
        lambda: setattr(ns, "k", float("nan")),
        lambda: setattr(ns, "k", 0.0),
    ]


@case
def neg_zero_const():
    ns = types.SimpleNamespace(k=0.0)
    return (lambda x: torch.full((2,), ns.k).sign() + x.new_tensor([1 / x.new_tensor(ns.k)])), [
        lambda: setattr(ns, "k", -0.0),
        lambda: setattr(ns, "k", 0.0),
    ]


@case
def neg_zero_key():
    ns = types.SimpleNamespace(k=0.0)
    d = {0: 1, 1: 2}
    return (lambda x: (x * d[ns.k], f"{ns.k}", repr(ns.k), str(ns.k), -ns.k)), [
        lambda: setattr(ns, "k", -0.0),
        lambda: setattr(ns, "k", 0),
        lambda: setattr(ns, "k", True),
        lambda: setattr(ns, "k", 1),
    ]


@case
def nan_const():
    ns = types.SimpleNamespace(k=float("nan"))
    return (lambda x: x * 2 if ns.k != ns.k else x), [lambda: setattr(ns, "k", 1.0)]


@case
def tuple_negzero():
    ns = types.SimpleNamespace(k=(0.0, 1))
    return (lambda x: (x, ns.k, ns.k + (1,), str(ns.k))), [
        lambda: setattr(ns, "k", (-0.0, 1)),
        lambda: setattr(ns, "k", (0.0, True)),
        lambda: setattr(ns, "k", (0, 1.0)),
    ]


@case
def dtype_attr():
    ns = types.SimpleNamespace(k=torch.float32)
    return (lambda x: x.to(ns.k)), [
        lambda: setattr(ns, "k", torch.float64),
        lambda: setattr(ns, "k", "cpu"),
        lambda: setattr(ns, "k", torch.device("cpu")),
    ]


@case
def size_attr():
    ns = types.SimpleNamespace(k=torch.Size([4]))
    return (lambda x: x.view(ns.k) + ns.k.numel()), [
        lambda: setattr(ns, "k", torch.Size([1, 4])),
        lambda: setattr(ns, "k", (4,)),
    ]


@case
def generator_attr():
    g = torch.Generator().manual_seed(3)
    return (lambda x: x + torch.rand(2, generator=g)), [lambda: g.manual_seed(3)]


@case
def string_const_mut():
    ns = types.SimpleNamespace(s="ij,jk->ik")
    return (lambda x: torch.einsum(ns.s, x, x)), [lambda: setattr(ns, "s", "ij,kj->ik"), lambda: setattr(ns, "s", "ij,ij->")]


@case
def re_const():
    ns = types.SimpleNamespace(s="layer.12.w")
    return (lambda x: x * int(re.match(r"layer\.(\d+)", ns.s).group(1))), [
        lambda: setattr(ns, "s", "layer.3.w"),
        lambda: setattr(ns, "s", "zz"),
    ]


@case
def re_compiled():
    r = re.compile(r"(\d+)")
    ns = types.SimpleNamespace(s="layer.12.w", r=r)
    return (lambda x: x * int(ns.r.search(ns.s).group(1))), [
        lambda: setattr(ns, "s", "layer.3.w"),
        lambda: setattr(ns, "r", re.compile("3()")),
    ]


@case
def identity_of_a_default_float():
    values = {"other": float("2.5")}

    def inner(x, v=values["other"]):
        return x * 2 if v is values["other"] else x

    def f(x):
        return inner(x)

    def default(value):
        return lambda: setattr(inner, "__defaults__", (value,))

    return f, [default(float("2.5")), default(values["other"]), default(None), lambda: values.update(other=float("3.5")),
               default(values["other"])]  # fmt: skip


@case
def method_of_a_numpy_number_after_a_break():
    holder = types.SimpleNamespace(v=np.float16(1.0))

    def f(x):
        return holder.v.copy(), x * 2

    return f, [lambda: delattr(holder, "v"), lambda: setattr(holder, "v", np.float16(0.0)),
               lambda: setattr(holder, "v", np.float16(1.0))]  # fmt: skip


@pytest.mark.parametrize("name", cases(__name__))
def test_as_eager(name):
    agrees(__name__, name)
