"""Programs as people write them around PyTorch, each as a whole: results, state and printed output equal eager's."""

# ruff: noqa: B905, B007, E741  (programs are written as their authors would)

from __future__ import annotations

import collections
import copy
import random
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from whole_programs import Programs

PROGRAMS = Programs()
program = PROGRAMS.add


@program
def grad_accumulation(compiled):
    m = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)

    def train(batches):
        tot = 0.0
        opt.zero_grad()
        for i, (x, y) in enumerate(batches):
            loss = F.cross_entropy(m(x), y) / 2
            loss.backward()
            tot += loss.item()
            if (i + 1) % 2 == 0:
                opt.step()
                opt.zero_grad()
        return tot

    f = compiled(train)
    out = []
    for e in range(3):
        out.append(f([(torch.randn(3, 8), torch.randint(0, 4, (3,))) for _ in range(6)]))
    return out, [p.detach().clone() for p in m.parameters()]


@program
def ema(compiled):
    m = nn.Linear(5, 5)
    e = copy.deepcopy(m)

    @compiled
    @torch.no_grad()
    def update(decay=0.9):
        for a, b in zip(e.parameters(), m.parameters()):
            a.lerp_(b, 1 - decay)
        for a, b in zip(e.buffers(), m.buffers()):
            a.copy_(b)

    for k in range(5):
        with torch.no_grad():
            for p in m.parameters():
                p.add_(1)
        update(0.9 if k < 3 else 0.99)
    return [p.detach() for p in e.parameters()]


@program
def amp_cpu(compiled):
    m = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))

    @compiled
    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m(x)
            loss = y.float().pow(2).mean()
        loss.backward()
        return loss, y

    o = [step(torch.randn(4, 8)) for _ in range(3)]
    return [(a.detach(), b.detach()) for a, b in o], [p.grad for p in m.parameters()]


@program
def rnn_lm(compiled):
    emb = nn.Embedding(20, 8)
    rnn = nn.LSTM(8, 16, 2, batch_first=True)
    head = nn.Linear(16, 20)
    ps = [*emb.parameters(), *rnn.parameters(), *head.parameters()]
    opt = torch.optim.Adam(ps)

    @compiled
    def step(x, y, h):
        opt.zero_grad(set_to_none=True)
        o, h = rnn(emb(x), h)
        loss = F.cross_entropy(head(o).transpose(1, 2), y)
        loss.backward()
        nn.utils.clip_grad_value_(ps, 0.5)
        opt.step()
        return loss.item(), tuple(v.detach() for v in h)

    h = (torch.zeros(2, 3, 16), torch.zeros(2, 3, 16))
    out = []
    for _ in range(4):
        l, h = step(torch.randint(0, 20, (3, 7)), torch.randint(0, 20, (3, 7)), h)
        out.append(l)
    return out, h


@program
def early_stop(compiled):
    @compiled
    def solve(a, b, tol=1e-6):
        x = torch.zeros_like(b)
        hist = []
        for it in range(200):
            r = b - a @ x
            n = r.norm()
            hist.append(float(n))
            if n < tol:
                break
            x = x + 0.1 * r
        else:
            hist.append(-1.0)
        return x, it, len(hist)

    a = torch.eye(4) * 2
    return [solve(a, torch.randn(4)) for _ in range(3)]


@program
def gan(compiled):
    g = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 2))
    d = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    og = torch.optim.Adam(g.parameters(), 1e-3)
    od = torch.optim.Adam(d.parameters(), 1e-3)

    @compiled
    def step(real):
        z = torch.randn(real.shape[0], 4)
        fake = g(z)
        od.zero_grad()
        ld = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        ld.backward()
        od.step()
        og.zero_grad()
        lg = F.softplus(-d(fake)).mean()
        lg.backward()
        og.step()
        return {"d": ld.item(), "g": lg.item()}

    return [step(torch.randn(6, 2)) for _ in range(4)]


@program
def bn_train_eval(compiled):
    m = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    cm = compiled(m)
    out = []
    for k in range(3):
        cm.train()
        y = cm(torch.randn(2, 3, 6, 6))
        y.sum().backward()
        out.append(y.detach())
        cm.eval()
        with torch.no_grad():
            out.append(cm(torch.randn(2, 3, 6, 6)))
    return out, [b.clone() for b in m.buffers()], [p.grad for p in m.parameters()]


@program
def beam(compiled):
    W = torch.randn(6, 6)

    @compiled
    def search(x, width):
        beams = [(0.0, [0], x)]
        for t in range(4):
            cand = []
            for sco, seq, h in beams:
                lp = torch.log_softmax(W @ h, 0)
                v, i = lp.topk(width)
                for a, b in zip(v.tolist(), i.tolist()):
                    cand.append((sco + a, seq + [b], torch.tanh(h + W[b])))
            beams = sorted(cand, key=lambda c: -c[0])[:width]
        return [(round(s, 4), q) for s, q, _ in beams]

    return [search(torch.randn(6), w) for w in (1, 2, 3)]


