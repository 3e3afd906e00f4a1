"""Members of enumerations."""

from __future__ import annotations

import enum
import operator
from typing import Any

from ..interpreter import Interpreter
from ..objects import attributes
from ..objects.class_attributes import guard_absent, lookup_class, python_method
from ..objects.containers import as_index, concrete_key
from ..symbolic import ABSENT, is_constant
from ..symbolic.kinds import is_trusted_class
from .constant import ConstantKind
from .kind import Then
from .object import ObjectKind

#: Classes that an enumeration may derive from, whose instances have elements.
_SEQUENCES = (str, bytes, tuple)


class EnumKind(ConstantKind):
    """A member, which is the same object in each call; its class may say in Python what is done with it."""

    def attribute(self, i: Interpreter, base: enum.Enum, name: str, then: Then) -> None:
        kind = type(base)
        i.outside.note_place(base, i.outside.roots.constant(f"{kind.__qualname__}.{base._name_}", base))
        own = {"name": "_name_", "value": "_value_"}.get(name, name)
        owner, raw = lookup_class(kind, name)
        native = own in ("_name_", "_value_") and (raw is ABSENT or owner.__module__ == "enum")
        if native and is_constant(found := base.__dict__.get(own)):
            guard_absent(i, kind.__mro__, name)
            if not is_trusted_class(kind):
                i.outside.guard("equal", i.outside.source_of(base).attr(own), found)  # type: ignore[union-attr]
            then(found)
            return
        attributes.load_object(i, base, name, then)

    def truth(self, i: Interpreter, value: enum.Enum) -> bool:
        said = any(python_method(i, value, name) is not None for name in ("__bool__", "__len__"))
        return ObjectKind.truth(self, i, value) if said else bool(value)

    def native_truth(self, i: Interpreter, value: enum.Enum) -> bool:
        return bool(value)

    def item(self, i: Interpreter, base: enum.Enum, key: Any, then: Then) -> None:
        then(i.native(operator.getitem, base, as_index(i, concrete_key(i, key))))

    def iterate(self, i: Interpreter, value: enum.Enum) -> Any:
        return iter(value) if isinstance(value, _SEQUENCES) else super().iterate(i, value)

    def length(self, i: Interpreter, value: enum.Enum) -> int | None:
        return len(value) if isinstance(value, _SEQUENCES) else None

    call = ObjectKind.call
