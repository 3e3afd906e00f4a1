"""Telling autograd that kernels changed tensors in place.

Each tensor has a version, which PyTorch's operators increment when they change it: autograd refuses to run backward
through a value that was changed since it was saved. `torch._C._increment_version` does the same for 50 ns a tensor; the
native function here takes 2 ns, which counts for the thousands of tensors of an optimizer step. It relies on where a
tensor keeps its version, which is found out at start-up on real tensors; where that fails, PyTorch's function serves.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import cpu
from .bulk_reads import LIST_ITEMS, handle_offset, list_layout_holds

#: Words of a tensor's C++ part that are searched for the pointer to its version, and of what that points to.
_TENSOR_WORDS = 16
_VERSION_OFFSETS = (8, 12, 16, 20, 24)

#: Addresses below are no pointers but small numbers.
_LOWEST_ADDRESS = 1 << 16


def change_notes(changes: Mapping[int, int]) -> Callable[[list[Any]], bool]:
    """A function that, given a list of tensors, adds to the versions of those at the positions in `changes`, as often as the
    program changed them.

    It returns whether one of them must not be changed by a kernel: an inference tensor outside of inference mode has no
    version, and the eager operator raises the error.
    """
    native = _native_increment()
    if native is None:
        return functools.partial(_note_in_python, dict(changes))
    pairs = [number for position, times in sorted(changes.items()) for number in (position, times)]
    indices = (ctypes.c_int64 * max(len(pairs), 1))(*pairs)
    count, address = len(changes), ctypes.addressof(indices)

    def note(tensors: list[Any], _keep: Any = indices) -> bool:
        return native(tensors, address, count) != 0 and not torch.is_inference_mode_enabled()

    return note


def take_back(changes: Mapping[int, int], tensors: list[Any]) -> None:
    """Undo what a function of `change_notes` did, where nothing was changed after all. Views share the version of their
    base, and so do tensors that were made without gradients."""
    for position, times in changes.items():
        tensor = tensors[position]
        if times and not tensor.is_inference():
            torch._C._autograd._unsafe_set_version_counter((tensor,), (tensor._version - times,))


def _note_in_python(changes: dict[int, int], tensors: list[Any]) -> bool:
    changed = [tensors[k] for k in changes]
    for round_ in range(max(changes.values(), default=0)):
        torch._C._increment_version([tensors[k] for k, times in changes.items() if times > round_])
    return any(t.is_inference() for t in changed) and not torch.is_inference_mode_enabled()


@functools.cache
def _native_increment() -> Any:
    offset, place = handle_offset(), version_place()
    if offset is None or place is None or not list_layout_holds():
        return None
    name = "quickfuse_increment_versions"
    address = cpu.load(_increment_ir(name, offset, *place), [name])[name]
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.py_object, ctypes.c_int64, ctypes.c_int64)(address)


@functools.cache
def version_place() -> tuple[int, int] | None:
    """(offset of the pointer in a tensor's C++ part, offset of the version in what it points to), None if not found.

    A view shares the version of its base and nothing else but the storage; another tensor has one of its own; and an
    inference tensor has none, where there is a null pointer.
    """
    base, other = torch.zeros(3), torch.zeros(3)
    view = base.view(3)
    with torch.inference_mode():
        inference = torch.zeros(3)
    found = []
    for offset in range(8, 8 * _TENSOR_WORDS, 8):
        pointer, shared, different, none = (
            ctypes.c_int64.from_address(t._cdata + offset).value for t in (base, view, other, inference)
        )
        if pointer == shared != different and pointer > _LOWEST_ADDRESS and none == 0:
            found += [(offset, at) for at in _VERSION_OFFSETS if _counts_changes(base, pointer + at)]
    return found[0] if len(found) == 1 else None


def _counts_changes(tensor: torch.Tensor, address: int) -> bool:
    """Whether the number at an address follows the tensor's version."""
    for _ in range(3):
        if ctypes.c_uint32.from_address(address).value != tensor._version:
            return False
        tensor.add_(1)
    return True


def _increment_ir(name: str, handle_offset: int, pointer_offset: int, version_offset: int) -> str:
    """LLVM IR of `(list, indices, count)`, where each index comes with how much to add. It returns how many of the tensors
    have no version."""
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define i64 @{name}(ptr %list, i64 %indices.i, i64 %count) {{
entry:
  %final = sub i64 %count, 1
  %indices = inttoptr i64 %indices.i to ptr
  %items.p = getelementptr i8, ptr %list, i64 {LIST_ITEMS}
  %items = load ptr, ptr %items.p
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %missing = phi i64 [ 0, %entry ], [ %missing.next, %next ]
  %done = icmp sge i64 %k, %count
  br i1 %done, label %exit, label %body
body:
{_pointer_ahead("far", 16, handle_offset, pointer_offset, dereference=False)}
{_pointer_ahead("near", 8, handle_offset, pointer_offset, dereference=True)}
  %index.p = getelementptr {{ i64, i64 }}, ptr %indices, i64 %k
  %index = load i64, ptr %index.p
  %object.p = getelementptr ptr, ptr %items, i64 %index
  %object = load ptr, ptr %object.p
  %handle.p = getelementptr i8, ptr %object, i64 {handle_offset}
  %handle = load ptr, ptr %handle.p
  %pointer.p = getelementptr i8, ptr %handle, i64 {pointer_offset}
  %pointer = load ptr, ptr %pointer.p
  %none = icmp eq ptr %pointer, null
  br i1 %none, label %next, label %increment
increment:
  %times.p = getelementptr {{ i64, i64 }}, ptr %indices, i64 %k, i32 1
  %times.wide = load i64, ptr %times.p
  %times = trunc i64 %times.wide to i32
  %version.p = getelementptr i8, ptr %pointer, i64 {version_offset}
  %before = atomicrmw add ptr %version.p, i32 %times monotonic
  br label %next
next:
  %one = zext i1 %none to i64
  %missing.next = add i64 %missing, %one
  %k.next = add i64 %k, 1
  br label %head
exit:
  ret i64 %missing
}}
"""


def _pointer_ahead(name: str, distance: int, handle_offset: int, pointer_offset: int, *, dereference: bool) -> str:
    """IR that asks for the memory of the tensor `distance` places ahead: where its pointer to the version stands, or,
    with `dereference`, the version itself. Tensors are scattered, and waiting for memory is most of the time."""
    steps = [
        f"%{name}.k = add i64 %k, {distance}",
        f"%{name}.inside = icmp slt i64 %{name}.k, %final",
        f"%{name}.at = select i1 %{name}.inside, i64 %{name}.k, i64 %final",
        f"%{name}.index.p = getelementptr {{ i64, i64 }}, ptr %indices, i64 %{name}.at",
        f"%{name}.index = load i64, ptr %{name}.index.p",
        f"%{name}.object.p = getelementptr ptr, ptr %items, i64 %{name}.index",
        f"%{name}.object = load ptr, ptr %{name}.object.p",
        f"%{name}.handle.p = getelementptr i8, ptr %{name}.object, i64 {handle_offset}",
        f"%{name}.handle = load ptr, ptr %{name}.handle.p",
        f"%{name}.pointer.p = getelementptr i8, ptr %{name}.handle, i64 {pointer_offset}",
    ]
    target = f"%{name}.pointer.p"
    if dereference:
        steps.append(f"%{name}.pointer = load ptr, ptr {target}")
        target = f"%{name}.pointer"
    steps.append(f"call void @llvm.prefetch.p0(ptr {target}, i32 1, i32 3, i32 1)")
    return "\n".join(f"  {step}" for step in steps)
