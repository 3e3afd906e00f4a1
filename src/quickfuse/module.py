"""Compiled modules: an `nn.Module` whose call runs compiled code, with the original's state and attributes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


class CompiledModule(torch.nn.Module):
    """Calls go to compiled code; everything else (parameters, `state_dict`, attributes) is the original's."""

    def __init__(self, module: torch.nn.Module, compile_call: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        super().__init__()
        self.__dict__["_original"] = module
        self.__dict__["_compile_call"] = compile_call
        self.__dict__["_compiled"] = compile_call(module.__call__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_original"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_original"], name)

    def __reduce__(self) -> Any:
        return (CompiledModule, (self._original, self._compile_call))

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return CompiledModule(copy.deepcopy(self._original, memo), self._compile_call)

    def __repr__(self) -> str:
        return f"CompiledModule({self._original!r})"

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.load_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> CompiledModule:
        self._original.train(mode)
        return self

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.named_buffers(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.named_modules(*args, **kwargs)

    def children(self) -> Any:
        return self._original.children()

    def _apply(self, fn: Any, recurse: bool = True) -> CompiledModule:
        self._original._apply(fn, recurse)
        return self
