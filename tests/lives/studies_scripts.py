"""Programs of `lives` as scripts of experiments have them: see `studies.py` for how they are written.

Two optimizers that share a trunk, gradients of activations that one loss hands to another, parameters that are made anew, iterators
that never end, batches with lengths, scores kept as Python's numbers, and state of optimizers that is read and moved.
"""

from __future__ import annotations

from typing import Any

from lives.studies_loops import MODEL, ROWS

STUDIES: dict[str, dict[str, Any]] = {
    "trunk": {
        "setup": f"""
trunk = nn.Sequential(nn.Linear(6, 8), <<nn.Tanh() || nn.ReLU() || nn.ReLU(inplace=True) || nn.BatchNorm1d(8)>>)
first, second = nn.Linear(8, 5), nn.Linear(8, 1)
model = nn.ModuleDict(dict(trunk=trunk, first=first, second=second))
optimizer = torch.optim.<<SGD || Adam>>([*trunk.parameters(), *first.parameters()], lr=0.05)
other = torch.optim.<<SGD || AdamW>>(<<[*trunk.parameters(), *second.parameters()] || second.parameters()>>, lr=0.02)
scale = {{'other': 0.5}}
{ROWS}"""
        """
@compiled
def split(x, target):
    optimizer.zero_grad(), other.zero_grad()
    h = trunk(x)
    here = h.detach().<<requires_grad_() || clone().requires_grad_()>>
    one = F.cross_entropy(first(here), target)
    two = second(<<here || torch.tanh(here)>>).square().mean() * scale['other']
    <<one.backward() || one.backward(retain_graph=True)>>
    two.backward()
    h.backward(<<here.grad || here.grad / here.grad.norm().clamp(min=1) || here.grad * (here.grad.abs() > 1e-3)>>)
    optimizer.step()
    other.step()
    return one.detach(), two.detach()
@compiled
def trained_apart(x, target):
    h = trunk(x)
    <<h.retain_grad() || >>
    one, two = F.cross_entropy(first(h), target), second(h).square().mean()
    optimizer.zero_grad()
    one.backward(retain_graph=True)
    <<optimizer.step() || pass>>
    other.zero_grad()
    <<(scale['other'] * two).backward(inputs=list(second.parameters())) || torch.autograd.backward(two, inputs=[*second.parameters()]) || (scale['other'] * second(h.detach()).square().mean()).backward()>>
    other.step()
    return one.detach(), two.detach()
@compiled
def pushed(x, target):
    optimizer.zero_grad()
    h = trunk(x)
    one = F.cross_entropy(first(h), target)
    (push,) = torch.autograd.grad(one, h, retain_graph=True<< || , create_graph=True>>)
    two = (second(h<< || .detach()>>) * <<push.detach() || push || push.sign()>>.sum(1, keepdim=True)).mean()
    (one + scale['other'] * two).backward()
    optimizer.step()
    return one.detach(), two.detach()
@compiled
def balanced(x, target):
    h = trunk(x)
    losses = {'one': F.cross_entropy(first(h), target), 'two': second(h).square().mean()}
    shared = [*trunk.parameters()]
    norms = {name: torch.stack([g.norm() for g in torch.autograd.grad(loss, shared, retain_graph=True)]).norm() for name, loss in losses.items()}
    mean = sum(norms.values()) / len(norms)
    optimizer.zero_grad()
    sum(loss * (mean / (norms[name] + 1e-6)).detach() for name, loss in losses.items()).backward()
    optimizer.step()
    return {name: loss.detach() for name, loss in losses.items()}
""",
        "calls": {
            "split": "seen(split(*{batch}))", "trained apart": "seen(trained_apart(*{batch}))", "pushed": "seen(pushed(*{batch}))",
            "balanced": "seen(balanced(*{batch}))",
        },
        "events": {"scale": "scale['other'] = <F>", "trunk frozen": "trunk[0].weight.requires_grad_(not trunk[0].weight.requires_grad)"},
        "watched": "optimizer other scale trunk", "optimizers": "optimizer other",
    },
    "scores": {
        "setup": f"""{MODEL}
optimizer = torch.optim.<<SGD(model.parameters(), lr=0.05, momentum=0.9) || Adam(model.parameters(), lr=0.02)>>
score = {{'smooth': None, 'best': float('inf'), 'wait': 0, 'count': 0}}
history, marks = [], []
best = copy.deepcopy(model)
{ROWS}"""
        """
@compiled
def step(x, target):
    score['count'] += 1
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    now = loss.item()
    score['smooth'] = now if score['smooth'] is None else 0.9 * score['smooth'] + 0.1 * now
    history.append(now)
    <<pass || if len(history) > 5: history.pop(0) || del history[:-4] || marks.append((score['count'], now))>>
    if <<now || score['smooth']>> < score['best']:
        score['best'], score['wait'] = now, 0
        <<best.load_state_dict(model.state_dict()) || kept['state'] = copy.deepcopy(model.state_dict()) || kept['copy'] = copy.deepcopy(model)>>
    else:
        score['wait'] += 1
        if score['wait'] >= 3:
            for group in optimizer.param_groups:
                group['lr'] *= 0.5
            score['wait'] = 0
    return <<now || {**score} || score['smooth'] / (1 - 0.9 ** score['count'])>>
@compiled
def judge(x, target):
    with torch.no_grad():
        mine, theirs = F.cross_entropy(model(x), target), F.cross_entropy(best(x), target)
    <<return 'mine' if mine < theirs else 'theirs' || return max((mine, 'mine'), (theirs, 'theirs'), key=lambda pair: pair[0].item()) || return sorted({'mine': float(mine), 'theirs': float(theirs)}.items(), key=lambda kv: kv[1])[0][0]>>
""",
        "calls": {"step": "seen(step(*{batch}))", "judge": "seen(judge(*{batch}))"},
        "events": {
            "best anew": "score.update(best=float('inf'), wait=0)", "smooth anew": "score['smooth'] = None",
            "history anew": "history.clear()", "back to the best": "model.load_state_dict(best.state_dict())",
            "patience over": "score['wait'] = 5",
        },
        "watched": "optimizer score history marks best", "models": "model best",
    },
    "rewrapped": {
        "setup": f"""{MODEL}
class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(5, 8))
        self.register_buffer('mask', torch.ones(8))
        self.register_buffer('hits', torch.zeros(5))
    @torch.no_grad()
    def count(self, target):
        self.hits.mul_(0.9)
        <<self.hits.index_add_(0, target, torch.ones(len(target))) || self.hits += F.one_hot(target, 5).sum(0) || self.hits.scatter_add_(0, target, torch.ones(len(target))) || self.hits[target] += 1.0>>
        self.mask.copy_(torch.where(self.table.abs().mean(0) > 0.02, 1.0, 0.5))
    def forward(self, h, target):
        self.count(target)
        return ((h - self.table[target]) * self.mask).square().mean() / (1 + self.hits.max())
codes = Codes()
optimizer = torch.optim.<<SGD || Adam>>([*model.parameters(), *codes.parameters()], lr=0.05)
epoch = {{'k': 0}}
{ROWS}"""
        """
@compiled
def step(x, target):
    optimizer.zero_grad()
    h = model.body(x)
    loss = F.cross_entropy(model.head(h), target) + codes(h, target)
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def renewed(x, target):
    epoch['k'] += 1
    old = codes.table
    codes.table = nn.Parameter(<<old.detach() * 0.9 || old.data.clone() || old.data || torch.cat([old.detach()[1:], old.detach()[:1]])>>)
    <<optimizer.param_groups[0]['params'] = [codes.table if p is old else p for p in optimizer.param_groups[0]['params']] || optimizer.param_groups[0]['params'][-1] = codes.table || pass>>
    << || optimizer.state.pop(old, None) || if old in optimizer.state: optimizer.state[codes.table] = optimizer.state.pop(old)>>
    loss = codes(model.body(x), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
@compiled
def frozen(x):
    with torch.no_grad():
        return torch.cdist(model.body(x), codes.table).argmin(1)
""",
        "calls": {"step": "seen(step(*{batch}))", "renewed": "seen(renewed(*{batch}))", "frozen": "seen(frozen({batch}[0]))"},
        "events": {
            "wrapped outside": "codes.table = nn.Parameter(codes.table.detach() * <F>)",
            "wrapped outside, optimized": "codes.table = nn.Parameter(codes.table.detach().clone())\noptimizer = type(optimizer)([*model.parameters(), *codes.parameters()], lr=0.05)",
            "mask anew": "codes.mask = torch.ones(8)", "hits as numbers": "codes.hits = codes.hits.clone()",
            "table a buffer": "with torch.no_grad():\n    codes.table.data = codes.table.data[torch.arange(4, -1, -1)]",
        },
        "watched": "optimizer codes epoch", "models": "model codes",
    },
    "endless": {
        "setup": """
import itertools, collections
Batch = collections.namedtuple('Batch', 'x lengths target')
class Model(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.<<GRU || LSTM>>(6, 8, batch_first=True), nn.Linear(8, 5)
        self.count = 0
    def forward(self, x, lengths):
        self.count += 1
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        y = self.rnn(x)[0]
        <<y = y * mask[..., None] || y = y.masked_fill(~mask[..., None], 0.0) || y = torch.where(mask.unsqueeze(-1), y, torch.zeros_like(y))>>
        pooled = <<y.sum(1) / lengths[:, None] || y.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, 8)).squeeze(1) || y[torch.arange(len(y)), lengths - 1]>>
        return self.head(pooled), mask
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
def batch(n=4, t=5):
    return torch.randn(n, t, 6), torch.randint(5, (n,))
def with_lengths(x, target):
    return Batch(x, 1 + torch.arange(len(x)) % x.shape[1], target)
class Criterion:
    def __init__(self, smoothing=0.0):
        self.smoothing, self.seen = smoothing, 0
    def __call__(self, out, target):
        self.seen += len(target)
        return F.cross_entropy(out, target, label_smoothing=self.smoothing)
criterion = <<Criterion(0.1) || functools.partial(F.cross_entropy, reduction='sum') || F.cross_entropy || lambda out, target: F.nll_loss(out.log_softmax(-1), target)>>
@compiled
def step(batch):
    optimizer.zero_grad()
    out, mask = model(batch.x, batch.lengths)
    loss = criterion(out, batch.target)
    loss.backward()
    optimizer.step()
    return loss.detach(), mask.sum()
@compiled
def epoch(stream, count):
    losses = []
    for k in range(count):
        losses.append(step(<<next(stream) || Batch(*next(stream)) || next(stream)._replace(lengths=torch.ones_like(next(stream).lengths))>>)[0])
    return torch.stack(losses).mean()
@compiled
def packed(batch):
    optimizer.zero_grad()
    mask = torch.arange(batch.x.shape[1]) < batch.lengths[:, None]
    rows = batch.x[mask]
    index = mask.nonzero()[:, 0]
    h = model.rnn(rows[:, None])[0][:, 0]
    pooled = torch.zeros(len(batch.x), 8).index_add(0, index, h)
    loss = criterion(model.head(pooled), batch.target)
    loss.backward()
    optimizer.step()
    return loss.detach()
""",
        "calls": {
            "step": "seen(step(with_lengths(*{batch})))", "packed": "seen(packed(with_lengths(*{batch})))",
            "endless": "now = with_lengths(*{batch})\nstream = itertools.cycle([now, now])\nseen(epoch(stream, 2))\nseen(epoch(stream, 1))",
            "chained": "now = with_lengths(*{batch})\nseen(epoch(itertools.chain([now], itertools.repeat(now)), 3))",
            "sliced": "now = with_lengths(*{batch})\nseen(epoch(itertools.islice(itertools.cycle([now]), 9), 2))",
        },
        "events": {"smoothing": "if isinstance(criterion, Criterion):\n    criterion.smoothing = <F> / 2", "count anew": "model.count = 0"},
        "lengths": True,
    },
    "states": {
        "setup": f"""{MODEL}
optimizer = torch.optim.<<SGD(model.parameters(), lr=0.05, momentum=0.9) || Adam(model.parameters(), lr=0.02) || AdamW([{{'params': [p]}} for p in model.parameters()], lr=0.02) || RMSprop(model.parameters(), lr=0.01, momentum=0.5)>>
turn = {{'k': 0}}
{ROWS}"""
        """
KEYS = ('momentum_buffer', 'exp_avg', 'square_avg')
def buffers():
    return [(p, key, state[key]) for p, state in optimizer.state.items() for key in KEYS if state.get(key) is not None]
@compiled
def step(x, target):
    turn['k'] += 1
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), target)
    loss.backward()
    <BEFORE>
    optimizer.step()
    <AFTER>
    return loss.detach()
@compiled
def effective():
    with torch.no_grad():
        return torch.stack([m.abs().mean() / (p.norm() + 1) for p, _, m in buffers()]) if optimizer.state else None
""",
        "parts": {
            "BEFORE": (
                "for group in optimizer.param_groups:\n    group['lr'] = 0.05 / turn['k'] ** 0.5",
                "for group in optimizer.param_groups:\n    for p in group['params']:\n        if p.grad is not None:\n            p.grad.add_(p.detach(), alpha=group['lr'])",
                "for p, _, m in buffers():\n    if p.grad is not None:\n        p.grad.mul_(1 + 0.1 * torch.sign((m * p.grad).sum()))",
                "for p, _, m in buffers():\n    if p.grad is not None:\n        p.grad = p.grad + 0.1 * m",
                "if turn['k'] % 3 == 0:\n    optimizer.state.clear()",
                "norm = sum(p.grad.pow(2).sum() for p in model.parameters() if p.grad is not None) ** 0.5\noptimizer.param_groups[0]['lr'] = 0.05 if norm < 1 else 0.01",
                "optimizer.param_groups[0]['lr'] = 0.01 * (1 + turn['k'] % 3)",
            ),
            "AFTER": (
                "pass",
                "for p, key, m in buffers():\n    m.mul_(0.9)",
                "for p, key, m in buffers():\n    optimizer.state[p][key] = m.clone()",
                "found = [(p, key) for p, key, m in buffers() if p.ndim == 1]\nif len(found) > 1 and found[0][0].shape == found[-1][0].shape:\n    (a, key), (b, _) = found[0], found[-1]\n    optimizer.state[a][key], optimizer.state[b][key] = optimizer.state[b][key], optimizer.state[a][key]",
                "with torch.no_grad():\n    for p, key, m in buffers():\n        p.sub_(m, alpha=0.01)",
                "for p, key, m in buffers():\n    kept[key] = m",
            ),
        },
        "calls": {"step": "seen(step(*{batch}))", "effective": "seen(effective())"},
        "events": {
            "states cleared": "optimizer.state.clear()",
            "buffers swapped": "found = buffers()\nif len(found) > 1 and found[0][2].shape == found[-1][2].shape:\n    found[0][2].data, found[-1][2].data = found[-1][2].data, found[0][2].data",
            "rate": "optimizer.param_groups[-1]['lr'] = 0.1 * <F>",
        },
        "watched": "optimizer turn",
    },
    "stateless": {
        "setup": f"""{MODEL}
nn.utils.parametrize.register_parametrization(model.head, 'weight', <<Doubled() || nn.Tanh()>>)
fast = {{n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}}
optimizer = torch.optim.<<SGD || Adam>>(<<fast.values() || model.parameters()>>, lr=0.05)
rate = {{'inner': 0.1}}
{ROWS}"""
        """
@compiled
def step(x, target):
    optimizer.zero_grad()
    out = torch.func.functional_call(model, <<fast || {**fast, **dict(model.named_buffers())} || (fast, dict(model.named_buffers()))>>, (x,)<< || , {} || , tie_weights=False>>)
    loss = F.cross_entropy(out, target)
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def inner(x, target):
    params = {n: p for n, p in <<fast.items() || model.named_parameters()>>}
    for _ in range(2):
        loss = F.cross_entropy(torch.func.functional_call(model, params, (x,)), target)
        grads = torch.autograd.grad(loss, list(params.values()), <<create_graph=True || create_graph=False>>)
        params = {n: p - rate['inner'] * g for (n, p), g in zip(params.items(), grads)}
    loss = F.cross_entropy(torch.func.functional_call(model, params, (x,)), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def cached(x):
    with torch.no_grad(), nn.utils.parametrize.cached():
        return model(x) + model(2 * x)
@compiled
def slopes(x, target):
    grads = torch.func.grad(lambda params: F.cross_entropy(torch.func.functional_call(model, params, (x,)), target))({n: p.detach() for n, p in model.named_parameters()})
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.sub_(0.05 * grads[n])
    return {n: g.norm() for n, g in grads.items()}
""",
        "calls": {"step": "seen(step(*{batch}))", "inner": "seen(inner(*{batch}))", "cached": "seen(cached({batch}[0]))", "slopes": "seen(slopes(*{batch}))"},
        "events": {
            "fast anew": "fast.update({n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()})",
            "fast copied in": "with torch.no_grad():\n    for n, p in model.named_parameters():\n        p.copy_(fast[n])",
            "rate": "rate['inner'] = <F> / 5",
            "original set": "model.head.weight = model.head.weight.detach() * 0.5",
        },
        "watched": "optimizer fast rate",
    },
    "converted": {
        "setup": f"""{MODEL}
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
flags = {{'passes': 1}}
{ROWS}"""
        """
def as_model(x):
    return x.to(next(model.parameters()).dtype)
@compiled
def step(x, target):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(as_model(x)), target)
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def sampled(x):
    model.eval()
    for m in model.modules():
        if isinstance(m, <<nn.BatchNorm1d || nn.LayerNorm || nn.Tanh>>):
            m.train()
    with torch.no_grad():
        outs = torch.stack([model(as_model(x) * k) for k in range(1, 1 + flags['passes'])])
    model.train()
    return outs.mean(0), outs.var(0, correction=0)
@compiled
def cast(x, target):
    guide = copy.deepcopy(model).<<double() || float() || to(torch.float64)>>
    with torch.no_grad():
        soft = guide(x.to(next(guide.parameters()).dtype)).softmax(-1)
    return (model(as_model(x)).softmax(-1) - soft).abs().max() < 0.01
@compiled
def clipped():
    def clip(m):
        if isinstance(m, nn.Linear):
            <<m.weight.data.clamp_(-0.3, 0.3) || m.weight.data = m.weight.data.clamp(-0.3, 0.3) || nn.init.constant_(m.bias, 0.1)>>
    model.apply(clip)
""",
        "calls": {"step": "seen(step(*{batch}))", "sampled": "seen(sampled({batch}[0]))", "cast": "seen(cast(*{batch}))", "clipped": "clipped()"},
        "events": {
            "to float": "model.float()", "to double": "model.double()", "there and back": "model.float().double()",
            "passes": "flags['passes'] = 1 + <K>", "one layer to float": "model.head.float()",
            "to float, swapped data": "for p in model.parameters():\n    p.data = p.data.float()",
        },
        "watched": "optimizer flags",
    },
    "closed": {
        "setup": f"""{MODEL}
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
gains, norms = {{'k': 1.0, 'on': True}}, []
{ROWS}"""
        """
def tracker():
    count, total = 0, 0.0
    def track(value):
        nonlocal count, total
        count += 1
        total = total + value
        return total / count
    return track
track = tracker()
def hook(grad):
    return grad * gains['k'] if gains['on'] else None
@compiled
def step(x, target):
    optimizer.zero_grad()
    h = model.body(x)
    if h.requires_grad:
        h.register_hook(<<hook || lambda grad: grad * gains['k'] || lambda grad: norms.append(grad.norm()) || functools.partial(torch.mul, gains['k'])>>)
    loss = F.cross_entropy(model.head(h), target)
    handles = [p.register_hook(lambda grad, k=k: grad / (1 + k)) for k, p in enumerate(model.head.parameters()) if p.requires_grad]
    << || gains['k'] *= 0.9 || gains['on'] = not gains['on']>>
    loss.backward()
    for handle in handles:
        handle.remove()
    optimizer.step()
    return track(loss.<<detach() || item()>>)
@compiled
def losses(x, target):
    h = model.body(x)
    if h.requires_grad:
        h.register_hook(<<hook || lambda grad: grad * gains['k']>>)
    return F.cross_entropy(model.head(h), target) << || + 0 * sum(p.sum() for p in model.parameters())>>
""",
        "calls": {
            "step": "seen(step(*{batch}))",
            "outside": "optimizer.zero_grad()\nloss = losses(*{batch})\n<< || gains['k'] = 0.5 * gains['k']>>\nif loss.requires_grad: loss.backward()\noptimizer.step()\nseen(loss)",
        },
        "events": {"gain": "gains['k'] = <F>", "hook off": "gains['on'] = not gains['on']", "tracker anew": "track = tracker()", "norms anew": "norms.clear()"},
        "watched": "optimizer gains norms",
    },
    "scratch": {
        "setup": f"""{MODEL}
optimizer = torch.optim.<<SGD || Adam || AdamW>>(model.parameters(), lr=0.05<< || , foreach=False>>)
trained = [*model.parameters()]
held = [torch.zeros_like(p) for p in trained]
turn = {{'k': 0}}
{ROWS}"""
        """
@compiled
def step(x, target):
    turn['k'] += 1
    <<optimizer.zero_grad() || optimizer.zero_grad(set_to_none=False) || model.zero_grad()>>
    loss = F.cross_entropy(model(x), target)
    loss.backward()
    <WORK>
    optimizer.step()
    return loss.detach()
@compiled
def microbatches(x, target):
    optimizer.zero_grad()
    for part, labels in zip(x.split(2), target.split(2)):
        (F.cross_entropy(model(part), labels) * len(part) / len(x)).backward()
        <<pass || for h, p in zip(held, trained): h.copy_(p.grad) || if turn['k'] % 2: break>>
    optimizer.step()
    return sum(p.grad.norm() for p in trained)
""",
        "parts": {"WORK": (
            "with torch.no_grad():\n    for h, p in zip(held, trained):\n        h.mul_(0.9).add_(p.grad)\n        p.grad.copy_(h)",
            "for k, p in enumerate(trained):\n    held[k], p.grad = p.grad, held[k]\n    p.grad.add_(held[k])",
            "for k, p in enumerate(trained):\n    p.grad, held[k] = 0.5 * (p.grad + held[k]), p.grad.clone()",
            "for p in trained:\n    p.grad.mul_(p.grad).add_(1e-3).rsqrt_()",
            "with torch.no_grad():\n    for p in trained:\n        p.grad.copy_(p).mul_(0.1)",
            "flat = nn.utils.parameters_to_vector([p.grad for p in trained])\nflat = flat / flat.norm().clamp(min=1e-3)\nnn.utils.vector_to_parameters(flat, [p.grad for p in trained])",
            "with torch.no_grad():\n    moves = [0.05 * p.grad for p in trained]\n    torch._foreach_add_(trained, moves)\noptimizer.zero_grad()\nF.cross_entropy(model(x), target).backward()\nwith torch.no_grad():\n    torch._foreach_sub_(trained, moves)",
            "torch._foreach_copy_(held, [p.grad for p in trained])\nfor h, p in zip(held, trained):\n    p.grad = h",
        )},
        "calls": {"step": "seen(step(*{batch}))", "microbatches": "seen(microbatches(*{batch}))"},
        "events": {
            "held anew": "held = [torch.zeros_like(p) for p in trained]", "held is the gradients": "for h, p in zip(held, trained):\n    p.grad = h",
            "held shared": "held[0] = held[0].clone()", "trained anew": "trained = [*model.parameters()]\nheld = [torch.zeros_like(p) for p in trained]",
        },
        "watched": "optimizer held turn",
    },
}  # fmt: skip
