"""Functions that `torch.jit.script` compiled are captured as the Python functions that they were compiled from, where these
do the same: PyTorch keeps them for that."""

from __future__ import annotations

import builtins
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from ...bytecode.decoding import codes_in, decode
from ..interpreter import Args, Kwargs
from ..symbolic import Symbol, TensorProxy

SCRIPTED: type = torch._C.ScriptFunction

#: What a compiled function may name: it keeps the values of others.
_SAME_LATER = (FunctionType, BuiltinFunctionType, type, ModuleType, SCRIPTED)
_NUMBERS = {"int": int, "float": float, "bool": bool}


def python_call(scripted: Any, args: Args, kwargs: Kwargs) -> tuple[FunctionType, Args, Kwargs] | None:
    """The call of a Python function to capture for a call, None where compiled code may do something else: convert a number,
    raise another exception, or know an old value of a global."""
    function = getattr(scripted, "_torchdynamo_inline", None)
    if type(function) is not FunctionType or function.__closure__ or not _is_plain(function):
        return None
    parameters = scripted.schema.arguments
    names = [p.name for p in parameters]
    if len(args) > len(names) or not kwargs.keys() <= {*names[len(args) :]}:
        return None
    kinds = {p.name: str(p.type) for p in parameters}
    args = tuple([_converted(kinds[name], value) for name, value in zip(names, args, strict=False)])
    kwargs = {name: _converted(kinds[name], value) for name, value in kwargs.items()}
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    fits = all(_fits(kinds[p.name], given[p.name]) if p.name in given else p.has_default_value() for p in parameters)
    return (function, args, kwargs) if fits else None


def _converted(kind: str, value: Any) -> Any:
    """An argument as compiled code gets it: a list is taken for a tuple."""
    return tuple(value) if kind.startswith("Tuple[") and type(value) is list else value


def _fits(kind: str, value: Any) -> bool:
    """Whether an argument needs no conversion to the type of its parameter."""
    if kind == "Tensor":
        return type(value) is TensorProxy
    if kind.startswith("Optional["):
        return value is None or _fits(kind.removeprefix("Optional[").removesuffix("]"), value)
    if kind.startswith("Tuple["):
        kinds = kind.removeprefix("Tuple[").removesuffix("]").split(", ")
        return type(value) is tuple and len(value) == len(kinds) and all(map(_fits, kinds, value))
    return kind in _NUMBERS and (value.kind if type(value) is Symbol else type(value)) is _NUMBERS[kind]


def _is_plain(function: FunctionType) -> bool:
    known = {**vars(builtins), **function.__globals__}
    for code in codes_in(function.__code__):
        if any(instruction.name == "RAISE_VARARGS" for instruction in decode(code).instructions):
            return False
        if "is_scripting" in code.co_names or not all(isinstance(known.get(n, len), _SAME_LATER) for n in code.co_names):
            return False
    return True
