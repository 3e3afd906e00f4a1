"""Where the tiles of Triton kernels with rows begin, and which of their elements there are: statements that find `r`, the
index in the row, and the masks, for each `Form` and `Access` (`triton_rows.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from quickfuse.emit.triton_text import index_lines, offset
from quickfuse.ir.kernel import KernelBody


def elements_before(body: KernelBody) -> int:
    """How many elements a row may begin after an address that is a multiple of 128 bits, at most."""
    return 16 // body.slots[body.shifted_slots[0]].dtype.itemsize - 1


def base_of_rows(body: KernelBody, k: int) -> str:
    """Where a slot's rows begin."""
    return f"q{k}" if offset(body, k, body.row_axes) else f"p{k}"


def _from_aligned(body: KernelBody, k: int) -> list[str]:
    """Statements that find how many elements after an address that is a multiple of 128 bits a slot's rows begin: `h0` .."""
    within = " + ".join(filter(None, [f"before{k}", offset(body, k, body.row_axes)]))
    return [f"before{k} = (p{k}.to(tl.int64) % 16 // {body.slots[k].dtype.itemsize}).to(INDEX)", f"h{k} = {within}"]


def _aligned(body: KernelBody, k: int, moved: str) -> str:
    """The statement that makes an address of `h0` .., which is a multiple of 128 bits where it is moved by some elements. It
    is written as one that Triton sees to be: it loses a hint on the addresses of a single row."""
    count = 16 // body.slots[k].dtype.itemsize
    return f"h{k} = tl.multiple_of(p{k} - before{k}, 16) + (h{k} {moved}) // {count} * {count}"


def begin_lines(body: KernelBody) -> list[str]:
    """Statements that find `head`, the elements of each row before the first address that is a multiple of 128 bits, and
    `full`, the elements of whole tiles: after the head, whose elements come with those that are left."""
    slots, lines = body.shifted_slots, ["full = length // COLUMNS * COLUMNS", "head = 0"]
    if slots:
        most = elements_before(body)
        lines += [
            "if ALIGNED == 1:",
            *(f"    {line}" for k in slots for line in _from_aligned(body, k)),
            f"    head = (0 - h{slots[0]}) & {most}",
            f"    full = tl.maximum(length - {most}, 0) // COLUMNS * COLUMNS",
            *(f"    {_aligned(body, k, '+ head')}" for k in slots),
            "else:",
            *(f"    h{k} = {base_of_rows(body, k)}" for k in slots),
        ]
    return lines


def whole_lines(body: KernelBody) -> list[str]:
    """Statements that find the indices of whole rows. Where these begin anywhere, the tile begins at a multiple of 128 bits.
    `near` are the elements that are loaded: all of 128 bits of which some are the row's. All of `inner` are."""
    slots = body.shifted_slots
    mask = mask_lines("r_mask", "[1, COLUMNS]", "r < length", "ALIGNED == 3")
    if not slots:
        return tile_lines(body, "lane", mask)
    count = elements_before(body) + 1
    shifted = [
        *(line for k in slots for line in _from_aligned(body, k)),
        f"head = h{slots[0]} & {count - 1}",
        *(_aligned(body, k, "- head") for k in slots),
        *(f"v{k} = h{k}" for k in slots),
        f"chunk = lane // {count} * {count}",
        "near = x_mask & (chunk < head + length)",
        f"inner = x_mask & (chunk >= head) & (chunk + {count} <= head + length)",
    ]
    return [
        "step, head = lane, 0",
        "if ALIGNED == 1:",
        *(f"    {line}" for line in shifted),
        "else:",
        *(f"    v{k} = {base_of_rows(body, k)}" for k in slots),
        *tile_lines(body, "lane - head", [
            "if ALIGNED == 1:", "    r_mask = (r >= 0) & (r < length)",
            "elif ALIGNED == 3:", *mask[1:],
        ]),
        "if ALIGNED != 1:",
        "    near = mask",
    ]  # fmt: skip


def spread_lines(body: KernelBody) -> list[str]:
    """Statements that find the indices in a tile of its own, which begins at a multiple of 128 bits."""
    slots, mask = body.shifted_slots, mask_lines("r_mask", "[1, COLUMNS]", "r < length", "ALIGNED > 1")
    if not slots:
        return tile_lines(body, "start.to(INDEX) + lane", mask)
    shifted = [
        *(line for k in slots for line in _from_aligned(body, k)),
        f"head = h{slots[0]} & {elements_before(body)}",
        *(_aligned(body, k, "- head") for k in slots),
    ]
    return [
        "step = start.to(INDEX) + lane",
        "head = 0",
        "if (ALIGNED == 1) | (ALIGNED == -1):",
        *(f"    {line}" for line in shifted),
        *tile_lines(body, "step - head", [
            "if (ALIGNED == 1) | (ALIGNED > 1):", f"    r_mask = {everywhere('[1, COLUMNS]')}",
            "else:", "    r_mask = (r >= 0) & (r < length)",
        ]),
        "if ALIGNED == 1:",
        *(f"    v{k} = h{k}" for k in slots),
        "else:",
        *(f"    v{k} = {base_of_rows(body, k)}" for k in slots),
        "    step = r",
    ]  # fmt: skip


def mask_lines(name: str, shape: str, condition: str, always: str) -> list[str]:
    """Statements that make a mask, which holds everywhere if a condition on constants does."""
    return [f"if {always}:", f"    {name} = {everywhere(shape)}", "else:", f"    {name} = {condition}"]


def everywhere(shape: str) -> str:
    return f"tl.full({shape}, True, tl.int1)"


def tile_lines(body: KernelBody, first: str, mask: Sequence[str]) -> list[str]:
    return [
        f"r = {first}",
        *mask,
        "mask = x_mask & r_mask",
        "tile = x * 0 + r * 0",
        *index_lines("r", body.column_axes),
    ]
