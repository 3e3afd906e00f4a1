"""Names: globals, variables of enclosing functions, `contextvars` and imported modules."""

from __future__ import annotations

import contextvars
import gc
import importlib.util
import sys
from collections.abc import Callable
from types import CellType, ModuleType
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.reading import MISSING
from ...ir.source import Source
from ..interpreter import Interpreter
from ..outside.changes import ContextToken
from ..symbolic import ABSENT, DELETED, FromOutside, real_of, type_of
from ..symbolic.frame import Frame
from ..symbolic.kinds import is_trusted_module
from ..symbolic.raising import NotYet, raise_in_program

_BUILTINS: dict[str, Any] = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)


def load_global(i: Interpreter, globals_: dict[str, Any], name: str) -> Any:
    outside = i.outside
    known = outside.library_name(globals_, name)
    if known is not None:
        return known
    stored = outside.assigned(globals_, name)
    if stored is not None and stored.value is not DELETED:
        return stored.value
    trusted = is_trusted_module(globals_.get("__name__"))
    if name in globals_ and stored is None:
        source = outside.roots.global_(name, globals_)
        if trusted:
            return outside.wrap_library_code(globals_, name, globals_[name], source)
        return outside.wrap(globals_[name], source)
    if not trusted:
        i.outside.guard("absent", i.outside.roots.constant("globals()", globals_), (name,))
    builtins_ = _builtins_of(globals_)
    if name in builtins_:
        value = builtins_[name]
        if value is _BUILTINS.get(name) and name in _CONSTANTS:
            return value
        source = outside.roots.global_(name, builtins_)
        if trusted and stored is None:
            return outside.wrap_library_code(globals_, name, value, source)
        return outside.wrap(value, source, trusted)
    i.outside.guard("absent", i.outside.roots.constant("builtins", builtins_), (name,))
    raise_in_program(NameError(f"name '{name}' is not defined", name=name))


#: Builtins that no statement of Python can replace.
_CONSTANTS = frozenset({"None", "True", "False", "__debug__"})


def _builtins_of(globals_: dict[str, Any]) -> dict[str, Any]:
    found = globals_.get("__builtins__", _BUILTINS)
    return found if isinstance(found, dict) else vars(found)


def delete_global(i: Interpreter, globals_: dict[str, Any], name: str) -> None:
    load_global(i, globals_, name)
    if name not in globals_ and i.outside.assigned(globals_, name) is None:
        raise_in_program(NameError(f"name '{name}' is not defined", name=name))
    store_global(i, globals_, name, DELETED)


def store_global(i: Interpreter, globals_: dict[str, Any], name: str, value: Any) -> None:
    """Assign a global variable, or delete it."""
    if name in globals_:
        i.overwritten(type(globals_[name]))
    i.outside.assign(globals_, name, value)


def load_cell(i: Interpreter, f: Frame, index: int) -> Any:
    cell: CellType = f.locals[index]
    stored = i.outside.assigned(cell)
    if stored is not None:
        return stored.value
    try:
        value = cell.cell_contents
    except ValueError:
        name = f.names[index]
        if not i.is_created(cell):
            raise Unsupported("a variable of an enclosing function without a value") from None
        if name in f.code.co_cellvars:
            text = f"cannot access local variable '{name}' where it is not associated with a value"
            raise_in_program(UnboundLocalError(text))
        text = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
        raise_in_program(NameError(text, name=name))
    if i.is_created(cell):
        return value
    source, trusted = _cell_source(i, f, index)
    return i.outside.wrap(value, source, trusted)


def _cell_source(i: Interpreter, f: Frame, index: int) -> tuple[Source, bool]:
    name = f.names[index]
    known = i.outside.source_of(f.locals[index])
    if known is not None:
        note_shared_cell(i, f, index)  # it was found by another path
        return known.attr("cell_contents"), False
    if f is i.frames[0] and f.function_source is None:
        return i.outside.roots.closure(name), False
    source = f.function_source
    if source is None:
        whole = i.frames[0]
        if whole.function_source is None:  # an inner function of the compiled one shares the cells that this closes over
            for own, cell in zip(whole.names, whole.locals, strict=True):
                if cell is f.locals[index] and own in whole.code.co_freevars:
                    return i.outside.roots.closure(own), False
        raise Unsupported(f"the free variable {name} of a function without a path to it")
    position = f.code.co_freevars.index(name)
    return source.attr("__closure__").item(position).attr("cell_contents"), f.is_library


def note_shared_cell(i: Interpreter, f: Frame, index: int) -> None:
    """A cell that a function of the user's closes over is assigned, is left to Python with the function's frame, or becomes
    one of an inner function too: note the path to it, as the next function of this code may have another one."""
    cell, name = f.locals[index], f.names[index]
    if f.function_source is None or i.is_created(cell):
        return
    if name in f.code.co_freevars and isinstance(cell, CellType):
        i.outside.remember_cell(cell, f.function_source.attr("__closure__").item(f.code.co_freevars.index(name)))


