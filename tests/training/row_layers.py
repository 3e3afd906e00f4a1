"""Layers over (batch, width)."""

from __future__ import annotations

from training.draft import Draft, Rows


def dense(d: Draft, x: str, shape: Rows) -> None:
    d.line(f"{x} = {d.activation(f'{d.linear(shape.width, shape.width)}({x})')}")


def mlp(d: Draft, x: str, shape: Rows) -> None:
    hidden = d.pick(shape.width // 2, 2 * shape.width)
    up, down = d.linear(shape.width, hidden, "up"), d.linear(hidden, shape.width, "down")
    d.line(f"{x} = {down}({d.activation(f'{up}({x})')})")


def highway(d: Draft, x: str, shape: Rows) -> None:
    gate, value = d.linear(shape.width, shape.width, "gate"), d.linear(shape.width, shape.width, "value")
    g = d.name("g")
    d.line(f"{g} = torch.sigmoid({gate}({x}))", f"{x} = {g} * {d.activation(f'{value}({x})')} + (1 - {g}) * {x}")


def glu(d: Draft, x: str, shape: Rows) -> None:
    d.line(f"{x} = F.glu({d.linear(shape.width, 2 * shape.width, 'both')}({x}))")


def maxout(d: Draft, x: str, shape: Rows) -> None:
    both = d.linear(shape.width, 3 * shape.width, "both")
    d.line(f"{x} = {both}({x}).view({shape.batch}, {shape.width}, 3){d.pick('.amax(-1)', '.max(-1).values')}")


def scale(d: Draft, x: str, shape: Rows) -> None:
    sizes = d.pick((shape.width,), (1,), (1, shape.width), ())
    d.line(f"{x} = {x} * {d.parameter(*sizes, around=1.0)} + {d.parameter(shape.width, kind='shift')}")


def bilinear(d: Draft, x: str, shape: Rows) -> None:
    if shape.width > 64:  # its weight has three axes of this length
        return dense(d, x, shape)
    d.line(f"{x} = {d.module('bilinear', f'nn.Bilinear({shape.width}, {shape.width}, {shape.width})')}({x}, {x})")


def weight_normed(d: Draft, x: str, shape: Rows) -> None:
    made = f"nn.utils.parametrizations.weight_norm(nn.Linear({shape.width}, {shape.width}))"
    d.line(f"{x} = {d.activation(d.module('normed', made) + f'({x})')}")


def attend_to_batch(d: Draft, x: str, shape: Rows) -> None:
    d.line(f"{x} = torch.softmax({x} @ {x}.T / {shape.width}, dim=-1) @ {d.linear(shape.width, shape.width)}({x})")


def cosine(d: Draft, x: str, shape: Rows) -> None:
    weight = d.parameter(shape.width, shape.width, spread=1.0, kind="prototypes")
    d.line(f"{x} = 3.0 * F.linear(F.normalize({x}, dim=1), F.normalize({weight}, dim=1))")


def with_itself(d: Draft, x: str, shape: Rows) -> None:
    layer = d.linear(2 * shape.width, shape.width)
    d.line(f"{x} = {layer}(torch.cat([{x}, {d.activation(x)}], dim=1))")


def outer(d: Draft, x: str, shape: Rows) -> None:
    left, right = d.linear(shape.width, 4, "left"), d.linear(shape.width, 4, "right")
    joined = d.pick(f"torch.einsum('bi,bj->bij', {left}({x}), {right}({x})).flatten(1)",
                    f"({left}({x})[:, :, None] * {right}({x})[:, None]).reshape({shape.batch}, 16)")  # fmt: skip
    d.line(f"{x} = {d.linear(16, shape.width)}({joined})")


def activation(d: Draft, x: str, shape: Rows) -> None:
    d.line(f"{x} = {d.activation(x)}")


LAYERS = {
    dense: 4, mlp: 3, highway: 1.5, glu: 1.5, maxout: 1, scale: 2, bilinear: 1, weight_normed: 1, attend_to_batch: 1,
    cosine: 1, with_itself: 1, outer: 1, activation: 1,
}  # fmt: skip
