"""`except*`: dividing groups of exceptions that captured code made among handlers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import Unsupported
from .interpreter import Interpreter
from .raising import raise_in_program

_GROUPS = (ExceptionGroup, BaseExceptionGroup)


def check_group(i: Interpreter, cls: type, args: tuple[Any, ...]) -> None:
    """See to it that a new group is one of exceptions that captured code made."""
    members = i.outside.contents(args[1]) if len(args) == 2 else None
    if cls not in _GROUPS or type(members) not in (list, tuple) or not all(isinstance(m, BaseException) for m in members):
        raise Unsupported(f"making a {cls.__name__}")


def divide(i: Interpreter, exception: Any, wanted: Any) -> tuple[Any, Any]:
    """What an `except*` for some classes takes of an exception, as a group or None, and what it leaves."""
    if exception is None:
        return None, None
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise_in_program(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    if any(issubclass(kind, BaseExceptionGroup) for kind in kinds):
        raise_in_program(TypeError("catching ExceptionGroup with except* is not allowed. Use except instead."))
    if isinstance(exception, BaseExceptionGroup):
        return _split(i, exception, kinds)
    if not isinstance(exception, BaseException):
        raise Unsupported("except* for an exception from outside")
    if not isinstance(exception, kinds):
        return None, exception
    return i.mark_created(BaseExceptionGroup("", (exception,))), None


def left_over(i: Interpreter, exception: Any, unhandled: list[Any]) -> Any:
    """What is raised after all handlers, None if nothing is. `unhandled` is what each handler raised or left over."""
    left = [e for e in i.outside.contents(unhandled) if e is not None]
    if not all(isinstance(e, BaseException) for e in (exception, *left)):
        raise Unsupported("except* for an exception from outside")
    if not left or not isinstance(exception, BaseExceptionGroup):  # of which there was one at most
        return left[0] if left else None
    raised = [e for e in left if _traced(i, e) != _traced(i, exception)]
    kept = {id(leaf) for e in left if all(e is not other for other in raised) for leaf in _leaves(e)}
    if kept:
        raised.append(_split(i, exception, lambda e: id(e) in kept)[0])
    return raised[0] if len(raised) == 1 else i.mark_created(BaseExceptionGroup("", raised))


def _traced(i: Interpreter, exception: BaseException) -> Any:
    """What tells an exception that was raised from one that was divided from it."""
    return i.outside.note_exception(exception).trace, exception.__context__, exception.__cause__


def _leaves(exception: BaseException) -> Iterator[BaseException]:
    if isinstance(exception, BaseExceptionGroup):
        for member in exception.exceptions:
            yield from _leaves(member)
    else:
        yield exception


def _split(i: Interpreter, group: BaseExceptionGroup[Any], condition: Any) -> tuple[Any, Any]:
    if any(type(part) not in _GROUPS for part in _groups(group)):
        raise Unsupported(f"dividing a {type(group).__name__}")
    taken, left = i.native(BaseExceptionGroup.split, group, condition)
    for part in (taken, left):
        if part is not None and part is not group:
            known = i.outside.note_exception(part)
            known.trace[:] = i.outside.note_exception(group).trace
            known.divided = group
    return taken, left


def _groups(group: BaseExceptionGroup[Any]) -> Iterator[BaseExceptionGroup[Any]]:
    yield group
    for member in group.exceptions:
        if isinstance(member, BaseExceptionGroup):
            yield from _groups(member)

