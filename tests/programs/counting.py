"""How much of a program's tensor work runs in captured graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import quickfuse
from programs.load import load, quietly

#: Calls that ask something about a tensor, or take its values to Python: no operators.
QUESTIONS = frozenset(
    "__get__ __set__ size dim stride numel __len__ item tolist __bool__ __float__ __int__ __index__ __format__ __repr__ "
    "is_floating_point is_contiguous nelement is_complex is_nonzero storage_offset __hash__ __contains__ __delete__ "
    "is_grad_enabled _is_view untyped_storage data_ptr element_size backward requires_grad_ equal allclose __iter__".split()
)


class OperatorCounter(TorchFunctionMode):
    """Counts operators while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += getattr(function, "__name__", "") not in QUESTIONS
        return function(*args, **(kwargs or {}))


class GraphCounter:
    """A backend that runs graphs as they are and counts the operators that they run."""

    def __init__(self) -> None:
        self.counter = OperatorCounter()

    def __call__(self, module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with self.counter:
                return module.forward(*args)

        return run

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return quickfuse.compile(function, backend=self)  # type: ignore[no-any-return]


def operators_of(source: str, calls: tuple[int, ...]) -> int:
    """Operators that a program runs in all calls, in eager PyTorch."""
    loaded = load(source)
    counter = OperatorCounter()
    for call in calls:
        args, kwargs = loaded.arguments(call)
        with contextlib.suppress(Exception), quietly(), counter:
            loaded.function(*args, **kwargs)
    return counter.operators
