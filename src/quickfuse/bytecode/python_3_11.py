"""The bytecode of CPython 3.11."""

from __future__ import annotations

from collections.abc import Sequence

from .table import Group, Part, Raw, Table, Written


def _load_attr(raws: Sequence[Raw], index: int) -> Group:
    """From 3.12 on the lowest bit says whether two values are left, for a call."""
    return 1, [Part("LOAD_ATTR", raws[index].arg << 1 | (raws[index].name == "LOAD_METHOD"))]


def _written_attr(arg: int) -> list[Written]:
    return [("LOAD_METHOD" if arg & 1 else "LOAD_ATTR", arg >> 1)]


def _precall(raws: Sequence[Raw], index: int) -> Group:
    return 2, [Part("CALL", raws[index].arg, raw=1)]


TABLE = Table(
    version=(3, 11),
    rules={"LOAD_ATTR": _load_attr, "LOAD_METHOD": _load_attr, "PRECALL": _precall},
    writing={"LOAD_ATTR": _written_attr, "CALL": lambda arg: [("PRECALL", arg), ("CALL", arg)]},
    send_keeps_receiver=False,
    load_fast_checks=True,
)
