"""Calls of objects, and what an `nn.Module` keeps in tables, by what PyTorch's code for them comes down to.

PyTorch's `Module.__call__` asks for hooks of nine kinds and for tracing before it calls `forward`. Following that code
costs a hundred instructions and a dozen guards for each module. `Module.__getattr__`, which finds parameters, buffers and
submodules, would be two thirds of all the instructions of a convolutional network.
"""

from __future__ import annotations

import types
import typing
from types import FunctionType
from typing import Any

import torch
import torch.fx
from torch.fx.graph_module import _WrappedCall
from torch.nn.modules import module as torch_module

from ...errors import Unsupported
from ...ir.marks import CAPTURED_AS
from ..interpreter import Args, Interpreter, Kwargs, Then
from ..symbolic import ABSENT, DELETED, DICTS, FromOutside, ShadowDict, type_of
from .class_attributes import class_source, guard_absent, guard_class_attribute, lookup_class

_MODULE_CALL = torch.nn.Module.__dict__["__call__"]
MODULE_GETATTR = torch.nn.Module.__dict__["__getattr__"]
#: Where `Module.__getattr__` looks, in this order.
_TABLES = ("_parameters", "_buffers", "_modules")
_OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_backward_hooks", "_global_backward_pre_hooks", "_global_forward_hooks", "_global_forward_pre_hooks",
)  # fmt: skip
#: What an instance may not have of its own: it would be called instead of the class's.
_CALLED = ("_call_impl", "_compiled_call_impl", "forward")


def call_object(i: Interpreter, instance: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
    """`instance(*args, **kwargs)` for an object whose class is Python."""
    kind = type_of(instance)
    if kind in _ALIASES and isinstance(instance, kind):
        _call_alias(i, instance, args, kwargs, then)
        return
    if kind is _WrappedCall and args:
        _guard_generated(i, args[0])
    owner, method = lookup_class(kind, "__call__")
    compiled = getattr(method, getattr(type(method), CAPTURED_AS, ""), None)
    if isinstance(compiled, FunctionType):  # calls of the class's objects are compiled
        guard_class_attribute(i, kind.__mro__, owner, "__call__", method)
        i.call(compiled, (instance, *args), kwargs, then)
        return
    if not isinstance(method, FunctionType):
        raise Unsupported(f"a call of a {kind.__name__}")
    name, (by, forward) = "__call__", lookup_class(kind, "forward")
    if method is _MODULE_CALL and _is_plain_module(i, instance) and isinstance(forward, FunctionType):
        name, owner, method = "forward", by, forward
    guard_class_attribute(i, kind.__mro__, owner, name, method)
    i.call(method, (instance, *args), kwargs, then)


def _guard_generated(i: Interpreter, module: Any) -> None:
    """Changing the graph of a graph module gives its class another `forward`, which PyTorch's own code would not expect."""
    order = type_of(module).__mro__
    owner, forward = lookup_class(order[0], "forward")
    if not isinstance(module, FromOutside) or not isinstance(forward, FunctionType):
        raise Unsupported("a call of a _WrappedCall")
    guard_absent(i, order[: order.index(owner)], "forward")
    i.outside.guard("is", class_source(i, owner).attr("__dict__").item("forward"), forward)


#: What `Class[argument]` is for a generic class.
_ALIASES: tuple[type, ...] = (type(typing.List[int]), types.GenericAlias)  # noqa: UP006


def _call_alias(i: Interpreter, alias: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
    """`Class[argument](*args)`: an instance of the class, which is told of the argument if it can have attributes."""
    if not getattr(alias, "_inst", True) or not isinstance(alias.__origin__, type):
        raise Unsupported(f"a call of {alias}")
    made = i.call_now(alias.__origin__, args, kwargs)
    if i.is_created(made) and type(getattr(made, "__dict__", None)) is dict:
        i.kind_of(made).set_attribute(i, made, "__orig_class__", alias)
    then(made)


def _is_plain_module(i: Interpreter, module: Any) -> bool:
    """Whether calling a module of the user's comes down to its `forward`, guarded to stay so."""
    outside = i.outside
    if not isinstance(module, FromOutside) or type(module.real)._call_impl is not torch.nn.Module._call_impl:
        return False
    if any(name in module.attributes for name in (*_OWN_HOOKS, *_CALLED)):
        return False
    source, state = module.source, module.real.__dict__
    if any(name in state for name in _CALLED) or any(state.get(name) for name in _OWN_HOOKS):
        return False
    if any(getattr(torch_module, name) for name in _GLOBAL_HOOKS):
        return False
    tables = [state[name] for name in _OWN_HOOKS] + [getattr(torch_module, name) for name in _GLOBAL_HOOKS]
    shadows = [outside.stand_in(table) for table in tables]
    if any(type(shadow) is ShadowDict and shadow.is_changed for shadow in shadows):
        return False
    outside.guard("absent", source.attr("__dict__"), _CALLED)
    for name in _OWN_HOOKS:
        outside.guard("keys", source.attr("__dict__").item(name), ())
    root = outside.roots.constant(torch_module.__name__, torch_module)
    for name in _GLOBAL_HOOKS:
        outside.guard("keys", root.attr(name), ())
    return True


def in_tables(i: Interpreter, namespace: Any, name: str) -> Any:
    """What `Module.__getattr__` finds in the tables of a module, with the guards of its code; `namespace` is the stand-in of
    the module's `__dict__`. `ABSENT` where that code has to be followed itself."""
    if type(namespace) is not ShadowDict:
        return ABSENT
    for key in _TABLES:
        table = namespace.get(i.outside, key)
        if table is DELETED:
            continue
        if type(table) is not ShadowDict or type(table.real) not in DICTS:
            return ABSENT
        found = table.get(i.outside, name)
        if found is not DELETED:
            return found
    return ABSENT
