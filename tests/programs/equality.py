"""Whether two runs left the same objects: types, values, and which of them are one object or one storage."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import struct
import traceback
import types
from collections.abc import Iterator
from typing import Any

import torch

ATOMS = (int, str, bytes, bool, type(None), complex, torch.dtype, torch.device, range, slice, types.BuiltinFunctionType)
#: Iterators over something that is there already, and iterators over others.
SIMPLE_ITERATORS = (type(iter([])), type(iter(())), type(iter("")), type(iter(range(0))), type(reversed([])))
ITERATORS = (map, filter, zip, enumerate, itertools.chain, itertools.islice, itertools.accumulate)


class Unequal(Exception):
    """Where two runs differ, and how; `what` says it in a few words without a place."""

    def __init__(self, where: str, what: str, text: str) -> None:
        super().__init__(f"{where}: {what} {text}")
        self.what = what


class Equality:
    """Compares objects of two runs. One comparison goes over all that they left, since it pairs objects up."""

    def __init__(self) -> None:
        self.partners: dict[tuple[str, int], int] = {}
        self.kept: list[Any] = []
        self.places: dict[tuple[str, int], str] = {}
        self.path: list[str] = []

    def check(self, left: Any, right: Any, step: str = "") -> None:
        """Raise Unequal if the objects differ."""
        self.path.append(step)
        self._check(left, right)
        self.path.pop()

    def fail(self, what: str, text: str) -> None:
        raise Unequal("".join(self.path), what, text)

    def expect(self, what: str, left: Any, right: Any) -> None:
        if left != right:
            self.fail(what, f"{left!r} and {right!r}")

    def _check(self, left: Any, right: Any) -> None:
        names = name_of(type(left)), name_of(type(right))
        if names[0] != names[1]:
            self.fail(f"types {names[0]} and {names[1]}", "")
        if left is right and isinstance(left, (type, types.FunctionType, types.ModuleType)):
            return None
        if isinstance(left, ATOMS):
            return self.expect("values", left, right)
        if isinstance(left, float):
            return self.expect("values", struct.pack("d", left), struct.pack("d", right))
        if not is_plain(left) and self._paired("object", left, right):
            return None
        if isinstance(left, torch.Tensor):
            return self._tensor(left, right)
        if isinstance(left, type):
            return self._class(left, right)
        for kinds, compare in COMPARISONS:
            if isinstance(left, kinds):
                compare(self, left, right)
                break
        return self._attributes(left, right)

    def _paired(self, kind: str, left: Any, right: Any, keys: tuple[int, int] | None = None) -> bool:
        """Pair the objects; True if they were a pair already. One that has another partner is a difference."""
        one, other = keys or (id(left), id(right))
        mine, theirs = (f"left {kind}", one), (f"right {kind}", other)
        before = self.partners.get(mine), self.partners.get(theirs)
        if before == (other, one):
            return True
        if before != (None, None):
            places = [self.places.get(side, "nowhere else") for side in (mine, theirs)]
            self.fail("another identity:", f"the {kind} is also at {places[0]} in eager, and at {places[1]} compiled")
        self.partners[mine], self.partners[theirs] = other, one
        self.places[mine] = self.places[theirs] = "".join(self.path)
        self.kept += [left, right]
        return False

    def _tensor(self, left: torch.Tensor, right: torch.Tensor) -> None:
        for what in ("dtype", "shape", "requires_grad", "is_leaf", "device"):
            self.expect(what, getattr(left, what), getattr(right, what))
        self.expect("strides", left.stride(), right.stride())
        self.expect("storage offset", left.storage_offset(), right.storage_offset())
        if not same_bits(left.detach(), right.detach()):
            self.fail("values", f"{left.detach().tolist()} and {right.detach().tolist()}")
        storages = left.untyped_storage(), right.untyped_storage()
        if left.numel():
            self._paired("storage", *storages, (storages[0].data_ptr(), storages[1].data_ptr()))
        if left.is_leaf and (left.grad is not None or right.grad is not None):
            self.check(left.grad, right.grad, ".grad")

    def sequence(self, left: Any, right: Any) -> None:
        self.expect("lengths", len(left), len(right))
        for k, (a, b) in enumerate(zip(left, right, strict=True)):
            self.check(a, b, f"[{k}]")
        if isinstance(left, collections.deque):
            self.expect("maxlen", left.maxlen, right.maxlen)

    def mapping(self, left: Any, right: Any) -> None:
        self.check(list(left), list(right), ".keys")
        for key, other in zip(list(left), list(right), strict=True):
            self.check(left[key], right[other], f"[{key!r}]")
        if isinstance(left, collections.defaultdict):
            self.check(left.default_factory, right.default_factory, ".default_factory")

    def unordered(self, left: Any, right: Any) -> None:
        self.expect("elements", sorted(left, key=repr), sorted(right, key=repr))

    def function(self, left: Any, right: Any) -> None:
        for what in ("co_qualname", "co_firstlineno"):
            self.expect(what, getattr(left.__code__, what), getattr(right.__code__, what))
        self.expect("name", left.__qualname__, right.__qualname__)
        self.check(left.__defaults__, right.__defaults__, ".__defaults__")
        self.check(left.__kwdefaults__, right.__kwdefaults__, ".__kwdefaults__")
        for k, (a, b) in enumerate(zip(left.__closure__ or (), right.__closure__ or (), strict=True)):
            self.check(a, b, f".{left.__code__.co_freevars[k]}")

    def cell(self, left: Any, right: Any) -> None:
        self.check(contents(left), contents(right), ".cell_contents")

    def method(self, left: Any, right: Any) -> None:
        self.check(left.__func__, right.__func__, ".__func__")
        self.check(left.__self__, right.__self__, ".__self__")

    def partial(self, left: Any, right: Any) -> None:
        for what in ("func", "args", "keywords"):
            self.check(getattr(left, what), getattr(right, what), f".{what}")

    def generator(self, left: Any, right: Any) -> None:
        self.expect("generator", left.__qualname__, right.__qualname__)
        self.expect("finished", left.gi_frame is None, right.gi_frame is None)
        if left.gi_frame is not None:
            self.expect("line", left.gi_frame.f_lineno, right.gi_frame.f_lineno)
            self.check(dict(left.gi_frame.f_locals), dict(right.gi_frame.f_locals), ".locals")

    def simple_iterator(self, left: Any, right: Any) -> None:
        self.check(list(copy.copy(left)), list(copy.copy(right)), ".rest")
        if isinstance(left, type(iter([]))):  # one that is not at its end goes on when the list grows
            self.expect("ended", len(left.__reduce__()) == 2, len(right.__reduce__()) == 2)

    def iterator(self, left: Any, right: Any) -> None:
        reduced = left.__reduce__(), right.__reduce__()
        self.sequence(reduced[0][1:], reduced[1][1:])

    def error(self, left: BaseException, right: BaseException) -> None:
        self.expect("text", str(left), str(right))
        self.check(left.args, right.args, ".args")
        self.check(left.__cause__, right.__cause__, ".__cause__")
        self.check(left.__context__, right.__context__, ".__context__")
        self.expect("suppressed context", left.__suppress_context__, right.__suppress_context__)

    def _class(self, left: Any, right: Any) -> None:
        skipped = ("__dict__", "__weakref__", "__doc__", "__module__")
        mine, theirs = ({k: v for k, v in vars(c).items() if k not in skipped} for c in (left, right))
        self.expect("class attributes", sorted(mine), sorted(theirs))
        for name in mine:
            if not isinstance(mine[name], DESCRIPTORS):
                self.check(mine[name], theirs[name], f".{name}")

    def _attributes(self, left: Any, right: Any) -> None:
        """Instance dictionaries and slots."""
        mine, theirs = getattr(left, "__dict__", {}), getattr(right, "__dict__", {})
        self.expect("attributes", list(mine), list(theirs))
        for name in mine:
            if name != "__wrapped__":
                self.check(mine[name], theirs[name], f".{name}")
        for cls in type(left).__mro__:
            for name in vars(cls).get("__slots__", ()):
                if hasattr(left, name) or hasattr(right, name):
                    self.check(getattr(left, name, "unset"), getattr(right, name, "unset"), f".{name}")


DESCRIPTORS = (
    types.FunctionType, property, staticmethod, classmethod, types.MemberDescriptorType, types.GetSetDescriptorType,
)  # fmt: skip
COMPARISONS: list[tuple[Any, Any]] = [
    ((list, tuple, collections.deque), Equality.sequence),
    (dict, Equality.mapping),
    ((set, frozenset), Equality.unordered),
    (types.FunctionType, Equality.function),
    (types.CellType, Equality.cell),
    (types.MethodType, Equality.method),
    (functools.partial, Equality.partial),
    (types.GeneratorType, Equality.generator),
    (SIMPLE_ITERATORS, Equality.simple_iterator),
    (ITERATORS, Equality.iterator),
    (BaseException, Equality.error),
]


def is_plain(value: Any) -> bool:
    """A constant tuple: Python itself may make it once or often, and nobody looks at its identity."""
    if type(value) not in (tuple, frozenset, torch.Size):
        return False
    return all(isinstance(v, (*ATOMS, float)) or is_plain(v) for v in value)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal values, where NaN equals NaN and 0.0 is not -0.0."""
    if left.dtype.is_floating_point:
        same = (left == right) & (left.signbit() == right.signbit()) | left.isnan() & right.isnan()
        return bool(same.all())
    return torch.equal(left, right)


def name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "an empty cell"


def user_lines(error: BaseException, filename: str) -> list[tuple[str, int | None]]:
    """The user's part of a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(frame.name, frame.lineno) for frame in frames if frame.filename == filename]


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Tensors in a result of lists, tuples, dicts and plain objects."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(tensors_in(v, seen) for v in value.values())
    elif isinstance(value, (list, tuple, collections.deque)):
        yield from itertools.chain.from_iterable(tensors_in(v, seen) for v in value)
    elif hasattr(value, "__dict__") and not callable(value):
        yield from tensors_in(vars(value), seen)
