"""Native functions of the standard library, written in Python: what capture follows in their place. It does so as well in
place of methods of PyTorch's that ask what makes no difference (see `capture.pytorch.first_steps`).

They do what the documentation of `itertools` says, for all that captured code can see: where it makes an iterator, it asks
at once for one of what it is given, and for elements later. Some modules have the same functions
in Python as well, for interpreters without their part in C: these are followed themselves.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import importlib.util
import itertools
import operator
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from ...ir.modes import enter_inference, leave_inference
from ..symbolic.frame import MAKE_NATIVE_ITERATORS, NATIVE_ITERATORS
from ..symbolic.hooks import refuse


def _totals(iterator: Iterator[Any], func: Any, initial: Any) -> Iterator[Any]:
    total = initial
    if initial is None:
        for first in iterator:
            total = first
            break
        else:
            return
    yield total
    for element in iterator:
        total = total + element if func is None else func(total, element)
        yield total


def _refused(function: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    for element in iterator:
        if not (element if function is None else function(element)):
            yield element


def _rest(function: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    for element in iterator:
        if not function(element):
            yield element
            break
    yield from iterator


def _selected(pairs: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
    for element, selected in pairs:
        if selected:
            yield element


def _groups(iterator: Iterator[Any], key: Any) -> Iterator[Any]:
    pending: list[Any] = []  # an element that was read, and its key

    def read() -> bool:
        for element in iterator:
            pending.append((element, element if key is None else key(element)))
            return True
        return False

    def group(wanted: Any) -> Iterator[Any]:
        while pending and pending[0][1] == wanted:
            element, _ = pending.pop()
            yield element
            if not read():
                return

    read()
    while pending:
        wanted = pending[0][1]
        members = group(wanted)
        yield wanted, members
        for _ in members:  # what the program left over
            pass


def _tee(iterable: Iterable[Any], n: int = 2, /) -> tuple[Iterator[Any], ...]:
    iterator = iter(iterable)
    queues: list[deque[Any]] = [deque() for _ in range(n)]

    def branch(mine: deque[Any]) -> Iterator[Any]:
        while True:
            if not mine:
                for element in iterator:
                    for queue in queues:
                        queue.append(element)
                    break
                else:
                    return
            yield mine.popleft()

    return tuple([branch(queue) for queue in queues])


def _inner(function: FunctionType) -> Iterator[CodeType]:
    return (code for code in function.__code__.co_consts if isinstance(code, CodeType))


NATIVE_ITERATORS.update({
    _totals.__code__: itertools.accumulate, _refused.__code__: itertools.filterfalse, _rest.__code__: itertools.dropwhile,
    _selected.__code__: itertools.compress, _groups.__code__: itertools.groupby,
    **dict.fromkeys(_inner(_groups), itertools._grouper),  # type: ignore[attr-defined]
    **dict.fromkeys(_inner(_tee), type(itertools.tee(())[0])),
})  # fmt: skip


def _count_elements(mapping: Any, iterable: Iterable[Any], /) -> None:
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1


def _vars(obj: Any, /) -> Any:
    try:
        return obj.__dict__
    except AttributeError:
        raise TypeError("vars() argument must have __dict__ attribute") from None


def _length_hint(obj: Any, default: int = 0, /) -> Any:
    if type(default) is not int:
        refuse("a default length that is no number")
    with contextlib.suppress(TypeError):
        return len(obj)
    if not hasattr(type(obj), "__length_hint__"):
        return default
    try:
        hint = type(obj).__length_hint__(obj)
    except TypeError:
        return default
    if hint is NotImplemented:
        return default
    if not isinstance(hint, int):
        raise TypeError(f"__length_hint__ must be an integer, not {type(hint).__name__}")
    if hint < 0:
        raise ValueError("__length_hint__() should return >= 0")
    return hint


def level_enables(logger: Any, level: Any) -> bool:
    """`logger.isEnabledFor(level)`, without what the logger remembers."""
    if logger.disabled or logger.manager._disable >= level:
        return False
    return bool(level >= logger.getEffectiveLevel())


class InferenceMode:
    """What `torch.inference_mode` makes, which is native."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self.active = False

    def __enter__(self) -> None:
        self.grad_around = torch.is_grad_enabled()
        enter_inference(self.mode)
        self.active = True

    def __exit__(self, *_: object) -> None:
        leave_inference()
        self.active = False


class WithoutTorchFunction:
    """What `torch._C.DisableTorchFunctionSubclass` is, which is native."""

    def __enter__(self) -> None:
        ask_no_class(True)

    def __exit__(self, *_: object) -> None:
        ask_no_class(False)


def ask_no_class(begins: bool) -> None:
    """Capture knows what this does."""


