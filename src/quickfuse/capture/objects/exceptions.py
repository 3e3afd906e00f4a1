"""Exceptions on their way: finding the handler, chaining them, their tracebacks, and dividing groups among handlers."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, NoReturn

from ...errors import Unsupported
from ..interpreter import Interpreter
from ..symbolic import FromOutside, MadeTraceback, SuperProxy, real_of
from ..symbolic.frame import Frame
from ..symbolic.raising import Raised, raise_in_program


def stop_iteration(i: Interpreter, value: Any) -> NoReturn:
    """Raise the StopIteration of an iterator that ended with a value."""
    raise_in_program(i.mark_created(StopIteration() if value is None else StopIteration(value)))


def unwind(i: Interpreter, exception: BaseException, depth: int) -> None:
    """Give an exception to the innermost handler, popping frames as CPython does."""
    if isinstance(exception, FromOutside):
        raise Unsupported("raising an exception from outside")  # its traceback gets an entry for each frame
    _chain(i, exception)
    trace = i.outside.note_exception(exception).trace
    while len(i.frames) > depth:
        frame = i.frames[-1]
        if not trace or not _is_reraise(frame):
            trace.append((frame, frame.lasti))
        if isinstance(exception, AttributeError):
            _say_what_was_asked(exception, frame)
        handler = frame.decoded.handler_for(frame.lasti)
        if handler is not None:
            frame.in_traceback = True
            gone = frame.stack[handler.depth :]
            del frame.stack[handler.depth :]
            if i.ending:
                for value in gone:
                    i.let_go(value)
            gone.clear()
            if handler.push_lasti:
                frame.stack.append(frame.lasti)
            frame.stack.append(exception)
            frame.position = handler.target
            return
        i.frames.pop()
        i.leave(frame)
        if frame.generator is not None:
            frame.generator.done = True
            if isinstance(exception, StopIteration):
                stop = exception
                exception = i.mark_created(RuntimeError("generator raised StopIteration"))
                exception.__cause__ = exception.__context__ = stop
    raise Raised(exception)


def _say_what_was_asked(exception: AttributeError, frame: Frame) -> None:
    """Give an exception the object and the name of the attribute that a frame asked for, as CPython does for what raises it,
    be it a property or `__getattr__`."""
    name, _, value, _ = frame.decoded.instructions[frame.lasti]
    known = type(frame.asked) is not SuperProxy  # for which captured code has no object
    if name == "LOAD_ATTR" and known and exception.name is None and exception.obj is None:
        exception.name, exception.obj = value, frame.asked


def handled_now(i: Interpreter) -> Any:
    """The exception that the innermost `except` block handles, of whichever frame; None where there is none."""
    return next((e for f in reversed(i.frames) for e in reversed(f.exceptions) if e is not None), None)


def _chain(i: Interpreter, exception: BaseException) -> None:
    """Set `__context__` as CPython does for an exception that is raised while another one is handled.

    A `raise` of one that has a context replaces it, and takes the exception out of the chain that it becomes the head of.
    """
    handled = handled_now(i)
    if handled is None or handled is exception:
        return
    handled = real_of(handled)
    name, arg, _, _ = i.frames[-1].decoded.instructions[i.frames[-1].lasti]
    if handled is exception or (exception.__context__ is not None and not (name == "RAISE_VARARGS" and arg)):
        return
    before = _last_before(handled, exception)
    if before is not None:
        if not i.is_created(before):
            raise Unsupported("raising an exception again that one from outside came after")
        before.__context__ = None
    exception.__context__ = handled


def traceback_of(i: Interpreter, exception: BaseException) -> Any:
    """The traceback of an exception that captured code made: some traceback, which only the real one replaces."""
    made = i.outside.note_exception(exception)
    for known in made.tracebacks:
        if known.entries == len(made.trace):
            return known.value
    # Of a frame that has no caller: one that had would keep the interpreter's own frames.
    traceback = TracebackType(None, (nothing for nothing in ()).gi_frame, 0, 1)
    i.outside.note_traceback(traceback, made)
    return traceback


def set_traceback(i: Interpreter, exception: BaseException, traceback: Any) -> None:
    """`exception.__traceback__ = traceback`, for an exception that captured code made: back to what it was before."""
    if traceback is None:
        i.outside.note_exception(exception).trace.clear()
        return
    known = i.outside.made(traceback)
    if not isinstance(known, MadeTraceback) or known.owner is not exception:
        raise Unsupported("giving an exception another traceback")
    del i.outside.note_exception(exception).trace[known.entries :]


def _is_reraise(frame: Frame) -> bool:
    """Whether the last instruction raised an exception that has its entry for this frame already."""
    name, arg, _, _ = frame.decoded.instructions[frame.lasti]
    return name in ("RERAISE", "CLEANUP_THROW") or (name == "RAISE_VARARGS" and not arg)


def _last_before(exception: BaseException, wanted: BaseException) -> BaseException | None:
    """Whose context `wanted` is in the chain of contexts of `exception`, which may be a circle; None if it is not there."""
    seen: set[int] = set()
    while (following := exception.__context__) is not None and id(exception) not in seen:
        if following is wanted:
            return exception
        seen.add(id(exception))
        exception = following
    return None


# except*: dividing groups of exceptions that captured code made among handlers -------------------------------------


_GROUPS = (ExceptionGroup, BaseExceptionGroup)


def check_group(i: Interpreter, cls: type, args: tuple[Any, ...]) -> None:
    """See to it that a new group is one of exceptions that captured code made."""
    members = i.outside.contents(args[1]) if len(args) == 2 else None
    if cls not in _GROUPS or type(members) not in (list, tuple) or not all(isinstance(m, BaseException) for m in members):
        raise Unsupported(f"making a {cls.__name__}")


def caught_classes(wanted: Any) -> tuple[type, ...]:
    """The classes that an `except` names."""
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise_in_program(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    return kinds


def divide(i: Interpreter, exception: Any, wanted: Any) -> tuple[Any, Any]:
    """What an `except*` for some classes takes of an exception, as a group or None, and what it leaves."""
    if exception is None:
        return None, None
    kinds = caught_classes(wanted)
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
