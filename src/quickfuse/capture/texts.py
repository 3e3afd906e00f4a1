"""Values whose text is known during capture."""

from __future__ import annotations

import enum
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

from ..errors import Unsupported
from .class_attributes import guard_class_attribute, lookup_class
from .interpreter import Interpreter
from .values import ForeignScalar, is_constant, type_of


def printable(i: Interpreter, value: Any) -> Any:
    """A value whose text is known during capture: constants, classes, exceptions with constant arguments."""
    if type(value) is ForeignScalar or isinstance(value, enum.Enum):
        for name in ("__str__", "__repr__", "__format__"):
            owner, found = lookup_class(type_of(value), name)
            guard_class_attribute(i, type_of(value).__mro__, owner, name, found)
            if isinstance(found, FunctionType) and owner.__module__ != "enum":
                raise Unsupported(f"the text of a {type_of(value).__name__}")
    value = i.outside.concrete(value)
    if is_constant(value) or isinstance(value, (type, MethodDescriptorType, WrapperDescriptorType)):
        return value
    if type(value) is BuiltinFunctionType and isinstance(value.__self__, (type, ModuleType)):
        return value
    if isinstance(value, BaseException) and is_constant(value.args):
        return value
    raise Unsupported(f"the text of a {type_of(value).__name__}")
