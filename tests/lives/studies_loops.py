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
    "master_weights": {
        "setup": f"""
torch.set_default_dtype(torch.float32)
{MODEL}{ROWS}"""
        """
<<model.bfloat16() || model.body.bfloat16() || model.half() || model.head.bfloat16()>>
<<for m in model.modules(): || for m in ():>>
    if isinstance(m, (nn.LayerNorm, nn.BatchNorm1d)):
        m.float()
masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.<<SGD(masters, lr=0.05, momentum=0.9) || Adam(masters, lr=0.02) || AdamW(masters, lr=0.02, foreach=True)>>
shadow, scale = copy.deepcopy(model), {'value': 8.0, 'good': 0}
def call(x):
    h = model.body[0](x.to(model.body[0].weight.dtype))
    m = model.body[1]
    h = m(h.to(next(m.parameters()).dtype) if [*m.parameters()] else h)
    return model.head(h.to(model.head.weight.dtype)).float()
@compiled
def step(x, target):
    loss = F.cross_entropy(call(x), target)
    (loss * scale['value']).backward()
    <COLLECT>
    finite = <<all(bool(m.grad.isfinite().all()) for m in masters) || torch.stack([m.grad.isfinite().all() for m in masters]).all().item() || True>>
    if finite:
        << || nn.utils.clip_grad_norm_(masters, 1.0)>>
        optimizer.step()
        scale['good'] += 1
    else:
        scale['value'] /= 2
        scale['good'] = 0
    if scale['good'] == 3:
        scale['value'], scale['good'] = scale['value'] * 2, 0
    with torch.no_grad():
        <<for p, m in zip(model.parameters(), masters): || for m, p in zip(masters, [*model.parameters()]):>>
            <<p.copy_(m) || p.data = m.data.to(p.dtype) || p.data.copy_(m.data)>>
    model.zero_grad()
    return loss.detach()
@compiled
def followed():
    with torch.no_grad():
        for s, m in zip(shadow.parameters(), masters):
            <<s.lerp_(m.to(s.dtype), 0.1) || s.mul_(0.9).add_(m, alpha=0.1) || s.copy_(0.9 * s.float() + 0.1 * m)>>
        return sum((s.float() - m).square().sum() for s, m in zip(shadow.parameters(), masters))
""",
        "parts": {"COLLECT": (
            "for p, m in zip(model.parameters(), masters):\n    m.grad = p.grad.float() / scale['value']",
            "for p, m in zip(model.parameters(), masters):\n    if m.grad is None:\n        m.grad = torch.empty_like(m)\n    m.grad.copy_(p.grad).div_(scale['value'])",
            "grads = torch._foreach_div([p.grad.float() for p in model.parameters()], scale['value'])\nfor m, g in zip(masters, grads):\n    m.grad = g",
        )},
        "calls": {"step": "seen(step(*{batch}))", "followed": "seen(followed())"},
        "events": {"scale": "scale['value'] = 2.0 ** <K>", "masters anew": "with torch.no_grad():\n    for p, m in zip(model.parameters(), masters):\n        m.copy_(p)"},
        "watched": "optimizer masters scale", "models": "model shadow",
    },
    "dictionaries": {
        "setup": f"""
import collections, dataclasses, functools, typing
@dataclasses.dataclass
class Config:
    width: int = 8
    act: str = 'tanh'
    weights: dict = dataclasses.field(default_factory=lambda: {{'ce': 1.0, 'l2': 0.01, 'entropy': 0.1}})
    warmup: int = 2
    use: typing.Optional[bool] = None
    @property
    def extra(self):
        return bool(self.use) and self.width > 4
    def get(self, name, default=None):
        return getattr(self, name, default)
ACTS = {{'tanh': torch.tanh, 'relu': F.relu, 'gelu': functools.partial(F.gelu, approximate='tanh'), 'silu': nn.SiLU()}}
LOSSES = {{}}
def registered(name):
    def add(function):
        LOSSES[name] = function
        return function
    return add
@registered('ce')
def cross_entropy(out, target, **_):
    return F.cross_entropy(out, target)
@registered('l2')
def squares(*_, model, **__):
    return sum(p.square().sum() for p in model.parameters())
@registered('entropy')
def entropy(out, *_, temperature=1.0, **__):
    p = (out / temperature).softmax(-1)
    return -(p * p.clamp(min=1e-9).log()).sum(-1).mean()
class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layers = {{'in': nn.Linear(6, config.width), 'out': nn.Linear(config.width, 5)}}
        for name, layer in self.layers.items():
            self.add_module(f'layer_{{name}}', layer)
        self.side, self.outputs = nn.Linear(6, 5), {{}}
    def forward(self, x):
        h = ACTS[self.config.act](self.layers['in'](x))
        out = {{'hidden': h, 'logits': self.layers['out'](h)}}
        if self.config.extra:
            out['logits'] = out['logits'] + self.side(x)
        << || self.outputs.update(out) || self.outputs = {{k: v.detach() for k, v in out.items()}}>>
        return <<out || collections.OrderedDict(out) || {{**out, 'norm': h.norm()}}>>
config = Config()
model, logs, meters = Model(config), [], collections.defaultdict(float)
optimizer = torch.optim.<<SGD || Adam || AdamW>>(model.parameters(), lr=0.05)
{ROWS}"""
        """
@compiled
def step(x, target, number=0):
    optimizer.zero_grad()
    out = model(x)
    found = {name: LOSSES[name](out['logits'], target, model=model<< || , temperature=0.7>>) for name in <<config.weights || sorted(config.weights) || config.weights.keys()>>}
    loss = sum(<<config.weights[k] * v for k, v in found.items() || w * found[k] for k, w in config.weights.items() if w>>)
    << || loss = loss + config.get('margin', 0.0) * out['hidden'].abs().mean()>>
    loss.backward()
    if number < config.warmup:
        for group in optimizer.param_groups:
            group['lr'] = 0.05 * (number + 1) / max(config.warmup, 1)
    optimizer.step()
    for name, value in found.items():
        meters[name] += <<value.item() || float(value) || value.detach()>>
    << || logs.append(f'{number}: ' + ', '.join(f'{k}={v:.1f}' for k, v in meters.items())) || logs.append({'loss': loss.detach(), 'step': number})>>
    return <<{**found, 'loss': loss} || dataclasses.asdict(config)['weights'] || {k: v.detach() for k, v in found.items()} || {'loss': loss.detach(), **vars(config)['weights']}>>
@compiled
def sweep(x):
    with torch.no_grad():
        return {act: ACTS[act](model.layers['in'](x)).mean() for act in ACTS}
@compiled
def hooked(x):
    << || seen_ = []>>
    out = model(x)
    return {k: v.shape for k, v in out.items()}, {k: tuple(v.detach().sum(0)[:2].tolist()) for k, v in out.items() if v.ndim > 1}
""",
        "calls": {"step": "seen(step(*{batch}))", "numbered": "for number in range(3):\n    seen(step(*{batch}, number))",
                  "sweep": "seen(sweep({batch}[0]))", "hooked": "seen(hooked({batch}[0]))",
                  "other config": "config, model.config = dataclasses.replace(config, act='relu'), config\nmodel.config = config\nseen(step(*{batch}))"},
        "events": {"act": "config.act = [*ACTS][<K>]", "weights": "config.weights['l2'] = 0.01 * <F>", "a loss less": "config.weights.pop('entropy', None)",
                   "a loss more": "LOSSES['size'] = lambda out, *_, **__: out.abs().mean()\nconfig.weights['size'] = <F>", "use": "config.use = not config.use",
                   "warmup": "config.warmup = <K>", "a layer replaced": "model.layers['out'] = model.layer_out = nn.Linear(config.width, 5)",
                   "margin": "config.margin = <F>", "meters": "meters.clear()", "width": "config.width = 3 if config.width == 8 else 8"},
        "watched": "optimizer meters config",
    },
    "consistency": {
        "setup": f"""
import numpy as np
import random as chance
{MODEL}
predictor, target_net = nn.Linear(5, 5), copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.<<SGD || Adam || AdamW>>([*model.parameters(), *predictor.parameters()], lr=0.02)
centre, bank, state = torch.zeros(5), torch.zeros(8, 5), {{'at': 0, 'step': 0}}
{ROWS}"""
        """
def view(x):
    <<return x + 0.1 * torch.randn_like(x) || return x * (torch.rand(x.shape) > 0.2) || return F.dropout(x, 0.2) || return x[:, torch.randperm(x.shape[1])]>>
@compiled
def step(x, target):
    optimizer.zero_grad()
    a, b = model(view(x)), model(view(x))
    <LOSS>
    loss.backward()
    optimizer.step()
    state['step'] += 1
    decay = <<0.9 || 1 - 0.1 * (1 + state['step'] / 10) ** -1 || min(0.99, state['step'] / (state['step'] + 3))>>
    with torch.no_grad():
        for t, p in zip(target_net.parameters(), model.parameters()):
            <<t.mul_(decay).add_(p, alpha=1 - decay) || t.lerp_(p, 1 - decay) || t.data = decay * t.data + (1 - decay) * p.data>>
    return loss.detach()
@compiled
def mixed(x, target):
    optimizer.zero_grad()
    <MIX>
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def semi(x, target):
    optimizer.zero_grad()
    with torch.no_grad():
        p, guess = model(view(x)).softmax(-1).max(-1)
    sure = p > <<0.25 || p.median() || 0.9>>
    loss = (F.cross_entropy(model(x), guess, reduction='none') * sure).mean()
    << || if sure.any(): loss = loss + F.cross_entropy(model(x[sure]), guess[sure])>>
    loss = loss + F.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    return loss.detach(), sure.sum()
""",
        "parts": {
            "LOSS": (
                "z = F.normalize(torch.cat([a, b]), dim=1)\ns = z @ z.t() / 0.5\ns.fill_diagonal_(float('-inf'))\n"
                "n = len(x)\nloss = F.cross_entropy(s, torch.cat([torch.arange(n) + n, torch.arange(n)]))",
                "with torch.no_grad():\n    t = target_net(x)\nloss = 2 - 2 * F.cosine_similarity(predictor(a), t).mean()",
                "a, b = (a - a.mean(0)) / (a.std(0) + 1e-3), (b - b.mean(0)) / (b.std(0) + 1e-3)\nc = a.t() @ b / len(x)\n"
                "on = (c.diagonal() - 1).square().sum()\nloss = on + 0.01 * (c.square().sum() - c.diagonal().square().sum())",
                "cov = (a - a.mean(0)).t() @ (a - a.mean(0)) / max(len(x) - 1, 1)\noff = cov - torch.diag(cov.diagonal())\n"
                "loss = F.mse_loss(a, b) + F.relu(1 - (a.var(0) + 1e-4).sqrt()).mean() + off.square().sum() / 5",
                "with torch.no_grad():\n    t = ((target_net(x) - centre) / 0.1).softmax(-1)\n"
                "    centre.mul_(0.9).add_(target_net(x).mean(0), alpha=0.1)\nloss = -(t * (a / 0.2).log_softmax(-1)).sum(-1).mean()",
                "k = F.normalize(target_net(x), dim=1)\npositive = (F.normalize(a, dim=1) * k).sum(1, keepdim=True)\n"
                "loss = F.cross_entropy(torch.cat([positive, a @ bank.t().clone()], 1), torch.zeros(len(x), dtype=torch.long))\n"
                "n = min(len(x), 8 - state['at'])\nbank[state['at']:state['at'] + n] = k[:n].detach()\nstate['at'] = (state['at'] + n) % 8",
                "q = torch.exp(a.detach() / 0.5).t()\nfor _ in range(3):\n    q = q / q.sum(1, keepdim=True) / 5\n    q = q / q.sum(0, keepdim=True) / len(x)\n"
                "loss = -((q * len(x)).t() * b.log_softmax(1)).sum(1).mean()",
                "d = torch.pdist(a)\nloss = torch.exp(-2 * d.square()).mean().add(1e-3).log() + F.pairwise_distance(a, b).mean()",
                "g = torch.Generator().manual_seed(3)\npairs = torch.randperm(len(x), generator=g)\nloss = F.triplet_margin_loss(a, b, b[pairs])",
            ),
            "MIX": (
                "share = <<float(np.random.beta(0.5, 0.5)) || np.random.beta(1.0, 1.0) || chance.betavariate(0.5, 0.5) || torch.distributions.Beta(0.5, 0.5).sample()>>\n"
                "order = torch.randperm(len(x))\nout = model(share * x + (1 - share) * x[order])\n"
                "loss = share * F.cross_entropy(out, target) + (1 - share) * F.cross_entropy(out, target[order])",
                "low = chance.randrange(3)\nx = x.clone()\nx[:, low:low + 2] = x.flip(0)[:, low:low + 2]\nloss = F.cross_entropy(model(x), target)",
                "if np.random.rand() < 0.5:\n    x = x.flip(1)\nloss = F.cross_entropy(model(x), target)",
                "each = F.cross_entropy(model(x), target, reduction='none')\nloss = each.topk(max(1, len(x) // 2)).values.mean()",
                "each = F.cross_entropy(model(x), target, reduction='none')\nhard = each.detach() > each.detach().mean()\nloss = each[hard].sum() / hard.sum().clamp(min=1)",
                "w = torch.bincount(target, minlength=5).to(x.dtype)\nw = (1 / w.clamp(min=1)) / (1 / w.clamp(min=1)).sum()\nloss = F.cross_entropy(model(x), target, weight=w)",
                "x = x.clone().requires_grad_()\nfirst = F.cross_entropy(model(x), target)\ng, = torch.autograd.grad(first, x<< || , create_graph=True || , retain_graph=True>>)\n"
                "loss = first + F.cross_entropy(model(x + 0.05 * g.sign()), target)",
                "delta = torch.zeros_like(x).uniform_(-0.1, 0.1).requires_grad_()\nfor _ in range(2):\n    F.cross_entropy(model(x + delta), target).backward()\n"
                "    with torch.no_grad():\n        delta += 0.05 * delta.grad.sign()\n        delta.clamp_(-0.1, 0.1)\n    delta.grad<< = None || .zero_()>>\n"
                "optimizer.zero_grad()\nloss = F.cross_entropy(model(x + delta.detach()), target)",
            ),
        },
        "calls": {"step": "seen(step(*{batch}))", "mixed": "np.random.seed(3)\nseen(mixed(*{batch}))", "semi": "seen(semi(*{batch}))"},
        "events": {"centre": "centre.zero_()", "bank": "bank = torch.ones(8, 5)", "python seed": "chance.seed(<K>)", "at": "state['at'] = 2 * <K>"},
        "models": "model target_net predictor", "watched": "optimizer centre bank state",
    },
    "diffusion": {
        "setup": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.label = nn.Linear(6, 8), nn.Linear(8, 6), nn.Embedding(6, 8)
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
    def embed(self, t):
        rates = torch.exp(-torch.arange(4) * (torch.log(torch.tensor(100.0)) / 4)).to(self.one.weight.dtype)
        angles = t<<[:, None].to(rates.dtype) || .view(-1, 1).double()>> * rates
        return self.time(torch.cat([angles.sin(), angles.cos()], -1).to(rates.dtype))
    def forward(self, x, t, label=None):
        h = self.one(x) + self.embed(t)
        if label is not None:
            h = h + self.label(label)
        return self.two(F.silu(h))
class Schedule(nn.Module):
    def __init__(self, steps=6):
        super().__init__()
        betas = <<torch.linspace(1e-2, 0.3, steps) || torch.sigmoid(torch.linspace(-4, 0, steps))>>
        for name, value in dict(betas=betas, alphas=(1 - betas).cumprod(0)).items():
            self.register_buffer(name, value)
        self.steps = steps
    def noised(self, x, t, noise):
        a = <<self.alphas[t][:, None] || self.alphas.gather(0, t)[:, None] || self.alphas[t].view(-1, *(1,) * (x.ndim - 1))>>
        return a.sqrt() * x + (1 - a).sqrt() * noise
model, schedule = Model(), Schedule()
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.<<Adam || AdamW>>(model.parameters(), lr=0.02)
def batch(n=4):
    return torch.randn(n, 6), torch.randint(5, (n,))
@compiled
def step(x, label):
    t = <<torch.randint(schedule.steps, (len(x),)) || torch.randint(0, schedule.steps, (x.shape[0],)).sort().values>>
    noise = torch.randn_like(x)
    << || label = torch.where(torch.rand(len(x)) < 0.3, 5, label)>>
    given = <<label || None || label if torch.rand(()) > 0.3 else None>>
    noisy = schedule.noised(x, t, noise)
    optimizer.zero_grad()
    guess = model(noisy, t, given)
    each = F.mse_loss(guess, noise, reduction='none').mean(1)
    w = <<1.0 || (schedule.alphas / (1 - schedule.alphas)).clamp(max=5)[t] || torch.minimum(schedule.alphas[t], torch.tensor(0.5))>>
    loss = (w * each).mean()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    return loss.detach()
@compiled
def sample(n, scale=1.0):
    <<with torch.no_grad(): || with torch.inference_mode():>>
        x = torch.randn(n, 6)
        for k in <<reversed(range(schedule.steps)) || range(schedule.steps - 1, -1, -1) || torch.arange(schedule.steps).flip(0)>>:
            t = <<torch.full((n,), int(k)) || torch.ones(n, dtype=torch.long) * int(k)>>
            guess = average(x, t)
            if scale != 1.0:
                guess = guess + scale * (average(x, t, torch.zeros(n, dtype=torch.long)) - guess)
            b, a = schedule.betas[int(k)], schedule.alphas[int(k)]
            x = (x - b / (1 - a).sqrt() * guess) / (1 - b).sqrt()
            if k > 0:
                x = x + b.sqrt() * torch.randn_like(x)
        return x<< || .clamp(-3, 3)>>
@compiled
def matched(x, label):
    optimizer.zero_grad()
    t = torch.rand(len(x), 1)
    << || t = torch.sigmoid(torch.randn(len(x), 1))>>
    start = torch.randn_like(x)
    now = <<torch.lerp(start, x, t) || (1 - t) * start + t * x>>
    loss = (model(now, t.squeeze(1) * 6, label) - (x - start)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def scores(x, label):
    x = x.detach().requires_grad_()
    s = model(x, torch.zeros(len(x)), None)
    v = torch.randn_like(x)
    g, = torch.autograd.grad((s * v).sum(), x, create_graph=True)
    return ((g * v).sum(1) + 0.5 * s.square().sum(1)).mean()
""",
        "calls": {"step": "seen(step(*{batch}))", "sample": "seen(sample(3))", "guided": "seen(sample(2, scale=<<2.0 || 1.5>>))", "matched": "seen(matched(*{batch}))",
                  "scores": "optimizer.zero_grad()\nloss = scores(*{batch})\nloss.backward()\noptimizer.step()\nseen(loss)"},
        "events": {"steps": "schedule = Schedule(4 + <K>)", "average anew": "average = torch.optim.swa_utils.AveragedModel(model)"},
        "models": "model average schedule",
    },
    "second_derivatives": {
        "setup": f"""{MODEL}{ROWS}"""
        """
trained = [*model.parameters()]
optimizer = torch.optim.<<SGD || Adam>>(trained, lr=0.02)
fisher, old = [torch.zeros_like(p) for p in trained], [p.detach().clone() for p in trained]
stats, momentum = {}, [torch.zeros_like(p) for p in trained]
def products(loss, vectors):
    grads = torch.autograd.grad(loss, trained, create_graph=True)
    dot = sum((g * v).sum() for g, v in zip(grads, vectors))
    return torch.autograd.grad(dot, trained)
@compiled
def curvature(x, target):
    loss = F.cross_entropy(model(x), target)
    signs = [<<torch.randint(2, p.shape).to(p.dtype) * 2 - 1 || torch.randn_like(p) || torch.empty_like(p).bernoulli_(0.5).mul_(2).sub_(1)>> for p in trained]
    found = products(loss, signs)
    with torch.no_grad():
        for p, s, h, f in zip(trained, signs, found, fisher):
            f.mul_(0.9).add_((s * h).abs(), alpha=0.1)
            p.sub_(0.01 * torch.sign(p) / (f + 0.1))
    return loss.detach()
@compiled
def conjugate(x, target):
    b = torch.autograd.grad(F.cross_entropy(model(x), target), trained)
    z = [torch.zeros_like(g) for g in b]
    r, p = [g.clone() for g in b], [g.clone() for g in b]
    rr = sum((g * g).sum() for g in r)
    for _ in range(3):
        ap = [h + 0.1 * v for h, v in zip(products(F.cross_entropy(model(x), target), p), p)]
        alpha = rr / (sum((u * v).sum() for u, v in zip(p, ap)).abs() + 1e-6)
        z = [u + alpha * v for u, v in zip(z, p)]
        r = [u - alpha * v for u, v in zip(r, ap)]
        new = sum((g * g).sum() for g in r)
        << || if new < 1e-8: break || if new.sqrt().item() < 1e-4: break>>
        p = [u + new / (rr + 1e-9) * v for u, v in zip(r, p)]
        rr = new
    with torch.no_grad():
        torch._foreach_add_(trained, z, alpha=-0.05)
    return rr.detach()
@compiled
def anchored(x, target):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), target)
    loss = loss + sum((f * (p - o).square()).sum() for f, p, o in zip(fisher, trained, old))
    loss.backward()
    optimizer.step()
    return loss.detach()
