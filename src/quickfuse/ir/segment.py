"""A captured part of the user's program, and how to leave the program as eager Python would have left it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from .generated import graph_module
from .guard import Guard, NumberExpr
from .source import Source
from .trace import Trace, location_of
from .values import DynamicMeta, NumberMeta, ObjectMeta, TensorMeta

#: Why a graph runs as PyTorch's operators before a break at which Python asks for what they have left in autograd's graph.
NODE_ASKED = "the autograd node of a result"


class RunNatively(Exception):
    """A specialisation asks its caller to run the function natively: it is running already (in a finalizer or signal
    handler that interrupted it), or an operator failed, which is the `__cause__`, before anything was changed.
    Or it has inputs that autograd may refuse."""


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A placeholder of the graph: the value at `source`. `cls` is the tensor's Python class."""

    name: str
    source: Source
    meta: TensorMeta | NumberMeta | ObjectMeta | DynamicMeta
    cls: type


class Recipe:
    """How to make a Python value after the graph ran. One recipe object is one Python object: sharing is kept."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Recipe):
    """A constant of the program: a plain immutable value, a function, a class or a module."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Existing(Recipe):
    """The object that was at `source` when the call began."""

    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Output(Recipe):
    """An output of the graph."""

    index: int


@dataclass(eq=False, slots=True)
class Build(Recipe):
    """A new container of type `cls` (list, tuple, dict, set, a namedtuple, slice, ...) with these elements.

    For dictionaries `items` are (key, value) pairs of recipes.
    """

    cls: type
    items: list[Any]


@dataclass(eq=False, slots=True)
class New(Recipe):
    """A new instance of `cls`, made without calling `__init__`, with these attributes.

    `slots` are attributes that are not in its `__dict__`. `items` are the elements of a subclass of list, set or dict.
    """

    cls: type
    attributes: dict[str, Recipe]
    slots: dict[str, Recipe] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Cell(Recipe):
    """A new cell for a variable that inner functions share; `content` is None while the variable is unbound."""

    content: Recipe | None = None


@dataclass(eq=False, slots=True)
class Call(Recipe):
    """What `function(*args)` returns: for objects that Python makes in one call, such as functions and iterators.

    `items` are put into it afterwards: elements, or (key, value) pairs.
    """

    function: Any
    args: list[Recipe]
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Traced(Recipe):
    """An exception with the traceback that it got where it was raised: (code, globals, position), outermost last.

    `running` has the index of the suspended frame that an entry belongs to, None for a frame that is done.
    """

    exception: Recipe
    trace: tuple[tuple[CodeType, dict[str, Any], int], ...]
    running: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Computed(Recipe):
    """A number computed from numbers of the user's program."""

    expr: NumberExpr


@dataclass(eq=False, slots=True)
class FrameRecipe:
    """How to make an `ir.frame.FrameState`. An entry of `locals` or `stack` that is None is `UNBOUND` or `NULL`.

    `origin` is the index of the frame that the segment began with, where this is the same one and in a traceback.
    """

    code: CodeType
    globals: dict[str, Any]
    locals: list[Recipe | None]
    stack: list[Recipe | None]
    position: int
    keyword_names: tuple[str, ...]
    handled: list[Recipe]
    replacement: Recipe | None
    origin: int | None = None

    @property
    def location(self) -> str:
        return location_of(((self.code, self.position),))


@dataclass(frozen=True, slots=True, eq=False)
class Generator(Recipe):
    """A generator that is suspended in this frame."""

    frame: FrameRecipe


