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


class GraphCounter:
    """A backend that runs graphs as they are and counts the operators that they run."""

    def __init__(self) -> None:
        self.operators = 0

    def __call__(self, module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        count = sum(map(_is_operator, module.graph.nodes))

        def run(*args: Any) -> Any:
            self.operators += count
            return module.forward(*args)

        return run

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return quickfuse.compile(function, backend=self)  # type: ignore[no-any-return]


def _is_operator(node: torch.fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    value = node.meta.get("val", node.meta.get("example_value"))
    on_numbers = type(value).__name__ in ("NumberMeta", "int", "float", "bool")
    of_tuple = name == "getitem" and not any(_gives_tensor(n) for n in node.all_input_nodes[:1])
    return name not in QUESTIONS and not on_numbers and not of_tuple


def _gives_tensor(node: torch.fx.Node) -> bool:
    return not isinstance(node.meta.get("val"), (list, tuple))


class OperatorCounter(TorchFunctionMode):
    """Counts operators that run one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += getattr(function, "__name__", "") not in QUESTIONS
        return function(*args, **(kwargs or {}))


def operators_of(source: str, calls: tuple[int, ...]) -> int:
    """Operators that a program runs in all calls, in eager PyTorch."""
    loaded = load(source)
    counter = OperatorCounter()
    for call in calls:
        args, kwargs = loaded.arguments(call)
        with contextlib.suppress(Exception), quietly(), counter:
            loaded.function(*args, **kwargs)
    return counter.operators
