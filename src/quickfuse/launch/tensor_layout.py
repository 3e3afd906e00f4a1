"""Where PyTorch's tensors keep what guards ask for: found out on real tensors, None where something is not as expected.

A Python tensor object has a pointer to a C++ object (`at::TensorImpl`), which has sizes, strides, type, device and flags,
and pointers to its storage (which has the address of the data), to what autograd knows of it (which has its gradient), to
its version, and back to the Python object. Every change of what a guard asks for is a change of one of these words. This
module makes tensors, changes one thing at a time, and looks which word of 64 bits changes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .bulk_reads import handle_offset
from .tensor_check import lazy_bits
from .versions import version_place

#: Sizes and strides of more dimensions stand elsewhere.
MOST_DIMENSIONS = 5

#: All pointers are among as many words of the C++ object.
FIRST_WORDS = 8

_TENSOR_WORDS = 24
_STORAGE_WORDS = 10
_AUTOGRAD_WORDS = 24
#: The lowest bits of the pointer to the Python object say who owns it.
OBJECT_MASK = ~7
_LOWEST_ADDRESS = 1 << 16
#: What lies in memory after an object may look like a part of it by chance.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Places are numbers of words. Words `first` to `last` of a tensor's C++ object tell of all its properties.

    `handle`: the byte offset of the pointer to the C++ object in a Python tensor object. `storage`, `autograd`, `version`
    and `object`: pointers in the C++ object; `sizes` and `strides` are where those of 5 dimensions begin. After the
    pointer to the storage, `data` is the address, of the words after which two tell who owns the memory, and `storage_flag`
    says whether it may be written to, by some bits. After the pointer for autograd, `grad` points to the gradient,
    `function` to what made the tensor, and `flags` has a bit that says whether it needs gradients. `counter`: the byte
    offset of a version after its pointer. `types`: the word with type and device, whose highest byte may be anything.
    """

    handle: int
    first: int
    last: int
    storage: int
    autograd: int
    version: int
    object: int
    sizes: int
    strides: int
    data: int
    storage_flag: int
    storage_bits: int
    grad: int
    function: int
    flags: int
    counter: int
    #: Whether the word before that for the Python object is its interpreter, the same in all tensors that have one.
    interpreter: bool
    types: int

    def unused(self, ndim: int) -> list[int]:
        """The words for sizes and strides that a tensor of fewer dimensions leaves as they are."""
        rest = range(ndim, MOST_DIMENSIONS)
        return [self.sizes + k for k in rest] + [self.strides + k for k in rest]


@functools.cache
def tensor_layout() -> TensorLayout | None:
    """The layout of this installation's tensors."""
    with torch.inference_mode(False), torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
        for _ in range(_TRIES):
            try:
                return _found()
            except (_NotFoundError, RuntimeError, AttributeError, TypeError):  # PyTorch's refusals come as any of these
                continue
    return None


class _NotFoundError(Exception):
    """Something does not stand where it was looked for."""


def _found() -> TensorLayout:
    handle, version, lazy = handle_offset(), version_place(), lazy_bits()
    if handle is None or version is None or lazy is None:
        raise _NotFoundError
    storage = _one(_places_of(lambda t: t.untyped_storage()._cdata))
    this = _one(_places_of(id, mask=OBJECT_MASK))
    sizes = _run_of(lambda t: [*t.shape])
    strides = _run_of(lambda t: [*t.stride()])
    autograd = _autograd_pointer()
    grad, function, flags = _autograd_words(autograd)
    data, storage_flag, storage_bits = _storage_words()
    first, last = storage, lazy[0] // 8
    layout = TensorLayout(
        handle, first, last, storage, autograd, version[0] // 8, this, sizes, strides, data, storage_flag, storage_bits,
        grad, function, flags, version[1], _is_interpreter(this - 1), _types(range(strides, last + 1)),
    )  # fmt: skip
    _try_changes(layout)
    pointers = max(layout.autograd, layout.version, layout.object)
    if handle != 16 or not pointers < first + FIRST_WORDS <= last + 1 - FIRST_WORDS:
        raise _NotFoundError
    return layout


def _is_interpreter(place: int) -> bool:
    found = {words_of(tensor)[place] for tensor in (*_probes(), torch.zeros(3, requires_grad=True) * 2)}
    return len(found) == 1 and min(found) > _LOWEST_ADDRESS


