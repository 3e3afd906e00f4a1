"""Python source of a specialisation: guards, inputs, kernels, and what happens to the user's objects afterwards.

The generated function has the signature of the user's function, and returns its result, or `MISS` where a guard fails.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import random
import re
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import is_
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy
import torch

from ..errors import BackendError, InternalError, Unsupported
from ..ir import reading
from ..ir.caches import cached_holds
from ..ir.endings import ends_visibly
from ..ir.frame import NULL, UNBOUND, Activation, FrameState, Suspension
from ..ir.generated import generated_function
from ..ir.guard import added
from ..ir.iterating import ahead, next_of, read_by
from ..ir.segment import Existing, FirstState, RunNatively, Segment
from ..ir.sharing import takes_data
from ..ir.source import Source
from ..ir.values import DynamicMeta, TensorMeta
from ..ir.walk import MOVED
from ..signals import let_through
from .assembly import TensorsInOrder, assembled
from .contents import ContentsGuards
from .epilogue import Epilogue, segment_recipes, sources_in
from .locking import with_locks, without_default_device
from .prologue import Prologue

#: A variable of generated code, and what else is one of its variables.
_VARIABLE = re.compile(r"_[a-z]+\d+")
_OURS = re.compile(r"_(tensors|state|frames|CELLS|[a-z]+\d\w*)")

#: Where kernels cannot run, and how that is asked where the tensors are known to be the same, and in no list.
UNFIT = "_placer.overlapping or _unversioned(_tensors)"
_UNFIT_IF_SAME = "(_tensors := _same2.listed(_tensors)) if _placer.overlapping else _count0()"
#: How a change of addresses is noted, and that it was.
PLACED = "_placer.place(_check)"
_PLACED_NOW = f"{PLACED}; _same1[{MOVED}] = 0"
#: Fewer tensors are checked as soon as it is known that they are the same.
_FEWEST_TENSORS = 12

#: Functions on whole lists that generated code calls: see `launch.bulk_reads`.
Helpers = dict[str, Callable[..., Any]]


class Interrupted(Exception):
    """An operator failed after the graph of `segment` had changed tensors of the user's. `drawn` has the generators of
    random numbers of which some were drawn for the graph, with their states before that, if it is known; `prepared` the
    states of optimizers that capture made, if it is the graph's first run."""

    def __init__(self, segment: Segment, error: Exception, drawn: Any) -> None:
        super().__init__(error)
        self.segment = segment
        self.error = error
        self.drawn = drawn
        self.prepared: list[FirstState] = []


class Miss:
    """What a specialisation returns when a guard fails."""

    def __repr__(self) -> str:
        return "MISS"


MISS = Miss()


def missed(error: Exception) -> Miss:
    """A guard that cannot be evaluated does not hold. A signal handler's exception is none of a guard's."""
    let_through(error)
    return MISS


def _let_through(error: Exception) -> None:
    """Raise an exception that says nothing about the program: a signal handler's, one about the backend, or a request."""
    let_through(error)
    if isinstance(error, (BackendError, InternalError, RunNatively)):
        raise error


#: Builtins under names that no argument of the user's hides.
NATIVE: dict[str, Any] = {
    "_is": is_, "_setplain": object.__setattr__, "_own": object.__getattribute__, "_entry": dict.get, "_Cell": CellType,
    "_weak": weakref.ref, "_np": numpy, "_MISSING": reading.MISSING, "_UNBOUND": UNBOUND, "_NULL": NULL,
    "_let_through": _let_through,
    **{f"_{function.__name__}": function for function in (
        type, len, id, slice, issubclass, getattr, setattr, delattr, Exception, RunNatively, Interrupted, missed,
        Suspension, FrameState, Activation, added, ahead, next_of, read_by, cached_holds, ends_visibly,
        reading.any_has, reading.all_are, reading.is_set, reading.plain_value, reading.numbers_in, reading.elements_in,
        reading.same_elements, reading.array_of, reading.only_numbers, reading.shared_tensor, reading.copied_tensor,
        reading.part_of,
    )},
}  # fmt: skip


