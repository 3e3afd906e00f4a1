"""Layers over (batch, time, width): attention, recurrence, convolution over time, gates, mixtures of experts."""

from __future__ import annotations

import math

from training.draft import Draft, Tokens, indented

# per token ------------------------------------------------------------------------------------------------------


def mlp(d: Draft, x: str, shape: Tokens) -> None:
    hidden = d.pick(shape.width // 2, shape.width, 2 * shape.width)
    up, down = d.linear(shape.width, hidden, "up"), d.linear(hidden, shape.width, "down")
    d.line(f"{x} = {down}({d.activation(f'{up}({x})')})")


def gated(d: Draft, x: str, shape: Tokens) -> None:
    hidden = d.pick(shape.width, 2 * shape.width)
    gate, up, down = (d.linear(a, b, k) for a, b, k in (
        (shape.width, hidden, "gate"), (shape.width, hidden, "up"), (hidden, shape.width, "down")
    ))  # fmt: skip
    d.line(f"{x} = {down}({d.pick('F.silu', 'F.gelu', 'torch.sigmoid', 'F.relu')}({gate}({x})) * {up}({x}))")


def glu(d: Draft, x: str, shape: Tokens) -> None:
    both = d.linear(shape.width, 2 * shape.width, "both")
    if d.chance(0.5):
        d.line(f"{x} = F.glu({both}({x}), dim=-1)")
    else:
        a, b = d.name("half"), d.name("half")
        d.line(f"{a}, {b} = {both}({x}).chunk(2, dim=-1)", f"{x} = {a} * {d.activation(b)}")


def scale(d: Draft, x: str, shape: Tokens) -> None:
    sizes = d.pick((shape.width,), (1,), (shape.time, 1), (1, shape.time, shape.width), ())
    d.line(f"{x} = {x} * {d.parameter(*sizes, around=1.0)}")


def shift(d: Draft, x: str, shape: Tokens) -> None:
    sizes = d.pick((shape.width,), (shape.time, shape.width), (1, shape.time, shape.width), (shape.time, 1))
    d.line(f"{x} = {x} + {d.parameter(*sizes, kind='shift')}")


def activation(d: Draft, x: str, shape: Tokens) -> None:
    if d.chance(0.2):
        d.line(f"{x} = {d.module('prelu', f'nn.PReLU({d.pick(1, shape.time)})')}({x})")
    else:
        d.line(f"{x} = {d.activation(x)}")


def low_rank(d: Draft, x: str, shape: Tokens) -> None:
    down, up = d.parameter(shape.width, 4, kind="low"), d.parameter(4, shape.width, kind="high")
    d.line(f"{x} = {d.linear(shape.width, shape.width)}({x}) + 2.0 * ({x} @ {down} @ {up})")


# attention ------------------------------------------------------------------------------------------------------


def _projected(d: Draft, x: str, shape: Tokens, heads: int) -> tuple[str, str, str]:
    b, t, w = shape.batch, shape.time, shape.width
    q, k, v = d.name("q"), d.name("k"), d.name("v")
    view = f"view({b}, {t}, {heads}, {w // heads}).transpose(1, 2)"
    if d.chance(0.5):
        qkv = d.linear(w, 3 * w, "qkv")
        d.line(f"{q}, {k}, {v} = (s.{view} for s in {qkv}({x}).split({w}, dim=2))")
    else:
        for name in (q, k, v):
            d.line(f"{name} = {d.linear(w, w, 'proj')}({x}).{view}")
    return q, k, v


def _joined(d: Draft, x: str, y: str, shape: Tokens) -> None:
    out = d.linear(shape.width, shape.width, "out")
    d.line(f"{x} = {out}({y}.transpose(1, 2).reshape({shape.batch}, {shape.time}, {shape.width}))")


def attention(d: Draft, x: str, shape: Tokens) -> None:
    q, k, v = _projected(d, x, shape, d.divisor(shape.width, 4))
    if d.chance(0.3):  # rotary positions
        for name in (q, k):
            half = d.name("rotated")
            d.line(f"{half} = torch.cat([-{name}[..., 1::2], {name}[..., ::2]], dim=-1)")
            d.line(f"{name} = {name} * 0.8 + {half} * 0.6") if shape.width % 2 == 0 else None
    d.line(f"{x}a = F.scaled_dot_product_attention({q}, {k}, {v}{d.pick('', ', is_causal=True')})")
    _joined(d, x, f"{x}a", shape)


def written_attention(d: Draft, x: str, shape: Tokens) -> None:
    heads = d.divisor(shape.width, 4)
    q, k, v = _projected(d, x, shape, heads)
    s = d.name("scores")
    d.line(f"{s} = {q} @ {k}.transpose(-2, -1) / {math.sqrt(shape.width // heads):.4f}")
    kind = d.pick("none", "causal", "bias", "filled")
    if kind == "causal":
        mask = d.buffer("mask", f"torch.triu(torch.full(({shape.time}, {shape.time}), float('-inf')), 1)")
        d.line(f"{s} = {s} + {mask}")
    elif kind == "bias":
        d.line(f"{s} = {s} + {d.parameter(heads, shape.time, shape.time, kind='relative')}")
    elif kind == "filled":
        d.line(f"{s} = {s}.masked_fill(torch.ones({shape.time}, {shape.time}, device=DEVICE).triu(1).bool(), float('-inf'))")
    if d.precision == "float64" and d.chance(0.3):
        d.line(f"{s} = F.dropout({s}.softmax(-1), 0.1, self.training)")
    else:
        d.line(f"{s} = torch.softmax({s}, dim=-1)")
    _joined(d, x, f"({s} @ {v})", shape)


def multihead(d: Draft, x: str, shape: Tokens) -> None:
    heads = d.divisor(shape.width, 4)
    options = d.pick("", ", bias=False", ", add_bias_kv=True", ", add_zero_attn=True")
    module = d.module("attention", f"nn.MultiheadAttention({shape.width}, {heads}, batch_first=True{options})")
    weights = d.pick("", ", need_weights=False")
    d.line(f"{x} = {module}({x}, {x}, {x}{weights})[0]")


def encoder_layer(d: Draft, x: str, shape: Tokens) -> None:
    options = [d.divisor(shape.width, 4), 2 * shape.width]
    first, kind = d.chance(0.5), d.pick("relu", "gelu")
    rate = d.pick(0.0, 0.1) if d.precision == "float64" else 0.0
    module = d.module(
        "encoder",
        f"nn.TransformerEncoderLayer({shape.width}, {options[0]}, {options[1]}, dropout={rate}, "
        f"activation='{kind}', batch_first=True, norm_first={first})",
    )
    d.line(f"{x} = {module}({x})")


def linear_attention(d: Draft, x: str, shape: Tokens) -> None:
    q, k, v = _projected(d, x, shape, d.divisor(shape.width, 4))
    d.line(f"{q}, {k} = F.elu({q}) + 1, F.elu({k}) + 1")
    d.line(f"{x}a = {q} @ ({k}.transpose(-2, -1) @ {v}) / ({q} * {k}.sum(2, keepdim=True)).sum(-1, keepdim=True)")
    _joined(d, x, f"{x}a", shape)


# over time ------------------------------------------------------------------------------------------------------


def cell(d: Draft, x: str, shape: Tokens) -> None:
    """A recurrent cell, unrolled."""
    kind, w = d.pick("GRUCell", "LSTMCell", "RNNCell"), shape.width
    module = d.module("cell", f"nn.{kind}({w}, {w})")
    h, c, outs = d.name("h"), d.name("c"), d.name("outs")
    sizes = f"{shape.batch}, {w}"
    d.line(f"{h} = {d.pick(f'torch.zeros({sizes}, device=DEVICE)', f'{x}.new_zeros({sizes})', f'{x}.mean(1)')}")
    d.line(f"{c}, {outs} = {h}, []", f"for t in range({shape.time}):")
    if kind == "LSTMCell":
        d.line(f"    {h}, {c} = {module}({x}[:, t], ({h}, {c}))")
    else:
        d.line(f"    {h} = {module}({x}[:, t], {h})")
    d.line(f"    {outs}.append({h})", f"{x} = torch.stack({outs}, dim=1)")


def written_recurrence(d: Draft, x: str, shape: Tokens) -> None:
    w = shape.width
    gate, candidate = d.linear(w, w, "gate"), d.linear(w, w, "candidate")
    z, v, h, outs = (d.name(k) for k in ("z", "v", "h", "outs"))
    d.line(f"{z}, {v} = torch.sigmoid({gate}({x})), {d.pick('torch.tanh', 'F.silu')}({candidate}({x}))")
    d.line(f"{h}, {outs} = {d.parameter(w, kind='start')}, []", f"for t in range({shape.time}):")
    d.line(f"    {h} = (1 - {z}[:, t]) * {h} + {z}[:, t] * {v}[:, t]", f"    {outs}.append({h})")
    d.line(f"{x} = torch.stack({outs}, 1)")


def recurrent(d: Draft, x: str, shape: Tokens) -> None:
    kind, w = d.pick("LSTM", "GRU", "RNN"), shape.width
    both = d.chance(0.3) and w % 2 == 0
    module = d.module("rnn", f"nn.{kind}({w}, {w // 2 if both else w}, batch_first=True{', bidirectional=True' * both})")
    d.line(f"{x} = {module}({x})[0]")


def convolution(d: Draft, x: str, shape: Tokens) -> None:
    w, size = shape.width, d.pick(1, 3, 5)
    groups = d.pick(1, 1, w, d.divisor(w, 4))
    causal = d.chance(0.3)
    padding = 0 if causal else size // 2
    module = d.module("conv", f"nn.Conv1d({w}, {w}, {size}, padding={padding}, groups={groups})")
    inner = f"{x}.transpose(1, 2)"
    d.line(f"{x} = {module}({f'F.pad({inner}, ({size - 1}, 0))' if causal else inner}).transpose(1, 2)")


def neighbour_mix(d: Draft, x: str, shape: Tokens) -> None:
    amount = d.parameter(shape.width, around=0.5, kind="mix")
    before = d.pick(f"torch.roll({x}, 1, dims=1)", f"F.pad({x}, (0, 0, 1, -1))")
    if d.precision != "autocast" and d.chance(0.5):
        d.line(f"{x} = torch.lerp({x}, {before}, {amount})")
    else:
        d.line(f"{x} = {x} + {amount} * ({before} - {x})")


def running_mean(d: Draft, x: str, shape: Tokens) -> None:
    d.line(f"{x} = {x}.cumsum(1) / torch.arange(1.0, {shape.time + 1}, device=DEVICE)[:, None]")


def squeeze(d: Draft, x: str, shape: Tokens) -> None:
    one, two = d.linear(shape.width, 4, "down"), d.linear(4, shape.width, "up")
    pooled = d.pick(f"{x}.mean(1, keepdim=True)", f"{x}.amax(1, keepdim=True)", f"{x}.logsumexp(1, keepdim=True)")
    d.line(f"{x} = {x} * torch.sigmoid({two}(F.relu({one}({pooled}))))")


def mixer(d: Draft, x: str, shape: Tokens) -> None:
    up, down = d.linear(shape.time, 2 * shape.time, "up"), d.linear(2 * shape.time, shape.time, "down")
    d.line(f"{x} = {down}({d.activation(f'{up}({x}.transpose(1, 2))')}).transpose(1, 2)")


# experts --------------------------------------------------------------------------------------------------------


def soft_experts(d: Draft, x: str, shape: Tokens) -> None:
    count, w = d.pick(2, 3, 4), shape.width
    router = d.linear(w, count, "router")
    experts = d.module("experts", f"nn.ModuleList([nn.Linear({w}, {w}) for _ in range({count})])")
    weights = d.name("weights")
    d.line(f"{weights} = torch.softmax({router}({x}), dim=-1)")
    terms = f"{weights}[..., k, None] * {d.pick('F.gelu', 'torch.tanh')}(e({x})) for k, e in enumerate({experts})"
    d.line(f"{x} = sum({terms})" if d.chance(0.5) else f"{x} = torch.stack([{terms}]).sum(0)")


def top_experts(d: Draft, x: str, shape: Tokens) -> None:
    count, w, k = d.pick(3, 4), shape.width, d.pick(1, 2)
    router, one = d.linear(w, count, "router"), d.parameter(count, w, w, kind="experts")
    values, indices, weights, parts, scores = (d.name(n) for n in ("values", "indices", "weights", "parts", "scores"))
    d.line(f"{scores} = {router}({x})", f"{values}, {indices} = {scores}.topk({k}, dim=-1)")
    d.line(f"{weights} = torch.zeros_like({scores}).scatter(-1, {indices}, torch.softmax({values}, -1))")
    d.line(f"{parts} = torch.einsum('btd,edf->btef', {x}, {one})")
    d.line(f"{x} = (F.relu({parts}) * {weights}[..., None]).sum(2)")


# state ----------------------------------------------------------------------------------------------------------


def counted(d: Draft, x: str, shape: Tokens) -> None:
    count = d.buffer("calls", d.pick("torch.zeros(())", "torch.zeros((), dtype=torch.long)", "torch.zeros(1)"))
    d.line(d.pick(f"{count}.add_(1)", f"{count} += 1"))
    d.line(f"{x} = {x} * (1 + 0.1 / (1 + {count}))" if d.chance(0.5) else f"{x} = {x} + 0")


def running_statistic(d: Draft, x: str, shape: Tokens) -> None:
    mean = d.buffer("running", f"torch.zeros({shape.width})")
    update = f"{mean}.lerp_({x}.mean((0, 1)).to({mean}.dtype), 0.1)"
    d.line("if self.training:", *indented(["with torch.no_grad():", f"    {update}"]))
    if d.chance(0.7):
        d.line(f"{x} = {x} - {mean}")


def codebook(d: Draft, x: str, shape: Tokens) -> None:
    """The nearest of a few vectors, with the gradient passed straight through."""
    codes, nearest = d.parameter(6, shape.width, spread=1.0, kind="codes"), d.name("nearest")
    d.line(f"{nearest} = {codes}[({x}[..., None, :] - {codes}).pow(2).sum(-1).argmin(-1)]")
    d.line(f"{x} = {x} + ({nearest} - {x}).detach() + 0.1 * {nearest}")


LAYERS = {
    mlp: 4, gated: 3, glu: 2, scale: 2, shift: 2, activation: 2, low_rank: 1, attention: 3, written_attention: 3,
    multihead: 1.5, encoder_layer: 2, linear_attention: 1, cell: 2, written_recurrence: 1.5, recurrent: 1.5, convolution: 2,
    neighbour_mix: 1.5, running_mean: 0.7, squeeze: 1, mixer: 1, soft_experts: 1.5, top_experts: 1.5, counted: 1,
    running_statistic: 1, codebook: 0.7,
}  # fmt: skip
