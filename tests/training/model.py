"""Draws a model: inputs, a few blocks with norms and residuals around them, and what its head returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from training import image_layers, norms, row_layers, token_layers
from training.draft import Draft, Images, Rows, Shape, Tokens, indented

LAYERS: dict[type, dict[Callable[..., None], float]] = {
    Tokens: token_layers.LAYERS, Rows: row_layers.LAYERS, Images: image_layers.LAYERS,
}  # fmt: skip


# blocks ---------------------------------------------------------------------------------------------------------


def block(d: Draft, shape: Shape) -> None:
    """One layer, or some: alone, within a residual with a norm before or after it, or used twice."""
    kind = d.weighted({"plain": 3, "pre-norm": 4, "post-norm": 2, "residual": 2, "scaled": 1, "norm": 2, "twice": 0.7})
    d.uses(f"block-{kind}")
    if kind == "norm":
        return norms.norm(d, "x", shape)
    if kind == "plain":
        return layer(d, "x", shape)
    if kind == "twice":
        return twice(d, shape)
    d.line("y = x")
    if kind == "pre-norm":
        norms.norm(d, "y", shape)
    layer(d, "y", shape)
    amount = (
        f"{d.parameter(_channels(shape), around=0.5)} * y" if kind == "scaled" and not isinstance(shape, Images) else "y"
    )
    d.line(f"x = x + {amount}")
    if kind == "post-norm":
        norms.norm(d, "x", shape)


def _channels(shape: Tokens | Rows) -> int:
    return shape.width


def layer(d: Draft, x: str, shape: Shape) -> None:
    drawn = d.weighted(LAYERS[type(shape)])
    d.uses(f"{type(shape).__name__.lower()}-{drawn.__name__.replace('_', '-')}")
    drawn(d, x, shape)
    if d.precision == "float64" and d.chance(0.08):
        d.uses("dropout")
        d.line(f"{x} = F.dropout({x}, 0.2, self.training)")


def twice(d: Draft, shape: Shape) -> None:
    """The same modules two times."""
    before, d.forward = d.forward, []
    if d.chance(0.5):
        norms.norm(d, "x", shape)
    layer(d, "x", shape)
    d.forward = [*before, "for _ in range(2):", *indented(d.forward)]


# from one shape to another --------------------------------------------------------------------------------------


def rows_of(d: Draft, shape: Shape) -> Rows:
    """Pool, or take a part."""
    if isinstance(shape, Images):
        kind = d.pick("mean", "max", "adaptive", "flat")
        if kind == "flat":
            width = shape.channels * shape.height * shape.width
            d.line(f"x = {d.linear(width, 16)}(x.flatten(1))")
            return Rows(shape.batch, 16)
        d.line(
            {"mean": "x = x.mean((2, 3))", "max": "x = x.amax((2, 3))"}.get(
                kind, "x = F.adaptive_avg_pool2d(x, 1).flatten(1)"
            )
        )
        return Rows(shape.batch, shape.channels)
    if isinstance(shape, Tokens):
        kind = d.pick("mean", "max", "last", "first", "attend")
        if kind == "attend":
            weight = d.parameter(shape.width, kind="query")
            d.line(f"x = (torch.softmax(x @ {weight}, dim=1)[..., None] * x).sum(1)")
        else:
            d.line(
                {"mean": "x = x.mean(1)", "max": "x = x.max(1).values", "last": "x = x[:, -1]", "first": "x = x[:, 0]"}[kind]
            )
        return Rows(shape.batch, shape.width)
    return shape


def changed(d: Draft, shape: Shape) -> Shape:
    """Now and then, activations of another shape."""
    if isinstance(shape, Images) and d.chance(0.3):
        if d.chance(0.4):
            d.line("x = x.flatten(2).transpose(1, 2)")
            return Tokens(shape.batch, shape.height * shape.width, shape.channels)
        c = d.pick(4, 8, 12)
        stride = d.pick(1, 2)
        if shape.height >= 6:
            layer = d.module("conv", f"nn.Conv2d({shape.channels}, {c}, 3, stride={stride}, padding=1)")
            d.line(f"x = {layer}(x)")
            return replace(shape, channels=c, height=(shape.height - 1) // stride + 1, width=(shape.width - 1) // stride + 1)
    if isinstance(shape, Tokens) and d.chance(0.15):
        width = d.pick(8, 16, 24)
        d.line(f"x = {d.linear(shape.width, width)}(x)")
        return replace(shape, width=width)
    if isinstance(shape, Tokens) and d.chance(0.1):
        return rows_of(d, shape)
    return shape


# inputs ---------------------------------------------------------------------------------------------------------


def stem(d: Draft) -> tuple[Shape, str, int]:
    """What comes in: the activations' shape, the source text of one input, and the size of the vocabulary or 0."""
    batch = d.pick(1, 2, 2, 3, 4)
    large = d.chance(0.1)
    kind = d.weighted({"tokens": 5, "frames": 2, "rows": 3, "images": 2.5})
    d.uses(f"input-{kind}{'-large' * large}")
    if kind == "tokens":
        return embedding(d, batch, large)
    if kind == "frames":
        shape = (
            Tokens(4, 48, 96) if large else Tokens(batch, d.pick(4, 5, 7, 8, 12, 16, 24), d.pick(8, 12, 16, 24, 32, 48, 64))
        )
        inputs = d.pick(shape.width, 6)
        if inputs != shape.width:
            d.line(f"x = {d.linear(inputs, shape.width)}(x)")
        positions(d, shape)
        return shape, f"torch.randn({shape.batch}, {shape.time}, {inputs}).to(dtype)", 0
    if kind == "rows":
        rows = Rows(64, 288) if large else Rows(d.pick(1, 2, 3, 4, 5, 8), d.pick(8, 12, 16, 24, 32, 48, 64))
        return rows, f"torch.randn({rows.batch}, {rows.width}).to(dtype)", 0
    side = d.pick(4, 6, 7, 8)
    images = Images(4, 16, 18, 18) if large else Images(batch, d.pick(3, 4, 6, 8), side, d.pick(side, 8))
    layout = ".to(memory_format=torch.channels_last)" if d.chance(0.2) else ""
    sizes = f"{images.batch}, {images.channels}, {images.height}, {images.width}"
    return images, f"torch.randn({sizes}).to(dtype){layout}", 0


