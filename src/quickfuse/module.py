"""Compiled modules: an `nn.Module` whose call runs compiled code, with the original's state and attributes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

from .ir.marks import keep_peer_out

#: What a compiled module has of its own. Everything else, PyTorch's own fields included, is the original's.
_OWN = ("_original", "_compile_call", "_compiled", "_compiled_forward")


class CompiledModule(torch.nn.Module):
    """Calls go to compiled code; everything else (parameters, `state_dict`, attributes) is the original's."""

    __captured_as__ = "_compiled"  # inside another compiled function: see `ir.marks`

    #: What a call of this object is: read by CPython itself, as in `Compiled`.
    __call__: Callable[..., Any]
    __slots__ = ("__call__",)

    def __init__(self, module: torch.nn.Module, compile_call: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        super().__init__()
        own = self.__dict__
        own.clear()  # nn.Module's methods find the original's parameters, hooks and mode through `__getattr__`
        own["_original"] = module
        own["_compile_call"] = compile_call
        own["_compiled"] = compile_call(module.__call__)
        object.__setattr__(self, "__call__", own["_compiled"])
        own["_compiled_forward"] = compile_call(module.forward)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled `forward` of the original, without its hooks."""
        if type(args) is torch.fx.Proxy:
            raise TypeError("torch.fx cannot trace a compiled module: trace the module itself, and compile what comes of it")
        return self._compiled_forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":  # `inspect` would look for it in `__call__` of the class
            return inspect.signature(self._compiled)
        return getattr(self.__dict__["_original"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_original"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_original"], name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._original), *_OWN})

    def __reduce__(self) -> Any:
        return (CompiledModule, (self._original, self._compile_call))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """What `torch.jit.script` compiles."""
        return self._original

    def __copy__(self) -> CompiledModule:
        return CompiledModule(copy.copy(self._original), self._compile_call)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        made = memo[id(self)] = CompiledModule(copy.deepcopy(self._original, memo), self._compile_call)
        return made

    def __repr__(self) -> str:
        return f"CompiledModule({self._original!r})"

    # containers: special methods are looked up in the class -----------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._original)

    def __len__(self) -> int:
        return len(self._original)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._original)  # type: ignore[call-overload, no-any-return]

    def __contains__(self, item: Any) -> bool:
        return item in self._original  # type: ignore[operator]

    def __getitem__(self, index: Any) -> Any:
        return self._original[index]  # type: ignore[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._original[index] = value  # type: ignore[index]

    def __delitem__(self, index: Any) -> None:
        del self._original[index]  # type: ignore[attr-defined]


#: Methods of `nn.Module` that the call of a module goes through: the class has its own.
_OF_CALLS = frozenset({"forward", "_call_impl", "_wrapped_call_impl", "_slow_forward"})


def _of_original(name: str) -> Callable[..., Any]:
    """A method of `nn.Module` as the original's class has it. Where that returns the module, it is the compiled one."""

    def method(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._original, name)(*args, **kwargs)
        return self if result is self._original else result

    method.__name__, method.__qualname__ = name, f"CompiledModule.{name}"
    method.__doc__ = getattr(torch.nn.Module, name).__doc__
    return method


for _name, _member in vars(torch.nn.Module).items():
    if type(_member) is FunctionType and not _name.startswith("__") and _name not in _OF_CALLS:
        setattr(CompiledModule, _name, _of_original(_name))

keep_peer_out(CompiledModule.forward)
