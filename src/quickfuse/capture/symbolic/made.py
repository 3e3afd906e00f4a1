"""What capture makes: how objects came to be that lie on the stack as they are, variables, callables, and marks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False, repr=False, slots=True)
class Made:
    """How such an object, `value`, came to be. By the captured code itself, where `owner` is None: it may change the object,
    and compiled code makes another one. Otherwise it belongs to `owner`: reading its attribute or calling its method `name`
    gives the object, or, where `name` is empty, it holds the contents of that container of the user's."""

    value: Any
    owner: Any = None
    name: str = ""


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


@dataclass(eq=False, repr=False, slots=True)
class Assigned:
    """The value that a variable has now, `DELETED` if it has none: the global `name` of the dictionary `place`, this
    attribute of the class `place`, or what the cell `place` holds, where `name` is empty."""

    place: Any
    name: str
    value: Any


@dataclass(eq=False, repr=False, slots=True)
class HeldArray:
    """An array of NumPy's that the captured code made of constants, after so many instructions. It goes into tensors, or is
    read; where it outlives the graph, the graph ends before it is made. `memory`: whose memory it is in, its own or that of
    the array that it is a view of."""

    array: Any
    made_at: int
    memory: ArrayMemory


@dataclass(eq=False, repr=False, slots=True)
class ArrayMemory:
    """The memory of arrays that captured code made. `shared`: a tensor has it, too, so that these are not read any more."""

    shared: bool = False


@dataclass(eq=False, repr=False, slots=True)
class SuperProxy:
    """`super()` inside an inlined method."""

    cls: type
    instance: Any


@dataclass(eq=False, repr=False, slots=True)
class BuiltinMethod:
    """`base.name`, a method of the builtin class of a graph's tensor or of a container of the user's, not yet called."""

    base: Any
    name: str


@dataclass(eq=False, repr=False, slots=True)
class NativeHandler:
    """A callable made by capture itself: `run(interpreter, *args, **kwargs)`. `made_by`, if it has a counterpart in the
    program: the function that makes it, its first argument, and the others by name."""

    run: Callable[..., Any]
    made_by: tuple[Any, Any, dict[str, Any]] | None = None


class _Missing:
    """Marks an entry of a `ShadowDict` that was not looked at yet, or that was deleted."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


LAZY = _Missing("LAZY")
DELETED = _Missing("DELETED")
ABSENT = _Missing("ABSENT")