def embedding(d: Draft, batch: int, large: bool) -> tuple[Tokens, str, int]:
    vocabulary, width = (320, 64) if large else (d.pick(11, 40, 100), d.pick(8, 12, 16, 24, 32, 48, 64))
    shape = Tokens(batch, d.pick(4, 5, 7, 8, 12, 16, 24), width)
    options = d.weighted({"": 8, ", padding_idx=0": 1, ", scale_grad_by_freq=True": 0.3})
    d.init.append(f"self.tokens = nn.Embedding({vocabulary}, {width}{options})")
    d.line("x = self.tokens(x)" if d.chance(0.8) else f"x = self.tokens(x) * {width**0.5:.3f}")
    positions(d, shape)
    return shape, f"torch.randint({vocabulary}, ({batch}, {shape.time}))", vocabulary


def positions(d: Draft, shape: Tokens) -> None:
    kind = d.weighted({"none": 3, "embedding": 3, "parameter": 3, "sines": 1})
    d.uses(f"positions-{kind}")
    if kind == "embedding":
        table = d.module("positions", f"nn.Embedding({shape.time + d.pick(0, 3)}, {shape.width})")
        d.line(f"x = x + {table}(torch.arange({shape.time}, device=DEVICE))")
    elif kind == "parameter":
        sizes = d.pick((1, shape.time, shape.width), (shape.time, shape.width))
        d.line(f"x = x + {d.parameter(*sizes, kind='positions')}")
    elif kind == "sines":
        made = f"torch.outer(torch.arange({shape.time}.0), 0.5 ** torch.arange({shape.width}.0)).sin()"
        d.line(f"x = x + {d.buffer('sines', made)}")


# the whole ------------------------------------------------------------------------------------------------------


def model(d: Draft) -> tuple[Shape, str, int]:
    """Draw everything up to the head. Returns what `stem` does, for the shape at the end."""
    shape, source, vocabulary = stem(d)
    for _ in range(d.weighted({1: 4, 2: 3, 3: 1.5, 4: 0.5})):
        shape = changed(d, shape)
        block(d, shape)
    if d.chance(0.4):
        norms.norm(d, "x", shape)
    return shape, source, vocabulary


def head(d: Draft, shape: Shape, outputs: int, tied: bool) -> None:
    """The last projection; `tied` to the embedding where that fits."""
    if tied:
        d.uses("tied-head")
        if d.chance(0.5):
            d.init += [
                f"self.head = nn.Linear({_width(shape)}, {outputs}, bias=False)",
                "self.head.weight = self.tokens.weight",
            ]
            d.line("x = self.head(x)")
        else:
            d.line(d.pick("x = x @ self.tokens.weight.T", "x = F.linear(x, self.tokens.weight)"))
    else:
        d.line(f"x = {d.linear(_width(shape), outputs, 'head')}(x)")


def _width(shape: Any) -> int:
    return int(shape.width)
