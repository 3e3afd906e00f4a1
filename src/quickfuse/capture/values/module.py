"""Modules."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import torch

from ...errors import Unsupported
from ..interpreter import Interpreter
from ..objects.class_attributes import (
    bind,
    descriptor,
    guard_absent,
    guard_class_attribute,
    in_trusted_code,
    lookup_class,
    python_method,
)
from ..objects.variables import PeerModule, store_global, torch_lazy_module
from ..pytorch.functions import call_peer
from ..symbolic import ABSENT, DELETED
from ..symbolic.kinds import is_trusted_module
from ..symbolic.raising import raise_in_program
from .code import CodeKind
from .kind import Args, Kind, Kwargs, Then

#: The modules of PyTorch's and of libraries' operators, which are looked up when they are asked for.
_OPERATORS = (type(torch.ops), type(torch.ops.aten))
#: How the parts of `torch.backends`, whose settings are attributes, give what is in the module behind them.
_OF_SETTINGS = torch.backends.PropModule.__getattr__


class ModuleKind(CodeKind):
    """A module: its globals, and what its `__getattr__` gives."""

    def attribute(self, i: Interpreter, base: ModuleType, name: str, then: Then) -> None:
        namespace = base.__dict__
        known = i.outside.library_name(namespace, name)
        if known is not None and in_trusted_code(i):
            then(known)
            return
        if type(namespace.get("__name__")) is not str:
            raise Unsupported("a module without a name")
        source = i.outside.source_of(base) or i.outside.roots.constant(base.__name__, base)
        trusted = is_trusted_module(base.__name__) and in_trusted_code(i)
        stored = i.outside.assigned(base.__dict__, name)
        if stored is not None:
            if stored.value is DELETED:
                raise Unsupported(f"the attribute {name} of module {base.__name__}, which was deleted")
            then(stored.value)
            return
        if base is warnings and name == "filters" and i.outside.filters:
            raise Unsupported("the filters of warnings inside of warnings.catch_warnings")
        if isinstance(base, _OPERATORS) and name not in base.__dict__:
            i.native(getattr, base, name)  # which puts it there
        if name in base.__dict__:
            if trusted:
                then(i.outside.wrap_library_code(namespace, name, base.__dict__[name], source.attr(name)))
            else:
                then(i.outside.wrap(base.__dict__[name], source.attr(name)))
        elif base is torch._VF:  # PyTorch's own functions by another name
            then(getattr(base, name))
        elif (lazy := torch_lazy_module(base, name)) is not None:
            then(lazy)
        elif type(base) is not ModuleType and name not in ("__class__", "__dict__"):
            self._of_class(i, base, name, then)
        elif name in ("__class__", "__dict__"):
            raise Unsupported(f"the computed attribute {name} of module {base.__name__}")
        else:
            i.outside.guard("absent", source.attr("__dict__"), (name,))
            self._missing(i, base, name, then)

    def set_attribute(self, i: Interpreter, base: ModuleType, name: str, value: Any) -> None:
        raw = lookup_class(type(base), name)[1]
        if type(raw) is torch.backends.ContextProp:  # a setting
            i.call_now(torch.backends.ContextProp.__set__, (descriptor(i, raw), base, value))
            return
        if type(base) is not ModuleType or base is warnings or name.startswith("__"):
            super().set_attribute(i, base, name, value)
        store_global(i, base.__dict__, name, value)

    def _of_class(self, i: Interpreter, module: ModuleType, name: str, then: Then) -> None:
        """What a module's class computes, as those do that import their parts when these are wanted."""
        getter, fallback = [python_method(i, module, method) for method in ("__getattribute__", "__getattr__")]
        kind = type(module)
        owner, raw = lookup_class(kind, name)
        if getter is None and fallback is _OF_SETTINGS and raw is ABSENT:
            self.attribute(i, module.m, name, then)
            return
        if getter is not None or (raw is ABSENT and (fallback is None or is_trusted_module(module.__name__))):
            raise Unsupported(f"the computed attribute {name} of module {module.__name__}")
        source = i.outside.source_of(module) or i.outside.roots.constant(module.__name__, module)
        i.outside.guard("absent", source.attr("__dict__"), (name,))
        if raw is not ABSENT:
            guard_class_attribute(i, kind.__mro__, owner, name, raw)
            bind(i, owner, name, raw, module, kind, then)
        else:
            guard_absent(i, kind.__mro__, name)
            i.call(fallback, (module, name), {}, then)

    def _missing(self, i: Interpreter, module: ModuleType, name: str, then: Then) -> None:
        source = i.outside.source_of(module) or i.outside.roots.constant(module.__name__, module)
        if "__getattr__" not in module.__dict__:
            i.outside.guard("absent", source.attr("__dict__"), ("__getattr__",))
            text = f"module '{module.__name__}' has no attribute '{name}'"
            raise_in_program(AttributeError(text, name=name, obj=module))
        if is_trusted_module(module.__name__):
            raise Unsupported(f"the computed attribute {name} of module {module.__name__}")
        i.call(i.outside.wrap(module.__dict__["__getattr__"], source.attr("__getattr__")), (name,), {}, then)


class PeerKind(Kind):
    """A module of PyTorch's own compiler, by its name."""

    def attribute(self, i: Interpreter, base: PeerModule, name: str, then: Then) -> None:
        then(PeerModule(f"{base.name}.{name}"))

    def call(self, i: Interpreter, function: PeerModule, args: Args, kwargs: Kwargs, then: Then) -> None:
        then(call_peer(i, function.name, args, kwargs))
