"""What a user told the compiler about a function: to keep out of it, to break the graph there, to call it as it is.

The functions of `control.py` leave these marks, and capture reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

#: The attribute of a class of callables that names what a call of an instance comes to in captured code.
CAPTURED_AS = "__captured_as__"

_ATTRIBUTE = "__quickfuse_mark__"


@dataclass(frozen=True, slots=True)
class Mark:
    """`kind` is one of

    * "disabled": a call is one step in Python; `note` is the reason, in the user's words
    * "graph break": so is this call, which does nothing else
    * "is compiling": a call gives True in captured code
    * "in graph": a call is one node of the graph
    * "hint": a call does nothing in captured code
    """

    kind: str
    note: str = ""


#: Marks of functions that are not written in Python: they have no attributes.
_of_others: dict[Any, Mark] = {}


def put_mark(function: Callable[..., Any], mark: Mark) -> None:
    """Mark a function."""
    if isinstance(function, FunctionType):
        function.__dict__[_ATTRIBUTE] = (mark, function.__code__)
    else:
        _of_others[function] = mark


def mark_of(function: Any) -> Mark | None:
    """The mark of a function. `functools.wraps` copies attributes, but a wrapper is not what was marked."""
    if type(function) is FunctionType:
        found = function.__dict__.get(_ATTRIBUTE)
        return found[0] if found is not None and found[1] is function.__code__ else None
    return _of_others.get(function)


def others_marked() -> dict[Any, Mark]:
    """Marks of functions that are not written in Python."""
    return _of_others


def _behind_peer(function: FunctionType) -> Any:
    """The function behind a wrapper of PyTorch's own compiler, or None.

    `functools.wraps` copies the attributes of such a wrapper, but a wrapper around it is written elsewhere.
    """
    if not str(function.__globals__.get("__name__")).startswith("torch._dynamo"):
        return None
    return getattr(function, "_torchdynamo_orig_callable", None)


def kept_from_peer(function: FunctionType) -> Any:
    """The function behind a wrapper of PyTorch's own compiler that says "leave this alone", or None."""
    return _behind_peer(function) if getattr(function, "_torchdynamo_disable", False) else None


def compiled_by_peer(function: Any) -> Any:
    """What `torch.compile` was given, where this is a function that it returned, or a module; else None. In a compiled
    program it is part of that program, as within `torch.compile` itself."""
    if type(function) is FunctionType:
        return None if getattr(function, "_torchdynamo_disable", False) else _behind_peer(function)
    cls = type(function)
    if cls.__name__ != "OptimizedModule" or cls.__module__ != "torch._dynamo.eval_frame":
        return None
    with_hooks = any(function.__dict__.get(name) for name in _HOOKS)
    return None if with_hooks else function.__dict__["_modules"]["_orig_mod"]


def without_peer(function: Any) -> Any:
    """A function or module itself, in place of what `torch.compile` made of it."""
    while (original := compiled_by_peer(function)) is not None:
        function = original
    return function


#: Where modules have what is called around `forward`.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def keep_peer_out(function: Callable[..., Any]) -> None:
    """Have torch.compile call this function as it is, where compiled code calls it: neither what it does is followed, nor
    what it calls. PyTorch's compiler need not be imported for that, now or ever."""
    frames = torch._C._dynamo.eval_frame
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "compiled by quickfuse"  # type: ignore[attr-defined]
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
