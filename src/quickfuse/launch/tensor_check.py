"""Checking many tensors at once: type, dtype, device, shape, strides; and fetching their addresses.

One native function, compiled by LLVM, walks a Python list of tensors: about 20 ns a tensor, where reading the same
attributes in Python takes 400 ns. It uses PyTorch's C interface (`aoti_torch_get_sizes` and its siblings, whose ABI is
stable), the C++ method behind `requires_grad`, and three facts about the layout of objects, which are verified on real
tensors at start-up. Where one does not hold, `PythonTensorCheck` does the same work.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..ir.modes import outer_tracer
from ..ir.tensor_checks import holds_its_elements
from ..ir.values import TensorMeta
from . import builtin, cpu
from .bulk_reads import (
    LIST_ITEMS,
    TENSOR_POINTERS,
    TENSOR_TYPES,
    TYPE,
    handle_offset,
    list_layout_holds,
    prefetch_ahead,
)

UNCHANGED, MOVED, MISMATCH = 0, 1, -1

#: Words of a tensor's record before its sizes and strides.
_HEADER = 6
_ANY = -1

_NAME = "quickfuse_check_tensors"

#: `c10::TensorImpl::requires_grad() const` and `c10::impl::tls_is_dispatch_key_included(c10::DispatchKey)`, in PyTorch's
#: C++ core library.
_REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
_KEY_INCLUDED = "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE"

#: What a thread's dispatcher goes through while `torch.jit.trace` records, and inside of the transforms of `torch.func`:
#: tensors there look like others from here. See `ir.modes.outer_tracer`.
TRACING_KEYS = ("Tracer", "FuncTorchDynamicLayerFrontMode")

_GETTERS = ("get_data_ptr", "get_sizes", "get_strides", "get_dim", "get_dtype", "get_device_type", "get_device_index")


class PythonTensorCheck:
    """Holds what is expected of `n` tensors. `addresses` are those of the last successful check.

    `requires_grad` says of each whether it takes part in autograd, None where that does not matter. Where `alone` is set,
    nothing fits while something else records the operators that run in this thread.

    `scan` takes a list of tensors and gives `UNCHANGED`, `MOVED` (right, but an address differs: `addresses` is up to
    date) or `MISMATCH`. Until whoever makes use of the addresses sets `unplaced[0]` to 0, tensors have `MOVED`: an
    exception, also one of a signal handler, may come in between.
    """

    def __init__(
        self, expected: Sequence[tuple[type, TensorMeta]], requires_grad: Sequence[bool | None] = (), alone: bool = False
    ) -> None:
        self.expected = list(expected)
        self._alone = alone
        self._requires_grad = list(requires_grad) or [None] * len(self.expected)
        self.addresses = np.zeros(len(self.expected), dtype=np.int64)
        self.unplaced = [0]
        self._last: list[tuple[int, int]] = [(0, 0)] * len(self.expected)

    def scan(self, tensors: list[Any]) -> int:
        state = self.unplaced[0]
        if self._alone and outer_tracer() is not None:
            return MISMATCH
        for k, (tensor, (cls, meta)) in enumerate(zip(tensors, self.expected, strict=True)):
            wanted = self._requires_grad[k]
            if not matches(tensor, cls, meta) or (wanted is not None and tensor.requires_grad is not wanted):
                return MISMATCH
            now = (id(tensor), tensor.data_ptr())
            if now != self._last[k]:
                self.unplaced[0] = MOVED
                self.addresses[k] = now[1]
                self._last[k] = now
                state = MOVED
        return state


def matches(tensor: Any, cls: type, meta: TensorMeta) -> bool:
    """Whether an object is a plain tensor with this metadata (`requires_grad` is not compared)."""
    return (
        type(tensor) is cls
        and tensor.dtype is meta.dtype
        and tensor.shape == meta.shape
        and tensor.stride() == meta.stride
        and tensor.device == meta.device
        and holds_its_elements(tensor)
    )


class NativeTensorCheck:
    """The same as `PythonTensorCheck`, in native code."""

    def __init__(
        self, expected: Sequence[tuple[type, TensorMeta]], requires_grad: Sequence[bool | None] = (), alone: bool = False
    ) -> None:
        self.expected = list(expected)
        count = len(self.expected)
        self.addresses = np.zeros(count, dtype=np.int64)
        self._objects = np.zeros(count, dtype=np.int64)
        records: list[int] = []
        offsets = []
        for (cls, meta), grad in zip(self.expected, requires_grad or [None] * count, strict=True):
            offsets.append(len(records))
            index = meta.device.index if meta.device.index is not None else -1
            records += [id(cls), _dtype_code(meta.dtype), _device_type_code(meta.device), index, meta.ndim]
            records.append(_ANY if grad is None else int(grad))
            records += [*meta.shape, *meta.stride]
        self._records = np.array(records or [0], dtype=np.int64)
        self._offsets = np.array(offsets or [0], dtype=np.int64)
        self.unplaced = (ctypes.c_int64 * 1)()
        self._block = (ctypes.c_int64 * 7)(
            count, self._records.ctypes.data, self._offsets.ctypes.data, self._objects.ctypes.data,
            self.addresses.ctypes.data, alone, ctypes.addressof(self.unplaced),
        )  # fmt: skip
        address = _native_check()
        assert address is not None
        self.scan = builtin.one_argument(_NAME, address, ctypes.addressof(self._block))


def tensor_check(
    expected: Sequence[tuple[type, TensorMeta]], requires_grad: Sequence[bool | None] = (), alone: bool = False
) -> NativeTensorCheck | PythonTensorCheck:
    """A check of tensors against `expected` (class, metadata) pairs, native where this installation allows it."""
    kind = NativeTensorCheck if _native_check() is not None else PythonTensorCheck
    return kind(expected, requires_grad, alone)


def _dtype_code(dtype: torch.dtype) -> int:
    return int(getattr(_torch_library(), f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}")())


def _device_type_code(device: torch.device) -> int:
    return int(getattr(_torch_library(), f"aoti_torch_device_type_{device.type}")())


@functools.cache
def _torch_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


@functools.cache
def _native_check() -> int | None:
    offset = handle_offset()
    if offset is None or not list_layout_holds() or not builtin.layout_holds():
        return None
    library = _torch_library()
    addresses = {}
    for getter in _GETTERS:
        function = getattr(library, f"aoti_torch_{getter}", None)
        if function is None:
            return None
        addresses[getter] = ctypes.cast(function, ctypes.c_void_p).value or 0
    requires_grad, included = _requires_grad_method(), key_included_function()
    if requires_grad is None or included is None:
        return None
    addresses |= {"requires_grad": requires_grad, "included": included}
    lazy = lazy_bits()
    if lazy is None:
        return None
    inner = f"{_NAME}_block"
    code = _check_ir(inner, offset, addresses, lazy) + builtin.of_one_argument(_NAME, inner, "number")
    return cpu.load(code, [_NAME])[_NAME]


def _requires_grad_method() -> int | None:
    """The address of the C++ method that tells whether a tensor requires gradients, None if it is not what we think."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        function = getattr(library, _REQUIRES_GRAD, None)
    except OSError:
        return None
    if function is None:
        return None
    function.restype, function.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    leaf, plain = torch.zeros(1, requires_grad=True), torch.zeros(1)
    with torch.enable_grad():
        inner = leaf * 2
    if [function(t._cdata) for t in (leaf, plain, inner)] != [True, False, True]:
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def key_included_function() -> int | None:
    """The address of the C++ function that tells whether the dispatcher goes through a key; None if it does not do that."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        function = getattr(library, _KEY_INCLUDED, None)
    except OSError:
        return None
    if function is None:
        return None
    function.restype, function.argtypes = ctypes.c_bool, [ctypes.c_uint16]
    keys = [torch._C._dispatch_key_parse(name) for name in ("BackendSelect", *TRACING_KEYS)]
    if [function(int(key)) for key in keys] != [torch._C._dispatch_tls_is_dispatch_key_included(key) for key in keys]:
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


#: How much of a tensor's C++ object is searched for its dispatch keys: they come after its sizes. And in how many tensors.
_WORDS, _PROBES = 24, 6


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype)


def lazy_bits() -> tuple[int, int] | None:
    """(offset, mask) of the word of a tensor's C++ object that says that its values are yet to be negated or conjugated,
    zeros without memory, or sparse, so that it has no address to ask for; None if there is no such word."""
    tensors = [torch.zeros(3, dtype=torch.complex64) for _ in range(_PROBES)]
    masks = []
    for lazy in (torch._neg_view, torch.conj, _without_memory):
        views = [(plain.view(3), lazy(plain)) for plain in tensors]
        words = [[(ctypes.c_uint64 * _WORDS).from_address(t._cdata) for t in pair] for pair in views]
        # A flag differs in the same bit in each pair; pointers differ in one bit only by chance.
        bits = [{a[k] ^ b[k] for a, b in words} for k in range(_WORDS)]
        masks.append({k: found.pop() for k, found in enumerate(bits) if len(found) == 1 and max(found).bit_count() == 1})
    places = [k for k in masks[0] if all(k in mask for mask in masks) and len({mask[k] for mask in masks}) == len(masks)]
    if len(places) != 1:
        return None
    (word,) = places
    plain, sparse = tensors[0], torch.zeros(2).to_sparse()
    keys = [(ctypes.c_uint64 * _WORDS).from_address(t._cdata)[word] for t in (plain, sparse)]
    mask = sum(found[word] for found in masks) | (keys[1] & ~keys[0])
    for tensor, expected in ((torch.zeros(2), False), (torch._neg_view(torch.zeros(2)), True), (plain.imag, False),
                             (plain.conj().imag, True), (torch.zeros(2, requires_grad=True), False),
                             (_without_memory(torch.zeros(2)), True), (sparse, True)):  # fmt: skip
        found = (ctypes.c_uint64 * _WORDS).from_address(tensor._cdata)[word] & mask
        if bool(found) is not expected:
            return None
    return word * 8, mask


def tracing_ir(included: int, leave: str) -> str:
    """LLVM IR that goes to the block `leave` where the dispatcher goes through a key of those that record operators;
    `included` is the address of the function that tells. What comes after it is in a block of its own."""
    keys = [int(torch._C._dispatch_key_parse(key)) for key in TRACING_KEYS]
    return "\n".join(
        f"  %included.{k} = call i8 inttoptr (i64 {included} to ptr)(i16 {key})\n"
        f"  %recorded.{k} = trunc i8 %included.{k} to i1\n"
        f"  br i1 %recorded.{k}, label %{leave}, label %unrecorded.{k}\n"
        f"unrecorded.{k}:"
        for k, key in enumerate(keys)
    )


def _check_ir(name: str, offset: int, getters: dict[str, int], lazy: tuple[int, int]) -> str:
    """LLVM IR of the check of a list. `block`: how many tensors, records, record offsets, last objects, last addresses,
    whether nothing may record operators meanwhile, and where it says that addresses have not been made use of."""

    def get(getter: str, result: str, kind: str) -> str:
        return (
            f"  %call.{result} = call i32 inttoptr (i64 {getters[getter]} to ptr)(ptr %handle, ptr %out)\n"
            f"  %ok.{result} = icmp eq i32 %call.{result}, 0\n"
            f"  br i1 %ok.{result}, label %got.{result}, label %mismatch\n"
            f"got.{result}:\n"
            f"  %{result} = load {kind}, ptr %out\n"
        )

    def require(label: str, value: str, kind: str, word: int) -> str:
        wide = f"%{value}" if kind == "i64" else f"%{value}.wide"
        extend = "" if kind == "i64" else f"  {wide} = sext {kind} %{value} to i64\n"
        return (
            f"{extend}"
            f"  %want.p.{label} = getelementptr i64, ptr %record, i64 {word}\n"
            f"  %want.{label} = load i64, ptr %want.p.{label}\n"
            f"  %same.{label} = icmp eq i64 {wide}, %want.{label}\n"
            f"  br i1 %same.{label}, label %after.{label}, label %mismatch\n"
            f"after.{label}:\n"
        )

    fields = "\n".join(
        f"  %f{k}.p = getelementptr i64, ptr %block, i64 {k}\n  %f{k} = load i64, ptr %f{k}.p" for k in range(7)
    )
    recorded = tracing_ir(getters["included"], "mismatch")
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define i64 @{name}(ptr %list, i64 %block.i) {{
entry:
  %out = alloca i64
  %block = inttoptr i64 %block.i to ptr
{fields}
  %list.items.p = getelementptr i8, ptr %list, i64 {LIST_ITEMS}
  %items = load ptr, ptr %list.items.p
  %records = inttoptr i64 %f1 to ptr
  %offsets = inttoptr i64 %f2 to ptr
  %objects = inttoptr i64 %f3 to ptr
  %addresses = inttoptr i64 %f4 to ptr
  %unplaced.p = inttoptr i64 %f6 to ptr
  %alone = icmp ne i64 %f5, 0
  br i1 %alone, label %recorded, label %start
recorded:
{recorded}
  br label %start
start:
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %k.next, %next ]
  %done = icmp sge i64 %k, %f0
  br i1 %done, label %exit, label %body
body:
  %object.p = getelementptr i64, ptr %items, i64 %k
  %object = load i64, ptr %object.p
{prefetch_ahead("%f0", TENSOR_TYPES, offset, TENSOR_POINTERS)}
  %offset.p = getelementptr i64, ptr %offsets, i64 %k
  %offset = load i64, ptr %offset.p
  %record = getelementptr i64, ptr %records, i64 %offset
  %type.i = add i64 %object, {TYPE}
  %type.p = inttoptr i64 %type.i to ptr
  %type = load i64, ptr %type.p
{require("type", "type", "i64", 0)}
  %handle.i = add i64 %object, {offset}
  %handle = inttoptr i64 %handle.i to ptr
  %impl = load ptr, ptr %handle
  %keys.p = getelementptr i8, ptr %impl, i64 {lazy[0]}
  %keys = load i64, ptr %keys.p
  %lazy = and i64 %keys, {lazy[1]}
  %not.lazy = icmp eq i64 %lazy, 0
  br i1 %not.lazy, label %values.known, label %mismatch
values.known:
  %want.grad.p = getelementptr i64, ptr %record, i64 5
  %want.grad = load i64, ptr %want.grad.p
  %any.grad = icmp eq i64 %want.grad, {_ANY}
  br i1 %any.grad, label %grad.known, label %grad.check
grad.check:
  %grad.i8 = call i8 inttoptr (i64 {getters["requires_grad"]} to ptr)(ptr %impl)
  %grad = zext i8 %grad.i8 to i64
  %same.grad = icmp eq i64 %grad, %want.grad
  br i1 %same.grad, label %grad.known, label %mismatch
grad.known:
{get("get_data_ptr", "data", "i64")}
  %last.p = getelementptr i64, ptr %addresses, i64 %k
  %last = load i64, ptr %last.p
  %last.object.p = getelementptr i64, ptr %objects, i64 %k
  %last.object = load i64, ptr %last.object.p
  %same.data = icmp eq i64 %last, %data
  %same.object = icmp eq i64 %last.object, %object
  %same.all = and i1 %same.data, %same.object
  br i1 %same.all, label %device.known, label %device.check
device.check:
{get("get_device_type", "device", "i32")}{require("device", "device", "i32", 2)}
{get("get_device_index", "index", "i32")}{require("index", "index", "i32", 3)}
  br label %device.known
device.known:
{get("get_dtype", "dtype", "i32")}{require("dtype", "dtype", "i32", 1)}
{get("get_dim", "dim", "i64")}{require("dim", "dim", "i64", 4)}
{get("get_sizes", "sizes", "ptr")}
{get("get_strides", "strides", "ptr")}
  br label %dims
dims:
  %d = phi i64 [ 0, %got.strides ], [ %d.next, %dim.ok ]
  %dims.done = icmp sge i64 %d, %dim
  br i1 %dims.done, label %address, label %dim.check
dim.check:
  %size.p = getelementptr i64, ptr %sizes, i64 %d
  %size = load i64, ptr %size.p
  %stride.p = getelementptr i64, ptr %strides, i64 %d
  %stride = load i64, ptr %stride.p
  %size.at = add i64 %d, {_HEADER}
  %want.size.p = getelementptr i64, ptr %record, i64 %size.at
  %want.size = load i64, ptr %want.size.p
  %stride.at = add i64 %size.at, %dim
  %want.stride.p = getelementptr i64, ptr %record, i64 %stride.at
  %want.stride = load i64, ptr %want.stride.p
  %same.size = icmp eq i64 %size, %want.size
  %same.stride = icmp eq i64 %stride, %want.stride
  %same.both = and i1 %same.size, %same.stride
  br i1 %same.both, label %dim.ok, label %mismatch
dim.ok:
  %d.next = add i64 %d, 1
  br label %dims
address:
  br i1 %same.all, label %next, label %moved
moved:
  store i64 {MOVED}, ptr %unplaced.p
  store i64 %data, ptr %last.p
  store i64 %object, ptr %last.object.p
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %head
exit:
  %state = load i64, ptr %unplaced.p
  ret i64 %state
mismatch:
  ret i64 -1
}}
"""