@dataclass(eq=False, slots=True)
class Body:
    """The part of a specialisation that computes.

    `lines` compute from the variables `_tensors` (all guarded tensors, see `tensor_order`), `_state` (what their check
    said) and the number inputs by their placeholder names; `outputs` are the expressions of the graph's outputs
    afterwards. Names that start with an underscore are ours, others the user's. `numbers` come first, with the guards:
    where a number cannot be computed, or does not fit, the specialisation does not hold. `by_operator`: each operator may
    fail after others have changed something. `repeatable` says that it changes nothing, so
    that the function can run natively after an operator failed, for its effects so far and its traceback.
    `replayed` is what replays the computing part as a CUDA graph, if it does: it gets the tensors' check. `released` are
    gradients that are checked and then let go, so that their memory may be used. `eager` is the statement that runs where
    `UNFIT`, and `given` the expression of the tensors that the computing part gets, if it can do without them where all are
    the same.
    """

    lines: list[str]
    outputs: list[str]
    constants: dict[str, Any]
    numbers: list[str] = field(default_factory=list)
    repeatable: bool = False
    by_operator: bool = False
    replayed: Any = None
    released: frozenset[Source] = frozenset()
    eager: str = ""
    given: str = ""


class Glue:
    """A generated function and its source."""

    def __init__(self, segment: Segment, body: Body, check: Any, helpers: Helpers, name: str) -> None:
        """`check` tells what became of the tensors (see `launch.tensor_check`); `helpers` are functions by name."""
        self.segment = segment
        self.constants: dict[str, Any] = {
            "_MISS": MISS, "torch": torch, "math": math, "_lookup_all": reading.lookup_all, "_check": check, **NATIVE,
            "_lock": threading.RLock(),
            **{f"_{name}": function for name, function in helpers.items()}, **body.constants,
        }  # fmt: skip
        self.source = self._write(body, name)

    # source -----------------------------------------------------------------------------------------------------

    def _write(self, body: Body, name: str) -> str:
        segment = self.segment
        wanted = [i.source for i in segment.inputs] + [s for r in segment_recipes(segment) for s in sources_in(r)]
        prologue = Prologue(segment.guards, wanted, self.constants.get("_unchanged"), _changing(segment))
        prologue.write()
        fetched = {i.name: prologue.name(i.source) for i in segment.inputs}
        tensors = ", ".join(prologue.names(tensor_order(segment)))
        epilogue = Epilogue(prologue, body.outputs)
        result = epilogue.write(segment)
        draws = self._draws(epilogue)
        numbers = [
            f"{i.name} = {fetched[i.name]}"
            for i in segment.inputs
            if not isinstance(i.meta, TensorMeta) and i.name != fetched[i.name]
        ]
        rest = [*numbers, *body.numbers]
        watched = self._watched(body)
        locked = [*draws, *self._let_go(prologue, body, [*epilogue.lines, result]), *body.lines]
        locked = self._beginning(prologue, locked)
        if watched:
            locked.insert(0, "_before0 = _versions(_tensors, _picks0)")
        same = None
        if tensors:
            rest.append(f"_tensors = [{tensors}]")
            contents = ContentsGuards(prologue, tensor_order(segment))
            self.constants["_scan"] = self.constants["_check"].scan
            for reader, (helper, arguments) in contents.readers.items():
                self.constants[reader] = self.constants[f"_{helper}"](self.constants["_check"], *arguments)
            same = self._same(body, [*contents.lines, *locked, *epilogue.lines, result])
        checks = assembled(prologue, rest, [*locked, *epilogue.lines, result], same)
        if tensors:
            locked = _checked(contents.lines, locked, body.given, same is not None and same.used)
        self.constants.update(prologue.constants)
        if locked:  # the check's notes and the kernels' argument blocks belong to one thread at a time
            locked = ["with _lock:", *(f"    {line}" for line in locked)]
            on_error = self._on_error(body.repeatable, watched)
            if on_error:
                known = ["_before0 = None"] * watched + ["_drawn0 = ()"] * (watched or segment.undraws)
                locked = [*known, "try:", *(f"    {line}" for line in locked), *on_error]
            locked.insert(0, "if _lock._is_owned(): raise _RunNatively")
        handler = f"except {_FETCH_ERRORS} as _error0: return _missed(_error0)"
        guarded = ["try:", *(f"    {line}" for line in checks or ["pass"]), handler]
        lines = [*guarded, *locked, *epilogue.lines, f"return {result}"]
        if not segment.resumes:
            self._refuse_collisions("\n".join(lines))
        signature = "(_frames)" if segment.resumes else signature_source(segment.code)
        return "\n".join([f"def {name}{signature}:", *(f"    {line}" for line in lines)]) + "\n"

    def _draws(self, epilogue: Epilogue) -> list[str]:
        """The statements that draw random numbers before the graph runs. Where it may fail, the states of their generators
        are noted before."""
        draws = [epilogue.draw(draw) for draw in self.segment.draws]
        if self.segment.undraws:
            generators = dict.fromkeys(epilogue.value(draw.call.args[0]) for draw in self.segment.draws)
            self.constants["_states_of"], self.constants["_put_back"] = states_of, put_back
            draws.insert(0, f"_drawn0 = _states_of({', '.join(generators)})")
        return draws

    def _beginning(self, prologue: Prologue, lines: list[str]) -> list[str]:
        """The same statements, in front of which tensors begin to require gradients. Where they raise, the program goes on
        from before, or as far as it came it is captured again: both begin with tensors that require none."""
        if not self.segment.begins:
            return lines
        names = "".join(f"{prologue.name(source)}, " for source in self.segment.begins)
        self.constants["_require0"], self.constants["_BaseException"] = require_gradients, BaseException
        inner = [f"    {line}" for line in lines]
        return [
            f"_require0(({names}), True)", "try:", *(inner or ["    pass"]),
            "except _BaseException:", f"    _require0(({names}), False)", "    raise",
        ]  # fmt: skip

    def _on_error(self, repeatable: bool, watched: bool) -> list[str]:
        """What follows the statements that compute, for exceptions: the program runs natively from its beginning, unless it
        was changed."""
        undrawn = ["    _put_back(_drawn0)"] * self.segment.undraws
        requests = ["except _RunNatively:", *undrawn, "    raise"] if undrawn else []
        if not (repeatable or watched):
            return requests
        changed = "_before0 != _versions(_tensors, _picks0)"
        return [
            *requests, "except _Exception as _error0:", "    _let_through(_error0)",
            *([] if repeatable else [f"    if {changed}: raise _Interrupted(_segment0, _error0, _drawn0) from None"]),
            *undrawn, "    raise _RunNatively from _error0",
        ]  # fmt: skip

    def _same(self, body: Body, later: list[str]) -> TensorsInOrder | None:
        """What is needed to skip the checks of many tensors while they are the same, where that makes a difference."""
        make, placer = self.constants.get("_same_tensors"), body.constants.get("_placer")
        order = tensor_order(self.segment)
        if make is None or placer is None or len(order) < _FEWEST_TENSORS or not isinstance(placer.changes, dict):
            return None
        ready = self.constants["_ready"] = getattr(body.replayed, "ready", None)
        shown = [line for line in later if line.strip() != body.eager and UNFIT not in line]
        if body.given and ready is not None:
            shown = [line.replace(f"_joined({body.given}, ", "_joined(None, ") for line in shown]
        check = self.constants["_check"]
        return TensorsInOrder(
            order, shown, lambda walk, roots, holders: make(check, walk, roots, holders, placer.changes, ready is not None),
            "_ready" if ready is not None else "",
        )  # fmt: skip

    def _let_go(self, prologue: Prologue, body: Body, later: list[str]) -> list[str]:
        """Statements that forget the gradients which the body releases, and have their tensors forget them."""
        order = tensor_order(self.segment)
        tensors = [k for k, source in enumerate(order) if source.attr("grad") in body.released]
        if not tensors:
            return []
        positions = [k for k, source in enumerate(order) if source in body.released]
        self.constants["_regraded0"], self.constants["_released0"] = tensors, positions
        variables = sorted({prologue.name(order[k]).partition("[")[0] for k in positions})
        used = "\n".join([*body.lines, *later])
        unused = [name for name in variables if _VARIABLE.fullmatch(name) and not re.search(rf"\b{name}\b", used)]
        return [
            "for _at0 in _regraded0: _tensors[_at0].grad = None", "for _at0 in _released0: _tensors[_at0] = None",
            *(f"{name} = None" for name in unused),
        ]  # fmt: skip

    def _watched(self, body: Body) -> bool:
        """Whether to note if the body changes tensors, for the case that an operator fails before it changed any."""
        segment = self.segment
        inputs = segment.changed_inputs if segment.undraws else [i for i in segment.inputs if i.name in segment.mutated]
        changed = {i.source for i in inputs if isinstance(i.meta, TensorMeta)}
        if not (changed or segment.undraws) or body.repeatable:
            return False
        if "_placer" in body.constants and len(changed) > _MOST_WATCHED:
            return False
        self.constants["_picks0"] = [k for k, source in enumerate(tensor_order(segment)) if source in changed]
        uncounted = any(takes_data(node) for node in segment.graph.nodes)
        self.constants["_versions"] = unknown_versions if uncounted else versions
        self.constants["_segment0"] = segment
        return True

    def _refuse_collisions(self, source: str) -> None:
        """Arguments are variables of the generated function: no other variable may have their names."""
        code = self.segment.code
        arguments = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2])
        for graph_input in self.segment.inputs:
            if graph_input.name in arguments and str(graph_input.source) != f"L[{graph_input.name!r}]":
                raise Unsupported(f"an argument with the name of another value, {graph_input.name}")
        if any(name in self.constants.keys() - {"math"} or _OURS.fullmatch(name) for name in arguments):
            raise Unsupported("an argument with a name of the generated code")
        if hiding := arguments & (vars(builtins).keys() | {"math"}):
            used = {a or b for a, b in re.findall(r"(?<![\w.])([a-z]+)[(.]|\bis ([a-z]+)\b", source)}
            if hidden := sorted(hiding & used):
                raise Unsupported(f"arguments that hide what the generated code uses: {', '.join(hidden)}")

    # function ---------------------------------------------------------------------------------------------------

    def function(self, like: FunctionType) -> Callable[..., Any]:
        """Compile the source to a function with the defaults and free variables of `like`."""
        namespace = self.constants
        namespace["_CELLS"] = dict(zip(like.__code__.co_freevars, like.__closure__ or (), strict=True))
        name = self.source[len("def ") : self.source.index("(")]
        made = generated_function(self.source, like.__qualname__, namespace, name)
        if not self.segment.resumes:
            made.__defaults__ = like.__defaults__
            made.__kwdefaults__ = like.__kwdefaults__
            made.__qualname__ = like.__qualname__
        signature = "(_frames)" if self.segment.resumes else signature_source(self.segment.code)
        names = {**NATIVE, "_MISS": MISS, "torch": torch, "math": math, "_CELLS": namespace["_CELLS"]}
        if self.segment.locks:
            made = with_locks(self.segment, made, signature, names, _FETCH_ERRORS)
        if self.segment.device_around is not None:
            made = without_default_device(self.segment, made, signature, names)
        return made


