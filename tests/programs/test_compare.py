"""The comparison sees what a wrong compiler could do wrong, and the reducer keeps what it saw."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from programs import generate, run
from programs.compare import Difference, compare
from programs.reduce import reduced

Function = Callable[..., Any]

SOURCE = """
import torch
LOG = []
COUNT = 0
class Box:
    pass
def program(x, items, box):
    global COUNT
    COUNT += 1
    LOG.append(len(items))
    print('seen', len(items))
    x.add_(1)
    items.append(x[0])
    box.value = x
    box.items = items
    if COUNT == 3:
        try:
            items[9]
        except IndexError as error:
            raise ValueError('no such item') from error
    return x, items, x * 2, lambda: COUNT
def arguments(call):
    return (torch.ones(2, 3), [call]), {'box': Box()}
"""


def wrapper(change: Callable[[Function, tuple[Any, ...], dict[str, Any]], Any]) -> Function:
    """A compiler that runs the function, and does what `change` does."""

    def compiler(function: Function) -> Function:
        @functools.wraps(function)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            return change(function, args, kwargs)

        return compiled

    return compiler


def copies_result(function: Function, args: Any, kwargs: Any) -> Any:
    x, items, double, read = function(*args, **kwargs)
    return x, list(items), double, read


def copies_tensor(function: Function, args: Any, kwargs: Any) -> Any:
    x, items, double, read = function(*args, **kwargs)
    return x.clone(), items, double, read


def loses_view(function: Function, args: Any, kwargs: Any) -> Any:
    found = function(*args, **kwargs)
    args[1][-1] = args[1][-1].clone()
    return found


def loses_effects(function: Function, args: Any, kwargs: Any) -> Any:
    return function(*copy.deepcopy(args), **kwargs)


def loses_attribute(function: Function, args: Any, kwargs: Any) -> Any:
    found = function(*args, **kwargs)
    del kwargs["box"].value
    return found


def prints(function: Function, args: Any, kwargs: Any) -> Any:
    print("again")
    return function(*args, **kwargs)


def runs_twice(function: Function, args: Any, kwargs: Any) -> Any:
    function(*copy.deepcopy((args, kwargs))[0], **copy.deepcopy(kwargs))
    return function(*args, **kwargs)


def changes_strides(function: Function, args: Any, kwargs: Any) -> Any:
    x, items, double, read = function(*args, **kwargs)
    return x, items, double.t().contiguous().t(), read


def changes_bit(function: Function, args: Any, kwargs: Any) -> Any:
    x, items, double, read = function(*args, **kwargs)
    return x, items, torch.nextafter(double, double + 1), read


def changes_grad_mode(function: Function, args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    finally:
        torch.set_grad_enabled(False)


def changes_error(function: Function, args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise KeyError("other") from error


def loses_cause(function: Function, args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        error.__cause__ = None
        raise


def swallows(function: Function, args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except ValueError:
        return None


WRONG = [
    copies_result, copies_tensor, loses_view, loses_effects, loses_attribute, prints, runs_twice, changes_strides,
    changes_bit, changes_grad_mode, changes_error, loses_cause, swallows,
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
def test_wrong_compiler(change: Any) -> None:
    """Each of these is a difference."""
    assert isinstance(compare(SOURCE, wrapper(change)), Difference)


def test_no_compiler() -> None:
    """A program does not differ from itself."""
    assert compare(SOURCE, run.plain) is None


def test_reduced() -> None:
    """What is left of a program still differs, and has nothing that does not matter."""
    compiler = wrapper(changes_bit)
    difference = compare(SOURCE, compiler)
    assert difference is not None
    smaller = reduced(SOURCE, lambda text: run.still_fails(text, difference, compiler, True))
    assert "print" not in smaller and "raise" not in smaller and len(smaller.splitlines()) <= 12


ENDLESS = """
def numbers():
    try:
        yield 1
    finally:
        n = 0
        while True:
            n += 1
def arguments(call):
    return (), {}
def program():
    next(numbers())
    next(numbers())
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_endless_finalizers() -> None:
    """A program that does not end is found out, though Python swallows what a finalizer raises."""
    assert not generate.ends(ENDLESS, seconds=0.2)