def _types(places: range) -> int:
    """The word in which tensors of different types differ. Flags come after these, in fewer bytes than are left of it: the
    highest one is never written."""
    pairs = [(torch.zeros(3), torch.zeros(3, dtype=torch.int32)), (torch.zeros(2, 2), torch.zeros(2, 2).bool())]
    words = [(words_of(one), words_of(other)) for one, other in pairs]
    return _one({k for k in places if all((one[k] ^ other[k]) << 8 & (1 << 64) - 1 for one, other in words)})


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


def words_of(tensor: torch.Tensor) -> list[int]:
    """The words of a tensor's C++ object."""
    return _words(tensor._cdata, _TENSOR_WORDS)


def _one(places: Iterable[int]) -> int:
    found = [*places]
    if len(found) != 1:
        raise _NotFoundError
    return found[0]


def _probes() -> list[torch.Tensor]:
    return [
        torch.zeros(3, 5),
        torch.ones(7, dtype=torch.float64)[2:],
        torch.nn.Parameter(torch.zeros(2, 2)),
        torch.zeros(()),
    ]


def _places_of(value: Callable[[torch.Tensor], int], mask: int = -1) -> set[int]:
    """The words that are `value(tensor)` in all tensors."""
    found = set(range(_TENSOR_WORDS))
    for tensor in _probes():
        words, wanted = words_of(tensor), value(tensor)
        found &= {k for k, word in enumerate(words) if word & mask == wanted}
    return found


def _run_of(values: Callable[[torch.Tensor], list[int]]) -> int:
    """Where the sizes or strides of each dimension begin."""
    found = set(range(_TENSOR_WORDS - MOST_DIMENSIONS))
    for ndim in range(1, MOST_DIMENSIONS + 1):
        tensor = torch.empty_strided([11 + k for k in range(ndim)], [3 * (7 - k) for k in range(ndim)])
        words, wanted = words_of(tensor), values(tensor)
        found &= {k for k in found if words[k : k + ndim] == wanted}
    return _one(found)


def _autograd_pointer() -> int:
    """The word that is null in a tensor without gradients, and points somewhere in a leaf."""
    plain = [words_of(torch.zeros(3)) for _ in range(6)]
    leaves = [torch.zeros(3, requires_grad=True) for _ in range(6)]
    found = [words_of(leaf) for leaf in leaves]
    pointers = [
        k for k in range(_TENSOR_WORDS)
        if all(words[k] == 0 for words in plain) and all(words[k] > _LOWEST_ADDRESS for words in found)
        and len({words[k] for words in found}) == len(found)
    ]  # fmt: skip
    return _one(pointers)


def _autograd_words(pointer: int) -> tuple[int, int, int]:
    """Where the gradient is, the function that made the tensor, and the flag of needing gradients."""

    def words(tensor: torch.Tensor) -> list[int]:
        return _words(words_of(tensor)[pointer], _AUTOGRAD_WORDS)

    leaf, other = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    gradients = [torch.ones(3), torch.ones(3)]
    leaf.grad, other.grad = gradients
    places = set(range(_AUTOGRAD_WORDS))
    for tensor, gradient in zip((leaf, other), gradients, strict=True):
        places &= {k for k, word in enumerate(words(tensor)) if word == gradient._cdata}
    grad = _one(places)
    leaf.grad = None
    if words(leaf)[grad] != words(torch.zeros(3, requires_grad=True))[grad]:  # an object that stands for no tensor
        raise _NotFoundError
    functions = set(range(grad, _AUTOGRAD_WORDS))
    for _ in range(3):
        inner = torch.zeros(3, requires_grad=True) * 2
        made = words(inner)
        detached = words(inner.detach_())
        functions &= {k for k in functions if made[k] > _LOWEST_ADDRESS and detached[k] == 0 and words(leaf)[k] == 0}
    function = min(functions, default=0)
    if functions not in ({function}, {function, function + 1}):  # a pointer, in some versions with one for its owners
        raise _NotFoundError
    flags = set(range(grad, _AUTOGRAD_WORDS))
    for tensor in (leaf, other):
        needs = words(tensor)
        not_any_more = words(tensor.requires_grad_(False))
        again = words(tensor.requires_grad_(True))
        flags &= {k for k in flags if needs[k] == again[k] and (needs[k] ^ not_any_more[k]).bit_count() == 1}
    return grad, function, _one(flags)