def _checked(contents: list[str], locked: list[str], given: str, same: bool) -> list[str]:
    """The statements under the lock. `same`: the check of the tensors is skipped where they are known to be the same."""
    check = [
        "if _state := _scan(_tensors):",
        "    if _state < 0: return _MISS",
    ]
    if not any(PLACED in line for line in locked):
        contents = [*contents, "if _state: _check.unplaced[0] = 0"]
    if not same:
        return [*check, *contents, *locked]
    unfit = f"({_UNFIT_IF_SAME}) if _same0 else {UNFIT}"
    locked = [line.replace(UNFIT, unfit).replace(PLACED, _PLACED_NOW) for line in locked]
    if given:
        locked = [line.replace(f"_joined({given}, ", f"_joined(None if _same0 else {given}, ") for line in locked]
    return [
        f"if _same1[{MOVED}]: _check.unplaced[0] = 1",  # what the check noted is not about these addresses
        "if _same0:",
        "    if _same1[0] != _known1: raise _RunNatively",  # another thread has called it with other tensors since
        f"    _state = _same1[{MOVED}]",
        "else:",
        *(f"    {line}" for line in [check[0], "    _same1[0] = 0", *check[1:]]),  # what was known is not about these
        *contents,
        *locked,
        "if not _same0 and not _placer.overlapping: _same2.note(_held0, _tensors)",
    ]


