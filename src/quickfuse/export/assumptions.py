"""From guards to what an exported program checks in each call, and to the list of what it was specialised on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import ExportError
from ..ir.guard import Guard
from ..ir.segment import Segment
from ..ir.source import Source
from ..ir.values import TensorMeta
from .checks import AUTOCAST, GRAD_MODE, SETTINGS
from .nesting import PLAIN
from .numbers import Ref, Unknown, depends, expression_of, text_of
from .program import Assumption, Check, Condition
from .sources import Call, Unreachable

_ANY_AUTOCAST = "torch._C._is_any_autocast_enabled()"
#: Settings that every capture looks at, and that say nothing about a program which was exported in their usual state.
_USUAL = {
    "torch.is_inference_mode_enabled()": False, AUTOCAST: False,
    "torch._C._len_torch_function_stack()": 0, "torch._C._len_torch_dispatch_stack()": 0,
    "torch.autograd.forward_ad._current_level": -1, "torch.get_default_dtype()": torch.float32,
    "torch._C._autograd._top_saved_tensors_default_hooks(True)": None, "torch.is_autocast_cache_enabled()": True,
    "torch.is_anomaly_enabled()": False,
}  # fmt: skip


class Relied:
    """What the capture of a call relied on. `values` are those of the leaves of its arguments, by path; `fix` notes that
    the number there is no input of the program, but has this one value."""

    def __init__(self, call: Call, values: dict[str, Any], names: dict[int, str]) -> None:
        self.call = call
        self.values = values
        self.names = names
        self.used: dict[str, Check] = {}
        self.fixed: dict[str, Any] = {}
        self.more: list[Check] = []
        self.conditions: list[Condition] = []
        self.settings: dict[str, Any] = {}
        self.assumptions: list[Assumption] = []
        self._found: dict[tuple[str, str], list[str]] = {}
        self._prefixes = {id(module): name for root, top in call.modules() for name, module in _named(root, top)}

    def note(self, segment: Segment) -> None:
        """Go through a segment's guards."""
        for guard in segment.guards:
            if guard.source is not None and _is_of_numbers(guard.source):
                raise ExportError(f"the program's shapes depend on the numbers in a tensor: {guard}")
            handler = _HANDLERS.get(guard.kind)
            if handler is not None:
                handler(self, guard)
        for source in segment.autograd_asked:
            self._note_autograd(source)

    def finish(self) -> None:
        """List what was found around the program, and the kinds of the numbers that it takes."""
        for path, check in self.used.items():
            if check.kind == "number" and path not in self.fixed:
                self.assumptions.append(Assumption(f"type({path}) is {check.value.__name__}", "", True))
        for (text, location), where in self._found.items():
            self.assumptions.append(Assumption(text, location, where=tuple(where)))

    def checks(self) -> list[Check]:
        """What to check of the leaves of the arguments, and of what they have in common."""
        found = [self._check(path, value) for path, value in self.values.items()]
        return sorted([*found, *self.more], key=lambda check: check.kind == "same")  # which says least of what is wrong

    def _check(self, path: str, value: Any) -> Check:
        if path in self.fixed:
            return Check("equal", path, self.fixed[path])
        known = self.used.get(path)
        if known is not None:
            return known
        # What nothing looked at may be anything of its kind. None, a flag or a string decide what code does without a look.
        return Check("any", path) if isinstance(value, (torch.Tensor, int, float)) and type(value) is not bool else Check(
            "equal", path, value
        )

    def fix(self, path: str, location: str = "") -> None:
        """A number becomes a part of the program."""
        if path not in self.fixed:
            self.fixed[path] = self.values[path]
            self.assumptions.append(Assumption(f"{path} == {self.values[path]!r}", location, True))

    def resolve(self, source: Source) -> Any:
        """A source in an expression: a `Ref`, or the number that is there."""
        inner = source.base if source.kind == "contents" else source
        assert inner is not None
        path = self.call.argument(inner)
        if path is not None and path in self.values:
            return self.fixed[path] if path in self.fixed else Ref(path, source.kind == "contents")
        name = self.names.get(id(self.call.value_at(inner))) if source.kind == "contents" else None
        if name in self.values:
            raise ExportError(f"{name} is an argument of the program as well as a tensor whose contents it looks at")
        return Ref(name, True) if name is not None else self.call.value_at(source)

    # guards -----------------------------------------------------------------------------------------------------

    def _tensor(self, guard: Guard) -> None:
        path = self._path(guard.source)
        if path is not None:
            self.used[path] = Check("tensor", path, guard.value[1])
            self.assumptions.append(Assumption(f"{path} is a Tensor {_without_grad(guard.value[1])}", guard.location, True))

    def _type(self, guard: Guard) -> None:
        path = self._path(guard.source)
        if path is not None and guard.value in (int, float):
            self.used.setdefault(path, Check("number", path, guard.value))

    def _equal(self, guard: Guard) -> None:
        assert guard.source is not None
        path = self._path(guard.source)
        if path is not None:
            self.fix(path, guard.location)
        elif isinstance(guard.value, (bool, int, float, str)) or (guard.kind == "equal" and isinstance(guard.value, PLAIN)):
            self._note_found(guard.source, guard.value, guard.location)

    def _condition(self, guard: Guard) -> None:
        expr, outcome = guard.value
        try:
            expression = expression_of(expr, self.resolve)
        except Unknown:
            for source in expr.sources():
                if source.kind == "contents":
                    raise ExportError(f"{expr}, which depends on what a tensor holds, has no form in a file") from None
                path = self._path(source)
                if path is not None:
                    self.fix(path, guard.location)
            return
        if depends(expression):
            self.conditions.append(Condition(expression, outcome))
            text = text_of(expression)
            self.assumptions.append(Assumption(text if outcome else f"not {text}", guard.location, True))
        for source in expr.sources():
            if self._path(source) is None and source.kind != "contents":
                self._note_found(source, self.call.value_at(source), guard.location)

    def _same(self, guard: Guard) -> None:
        one, two = self._path(guard.source), self._path(guard.value)
        if one is not None and two is not None:
            self.more.append(Check("same", one, two))
            self.assumptions.append(Assumption(f"{one} is {two}", guard.location, True))

    def _state(self, guard: Guard) -> None:
        name, value = guard.value
        name = AUTOCAST if name == _ANY_AUTOCAST else name
        checked = name in SETTINGS and name != GRAD_MODE
        if checked:
            self.settings[name] = value
        if name != GRAD_MODE and not (name in _USUAL and _USUAL[name] == value):
            self.assumptions.append(Assumption(f"{name} == {value!r}", guard.location, checked))

    def note_gradients(self, state: dict[str, torch.Tensor]) -> None:
        """The program takes gradients itself: of whatever needs them among its arguments and in its state."""
        self._note_autograd(None)
        for name, tensor in state.items():
            self._note_needs("state_requires_grad", name, tensor)

    def _note_autograd(self, source: Source | None) -> None:
        """The program asked whether the tensor at a source needs gradients; None: whether anything does."""
        if source is None:
            if GRAD_MODE not in self.settings:
                self.settings[GRAD_MODE] = torch.is_grad_enabled()
                self.assumptions.append(Assumption(f"{GRAD_MODE} == {torch.is_grad_enabled()}", "", True))
            paths = [path for path, value in self.values.items() if isinstance(value, torch.Tensor)]
        else:
            path = self._path(source)
            paths = [] if path is None else [path]
            tensor = self.call.value_at(source)
            if path is None and id(tensor) in self.names:
                self._note_needs("state_requires_grad", self.names[id(tensor)], tensor)
        for path in paths:
            self._note_needs("requires_grad", path, self.values[path])

    def _note_needs(self, kind: str, path: str, tensor: torch.Tensor) -> None:
        check = Check(kind, path, tensor.requires_grad)
        if check not in self.more:
            self.more.append(check)
            self.assumptions.append(Assumption(f"{path}.requires_grad is {tensor.requires_grad}", "", True))

    def _path(self, source: Source | None) -> str | None:
        path = None if source is None else self.call.argument(source)
        return path if path in self.values else None

    # what was found around the program --------------------------------------------------------------------------

    def note_number(self, source: Source) -> None:
        """A number of the program's own has become a constant of the graph."""
        if source.kind == "plain" and source.base is not None and source.base.kind == "computed":
            for read in source.base.key.sources():
                self.note_number(read)
            return
        self._note_found(source, self.call.value_at(source), "")

    def _note_found(self, source: Source, value: Any, location: str) -> None:
        owner: Source | None = source
        steps: list[str] = []
        while owner is not None and owner.base is not None:
            if owner.key != "__dict__":
                steps.append(f"[{owner.key!r}]" if owner.kind == "item" else f".{owner.key}")
            owner = owner.base
            prefix = self._prefix(owner)
            if prefix is not None:
                path = "".join(reversed(steps)).removeprefix(".")
                where = self._found.setdefault((f"{_plain(path)} == {value!r}", ""), [])
                if prefix not in where:
                    where.append(prefix)
                return
        self._found.setdefault((f"{self.call.described(source, self.names)} == {value!r}", location), [])

    def _prefix(self, source: Source) -> str | None:
        """The name of the module at a path; None where there is none."""
        try:
            return self._prefixes.get(id(self.call.value_at(source)))
        except Unreachable:
            return None


def _plain(path: str) -> str:
    """`['p']`, the entry of an object's dictionary, as the attribute that it is."""
    if path.startswith("['") and path.endswith("']") and path.count("[") == 1:
        return path[2:-2]
    if path.startswith("['"):
        name, _, rest = path[2:].partition("']")
        return name + rest
    return path


def _is_of_numbers(source: Source) -> bool:
    return source.kind == "numbers" or (source.base is not None and _is_of_numbers(source.base))


def _named(root: str, top: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    return [(f"{root}.{name}".strip("."), module) for name, module in top.named_modules()]


def _without_grad(meta: TensorMeta) -> TensorMeta:
    return TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device)


_HANDLERS: dict[str, Callable[[Relied, Guard], None]] = {
    "tensor": Relied._tensor, "type": Relied._type, "equal": Relied._equal, "is": Relied._equal,
    "condition": Relied._condition, "same": Relied._same, "state": Relied._state,
}  # fmt: skip

