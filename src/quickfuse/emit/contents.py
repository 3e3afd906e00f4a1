"""Guards on the numbers in tensors, which generated code checks after the tensors themselves.

Conditions that are equal but for the tensor that they look at are one statement, and are evaluated once where all those
tensors hold the same number.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from ..ir.guard import Guard
from ..ir.source import Source
from .prologue import Prologue, contents_in

#: The number that a statement about many tensors looks at.
_EACH = "_each0"


class ContentsGuards:
    """Writes the statements. `readers` are the objects that they call: name -> (helper that makes it, its arguments).

    `lines` use `_state` and `_check`; they return `_MISS` where a guard fails.
    """

    def __init__(self, prologue: Prologue, order: list[Source]) -> None:
        self.readers: dict[str, tuple[str, list[Any]]] = {}
        self._prologue = prologue
        self._position = {source: k for k, source in enumerate(order)}
        self._dtypes: dict[Source, torch.dtype] = {}
        self._singles: dict[Source, str] = {}
        self._statements: list[str] = []
        found: list[tuple[Guard, list[Source]]] = []
        apart: list[Guard] = []
        for guard in prologue.guards:
            if guard.kind == "tensor" and guard.source is not None:
                self._dtypes[guard.source] = guard.value[1].dtype
            elif guard.kind == "condition" and (sources := contents_in(guard.value[0])):
                found.append((guard, sources))
            elif guard.kind == "apart":
                apart.append(guard)
        self._write_conditions(found)
        for guard in apart:
            positions = [[self._position[source] for source in sources] for sources in guard.value]
            self._statements.append(f"_fits0 = _fits0 and {self._reader('apart_check', positions)}(_state)")
        self.lines = self._guarded() if self._statements else []

    def _write_conditions(self, found: list[tuple[Guard, list[Source]]]) -> None:
        uses = Counter(source for _, sources in found for source in sources)
        groups: dict[tuple[str, bool, torch.dtype], list[int]] = {}
        for guard, sources in found:
            each = min(sources, key=uses.__getitem__)
            for source in sources:
                if source is not each:
                    self._read_single(source)
            expr, outcome = guard.value
            code = expr.code(lambda source, each=each: _EACH if source is each else self._name(source))
            assert each.base is not None
            group = groups.setdefault((code, outcome, self._dtypes[each.base]), [])
            group.append(self._position[each.base])
        for (code, outcome, _), positions in groups.items():
            reader = self._reader("contents_reader", [positions])
            test = f"[{code} for {_EACH} in {reader}()]"
            self._statements.append(f"_fits0 = _fits0 and {f'all({test})' if outcome else f'not any({test})'}")

    def _name(self, source: Source) -> str:
        return self._singles[source] if source in self._singles else self._prologue.name(source)

    def _read_single(self, source: Source) -> None:
        """A number that conditions on several other tensors look at as well."""
        if source not in self._singles:
            assert source.base is not None
            name = self._singles[source] = f"_number{len(self._singles)}"
            reader = self._reader("contents_reader", [[self._position[source.base]]])
            self._statements.append(f"{name} = {reader}()[0]")

    def _reader(self, helper: str, arguments: list[Any]) -> str:
        name = f"_reader{len(self.readers)}"
        self.readers[name] = (helper, arguments)
        return name

    def _guarded(self) -> list[str]:
        return [
            "_fits0 = True",
            "try:",
            *(f"    {statement}" for statement in self._statements),
            "except (TypeError, ValueError, ArithmeticError) as _error0:",
            "    _let_through(_error0)",
            "    _fits0 = False",
            "if not _fits0: return _MISS",
        ]