def _storage_words() -> tuple[int, int, int]:
    """Where a storage has its address, before two words that tell if others share it, and what tells if it is protected: a
    word and bits of it."""

    def words(tensor: torch.Tensor) -> list[int]:
        return _words(tensor.untyped_storage()._cdata, _STORAGE_WORDS)

    places = set(range(_STORAGE_WORDS))
    buffers = [bytearray(64), bytearray(64)]
    tensors = [torch.zeros(4), torch.zeros(9)[4:], *(torch.frombuffer(b, dtype=torch.float32) for b in buffers)]
    for tensor in tensors:
        places &= {k for k, word in enumerate(words(tensor)) if word == tensor.untyped_storage().data_ptr()}
    data = _one(places)
    lazily = torch.zeros(4)
    before = words(lazily)
    copy = torch._lazy_clone(lazily)
    after = words(lazily)
    shared = [k for k in (data + 1, data + 2) if before[k] != after[k]]
    del copy
    protected = torch.zeros(4)
    before = words(protected)
    torch._C._set_throw_on_mutable_data_ptr(protected)
    flags = {k: before[k] ^ words(protected)[k] for k in range(data, _STORAGE_WORDS) if before[k] != words(protected)[k]}
    if not shared:
        raise _NotFoundError
    return data, _one(flags), flags[_one(flags)]


def _try_changes(layout: TensorLayout) -> None:
    """Whatever is changed of a tensor is seen in the words that are looked at."""

    def make() -> torch.Tensor:
        return torch.empty(200).resize_((2, 3, 4))

    def set_data(value: torch.Tensor) -> Callable[[torch.Tensor], Any]:
        return lambda tensor: setattr(tensor, "data", value)

    base = torch.zeros(200)
    changes: list[Callable[[torch.Tensor], Any]] = [
        lambda t: t.as_strided_((2, 3, 5), (12, 4, 1)), lambda t: t.as_strided_((2, 2, 4), (12, 4, 1)),
        lambda t: t.as_strided_((1, 3, 4), (12, 4, 1)), lambda t: t.as_strided_((2, 3, 4), (12, 4, 2)),
        lambda t: t.as_strided_((2, 3, 4), (12, 5, 1)), lambda t: t.as_strided_((2, 3, 4), (13, 4, 1)),
        lambda t: t.as_strided_((2, 3, 4), (12, 4, 1), 1), lambda t: t.as_strided_((2, 3), (12, 4)),
        lambda t: t.as_strided_((2, 3, 4, 1), (12, 4, 1, 1)), lambda t: t.transpose_(0, 1), lambda t: t.resize_(5),
        set_data(base.as_strided((2, 3, 4), (12, 4, 1))), lambda t: setattr(t, "data", t.data.view(torch.int32)),
        set_data(torch.zeros(2, 3, 4, dtype=torch.float64)), lambda t: t.requires_grad_(), lambda t: t.set_(base.clone()),
        lambda t: t.squeeze_().unsqueeze_(0), lambda t: torch.utils.swap_tensors(t, torch.zeros(2)),
    ]  # fmt: skip
    for number, change in enumerate(changes):
        tensor = make()
        place = tensor._cdata + 8 * layout.first
        count = layout.last + 1 - layout.first
        before = [tensor._cdata, *_words(place, count)]
        twice = [tensor._cdata, *_words(place, count)]
        change(tensor)
        if before != twice or before == [tensor._cdata, *_words(place, count)]:
            raise _NotFoundError(number)
    numbers = torch.zeros(3, dtype=torch.cfloat)
    pairs = [
        (torch.zeros(3), torch.zeros(3, device="meta")),
        (numbers, numbers.conj()),
        (torch.zeros(3), torch._neg_view(torch.zeros(3))),
    ]
    for plain, other in pairs:
        excluded = {layout.storage, layout.version, layout.object, *layout.unused(1)}
        differs = [
            k for k, (a, b) in enumerate(zip(words_of(plain), words_of(other), strict=True))
            if layout.first <= k <= layout.last and k not in excluded and a != b
        ]  # fmt: skip
        if not differs:
            raise _NotFoundError
    inside = {layout.storage, layout.autograd, layout.version, layout.object, layout.sizes, layout.strides}
    if not all(layout.first <= k <= layout.last for k in inside):
        raise _NotFoundError
