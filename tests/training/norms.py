"""Normalisations, from modules and written out, over the last axis and over others."""

from __future__ import annotations

from collections.abc import Callable

from training.draft import Draft, Images, Rows, Shape, Tokens


def norm(d: Draft, x: str, shape: Shape) -> None:
    """Assign a normalised `x` to `x`."""
    tables: dict[type, dict[str, Callable[..., None]]] = {Tokens: TOKENS, Rows: ROWS, Images: IMAGES}
    table = tables[type(shape)]
    kind = d.pick(*table)
    d.uses(f"norm-{kind}")
    table[kind](d, x, shape)


def _layer_options(d: Draft) -> str:
    return d.weighted({"": 6, ", bias=False": 1, ", eps=1e-3": 1, ", elementwise_affine=False": 1})


# over the last axis ---------------------------------------------------------------------------------------------


def layer(d: Draft, x: str, shape: Tokens | Rows) -> None:
    d.line(f"{x} = {d.module('norm', f'nn.LayerNorm({shape.width}{_layer_options(d)})')}({x})")


def functional_layer(d: Draft, x: str, shape: Tokens | Rows) -> None:
    weight = d.parameter(shape.width, around=1.0, kind="gain")
    d.line(f"{x} = F.layer_norm({x}, ({shape.width},), {weight})")


def rms(d: Draft, x: str, shape: Tokens | Rows) -> None:
    d.line(f"{x} = {d.module('norm', f'nn.RMSNorm({shape.width})')}({x})")


def written_layer(d: Draft, x: str, shape: Tokens | Rows) -> None:
    gain, bias = d.parameter(shape.width, around=1.0, kind="gain"), d.parameter(shape.width, kind="bias")
    mean = d.name("mean")
    d.line(f"{mean} = {x}.mean(-1, keepdim=True)")
    variance = d.pick(
        f"{x}.var(-1, keepdim=True, unbiased=False)",
        f"({x} - {mean}).pow(2).mean(-1, keepdim=True)",
        f"({x} * {x}).mean(-1, keepdim=True) - {mean} * {mean}",
    )
    d.line(f"{x} = ({x} - {mean}) / ({variance} + 1e-3).sqrt() * {gain} + {bias}")


def written_rms(d: Draft, x: str, shape: Tokens | Rows) -> None:
    gain = d.parameter(shape.width, around=1.0, kind="gain")
    d.line(f"{x} = {x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 1e-5) * {gain}")


def unit_length(d: Draft, x: str, shape: Tokens | Rows) -> None:
    d.line(f"{x} = F.normalize({x}, dim=-1) * {d.parameter(shape.width, around=2.0, kind='gain')}")


def softmax_gain(d: Draft, x: str, shape: Tokens | Rows) -> None:
    d.line(f"{x} = {x} * torch.softmax({x} / {d.pick(1.0, 2.0)}, dim=-1) * {float(shape.width)}")


# over other axes of (batch, time, width) ------------------------------------------------------------------------


def _over_channels(d: Draft, x: str, made_by: str) -> None:
    d.line(f"{x} = {d.module('norm', made_by)}({x}.transpose(1, 2)).transpose(1, 2)")


def layer_over_time(d: Draft, x: str, shape: Tokens) -> None:
    _over_channels(d, x, f"nn.LayerNorm({shape.time}{_layer_options(d)})")


def layer_over_both(d: Draft, x: str, shape: Tokens) -> None:
    d.line(f"{x} = {d.module('norm', f'nn.LayerNorm(({shape.time}, {shape.width}))')}({x})")


def group(d: Draft, x: str, shape: Tokens) -> None:
    _over_channels(d, x, f"nn.GroupNorm({d.divisor(shape.width, 4)}, {shape.width})")


def batch(d: Draft, x: str, shape: Tokens) -> None:
    options = d.weighted({"": 5, ", momentum=None": 1, ", track_running_stats=False": 1, ", affine=False": 1})
    _over_channels(d, x, f"nn.BatchNorm1d({shape.width}{options})")


