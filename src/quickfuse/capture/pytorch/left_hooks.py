"""Hooks that the captured code registers for a backward outside, where they are sure to do the same then: a call in the
graph registers them, and the trace for gradients goes through them."""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

from ...errors import Unsupported
from ...ir.gradients import registering
from ...ir.sharing import base_of
from ..inference.stand_ins import is_leaf
from ..interpreter import Interpreter
from ..symbolic import TENSOR_TYPES, TensorProxy, is_constant
from ..symbolic.hooks import TensorHooks
from ..symbolic.kinds import is_trusted_module
from ..symbolic.raising import Raised
from .transforms import CapturedFunction, capture_function

_PLAIN_GLOBALS = (ModuleType, FunctionType, BuiltinFunctionType, type)


def register(i: Interpreter, hooks: TensorHooks, results: list[Any], outlives: Callable[[Any], bool]) -> bool:
    """Let the graph register the hooks of a tensor; False where they have to be Python's."""
    tensor = hooks.tensor
    tensors = [result for result in results if type(result) is TensorProxy]
    bases = {base_of(i.graph.node_of(result)) for result in tensors}
    if hooks.retains or hooks.after or hooks.of_node or i.graph.gradient_calls:
        return False
    if tensor.source is not None or is_leaf(tensor):
        return False
    node = i.graph.node_of(tensor)
    if base_of(node) in bases or i.graph.history.writes_since(i.graph.graph, tensor, hooks.last):
        return False
    if not all(_is_closed(i, hook, outlives) for hook in hooks.before.values()):
        return False
    for hook in hooks.before.values():
        noted, guards = i.outside.noted(), len(i.outside.guards)
        metas: list[Any] = [replace(tensor.meta, requires_grad=False)]
        try:
            captured = capture_function(i, hook, (tensor,), {}, metas, grad=False, transforms=False)
        except (Unsupported, Raised):
            return False
        new = i.outside.guards[guards:]
        changes = i.outside.has_changed(noted) or i.graph.contents.take_written(captured.function.graph)
        if changes or not all(source.base is None or source.kind == "attr" for guard in new for source in guard.sources()):
            return False
        if not all(type(v) is TensorProxy and v.source is None for v in captured.brought_in) or len(captured.outputs) > 1:
            return False
        made = captured.outputs[0].meta if captured.outputs else None
        meta = tensor.meta
        if made is not None and (made.shape, made.dtype, made.device) != (meta.shape, meta.dtype, meta.device):
            return False
        if made is None and captured.function.result is not None:
            return False
        plain = _plain(i, hook, captured.brought_in)
        if plain is None:
            return False
        call = registering(functools.partial(_call, captured.function, plain))
        i.graph.dynamic_call("call_function", call, (tensor, list(captured.brought_in)), {}, None)
    return True


def _call(captured: CapturedFunction, plain: Callable[[Any], Any], gradient: Any, brought_in: Any) -> Any:
    """Call a hook. Autograd gives it None where nothing needs the gradient, of one of several results, say."""
    return (plain if gradient is None else captured.function)(brought_in)(gradient)


def _plain(i: Interpreter, hook: FunctionType, brought_in: list[Any]) -> Callable[[Any], Any] | None:
    """What makes the hook itself of what it uses of the graph; None where it uses more than the graph was found to need."""
    cells: list[tuple[int | None, Any]] = []
    for cell in hook.__closure__ or ():
        value = i.outside.contents(cell.cell_contents)
        place = next((k for k, other in enumerate(brought_in) if other is value), None)
        if place is None and type(value) is TensorProxy:
            return None
        cells.append((place, value))

    def made(given: Any) -> FunctionType:
        closure = tuple([CellType(value if place is None else given[place]) for place, value in cells])
        return FunctionType(hook.__code__, hook.__globals__, hook.__name__, hook.__defaults__, closure)

    return made


def _is_closed(i: Interpreter, hook: Any, outlives: Callable[[Any], bool]) -> bool:
    """Whether a hook uses nothing but what nobody can change: constants, tensors made inside that are not handed out, and
    functions of modules."""
    if type(hook) is not FunctionType or hook.__kwdefaults__ or not all(map(is_constant, hook.__defaults__ or ())):
        return False
    if not i.is_created(hook):
        return not hook.__closure__ and _uses_plain_globals(hook)
    for cell in hook.__closure__ or ():
        value = i.outside.contents(cell.cell_contents) if i.is_created(cell) else None
        is_tensor = type(value) is TensorProxy and value.source is None and value.cls in TENSOR_TYPES
        if outlives(cell) or outlives(value) or not (is_tensor or (value is not None and is_constant(value))):
            return False
    return _uses_plain_globals(hook)


def _uses_plain_globals(hook: FunctionType) -> bool:
    builtins = hook.__builtins__ if isinstance(hook.__builtins__, dict) else vars(hook.__builtins__)
    for name in _globals_in(hook.__code__):
        value = hook.__globals__.get(name, builtins.get(name))
        if not isinstance(value, _PLAIN_GLOBALS):
            return False
        if type(value) is FunctionType and not is_trusted_module(value.__module__):
            return False
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in ("torch", "math"):
            return False
    return True


def _globals_in(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
        elif instruction.opname in ("STORE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"):
            yield ""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_in(constant)
