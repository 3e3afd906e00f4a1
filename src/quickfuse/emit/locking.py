"""What stands around a segment's generated function: locks that it takes, and the default device that is taken away.

Generated code has the locks before it looks at the guards, and gives them back at its end. It never waits for a lock. Where
one is not free, the call runs natively, which waits where the program does.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from types import FunctionType
from typing import Any

from ..ir.default_device import default_device, taken_away
from ..ir.generated import generated_function
from ..ir.locks import LOCKS
from ..ir.segment import Segment
from ..ir.source import steps_to
from .prologue import Prologue


def with_locks(segment: Segment, run: FunctionType, signature: str, names: dict[str, Any], error: str) -> FunctionType:
    """The function `run` of a segment with its locks around it. `names` are those that generated code may use, `error` what
    a guard raises that does not hold.

    Signal handlers may raise between any two instructions that call something. So each time one call, of a function in C,
    takes all locks and writes down which it got. One instruction gives them back, and is no call: what is raised after the
    locks were given back would come from code that is done, to a driver that does not know that."""
    sources = [held.source for held in segment.locks]
    paths = {step for source in sources for step in steps_to(source)}
    guards = [guard for guard in segment.guards if guard.source is not None and paths.issuperset(guard.sources())]
    prologue = Prologue(guards, sources)
    prologue.write()
    locks = [prologue.name(source) for source in sources]
    # As often as the program leaves them taken, and once at least: but for those that it has taken before.
    counts = [(max(held.left, 1) if held.left >= 0 else 0, held.left) for held in segment.locks]
    wanted = [lock for lock, (taken, _) in zip(locks, counts, strict=True) for _ in range(taken)]
    released = [lock for lock, (taken, left) in zip(locks, counts, strict=True) for _ in range(taken - left)]
    lines = [
        "    try:",
        *(f"        {line}" for line in (*prologue.lines, f"_locks0 = {_tuple(locks)}")),
        f"    except {error} as _error0: return _missed(_error0)",
        "    if not _LOCKS0.issuperset(_map0(_type, _locks0)): return _MISS",
        "    _taken0 = []", f"    _wanted0 = {_tuple(wanted)}", "    _taking0 = _map0(_acquire0, _wanted0)",
        "    _giving0 = _map0(_release0, _compress0(_wanted0, _taken0))",
        f"    _left0 = _map0(_release0, {_tuple(released)})",
        "    try:", "        _taken0.extend(_taking0)", "        if not _all0(_taken0): raise _RunNatively",
        f"        _result0 = _run0({_passed(segment)})", "        if _result0 is not _MISS: _giving0 = _left0",
        "    finally: [*_giving0]", "    return _result0",
    ]  # fmt: skip
    return _around(run, signature, lines, {**names, **_NAMES, **prologue.constants})


_NAMES: dict[str, Any] = {
    "_LOCKS0": LOCKS, "_map0": map, "_all0": all, "_compress0": itertools.compress,
    "_acquire0": operator.methodcaller("acquire", False), "_release0": operator.methodcaller("release"),
}  # fmt: skip


def without_default_device(segment: Segment, run: FunctionType, signature: str, names: dict[str, Any]) -> FunctionType:
    """The function `run` of a segment, which was compiled for the default device around it, without PyTorch's mode."""
    lines = [
        "    if _default_device0() != _device0: return _MISS",
        "    _away0, _taking0, _giving0 = _taken_away0()",
        "    try:", "        _away0.extend(_taking0)", f"        return _run0({_passed(segment)})",
        "    finally:", "        if _away0: [*_giving0]",
    ]  # fmt: skip
    own = {"_default_device0": default_device, "_device0": segment.device_around, "_taken_away0": taken_away}
    return _around(run, signature, lines, {**names, **own})


def _around(run: FunctionType, signature: str, lines: list[str], names: dict[str, Any]) -> FunctionType:
    """A function with this body that calls `run` as `_run0`, and is called as it is."""
    name = run.__name__ if run.__name__.isidentifier() else "run"
    source = "\n".join([f"def {name}{signature}:", *lines]) + "\n"
    made = generated_function(source, run.__qualname__, {**names, "_run0": run}, name)
    made.__defaults__, made.__kwdefaults__, made.__qualname__ = run.__defaults__, run.__kwdefaults__, run.__qualname__
    return made


def _tuple(names: list[str]) -> str:
    return f"({', '.join(names)},)" if names else "()"


def _passed(segment: Segment) -> str:
    """The arguments of a call with what a segment's function got."""
    if segment.resumes:
        return "_frames"
    code = segment.code
    names = list(code.co_varnames)
    rest = code.co_argcount + code.co_kwonlyargcount
    parts = names[: code.co_argcount]
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{names[rest]}")
    parts += [f"{name}={name}" for name in names[code.co_argcount : rest]]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{names[rest + bool(code.co_flags & inspect.CO_VARARGS)]}")
    return ", ".join(parts)