@dataclass(eq=False, slots=True)
class Break:
    """Why a segment ends before the program does: one instruction has to be performed by Python.

    `reason` is a clause for the user, `hint` what to write instead, `location` the user's "file:line", and `trace` the
    program's frames. `loop_end` is set where a loop is to run natively: the instruction after it. `until` is set where the
    next call may go on, once Python has performed the instruction: the name of a dictionary, it, and the key that it lacks.
    `watches`: it asks for the gradients of a tensor, in front of it, on which others depend.
    """

    reason: str
    hint: str = ""
    location: str = ""
    trace: Trace = ()
    loop_end: int | None = None
    until: tuple[str, dict[Any, Any], Any] | None = None
    watches: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """A change to the user's objects, replayed after the graph.

    `kind`: "setattr" and "delattr" (`key` a name), "setplain" ("setattr" past a `__setattr__` of the class), "setitem" and
    "delitem" (`key` a recipe), "refill" (the list, set or deque `target` gets the elements of `value`; `key` is its builtin
    class), "extend" (they are added to it), "discard" (they are taken out of the set), "setglobal" and "delglobal" (`target`
    is None, `key` is (globals, name)), "setcell" (`target` is the
    cell) and "do" (`value` is a call to be made).
    """

    kind: str
    target: Recipe | None
    key: Any
    value: Recipe | None = None


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that a segment has from before its guards on. `left`: how often it is taken and not released at the end; -1
    where it was held from the beginning on, and is released."""

    source: Source
    left: int


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """A call of a generator of Python's random numbers, made once all guards hold and before the graph runs. `tensor` gets
    the number, None where the call gives none."""

    tensor: torch.Tensor | None
    call: Call


@dataclass(eq=False, slots=True)
class FirstState:
    """The state that capture made for parameters of an optimizer's group, before its first step; `reached`: the number of
    the instruction at which the captured program comes to make it, -1 if it does not."""

    state: dict[Any, Any]
    parameters: list[Any]
    group: dict[str, Any]
    reached: int = -1

    def take_back(self) -> None:
        """What has no such state in eager has none here."""
        for parameter in self.parameters:
            self.state.pop(parameter, None)


@dataclass(eq=False, slots=True)
class Segment:
    """A part of the program that runs without Python: from a call or from suspended frames, to the return or a break.

    `graph`'s placeholders correspond to `inputs`; it returns a flat tuple, which recipes refer to. Every node carries
    `meta["val"]` (a `TensorMeta`, a `NumberMeta`, or a list of them), `meta["trace"]` (a `Trace`), and `meta["variable"]`
    where a tensor was stored in a local variable: its name, and whether the function was the user's. `resumes` is False
    for a segment that begins with a call of `code`, True for one that begins with suspended frames, which are at the
    positions `began` of their code. It ends with the return
    of `result`, or, where `pause` is set, with the suspended `frames`. `operators` is the number of calls in the graph, and
    `performed` that of captured instructions. `examples` are the values of `inputs` in the captured call, until the
    segment is compiled. `mutated` names the inputs that the graph changes in place. `changes_modes`: nodes change settings
    of PyTorch's (see `ir.modes`), to be restored where a node raises. `only_eager` says why only PyTorch itself can run the
    graph, if so. `inference`: it runs in inference mode. `labels` are the names under which a profiler shows it.
    `prepared` are the states of optimizers that capture made, until the first run.
    `autograd_asked` are the tensors of which the user's own code asked whether they need gradients, with None among them
    where it asked for the grad mode. `recorded`: on a GPU, as a CUDA graph; `tuned`: with launch shapes that are measured.
    `draws` are calls that come before the graph, in order; `undraws`: the graph may fail, so that these numbers are given
    back to their generators then. `begins` are the tensors that require gradients from before the graph on, and did not when
    the guards held. `asks_compiling`: the user's code asked whether it is being
    compiled. `expects`: the graph fails where a branch has another outcome than usual, which is no fault of the program's.
    `fails_after_changes`: it may fail where the program goes on, after it changed something.
    `in_parts`: its graph, which needs gradients, was compiled in parts.
    `locks` are those that it takes or releases.
    `regraded_first` are the tensors whose gradients the captured code sets before any operator that might fail.
    """

    code: CodeType
    graph: torch.fx.Graph
    inputs: list[GraphInput]
    guards: list[Guard]
    result: Recipe | None
    effects: list[Effect] = field(default_factory=list)
    mutated: frozenset[str] = frozenset()
    needs_grad: bool = False
    resumes: bool = False
    began: tuple[tuple[CodeType, int], ...] = ()
    frames: list[FrameRecipe] = field(default_factory=list)
    pause: Break | None = None
    operators: int = 0
    performed: int = 0
    examples: list[Any] = field(default_factory=list)
    changes_modes: bool = False
    only_eager: str = ""
    #: Whether it begins inside of an autocast block.
    in_autocast: bool = False
    inference: bool = False
    labels: tuple[str, ...] = ()
    autograd_asked: frozenset[Source | None] = frozenset()
    prepared: list[FirstState] = field(default_factory=list)
    recorded: bool = False
    tuned: bool = False
    draws: list[Draw] = field(default_factory=list)
    undraws: bool = False
    begins: tuple[Source, ...] = ()
    asks_compiling: bool = False
    expects: bool = False
    fails_after_changes: bool = False
    in_parts: bool = False
    regraded_first: frozenset[Source] = frozenset()
    locks: tuple[HeldLock, ...] = ()
    #: The default device around it (see `default_device`).
    device_around: torch.device | None = None
    _module: torch.fx.GraphModule | None = None
    _tensor_order: list[Source] | None = None

    @property
    def module(self) -> torch.fx.GraphModule:
        """The graph as a module: made on first use, since PyTorch generates and compiles Python source for it."""
        if self._module is None:
            self._module = graph_module(self.graph)
        return self._module

    @property
    def changes_inputs(self) -> bool:
        """Whether the graph itself changes tensors that it is given."""
        return bool(self.changed_inputs)

    @property
    def changed_inputs(self) -> list[GraphInput]:
        """The inputs that the graph itself changes: others are those that numbers are drawn into."""
        drawn = {id(draw.tensor) for draw in self.draws if draw.tensor is not None}
        return [i for i in self.inputs if i.name in self.mutated and id(i.source.owner) not in drawn]

    @property
    def is_dynamic(self) -> bool:
        """Whether it takes tensors of dynamic sizes."""
        return any(isinstance(i.meta, DynamicMeta) for i in self.inputs)

    def run(self, *inputs: Any) -> Any:
        """Run the graph operator by operator; `inputs` are the placeholders' values."""
        return self.module.forward(*inputs)

    def __str__(self) -> str:
        return str(self.graph)
