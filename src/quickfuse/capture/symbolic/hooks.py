"""Hooks that captured code registers, and their handles: see `library.module_hooks` and `pytorch.gradient_hooks`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from ...bytecode.decoding import codes_in
from .graph_values import TensorProxy


class HookHandle:
    """What `torch.utils.hooks.RemovableHandle` is, to captured code."""

    def __init__(self, number: int, tables: list[Any]) -> None:
        self.id = number
        self.tables = tables

    def remove(self) -> None:
        for table in self.tables:
            if self.id in table:
                del table[self.id]
        forget_hook(self.id)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def forget_hook(number: int) -> None:
    """A hook was removed. Capture knows what this does."""


@dataclass(eq=False, slots=True)
class TensorHooks:
    """The hooks of a tensor, by number: `before` its gradient is used, and `after` it was added to a leaf's. `retains`: so
    is the gradient of what is no leaf. After all these come those of the node that made the tensor.

    `registered` are those that the captured code registered and did not remove yet (the number -1 stands for `retains`),
    with how many instructions had come before. When the first of them was, `last` was the last node of the graph, and
    (`watches`) others had been computed from the tensor.
    """

    tensor: TensorProxy
    before: dict[int, Any]
    after: dict[int, Any]
    retains: bool = False
    of_node: list[Any] = field(default_factory=list)
    registered: dict[int, int] = field(default_factory=dict)
    last: torch.fx.Node | None = None
    watches: bool = False


class ModuleGradients:
    """What `torch.utils.hooks.BackwardHook` is, to captured code: the hooks of one call of a module, which get the gradients
    of its results, and of what it is called with. There one tensor each may need gradients; a hook of it does the same."""

    def __init__(self, module: Any, user_hooks: Any, user_pre_hooks: Any) -> None:
        self.module = module
        self.user_hooks = user_hooks
        self.user_pre_hooks = user_pre_hooks
        self.grad_outputs: Any = None
        self.has_gradients_of_inputs = False
        self.n_inputs = 0

    def setup_input_hook(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        args, place = _seen_apart(args)
        self.has_gradients_of_inputs = place >= 0
        self.n_inputs = len(args)
        if place >= 0:

            def hook(gradient: Any) -> Any:
                if self.grad_outputs is None:  # it comes by another way than through the module's result
                    return None
                found = self._called(self.user_hooks, _at(place, gradient, len(args)), self.grad_outputs)
                self.grad_outputs = None
                return found[place]

            register_behind(args[place], hook)
        return args

    def _called(self, hooks: Any, gradients: Any, *others: Any) -> Any:
        """What hooks make of some gradients, one after the other."""
        for hook in hooks:
            made = hook(self.module, gradients, *others)
            if made is not None:
                if len(made) != len(gradients):
                    refuse("a hook of a module that gives another number of gradients")
                gradients = made
        return gradients

    def setup_output_hook(self, results: Any) -> Any:
        seen, place = _seen_apart(results if isinstance(results, tuple) else (results,))
        if place >= 0:

            def hook(gradient: Any) -> Any:
                found = self._called(self.user_pre_hooks, _at(place, gradient, len(seen)))
                if self.has_gradients_of_inputs:
                    self.grad_outputs = found
                else:
                    if gradient.is_cuda:
                        refuse("a warning in a thread of PyTorch's")
                    warnings.warn(_NO_INPUTS, stacklevel=5)
                    for user_hook in self.user_hooks:
                        made = user_hook(self.module, (None,) * self.n_inputs, found)
                        if made is not None and not (isinstance(made, tuple) and all(el is None for el in made)):
                            refuse("a hook of a module that gives a gradient of what needs none")
                return found[place]

            register_behind(seen[place], hook)
        return seen if isinstance(results, tuple) else seen[0]


#: What PyTorch warns of where nothing that a module gets needs gradients.
_NO_INPUTS = next(
    text for code in codes_in(BackwardHook.setup_output_hook.__code__) for text in code.co_consts
    if isinstance(text, str) and "hook is firing" in text
)  # fmt: skip


def _at(place: int, value: Any, count: int) -> tuple[Any, ...]:
    return tuple([value if k == place else None for k in range(count)])


def _seen_apart(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], int]:
    """Some values with views in place of the tensors, and the place of the tensor that needs gradients, -1 if none does.

    Like the result of PyTorch's own function, a view that is one of several may not be changed in place."""
    places = [k for k, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad]
    if not places or not torch.is_grad_enabled():
        return values, -1
    if len(places) > 1:
        refuse("hooks of a module with several tensors that need gradients")
    if type(values) is not tuple:
        refuse("hooks of a module with a tuple of a class of its own")
    seen = [v.unsqueeze(0).unbind()[0] if isinstance(v, torch.Tensor) else v for v in values]
    return tuple(seen), places[0]


def register_behind(tensor: Any, hook: Any) -> None:
    """Register a hook of the node that made a tensor, which is called after the tensor's own. Capture knows what this
    does."""


def refuse(reason: str) -> None:
    """What capture does not follow. It raises `Unsupported` here."""
