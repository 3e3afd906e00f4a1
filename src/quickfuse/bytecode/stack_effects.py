"""How many values each bytecode instruction takes from the stack, and how many it leaves.

A value that an instruction only looks at counts as taken and left.
"""

from __future__ import annotations

import functools
from types import CodeType

from .decoding import TABLE, decode

#: Instructions whose numbers do not depend on their argument: (taken, left).
_FIXED: dict[str, tuple[int, int]] = {
    name: effect
    for effect, names in {
        (0, 0): "NOP RESUME CACHE KW_NAMES MAKE_CELL COPY_FREE_VARS DELETE_FAST DELETE_DEREF DELETE_GLOBAL"
        " JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT RETURN_CONST",
        (0, 1): "PUSH_NULL LOAD_CONST LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_CLOSURE LOAD_DEREF"
        " LOAD_BUILD_CLASS LOAD_ASSERTION_ERROR RETURN_GENERATOR",
        (1, 0): "POP_TOP STORE_FAST STORE_DEREF STORE_GLOBAL DELETE_ATTR POP_EXCEPT RETURN_VALUE RERAISE"
        " POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE"
        " POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE"
        " POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE"
        " POP_JUMP_BACKWARD_IF_NOT_NONE JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP",
        (1, 1): "UNARY_POSITIVE UNARY_NEGATIVE UNARY_INVERT UNARY_NOT TO_BOOL CONVERT_VALUE GET_ITER"
        " GET_YIELD_FROM_ITER LIST_TO_TUPLE YIELD_VALUE CALL_INTRINSIC_1"
        " LOAD_FROM_DICT_OR_GLOBALS",
        (1, 2): "GET_LEN MATCH_MAPPING MATCH_SEQUENCE IMPORT_FROM BEFORE_WITH FOR_ITER PUSH_EXC_INFO",
        (2, 0): "STORE_ATTR DELETE_SUBSCR END_FOR",
        (2, 1): "BINARY_OP BINARY_SUBSCR COMPARE_OP IS_OP CONTAINS_OP IMPORT_NAME PREP_RERAISE_STAR CALL_INTRINSIC_2"
        " END_SEND BUILD_TEMPLATE",
        (2, 2): "CHECK_EXC_MATCH CHECK_EG_MATCH SEND",
        (2, 3): "MATCH_KEYS",
        (3, 0): "STORE_SUBSCR",
        (3, 1): "BINARY_SLICE MATCH_CLASS",
        (3, 2): "CLEANUP_THROW",
        (4, 0): "STORE_SLICE",
    }.items()
    for name in names.split()
}

#: Instructions that change a container further down the stack: what they take from the top.
CONTAINER_OPERATIONS = {
    "LIST_APPEND": 1, "SET_ADD": 1, "MAP_ADD": 2, "LIST_EXTEND": 1, "SET_UPDATE": 1, "DICT_UPDATE": 1,
}  # fmt: skip


def effect(name: str, arg: int) -> tuple[int, int] | None:
    """(taken, left) of an instruction that goes on to the next one; None for one that the driver does not know."""
    if name in _FIXED:
        return _FIXED[name]
    if name in CONTAINER_OPERATIONS:
        return CONTAINER_OPERATIONS[name], 0
    match name:
        case "BUILD_TUPLE" | "BUILD_LIST" | "BUILD_SET" | "BUILD_STRING" | "BUILD_SLICE":
            return arg, 1
        case "BUILD_MAP":
            return 2 * arg, 1
        case "BUILD_CONST_KEY_MAP":
            return arg + 1, 1
        case "BUILD_INTERPOLATION":
            return 2 + (arg & 1), 1
        case "DICT_MERGE":  # it names the function in its message
            return (4, 3) if TABLE.null_first else (5, 4)
        case "WITH_EXCEPT_START":
            return 3 + TABLE.with_values, 4 + TABLE.with_values
        case "FORMAT_VALUE":
            return (2, 1) if arg & 0x04 else (1, 1)
        case "UNPACK_SEQUENCE":
            return 1, arg
        case "UNPACK_EX":
            return 1, (arg & 0xFF) + 1 + (arg >> 8)
        case "MAKE_FUNCTION":
            return 1 + (arg & 0x1F).bit_count(), 1
        case "RAISE_VARARGS":
            return arg, 0
        case "LOAD_GLOBAL":
            return 0, 1 + (arg & 1)
        case "LOAD_ATTR":
            return 1, 1 + (arg & 1)
        case "LOAD_SUPER_ATTR":
            return 3, 1 + (arg & 1)
        case "CALL":
            return arg + 2, 1
        case "CALL_FUNCTION_EX":
            return 3 + (arg & 1), 1
    return None


@functools.lru_cache(maxsize=1024)
def goes_into(code: CodeType, position: int) -> tuple[str, int, int]:
    """The instruction that takes what the one at `position` leaves on top of the stack: its name and argument, and how many
    values lie above that one then. No name where that depends on jumps."""
    above = 0
    for instruction in decode(code).instructions[position + 1 :]:
        known = effect(instruction.name, instruction.arg)
        if known is None or "JUMP" in instruction.name or instruction.name in _ELSEWHERE:
            return "", 0, 0
        taken, left = known
        if taken > above:
            return instruction.name, instruction.arg, above
        above += left - taken
    return "", 0, 0


#: Instructions that may go on elsewhere, besides jumps.
_ELSEWHERE = frozenset("FOR_ITER SEND YIELD_VALUE RETURN_VALUE RETURN_CONST RERAISE".split())
