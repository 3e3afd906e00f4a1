"""Python bytecode -> a torch.fx graph, guards, and what to do to the user's objects afterwards.

A segment begins with a call (`capture`) or with suspended frames (`resume`), and ends with the return or with a break.
Where capture cannot go on, it is run again, up to the instruction before: capture is deterministic, and nothing of the
user's was touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch.fx import Node

from ..bytecode.decoding import local_names
from ..errors import Unsupported, shortened
from ..ir.endings import visible_endings, watched_endings
from ..ir.frame import NULL, UNBOUND, FrameState
from ..ir.gradients import GradientsOfResults, NodeAsked
from ..ir.guard import WHICH_ARE_ONE
from ..ir.segment import NODE_ASKED, Break, Draw, Segment
from ..ir.source import Source
from .effects import RecipeBook
from .execution.bytecode_interpreter import CO_COROUTINES, CO_GENERATOR, BytecodeInterpreter
from .execution.loops import LeftLoop
from .graph import modes
from .graph.failing import graph_may_fail, may_be_handled
from .inference.stand_ins import captured_at
from .interpreter import VISIBLE_ENDING, Interpreter
from .library.higher_order import WHOLE
from .library.locks import held
from .library.module_hooks import check_hooks_removed
from .liveness import live_locals
from .naming import label_arguments, user_function
from .objects import outside_iterators
from .objects.hashing import check_unchanged
from .pytorch import gradient_hooks
from .symbolic import TensorProxy, Unread
from .symbolic.frame import MAKE_NATIVE_ITERATORS, TAKE_UNREAD, ArgumentsMismatch, Constructed, Frame, bind_arguments
from .symbolic.raising import CapturedAgain, LeftToPython, NotYet, Raised, SuspendedInside

#: In front of a call in which more has been computed, no segment ends because of what comes in it.
FEW_OPERATORS = 16
#: How often a capture is run again, each time up to an earlier instruction.
_MOST_ATTEMPTS = 4
#: How often it begins anew, each time without something that was tried.
_MOST_RESTARTS = 64


def capture(
    function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], *, whole: bool = False,
    volatile: frozenset[str] = frozenset(), stop_at: int = -1, recovers: bool = False, halts: bool = False,
) -> Segment:  # fmt: skip
    """The first segment of a call of `function`, without touching any object of the user's.

    `whole` asks for the whole call, `stop_at` for no more than so many instructions. `volatile` names sources of numbers
    whose values keep changing: see `Outside`. `recovers`: where a graph fails, the program goes on in Python, also after
    tensors were changed. `halts`: that has happened at `stop_at`, and the graph does not run again. Raises `Unsupported`
    where the function does something that has to happen in Python, and the call cannot be suspended there, or is wanted
    whole; `location` tells where."""
    if function.__code__.co_flags & (CO_GENERATOR | CO_COROUTINES):
        raise Unsupported("a function that is a generator or a coroutine")

    asks_classes = torch._C._is_torch_function_enabled()

    def begin(i: Interpreter) -> None:
        i.outside.asks_classes = asks_classes
        _begin_call(i, function, args, kwargs)

    with torch._C.DisableTorchFunctionSubclass():  # the user's classes are not to notice that capture looks at tensors
        return _segment(begin, function.__code__, whole, volatile, stop_at, recovers, halts)


def resume(
    frames: list[FrameState], volatile: frozenset[str] = frozenset(), stop_at: int = -1, recovers: bool = False,
    halts: bool = False,
) -> Segment:  # fmt: skip
    """The segment that begins with these suspended frames; see `capture`. Raises `Unsupported` where not even the first
    instruction can be captured."""

    asks_classes = torch._C._is_torch_function_enabled()

    def begin(i: Interpreter) -> None:
        i.outside.asks_classes = asks_classes
        _begin_frames(i, frames)

    with torch._C.DisableTorchFunctionSubclass():  # the user's classes are not to notice that capture looks at tensors
        segment = _segment(begin, frames[-1].code, False, volatile, stop_at, recovers, halts)
    segment.resumes = True
    segment.began = tuple([(frame.code, frame.position) for frame in frames])
    return segment


def _segment(begin: Callable[[Interpreter], None], *options: Any) -> Segment:
    for _ in range(_MOST_RESTARTS):
        with contextlib.suppress(CapturedAgain):
            return _attempted(begin, *options)
    raise Unsupported("a capture that does not settle")


def _attempted(
    begin: Callable[[Interpreter], None], code: CodeType, whole: bool, volatile: frozenset[str], stop_at: int,
    recovers: bool, halts: bool,
) -> Segment:  # fmt: skip
    pause: Break | None = None
    only_moved: frozenset[int] = frozenset()
    reads_all = False
    only_pytorch = ""
    for _ in range(_MOST_ATTEMPTS):
        i = BytecodeInterpreter(stop_at, volatile, only_moved)
        i.graph.recovers = recovers
        i.graph.only_pytorch = only_pytorch
        i.graph.may_break = not whole
        try:
            begin(i)
            try:
                with captured_at(i.place):
                    i.run()
                if i.frames and not (only_moved or reads_all) and (only_moved := i.loads_left()):
                    continue  # without guards on what those are
                if i.outside.found_again and _tells_tensors_apart(i):
                    volatile -= {WHICH_ARE_ONE}
                    continue
                segment = _finish(i, code, pause, halts)
                i.prepared = [first for first in i.prepared if first.reached < 0]  # see `first_run` for the others
                return segment
            except (Unsupported, RecursionError) as reason:  # unbound in the end: its traceback holds the program's objects
                if not isinstance(reason, Unsupported):
                    reason = Unsupported("recursion deeper than capture follows")
                if not reason.location:
                    reason.location, reason.trace = i.location(), i.trace()
                if not whole and isinstance(reason, SuspendedInside) and reason.stop_at < stop_at:
                    stop_at = reason.stop_at
                    if pause is not None and reason.watches is not None:
                        pause.watches = reason.watches
                    continue
                if only_moved and i.performed < stop_at:
                    only_moved, reads_all = frozenset(), True  # what one of these gives is looked at before it is left
                    continue
                if whole or (stop_at >= 0 and i.performed >= stop_at):
                    raise reason from None
                reads_all = False
                stop_at = reason.stop_at if isinstance(reason, (LeftLoop, SuspendedInside)) else i.performed
                if isinstance(reason, LeftToPython):
                    stop_at = _in_front_of_call(i)
                pause = Break(reason.reason, reason.hint, reason.location, reason.trace)
                pause.until = reason.until if isinstance(reason, NotYet) else None
                if isinstance(reason, LeftLoop):
                    pause.loop_end = reason.loop_end
                pause.watches = isinstance(reason, GradientsOfResults) or bool(getattr(reason, "watches", False))
                only_pytorch = NODE_ASKED if isinstance(reason, NodeAsked) else ""
            except Raised as raised:
                if only_moved and i.raised_at < stop_at:
                    only_moved, reads_all = frozenset(), True
                    continue
                text = shortened(f"an exception: {type(raised.exception).__name__}: {raised.exception}")
                if whole or (stop_at >= 0 and i.raised_at >= stop_at):
                    raise Unsupported(text) from raised.exception
                stop_at = i.raised_at
                pause = Break(text)
        finally:
            for first in i.prepared:
                first.take_back()
            i.release()
    raise Unsupported(pause.reason if pause is not None else "a capture that does not settle")


def _in_front_of_call(i: Interpreter) -> int:
    """Where a segment ends that has come to a tensor of other sizes, or to a sparse gradient: in front of the outermost call
    in which little has been computed so far, such as that of a loss, or an optimizer's step."""
    performed = [node.meta.get("performed", -1) for node in i.graph.root.nodes if node.op.startswith("call")]
    for frame in i.frames:
        at = frame.called_at
        if at >= 0 and sum(after > at for after in performed) <= FEW_OPERATORS:
            return at
    return i.performed