class CatchWarnings:
    """What `warnings.catch_warnings` is, whose filters belong to the process."""

    def __init__(
        self, *, record: bool = False, module: Any = None, action: Any = None, category: type = Warning, lineno: int = 0,
        append: bool = False,
    ) -> None:  # fmt: skip
        if module is not None or record:
            refuse("warnings.catch_warnings that records warnings, or those of another module")
        self.first = None if action is None else (action, category, lineno, append)

    def __enter__(self) -> None:
        copy_filters(self)
        if self.first is not None:
            warnings.simplefilter(*self.first)

    def __exit__(self, *_: object) -> None:
        restore_filters(self)


def copy_filters(manager: CatchWarnings) -> None:
    """Begin with a copy of the filters of warnings. Capture knows what this does, as it does of the next one."""


def restore_filters(manager: CatchWarnings) -> None:
    """Go back to the filters before."""


def _computed_once(prop: Any, instance: Any, owner: Any = None) -> Any:
    """What an attribute of `functools.cached_property` gives. Up to Python 3.11 it takes a lock, so that threads compute the
    value one after the other: where they do not, as from 3.12 on, the last one stays."""
    if instance is None:
        return prop
    name = prop.attrname
    if name is None:
        raise TypeError("Cannot use cached_property instance without calling __set_name__ on it.")
    try:
        held = instance.__dict__
    except AttributeError:
        text = f"No '__dict__' attribute on {type(instance).__name__!r} instance to cache {name!r} property."
        raise TypeError(text) from None
    if name in held:
        return held[name]
    value = prop.func(instance)
    try:
        held[name] = value
    except TypeError:
        text = f"The '__dict__' attribute on {type(instance).__name__!r} instance does not support item assignment"
        raise TypeError(f"{text} for caching {name!r} property.") from None
    return value


def forget_gradients(optimizer: Any, set_to_none: bool = True) -> None:
    """`Optimizer.zero_grad`, without asking which parameters have a gradient."""
    if not hasattr(optimizer, "_zero_grad_profile_name"):
        optimizer._patch_step_function()
    with torch.autograd.profiler.record_function(optimizer._zero_grad_profile_name):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def forget_gradients_of_module(module: Any, set_to_none: bool = True) -> None:
    """`Module.zero_grad`, in the same way."""
    for parameter in module.parameters():
        parameter.grad = None


def step_scheduler(scheduler: Any) -> None:
    """`LRScheduler.step`, without asking whether it is the first one, which has nothing to warn of."""
    scheduler._step_count += 1
    scheduler._update_lr(None)


def leave_flat(module: Any) -> None:
    """`RNNBase.flatten_parameters` of weights that lie together: the same ones in the same order."""


def _as_written(module: str, in_c: str, names: str) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Functions of a module of the standard library -> what its Python source says they do, without its part in C."""

    def load(name: str, *rest: Any) -> Any:
        if name == in_c:
            raise ImportError(name)
        return __import__(name, *rest)

    written: dict[str, Any] = {"__name__": module, "__builtins__": {**vars(builtins), "__import__": load}}
    loader: Any = importlib.util.find_spec(module).loader  # type: ignore[union-attr]
    exec(loader.get_code(module), written)
    written["__builtins__"] = vars(builtins)
    for name in names.split():
        yield getattr(importlib.import_module(module), name), written[name]


_MAKE_ITERATORS: dict[Any, Callable[..., Any]] = {
    itertools.accumulate: lambda iterable, func=None, *, initial=None: _totals(iter(iterable), func, initial),
    itertools.filterfalse: lambda function, iterable, /: _refused(function, iter(iterable)),
    itertools.dropwhile: lambda function, iterable, /: _rest(function, iter(iterable)),
    itertools.compress: lambda data, selectors: _selected(zip(iter(data), iter(selectors), strict=False)),
    itertools.groupby: lambda iterable, key=None: _groups(iter(iterable), key), itertools.tee: _tee,
}  # fmt: skip
MAKE_NATIVE_ITERATORS.update(function.__code__ for function in _MAKE_ITERATORS.values())

EQUIVALENTS: dict[Any, Callable[..., Any]] = {
    **_MAKE_ITERATORS,
    collections._count_elements: _count_elements, vars: _vars, operator.length_hint: _length_hint,  # type: ignore[attr-defined]
    warnings.catch_warnings: CatchWarnings, vars(functools.cached_property)["__get__"]: _computed_once,
    **dict(_as_written("bisect", "_bisect", "bisect_left bisect_right insort_left insort_right")),
    **dict(_as_written("heapq", "_heapq", "heapify heappush heappop heapreplace heappushpop nlargest nsmallest")),
    **dict(_as_written("functools", "_functools", "cmp_to_key reduce")),
    **dict(_as_written("operator", "_operator", (
        "neg pos abs truth invert inv concat not_ is_ is_not contains getitem setitem delitem countOf indexOf iconcat add "
        "sub mul truediv floordiv mod pow lt le gt ge eq ne and_ or_ xor matmul lshift rshift iadd isub imul itruediv "
        "ifloordiv imod ipow iand ior ixor imatmul ilshift irshift call"
    ))),
}  # fmt: skip
