"""What all Triton kernels have in common: how functions are written, and how they find their operands."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import torch

from quickfuse.ir.kernel import KernelBody, Slot

_LONGEST_TERM = 32


def in_memory(body: KernelBody) -> list[tuple[int, Slot]]:
    """The slots that have an address, with their numbers."""
    return [(k, slot) for k, slot in enumerate(body.slots) if not slot.by_value]


def value_lines(body: KernelBody, mask: str = "") -> list[str]:
    """Statements that fetch the numbers that are passed by value, for `member`."""
    lines = []
    for k, slot in enumerate(body.slots):
        if slot.by_value:
            word = f"tl.load(values + member * {body.value_words} + {body.value_word(k)}{mask})"
            lines.append(f"s{k} = {word}" + (".to(tl.float64, bitcast=True)" if slot.dtype == torch.float64 else ""))
    return lines


def member_parameters(body: KernelBody, in_arguments: bool) -> list[str]:
    """What a kernel with axes gets: tables, or the row and the numbers of its only member; and the scalar arguments."""
    numbers = [f"s{k}" for k, slot in enumerate(body.slots) if slot.by_value]
    words = [f"w{word}" for word in range(body.row_words)]
    found = [*words, *numbers] if in_arguments else ["rows", "values", "blocks"]
    return [*found, *scalars(body)]


def member_lines(body: KernelBody, in_arguments: bool) -> list[str]:
    """Statements that find which `block` a program has, an int32, the words of its member's row, and its numbers.

    Where all members have as many programs, the launch's grid says which member a program has: a program that had to read it
    in a table would wait for memory once more before its first load.
    """
    if in_arguments:
        return ["block = tl.program_id(0)", *(f"{name} = w{word}" for word, name in word_names(body).items())]
    return [
        "member, block = tl.program_id(1), tl.program_id(0)",
        "if blocks.to(tl.int64) != 0:",
        "    entry = blocks + 2 * block",
        "    member, block = tl.load(entry), tl.load(entry + 1)",
        "member = member.to(tl.int64)",
        f"row = rows + member * {body.row_words}",
        *(f"{name} = tl.load(row + {word})" for word, name in word_names(body).items()),
        *value_lines(body),
    ]


def word_names(body: KernelBody) -> dict[int, str]:
    """The name of each word of a row: sizes n0 .., addresses p0 .., dynamic strides p0_stride0 .."""
    names = {axis: f"n{axis}" for axis in range(body.ndim)}
    for k, slot in in_memory(body):
        names[body.slot_word(k)] = f"p{k}"
        for axis in dynamic_axes(slot):
            names[body.stride_word(k, axis)] = f"p{k}_stride{axis}"
    return names


def index_lines(position: str, axes: Sequence[int]) -> list[str]:
    """Statements that turn a position into an index for each axis, the last one fastest."""
    lines, rest = [], position
    for axis in reversed(axes[1:]):
        lines += [f"index{axis} = {rest} % n{axis}", f"rest{axis} = {rest} // n{axis}"]
        rest = f"rest{axis}"
    return [*lines, f"index{axes[0]} = {rest}"] if axes else lines


def offset(body: KernelBody, k: int, axes: Sequence[int]) -> str:
    """How far a slot's element is from its address by the indices of some axes, in elements; empty where it is 0."""
    strides = body.slots[k].strides
    moving = [axis for axis in axes if strides[axis] != 0]
    return " + ".join(f"index{axis}" if strides[axis] == 1 else f"index{axis} * p{k}_stride{axis}" for axis in moving)


def is_aligned(body: KernelBody, words: Sequence[int], *counts: str) -> str:
    """The condition for accesses of 128 bits: words of a row, and numbers of elements, are multiples as they must be."""
    names, needed = word_names(body), dict[int, list[str]]()
    for word in words:
        needed.setdefault(body.multiple_of(word), []).append(names[word])
    needed.setdefault(body.elements_of_128_bits, []).extend(counts)
    return " & ".join(f"({_all_bits(parts)} % {multiple} == 0)" for multiple, parts in needed.items() if parts)


def _all_bits(names: Sequence[str]) -> str:
    """The bits that any of some words has. Operators stand in few levels: for Triton, a term of a thousand is too deep."""
    if len(names) <= _LONGEST_TERM:
        return f"({' | '.join(names)})"
    step = -(-len(names) // _LONGEST_TERM)
    return f"({' | '.join(_all_bits(names[k : k + step]) for k in range(0, len(names), step))})"


def alignment_hints(body: KernelBody, words: Sequence[int]) -> list[str]:
    """Statements that tell Triton what `is_aligned` has found of some words."""
    names = word_names(body)
    return [f"{names[word]} = tl.multiple_of({names[word]}, {body.multiple_of(word)})" for word in words]


def dynamic_axes(slot: Slot) -> list[int]:
    """The axes whose strides are words of a row."""
    return [axis for axis, stride in enumerate(slot.strides) if stride is None]


def function(name: str, parameters: list[str], lines: list[str]) -> list[str]:
    """The lines of a function that Triton compiles."""
    return ["@triton.jit", *wrapped(f"def {name}({', '.join(parameters)}):"), *(f"    {line}" for line in lines)]


def wrapped(line: str) -> list[str]:
    """A line that has brackets, broken where it is long; a parameter stays with its annotation."""
    lines = textwrap.wrap(line.replace(": ", ":~"), 112, subsequent_indent=" " * 8, break_long_words=False)
    return [part.replace(":~", ": ") for part in lines]


def scalars(body: KernelBody) -> list[str]:
    """The names of the scalar arguments."""
    return [f"a{k}" for k in range(len(body.scalars))]
