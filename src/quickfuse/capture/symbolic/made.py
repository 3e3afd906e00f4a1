"""Objects that lie on the stack as they are because capture made them."""

from __future__ import annotations

from typing import Any


class Made:
    """How such an object, `value`, came to be. By the captured code itself, where `owner` is None: it may change the object,
    and compiled code makes another one. Otherwise it belongs to `owner`: reading its attribute or calling its method `name`
    gives the object, or, where `name` is empty, it holds the contents of that container of the user's."""

    __slots__ = ("name", "owner", "value")

    def __init__(self, value: Any, owner: Any = None, name: str = "") -> None:
        self.value = value
        self.owner = owner
        self.name = name


class MadeException(Made):
    """An exception that the captured code raised: how it came by, which are the entries (frame, position) of its traceback,
    innermost first; what stands for its traceback, now and when that had fewer entries; and the group that it was divided
    from, if so, whose traceback it has until it is raised itself."""

    __slots__ = ("divided", "trace", "tracebacks")

    def __init__(self, value: BaseException) -> None:
        super().__init__(value)
        self.trace: list[tuple[Any, int]] = []
        self.tracebacks: list[MadeTraceback] = []
        self.divided: BaseException | None = None


class MadeTraceback(Made):
    """Some traceback in place of that of an exception, `owner`, as it was when it had this number of entries."""

    __slots__ = ("entries",)

    def __init__(self, value: Any, owner: BaseException, entries: int) -> None:
        super().__init__(value, owner, "__traceback__")
        self.entries = entries
