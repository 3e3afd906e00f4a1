"""Programs as research code has them, each as a whole: results and state equal eager's."""

# ruff: noqa: B905  (programs are written as their authors would)

from __future__ import annotations

import collections
import random
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

from whole_programs import Programs, weights

PROGRAMS = Programs()
program = PROGRAMS.add


@program
def policy_gradient(compiled):
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    opt = torch.optim.RMSprop(policy.parameters(), lr=0.01)

    class Env:
        def __init__(self):
            self.state = torch.zeros(4)
            self.t = 0

        def step(self, action):
            self.t += 1
            self.state = self.state * 0.9 + torch.eye(4)[action]
            return self.state, float(self.state.sum()) - 0.1 * action, self.t >= 5

    @compiled
    def episode():
        env, logps, rewards, entropy = Env(), [], [], 0
        state, done = env.state, False
        while not done:
            dist = torch.distributions.Categorical(logits=policy(state))
            a = dist.sample()
            logps.append(dist.log_prob(a))
            entropy = entropy + dist.entropy()
            state, r, done = env.step(a.item())
            rewards.append(r)
        returns, R = [], 0.0
        for r in reversed(rewards):
            R = r + 0.9 * R
            returns.insert(0, R)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(torch.stack(logps) * returns).sum() - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach(), sum(rewards)

    return [episode() for _ in range(3)], weights(policy)


@program
def maml(compiled):
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)

    @compiled
    def outer(tasks):
        total = 0.0
        for x, y in tasks:
            fast = dict(net.named_parameters())
            for _ in range(2):
                loss = F.mse_loss(torch.func.functional_call(net, fast, (x,)), y)
                grads = torch.autograd.grad(loss, tuple(fast.values()), create_graph=True)
                fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads)}
            total = total + F.mse_loss(torch.func.functional_call(net, fast, (x,)), y)
        opt.zero_grad()
        total.backward()
        opt.step()
        return total.detach()

    return [outer([torch.randn(2, 5, 1).unbind() for _ in range(2)]) for _ in range(3)], weights(net)


@program
def moco_queue(compiled):
    class MoCo(nn.Module):
        def __init__(self, dim=8, K=12, m=0.9):
            super().__init__()
            self.K, self.m = K, m
            self.q, self.k = nn.Linear(6, dim), nn.Linear(6, dim)
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data.copy_(a.data)
                b.requires_grad = False
            self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
            self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def _update(self):
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data = b.data * self.m + a.data * (1 - self.m)

        @torch.no_grad()
        def _enqueue(self, keys):
            ptr = int(self.ptr)
            self.queue[:, ptr : ptr + keys.shape[0]] = keys.T
            self.ptr[0] = (ptr + keys.shape[0]) % self.K

        def forward(self, a, b):
            q = F.normalize(self.q(a), dim=1)
            with torch.no_grad():
                self._update()
                k = F.normalize(self.k(b), dim=1)
            pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
            neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
            logits = torch.cat([pos, neg], 1) / 0.2
            self._enqueue(k)
            return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))

    m = MoCo()
    opt = torch.optim.SGD(m.q.parameters(), lr=0.1)
    f = compiled(m)
    out = []
    for _ in range(5):
        loss = f(torch.randn(4, 6), torch.randn(4, 6))
        opt.zero_grad()
        loss.backward()
        opt.step()
        out.append(loss.item())
    return out, weights(m)


