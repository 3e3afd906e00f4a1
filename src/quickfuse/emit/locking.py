"""Locks that a segment takes: generated code has them before it looks at the guards, and gives them back at its end.

It never waits for a lock. Where one is not free, the call runs natively, which waits where the program does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from ..ir.generated import generated_function
from ..ir.locks import LOCKS
from ..ir.segment import RunNatively, Segment
from ..ir.source import Source
from .prologue import Prologue


def with_locks(segment: Segment, run: FunctionType, signature: str, names: dict[str, Any], error: str) -> FunctionType:
    """The function `run` of a segment with its locks around it. `names` are those that generated code may use, `error` what
    a guard raises that does not hold."""
    sources = [held.source for held in segment.locks]
    paths = {step for source in sources for step in _path(source)}
    guards = [guard for guard in segment.guards if guard.source is not None and paths.issuperset(guard.sources())]
    prologue = Prologue(guards, sources)
    prologue.write()
    locks = ", ".join([prologue.name(source) for source in sources])
    name = run.__name__ if run.__name__.isidentifier() else "run"
    passed = "_frames" if segment.resumes else _passed(segment.code)
    source = "\n".join([
        f"def {name}{signature}:", "    try:",
        *(f"        {line}" for line in (*prologue.lines, f"_locks0 = ({locks},)")),
        f"    except {error} as _error0: return _missed(_error0)",
        "    if not _take0(_locks0, _left0): return _MISS",
        "    _result0 = _MISS", "    try:", f"        _result0 = _run0({passed})",
        "    finally: _give0(_locks0, _left0, _result0 is not _MISS)", "    return _result0",
    ])  # fmt: skip
    left = tuple([held.left for held in segment.locks])
    namespace = {**names, **prologue.constants, "_run0": run, "_take0": take, "_give0": give_back, "_left0": left}
    made = generated_function(source + "\n", run.__qualname__, namespace, name)
    made.__defaults__, made.__kwdefaults__, made.__qualname__ = run.__defaults__, run.__kwdefaults__, run.__qualname__
    return made


def _path(source: Source | None) -> list[Source]:
    found = []
    while source is not None:
        found.append(source)
        source = source.base
    return found


def _passed(code: CodeType) -> str:
    """The arguments of a call with what a function of this signature got."""
    names = list(code.co_varnames)
    rest = code.co_argcount + code.co_kwonlyargcount
    parts = names[: code.co_argcount]
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{names[rest]}")
    parts += [f"{name}={name}" for name in names[code.co_argcount : rest]]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{names[rest + bool(code.co_flags & inspect.CO_VARARGS)]}")
    return ", ".join(parts)


def take(locks: tuple[Any, ...], left: tuple[int, ...]) -> bool:
    """Take the locks that the program takes: as often as it leaves them taken, and once at least. False where one of the
    objects is no lock.

    Raises:
        RunNatively: where one of them is not free.
    """
    if not LOCKS.issuperset(map(type, locks)):
        return False
    taken: list[Callable[[], Any]] = []
    for lock, more in zip(locks, left, strict=True):
        for _ in range(max(more, 1) if more >= 0 else 0):
            if not lock.acquire(False):
                for release in taken:
                    release()
                raise RunNatively
            taken.append(lock.release)
    return True


def give_back(locks: tuple[Any, ...], left: tuple[int, ...], done: bool) -> None:
    """Leave the locks as the program does, or as they were where the segment did not run."""
    for lock, more in zip(locks, left, strict=True):
        taken = max(more, 1) if more >= 0 else 0
        for _ in range(taken - more if done else taken):
            lock.release()
