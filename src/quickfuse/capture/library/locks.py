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


def is_lock(value: Any) -> bool:
    """Whether this stands for a lock of the user's."""
    return type(value) is ForeignObject and type(value.real) in LOCKS


def method(i: Interpreter, name: str, lock: ForeignObject, args: Args, kwargs: Kwargs) -> Any:
    """A method of a lock."""
    known = i.outside.locks.get(id(lock.real)) or LockState(lock)
    plain = [i.outside.concrete(value) for value in (*args, *kwargs.values())]
    asked = name == "acquire" and len(plain) == 1 and type(plain[0]) is bool and kwargs.keys() <= {"blocking"}
    if asked or (name in ("acquire", "__enter__") and not plain):
        found = _acquire(known, waits=plain != [False])
    elif name == "__exit__" or (name == "release" and not plain):
        found = _release(i, known)
    elif name == "locked" and (known.held or known.was_held or known.released):
        found = bool(known.held)
    else:
        raise Unsupported(f"the method {name} of a {type_of(lock).__name__}")
    i.outside.locks[id(lock.real)] = known
    return found


def _acquire(known: LockState, waits: bool) -> bool:
    """What `acquire()` gives where the lock is free for the segment, as generated code finds out."""
    if known.released:  # and is held all the time, from the beginning on
        known.released = False
        return True
    if (known.held or known.from_beginning) and type(known.lock.real) is not _REENTRANT:
        if waits:
            raise Unsupported("a lock that is taken again")
        return False
    if known.from_beginning:
        raise Unsupported("a lock that is taken again")
    known.held += 1
    return True


def _release(i: Interpreter, known: LockState) -> None:
    lock: Any = known.lock
    if known.held:
        known.held -= 1
        known.was_held = True
        return
    if known.released or known.was_held:
        raise Unsupported(f"a {type_of(lock).__name__} that is released twice")
    if not known.from_beginning:
        asked = "_is_owned" if type(lock.real) is _REENTRANT else "locked"
        if not getattr(lock.real, asked)():
            raise Unsupported(f"a {type_of(lock).__name__} that is released and was not taken")
        i.outside.require(NumberExpr(f"{{}}.{asked}()", (lock.source,)), True)
        known.from_beginning = True
    known.released = True


_REENTRANT: Any = type(threading.RLock())


def held(i: Interpreter) -> tuple[HeldLock, ...]:
    """The locks that the segment takes, and what becomes of them. Raises `Unsupported` where code of the user's runs in the
    graph or after it, which may take one of them itself, and did not hold it there."""
    states = [*i.outside.locks.values()]
    if not states:
        return ()
    if i.outside.cached_calls or any(map(_may_run_python, i.graph.root.nodes)) or i.graph.leaves.begun:
        raise Unsupported("a lock beside functions that generated code calls")
    if len(states) > 1:
        i.outside.guard("unique", None, tuple(state.lock.source for state in states))
    return tuple([
        HeldLock(state.lock.source, -1 if state.released else state.held)
        for state in states if state.released or not state.from_beginning
    ])  # fmt: skip


def _may_run_python(node: torch.fx.Node) -> bool:
    """Whether a node of the graph may run a function of the user's."""
    if node.op != "call_function":
        return False
    target: Any = node.target
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target).partition(".")[0] not in ("aten", "prims")
    module = str(getattr(target, "__module__", None) or "torch")
    return module.partition(".")[0] not in ("torch", "_operator", "operator", "math", "builtins", "numpy", "quickfuse")
