"""Layers over (batch, channels, height, width): convolution, pooling, resizing."""

from __future__ import annotations

from training import norms
from training.draft import Draft, Images


def convolution(d: Draft, x: str, shape: Images) -> None:
    c, size = shape.channels, d.pick(1, 3, 3)
    groups = d.pick(1, 1, d.divisor(c, 4), c)
    dilation = d.pick(1, 1, 2)
    options = f", padding={dilation * (size // 2)}, dilation={dilation}, groups={groups}{d.pick('', ', bias=False')}"
    d.line(f"{x} = {d.activation(d.module('conv', f'nn.Conv2d({c}, {c}, {size}{options})') + f'({x})')}")


def normed_convolution(d: Draft, x: str, shape: Images) -> None:
    c = shape.channels
    d.line(f"{x} = {d.module('conv', f'nn.Conv2d({c}, {c}, 3, padding=1, bias=False)')}({x})")
    norms.norm(d, x, shape)
    d.line(f"{x} = {d.activation(x)}")


def separable(d: Draft, x: str, shape: Images) -> None:
    c = shape.channels
    depth = d.module("depth", f"nn.Conv2d({c}, {c}, 3, padding=1, groups={c})")
    point = d.module("point", f"nn.Conv2d({c}, {c}, 1)")
    d.line(f"{x} = {point}({d.activation(f'{depth}({x})')})")


def squeeze_excite(d: Draft, x: str, shape: Images) -> None:
    c = shape.channels
    one, two = d.module("down", f"nn.Conv2d({c}, 2, 1)"), d.module("up", f"nn.Conv2d(2, {c}, 1)")
    pooled = d.pick(f"{x}.mean((2, 3), keepdim=True)", f"F.adaptive_avg_pool2d({x}, 1)", f"{x}.amax((2, 3), keepdim=True)")
    d.line(f"{x} = {x} * torch.sigmoid({two}(F.relu({one}({pooled}))))")


def down_and_up(d: Draft, x: str, shape: Images) -> None:
    """Half the size, a convolution, and the size from before, added."""
    c, small = shape.channels, d.name("small")
    if shape.height % 2 or shape.width % 2:
        return convolution(d, x, shape)
    resized = f"F.interpolate({x}, scale_factor=0.5, mode='bilinear')"
    down = d.pick(f"F.avg_pool2d({x}, 2)", f"F.max_pool2d({x}, 2)", resized)
    layer = d.module("conv", f"nn.Conv2d({c}, {c}, 3, padding=1)")
    d.line(f"{small} = {d.activation(f'{layer}({down})')}")
    size = f"size=({shape.height}, {shape.width})"
    aligned = ", align_corners=True"
    kind = d.pick(
        "scale_factor=2", "transposed", *(f"{size}, mode={m}" for m in ("'bilinear'", f"'bilinear'{aligned}", "'bicubic'"))
    )
    up = f"F.interpolate({small}, {kind})"
    if kind == "transposed":
        up = d.module("up", f"nn.ConvTranspose2d({c}, {c}, 2, stride=2)") + f"({small})"
    if d.chance(0.3):
        mix = d.module("mix", f"nn.Conv2d({2 * c}, {c}, 1)")
        d.line(f"{x} = {mix}(torch.cat([{x}, {up}], 1))")
    else:
        d.line(f"{x} = {x} + {up}")


def shuffled(d: Draft, x: str, shape: Images) -> None:
    c = shape.channels
    if shape.height % 2 or shape.width % 2:
        return separable(d, x, shape)
    layer = d.module("conv", f"nn.Conv2d({4 * c}, {4 * c}, 1, groups=4)")
    d.line(f"{x} = F.pixel_shuffle({layer}(F.pixel_unshuffle({x}, 2)), 2)")


def scale(d: Draft, x: str, shape: Images) -> None:
    sizes = d.pick((shape.channels, 1, 1), (1, shape.channels, 1, 1), (1,), (shape.height, shape.width))
    d.line(f"{x} = {x} * {d.parameter(*sizes, around=1.0)}")


def channel_mlp(d: Draft, x: str, shape: Images) -> None:
    c = shape.channels
    up, down = d.linear(c, 2 * c, "up"), d.linear(2 * c, c, "down")
    d.line(f"{x} = {down}({d.activation(f'{up}({x}.permute(0, 2, 3, 1))')}).permute(0, 3, 1, 2)")


def smoothed(d: Draft, x: str, shape: Images) -> None:
    d.line(f"{x} = {d.pick('F.avg_pool2d', 'F.max_pool2d')}({x}, 3, stride=1, padding=1)")


def activation(d: Draft, x: str, shape: Images) -> None:
    if d.chance(0.3):
        d.line(f"{x} = {d.module('prelu', f'nn.PReLU({d.pick(1, shape.channels)})')}({x})")
    else:
        d.line(f"{x} = {d.activation(x)}")


LAYERS = {
    convolution: 4, normed_convolution: 3, separable: 2, squeeze_excite: 1.5, down_and_up: 2.5, shuffled: 1, scale: 1.5,
    channel_mlp: 1, smoothed: 1, activation: 1.5,
}  # fmt: skip
