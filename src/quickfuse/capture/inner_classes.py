"""Classes that the captured code makes, for itself: real ones, whose functions are the captured code's own."""

from __future__ import annotations

import builtins
from types import CellType, FunctionType
from typing import Any

from ..errors import Unsupported
from .class_attributes import guard_absent, lookup_class
from .inference import SuspendedInside
from .interpreter import Interpreter
from .kinds import CODE_TYPES
from .symbolic import FromOutside, Symbol, TensorProxy, is_constant, type_of

_PLAIN = (TensorProxy, Symbol, list, dict, set, tuple)


def build(i: Interpreter, body: Any, name: Any, *bases: Any, **keywords: Any) -> type:
    """`__build_class__`: what a class statement calls."""
    if keywords or type(body) is not FunctionType or not i.is_created(body) or type(name) is not str:
        raise Unsupported("a class that is made with a metaclass or other arguments")
    for base in bases:
        if type(base) is not type or lookup_class(base, "__init_subclass__")[0] is not object:
            raise Unsupported("a class whose base classes have a metaclass or an __init_subclass__")
        guard_absent(i, base.__mro__, "__init_subclass__")
    made_at = i.performed
    namespace: dict[str, Any] = i.mark_created({})
    i.run_class_body(body, namespace)
    for value in namespace.values():
        if not _may_be_attribute(value):
            raise Unsupported(f"a class attribute that is a {type_of(value).__name__}")
    made: type = i.native(type, name, bases, dict(namespace))
    i.outside.mark_made(made)
    i.outside.classes_made[made] = made_at
    return made


def _may_be_attribute(value: Any) -> bool:
    """Whether making a class does nothing with a value, and reading it from an instance gives that value."""
    if isinstance(value, FromOutside):
        return not any(hasattr(type_of(value), name) for name in ("__get__", "__set_name__"))
    return isinstance(value, (*CODE_TYPES, CellType)) or type(value) in _PLAIN or is_constant(value)


def refuse_outside(i: Interpreter, value: Any) -> None:
    """See to it that no class that captured code made, and no instance of one, outlives it.

    Raises:
        SuspendedInside: where one does: the segment is to end in front of the class statement.
    """
    if i.outside.classes_made:
        made_at = i.outside.classes_made.get(value if isinstance(value, type) else type(value))
        if made_at is not None:
            raise SuspendedInside(made_at, "a class that is made inside and outlives the graph")


HANDLERS: dict[Any, Any] = {builtins.__build_class__: build}
