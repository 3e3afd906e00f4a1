"""Exceptions of the captured program, and what raises them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ...errors import Unsupported


class Raised(Exception):
    """The captured program raised `exception`."""

    def __init__(self, exception: BaseException) -> None:
        super().__init__(exception)
        self.exception = exception


class NotYet(Unsupported):
    """Something happens here once, after which `table`, a dictionary of this name, has `key`."""

    def __init__(self, reason: str, hint: str, name: str, table: dict[Any, Any], key: Any) -> None:
        super().__init__(reason, hint)
        self.until = name, table, key


class SuspendedInside(Unsupported):
    """The segment would end where it must not, such as in inference mode: it is to end after `stop_at` instructions, before
    that began. `watches`: see `ir.segment.Break`."""

    def __init__(
        self, stop_at: int, reason: str = "a break in inference mode", watches: bool | None = None, hint: str = ""
    ) -> None:
        super().__init__(reason, hint)
        self.stop_at = stop_at
        self.watches = watches


@dataclass(frozen=True, slots=True)
class Moment:
    """Where the captured program was: how many instructions had come before, the line, and the frames."""

    performed: int
    location: str
    trace: Any

    def suspended(self, reason: str, hint: str = "") -> SuspendedInside:
        """The segment is to end there."""
        suspended = SuspendedInside(self.performed, reason, hint=hint)
        suspended.location, suspended.trace = self.location, self.trace
        return suspended


class LeftToPython(Unsupported):
    """The segment is to end in front of the outermost call in which little has been computed so far: what follows in there
    would be one break after the other."""


class TensorOfOtherSizes(LeftToPython):
    """Something is done with a tensor that has other sizes in each call."""

    def __init__(self) -> None:
        super().__init__("a tensor that has other sizes in each call")


def raise_in_program(exception: BaseException) -> NoReturn:
    """What the running instruction does is to raise this."""
    raise Raised(exception)


def refusing(reason: str, hint: str = "") -> Callable[..., Any]:
    """A method of a stand-in by which native code would look at what it stands for: without it there would be a TypeError,
    as if the program's."""

    def refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise Unsupported(reason.format(self), hint)

    return refuse


def call_handler(i: object, handler: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`handler(i, *args, **kwargs)`, which stands for a native function. Raises `Unsupported` where it does not take these
    arguments: the native one says whether it does."""
    try:
        return handler(i, *args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise Unsupported(f"a call of {name} with these arguments") from None
        raise


class CapturedAgain(Exception):
    """What was tried has left traces in this capture, which is to begin anew, and will not try that again."""
