"""The bytecode of CPython 3.14.

Against 3.13: loads that borrow a reference, small integers and some builtins are no constants of the code object, `with`
looks up its methods by LOAD_SPECIAL, subscripts are a binary operator, and the iterator of a `for` is left for POP_ITER.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from . import python_3_13 as older
from .table import Group, Part, Raw, Rule, Table, follows, renamed

_SUBSCRIPT = 26  # among the binary operators
#: With the other ones, `tuple`, `all` and `any`, the program asks whether these are the builtins before it calls them with a
#: generator, and goes through that itself. It is told that they are not: a call that breaks is then one step, as in 3.13.
_COMMON_CONSTANTS = (AssertionError, NotImplementedError)
#: `with`: the methods are looked up and put below the manager, and one of them is called.
_WITH = (("COPY", 1), ("LOAD_SPECIAL", 1), ("SWAP", 2), ("SWAP", 3), ("LOAD_SPECIAL", 0), ("CALL", 0))


def _copy(raws: Sequence[Raw], index: int) -> Group | None:
    """A `with` statement keeps the method and the manager on the stack, or the method and a NULL.

    Ours keeps `operator.call` and the bound method, which can be called in the same way and is never a NULL.
    """
    group = raws[index : index + len(_WITH)]
    if tuple([(raw.name, raw.arg) for raw in group]) != _WITH or not all(raw.joins for raw in group[1:]):
        return None
    last = len(_WITH) - 1
    drop: tuple[tuple[str, int], ...] = (("POP_TOP", 0),)
    return len(_WITH), [
        Part("LOAD_CONST", 0, (operator.call,), raw=last),
        Part("SWAP", 2, raw=last, before=drop),
        Part("BEFORE_WITH", 0, raw=last, before=(("SWAP", 2), *drop)),
    ]


def _push_null(raws: Sequence[Raw], index: int) -> Group | None:
    if not follows(raws, index + 1, "CALL_FUNCTION_EX"):
        return None
    return 2, [Part("CALL_FUNCTION_EX", 0, raw=1)]


def _load_global(raws: Sequence[Raw], index: int) -> Group | None:
    """The NULL above a global may be what CALL_FUNCTION_EX takes for no keyword arguments: `f(*GLOBAL)`."""
    arg = raws[index].arg
    if not (arg & 1 and follows(raws, index + 1, "CALL_FUNCTION_EX")):
        return older.RULES["LOAD_GLOBAL"](raws, index)
    call = Part("CALL_FUNCTION_EX", 0, raw=1, enter=1, before=(("PUSH_NULL", 0),))
    return 2, [Part("LOAD_GLOBAL", arg & ~1), call]


def _binary(raws: Sequence[Raw], index: int) -> Group | None:
    return (1, [Part("BINARY_SUBSCR", 0)]) if raws[index].arg == _SUBSCRIPT else None


def _small_int(raws: Sequence[Raw], index: int) -> Group:
    return 1, [Part("LOAD_CONST", 0, (raws[index].arg,))]


def _common_constant(raws: Sequence[Raw], index: int) -> Group:
    arg = raws[index].arg
    return 1, [Part("LOAD_CONST", 0, (_COMMON_CONSTANTS[arg] if arg < len(_COMMON_CONSTANTS) else None,))]


_RULES: dict[str, Rule] = {
    **older.RULES,
    "COPY": _copy, "PUSH_NULL": _push_null, "LOAD_GLOBAL": _load_global, "BINARY_OP": _binary,
    "LOAD_SMALL_INT": _small_int, "LOAD_COMMON_CONSTANT": _common_constant, "LOAD_FAST_BORROW": renamed("LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": older.joined("LOAD_FAST", "LOAD_FAST"),
    "NOT_TAKEN": lambda raws, index: (1, []), "POP_ITER": renamed("POP_TOP"),
    "CALL_FUNCTION_EX": lambda raws, index: (1, [Part("CALL_FUNCTION_EX", 1)]),
}  # fmt: skip

TABLE = Table(
    version=(3, 14),
    rules=_RULES,
    writing={
        **older.WRITING,
        "BEFORE_WITH": lambda arg: list(_WITH),
        "BINARY_SUBSCR": lambda arg: [("BINARY_OP", _SUBSCRIPT)],
        "CALL_FUNCTION_EX": lambda arg: [("CALL_FUNCTION_EX", 0)] if arg else [("PUSH_NULL", 0), ("CALL_FUNCTION_EX", 0)],
        "LOAD_ASSERTION_ERROR": lambda arg: [("LOAD_COMMON_CONSTANT", 0)],
    },
    compared=lambda arg: arg >> 5,
    null_first=False,
    behind_for=2,
    for_end=("END_FOR", "POP_ITER"),
    lasti_is_object=False,
    with_values=2,
)
