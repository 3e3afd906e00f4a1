"""PyTorch's kernels for tensors without data, without what they import.

Many are Python functions. They treat sizes as possibly symbolic, by functions of a module that imports SymPy, and PyTorch
keeps its compiler from looking into them, for which it imports the compiler: 0.3 and 0.6 s, or 2 s each where Python's
files are not compiled yet. Sizes are plain numbers here, and no compiler is there to be kept away.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch._prims_common import elementwise_dtypes

_SYMBOLIC = "torch.fx.experimental.symbolic_shapes"
_COMPILER = "torch._dynamo"
#: Where PyTorch keeps such kernels, and the formulas that they are made of.
_WITH_KERNELS = ("torch._refs", "torch._decomp", "torch._prims", "torch._meta_registrations")

#: The code of the wrapper that PyTorch puts around functions that its own compiler is to leave alone.
KEPT_FROM_COMPILER: CodeType | None = next(
    (c for c in _disable_dynamo.__code__.co_consts if isinstance(c, CodeType) and c.co_name == "inner"), None
)

_lock = threading.RLock()


@contextlib.contextmanager
def light_meta_kernels() -> Iterator[None]:
    """Within it, operators on tensors without data import neither SymPy nor PyTorch's compiler.

    Whoever imports one of the two meanwhile, in this thread or another, gets it: the stand-in for symbolic sizes
    answers for plain numbers alone, and has the real module answer anything else.
    """
    with _lock:
        _leave_alone()
        _stand_in.users += 1
        if _stand_in.users == 1 and _SYMBOLIC not in sys.modules:
            sys.modules[_SYMBOLIC], sys.modules[_expressions.__name__] = _stand_in, _expressions
            elementwise_dtypes.__code__ = _PROMOTION.replace(
                co_names=tuple(_expressions.__name__ if name == "sympy" else name for name in _PROMOTION.co_names)
            )
    try:
        yield
    finally:
        with _lock:
            _stand_in.users -= 1
            if not _stand_in.users and sys.modules.pop(_expressions.__name__, None) is not None:
                elementwise_dtypes.__code__ = _PROMOTION
                if sys.modules[_SYMBOLIC] is _stand_in:
                    del sys.modules[_SYMBOLIC]


# --- sizes ---


class _PlainSizes(ModuleType):
    """Stands for PyTorch's module of symbolic sizes."""

    users = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_symbolic(), name)


def _symbolic() -> ModuleType:
    """The real module, which takes its place from now on."""
    with _lock:
        if sys.modules.get(_SYMBOLIC) is _stand_in:
            del sys.modules[_SYMBOLIC]
    return importlib.import_module(_SYMBOLIC)


def _is_plain(value: Any) -> bool:
    """Whether there is no symbol in a number, a sequence of numbers, or the sizes of a tensor."""
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and value.layout is torch.strided and _is_plain([*value.shape, *value.stride()])
    return all(map(_is_plain, value)) if isinstance(value, (tuple, list)) else type(value) in (bool, int)


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool(first == second)


#: What the functions of that module answer where there is no symbol.
_ANSWERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("guard_or_false", "guard_or_true", "guard_size_oblivious"), bool),
    **dict.fromkeys(("statically_known_true", "expect_true"), bool),
    "sym_and": lambda *conditions: all(conditions),
    "sym_or": lambda *conditions: any(conditions),
    "sym_eq": _equal,
    "is_nested_int": lambda size: False,
    **dict.fromkeys(("has_hint", "has_guarding_hint"), lambda size: True),
    **dict.fromkeys(("size_hint", "guarding_hint_or_throw", "guard_int"), lambda size: size),
    "free_unbacked_symbols": lambda value: set(),
}


def _answering(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    def answered(*args: Any, **kwargs: Any) -> Any:
        if args and not kwargs and all(map(_is_plain, args)):
            return answer(*args)
        return getattr(_symbolic(), name)(*args, **kwargs)

    return answered


_stand_in = _PlainSizes(_SYMBOLIC)
vars(_stand_in).update({name: _answering(name, answer) for name, answer in _ANSWERS.items()})


class _Expression(type):
    def __instancecheck__(cls, value: Any) -> bool:
        sympy = sys.modules.get("sympy")  # only who has imported it can have an expression
        return isinstance(value, getattr(sympy, "Basic", ()))


#: Stands for SymPy in PyTorch's promotion of types, which imports it to see whether an operand is an expression.
_expressions = ModuleType("quickfuse_expressions")
vars(_expressions)["Basic"] = _Expression("Basic", (), {})
_PROMOTION = elementwise_dtypes.__code__


# --- the compiler ---


@functools.cache
def _leave_alone() -> None:
    """Let the wrappers around such kernels call them without importing the compiler, until it is imported."""
    if KEPT_FROM_COMPILER is None or _COMPILER in sys.modules:
        return
    modules = [m for name, m in list(sys.modules.items()) if name.startswith(_WITH_KERNELS)]
    pending = [value for module in modules for value in vars(module).values() if isinstance(value, FunctionType)]
    seen: set[int] = set()
    while pending:
        function = pending.pop()
        if id(function) in seen or not function.__closure__:
            continue
        seen.add(id(function))
        cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
        if function.__code__ is KEPT_FROM_COMPILER:
            _keep(cells["fn"].cell_contents, cells["recursive"].cell_contents)
        pending += [held for cell in cells.values() if isinstance(held := _held(cell), FunctionType)]


def _held(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _keep(function: Any, recursive: bool) -> None:
    """Set what the wrapper of a function calls, and would make by the compiler if it were not there."""
    if not isinstance(function, FunctionType) or hasattr(function, "__dynamo_disable"):
        return

    def alone(*args: Any, **kwargs: Any) -> Any:
        compiler = sys.modules.get(_COMPILER)
        if compiler is None or not hasattr(compiler, "disable"):  # while it is imported, say
            return function(*args, **kwargs)
        disabled = compiler.disable(function, recursive, wrapping=False)
        function.__dynamo_disable = disabled  # type: ignore[attr-defined]
        return disabled(*args, **kwargs)

    function.__dynamo_disable = alone  # type: ignore[attr-defined]
