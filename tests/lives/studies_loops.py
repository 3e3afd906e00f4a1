"""Programs of `lives` by how their training goes: what is done around a step; see `studies.py` for how they are written."""

from __future__ import annotations

from typing import Any

MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), <<nn.Tanh() || nn.GELU() || nn.LayerNorm(8) || nn.BatchNorm1d(8)>>), nn.Linear(8, 5)
    def forward(self, x):
        return self.head(self.body(x))
model = Model()
"""
ROWS = """
def batch(n=4):
    return torch.randn(n, 6), torch.randint(5, (n,))
"""

STUDIES: dict[str, dict[str, Any]] = {
    "fitting": {
        "setup": f"""{MODEL}
optimizer = torch.optim.<<SGD || Adam || AdamW>>(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.<<ReduceLROnPlateau(optimizer, patience=0) || StepLR(optimizer, 2) || CosineAnnealingLR(optimizer, 4)>>
history, best = {{'loss': [], 'valid': []}}, {{'loss': float('inf'), 'state': None, 'wait': 0}}
{ROWS}"""
        """
def validate(data):
    model.eval()
    try:
        with torch.no_grad():
            total = <<0.0 || torch.zeros(())>>
            for x, target in data:
                total += <<F.cross_entropy(model(x), target).item() || F.cross_entropy(model(x), target)>>
        return total / max(len(data), 1)
    finally:
        model.train()
@compiled
def fit(data, epochs, patience=2):
    for epoch in range(epochs):
        running, correct, seen_ = 0.0, 0, 0
        for k, (x, target) in enumerate(data):
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, target)
            loss.backward()
            << || nn.utils.clip_grad_norm_(model.parameters(), 1.0)>>
            optimizer.step()
            running += <<loss.item() * len(x) || loss.detach() * len(x)>>
            correct += (out.argmax(1) == target).sum()<<.item() || >>
            seen_ += x.size(0)
            << || if k % 2 == 1: print('', end='') || if loss > 100: break || if not torch.isfinite(loss): return None>>
        valid = validate(data)
        history['loss'].append(<<running / seen_ || float(running / seen_)>>)
        history['valid'].append(valid)
        scheduler.step(<<valid>>) if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else scheduler.step()
        <STOP>
    return {'loss': history['loss'][-1], 'accuracy': correct / seen_, 'rate': optimizer.param_groups[0]['lr']}
@compiled
def resumed(state):
    model.load_state_dict(state['model'])
    optimizer.load_state_dict(state['optimizer'])
    scheduler.load_state_dict(state['scheduler'])
    return state['epoch']
