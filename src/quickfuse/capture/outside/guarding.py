"""The guards of one capture: each fact that capture relied on, once, in the order in which it was read."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

import numpy
import torch

from ...errors import Unsupported
from ...ir.guard import Guard, NumberExpr
from ...ir.source import Source
from ...ir.tensor_checks import first_overlap
from ..inference.tensor_subclasses import is_function_class
from ..symbolic import FromOutside, MappingProxy, ShadowContainer, ShadowDict, TensorProxy

_UNHASHABLE = (slice, set, torch.finfo, torch.iinfo, numpy.timedelta64)


class Guarding:
    """Notes guards. `program` is the `interpreter.Interpreter`, which says where the program is; `volatile` are the sources
    whose values keep changing."""

    def __init__(self, program: Any, volatile: frozenset[str]) -> None:
        self.program = program
        self.volatile = volatile
        self.guards: list[Guard] = []
        self._keep: list[Any] = []
        self._seen: set[Any] = set()
        #: What stands for each object of the user's that was found, by the object's identity.
        self.known: dict[int, FromOutside | TensorProxy] = {}
        self.containers: list[ShadowContainer] = []
        self.dictionaries: list[ShadowDict] = []
        self.views: list[MappingProxy] = []
        #: Objects and tensors that are elements of sets and keys of dictionaries, by identity.
        self.hashed: dict[Source, None] = {}

    def guard(self, kind: str, source: Source | None, value: Any) -> None:
        """Require a fact, once."""
        if kind == "condition":
            known: Any = value[0].code(identity)
        elif kind in ("is", "tensor"):
            known = id(value)
        else:
            known = repr(value) if kind == "state" or type(value) in _UNHASHABLE else value
        key = (kind, source, known)
        if key not in self._seen:
            self._seen.add(key)
            self._keep.append(value)
            self.guards.append(Guard(kind, source, value, self.program.location(), self._library_code()))

    def keeps_changing(self, source: Source) -> bool:
        """Whether the value at a source was another one in many calls."""
        return bool(self.volatile) and str(source) in self.volatile

    def _library_code(self) -> CodeType | None:
        """The function of PyTorch's or the standard library's that is running, if it is one."""
        return self.program.frames[-1].code if self.program.in_library() else None  # type: ignore[no-any-return]

    def require(self, expr: NumberExpr, outcome: bool) -> None:
        """Require that an expression keeps its truth value."""
        self.guard("condition", None, (expr, outcome))

    def require_truth(self, number: Any, hint: Any) -> bool:
        """The truth of a number, which is required to keep it where it comes from outside."""
        if isinstance(number, (Source, NumberExpr)):
            self.require(expression(number), bool(hint))
        return bool(hint)

    def guard_requires_grad(self, tensor: TensorProxy) -> None:
        """Require that a tensor still takes part in autograd, or still does not."""
        if "requires_grad" in tensor.attributes:  # which was guarded before the program changed it
            return
        if tensor.source is not None and not is_function_class(tensor.cls):  # which would notice the question
            self.guard("requires_grad", tensor.source, tensor.meta.requires_grad)

    def guard_unique(self, kind: type) -> None:
        """Require that the objects of one kind stay different objects: the captured code changes some of them, and
        reads each as if it were not one of those."""
        if kind is TensorProxy:
            tensors = [p for p in self.known.values() if type(p) is TensorProxy and p.source is not None]
            any_data = any("data" in tensor.attributes for tensor in tensors)  # which any operator reads
            names = {name for owner, name in self.changed_attributes if type(owner) is TensorProxy}
            asked = [("attr", "__dict__"), *[("attr", name) for name in names]]  # for one that it has, or lacks
            seen = [t for t in tensors if not names.isdisjoint(t.attributes) or any(a in t.source.children for a in asked)]
            self.guard_apart(tensors if any_data else seen)
            return
        elif kind is ShadowDict:
            sources = [s.source for s in self.dictionaries]
        elif any(type(shadow.real) is kind for shadow in self.containers):
            sources = [shadow.source for shadow in self.containers if type(shadow.real) is kind]
        else:
            sources = [s.source for s in self.known.values() if isinstance(s, FromOutside) and type(s.real) is kind]
        if len(sources) > 1:
            self.guard("unique", None, tuple(sources))

    def guard_apart(self, changed: Sequence[TensorProxy], others: Sequence[TensorProxy] = ()) -> None:
        """Require that tensors stay different ones, from each other and from `others`. Where all have memory of their own,
        as most do, it stays so: that costs nothing while each stays where it is."""
        tensors, n = [*changed, *others], len(changed)
        if not changed or len(tensors) < 2:
            return
        sources, found = tuple([t.source for t in tensors]), [t.real for t in tensors]
        if all(tensor is not None for tensor in found) and first_overlap(found, range(n), range(n, len(found))) is None:
            self.guard("apart", None, (sources[:n], sources[n:]))
        else:
            self.guard("unique", None, sources)

    def guard_changed_leaves(self) -> None:
        """Require that tensors which begin or end to require gradients are no other tensors that were read, nor known to
        autograd as views of those: these would change with them."""
        tensors = [p for p in self.known.values() if type(p) is TensorProxy and p.source is not None and p.real is not None]
        changed = [tensor for tensor in tensors if "requires_grad" in tensor.attributes]
        if not changed or len(tensors) < 2:
            return
        others = [tensor for tensor in tensors if "requires_grad" not in tensor.attributes]
        found, n = [tensor.real for tensor in (*changed, *others)], len(changed)
        overlap = first_overlap(found, range(n), range(n, len(found))) or ()
        if any(found[k]._is_view() for k in overlap):
            raise Unsupported("a tensor with views from outside that begins or ends to require gradients")
        self.guard_apart(changed, others)

    def guard_hashed(self) -> None:
        """Require that what was hashed by identity stays different objects."""
        if len(self.hashed) > 1:
            self.guard("unique", None, tuple(self.hashed))


def expression(number: Source | NumberExpr) -> NumberExpr:
    """A number from outside as an expression."""
    return number if isinstance(number, NumberExpr) else NumberExpr("{}", (number,))


def identity(source: Source) -> str:
    """What a source is in the text of an expression that is compared with others: paths may print alike."""
    return str(id(source))
