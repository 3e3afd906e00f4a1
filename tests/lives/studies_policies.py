"""Programs of `lives` that learn from what they do: environments, memories, self-play, several networks and tasks at once."""

from __future__ import annotations

from typing import Any

#: An environment of NumPy's, and a policy with a value.
ENVIRONMENT = """
import collections, random as chance
import numpy as np
class World:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.reset()
    def reset(self):
        self.state, self.age = self.rng.standard_normal(4)<< || .astype(np.float32) || .astype(np.float64)>>, 0
        return self.state.copy()
    def step(self, action):
        self.state = 0.9 * self.state + 0.1 * (int(action) - 1)
        self.age += 1
        reward = float(-np.abs(self.state).sum())
        return self.state.copy(), <<reward || np.float64(reward)>>, <<self.age >= 4 || bool(self.age >= 4)>>, {}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 3), nn.Linear(8, 1)
    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)
model, world = Model(), World()
optimizer = torch.optim.<<Adam || RMSprop || SGD>>(model.parameters(), lr=0.02)
def batch(n=4):
    return torch.randn(n, 4), torch.randint(3, (n,)), torch.randn(n), torch.rand(n) < 0.3
"""

STUDIES: dict[str, dict[str, Any]] = {
    "actor_critic": {
        "setup": ENVIRONMENT
        + """
@compiled
def act(state):
    with torch.no_grad():
        x = <<torch.from_numpy(state).double() || torch.as_tensor(state, dtype=torch.float64) || torch.tensor(state).double()>>
        out, value = model(x[None])
        d = torch.distributions.Categorical(logits=out)
        action = d.sample()
        return <<int(action), value || action.item(), value.item() || action, value>>
def episode():
    state, done, steps = world.reset(), False, []
    while not done:
        action, value = act(state)
        after, reward, done, _ = world.step(action)
        steps.append((state, int(action), reward, float(value), done))
        state = after
    return steps
@compiled
def returns(rewards, gamma=0.9):
    <RETURNS>
@compiled
def learn(x, action, gain, advantage=None, old=None, clip=0.2):
    optimizer.zero_grad()
    out, value = model(x)
    d = torch.distributions.Categorical(logits=out)
    logp = d.log_prob(action)
    adv = gain - value.detach() if advantage is None else advantage
    << || adv = (adv - adv.mean()) / (adv.std() + 1e-6)>>
    if old is None:
        loss = -(logp * adv).mean()
    else:
        ratio = (logp - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
        << || if (old - logp).mean() > 1.5: return None>>
    loss = loss + 0.5 * F.mse_loss(value, gain) - 0.01 * d.entropy().mean()
    loss.backward()
    << || nn.utils.clip_grad_norm_(model.parameters(), 0.5)>>
    optimizer.step()
    return loss.detach(), logp.detach()
@compiled
def trained(steps):
    states = torch.as_tensor(np.stack([s[0] for s in steps])).double()
    actions, rewards = torch.tensor([s[1] for s in steps]), [s[2] for s in steps]
    out, value = model(states)
    total, gains = 0.0, []
    for r in rewards[::-1]:
        total = r + 0.9 * total
        gains.insert(0, total)
    gains = torch.tensor(gains)
    loss = (F.cross_entropy(out, actions, reduction='none') * (gains - value.detach())).mean() + F.mse_loss(value, gains)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
@compiled
def played(count):
    state, total, logs = world.reset(), 0.0, []
    for _ in range(count):
        out, value = model(torch.from_numpy(state).double())
        p = out.softmax(-1)
        action = <<p.argmax().item() || int(torch.multinomial(p, 1)) || np.argmax(p.detach().numpy()) || chance.choices(range(3), p.tolist())[0]>>
        logs.append(p[action].log())
        state, reward, done, _ = world.step(action)
        total += reward
        if done:
            state = world.reset()
    optimizer.zero_grad()
    (-torch.stack(logs).mean() * total).backward()
    optimizer.step()
    return total, <<len(logs) || torch.stack(logs).detach()>>
""",
        "parts": {"RETURNS": (
            "out, total = torch.zeros_like(rewards), 0.0\nfor k in reversed(range(len(rewards))):\n    total = rewards[k] + gamma * total\n    out[k] = total\nreturn out",
            "total, out = 0.0, []\nfor r in rewards.tolist()[::-1]:\n    total = r + gamma * total\n    out.append(total)\nreturn torch.tensor(out[::-1])",
            "total, out = torch.zeros(()), []\nfor r in rewards.flip(0):\n    total = total * gamma + r\n    out.insert(0, total)\nreturn torch.stack(out) if out else rewards",
            "k = torch.arange(len(rewards))\nw = (gamma ** (k[None] - k[:, None]).clamp(min=0)) * (k[None] >= k[:, None])\nreturn w.to(rewards.dtype) @ rewards",
        )},
        "calls": {
            "learn": "x, action, gain, done = {batch}\nseen(learn(x, action, gain))",
            "clipped": "x, action, gain, done = {batch}\nmade = learn(x, action, gain)\nfor _ in range(2):\n    if made is not None:\n        made = learn(x, action, gain, None, made[1])\nseen(made)",
            "returns": "seen(returns({batch}[2]))", "trained": "seen(trained(episode()))", "played": "seen(played(3))",
            "longer play": "seen(played(2 + len(notes) % 3))\nnotes.append('')",
        },
        "events": {"world anew": "world = World(<K>)", "python seed": "chance.seed(<K>)"},
    },
    "value_learning": {
        "setup": ENVIRONMENT
        + """
target_net = copy.deepcopy(model)
memory, state = <<collections.deque(maxlen=12) || []>>, {'steps': 0, 'epsilon': 0.5}
class Prioritised:
    def __init__(self, size):
        self.size, self.items, self.weights, self.at = size, [], np.zeros(size), 0
    def add(self, item):
        if len(self.items) < self.size:
            self.items.append(item)
        else:
            self.items[self.at] = item
        self.weights[self.at] = max(self.weights.max(), 1.0)
        self.at = (self.at + 1) % self.size
    def sample(self, n):
        p = self.weights[:len(self.items)] / self.weights[:len(self.items)].sum()
        k = np.random.choice(len(self.items), n, p=p)
        return k, [self.items[i] for i in k], torch.as_tensor((len(self.items) * p[k]) ** -0.5)
ranked = Prioritised(10)
def fill(count=4):
    s = world.reset()
    for _ in range(count):
        a = chance.randrange(3)
        t, r, done, _ = world.step(a)
        memory.append((torch.as_tensor(s).double(), a, r, None if done else torch.as_tensor(t).double()))
        ranked.add((torch.as_tensor(s).double(), a, r, torch.as_tensor(t).double(), float(done)))
        s = world.reset() if done else t
fill(6)
@compiled
def choose(x):
    state['steps'] += 1
    state['epsilon'] = max(0.05, state['epsilon'] * 0.95)
    if chance.random() < state['epsilon']:
        return <<chance.randrange(3) || torch.randint(3, ()).item() || int(np.random.randint(3))>>
    with torch.no_grad():
        return <<model(x)[0].argmax().item() || int(model(x)[0].max(-1).indices) || model(x)[0].argmax(-1)>>
@compiled
def losses(x, action, reward, done, after):
    q = model(x)[0].gather(1, action[:, None]).squeeze(1)
    with torch.no_grad():
        <NEXT>
        aim = reward + 0.9 * best * <<(1 - done.to(best.dtype)) || ~done || torch.logical_not(done)>>
    return <<F.smooth_l1_loss(q, aim) || F.mse_loss(q, aim) || F.huber_loss(q, aim)>>, (q - aim).detach().abs()
@compiled
def step(x, action, reward, done):
    optimizer.zero_grad()
    loss, error = losses(x, action, reward, done, x.roll(1, 0))
    loss.backward()
    << || for p in model.parameters(): p.grad.data.clamp_(-1, 1) if p.grad is not None else None>>
    optimizer.step()
    state['steps'] += 1
    if state['steps'] % 3 == 0:
        target_net.load_state_dict(model.state_dict())
    return loss.detach(), error
@compiled
def replayed(items):
    x = torch.stack([i[0] for i in items])
    action, reward = torch.tensor([i[1] for i in items]), torch.tensor([i[2] for i in items])
    mask = torch.tensor([i[3] is not None for i in items])
    q = model(x)[0].gather(1, action.unsqueeze(1)).squeeze(1)
    best = torch.zeros(len(items))
    rest = [i[3] for i in items if i[3] is not None]
    with torch.no_grad():
        best[mask] = target_net(torch.stack(rest))[0].max(1).values
    loss = F.smooth_l1_loss(q, reward + 0.9 * best)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def followed(tau):
    with torch.no_grad():
        <<for t, p in zip(target_net.parameters(), model.parameters()): t.lerp_(p, tau) || for t, p in zip(target_net.parameters(), model.parameters()): t.copy_(tau * p + (1 - tau) * t)>>
        return sum((t - p).abs().sum() for t, p in zip(target_net.parameters(), model.parameters()))
""",
        "parts": {"NEXT": (
            "best = target_net(after)[0].max(1)[0]", "best = target_net(after)[0].amax(1)",
            "best = target_net(after)[0].gather(1, model(after)[0].argmax(1, keepdim=True)).squeeze(1)",
            "best = 0.5 * target_net(after)[0].logsumexp(1)",
            "p = model(after)[0].softmax(1)\nbest = (p * (target_net(after)[0] - 0.1 * p.log())).sum(1)",
        )},
        "calls": {
            "step": "seen(step(*{batch}))", "choose": "seen(choose({batch}[0][0]))", "followed": "seen(followed(0.1))",
            "replayed": "fill(2)\nseen(replayed(chance.sample([*memory], 4)))", "replayed more": "fill(1)\nseen(replayed([*memory][-3:]))",
            "ranked": "np.random.seed(1)\nk, items, w = ranked.sample(3)\nlosses_ = losses(torch.stack([i[0] for i in items]), torch.tensor([i[1] for i in items]), torch.tensor([i[2] for i in items]), torch.tensor([i[4] for i in items]) > 0, torch.stack([i[3] for i in items]))\n"
            "(losses_[0] * w.mean()).backward()\nranked.weights[k] = losses_[1].numpy() + 0.01\nseen(losses_[1])",
        },
        "events": {"epsilon": "state['epsilon'] = <F> / 2", "memory": "memory.clear()\nfill(4)", "target anew": "target_net = copy.deepcopy(model)",
                   "python seed": "chance.seed(<K>)", "steps": "state['steps'] = <K>"},
        "models": "model target_net", "watched": "optimizer state",
    },
    "self_play": {
        "setup": """
import random as chance
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.value = nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 9)), nn.Linear(9, 1)
    def forward(self, board):
        return self.net(board).masked_fill(board != 0, <<float('-inf') || -1e9>>), torch.tanh(self.value(board))
model = Model()
rivals, results = [copy.deepcopy(model)], {'won': 0, 'lost': 0, 'drawn': 0}
optimizer = torch.optim.<<Adam || SGD>>(model.parameters(), lr=0.02)
LINES = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])
def batch(n=3):
    return torch.randint(-1, 2, (n, 9)).to(torch.get_default_dtype()) * (torch.rand(n, 9) < 0.5), torch.randn(n)
def winner(board):
    sums = <<board[LINES].sum(1) || board.take(LINES).sum(-1)>>
    if (sums == 3).any():
        return 1
    return -1 if (sums == -3).any() else 0
@compiled
def game(first, second):
    board, side, turns = torch.zeros(9), 1, []
    players = {1: first, -1: second}
    while (board == 0).any() << || and winner(board) == 0>>:
        with torch.no_grad():
            logits, _ = players[side](board * side)
        move = <<int(logits.argmax()) || torch.multinomial(logits.softmax(-1), 1).item() || torch.distributions.Categorical(logits=logits).sample().item()>>
        turns.append((board * side, move, side))
        << || board = board.clone()>>
        board[move] = side
        if len(turns) > 4 and winner(board):
            break
        side = -side
    return board, winner(board), turns
@compiled
def learn(turns, result):
    optimizer.zero_grad()
    boards, moves = torch.stack([t[0] for t in turns]), torch.tensor([t[1] for t in turns])
    aims = torch.tensor([float(t[2] * result) for t in turns])
    logits, value = model(boards)
    loss = (F.cross_entropy(logits, moves, reduction='none') * (aims - value[:, 0].detach())).mean() + F.mse_loss(value[:, 0], aims)
    loss.backward()
    optimizer.step()
    results['won' if result > 0 else 'lost' if result < 0 else 'drawn'] += 1
    return loss.detach()
@compiled
def searched(board, depth=1):
    free = (board == 0).nonzero()[:, 0].tolist()
    if not free or depth == 0:
        with torch.no_grad():
            return model(board)[1].item(), None
    best = (-2.0, None)
    for move in free[:3]:
        after = board.clone()
        after[move] = 1
        value = 1.0 if winner(after) == 1 else -searched(-after, depth - 1)[0]
        best = max(best, (value, move), key=lambda b: b[0])
    return best
""",
        "calls": {
            "game": "board, result, turns = game(model, chance.choice(rivals))\nseen((board, result, len(turns)))\nseen(learn(turns, result))",
            "itself": "board, result, turns = game(model, model)\nseen(learn(turns[-3:], result))",
            "searched": "seen(searched({batch}[0][0]))", "deeper": "seen(searched({batch}[0][0], 2))",
        },
        "events": {"a rival more": "rivals.append(copy.deepcopy(model).eval())", "rivals forgotten": "del rivals[:-1]", "python seed": "chance.seed(<K>)"},
        "watched": "optimizer results",
    },
    "two_optimizers": {
        "setup": """
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label, self.body = nn.Embedding(5, 4), nn.Sequential(nn.Linear(8, 8), <<nn.BatchNorm1d(8) || nn.LayerNorm(8)>>, nn.ReLU(), nn.Linear(8, 6))
    def forward(self, z, label):
        return self.body(torch.cat([z, self.label(label)], 1))
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        wrap = <<nn.utils.parametrizations.spectral_norm || nn.utils.parametrizations.weight_norm || (lambda m: m)>>
        self.body, self.out, self.label = nn.Sequential(wrap(nn.Linear(6, 8)), nn.LeakyReLU(0.2<< || , inplace=True>>)), nn.Linear(8, 1), nn.Embedding(5, 8)
    def forward(self, x, label, features=False):
        h = self.body(x)
        out = self.out(h).squeeze(1) + (h * self.label(label)).sum(1)
        return (out, h) if features else out
model, critic = Generator(), Critic()
optimizer, other = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.5, 0.9)), torch.optim.<<Adam(critic.parameters(), lr=0.02, betas=(0.0, 0.9)) || RMSprop(critic.parameters(), lr=0.01)>>
state = {'step': 0, 'path': torch.zeros(())}
def batch(n=4):
    return torch.randn(n, 6), torch.randint(5, (n,))
@compiled
def step(x, label, rounds=1):
    for _ in range(rounds):
        other.zero_grad()
        fake = model(torch.randn(len(x), 4), label)<< || .detach()>>
        <CRITIC>
        loss.backward()
        other.step()
        << || with torch.no_grad(): [p.clamp_(-0.1, 0.1) for p in critic.parameters()]>>
    << || for p in critic.parameters(): p.requires_grad = False || critic.requires_grad_(False)>>
    optimizer.zero_grad()
    z = torch.randn(len(x), 4)
    out = critic(model(z, label), label)
    gain = <<-out.mean() || F.softplus(-out).mean() || F.binary_cross_entropy_with_logits(out, torch.ones_like(out))>>
    << || real = critic(x, label, features=True)[1].detach(); gain = gain + F.mse_loss(critic(model(z, label), label, features=True)[1].mean(0), real.mean(0))>>
    gain.backward()
    optimizer.step()
    critic.requires_grad_(True)
    state['step'] += 1
    return {'critic': loss.detach(), 'gain': gain.item()}
@compiled
def smooth(x, label):
    z = torch.randn(len(x), 4, requires_grad=True)
    made = model(z, label)
    y = torch.randn_like(made) / 6 ** 0.5
    g, = torch.autograd.grad((made * y).sum(), z, create_graph=True)
    length = g.square().sum(1).sqrt()
    state['path'] = <<state['path'].lerp(length.mean().detach(), 0.1) || 0.9 * state['path'] + 0.1 * length.detach().mean()>>
    penalty = (length - state['path']).square().mean()
    optimizer.zero_grad()
    penalty.backward()
    optimizer.step()
    return penalty.detach()
@compiled
def cycle(x, label):
    optimizer.zero_grad()
    other.zero_grad()
    made = model(x[:, :4], label)
    back = model(made[:, :4], label)
    total = F.l1_loss(back, x) + 0.1 * critic(made, label).mean()
    total.backward()
    optimizer.step()
    << || other.step()>>
    return total.detach()
""",
        "parts": {"CRITIC": (
            "loss = critic(fake, label).mean() - critic(x, label).mean()\nmix = torch.rand(len(x), 1)\nmid = (mix * x + (1 - mix) * fake.detach()).requires_grad_()\n"
            "g, = torch.autograd.grad(critic(mid, label).sum(), mid, create_graph=True)\nloss = loss + ((g.norm(2, dim=1) - 1) ** 2).mean()",
            "loss = F.relu(1 - critic(x, label)).mean() + F.relu(1 + critic(fake, label)).mean()",
            "real = x.detach().requires_grad_(state['step'] % 2 == 0)\nout = critic(real, label)\nloss = F.softplus(-out).mean() + F.softplus(critic(fake, label)).mean()\n"
            "if real.requires_grad:\n    g, = torch.autograd.grad(out.sum(), real, create_graph=True)\n    loss = loss + g.square().sum(1).mean()",
            "both = critic(torch.cat([x, fake]), torch.cat([label, label]))\nreal, made = both.chunk(2)\nloss = F.binary_cross_entropy_with_logits(real - made.mean(), torch.ones_like(real)) + F.mse_loss(made, -torch.ones_like(made))",
        )},
        "calls": {"step": "seen(step(*{batch}))", "rounds": "seen(step(*{batch}, 2))", "smooth": "seen(smooth(*{batch}))", "cycle": "seen(cycle(*{batch}))"},
        "events": {"step": "state['step'] = <K>", "rates": "for o in (optimizer, other):\n    for g in o.param_groups:\n        g['lr'] *= <F>"},
        "models": "model critic", "optimizers": "optimizer other", "watched": "optimizer other state",
    },
    "many_tasks": {
        "setup": """
import itertools, random as chance
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.heads = nn.Linear(6, 8), nn.Linear(8, 8), nn.ModuleDict({k: nn.Linear(8, 3) for k in 'abc'})
        self.weights = nn.ParameterDict({k: nn.Parameter(torch.zeros(())) for k in 'abc'})
    def forward(self, x, task):
        return self.heads[task](torch.tanh(self.two(torch.tanh(self.one(x)))))
def fast(params, x, task):
    h = torch.tanh(F.linear(x, params['one.weight'], params['one.bias']))
    h = torch.tanh(F.linear(h, params['two.weight'], params['two.bias']))
    return F.linear(h, params[f'heads.{task}.weight'], params[f'heads.{task}.bias'])
model, names, first = Model(), ['a', 'b', 'c'], {}
optimizer = torch.optim.<<Adam || SGD || AdamW>>(model.parameters(), lr=0.02)
def batch(n=4):
    return torch.randn(n, 6), torch.randint(3, (n,))
@compiled
def step(x, target):
    optimizer.zero_grad()
    order = <<names || sorted(names, reverse=True) || chance.sample(names, len(names)) || names[:2]>>
    << || order = list(order); chance.shuffle(order)>>
    losses = {}
    for task in order:
        losses[task] = F.cross_entropy(model(x, task), target)
    <COMBINE>
    optimizer.step()
    return {k: v.detach() for k, v in losses.items()}, order
@compiled
def one(x, target):
    task = <<chance.choice(names) || names[int(torch.randint(len(names), ()))] || chance.choices(names, weights=[1.0] * len(names))[0] || names[chance.randint(0, len(names) - 1)]>>
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x, task), target)
    loss.backward()
    optimizer.step()
    return task, loss.detach()
@compiled
def adapted(x, target, steps=2, rate=0.1):
    optimizer.zero_grad()
    total = 0.0
    for task in names:
        params = <<dict(model.named_parameters()) || {n: p.clone() for n, p in model.named_parameters()}>>
        for _ in range(steps):
            loss = F.cross_entropy(fast(params, x, task), target)
            used = [n for n in params if not n.startswith(('heads', 'weights')) or n.startswith(f'heads.{task}')]
            grads = torch.autograd.grad(loss, [params[n] for n in used], create_graph=<<True || False>>)
            params = {**params, **{n: params[n] - rate * g for n, g in zip(used, grads)}}
        total = total + F.cross_entropy(fast(params, x.flip(0), task), target.flip(0))
    total.backward()
    optimizer.step()
    return total.detach() / len(names)
@compiled
def reptile(x, target, rate=0.1):
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for task in names[:2]:
        for _ in range(2):
            model.zero_grad()
            F.cross_entropy(model(x, task), target).backward()
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None:
                        p -= rate * p.grad
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(<<before[n] + 0.5 * (p - before[n]) || torch.lerp(before[n], p, 0.5)>>)
    return sum((p - before[n]).abs().sum() for n, p in model.named_parameters())
@compiled
def prototypes(x, target):
    h = torch.tanh(model.one(x))
    <PROTOTYPES>
    return F.cross_entropy(-torch.cdist(h, centres), target.clamp(max=len(centres) - 1))
""",
        "parts": {
            "COMBINE": (
                "sum(losses.values()).backward()",
                "sum(torch.exp(-model.weights[k]) * v + model.weights[k] for k, v in losses.items()).backward()",
                "for v in losses.values():\n    v.backward()",
                "for k, v in losses.items():\n    v.backward(retain_graph=True)",
                "shared = [*model.one.parameters(), *model.two.parameters()]\ngrads = [torch.autograd.grad(v, shared, retain_graph=True) for v in losses.values()]\n"
                "flat = [torch.cat([g.flatten() for g in gs]) for gs in grads]\nfor a, b in itertools.permutations(range(len(flat)), 2):\n"
                "    dot = flat[a] @ flat[b]\n    flat[a] = flat[a] - dot.clamp(max=0) / (flat[b].square().sum() + 1e-9) * flat[b]\n"
                "total = sum(flat)\nfor p, g in zip(shared, total.split([p.numel() for p in shared])):\n    p.grad = g.view_as(p)",
                "for k, v in losses.items():\n    first.setdefault(k, v.item())\nratios = torch.stack([v.detach() / first[k] for k, v in losses.items()])\n"
                "w = (ratios / ratios.mean()).softmax(0)\n(w * torch.stack([*losses.values()])).sum().backward()",
                "torch.stack([*losses.values()]).max().backward()",
                "torch.autograd.backward([*losses.values()])",
            ),
            "PROTOTYPES": (
                "centres = torch.stack([h[target == k].mean(0) for k in target.unique()])",
                "hot = F.one_hot(target, 3).to(h.dtype)\ncentres = hot.t() @ h / hot.sum(0).clamp(min=1)[:, None]",
                "centres = torch.stack([h[target == k].mean(0) if (target == k).any() else h.mean(0) for k in range(3)])",
                "centres = torch.zeros(3, 8).index_add(0, target, h) / torch.bincount(target, minlength=3).clamp(min=1)[:, None]",
            ),
        },
        "calls": {"step": "seen(step(*{batch}))", "one": "seen(one(*{batch}))", "adapted": "seen(adapted(*{batch}))", "reptile": "seen(reptile(*{batch}))",
                  "adapted once": "seen(adapted(*{batch}, 1, 0.05))", "prototypes": "loss = prototypes(*{batch})\nloss.backward()\nseen(loss)"},
        "events": {"names": "names = names[1:] + names[:1]", "python seed": "chance.seed(<K>)", "first": "first.clear()", "fewer names": "names = ['a', 'b']"},
        "watched": "optimizer first names",
    },
}
