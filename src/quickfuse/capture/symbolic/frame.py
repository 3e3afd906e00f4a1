"""A frame of the captured program: what CPython keeps for a running function, as explicit data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, GeneratorType
from typing import Any

from ...bytecode.decoding import Decoded, decode, local_names
from ...ir.frame import UNBOUND
from ...ir.source import Source
from .kinds import is_trusted_module
from .raising import raise_in_program

#: Instructions that put the value on top of the stack into variables, without a look at it.
TAKE_UNREAD = ("STORE_FAST", "UNPACK_SEQUENCE")


@dataclass(slots=True)
class Turns:
    """A loop that came round.

    `first` is how many instructions the captured program had performed when it did so first, `operators` how many operators,
    `gradient_calls` how often it had computed gradients by then, and `count` how often it came round since; `last` is the
    last instruction from which it did. For the last time that it touched a tensor, `idle_since` has the instructions and
    `progress` the tensors so far.
    """

    first: int
    operators: int
    gradient_calls: int
    idle_since: int
    progress: int
    last: int
    count: int = 0


class Frame:
    """`locals` holds values by the index that the bytecode uses; cells and free variables hold `CellType` objects."""

    __slots__ = (
        "asked", "called_at", "code", "decoded", "exceptions", "function_source", "generator", "globals", "in_traceback",
        "is_library", "keyword_names", "lasti", "locals", "loops", "names", "namespace", "on_result", "origin", "position",
        "stack",
    )  # fmt: skip

    def __init__(
        self, code: CodeType, globals_: dict[str, Any], on_result: Callable[[Any], None], function_source: Source | None
    ) -> None:
        self.code = code
        self.decoded: Decoded = decode(code)
        self.globals = globals_
        #: Whether the code is PyTorch's or the standard library's.
        self.is_library = is_trusted_module(globals_.get("__name__"))
        self.on_result = on_result
        self.function_source = function_source
        self.names = local_names(code)
        self.locals: list[Any] = [UNBOUND] * len(self.names)
        self.stack: list[Any] = []
        self.position = 0
        self.lasti = 0
        self.keyword_names: tuple[str, ...] = ()
        #: How many instructions came before the one that called it, -1 where the segment began with it.
        self.called_at = -1
        #: The object of which an attribute was asked for last.
        self.asked: Any = None
        self.exceptions: list[BaseException | None] = []
        self.generator: GeneratorValue | None = None
        #: What the body of a class puts its names into.
        self.namespace: dict[str, Any] | None = None
        #: The index of the suspended frame that this one goes on from, where that is in a traceback.
        self.origin: int | None = None
        #: Whether the frame is in the traceback of an exception, which may keep its variables beyond its end.
        self.in_traceback = False
        #: The loops that came round, by their first instructions.
        self.loops: dict[int, Turns] = {}

    @property
    def line(self) -> int:
        instructions = self.decoded.instructions
        return instructions[min(self.lasti, len(instructions) - 1)].line

    @property
    def location(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


@dataclass(eq=False, slots=True)
class Constructed:
    """What happens to the return value of an `__init__` that runs as part of a call of its class: the caller gets the
    new object."""

    instance: Any
    then: Callable[[Any], None]

    def __call__(self, result: Any) -> None:
        if result is not None:
            raise_in_program(TypeError(f"__init__() should return None, not '{type(result).__name__}'"))
        self.then(self.instance)


#: What the generators of `library.in_python` stand for, by their code.
NATIVE_ITERATORS: dict[CodeType, type] = {}

#: The functions of `library.in_python` that make them: Python is to call the native ones, not what is left of these.
MAKE_NATIVE_ITERATORS: set[CodeType] = set()


class GeneratorValue:
    """A generator made by the captured code and consumed inside it.

    The captured program's references to it are the interpreter's own, so that it dies where the real one would.
    `on_dropped` gets it then, if that would run code. `kind`: the class that the program sees.
    """

    __slots__ = ("__weakref__", "done", "frame", "function", "kind", "on_dropped", "running")

    def __init__(self, frame: Frame, function: FunctionType, on_dropped: Callable[[GeneratorValue], None]) -> None:
        self.frame = frame
        self.function = function
        self.on_dropped = on_dropped
        self.kind = NATIVE_ITERATORS.get(function.__code__, GeneratorType)
        self.done = False
        self.running = False

    def __del__(self) -> None:
        if self.runs_code_when_dropped:
            self.on_dropped(self)

    @property
    def runs_code_when_dropped(self) -> bool:
        """Whether it is suspended where an exception handler would run if nothing referred to it any more."""
        if self.done or self.frame.position == 0:
            return False
        position = self.frame.position - 1
        while (handler := self.frame.decoded.handler_for(position)) is not None:
            name, arg, _, _ = self.frame.decoded.instructions[handler.target]
            if name == "CALL_INTRINSIC_1" and arg == 3:  # what turns StopIteration into RuntimeError, in all of them
                return False
            if name != "CLEANUP_THROW":
                return True
            inner = self.frame.stack[-1] if self.frame.stack else None  # suspended in a `yield from`
            if type(inner) is GeneratorValue and inner.runs_code_when_dropped:
                return True
            position = handler.target
        return False


class ArgumentsMismatch(Exception):
    """The call does not fit the function's signature: the native call will raise the right `TypeError`."""


