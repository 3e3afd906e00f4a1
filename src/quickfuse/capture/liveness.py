"""Which variables a suspended frame may still read: the others need not survive the end of a segment."""

from __future__ import annotations

import dis
import functools
from types import CodeType

from ..bytecode.decoding import decode, local_names

#: Functions through which a frame's variables can be read by name.
_SEES_ALL = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack", "super"})

_READS = frozenset(
    "LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_CLOSURE LOAD_DEREF LOAD_CLASSDEREF DELETE_FAST STORE_DEREF "
    "DELETE_DEREF MAKE_CELL LOAD_FROM_DICT_OR_DEREF".split()
)
_ENDS = frozenset("RETURN_VALUE RETURN_CONST RAISE_VARARGS RERAISE".split())
ALWAYS_JUMPS = frozenset("JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT".split())
JUMPS = frozenset(dis.opname[op] for op in (*dis.hasjrel, *dis.hasjabs))


def live_locals(code: CodeType, position: int, calling: bool = False) -> frozenset[str]:
    """Names of the local variables that may be read from the instruction at `position` on.

    `calling`: the frame waits for the call before that instruction, which may also raise.
    """
    if _SEES_ALL & set(code.co_names):
        return frozenset(local_names(code))
    names = local_names(code)
    live = _live_everywhere(code)
    found = live[position]
    handler = decode(code).handler_for(position - 1) if calling else None
    if handler is not None:
        found |= live[handler.target]
    return frozenset(name for k, name in enumerate(names) if found >> k & 1)


@functools.lru_cache(maxsize=1024)
def _live_everywhere(code: CodeType) -> list[int]:
    """For each instruction the set of live variables before it, as a bit mask of their indices.

    Backward data flow: live(p) = reads(p) | (live(successors of p) - writes(p)), to the fixed point. An instruction in
    the range of an exception handler has the handler among its successors.
    """
    decoded = decode(code)
    instructions = decoded.instructions
    count = len(instructions)
    live = [0] * (count + 1)
    reads = [1 << i.arg if i.name in _READS else 0 for i in instructions]
    writes = [1 << i.arg if i.name in ("STORE_FAST", "LOAD_FAST_AND_CLEAR") else 0 for i in instructions]
    successors: list[list[int]] = []
    handlers: list[int | None] = []
    for position, instruction in enumerate(instructions):
        following = [] if instruction.name in _ENDS or instruction.name in ALWAYS_JUMPS else [position + 1]
        if instruction.name in JUMPS:
            following.append(instruction.value)
        successors.append(following)
        handler = decoded.handler_for(position)
        handlers.append(handler.target if handler is not None else None)
    changed = True
    while changed:
        changed = False
        for position in range(count - 1, -1, -1):
            after = 0
            for successor in successors[position]:
                after |= live[successor]
            now = reads[position] | (after & ~writes[position])
            handler_target = handlers[position]
            if handler_target is not None:
                now |= live[handler_target]
            if now != live[position]:
                live[position] = now
                changed = True
    return live