""",
        "parts": {"STOP": (
            "if valid < best['loss']:\n    best['loss'], best['wait'] = valid, 0\n"
            "    best['state'] = <<copy.deepcopy(model.state_dict()) || {n: t.clone() for n, t in model.state_dict().items()} || {n: t.detach().cpu() for n, t in model.state_dict().items()}>>\n"
            "else:\n    best['wait'] += 1\n    if best['wait'] >= patience:\n        model.load_state_dict(best['state'])\n        break",
            "if len(history['valid']) > patience and min(history['valid'][-patience:]) > min(history['valid']):\n    break",
            "best['loss'] = min(best['loss'], float(valid))\nif epoch and epoch % 2 == 0:\n    for group in optimizer.param_groups:\n        group['lr'] *= 0.5",
        )},
        "calls": {
            "fit": "now = {batch}\nseen(fit([now, shorter(now, 3)], 2))", "fit one": "seen(fit([{batch}], 1))",
            "fit loader": "now = {batch}\nseen(fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*now), batch_size=3<< || , shuffle=True>>), 2))",
            "save": "kept['state'] = copy.deepcopy({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'scheduler': scheduler.state_dict(), 'epoch': len(history['loss'])})",
            "resume": "if 'state' in kept:\n    seen(resumed(kept['state']))",
        },
        "events": {"best anew": "best.update(loss=float('inf'), wait=0)", "best back": "if best['state'] is not None:\n    model.load_state_dict(best['state'])"},
        "watched": "optimizer scheduler history best",
    },
    "curriculum": {
        "setup": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head, self.growth = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 6), nn.ModuleList([nn.Linear(6, 6)])
    def forward(self, x):
        for layer in self.growth:
            x = x + 0.1 * torch.tanh(layer(x))
        return self.head(self.rnn(x)[0])
    def grow(self):
        self.growth.append(nn.Linear(6, 6))
        return self.growth[-1]
model = Model()
optimizer = torch.optim.<<Adam || SGD || AdamW>>(model.parameters(), lr=0.02)
state = {'step': 0, 'length': 2, 'phase': 'easy', 'history': []}
def batch(n=4, t=8):
    return torch.randn(n, t, 6), torch.randn(n, t, 6)
@compiled
def step(x, target):
    state['step'] += 1
    <LENGTH>
    x, target = x[:, :length], target[:, :length]
    optimizer.zero_grad()
    error = (model(x) - target).square().mean((0, 2))
    loss = <<(error * torch.linspace(1, 0.5, error.shape[0])).sum() || error[-1] + error.mean() || error.topk(max(1, length // 2)).values.mean()>>
    loss.backward()
    optimizer.step()
    << || state['history'].append(loss.item()) || state['history'].append(loss.detach())>>
    <GROW>
    return loss.detach(), length
@compiled
def rollout(x, steps):
    outs = []
    with torch.no_grad():
        for _ in range(steps):
            x = model(x)
            outs.append(x[:, -1])
    return torch.stack(outs)
@compiled
def freezing(x, target):
    state['step'] += 1
    if state['step'] <<== 3 || % 4 == 2>>:
        for p in model.rnn.parameters():
            p.requires_grad_(<<False || not p.requires_grad>>)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    return loss.detach()
""",
        "parts": {
            "LENGTH": ("length = min(x.shape[1], 1 + state['step'] // 2)", "length = state['length']",
                       "length = {'easy': 2, 'hard': 4}.get(state['phase'], x.shape[1])",
                       "if state['step'] % 3 == 0:\n    state['length'] += 1\nlength = min(state['length'], x.size(1))",
                       "length = int(torch.randint(1, x.shape[1] + 1, ()))"),
            "GROW": ("if state['step'] == 4:\n    state['phase'] = 'hard'",
                     "if state['step'] == 3:\n    optimizer.add_param_group({'params': model.grow().parameters()})",
                     "for group in optimizer.param_groups:\n    group['lr'] = 0.02 * min(1.0, state['step'] / 4)",
                     "if len(state['history']) > 3:\n    state['history'].pop(0)"),
        },
        "calls": {"step": "seen(step(*{batch}))", "rollout": "seen(rollout({batch}[0][:, :2], 2))", "rounds": "for _ in range(3):\n    seen(step(*{batch}))",
                  "rollout more": "seen(rollout({batch}[0][:, :1], 1 + state['step'] % 4))", "freezing": "seen(freezing(*{batch}))"},
        "events": {"length": "state['length'] = 1 + <K>", "phase": "state['phase'] = 'full'", "step": "state['step'] = <K>",
                   "grown": "optimizer.add_param_group({'params': model.grow().parameters()})"},
        "watched": "optimizer state",
    },
    "sequence_to_sequence": {
        "setup": """
import random as chance
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.cell, self.out = nn.Embedding(7, 6), nn.<<GRUCell || RNNCell>>(<<6 || 12>>, 6), nn.Linear(6, 7)
        self.wide = self.cell.input_size == 12
    def forward(self, token, h, memory):
        e = self.tokens(token)
        if self.wide:
            w = torch.softmax(torch.einsum('bw,btw->bt', h, memory), -1)
            e = torch.cat([e, torch.einsum('bt,btw->bw', w, memory)], -1)
        h = self.cell(e, h)
        return self.out(h), h
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.ratio = nn.GRU(6, 6, batch_first=True), Decoder(), 0.5
        self.up = nn.Embedding(7, 6)
    def encode(self, x):
        memory, h = self.encoder(self.up(x))
        return memory, <<h[-1] || h.squeeze(0) || memory[:, -1]>>
    def forward(self, x, target, ratio=None):
        ratio = self.ratio if ratio is None else ratio
        memory, h = self.encode(x)
        token, outs = target.new_zeros(len(x)), []
        for k in range(target.shape[1]):
            out, h = self.decoder(token, h, memory)
            outs.append(out)
            <TEACH>
        return torch.stack(outs, 1)
model = Model()
optimizer = torch.optim.<<Adam || SGD || AdamW>>(model.parameters(), lr=0.05)
def batch(n=3, t=4):
    return torch.randint(1, 7, (n, t)), torch.randint(1, 7, (n, t))
@compiled
def step(x, target, ratio=None):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x, target, ratio).flatten(0, 1), target.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def greedy(x, limit=4):
    with torch.no_grad():
        memory, h = model.encode(x)
        token, outs, done = x.new_zeros(len(x)), [], torch.zeros(len(x), dtype=torch.bool)
        <<for _ in range(limit): || while len(outs) < limit:>>
            out, h = model.decoder(token, h, memory)
            token = <<out.argmax(-1) || torch.multinomial(out.softmax(-1), 1).squeeze(1) || (out / 0.5).topk(3).indices[:, 0]>>
            << || token = token.masked_fill(done, 0) || token = torch.where(done, torch.zeros_like(token), token)>>
            outs.append(token)
            done |= token == 1
            << || if done.all(): break || if bool(done.all()): return torch.stack(outs, 1)>>
    return torch.stack(outs, 1)
@compiled
def beam(x, width=2, limit=3):
    with torch.no_grad():
        memory, h = model.encode(x[:1])
        <BEAM>
@compiled
def reinforced(x):
    optimizer.zero_grad()
    memory, h = model.encode(x)
    token, total = x.new_zeros(len(x)), 0.0
    for _ in range(3):
        out, h = model.decoder(token, h, memory)
        d = torch.distributions.Categorical(logits=out)
        token = d.sample()
        total = total + d.log_prob(token)
    gain = (token == x[:, -1]).to(total.dtype)
    loss = -((gain - gain.mean()) * total).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
""",
        "parts": {
            "TEACH": ("token = target[:, k] if chance.random() < ratio else out.argmax(-1)",
                      "if chance.random() < ratio:\n    token = target[:, k]\nelse:\n    token = out.detach().argmax(-1)",
                      "token = target[:, k] if torch.rand(1).item() < ratio else out.topk(1)[1].squeeze(-1)",
                      "coin = torch.rand(len(x)) < ratio\ntoken = torch.where(coin, target[:, k], out.argmax(-1))",
                      "use = k % 2 == 0 or ratio >= 1\ntoken = target[:, k] if use else out.max(1).indices",
                      "token = target[:, k] if self.training else out.argmax(-1)"),
            "BEAM": (
                "beams = [([0], 0.0, h)]\nfor _ in range(limit):\n    found = []\n    for tokens, score, state in beams:\n"
                "        if len(tokens) > 1 and tokens[-1] == 1:\n            found.append((tokens, score, state))\n            continue\n"
                "        out, state = model.decoder(torch.tensor([tokens[-1]]), state, memory)\n"
                "        values, places = out.log_softmax(-1)[0].topk(width)\n"
                "        for v, p in zip(values.tolist(), places.tolist()):\n            found.append((tokens + [p], score + v, state))\n"
                "    beams = sorted(found, key=lambda b: -b[1])[:width]\nreturn [(b[0], b[1]) for b in beams]",
                "scores, tokens = torch.zeros(1), torch.zeros(1, 1, dtype=torch.long)\nfor k in range(limit):\n"
                "    out, h = model.decoder(tokens[:, -1], h, memory.expand(len(tokens), -1, -1))\n"
                "    total = (scores[:, None] + out.log_softmax(-1)).flatten()\n    scores, place = total.topk(width)\n"
                "    row = <<place // 7 || torch.div(place, 7, rounding_mode='floor')>>\n    tokens = torch.cat([tokens[row], (place % 7)[:, None]], 1)\n    h = h[row]\n"
                "return tokens, scores",
                "import heapq\nheap = [(0.0, 0, [0], h)]\ncount = 0\nwhile heap and count < 6:\n    score, _, tokens, state = heapq.heappop(heap)\n"
                "    if len(tokens) > limit:\n        return tokens, score\n    out, state = model.decoder(torch.tensor(tokens[-1:]), state, memory)\n"
                "    for v, p in zip(*out.log_softmax(-1)[0].topk(width)):\n        count += 1\n"
                "        heapq.heappush(heap, (score - v.item(), count, tokens + [int(p)], state))\nreturn count",
            ),
        },
        "calls": {"step": "seen(step(*{batch}))", "taught": "seen(step(*{batch}, 1.0))", "free": "seen(step(*{batch}, 0.0))",
                  "greedy": "model.eval()\nseen(greedy({batch}[0]))\nmodel.train()", "beam": "seen(beam({batch}[0]))",
                  "beam wider": "seen(beam({batch}[0], width=3))", "reinforced": "seen(reinforced({batch}[0]))"},
        "events": {"ratio": "model.ratio = <F> / 2", "python seed": "chance.seed(<K>)"},
        "lengths": True,
    },
    "uneven_accumulation": {
        "setup": f"""{MODEL}{ROWS}"""
        """
optimizer = torch.optim.<<SGD || Adam || AdamW>>([{'params': [p], 'lr': 0.02 * 0.8 ** k, 'name': n} for k, (n, p) in enumerate(model.named_parameters())])
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [<<(lambda k, i=i: 0.9 ** (k * (i + 1))) || (lambda k: 1 / (1 + k))>> for i in range(len(optimizer.param_groups))])
state = {'micro': 0, 'tokens': 0, 'step': 0}
@compiled
def step(parts):
    total = sum(len(x) for x, _ in parts)
    losses = []
    optimizer.zero_grad()
    for k, (x, target) in enumerate(parts):
        << || last = k == len(parts) - 1>>
        loss = F.cross_entropy(model(x), target, reduction='sum') / total
        loss.backward()
        losses.append(<<loss.detach() || loss.item()>>)
    optimizer.step()
    scheduler.step()
    return sum(losses)
@compiled
def micro(x, target, every=3):
    loss = F.cross_entropy(model(x), target)
    (loss / every).backward()
    state['micro'] += 1
    state['tokens'] += x.shape[0]
    if state['micro'] % every == 0 << || or state['tokens'] > 20>>:
        << || for p in model.parameters(): p.grad.mul_(every / max(state['micro'], 1))>>
        optimizer.step()
        optimizer.zero_grad(<< || set_to_none=False>>)
        state['tokens'] = 0
        scheduler.step()
    return {'loss': loss.detach(), 'rates': scheduler.get_last_lr()}
@compiled
def scaled(x, target):
    loss = F.cross_entropy(model(x), target)
    << || loss = loss + sum(g['weight_decay'] * p.square().sum() for g in optimizer.param_groups for p in g['params'])>>
    loss.backward()
    norms = {g['name']: g['params'][0].grad.norm() for g in optimizer.param_groups if g['params'] and 'name' in g and g['params'][0].grad is not None}
    for g in optimizer.param_groups:
        if g.get('name', '').endswith('bias'):
            <<g['lr'] = g['lr'] * 0.99 || g['weight_decay'] = 0.001>>
    optimizer.step()
    optimizer.zero_grad()
    return norms
""",
        "calls": {"step": "now = {batch}\nseen(step([now, shorter(now, 1), shorter(now, 3)]))", "step of two": "now = {batch}\nseen(step([shorter(now, 2), now]))",
                  "micro": "seen(micro(*{batch}))", "micro each": "seen(micro(*{batch}, every=1))", "scaled": "seen(scaled(*{batch}))",
                  "split": "x, target = {batch}\nseen(step([*zip(x.split(3), target.split(3))]))"},
        "events": {"micro": "state['micro'] = <K>", "rates": "for g in optimizer.param_groups:\n    g['lr'] = 0.01 * <F>"},
        "schedulers": "scheduler", "watched": "optimizer scheduler state",
    },
    "low_rank": {
        "setup": f"""
class LoRA(nn.Module):
    def __init__(self, base, rank=2, alpha=4.0):
        super().__init__()
        self.base, self.rank, self.scaling, self.enabled = base, rank, alpha / rank, True
        self.a = nn.Parameter(0.1 * torch.randn(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.drop = nn.Dropout(<<0.0 || 0.2>>)
        base.requires_grad_(False)
    @property
    def weight(self):
        return self.base.weight + self.scaling * self.b @ self.a
    def forward(self, x):
        if not self.enabled:
            return self.base(x)
        <<return F.linear(x, self.weight, self.base.bias) || return self.base(x) + self.drop(x) @ self.a.t() @ self.b.t() * self.scaling>>
{MODEL}{ROWS}"""
        """
def adapted(rank=2):
    for name, module in [*model.named_modules()]:
        if isinstance(module, nn.Linear) and not name.endswith('base') and 'original' not in name:
            where = model.get_submodule(name.rpartition('.')[0]) if '.' in name else model
            setattr(where, name.rpartition('.')[2], LoRA(module, rank))
    return [p for n, p in model.named_parameters() if p.requires_grad and (n.endswith('.a') or n.endswith('.b'))]
optimizer = torch.optim.AdamW(adapted(), lr=0.05)
@compiled
def step(x, target):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), target)
    << || loss = loss + 0.01 * sum((m.a @ m.a.t() - torch.eye(m.rank)).square().sum() for m in model.modules() if isinstance(m, LoRA))>>
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def preferred(x, target):
    optimizer.zero_grad()
    scores = model(x).log_softmax(-1)
    for m in model.modules():
        if isinstance(m, LoRA):
            m.enabled = False
    with torch.no_grad():
        before = model(x).log_softmax(-1)
    for m in model.modules():
        if isinstance(m, LoRA):
            m.enabled = True
    chosen, other = target[:, None], (target[:, None] + 1) % 5
    gain = (scores - before).gather(1, chosen) - (scores - before).gather(1, other)
    loss = -F.logsigmoid(0.5 * gain).mean()
    loss.backward()
    optimizer.step()
    return loss.detach(), gain.detach().gt(0).double().mean()
@compiled
def merged(x):
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, LoRA):
                <<m.base.weight.copy_(m.weight) || m.base.weight.data = m.weight.data || m.base.weight += m.scaling * m.b @ m.a>>
                m.b.zero_()
        return model(x)
""",
        "calls": {"step": "seen(step(*{batch}))", "preferred": "seen(preferred(*{batch}))", "merged": "seen(merged({batch}[0]))"},
        "events": {"disabled": "for m in model.modules():\n    if isinstance(m, LoRA):\n        m.enabled = not m.enabled",
                   "base trained": "for m in model.modules():\n    if isinstance(m, LoRA):\n        m.base.requires_grad_(True)",
                   "adapted again": "model.head = LoRA(nn.Linear(8, 5), 1 + <K>)\noptimizer.add_param_group({'params': [model.head.a, model.head.b]})",
                   "scaling": "for m in model.modules():\n    if isinstance(m, LoRA):\n        m.scaling = <F>"},
    },
}