#: In how many tensors changes are noted around kernels, which take no longer than that for many.
_MOST_WATCHED = 8
_FETCH_ERRORS = "(AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError)"


def _changing(segment: Segment) -> set[Source]:
    """What the segment itself changes, the objects and the dictionaries of their attributes; and what leads to tensors of
    dynamic sizes, which are others in each call."""
    targets = {effect.target.source for effect in segment.effects if isinstance(effect.target, Existing)}
    for graph_input in segment.inputs:
        base = graph_input.source.base if isinstance(graph_input.meta, DynamicMeta) else None
        while base is not None:
            targets.add(base)
            base = base.base
    return targets | {target.attr("__dict__") for target in targets}


def states_of(*generators: Any) -> list[Any]:
    """What sets the states of generators of random numbers, of Python's or NumPy's, and the states that they have. Who seeds
    PyTorch's own on the CPU seeds those of GPUs, too."""
    states: list[Any] = []
    if any(generator is torch.default_generator for generator in generators) and torch.cuda.is_initialized():
        generators = (*generators, *torch.cuda.default_generators)
    for generator in generators:
        if isinstance(generator, random.Random):
            states.append((generator.setstate, generator.getstate()))
        elif isinstance(generator, numpy.random.Generator):
            bits = generator.bit_generator
            states.append((functools.partial(setattr, bits, "state"), bits.state))
        else:
            states.append((generator.set_state, generator.get_state()))
    return states