@program
def replay(compiled):
    class Buffer:
        def __init__(s, n):
            s.d = collections.deque(maxlen=n)
            s.n = 0

        def push(s, *t):
            s.d.append(t)
            s.n += 1

        def sample(s, k):
            b = random.sample(list(s.d), k)
            return [torch.stack(c) for c in zip(*b)]

    q = nn.Linear(3, 2)
    t = copy.deepcopy(q)
    opt = torch.optim.RMSprop(q.parameters())
    buf = Buffer(5)
    eps = [1.0]

    @compiled
    def act(s):
        eps[0] *= 0.9
        if random.random() < eps[0]:
            return random.randrange(2)
        with torch.no_grad():
            return q(s).argmax().item()

    @compiled
    def learn():
        if len(buf.d) < 3:
            return None
        s, a, r = buf.sample(3)
        v = q(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            tgt = r + 0.9 * t(s).max(1).values
        loss = F.smooth_l1_loss(v, tgt)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    out = []
    for _ in range(8):
        s = torch.randn(3)
        a = act(s)
        buf.push(s, torch.tensor(a), torch.tensor(float(a)))
        out.append((a, learn()))
    return out, eps, buf.n


@program
def metrics(compiled):
    class Meter:
        def __init__(s):
            s.sum = 0.0
            s.n = 0
            s.hist = collections.defaultdict(list)

        def __call__(s, name, v, k=1):
            s.sum += float(v) * k
            s.n += k
            s.hist[name].append(v)

        @property
        def avg(s):
            return s.sum / max(s.n, 1)

    me = Meter()

    @compiled
    def evaluate(logits, labels):
        p = logits.softmax(-1)
        acc = (p.argmax(-1) == labels).float().mean()
        me("acc", acc, len(labels))
        me("conf", p.max(-1).values.mean().item())
        print(f"avg={me.avg:.3f} acc={acc:.2f}")
        cm = torch.zeros(3, 3, dtype=torch.long)
        for a, b in zip(labels, p.argmax(-1)):
            cm[a, b] += 1
        return cm, me.avg

    return [evaluate(torch.randn(5, 3), torch.randint(0, 3, (5,))) for _ in range(3)], dict(me.hist), me.n


@program
def augment(compiled):
    @compiled
    def aug(x):
        if torch.rand(1).item() < 0.5:
            x = x.flip(-1)
        k = random.randint(0, 2)
        x = torch.roll(x, k, dims=-2)
        x = x * (1 + 0.1 * torch.randn(x.shape[0], 1, 1, 1))
        m = np.random.rand()
        return F.dropout(x, 0.2) + m

    return [aug(torch.randn(2, 3, 4, 4)) for _ in range(4)]


@program
def vmap_grad(compiled):
    @compiled
    def per_sample(w, x, y):
        def loss(w, x, y):
            return ((x @ w - y) ** 2).sum()

        return torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(w, x, y)

    return per_sample(torch.randn(3), torch.randn(4, 3), torch.randn(4))


@program
def hooks(compiled):
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    acts = {}
    hs = [
        l.register_forward_hook(lambda mod, i, o, k=k: acts.__setitem__(k, o.detach().mean().item()))
        for k, l in enumerate(m)
    ]
    cm = compiled(m)
    r = []
    for k in range(3):
        r.append(cm(torch.randn(2, 3)).detach())
        if k == 1:
            hs[0].remove()
    return r, acts


@program
def attention_cache(compiled):
    class A(nn.Module):
        def __init__(s):
            super().__init__()
            s.q = nn.Linear(4, 4)
            s.cache = None

        def forward(s, x):
            k = s.q(x)
            s.cache = k if s.cache is None else torch.cat([s.cache, k], 1)
            return F.scaled_dot_product_attention(k, s.cache, s.cache)

    a = A().eval()
    c = compiled(a)
    r = []
    with torch.no_grad():
        for _ in range(6):
            r.append(c(torch.randn(1, 1, 4)))
    return r, a.cache.shape


@program
def double_backward(compiled):
    @compiled
    def gp(w, x):
        y = (torch.tanh(x @ w)).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return ((g.norm(dim=1) - 1) ** 2).mean()

    w = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(4, 3, requires_grad=True)
    l = gp(w, x)
    l.backward()
    return l.detach(), w.grad


@program
def config_dataclass(compiled):
    @dataclass
    class Cfg:
        lr: float = 0.1
        steps: int = 3
        names: list = field(default_factory=list)

    @compiled
    def run(cfg, x):
        for s in range(cfg.steps):
            x = x - cfg.lr * x.sign()
            cfg.names.append(f"s{s}")
        cfg.lr *= 0.5
        return x

    c = Cfg()
    return [run(c, torch.randn(3)) for _ in range(4)], c.lr, c.names


@program
def try_finally(compiled):
    log = []

    @compiled
    def f(x, bad):
        log.append("start")
        try:
            y = x * 2
            if bad:
                raise ValueError(f"bad {x.shape}")
            return y
        except ValueError as e:
            log.append(str(e))
            return x
        finally:
            log.append("end")

    return f(torch.ones(2), False), f(torch.ones(2), True), log


@program
def lbfgs(compiled):
    p = torch.tensor([1.0, 2.0], requires_grad=True)
    opt = torch.optim.LBFGS([p], max_iter=5)

    def closure():
        opt.zero_grad()
        l = ((p - torch.tensor([3.0, -1.0])) ** 2).sum() + p.prod() ** 2
        l.backward()
        return l

    s = compiled(lambda: opt.step(closure))
    return [s().item() for _ in range(3)], p.detach().clone()


@PROGRAMS.in_each_backend
def test_everyday_program(name, backend):
    PROGRAMS.compare(name, backend)
