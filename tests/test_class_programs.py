"""Programs that make much of Python's classes around tensors: results and state equal eager's."""

# ruff: noqa: B905, E741  (programs are written as their authors would)

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import math
import typing
import weakref
from dataclasses import dataclass, field, fields
from functools import singledispatch

import torch
import torch.nn as nn
import torch.nn.functional as F

from whole_programs import Programs

PROGRAMS = Programs()
program = PROGRAMS.add


@program
def model_output_class(compiled):
    class ModelOutput(collections.OrderedDict):
        def __post_init__(self):
            for f in fields(self):
                v = getattr(self, f.name)
                if v is not None:
                    self[f.name] = v

        def __getitem__(self, k):
            return super().__getitem__(k) if isinstance(k, str) else self.to_tuple()[k]

        def __setattr__(self, n, v):
            if n in self.keys() and v is not None:
                super().__setitem__(n, v)
            super().__setattr__(n, v)

        def to_tuple(self):
            return tuple(self[k] for k in self.keys())

    @dataclass
    class Out(ModelOutput):
        loss: torch.Tensor = None
        logits: torch.Tensor = None
        hidden: tuple = None

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(10, 8)
            s.l = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
            s.h = nn.Linear(8, 10, bias=False)
            s.h.weight = s.e.weight

        def forward(s, ids=None, labels=None, *, output_hidden=False, return_dict=True, **kw):
            x = s.e(ids) + kw.get("bias", 0)
            hs = (x,) if output_hidden else None
            for l in s.l:
                x = x + F.gelu(l(x))
                if output_hidden:
                    hs += (x,)
            logits = s.h(x)
            loss = None
            if labels is not None:
                loss = F.cross_entropy(
                    logits[..., :-1, :].contiguous().view(-1, 10), labels[..., 1:].contiguous().view(-1), ignore_index=-100
                )
            if not return_dict:
                return tuple(v for v in (loss, logits, hs) if v is not None)
            return Out(loss=loss, logits=logits, hidden=hs)

    m = M()
    f = compiled(m)
    ids = torch.randint(0, 10, (2, 5))
    a = f(ids=ids)
    b = f(ids, labels=ids, output_hidden=True, bias=0.5)
    c = f(ids, ids, return_dict=False)
    b.loss.backward()
    return list(a.keys()), a.logits, list(b), b[0], b["logits"], b.hidden, len(c), m.e.weight.grad


@program
def delegating_wrapper(compiled):
    class Wrap(nn.Module):
        def __init__(s, m):
            super().__init__()
            s.module = m
            s.calls = collections.Counter()

        def __getattr__(s, n):
            try:
                return super().__getattr__(n)
            except AttributeError:
                return getattr(s.module, n)

        def forward(s, *a, **k):
            s.calls["forward"] += 1
            return s.module(*a, **k) * s.gain

    class In(nn.Module):
        gain = 2.0

        def __init__(s):
            super().__init__()
            s.l = nn.Linear(3, 3)
            s._cache = {}

        @functools.cached_property
        def eye(s):
            return torch.eye(3)

        @property
        def size(s):
            return s.l.weight.numel()

        def forward(s, x, scale=1.0):
            key = x.shape[0]
            if key not in s._cache:
                s._cache[key] = torch.arange(key, dtype=torch.float)[:, None]
            return s.l(x) @ s.eye * scale + s._cache[key] + s.size

    w = Wrap(In())
    f = compiled(w)
    out = [f(torch.ones(2, 3)), f(torch.ones(4, 3), scale=0.5), f(torch.ones(2, 3))]
    In.gain = 3.0
    out.append(f(torch.ones(2, 3)))
    w.module.gain = 5.0
    out.append(f(torch.ones(2, 3)))
    return [o.detach() for o in out], dict(w.calls), sorted(w.module._cache), w.l.weight.detach()


@program
def metrics_and_contexts(compiled):
    class Meter:
        __slots__ = ("total", "n", "__weakref__")

        def __init__(s):
            s.total = 0.0
            s.n = 0

        def __iadd__(s, v):
            s.total = s.total + v.detach()
            s.n += 1
            return s

        def __float__(s):
            return float(s.total) / max(s.n, 1)

        def __enter__(s):
            s.total, s.n = 0.0, 0
            return s

        def __exit__(s, *e):
            return e[0] is ValueError

    meter = Meter()
    ref = weakref.ref(meter)

    @compiled
    def run(xs):
        meter = ref()
        with contextlib.ExitStack() as st:
            m = st.enter_context(meter)
            st.callback(lambda: seen.append(m.n))
            for x in xs:
                m += x.sum()
                if m.n == 3:
                    raise ValueError("enough")
        return float(meter)

    seen = []
    return [run([torch.ones(k) for k in range(n)]) for n in (2, 4, 3)], seen


