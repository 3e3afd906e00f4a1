"""What kind of value is in each slot of the stack, at every position of a code object: found without running it.

Most slots hold the program's values. The others have to be known when a frame changes over between the driver and
CPython, because each writes them in its own way: NULLs, saved positions, and saved exceptions.
"""

from __future__ import annotations

from typing import NamedTuple

from ..bytecode.decoding import TABLE, Decoded, Instruction
from ..bytecode.stack_effects import effect


class Kind(NamedTuple):
    """`slot` of a saved exception is the slot that it was saved in; a copy of it may be elsewhere."""

    name: str
    slot: int = -1


Kinds = tuple[Kind, ...]

VALUE = Kind("value")
NULL_SLOT = Kind("null")
MAYBE_NULL = Kind("value or null")
#: The position that an exception handler's entry pushed.
LASTI = Kind("position")
#: What PUSH_EXC_INFO saved: the exception that was handled before, or None.
SAVED = "saved exception"

_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_ALWAYS_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})


def stack_kinds(decoded: Decoded) -> list[Kinds | None]:
    """The stack before each instruction; None for instructions that control never reaches."""
    instructions = decoded.instructions
    states: list[Kinds | None] = [None] * len(instructions)
    states[0] = ()
    waiting = [0]

    def reach(position: int, state: Kinds) -> None:
        known = states[position]
        merged = state if known is None else _merge(known, state)
        if merged != known:
            states[position] = merged
            waiting.append(position)

    while waiting:
        position = waiting.pop()
        state = states[position]
        assert state is not None
        handler = decoded.handler_for(position)
        if handler is not None:
            kept = state[: handler.depth]
            reach(handler.target, (*kept, LASTI, VALUE) if handler.push_lasti else (*kept, VALUE))
        for successor, after in _successors(position, instructions[position], state):
            reach(successor, after)
    return states


def _merge(left: Kinds, right: Kinds) -> Kinds:
    if left == right:
        return left
    return tuple(a if a == b else MAYBE_NULL for a, b in zip(left, right, strict=False))


def _successors(position: int, instruction: Instruction, state: Kinds) -> list[tuple[int, Kinds]]:
    name, arg, target, _ = instruction
    if name in _ENDS:
        return []
    after = _after(name, arg, state)
    if after is None:  # an instruction that the driver refuses anyway
        return []
    if name in _ALWAYS_JUMPS:
        return [(target, after)]
    following = [(position + 1, after)]
    if name in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"):
        following.append((target, state))
    elif name == "FOR_ITER":
        following.append((target, state[:-1]))
    elif name == "SEND":
        following.append((target, state if TABLE.send_keeps_receiver else state[:-1]))
    elif "JUMP" in name:
        following.append((target, after))
    return following


def _after(name: str, arg: int, state: Kinds) -> Kinds | None:
    if name == "COPY":
        return (*state, state[-arg])
    if name == "SWAP":
        swapped = list(state)
        swapped[-1], swapped[-arg] = swapped[-arg], swapped[-1]
        return tuple(swapped)
    numbers = effect(name, arg)
    if numbers is None:
        return None
    taken, left = numbers
    rest = state[: len(state) - taken]
    if name == "PUSH_EXC_INFO":
        return (*rest, Kind(SAVED, len(rest)), VALUE)
    if name == "WITH_EXCEPT_START":
        return (*state, VALUE)
    if name == "DICT_MERGE":  # it only looks at what is below
        return state[:-1]
    if name == "PUSH_NULL":
        return (*rest, NULL_SLOT)
    if name == "LOAD_GLOBAL" and left == 2:
        return (*rest, NULL_SLOT, VALUE)
    if left == 2 and name in ("LOAD_ATTR", "LOAD_SUPER_ATTR"):
        return (*rest, MAYBE_NULL, VALUE)
    if name == "LOAD_FAST_AND_CLEAR":
        return (*rest, MAYBE_NULL)
    return (*rest, *(VALUE,) * left)
