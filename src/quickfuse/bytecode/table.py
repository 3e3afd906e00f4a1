"""What a table of one CPython version's bytecode consists of. The tables are in `python_3_11.py` and so on.

The compiler works on one set of instructions, that of CPython 3.12 with few additions, whatever the interpreter has. A table
says how the interpreter's own ("raw") instructions become these, and how these are written as raw ones:

* a group of raw instructions may be one of ours: TO_BOOL and POP_JUMP_IF_TRUE are a jump that takes any value;
* a raw instruction may be nothing to us, or several of ours: LOAD_FAST_LOAD_FAST is LOAD_FAST twice.

Additions: CONVERT_VALUE and TO_BOOL from 3.13, BUILD_INTERPOLATION and BUILD_TEMPLATE from 3.14.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: An instruction to write: name and argument.
Written = tuple[str, int]


class Raw(NamedTuple):
    """An instruction as CPython has it. All places are counted in code units of two bytes.

    `start` is where it begins, with its extended arguments, and `unit` where the instruction itself is. `joins`: nothing
    jumps to it from elsewhere, so that it may belong to a group with the one before.
    """

    start: int
    unit: int
    name: str
    arg: int
    joins: bool


class Part(NamedTuple):
    """One of our instructions.

    `constant` is its value where that is no constant of the code object, in a tuple. `raw` is the number in its group of the
    raw instruction that CPython would call the current one. Whoever goes on natively before this instruction performs
    `before` and goes to raw instruction number `enter` of the group, which may be the one after it.
    """

    name: str
    arg: int
    constant: tuple[Any] | None = None
    raw: int = 0
    enter: int = 0
    before: tuple[Written, ...] = ()


#: How many raw instructions a rule takes, and what they become.
Group = tuple[int, list[Part]]
#: Given all raw instructions and the index of one: the group that begins there; None for an ordinary instruction.
Rule = Callable[[Sequence[Raw], int], "Group | None"]


@dataclass(frozen=True)
class Table:
    """Everything that the compiler knows of one version's bytecode.

    Attributes:
        rules: by the name of the first raw instruction of a group.
        writing: how our instruction is written, given its argument, where that is not its own name and argument. A CALL that
            follows KW_NAMES is looked up as CALL_WITH_NAMES.
        compared: the index in `dis.cmp_op`, given COMPARE_OP's argument.
        null_first: whether the NULL, or what takes the place of `self`, is below the callable and not above it.
        behind_for: how many instructions FOR_ITER skips at its target when it ends.
        for_end: the instructions that CPython wants at the target of FOR_ITER.
        send_keeps_receiver: whether SEND leaves the generator on the stack when that is done.
        load_fast_checks: whether LOAD_FAST may find that a variable has no value.
        lasti_is_object: whether the position that a handler's entry pushes is an object, which other instructions can move.
        with_values: how many values a `with` statement keeps on the stack while its body runs.
    """

    version: tuple[int, int]
    rules: Mapping[str, Rule] = field(default_factory=dict)
    writing: Mapping[str, Callable[[int], list[Written]]] = field(default_factory=dict)
    compared: Callable[[int], int] = lambda arg: arg
    null_first: bool = True
    behind_for: int = 0
    for_end: tuple[str, ...] = ()
    send_keeps_receiver: bool = True
    load_fast_checks: bool = False
    lasti_is_object: bool = True
    with_values: int = 1


def follows(raws: Sequence[Raw], index: int, *names: str) -> bool:
    """Whether the raw instruction at `index` has one of these names and belongs to the one before it."""
    return index < len(raws) and raws[index].name in names and raws[index].joins


def renamed(name: str) -> Rule:
    """The rule for an instruction that only has another name."""
    return lambda raws, index: (1, [Part(name, raws[index].arg)])