@dataclass(frozen=True, slots=True)
class _Default:
    """In place of the default value of an argument: where it is among a function's attributes."""

    name: str
    key: Any


def bind_arguments(
    function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], default: Callable[[str, Any], Any] | None = None
) -> list[Any]:
    """The values of a function's arguments in the order of its locals, as CPython binds them.

    `default("__defaults__", index)` or `default("__kwdefaults__", name)` gives the value of a default argument. Raises
    `ArgumentsMismatch` where CPython raises TypeError."""
    code = function.__code__
    if len(args) == code.co_argcount and not (kwargs or code.co_kwonlyargcount or code.co_flags & _VARIADIC):
        return [*args]
    defaults = tuple([_Default("__defaults__", k) for k in range(len(function.__defaults__ or ()))])
    by_name = {name: _Default("__kwdefaults__", name) for name in function.__kwdefaults__ or ()}
    try:
        values = _with_signature(function, defaults, by_name)(*args, **kwargs).values()
    except TypeError:
        raise ArgumentsMismatch from None
    default = default or (lambda name, key: getattr(function, name)[key])
    return [default(value.name, value.key) if type(value) is _Default else value for value in values]


def refusal(function: FunctionType, positional: int, names: Iterable[str]) -> TypeError | None:
    """What CPython raises for a call with so many positional arguments and keywords of these `names`, which does not fit.
    None where that depends on default values, which may be other ones in the next call."""
    code = function.__code__
    every = (None,) * code.co_argcount, dict.fromkeys(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    said = []
    for defaults, by_name in ((function.__defaults__, function.__kwdefaults__), every):
        try:
            _with_signature(function, defaults, by_name)(*(None,) * positional, **dict.fromkeys(names))
        except TypeError as error:
            said.append(error)
    return said[0] if len(said) == 2 and str(said[0]) == str(said[1]) else None


def _with_signature(function: FunctionType, defaults: Any, by_name: Any) -> FunctionType:
    """A function of the same signature that gives the values of its arguments by name, in the order of its locals."""
    stub = FunctionType(_its_arguments(function.__code__), {}, function.__name__, defaults)
    stub.__kwdefaults__ = by_name
    stub.__qualname__ = function.__qualname__
    return stub


_ITS_LOCALS = (lambda: locals()).__code__
#: The flags of code that takes `*args` or `**kwargs`.
_VARIADIC = 0x0C


@functools.lru_cache(maxsize=4096)
def _its_arguments(code: CodeType) -> CodeType:
    variadic = code.co_flags & _VARIADIC
    count = code.co_argcount + code.co_kwonlyargcount + variadic.bit_count()
    return _ITS_LOCALS.replace(
        co_argcount=code.co_argcount, co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount, co_varnames=code.co_varnames[:count], co_nlocals=count,
        co_flags=_ITS_LOCALS.co_flags | variadic, co_name=code.co_name, co_qualname=code.co_qualname,
    )  # fmt: skip


def new_cell(value: Any = UNBOUND) -> CellType:
    return CellType() if value is UNBOUND else CellType(value)