def batch_of_flat(d: Draft, x: str, shape: Tokens) -> None:
    module = d.module("norm", f"nn.BatchNorm1d({shape.width})")
    d.line(f"{x} = {module}({x}.flatten(0, 1)).view({shape.batch}, {shape.time}, {shape.width})")


def instance(d: Draft, x: str, shape: Tokens) -> None:
    options = d.pick("", ", affine=True", ", affine=True, track_running_stats=True")
    _over_channels(d, x, f"nn.InstanceNorm1d({shape.width}{options})")


def standardised_over_samples(d: Draft, x: str, shape: Tokens) -> None:
    d.line(f"{x} = ({x} - {x}.mean((0, 1))) / ({x}.std((0, 1)) + 0.1)")


# images ---------------------------------------------------------------------------------------------------------


def batch_2d(d: Draft, x: str, shape: Images) -> None:
    options = d.weighted({"": 5, ", momentum=None": 1, ", track_running_stats=False": 1, ", affine=False": 1})
    d.line(f"{x} = {d.module('norm', f'nn.BatchNorm2d({shape.channels}{options})')}({x})")


def group_2d(d: Draft, x: str, shape: Images) -> None:
    d.line(f"{x} = {d.module('norm', f'nn.GroupNorm({d.divisor(shape.channels, 4)}, {shape.channels})')}({x})")


def instance_2d(d: Draft, x: str, shape: Images) -> None:
    options = d.pick("", ", affine=True", ", affine=True, track_running_stats=True")
    d.line(f"{x} = {d.module('norm', f'nn.InstanceNorm2d({shape.channels}{options})')}({x})")


def layer_of_channels(d: Draft, x: str, shape: Images) -> None:
    module = d.module("norm", d.pick("nn.LayerNorm", "nn.RMSNorm") + f"({shape.channels})")
    d.line(f"{x} = {module}({x}.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)")


def layer_of_image(d: Draft, x: str, shape: Images) -> None:
    d.line(f"{x} = {d.module('norm', f'nn.LayerNorm(({shape.channels}, {shape.height}, {shape.width}))')}({x})")


def local_response(d: Draft, x: str, shape: Images) -> None:
    d.line(f"{x} = {d.module('norm', 'nn.LocalResponseNorm(3)')}({x})")


def global_response(d: Draft, x: str, shape: Images) -> None:
    gain = d.parameter(shape.channels, 1, 1, kind="gain")
    size = d.name("size")
    d.line(f"{size} = ({x}.pow(2).sum((2, 3), keepdim=True) + 1e-5).sqrt()")
    d.line(f"{x} = {x} + {gain} * {x} * ({size} / ({size}.mean(1, keepdim=True) + 1e-5))")


# rows -----------------------------------------------------------------------------------------------------------


def batch_of_rows(d: Draft, x: str, shape: Rows) -> None:
    if shape.batch < 3:  # of two rows all that is left is signs
        return layer(d, x, shape)
    d.line(f"{x} = {d.module('norm', f'nn.BatchNorm1d({shape.width})')}({x})")


def group_of_rows(d: Draft, x: str, shape: Rows) -> None:
    d.line(f"{x} = {d.module('norm', f'nn.GroupNorm({d.divisor(shape.width, 4)}, {shape.width})')}({x})")


_LAST = {
    "layer": layer, "functional-layer": functional_layer, "rms": rms, "written-layer": written_layer,
    "written-rms": written_rms, "unit-length": unit_length, "softmax": softmax_gain,
}  # fmt: skip
TOKENS = {
    **_LAST, "layer-again": layer, "layer-over-time": layer_over_time, "layer-over-both": layer_over_both, "group": group,
    "batch": batch, "batch-of-flat": batch_of_flat, "instance": instance, "over-samples": standardised_over_samples,
}  # fmt: skip
ROWS = {**_LAST, "layer-again": layer, "batch-of-rows": batch_of_rows, "group-of-rows": group_of_rows}
IMAGES = {
    "batch-2d": batch_2d, "batch-2d-again": batch_2d, "group-2d": group_2d, "instance-2d": instance_2d,
    "layer-of-channels": layer_of_channels, "layer-of-image": layer_of_image, "local-response": local_response,
    "global-response": global_response,
}  # fmt: skip
