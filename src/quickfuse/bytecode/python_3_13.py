"""The bytecode of CPython 3.13.

Against 3.12: conditions are made Booleans by instructions of their own, loads and stores of two variables are joined, the
NULL of a call comes after the callable, the names of keyword arguments are on the stack, and functions get their defaults
and cells one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .table import Group, Part, Raw, Rule, Table, Written, follows

#: The bit of COMPARE_OP that asks for a Boolean.
_AS_BOOL = 0x10
_TESTS = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT")
_PUSH_NULL: Written = ("PUSH_NULL", 0)
_TO_BOOL: Written = ("TO_BOOL", 0)


def _to_bool(raws: Sequence[Raw], index: int) -> Group | None:
    if not follows(raws, index + 1, *_TESTS):
        return None
    return 2, [Part(raws[index + 1].name, raws[index + 1].arg)]


def _compare(raws: Sequence[Raw], index: int) -> Group | None:
    arg = raws[index].arg
    if not arg & _AS_BOOL:
        return None
    compared = Part("COMPARE_OP", arg & ~_AS_BOOL)
    if follows(raws, index + 1, *_TESTS):
        return 2, [compared, Part(raws[index + 1].name, raws[index + 1].arg, enter=1, before=(_TO_BOOL,))]
    return 1, [compared, Part("TO_BOOL", 0, enter=1, before=(_TO_BOOL,))]


def joined(first: str, second: str) -> Rule:
    """The rule for two loads or stores of variables, whose indices share the argument."""

    def rule(raws: Sequence[Raw], index: int) -> Group:
        arg = raws[index].arg
        return 1, [Part(first, arg >> 4), Part(second, arg & 15, enter=1, before=((second, arg & 15),))]

    return rule


def _with_null(name: str) -> Rule:
    """The rule for a load whose lowest bit asks for a NULL above what it loads."""

    def rule(raws: Sequence[Raw], index: int) -> Group | None:
        arg = raws[index].arg
        if not arg & 1:
            return None
        return 1, [Part(name, arg & ~1), Part("PUSH_NULL", 0, enter=1, before=(_PUSH_NULL,))]

    return rule


def _load_const(raws: Sequence[Raw], index: int) -> Group | None:
    """The names of keyword arguments, where the next instruction is a call that has some."""
    if not follows(raws, index + 1, "CALL_KW"):
        return None
    call = Part("CALL", raws[index + 1].arg, raw=1, enter=1)
    return 2, [Part("KW_NAMES", raws[index].arg), call]


def _make_function(raws: Sequence[Raw], index: int) -> Group:
    """The attributes that a function gets one by one are taken in the order in which 3.12 takes them together."""
    flags, end = 0, index + 1
    while follows(raws, end, "SET_FUNCTION_ATTRIBUTE"):
        flags |= raws[end].arg
        end += 1
    return end - index, [Part("MAKE_FUNCTION", flags)]


def _written_function(flags: int) -> list[Written]:
    found = [flag for flag in (0x08, 0x04, 0x10, 0x02, 0x01) if flags & flag]
    return [("MAKE_FUNCTION", 0), *(("SET_FUNCTION_ATTRIBUTE", flag) for flag in found)]


RULES: dict[str, Rule] = {
    "TO_BOOL": _to_bool, "COMPARE_OP": _compare, "LOAD_CONST": _load_const, "MAKE_FUNCTION": _make_function,
    "LOAD_FAST_LOAD_FAST": joined("LOAD_FAST", "LOAD_FAST"), "STORE_FAST_LOAD_FAST": joined("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": joined("STORE_FAST", "STORE_FAST"),
    "LOAD_GLOBAL": _with_null("LOAD_GLOBAL"), "LOAD_ATTR": _with_null("LOAD_ATTR"),
    "LOAD_SUPER_ATTR": _with_null("LOAD_SUPER_ATTR"),
    "FORMAT_SIMPLE": lambda raws, index: (1, [Part("FORMAT_VALUE", 0)]),
    "FORMAT_WITH_SPEC": lambda raws, index: (1, [Part("FORMAT_VALUE", 4)]),
}  # fmt: skip

WRITING: dict[str, Callable[[int], list[Written]]] = {
    "POP_JUMP_IF_TRUE": lambda arg: [_TO_BOOL, ("POP_JUMP_IF_TRUE", arg)],
    "POP_JUMP_IF_FALSE": lambda arg: [_TO_BOOL, ("POP_JUMP_IF_FALSE", arg)],
    "UNARY_NOT": lambda arg: [_TO_BOOL, ("UNARY_NOT", 0)],
    "FORMAT_VALUE": lambda arg: [("FORMAT_WITH_SPEC" if arg else "FORMAT_SIMPLE", 0)],
    "KW_NAMES": lambda arg: [("LOAD_CONST", arg)],
    "CALL_WITH_NAMES": lambda arg: [("CALL_KW", arg)],
    "LOAD_CLOSURE": lambda arg: [("LOAD_FAST", arg)],
    "MAKE_FUNCTION": _written_function,
}

TABLE = Table(
    version=(3, 13),
    rules=RULES,
    writing=WRITING,
    compared=lambda arg: arg >> 5,
    null_first=False,
    behind_for=2,
    for_end=("END_FOR", "POP_TOP"),
)
