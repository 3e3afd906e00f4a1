"""What a program does to Python objects: new contents of buffers and gradients are outputs, anything else is an error."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ..errors import ExportError
from ..ir.modes import ATTENTION, leave_autocast
from ..ir.reading import entry
from ..ir.segment import Call as CallRecipe
from ..ir.segment import Constant, Effect, Existing, HeldLock, Output, Recipe
from ..ir.source import Source
from ..ir.warning_filters import forget_shown
from .first_step import optimizer_of
from .program import Assumption
from .sources import Call, Unreachable

#: What begins and ends a block of autocast, of filters of warnings, or one that allows some kernels of attention: the
#: function, and what tells the setting that was there before. (A block that is left open changes that setting.)
_RESTORING: dict[Any, Any] = {
    torch.autocast_increment_nesting: lambda: None, leave_autocast: lambda: None, torch.clear_autocast_cache: lambda: None,
    torch.set_autocast_enabled: torch.is_autocast_enabled, torch.set_autocast_dtype: torch.get_autocast_dtype,
    torch.set_autocast_cache_enabled: torch.is_autocast_cache_enabled,
    **{allow: allowed for allowed, allow in ATTENTION.values()}, forget_shown: lambda: None,
}  # fmt: skip


def _leaves_no_trace(recipe: CallRecipe) -> bool:
    """Whether a call brings a setting back to what it was before the program began, or lets a cache count it."""
    if isinstance(recipe.function, functools._lru_cache_wrapper):
        return True
    before = _RESTORING.get(recipe.function)
    if before is None or not all(isinstance(a, Constant) for a in recipe.args):
        return False
    values = [a.value for a in recipe.args if isinstance(a, Constant)]
    return not values or bool(before(*values[:-1]) == values[-1])


_HINT = (
    "A graph alone cannot do that. Return the value instead, or keep it in a buffer (register_buffer). If it is a cache "
    "that the first call fills, make one call before. strict=False leaves it out of the exported program"
)
_SCHEDULER = (
    "Call the scheduler's step() outside of what is exported, and make the learning rate a tensor, which is in the exported "
    "program's state: the scheduler changes it there"
)
_FIRST_STEP = "If it is the first step that makes an optimizer's state, take one step of the optimizer before"


class Changes:
    """The side effects of a captured call.

    `new` are the new contents of buffers, and new gradients: (kind, name, the captured graph's output or a tensor that was
    there before). `cleared` are parameters that lose their gradients, and `attributes` the buffers that are plain attributes
    of modules in the original. With `strict`, other effects are an error; without,
    they are left out, and listed in `assumptions`.
    """

    def __init__(
        self, call: Call, names: dict[int, str], kinds: dict[int, Any], state: dict[str, torch.Tensor], strict: bool
    ) -> None:
        self.call = call
        self.names = names
        self.kinds = kinds
        self.state = state
        self.strict = strict
        self.new: list[tuple[Any, str, int | torch.Tensor]] = []
        self.cleared: list[str] = []
        self.attributes: set[str] = set()
        self.assumptions: list[Assumption] = []

    def note(self, effects: list[Effect]) -> None:
        """Go through the effects of a call.

        Raises:
            ExportError: naming all that a graph cannot do, if `strict`.
        """
        refused = [effect for effect in effects if not self._as_output(effect)]
        texts = list(dict.fromkeys(map(self._described, refused)))
        if self.strict and refused:
            first_step = any(optimizer_of(self.call, effect) is not None for effect in refused)
            hint = _FIRST_STEP if first_step else _SCHEDULER if any(map(self._of_scheduler, refused)) else _HINT
            raise ExportError(f"the program changes Python objects: {'; '.join(texts)}. {hint}")
        self.assumptions += [Assumption(f"left out: {text}") for text in texts]

    def note_locks(self, locks: tuple[HeldLock, ...]) -> None:
        """Locks that the program takes.

        Raises:
            ExportError: if `strict`.
        """
        texts = [f"the lock {lock.source} is not taken" for lock in locks]
        if self.strict and texts:
            raise ExportError(f"the program takes locks: {'; '.join(str(lock.source) for lock in locks)}. {_HINT}")
        self.assumptions += [Assumption(f"left out: {text}") for text in texts]

    def _of_scheduler(self, effect: Effect) -> bool:
        """Whether an effect changes a scheduler of learning rates."""
        return isinstance(self._owner(effect), LRScheduler)

    def _is_counted(self, effect: Effect) -> bool:
        """Whether an effect notes on an optimizer that it took a step, for a warning of its schedulers."""
        key = effect.key.value if isinstance(effect.key, Constant) else effect.key
        return key == "_opt_called" and isinstance(self._owner(effect), torch.optim.Optimizer)

    def _owner(self, effect: Effect) -> Any:
        """The object whose attribute an effect sets; None where it does something else."""
        source = effect.target.source if isinstance(effect.target, Existing) else None
        source = source.base if source is not None and source.key == "__dict__" else source
        try:
            return None if source is None else self.call.value_at(source)
        except Unreachable:
            return None

    def _changes_nothing(self, effect: Effect) -> bool:
        """Whether an effect stores what is there already."""
        if not isinstance(effect.target, Existing):
            return False
        try:
            owner = self.call.value_at(effect.target.source)
            if effect.kind == "setitem" and isinstance(effect.key, Constant):
                before = entry(owner, effect.key.value) if isinstance(owner, dict) else owner[effect.key.value]
            elif effect.kind in ("setattr", "setplain"):
                before = object.__getattribute__(owner, effect.key)
            else:
                return False
            if isinstance(effect.value, Constant):
                return type(before) is type(effect.value.value) and bool(before == effect.value.value)
            return isinstance(effect.value, Existing) and self.call.value_at(effect.value.source) is before
        except (Unreachable, LookupError, AttributeError, TypeError):  # there is nothing
            return False

    def _as_output(self, effect: Effect) -> bool:
        if self._changes_nothing(effect) or self._is_counted(effect):
            return True
        if effect.kind == "setattr" and effect.key == "grad" and isinstance(effect.target, Existing):
            return self._gradient(effect.target.source, effect.value)
        if effect.kind == "do" and isinstance(effect.value, CallRecipe):
            return _leaves_no_trace(effect.value)
        if not isinstance(effect.target, Existing):
            return False
        if effect.kind in ("setattr", "setplain"):
            return self._attribute(effect.target.source, effect.key, effect.value)
        if effect.kind != "setitem" or not isinstance(effect.key, Constant):
            return False
        return self._buffer(effect.target.source, effect.key.value, effect.value)

    def _gradient(self, source: Source, value: Recipe | None) -> bool:
        name = self.call.argument(source) or self.names.get(id(self.call.value_at(source)))
        if name is None or self.call.argument(source) is not None:
            return False
        if isinstance(value, Constant) and value.value is None:
            self.cleared.append(name)
            return True
        if not isinstance(value, Output):
            return False
        self.new.append(("gradient", name, value.index))
        self.state.setdefault(name, self.call.value_at(source))
        return True

    def _buffer(self, table: Source, key: Any, value: Recipe | None) -> bool:
        """A buffer that is assigned to. Its new contents are copied to it, so they must look like the old ones."""
        if table.key != "_buffers":
            return False
        before = self.call.value_at(table).get(key)
        name = self.names.get(id(before))
        if not isinstance(before, torch.Tensor) or name is None:
            return False
        return self._contents(name, before, value)

    def _attribute(self, module: Source, key: str, value: Recipe | None) -> bool:
        """A tensor that is a plain attribute of a module, and is replaced, as `weight_norm` does: a buffer, but for the
        `state_dict`."""
        owner = self.call.value_at(module)
        before = owner.__dict__.get(key) if isinstance(owner, torch.nn.Module) else None
        if not isinstance(before, torch.Tensor) or isinstance(before, torch.nn.Parameter):
            return False
        name = self.names.get(id(before)) or self.call.name_of(module.attr(key), self.names)
        self.names[id(before)] = name
        self.attributes.add(name)
        return self._contents(name, before.detach(), value)

    def _contents(self, name: str, before: torch.Tensor, value: Recipe | None) -> bool:
        new: int | torch.Tensor
        if isinstance(value, Output):
            new = value.index
        elif isinstance(value, Existing) and isinstance(tensor := self.call.value_at(value.source), torch.Tensor):
            new = tensor
        else:
            return False
        self.state.setdefault(name, before)
        self.new.append(("buffer", name, new))
        return True

    # messages ---------------------------------------------------------------------------------------------------

    def _described(self, effect: Effect) -> str:
        if effect.kind in ("setglobal", "delglobal"):
            return f"the global {effect.key[1]} is {'set' if effect.kind == 'setglobal' else 'deleted'}"
        if effect.kind == "do":
            function = effect.value.function if isinstance(effect.value, CallRecipe) else None
            function = function.func if isinstance(function, functools.partial) else function
            name = getattr(function, "__name__", "a function")
            return "the grad mode is left changed" if name == "_set_grad_enabled" else f"{name} is called"
        if effect.kind == "setcell":
            return f"the variable {self._variable(effect.target)} of an enclosing function is set"
        target = self._name(effect.target)
        if effect.kind in ("setattr", "setplain", "delattr"):
            return f"{target}.{effect.key} is {'deleted' if effect.kind == 'delattr' else 'set'}"
        if effect.kind in ("setitem", "delitem"):
            done = "set" if effect.kind == "setitem" else "deleted"
            key = repr(effect.key.value) if isinstance(effect.key, Constant) else self._name(effect.key)
            if isinstance(effect.target, Existing) and effect.target.source.key == "__dict__":
                return f"{target}.{key.strip(chr(39))} is {done}"
            return f"{target}[{key}] is {done}"
        return f"{target}, a {getattr(effect.key, '__name__', 'container')}, is changed"

    def _variable(self, recipe: Any) -> str:
        """The name of a variable that functions share."""
        function = self.call.function
        cell = recipe.value if isinstance(recipe, Constant) else None
        if isinstance(recipe, Existing):
            try:
                cell = self.call.value_at(recipe.source)
            except Unreachable:
                cell = None
        for name, known in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if known is cell:
                return name
        return "in a closure"

    def _name(self, recipe: Any) -> str:
        if isinstance(recipe, Existing):
            source = recipe.source
            if source.key in ("__dict__", "_buffers", "_parameters", "cell_contents") and source.base is not None:
                source = source.base
            return self.call.described(source, self.names)
        if isinstance(recipe, Constant):
            return getattr(recipe.value, "__qualname__", None) or type(recipe.value).__name__
        return "an object"