@compiled
def squared(x, target):
    total = [torch.zeros_like(p) for p in trained]
    for k in range(len(x)):
        grads = torch.autograd.grad(F.cross_entropy(model(x[k:k + 1]), target[k:k + 1]), trained)
        total = [<<t + g.square() || torch.addcmul(t, g, g)>> for t, g in zip(total, grads)]
    with torch.no_grad():
        for f, t, o, p in zip(fisher, total, old, trained):
            f.copy_(t / max(len(x), 1))
            o.copy_(p)
    return sum(f.sum() for f in fisher)
@compiled
def orthogonal(x, target):
    grads = torch.autograd.grad(F.cross_entropy(model(x), target), trained)
    with torch.no_grad():
        for p, g, m in zip(trained, grads, momentum):
            m.mul_(0.9).add_(g)
            if p.ndim < 2:
                p.sub_(0.02 * m)
                continue
            u = m / (m.norm() + 1e-7)
            << || if u.shape[0] > u.shape[1]: u = u.t()>>
            for _ in range(2):
                u = 1.5 * u - 0.5 * u @ u.t() @ u
            p.sub_(0.02 * (u if u.shape == p.shape else u.t()))
    return momentum[0].norm()
@compiled
def evolved(x, target, count=3, sigma=0.05):
    with torch.no_grad():
        base = nn.utils.parameters_to_vector(trained)
        total = torch.zeros_like(base)
        for k in range(count):
            << || torch.manual_seed(k)>>
            noise = torch.randn_like(base)
            scores = []
            for sign in (1, -1):
                nn.utils.vector_to_parameters(base + sign * sigma * noise, trained)
                scores.append(F.cross_entropy(model(x), target)<< || .item()>>)
            total += (scores[0] - scores[1]) / (2 * sigma) * noise
        nn.utils.vector_to_parameters(base - 0.05 * total / count, trained)
    return total.norm()
""",
        "calls": {name: f"seen({name}(*{{batch}}))" for name in ("curvature", "conjugate", "anchored", "squared", "orthogonal", "evolved")},
        "events": {"old": "old = [p.detach().clone() for p in trained]", "fisher": "for f in fisher:\n    f.fill_(0.1)", "fewer": "trained = trained[:2]",
                   "all": "trained = [*model.parameters()]\nfisher, old, momentum = ([torch.zeros_like(p) for p in trained] for _ in range(3))"},
        "watched": "optimizer fisher old momentum",
    },
}
