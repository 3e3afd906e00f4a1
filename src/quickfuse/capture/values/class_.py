"""Classes."""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

from ...errors import Unsupported
from .. import calls
from ..interpreter import Interpreter
from ..objects.class_attributes import guard_class_attribute, load_class_attribute, lookup_class, store_class_attribute
from ..objects.construction import construct
from ..objects.containers import concrete_key, is_type_argument
from ..symbolic import ABSENT
from ..symbolic.kinds import is_trusted_class
from .builtin import CodeKind
from .kind import Args, Kwargs, Then


class ClassKind(CodeKind):
    """A class; its metaclass may say in Python what is done with it."""

    def attribute(self, i: Interpreter, base: type, name: str, then: Then) -> None:
        load_class_attribute(i, base, name, then)

    def set_attribute(self, i: Interpreter, base: type, name: str, value: Any) -> None:
        store_class_attribute(i, base, name, value)

    def item(self, i: Interpreter, base: type, key: Any, then: Then) -> None:
        key = concrete_key(i, key)
        if (method := _class_getitem(i, base)) is not None:
            then(i.call_now(method, (base, key)))
        elif is_type_argument(key):
            then(i.native(operator.getitem, base, key))
        else:
            super().item(i, base, key, then)

    def call(self, i: Interpreter, function: type, args: Args, kwargs: Kwargs, then: Then) -> None:
        if not calls.call_known(i, function, args, kwargs, then):
            construct(i, function, args, kwargs, then)


def _class_getitem(i: Interpreter, cls: type) -> FunctionType | None:
    """What a class of the user's says `cls[...]` is, None where it says nothing or leaves it to the standard library."""
    owner, found = lookup_class(cls, "__class_getitem__")
    if found is ABSENT or is_trusted_class(owner):
        return None
    guard_class_attribute(i, cls.__mro__, owner, "__class_getitem__", found)
    if not isinstance(found, classmethod) or not isinstance(found.__func__, FunctionType):
        raise Unsupported(f"__class_getitem__ of {cls.__name__}")
    return found.__func__