def require_gradients(tensors: tuple[torch.Tensor, ...], wanted: bool) -> None:
    """Let tensors begin or end to require gradients."""
    for tensor in tensors:
        tensor.requires_grad_(wanted)


def put_back(drawn: Any) -> None:
    """Give generators the states again that they had."""
    for set_state, state in drawn:
        set_state(state)


def versions(tensors: list[torch.Tensor], picks: list[int]) -> Any:
    """How often some tensors were changed. Equal to nothing where that is not counted."""
    chosen = [tensors[k] for k in picks]
    if any(tensor.is_inference() for tensor in chosen):
        return object()
    return [tensor._version for tensor in chosen]


def unknown_versions(tensors: list[torch.Tensor], picks: list[int]) -> Any:
    """The same where changes are not counted, such as those through `Tensor.data`."""
    return object()


def tensor_order(segment: Segment) -> list[Source]:
    """Sources of all guarded tensors, in the order in which they are checked: by family, then index.

    Several steps of compilation ask for it, and finding it goes through every guard: it is found once.
    """
    if segment._tensor_order is None:
        segment._tensor_order = _find_tensor_order(segment)
    return segment._tensor_order


def _find_tensor_order(segment: Segment) -> list[Source]:
    prologue = Prologue(segment.guards, [])
    placed = {g.source: prologue._place(g.source) for g in segment.guards if g.kind == "tensor" and g.source is not None}
    families: dict[Any, list[tuple[int, Source]]] = {}
    singles: list[Source] = []
    for source, where in placed.items():
        if where is None:
            singles.append(source)
        else:
            families.setdefault(id(where[0]), []).append((where[1], source))
    ordered = [source for members in families.values() for _, source in sorted(members, key=lambda m: m[0])]
    return ordered + singles


def signature_source(code: CodeType) -> str:
    """The parameter list of a code object; defaults are attached to the function afterwards."""
    names = list(code.co_varnames)
    positional = names[: code.co_argcount]
    parts = positional[: code.co_posonlyargcount]
    if parts:
        parts.append("/")
    parts += positional[code.co_posonlyargcount :]
    keyword_only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{names[rest]}")
        rest += 1
    elif keyword_only:
        parts.append("*")
    parts += keyword_only
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{names[rest]}")
    return f"({', '.join(parts)})"