def _begin_call(i: Interpreter, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _check_surroundings(i)
    i.begins_call = True
    entry = i.outside.roots.constant(function.__qualname__, function)
    i.outside.guard_function(function, entry)
    if function.__kwdefaults__ is not None:  # compiled code takes them from this dictionary
        i.outside.guard("is", entry.attr("__kwdefaults__"), function.__kwdefaults__)
    try:
        bound = bind_arguments(function, args, kwargs)
    except ArgumentsMismatch:
        raise Unsupported("a call that does not fit the signature") from None
    code = function.__code__
    names = code.co_varnames
    values = []
    for index, (name, value) in enumerate(zip(names, bound, strict=False)):
        root = i.outside.roots.local(name)
        if code.co_flags & 0x08 and index == len(bound) - 1:
            i.outside.guard("keys", root, tuple(value))
            values.append(i.mark_created({k: i.outside.wrap(v, root.item(k)) for k, v in value.items()}))
        else:
            values.append(Unread(value, root))
    i.graph.reserved = frozenset(names[: len(bound)])
    label_arguments(i.outside.roots, function, args, kwargs)
    i.push_frame(function, values, i.results.append, None)


def _begin_frames(i: Interpreter, frames: list[FrameState]) -> None:
    _check_surroundings(i)
    i.ending.update((id(value), value) for _, value in visible_endings(frames))
    i.ending.update((id(value), value) for value in watched_endings(frames))
    deliver: Callable[[Any], None] = i.results.append
    for depth, state in enumerate(frames):
        if state.replacement is not UNBOUND:
            source = _slot(i, frames, depth, "replacement", 0, "new object")
            deliver = Constructed(i.outside.wrap(state.replacement, source), deliver)
        frame = Frame(state.code, state.globals, deliver, None)
        frame.position = state.position
        frame.lasti = state.position if depth == len(frames) - 1 else state.position - 1  # a call that goes on
        i.frames.append(frame)  # so that guards on what it holds name its line
        frame.keyword_names = state.keyword_names
        if state.activation is not None:
            frame.origin, frame.in_traceback = depth, True
        live = live_locals(state.code, state.position, calling=depth < len(frames) - 1)
        for index, (name, value) in enumerate(zip(local_names(state.code), state.locals, strict=True)):
            if value is not UNBOUND:
                source = _slot(i, frames, depth, "locals", index, repr(name))
                frame.locals[index] = _variable(i, value, source)
            elif name in live:  # it may have a value the next time
                i.outside.guard("is", _slot(i, frames, depth, "locals", index, repr(name)), UNBOUND)
        moved = depth == len(frames) - 1 and frame.decoded.instructions[frame.position].name in TAKE_UNREAD
        for index, value in enumerate(state.stack):
            source = _slot(i, frames, depth, "stack", index, str(index))
            if moved and index == len(state.stack) - 1 and value is not NULL and value is not UNBOUND:
                frame.stack.append(_variable(i, value, source))
            else:
                frame.stack.append(NULL if value is NULL or value is UNBOUND else i.outside.wrap(value, source))
        for index, exception in enumerate(state.handled):
            source = _slot(i, frames, depth, "handled", index, str(index))
            frame.exceptions.append(i.outside.wrap(exception, source))
        deliver = frame.stack.append


def _slot(i: Interpreter, frames: list[FrameState], depth: int, place: str, index: int, label: str) -> Source:
    letter = {"locals": "L", "stack": "S", "handled": "exceptions"}.get(place, place)
    within = "" if depth == len(frames) - 1 else f"{frames[depth].code.co_name}: "
    return i.outside.roots.slot(depth, place, index, f"{within}{letter}[{label}]")


def _variable(i: Interpreter, value: Any, source: Source) -> Any:
    if type(value) is CellType:
        i.outside.remember_cell(value, source)
        return value
    return Unread(value, source)


def _tells_tensors_apart(i: Interpreter) -> bool:
    """Whether it matters to the captured code at which places there is one tensor: it changes that, or asks."""
    outside = i.outside
    twice = {id(tensor.real) for tensor in outside.found_again.values()}
    changed = [owner.real for owner, _ in outside.changed_attributes if type(owner) is TensorProxy]
    changed += i.graph.contents.written_examples()
    sources = {outside.known[tensor].source for tensor in twice} | set(outside.found_again)
    return outside.told_apart or any(id(tensor) in twice for tensor in changed) or not sources.isdisjoint(outside.hashed)


def _finish(i: Interpreter, code: CodeType, pause: Break | None, halts: bool) -> Segment:
    """The segment of an interpreter that is done or has stopped."""
    i.graph.inference.check_left(i.graph, halts)
    check_hooks_removed(i)
    outside_iterators.check_ended(i)
    modes = [*(at for _, at in (*i.graph.indexing_modes, *i.graph.user_modes, *i.graph.device_blocks)), *i.graph.peer_blocks]
    if modes:
        raise SuspendedInside(min(modes), "a break in a torch function mode")
    _check_whole(i)
    check_unchanged(i)
    book = RecipeBook(i)
    stopped = bool(i.frames)
    if stopped and pause is not None and pause.until is not None:
        name, table, key = pause.until
        i.outside.guard("absent", i.outside.roots.constant(name, table), (key,))
    frames = [_suspended(book, frame) for frame in i.frames]
    result = None if stopped else book.recipe(i.results[0])
    effects = book.effects()
    locks = held(i)
    gradient_hooks.settle_left(i, book.outputs, book.makes)
    if i.graph.differentiable:
        i.outside.guard("state", None, ("torch._C._autograd._top_saved_tensors_default_hooks(True)", None))
        i.outside.guard("state", None, ("torch.is_anomaly_enabled()", False))
    if i.dropped:
        raise Unsupported(VISIBLE_ENDING)
    for reference in i.generators:
        generator = reference()
        if generator is not None and generator.runs_code_when_dropped and id(generator) not in book.generators:
            raise Unsupported(VISIBLE_ENDING)
    if stopped and pause is not None and not pause.location:
        pause.location, pause.trace = i.location(), i.trace()
    i.graph.leaves.check_views(book.outputs)
    i.graph.leaves.check_moved(book.outputs)
    i.graph.leaves.check_parameters(book.outputs)
    graph = i.graph.finish(book.outputs)
    if i.graph.device_around is not None and any(_calls_others(node) for node in graph.nodes):
        raise Unsupported("a function that stays a call in the graph, where a default device is set")
    draws = [Draw(tensor, call(book.recipe)) for tensor, call in i.outside.draws]
    return Segment(
        code, graph, i.graph.inputs, i.outside.guards, result, effects, frozenset(i.graph.contents.written_inputs()),
        i.graph.differentiable, frames=frames, pause=pause if stopped else None, operators=i.graph.operators,
        performed=i.performed, examples=i.graph.examples, changes_modes=i.graph.changes_modes,
        only_eager=i.graph.only_eager(), in_autocast=i.graph.autocast.began_active,
        inference=i.graph.runs_in_inference_mode, labels=tuple(i.graph.labels),
        autograd_asked=frozenset(i.autograd_asked), prepared=[first for first in i.prepared if first.reached >= 0],
        asks_compiling=i.asked_compiling, expects=i.graph.expects, fails_after_changes=i.graph.fails_after_changes,
        draws=draws, locks=locks, regraded_first=frozenset(i.outside.regraded_first),
        begins=tuple([tensor.source for tensor in i.graph.leaves.begun]),  # type: ignore[misc]
        device_around=i.graph.device_around,
        undraws=bool(draws) and (i.graph.differentiable or graph_may_fail(graph)),  # autograd may refuse to save a tensor
    )  # fmt: skip


def _calls_others(node: Node) -> bool:
    """Whether a node calls a function that may make tensors as it likes."""
    package = (getattr(node.target, "__module__", None) or "torch").partition(".")[0]
    return node.op == "call_function" and package not in ("torch", "_operator", "math", "builtins", "numpy", "quickfuse")


def _check_whole(i: Interpreter) -> None:
    """See to it that no segment ends inside of an operator that takes functions, but in front of the program's call that
    leads there: PyTorch runs such functions in ways of its own."""
    inside = next((k for k, frame in enumerate(i.frames) if frame.code in WHOLE), None)
    if inside is None:
        return
    while inside and i.frames[inside - 1].is_library:
        inside -= 1
    reason = "a break in a function that is given to an operator"
    at = i.frames[inside].called_at
    raise Unsupported(reason) if at < 0 else SuspendedInside(at, reason)


def _suspended(book: RecipeBook, frame: Frame) -> Any:
    """The recipe of a frame. Raises `SuspendedInside` where what it holds cannot be made again, or where it would go on to
    make a generator in place of a native iterator: the segment is to end in front of the call that began it."""
    if frame.code in MAKE_NATIVE_ITERATORS and frame.called_at >= 0:
        raise SuspendedInside(frame.called_at, "a break in a function of itertools")
    try:
        return book.frame(frame)
    except SuspendedInside:
        raise
    except Unsupported as reason:
        if frame.called_at < 0:
            raise
        raise SuspendedInside(frame.called_at, reason.reason) from None


def _check_surroundings(i: Interpreter) -> None:
    """Settings of PyTorch that change what every operator does: guarded, and captured only in their usual state."""
    for setting, value in (
        ("torch.is_grad_enabled()", torch.is_grad_enabled()),
        ("torch.is_inference_mode_enabled()", torch.is_inference_mode_enabled()),
        ("torch._C._is_any_autocast_enabled()", torch._C._is_any_autocast_enabled()),
        ("torch._C._len_torch_function_stack()", torch._C._len_torch_function_stack()),
        ("torch._C._len_torch_dispatch_stack()", torch._C._len_torch_dispatch_stack()),
        ("torch.autograd.forward_ad._current_level", torch.autograd.forward_ad._current_level),
    ):
        i.outside.guard("state", None, (setting, value))
    modes.guard_surroundings(i.outside.guard)
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise Unsupported("an active torch function or dispatch mode")
    if torch.autograd.forward_ad._current_level >= 0:
        raise Unsupported("forward-mode differentiation")
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise Unsupported("hooks on what autograd saves")


__all__ = ["capture", "may_be_handled", "resume", "user_function"]
