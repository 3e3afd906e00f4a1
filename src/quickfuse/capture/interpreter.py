"""What the parts of capture see of the interpreter: the state of one capture, and the questions that can be asked of values.

The interpreter that answers them by running bytecode is `bytecode_interpreter.BytecodeInterpreter`. It knows every part;
the parts know this class, and reach one another through it: so none of them imports another in a circle.
"""

from __future__ import annotations

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from ..errors import Unsupported
from ..ir.endings import is_ordinary_class
from ..ir.guard import NumberExpr
from ..ir.segment import FirstState
from ..ir.source import Source
from ..ir.trace import Trace
from .graph.building import GraphBuilder
from .graph.failing import is_in_try
from .inference.results import OperatorFailed
from .outside.reading import Outside
from .symbolic import FromOutside, TensorProxy, Unread, real_of, type_of
from .symbolic.frame import Frame, GeneratorValue
from .symbolic.hooks import TensorHooks
from .symbolic.raising import Moment, Raised
from .values.kind import Args, Kind, Kwargs, Then

__all__ = ["VISIBLE_ENDING", "Args", "Interpreter", "Kwargs", "Then"]
VISIBLE_ENDING = "letting go of an object whose end runs code, such as a generator in the middle of a try statement"


class Interpreter(ABC):
    """The capture of one segment."""

    #: Whether captured code runs. When all of it is let go of, the end of a generator is none of the program's.
    is_running = False

    def __init__(
        self, stop_at: int = -1, volatile: frozenset[str] = frozenset(), only_moved: frozenset[int] = frozenset()
    ) -> None:
        self.frames: list[Frame] = []
        self.outside = Outside(self, volatile)
        self.graph = GraphBuilder(self)
        self.results: list[Any] = []
        #: See `Segment.prepared`.
        self.prepared: list[FirstState] = []
        #: See `Segment.autograd_asked`.
        self.autograd_asked: set[Source | None] = set()
        #: See `Segment.asks_compiling`.
        self.asked_compiling = False
        #: What classes say about operations, as far as it was asked for: see `class_attributes.special_method`.
        self.special_methods: dict[tuple[type, str, bool], Any] = {}
        #: Methods that `functools.singledispatchmethod` gave, by what asked for them, with the call that gives them.
        self.dispatched: dict[tuple[int, ...], tuple[Any, tuple[Any, ...]]] = {}
        self.generators: list[weakref.ref[GeneratorValue]] = []
        #: Hooks that the captured code registered and did not remove yet, by number: see `library.module_hooks`.
        self.hooks: dict[int, int] = {}
        #: Where hooks are called by a `backward()`: how many frames there are below theirs, and how many more there are in
        #: eager, which are PyTorch's own.
        self.engine_calls: list[tuple[int, int]] = []
        #: The hooks of tensors, by the identity of these: see `pytorch.gradient_hooks`.
        self.tensor_hooks: dict[int, TensorHooks] = {}
        #: What the weak references that the captured code made are to, by their identity.
        self.referenced: dict[int, Any] = {}
        #: The keys whose class says in Python how they are hashed, by their hashes: see `objects.hashing`.
        self.keys_by_content: dict[int, list[Any]] = {}
        #: The attributes that these are compared by, for each class.
        self.compared_by: dict[type, list[str]] = {}
        #: Those among them to objects of the user's, which look as if they were references themselves to native containers.
        self.references: list[Any] = []
        #: Objects from outside whose end can be seen, by identity: see `ir.endings`.
        self.ending: dict[int, Any] = {}
        #: Generators that nothing refers to any more, suspended where an exception handler is yet to run.
        self.dropped: list[GeneratorValue] = []
        self.is_running = True
        #: Whether this is the beginning of a call, whose arguments are the user's.
        self.begins_call = False
        self.stop_at = stop_at
        #: Instructions that only put a variable on the stack, where the segment leaves it: nothing reads its value.
        self.only_moved = only_moved
        #: Where the values of variables went that were read from frames of the beginning, and once: by the identity of the
        #: value, the number of the instruction, the frame, and the place there.
        self.loads: dict[int, tuple[int, Frame, int, Any]] = {}
        self.performed = 0
        self.raised_at = 0
        self.nesting = 0

    def release(self) -> None:
        """Let go of the user's objects: an interpreter is part of reference cycles, which may live long."""
        for part in (self, self.outside, self.graph):
            vars(part).clear()

    def loads_left(self) -> frozenset[int]:
        """The instructions whose values are on the stack, as they were loaded."""
        frames = {id(frame) for frame in self.frames}
        return frozenset(
            number
            for number, frame, place, value in self.loads.values()
            if id(frame) in frames and place < len(frame.stack) and frame.stack[place] is value
        )

    def note_autograd_asked(self, tensor: TensorProxy | None) -> None:
        """The program asked whether a tensor needs gradients, or (None) for the grad mode."""
        if not self.in_library():
            self.autograd_asked.add(None if tensor is None else tensor.source)

    # where ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def called_through(self, frames: int) -> Iterator[None]:
        """What runs meanwhile is called by so many frames of PyTorch's that are not captured."""
        self.engine_calls.append((len(self.frames), frames))
        try:
            yield
        finally:
            self.engine_calls.pop()

    def frame_at(self, level: int) -> Frame | None:
        """The frame at a level as eager has it, the running one at 1. None where it is not captured."""
        for below, more in reversed(self.engine_calls):
            of_hooks = len(self.frames) - below
            if level > of_hooks:
                level -= more
                if level <= of_hooks:
                    return None
        return self.frames[-level] if 1 <= level <= len(self.frames) else None

    def in_try(self) -> bool:
        """Whether the user's code would handle an exception that is raised now."""
        return any(is_in_try(f.code, f.lasti) for f in self.frames if not f.is_library)

    def in_library(self) -> bool:
        """Whether it is PyTorch's or the standard library's own code that is running."""
        return bool(self.frames) and self.frames[-1].is_library

    def location(self) -> str:
        """The user's innermost line: frames of PyTorch and the standard library are passed over."""
        for frame in reversed(self.frames):
            if not frame.is_library:
                return frame.location
        return self.frames[-1].location if self.frames else ""

    def place(self) -> tuple[str, int, dict[str, Any]] | None:
        """The file, the line and the globals of the code that runs, for warnings."""
        frame = self.frames[-1] if self.frames else None
        return frame and (frame.code.co_filename, frame.line, frame.globals)

    def moment(self) -> Moment:
        """Where the program is."""
        return Moment(self.performed, self.location(), self.trace())

    def trace(self) -> Trace:
        """The user's frames; all of them where PyTorch's or the standard library's own code was compiled."""
        users = [(frame.code, frame.lasti) for frame in self.frames if not frame.is_library]
        return tuple(users or [(frame.code, frame.lasti) for frame in self.frames])

    # questions about values -------------------------------------------------------------------------------------

    @abstractmethod
    def kind_of(self, value: Any) -> Kind:
        """What answers for a value: see `values/`."""

    @abstractmethod
    def truth_in_tensor(self, value: Any) -> bool:
        """The outcome of a branch on a tensor's value, or on a number out of one: a guard where that can be told before the
        graph runs."""

    @abstractmethod
    def call(self, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        """Call anything; `then` gets the result, at once or when an inlined frame returns."""

    @abstractmethod
    def attribute(self, base: Any, name: str, then: Then) -> None:
        """`base.name`, given to `then`."""

    @abstractmethod
    def item(self, base: Any, key: Any, then: Then) -> None:
        """`base[key]`, given to `then`."""

    @abstractmethod
    def binary(self, function: Callable[..., Any], left: Any, right: Any, then: Then) -> None:
        """A binary operator or comparison, given to `then`."""

    @abstractmethod
    def iterator(self, value: Any) -> Any:
        """`iter(value)`."""

    @abstractmethod
    def length(self, value: Any) -> Any:
        """`len(value)`."""

    @abstractmethod
    def truth(self, value: Any) -> bool:
        """`bool(value)` as the captured program sees it."""

    @abstractmethod
    def looked_up(self, key: Any) -> NumberExpr:
        """What guards look for in place of a key that is compared by its contents: see `objects.hashing`."""

    # running ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def run_until(self, depth: int) -> None:
        """Run, within an instruction, until only `depth` frames are left."""

    @abstractmethod
    def inline(self, function: FunctionType, args: Args, kwargs: Kwargs, on_result: Then) -> None:
        """Run a Python function as part of the capture."""

    @abstractmethod
    def run_class_body(self, body: FunctionType, namespace: dict[str, Any]) -> None:
        """Run the body of a class, whose names go into `namespace`."""

    @abstractmethod
    def note_loop(self, frame: Frame, head: int) -> None:
        """A loop comes round, to the instruction `head`. Raises `LeftLoop` if capture should have stopped in a loop."""

    def call_now(self, function: Any, args: Args, kwargs: Kwargs | None = None) -> Any:
        """Call anything and run it to its result before going on."""
        return self.now(self.call, function, args, kwargs or {})

    def attribute_now(self, base: Any, name: str) -> Any:
        """`base.name`, before going on."""
        return self.now(self.attribute, base, name)

    def attribute_or(self, base: Any, name: str, default: Any) -> Any:
        """`getattr(base, name, default)`."""
        try:
            return self.attribute_now(base, name)
        except Raised as raised:
            if not isinstance(raised.exception, AttributeError):
                raise
            return default

    def now(self, step: Callable[..., None], *operands: Any) -> Any:
        """The result that `step(*operands, then)` gives to `then`: the frames that it needs run before going on."""
        result: list[Any] = []
        depth = len(self.frames)
        step(*operands, result.append)
        self.run_until(depth)
        return result[0]

    # the end of objects -----------------------------------------------------------------------------------------

    def note_ending(self, generator: GeneratorValue) -> None:
        """A generator whose end runs code came to it."""
        if self.is_running:
            self.dropped.append(generator)

    def let_go(self, value: Any) -> None:
        """A slot of a frame no longer has this value. Raises `Unsupported` where that is the end of an object from outside,
        and can be seen."""
        real = _object_of(value)
        if id(real) in self.ending:
            slots = (slot for frame in self.frames for slot in (*frame.stack, *frame.exceptions, *frame.locals))
            if not any(_object_of(slot) is real for slot in slots):
                raise Unsupported(VISIBLE_ENDING)

    def overwritten(self, cls: type) -> None:
        """Something of the user's, a container, an object or a variable, no longer has a value of this class. Raises
        `Unsupported` where that may be the end of an object that can be seen."""
        if not is_ordinary_class(cls):
            raise Unsupported(VISIBLE_ENDING)

    def leave(self, frame: Frame) -> None:
        """A frame is done, and lets go of its values. Those of the outermost one live until the segment's end, those of
        one in a traceback perhaps longer."""
        if self.ending and (self.frames or frame.in_traceback):
            for value in (*frame.locals, *frame.stack):
                self.let_go(value)
        frame.locals.clear()
        frame.stack.clear()
        if self.dropped and frame.in_traceback:  # which keeps its variables alive
            raise Unsupported(VISIBLE_ENDING)

    # helpers for handlers ---------------------------------------------------------------------------------------

    def native(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a pure native function now. What it raises is raised in the captured program. Raises `Unsupported` where an
        operand is the user's, and not of a kind that its guards describe."""
        foreign = next((a for a in (*args, *kwargs.values()) if isinstance(a, FromOutside)), None)
        if foreign is not None:
            raise Unsupported(f"native code on a {type_of(foreign).__name__}")
        return self.read(function, *args, **kwargs)

    def read(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The same on objects of the user's, for reading what gets guards of its own."""
        try:
            return function(*args, **kwargs)
        except (Unsupported, Raised, OperatorFailed, RecursionError):  # capture's own stack is deeper than the program's
            raise
        except Exception as error:
            raise Raised(self.mark_created(error.with_traceback(None))) from None

    def mark_created(self, value: Any) -> Any:
        """Note that the captured code made this object, so that it may be changed in place."""
        return self.outside.mark_made(value)

    def is_created(self, value: Any) -> bool:
        """Whether the captured code made this object."""
        made = self.outside.made(value)
        return made is not None and made.owner is None


def _object_of(value: Any) -> Any:
    """The object that a slot stands for."""
    if type(value) is TensorProxy:
        return value.real
    return value.value if type(value) is Unread else real_of(value)
