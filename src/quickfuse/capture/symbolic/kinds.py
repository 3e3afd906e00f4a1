"""Kinds of objects, by what capture may assume of them."""

from __future__ import annotations

import collections
import functools
import sys
import types
from typing import Any

import numpy
import torch

from ...ir.source import Source

#: The class of methods of NumPy's generators of random numbers.
NUMPY_METHOD = type(numpy.random.RandomState.uniform)
#: Objects that are what they are: compared by identity and never looked into.
CODE_TYPES = (
    types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType, types.MethodDescriptorType,
    types.WrapperDescriptorType, NUMPY_METHOD, types.GetSetDescriptorType, classmethod, staticmethod, property,
)  # fmt: skip

OWNERS_OF_METHODS = (list, dict, set, frozenset, tuple, collections.deque, str, bytes, int, float, torch.Tensor)
VIEW_TYPES = (type({}.keys()), type({}.values()), type({}.items()))
CONSTANT_TYPES = (types.GenericAlias, types.UnionType)

_STANDARD_LIBRARY = frozenset(sys.stdlib_module_names)
#: What captured code runs in place of native functions.
_OUR_LIBRARY = frozenset(
    {"quickfuse.capture.library.higher_order", "quickfuse.capture.library.in_python", "quickfuse.capture.symbolic.hooks"}
)


@functools.lru_cache(maxsize=4096)
def is_trusted_module(name: Any) -> bool:
    """Whether a module's functions and classes may be assumed not to be replaced: PyTorch and the standard library."""
    top = name.partition(".")[0] if isinstance(name, str) else ""
    return top == "torch" or (top in _STANDARD_LIBRARY and top != "__main__") or name in _OUR_LIBRARY


def is_trusted_class(cls: type) -> bool:
    """The same of a class: one that its module knows by its name. Classes that are made by calls of the standard library
    have the names of its modules as well."""
    if not is_trusted_module(cls.__module__):
        return False
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found is cls or not cls.__flags__ & (1 << 9)


def is_bound(function: Any, source: Source) -> bool:
    """Whether a native function is a method of an object that may be another one at each call."""
    owner = function.__self__
    if isinstance(owner, OWNERS_OF_METHODS):
        return True
    return owner is not None and not isinstance(owner, (type, types.ModuleType)) and is_transient(source)


def is_transient(source: Source) -> bool:
    """Whether a path begins at an argument or a variable: what it leads to may be another object at each call."""
    root = source
    while root.base is not None:
        root = root.base
    return root.kind in ("local", "slot")