def store_cell(i: Interpreter, cell: CellType, value: Any) -> None:
    if i.is_created(cell):
        cell.cell_contents = value
    else:
        for cls in [*map(type, gc.get_referents(cell))]:  # none where it is empty
            i.overwritten(cls)
        i.outside.assign(cell, "", value)


# contextvars: a variable that is set and reset within the captured code is not touched -----------------------------


def _variable(i: Interpreter, value: Any) -> tuple[contextvars.ContextVar[Any], Source]:
    """A context variable, guarded to stay this one, and where it is found."""
    variable = real_of(value)
    if not isinstance(variable, contextvars.ContextVar):
        raise Unsupported(f"a context variable that is a {type_of(value).__name__}")
    if isinstance(value, FromOutside):
        i.outside.guard("is", value.source, variable)
    return variable, i.outside.roots.constant(variable.name, variable)


def _last(i: Interpreter, variable: Any) -> ContextToken | None:
    return next((token for token in reversed(i.outside.tokens) if token.variable is variable), None)


def _get(i: Interpreter, variable: Any, default: Any = ABSENT) -> Any:
    variable, source = _variable(i, variable)
    token = _last(i, variable)
    if token is not None:
        return token.value
    if variable.get(MISSING) is not MISSING:
        return i.outside.wrap(variable.get(), source.context())
    i.outside.guard("is", source.context(), MISSING)
    if default is not ABSENT:
        return default
    try:
        found = variable.get()  # what it was made with
    except LookupError as error:
        raise_in_program(error.with_traceback(None))
    return i.outside.wrap(found, source.default())


def _set(i: Interpreter, variable: Any, value: Any) -> ContextToken:
    variable, _ = _variable(i, variable)
    token = ContextToken(variable, value)
    i.outside.tokens.append(token)
    return token


def _reset(i: Interpreter, variable: Any, token: Any) -> None:
    variable, _ = _variable(i, variable)
    if type(token) is not ContextToken or token is not _last(i, variable):
        raise Unsupported("resetting a context variable that was set before, or set again")
    i.outside.tokens.remove(token)


HANDLERS: dict[Any, Callable[..., Any]] = {
    contextvars.ContextVar.get: _get, contextvars.ContextVar.set: _set, contextvars.ContextVar.reset: _reset,
}  # fmt: skip


# import statements: modules that are loaded already; nothing is imported during capture ----------------------------


_PEER = ("torch._dynamo", "torch._inductor")


def import_name(i: Interpreter, f: Frame, name: str, names: Any, level: int) -> Any:
    """IMPORT_NAME: the top package, or the named module itself in `from name import ...`."""
    if level:
        package = f.globals.get("__package__") or ""
        base = package.rsplit(".", level - 1)[0] if level > 1 else package
        name = f"{base}.{name}" if name else base
    if name.startswith(_PEER):
        return PeerModule(name) if names else sys.modules["torch"]
    if name not in sys.modules:
        raise _first_import(name)
    for part in names or ():
        if _imports(sys.modules[name], f"{name}.{part}", part):
            raise _first_import(f"{name}.{part}")
    name = name if names else name.partition(".")[0]
    found = sys.modules[name]
    if not is_trusted_module(name):
        return i.outside.wrap(found, i.outside.roots.constant("sys.modules", sys.modules).item(name))
    source = i.outside.roots.constant(found.__name__, found)
    return i.outside.wrap(found, source, trusted=True)


def _first_import(name: str) -> NotYet:
    return NotYet(f"the first import of {name}", "import it at the top of the file", "sys.modules", sys.modules, name)


def _imports(package: Any, name: str, part: str) -> bool:
    """Whether `from package import part` imports a module that was not imported before."""
    known = getattr(package, "__dict__", {})
    if "__path__" not in known or part in known or name in sys.modules:
        return False
    return importlib.util.find_spec(name) is not None


def import_from(i: Interpreter, module: Any, name: str) -> Any:
    """IMPORT_FROM: an attribute of the module, or a submodule."""
    if isinstance(module, PeerModule):
        return PeerModule(f"{module.name}.{name}")
    if not isinstance(module, ModuleType):
        raise Unsupported(f"an import from a {type(module).__name__}")
    if name not in module.__dict__:
        submodule = sys.modules.get(f"{module.__name__}.{name}")
        if submodule is None and (type(module) is not ModuleType or "__getattr__" in module.__dict__):
            return i.attribute_now(module, name)
        if submodule is None:
            raise _first_import(f"{module.__name__}.{name}")
        return submodule
    return i.attribute_now(module, name)


class PeerModule:
    """Stands for a module of PyTorch's own compiler, which capture knows by name only and never imports, or for something in
    it."""

    def __init__(self, name: str) -> None:
        self.name = name


def torch_lazy_module(module: ModuleType, name: str) -> PeerModule | None:
    """`torch._dynamo` before anything imported it."""
    return PeerModule("torch." + name) if module is torch and name in ("_dynamo", "_inductor") else None