@program
def kv_cache_decoding(compiled):
    class Attn(nn.Module):
        def __init__(s, d=8, h=2, n=16):
            super().__init__()
            s.h = h
            s.qkv = nn.Linear(d, 3 * d)
            s.o = nn.Linear(d, d)
            s.register_buffer("k", torch.zeros(1, h, n, d // h), persistent=False)
            s.register_buffer("v", torch.zeros(1, h, n, d // h), persistent=False)

        def forward(s, x, pos):
            B, T, D = x.shape
            q, k, v = (t.view(B, T, s.h, -1).transpose(1, 2) for t in s.qkv(x).chunk(3, -1))
            s.k[:, :, pos : pos + T] = k
            s.v[:, :, pos : pos + T] = v
            return s.o(
                F.scaled_dot_product_attention(q, s.k[:, :, : pos + T], s.v[:, :, : pos + T], is_causal=T > 1)
                .transpose(1, 2)
                .reshape(B, T, D)
            )

    emb, a, head = nn.Embedding(11, 8), Attn(), nn.Linear(8, 11)

    @compiled
    @torch.inference_mode()
    def generate(prompt, n):
        pos, tok, out = 0, prompt, []
        for _ in range(n):
            x = emb(tok)
            x = x + a(x, pos)
            pos += tok.shape[1]
            logits = head(x[:, -1]) / 0.8
            tok = logits.argmax(-1, keepdim=True)
            out.append(int(tok))
            if out[-1] == 0:
                break
        return out

    r = []
    for _ in range(2):
        r.append(generate(torch.tensor([[1, 2, 3]]), 6))
    return r


@program
def soft_targets(compiled):
    q, qt = nn.Linear(4, 2), nn.Linear(4, 2)
    qt.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=1e-2, amsgrad=True)
    mem = collections.deque(maxlen=6)

    @compiled
    def learn(batch, gamma, tau, k):
        s, a, r, s2, d = map(torch.stack, zip(*batch))
        with torch.no_grad():
            target = r + gamma * qt(s2).max(1).values * (1 - d)
        qa = q(s).gather(1, a[:, None]).squeeze(1)
        loss = F.huber_loss(qa, target)
        opt.zero_grad()
        loss.backward()
        for p in q.parameters():
            p.grad.data.clamp_(-1, 1)
        opt.step()
        sd, td = q.state_dict(), qt.state_dict()
        for n in sd:
            td[n] = sd[n] * tau + td[n] * (1 - tau)
        qt.load_state_dict(td)
        return loss.item()

    out = []
    for k in range(8):
        mem.append(
            (torch.randn(4), torch.randint(0, 2, ()), torch.rand(()), torch.randn(4), torch.tensor(float(k % 3 == 0)))
        )
        if len(mem) >= 4:
            out.append(learn(random.sample(list(mem), 4), 0.9, 0.1, k))
    return out, weights(q), weights(qt)


@program
def sam_optimizer(compiled):
    class SAM(torch.optim.Optimizer):
        def __init__(s, params, base, rho=0.05, **kw):
            super().__init__(params, dict(rho=rho, **kw))
            s.base = base(s.param_groups, **kw)
            s.param_groups = s.base.param_groups

        @torch.no_grad()
        def first_step(s, zero_grad=False):
            norm = torch.norm(
                torch.stack([p.grad.norm(2) for g in s.param_groups for p in g["params"] if p.grad is not None]), 2
            )
            for g in s.param_groups:
                scale = g["rho"] / (norm + 1e-12)
                for p in g["params"]:
                    if p.grad is None:
                        continue
                    s.state[p]["old"] = p.data.clone()
                    p.add_(p.grad * scale)
            if zero_grad:
                s.zero_grad()

        @torch.no_grad()
        def second_step(s, zero_grad=False):
            for g in s.param_groups:
                for p in g["params"]:
                    if p.grad is None:
                        continue
                    p.data = s.state[p]["old"]
            s.base.step()
            if zero_grad:
                s.zero_grad()

        def step(s, closure=None):
            closure = torch.enable_grad()(closure)
            s.first_step(zero_grad=True)
            closure()
            s.second_step()

    m = nn.Linear(4, 2)
    opt = SAM(m.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    @compiled
    def step(x, y):
        loss = F.cross_entropy(m(x), y)
        loss.backward()
        opt.first_step(zero_grad=True)
        F.cross_entropy(m(x), y).backward()
        opt.second_step(zero_grad=True)
        return loss.item()

    @compiled
    def step2(x, y):
        def closure():
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            return loss

        loss = closure()
        opt.step(closure)
        opt.zero_grad()
        return loss.detach()

    xs = [(torch.randn(3, 4), torch.randint(0, 2, (3,))) for _ in range(3)]
    return [step(*b) for b in xs], [step2(*b) for b in xs], weights(m)


@program
def diffusion(compiled):
    T = 10
    betas = torch.linspace(1e-4, 0.2, T)
    ac = torch.cumprod(1 - betas, 0)

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.l1 = nn.Linear(2 + 8, 16)
            s.l2 = nn.Linear(16, 2)
            s.register_buffer("freq", torch.exp(torch.linspace(0, 3, 4)))

        def forward(s, x, t):
            e = t.float()[:, None] * s.freq[None] / T
            e = torch.cat((e.sin(), e.cos()), -1)
            return s.l2(F.silu(s.l1(torch.cat((x, e), -1))))

    n = Net()
    opt = torch.optim.NAdam(n.parameters(), 1e-2)

    @compiled
    def step(x0):
        t = torch.randint(0, T, (x0.shape[0],))
        eps = torch.randn_like(x0)
        a = ac[t][:, None]
        loss = F.mse_loss(n(a.sqrt() * x0 + (1 - a).sqrt() * eps, t), eps)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    @compiled
    @torch.no_grad()
    def sample(k):
        x = torch.randn(k, 2)
        for t in reversed(range(T)):
            tt = torch.full((k,), t, dtype=torch.long)
            eps = n(x, tt)
            x = (x - betas[t] / (1 - ac[t]).sqrt() * eps) / (1 - betas[t]).sqrt()
            if t > 0:
                x = x + betas[t].sqrt() * torch.randn_like(x)
        return x

    return [step(torch.randn(5, 2)) for _ in range(3)], sample(3), sample(3)


@program
def averaged_models(compiled):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    swa = torch.optim.swa_utils.AveragedModel(model)
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)

    @compiled
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        return loss.detach()

    data, losses = [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(3)], []
    for epoch in range(3):
        losses += [step(x, y) for x, y in data]
        if epoch:
            compiled(swa.update_parameters)(model)
            scheduler.step()
    torch.optim.swa_utils.update_bn([x for x, _ in data], swa)
    return losses, weights(swa), weights(ema), optimizer.param_groups[0]["lr"]




@program
def closures_and_generators(compiled):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    x = torch.randn(12, 6)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x[:, :1])
        loss.backward()
        calls.append(float(loss))
        return loss

    closure = compiled(closure)

    @compiled
    def sweep(rates: list[float], f: Callable[[torch.Tensor, float], torch.Tensor]):
        def steps():
            total = torch.zeros(())
            for rate in rates:
                total = total + f(x, rate).mean()
                yield rate, total

        return {f"{rate:.2f}": total for rate, total in steps() if rate < 1}

    losses = [float(optimizer.step(closure)) for _ in range(2)]
    return losses, calls, sweep([0.1, 0.5, 2.0], lambda t, rate: t * rate), weights(model)


@program
def gaussian_process_with_jitter(compiled):
    lengthscale, noise = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(-3.0))
    opt = torch.optim.Adam([lengthscale, noise], lr=0.1)
    tries = []

    def safe_cholesky(K, jitter=1e-4):
        for k in range(6):
            try:
                return torch.linalg.cholesky(K)
            except RuntimeError as error:
                tries.append((k, type(error).__name__, str(error)))
                K = K + jitter * 10**k * torch.eye(len(K))
        raise ValueError("not positive definite")

    @compiled
    def step(X, y):
        K = torch.exp(-0.5 * ((X - X.T) / lengthscale.exp()) ** 2) + noise.exp() * torch.eye(len(X))
        L = safe_cholesky(K - 0.5 * torch.eye(len(X)) * (y > 5))
        loss = (torch.cholesky_solve(y[:, None], L)[:, 0] @ y) / 2 + L.diagonal().log().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    results = []
    for k in range(6):
        X, y = torch.linspace(0, 3, 5)[:, None], torch.randn(5) + (10 if k in (2, 4) else 0)
        results.append(step(X, y))
    return results, tries, weights(nn.ParameterList([lengthscale, noise]))


@PROGRAMS.in_each_backend
def test_research_program(name, backend):
    PROGRAMS.compare(name, backend)
