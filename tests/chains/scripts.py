"""Statements as training scripts have them around operators, as in `written`: masks by lengths, packing by truth values,
buffers that are updated without gradients, small loops with counters, gradients that are taken and used within.
"""

from __future__ import annotations

#: Makes `leaf`, a leaf with the numbers of a tensor, in a block with gradients; the lines that follow are indented.
_LEAF = "with torch.enable_grad():\n    leaf = {f}.detach().clone().requires_grad_()\n    "


def _with_leaf(*lines: str, result: str = "leaf.grad") -> str:
    return _LEAF + "\n    ".join(lines) + "\n{v} = " + result


BLOCKS = (
    # masks and packing
    "mask = torch.arange({x1}.shape[-1])[None] < torch.arange(1, 4)[:, None]\n{v} = mask * 1 + {x1}.flatten()[:1]",
    "lengths = 1 + torch.arange({x2}.shape[0]) % {x2}.shape[1]\nmask = torch.arange({x2}.shape[1]) < lengths[:, None]\n"
    "{v} = torch.zeros_like({x2})\n{v}[mask] = {x2}[mask] * 2",
    "keep = {f1}.flatten() > 0\npacked = {f1}.flatten()[keep]\n{v} = torch.zeros_like({f1}).flatten()\n"
    "{v}[keep] = packed * 2",
    "keep = ({x1}.flatten() == {x1}.flatten()).nonzero()[:, 0]\n{v} = {x1}.flatten()[keep] + 1",
    "scores = {f2} @ {f2}.mT\nmask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()\n"
    "{v} = scores.masked_fill(~mask, float('-inf')).softmax(-1)",
    "scores = {f2} @ {f2}.mT\nmask = torch.full(scores.shape[-2:], float('-inf'), dtype=scores.dtype).triu(1)\n"
    "{v} = (scores + mask).log_softmax(-1).exp()",
    "least = {f1}.topk(1).values[..., -1:]\n{v} = {f1} * ({f1} >= least)",
    "{v} = ({x1} > 0).cumsum(-1).cumprod(-1)", "{v} = F.pad({x1}.cumsum(-1)[..., :-1], (1, 0))",
    "{v} = torch.where({f} > 0, {f}.clamp(min=1e-3).log(), torch.zeros_like({f}))",
    "{v} = (torch.arange({x1}.shape[-1]) == {x1}.shape[-1] - 1).to({x1}.dtype) * {x1}",
    "ids = torch.arange({f1}.numel()) % 3\nsums = torch.zeros(3, dtype={f1}.dtype).index_add(0, ids, {f1}.flatten())\n"
    "counts = torch.bincount(ids, minlength=3)\n{v} = sums / counts.clamp(min=1)",
    "counts = torch.zeros(10)\ncounts.index_add_(0, {w}.flatten().abs().clamp(0, 9).long(), torch.ones({w}.numel()))\n"
    "{v} = counts[{w}.abs().clamp(0, 9).long()]",
    "order = {f1}.flatten().argsort(stable=True)\nranks = torch.empty_like(order)\n"
    "ranks[order] = torch.arange(len(order))\n"
    "{v} = ranks + 1",
    # buffers without gradients
    "buf = torch.zeros_like({f})\nwith torch.no_grad():\n    buf.copy_(torch.where({f} > 0, {f}, buf))\n"
    "    buf[buf > 1] = 1\n"
    "{v} = {f} * buf",
    "buf = {f}.detach().clone()\nwith torch.no_grad():\n    for k in range(3):\n"
    "        buf.mul_(0.9).add_({f}, alpha=0.1)\n"
    "{v} = {f} - buf",
    "buf, old = torch.zeros_like({f}), {f}.detach()\nbuf.lerp_(old, 0.5)\nbuf, old = old, buf\n{v} = buf - old",
    "one, two = {f}.detach().clone(), torch.empty_like({f}.detach())\nfor k in range(3):\n"
    "    torch.mul(one, 0.5 + k, out=two)\n    one, two = two, one\n{v} = one + two",
    "rows = torch.zeros(3, {x1}.shape[-1], dtype={x1}.dtype)\nfor row in {x1}.reshape(-1, {x1}.shape[-1]):\n"
    "    rows = torch.cat([rows[1:], row[None]])\n{v} = rows * 1",
    "rows, place = torch.zeros(3, {x1}.shape[-1], dtype={x1}.dtype), 0\nfor row in {x1}.reshape(-1, {x1}.shape[-1]):\n"
    "    rows[place % 3] = row\n    place += 1\n{v} = rows + place",
    "@torch.no_grad()\ndef followed(t, rate=0.1):\n    return t.detach().clone().mul_(1 - rate).add_(t, alpha=rate)\n"
    "{v} = followed({f}) + {f}",
    "{x}.copy_(torch.where({x} > 0, {x}, {x} * 0))\n{v} = {x} + 1",
    "view = {x1}[..., :1]\nkept = view.clone()\n{x1}.mul_(2)\n{v} = view - kept",
    "holder = torch.nn.Module()\nholder.register_buffer('b', torch.ones(2))\nholder.b = holder.b * {n}\n"
    "holder.b += 1\n{v} = holder.b * {f}.sum()",
    # Python around tensors
    "rows, sums = zip(*[(row, row.sum()) for row in {x1}])\n{v} = torch.stack(rows) * torch.stack(sums).sum()",
    "{v} = sum(dict(a={x}, b={x} * 2).values())", "{v} = torch.stack([{x}, *[{x} * k for k in (2, 3)]]).sum(0)",
    "parts = dict(enumerate({x1}.unbind(0)))\n{v} = parts[max(parts)] - parts[min(parts)]",
    "def counter():\n    count = 0\n    def add(t):\n        nonlocal count\n        count += 1\n        return t * count\n"
    "    return add\nadd = counter()\n{v} = add({x}) + add({x})",
    "best = None\nfor row in {x1}:\n    best = row if best is None else torch.maximum(best, row)\n{v} = best * 1",
    "stack = [{x}]\nwhile stack and len(stack) < 4:\n    stack.append(stack[-1] * 2)\n{v} = stack.pop() - stack.pop(0)",
    "class Scaled:\n    calls = 0\n    def __call__(self, t):\n        type(self).calls += 1\n"
    "        return t * type(self).calls\n"
    "scaled = Scaled()\n{v} = scaled({x}) + scaled({x})",
    "import functools\n{v} = functools.reduce(torch.add, [{x}, {x}, {x}])",
    "import itertools\n{v} = torch.stack([t for t, _ in zip(itertools.cycle([{x}, {x} * 2]), range(3))])",
    "import collections\nPair = collections.namedtuple('Pair', 'a b')\npair = Pair({x}, b={x} + 1)\n"
    "{v} = pair._replace(a=pair.b).a + pair.a",
    "import collections\nqueue = collections.deque(maxlen=2)\nfor row in {x1}:\n    queue.append(row)\n"
    "{v} = torch.stack([*queue])",
    "total = 0.0\nfor k, part in enumerate({f1}.split(2)):\n    total = total + part.sum() * k\n{v} = total + {f1}",
    "mean = tidy({x}).float().mean().item()\n{v} = {x} * (2 if mean > 0.5 else 3)",
    "largest = tidy({x}).max().item() if {x}.numel() else 1\n{v} = {x} * largest + {y}",
    "scale = float(tidy({f}).sum()) * 0.5\nscale = 0.9 * scale + 0.1\n{v} = {f} * scale",
    # gradients within
    _with_leaf("gain = [2.0]", "leaf.register_hook(lambda g: g * gain[0])", "gain[0] = 3.0",
               "leaf.square().sum().backward()"),
    _with_leaf("seen = []", "out = leaf.sin()", "out.register_hook(lambda g: seen.append(g.sum()))",
               "out.sum().backward()",
               result="leaf.grad + seen[0]"),
    _with_leaf("out = leaf.tanh()", "out.retain_grad()", "(out * 2).sum().backward()", result="out.grad + leaf.grad"),
    _with_leaf("hidden = leaf.sin()", "(hidden * 2).sum().backward(retain_graph=True)",
               "hidden.square().sum().backward()"),
    _with_leaf("leaf.exp().clamp(max=3).sum().backward()", "with torch.no_grad():",
               "    leaf.grad.mul_(leaf).clamp_(-1, 1)"),
    _with_leaf("leaf.square().sum().backward()", "kept, leaf.grad = leaf.grad, None", "leaf.sin().sum().backward()",
               result="kept - leaf.grad"),
    _with_leaf("for k in range(3):", "    leaf.grad = None", "    (leaf.cos() * (k + 1)).sum().backward()",
               "    leaf.data.sub_(0.1 * leaf.grad)", result="leaf.detach() * 1"),
    _with_leaf("other = torch.ones_like(leaf).requires_grad_()", "(leaf * other).sum().backward(inputs=[other])",
               result="other.grad + (0 if leaf.grad is None else 1)"),
    _with_leaf("one, two = leaf.sin(), leaf.cos()",
               "torch.autograd.backward([one, two], [torch.ones_like(one), 2 * torch.ones_like(two)])"),
    _with_leaf("hidden = leaf.tanh()", "(push,) = torch.autograd.grad(hidden.square().sum(), hidden, retain_graph=True)",
               "(hidden * push.detach()).sum().backward()"),
    _with_leaf("hidden = leaf.tanh()", "here = hidden.detach().requires_grad_()", "(here * here.sin()).sum().backward()",
               "hidden.backward(here.grad)"),
    _with_leaf("(slope,) = torch.autograd.grad(leaf.pow(3).sum(), leaf, create_graph=True)",
               "(leaf.sum() + slope.square().sum()).backward()"),
    _with_leaf("opt = torch.optim.SGD([leaf], lr=0.1, momentum=0.9)", "for k in range(2):", "    opt.zero_grad()",
               "    leaf.square().sum().backward()", "    opt.step()", "    opt.param_groups[0]['lr'] *= 0.5",
               result="leaf.detach() + opt.state[leaf]['momentum_buffer']"),
    _with_leaf("opt = torch.optim.Adam([leaf], lr=0.1)", "leaf.sin().sum().backward()", "opt.step()",
               result="leaf.detach() + opt.state[leaf]['exp_avg']"),
    _with_leaf("weight = torch.nn.Parameter(leaf.detach() * 0.5)", "(leaf * weight).sum().backward()",
               "weight = torch.nn.Parameter(weight.detach() - 0.1 * weight.grad)", "(leaf * weight).sum().backward()",
               result="leaf.grad + weight.grad"),
    _with_leaf("torch.autograd.functional.hvp(lambda t: t.sin().sum(), leaf, leaf.detach())[1].sum()",
               "(leaf * 2).sum().backward()"),
    "{v} = torch.autograd.functional.jacobian(lambda t: t.sin().sum(), {f}.detach())",
    "{v} = {f} * 2\nif {v}.requires_grad:\n    gain = [2.0]\n    {v}.register_hook(lambda g: g * gain[0])\n"
    "    gain[0] = 3.0",
    "{v} = {f}.sin()\nif {v}.requires_grad:\n    (slope,) = torch.autograd.grad({v}.sum(), {f}, retain_graph=True)\n"
    "    {v} = {v} + slope.detach()",
    "base = {f}.detach().clone()\nbase[:1] = {f}[:1] * 2 if {f}.dim() else 0\n{v} = base + {f}",
    "one = torch.nn.Parameter({f}.detach().clone())\ntwo = torch.nn.Parameter(one.detach() * 2)\n"
    "one.data, two.data = two.data, one.data\n{v} = one.detach() - two.detach()",
    "net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Tanh())\n"
    "handle = net[0].register_forward_hook(lambda m, a, o: o * 2)\n"
    "{v} = net({f})\nhandle.remove()\n{v} = {v} + net({f})",
    "loss = {f}.square().mean()\n{v} = loss + 0 * {f}.sum()", "{v} = {f} / {f}.detach().abs().amax().clamp(min=1)",
    "ema = 0.0\nfor k in range(3):\n    ema = 0.9 * ema + 0.1 * {f}.sum() / (1 - 0.9 ** (k + 1))\n{v} = ema * 1",
)  # fmt: skip
