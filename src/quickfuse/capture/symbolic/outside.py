"""What stands for objects that existed before the call, of kinds that capture knows nothing special of; and plain values."""

from __future__ import annotations

import enum
import functools
import re
import sys
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.source import Source
from .raising import refusing


class FromOutside:
    """What stands for an object that existed before the call: `real` is the object, which capture reads and never changes,
    `source` where it was found first. `attributes` are those that the captured code has set, or deleted."""

    __slots__ = ("attributes", "real", "source")

    def __init__(self, real: Any, source: Source) -> None:
        self.real = real
        self.source = source
        self.attributes: dict[str, Any] = {}


class Place(FromOutside):
    """Where an object was found that lies on the stack as it is: a function, class, module or method, which is the same
    object at each call, or (`by_code`) which is known by its code or its owner, so that another one may stand at its source;
    a variable of an enclosing function; or a tuple, method or partial function, in whose place is
    one of stand-ins, its `contents`."""

    __slots__ = ("by_code", "contents")

    def __init__(self, real: Any, source: Source, by_code: bool = False) -> None:
        super().__init__(real, source)
        self.by_code = by_code
        self.contents: Any = None


@dataclass(eq=False, repr=False, slots=True)
class Unread:
    """A variable or stack entry of a suspended frame that nothing read yet: its guards come with the first read."""

    value: Any
    source: Source


_refuse = refusing("native code looks at a {0.real.__class__.__name__}")


class ForeignObject(FromOutside):
    """An object of the user's. It is known by its type alone: whatever else is used of it is read by its path, with a guard.

    Native code sees this in its place. It can put it in a container and take it out again; everything else is refused.
    `by_content`: guards hold all that its class says it is hashed and compared by, see `objects.hashing`.
    """

    __slots__ = ("by_content",)

    def __init__(self, real: Any, source: Source) -> None:
        self.by_content = False
        super().__init__(real, source)

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        """What `__eq__` of a class asks of what it is compared with, as it does for attributes."""
        return type(self.real) if self.by_content else type(self)

    def __getattr__(self, name: str) -> Any:
        if not self.by_content or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.real, name)

    def __eq__(self, other: object) -> Any:
        if self.by_content:
            return self.real == (other.real if isinstance(other, ForeignObject) else other)
        self._check_compared()
        return NotImplemented

    def __hash__(self) -> int:
        if not self.by_content:
            self._check_compared()
        return hash(self.real)

    @property
    def is_hashed_by_identity(self) -> bool:
        kind = type(self.real)
        return kind.__eq__ is object.__eq__ and kind.__hash__ is object.__hash__

    def _check_compared(self) -> None:
        if not self.is_hashed_by_identity:
            raise Unsupported(f"native code compares a {type(self.real).__name__}")

    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __call__ = __index__ = __int__ = __float__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __str__ = __format__ = _refuse

    def __repr__(self) -> str:
        return f"ForeignObject({self.source}: {type(self.real).__name__})"


class ForeignArray(ForeignObject):
    """An array of NumPy's. `tensor` shares its memory, once the program has made such a tensor; `copies` counts the tensors
    that it made with memory of their own."""

    __slots__ = ("copies", "tensor")

    def __init__(self, real: Any, source: Source) -> None:
        super().__init__(real, source)
        self.tensor: Any = None
        self.copies = 0


class ForeignProxy(ForeignObject):
    """A `weakref.proxy`. What it is to answers for it: see `library.weak_references`."""

    __slots__ = ()


class ForeignTensor(ForeignObject):
    """A tensor that has other sizes in each call, of which a guard knows the class alone: it may be handed on. Whatever else
    is done with it ends the graph: see `TensorOfOtherSizes`."""

    __slots__ = ()


class ForeignScalar(FromOutside):
    """A number or text of a class of the user's that derives from int, float, complex, str or bytes, or a NumPy scalar.

    What its class leaves to the builtin one is done with the plain value: `Outside.concrete` gives that, with a guard, and
    `Outside.number` a symbol. `cls` is the builtin class.
    """

    __slots__ = ("cls",)

    def __init__(self, real: Any, cls: type, source: Source) -> None:
        super().__init__(real, source)
        self.cls = cls


_BUILTIN = (int, float, complex, str, bytes)


def scalar_class(value: Any) -> type | None:
    """The builtin class of the number or text that an object holds, None for other objects."""
    found = next((cls for cls in _BUILTIN if issubclass(type(value), cls)), None)
    return numpy_class(value) if found is None else found


def is_numpy(value: Any) -> bool:
    """Whether an object is a NumPy scalar: arithmetic on it gives others."""
    return type(value).__module__ == "numpy" and isinstance(value, sys.modules["numpy"].generic)


def numpy_class(value: Any) -> type | None:
    """The class of Python's number that a NumPy scalar stands for."""
    if not is_numpy(value):
        return None
    numpy: Any = sys.modules["numpy"]
    # More precise; PyTorch drops imaginary parts; a duration has a unit; PyTorch takes a bool for a float in arithmetic.
    if isinstance(value, (numpy.longdouble, numpy.complexfloating, numpy.timedelta64)):
        return None
    kinds = ((numpy.integer, int), (numpy.floating, float))
    return next((cls for kind, cls in kinds if isinstance(value, kind)), None)


#: Immutable types whose instances are plain constants: comparing values tells all there is to know.
PLAIN_TYPES: frozenset[type] = frozenset(
    {
        int, float, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), slice, range,
        torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo,
        torch._C._SDPBackend, re.Pattern, re.Match,
        type(getattr(functools, "Placeholder", None)),  # from Python 3.14 on
    }
)  # fmt: skip
#: Those whose instances are constants, whatever they consist of.
ATOMS = PLAIN_TYPES - {slice}


def is_constant(value: Any) -> bool:
    """Whether a value is fixed when captured: plain, or a tuple or frozenset of constants."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return all(is_constant(v) for v in value)
    if kind is slice:
        return is_constant(value.start) and is_constant(value.stop) and is_constant(value.step)
    return kind in PLAIN_TYPES or issubclass(kind, enum.Enum) or is_numpy(value)