@program
def registry_enum_dispatch(compiled):
    class Meta(type):
        registry = {}

        def __new__(m, n, b, d):
            c = super().__new__(m, n, b, d)
            if d.get("key"):
                m.registry[d["key"]] = c
            return c

    class Act(metaclass=Meta):
        key = None

        def __call__(s, x):
            raise NotImplementedError

    class Relu(Act):
        key = "relu"

        def __call__(s, x):
            return x.relu()

    class Scaled(Act):
        key = "scaled"

        def __init__(s, k=2.0):
            s.k = k

        def __call__(s, x):
            return x * s.k

    class Mode(enum.Enum):
        A = enum.auto()
        B = "b"

        @property
        def factor(s):
            return 2 if s is Mode.A else 3

    class Flags(enum.IntFlag):
        X = 1
        Y = 2

    @singledispatch
    def enc(v):
        return torch.zeros(2)

    @enc.register
    def _(v: int):
        return torch.full((2,), float(v))

    @enc.register
    def _(v: str):
        return torch.ones(2) * len(v)

    @enc.register(list)
    def _(v):
        return sum(map(enc, v))

    @compiled
    def run(x, key, mode, flags, v):
        act = Meta.registry[key]() if key != "scaled" else Meta.registry[key](k=3)
        y = act(x) * mode.factor + enc(v)
        if flags & Flags.Y:
            y = -y
        match mode:
            case Mode.A:
                y = y + 1
            case Mode.B:
                y = y + 2
        return y, mode.name, flags.value

    x = torch.randn(2)
    return [
        run(x, "relu", Mode.A, Flags.X, 3),
        run(x, "scaled", Mode.B, Flags.X | Flags.Y, "abc"),
        run(x, "scaled", Mode.A, Flags.Y, [1, "ab", 2.0]),
    ]


@program
def named_states(compiled):
    class State(typing.NamedTuple):
        h: torch.Tensor
        c: torch.Tensor
        n: int = 0

        def next(s, h, c):
            return s._replace(h=h, c=c, n=s.n + 1)

    @dataclass(frozen=True, slots=True)
    class Cfg:
        size: int = 4
        drop: float = 0.0

        @functools.cached_property
        def nope(s):
            return 1

    @dataclass(order=True)
    class Hyp:
        score: float
        tokens: list = field(default_factory=list, compare=False)

        def extend(s, t, sc):
            return Hyp(s.score + sc, [*s.tokens, t])

    cell = nn.LSTMCell(4, 4)
    head = nn.Linear(4, 5)
    emb = nn.Embedding(5, 4)

    @compiled
    @torch.no_grad()
    def beam(width, steps):
        hyps = [(Hyp(0.0), State(torch.zeros(1, 4), torch.zeros(1, 4)))]
        for _ in range(steps):
            nxt = []
            for hyp, st in hyps:
                tok = torch.tensor([hyp.tokens[-1] if hyp.tokens else 0])
                st = st.next(*cell(emb(tok), (st.h, st.c)))
                lp = F.log_softmax(head(st.h), -1)[0]
                sc, ix = lp.topk(width)
                nxt += [(hyp.extend(t, s), st) for s, t in zip(sc.tolist(), ix.tolist())]
            hyps = sorted(nxt, key=lambda p: p[0], reverse=True)[:width]
        return [(h.tokens, h.score, st.n) for h, st in hyps]

    return beam(2, 3), beam(3, 2)


@program
def send_and_nonlocal(compiled):
    def controller(lr):
        best = math.inf
        while True:
            loss = yield lr
            if loss < best:
                best = loss
            else:
                lr *= 0.5

    w = torch.ones(3, requires_grad=True)

    @compiled
    def train(n):
        ctl = controller(0.9)
        lr = next(ctl)
        seen = 0

        def note():
            nonlocal seen
            seen += 1

        hist = []
        for _ in range(n):
            loss = ((w * torch.tensor([1.0, 2.0, 3.0])) ** 2).sum()
            (g,) = torch.autograd.grad(loss, [w])
            with torch.no_grad():
                w.sub_(lr * g)
            note()
            lr = ctl.send(loss.item())
            hist.append(lr)
        return seen, hist

    return train(3), train(4), w.detach()


@program
def state_dict_surgery(compiled):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = nn.Linear(2, 2)
            s.b = nn.Linear(2, 2)
            s.order = ["a", "b"]
            s.register_load_state_dict_post_hook(lambda m, k: setattr(m, "loaded", getattr(m, "loaded", 0) + 1))

        def forward(s, x):
            for n in s.order:
                x = getattr(s, n)(x).relu()
            return x

    m = M()
    f = compiled(m)
    x = torch.ones(1, 2)
    out = [f(x)]
    m.order.reverse()
    out.append(f(x))
    sd = m.state_dict()
    sd["a.weight"] = sd["b.weight"] * 2
    m.load_state_dict(sd)
    out.append(f(x))
    m.b = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    out.append(f(x))
    m.a.weight = nn.Parameter(torch.eye(2))
    out.append(f(x))
    m.a.weight.data = torch.eye(2) * 3
    out.append(f(x))
    del m.b
    m.b = nn.Identity()
    out.append(f(x))
    m.c = nn.Linear(2, 4)
    m.order.append("c")
    out.append(f(x))
    m.half().float()
    out.append(f(x))
    m.double()
    out.append(f(x.double()))
    m.apply(lambda l: nn.init.constant_(l.weight, 0.5) if isinstance(l, nn.Linear) else None)
    out.append(f(x.double()))
    return [o.detach() for o in out], m.loaded


@PROGRAMS.in_each_backend
def test_class_program(name, backend):
    PROGRAMS.compare(name, backend)
