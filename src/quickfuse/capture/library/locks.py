"""Locks of the user's (`threading.Lock`, `RLock`): a segment that takes one holds it from before its guards to its end.

What the program reads while it has the lock is read in the prologue, before the place where it takes it, and what it changes
is changed in the effects, after the graph. So generated code takes the lock first (`emit.locking`). It never waits for one:
another thread that has it may wait for what this one has. Then the call runs natively, and waits as the program would.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.locks import LOCKS
from ...ir.segment import HeldLock
from ..interpreter import Args, Interpreter, Kwargs
from ..outside.changes import LockState
from ..symbolic import ForeignObject, type_of

_ACQUIRES = ("acquire", "__enter__")
_RELEASES = ("release", "__exit__")


def is_lock(value: Any) -> bool:
    """Whether this stands for a lock of the user's."""
    return type(value) is ForeignObject and type(value.real) in LOCKS


def method(i: Interpreter, name: str, lock: ForeignObject, args: Args, kwargs: Kwargs) -> Any:
    """A method of a lock."""
    known = i.outside.locks.setdefault(id(lock.real), LockState(lock))
    plain = [i.outside.concrete(value) for value in (*args, *kwargs.values())]
    if name in _ACQUIRES and (name == "__enter__" or not plain or (plain == [True] and {*kwargs} <= {"blocking"})):
        if known.released or (known.held and type(lock.real) is not _REENTRANT):
            raise Unsupported(f"a {type_of(lock).__name__} that is taken again")
        known.held += 1
        return True
    if name in _RELEASES and (name == "__exit__" or not plain):
        if known.held:
            known.held -= 1
            known.was_held = True
            return None
        if known.released or known.was_held:
            raise Unsupported(f"a {type_of(lock).__name__} that is released twice")
        asked = "_is_owned" if type(lock.real) is _REENTRANT else "locked"
        if not getattr(lock.real, asked)():
            raise Unsupported(f"a {type_of(lock).__name__} that is released and was not taken")
        i.outside.require(NumberExpr(f"{{}}.{asked}()", (lock.source,)), True)
        known.released = True
        return None
    raise Unsupported(f"the method {name} of a {type_of(lock).__name__}")


_REENTRANT: Any = type(threading.RLock())


def held(i: Interpreter) -> tuple[HeldLock, ...]:
    """The locks that the segment takes, and what becomes of them. Raises `Unsupported` where code of the user's runs in the
    graph or after it, which may take one of them itself, and did not hold it there."""
    states = [state for state in i.outside.locks.values() if state.held or state.released or state.was_held]
    if not states:
        return ()
    if i.outside.cached_calls or any(map(_may_run_python, i.graph.root.nodes)) or i.graph.leaves.begun:
        raise Unsupported("a lock beside functions that generated code calls")
    if len(states) > 1:
        i.outside.guard("unique", None, tuple(state.lock.source for state in states))
    return tuple(HeldLock(state.lock.source, -1 if state.released else state.held) for state in states)


def _may_run_python(node: torch.fx.Node) -> bool:
    """Whether a node of the graph may run a function of the user's."""
    if node.op != "call_function":
        return False
    target: Any = node.target
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target).partition(".")[0] not in ("aten", "prims")
    module = str(getattr(target, "__module__", None) or "torch")
    return module.partition(".")[0] not in ("torch", "_operator", "operator", "math", "builtins", "numpy", "quickfuse")
