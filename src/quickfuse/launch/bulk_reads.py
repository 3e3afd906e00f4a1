"""Reading the same thing from every element of a list, in native code: an attribute, an item, the type, the length.

A guard on a thousand parameters is a few calls of these functions, at 2 to 10 ns an element (40 ns where a tensor's
`grad` getter runs), a third of what comprehensions take. They are LLVM code on CPython's C interface, compiled once a
process. Where the layout of lists is not as expected, plain Python versions are used.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from . import builtin, cpu

#: Where an object has its class, and a list its length and the pointer to its elements: see `list_layout_holds`.
TYPE, LIST_SIZE, LIST_ITEMS = 8, 16, 24

#: Where a dictionary keeps the pointer to its table, in CPython 3.11 and 3.12: for prefetching only.
_DICT_TABLE_OFFSET = 32

#: Where, in a tensor's C++ part, pointers to its storage and its gradient are to be expected: for prefetching only.
TENSOR_POINTERS = (16, 24, 32, 40)
TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)

_API = ("PyObject_GetAttr", "PyDict_GetItemWithError", "PyList_New", "PyObject_Size", "Py_IncRef", "Py_DecRef",
        "PyErr_Occurred", "PyErr_SetNone", "PyExc_LookupError")  # fmt: skip


def python_functions() -> dict[str, Callable[..., Any]]:
    """The functions in plain Python."""

    def getitem_each(values: list[Any], key: Any) -> list[Any]:
        return [v[key] for v in values]

    def getattr_each(values: list[Any], name: str) -> list[Any]:
        return [getattr(v, name) for v in values]

    def types_are(values: list[Any], kind: type) -> bool:
        return all(type(v) is kind for v in values)

    def lengths_are(values: list[Any], length: int) -> bool:
        return all(len(v) == length for v in values)

    def same_objects(left: list[Any], right: list[Any]) -> bool:
        return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))

    return {
        "getattr_each": getattr_each, "getitem_each": getitem_each, "types_are": types_are,
        "lengths_are": lengths_are, "same_objects": same_objects,
    }  # fmt: skip


@functools.cache
def functions() -> dict[str, Callable[..., Any]]:
    """`getattr_each(list, name)` and `getitem_each(list of dictionaries, key)` give lists, and raise what reading one
    element raises; `types_are(list, type)`, `lengths_are(list, n)` and `same_objects(list, list)` give truth values."""
    if not list_layout_holds() or not builtin.layout_holds():
        return python_functions()
    names = {name: f"quickfuse_{name}" for name in python_functions()}
    ir = [_module(handle_offset() or TYPE)]
    for name, symbol in names.items():
        result, second = "object" if name.endswith("_each") else "truth", "number" if name == "lengths_are" else "object"
        ir.append(builtin.of_two_arguments(f"{symbol}_call", symbol, result, second))
    addresses = cpu.load("\n".join(ir), [f"{symbol}_call" for symbol in names.values()])
    return {name: builtin.two_arguments(name, addresses[f"{symbol}_call"]) for name, symbol in names.items()}


def list_layout_holds() -> bool:
    """Whether lists and types stand where CPython 3.8 to 3.14 put them."""
    probe = [object(), object()]
    size = ctypes.c_int64.from_address(id(probe) + LIST_SIZE).value
    items = ctypes.c_int64.from_address(id(probe) + LIST_ITEMS).value
    found = [ctypes.c_int64.from_address(items + 8 * k).value for k in range(2)]
    kind = ctypes.c_int64.from_address(id(probe[0]) + TYPE).value
    return size == 2 and found == [id(p) for p in probe] and kind == id(object)


def handle_offset() -> int | None:
    """Where in a Python tensor object its `at::Tensor` (one pointer) stands."""
    tensor = torch.empty(1)
    pointer = tensor._cdata
    for offset in (16, 24, 32):
        if ctypes.c_int64.from_address(id(tensor) + offset).value == pointer:
            return offset
    return None


def prefetch_ahead(length: str, types: tuple[type, ...], field_offset: int, pointers: tuple[int, ...] = ()) -> str:
    """IR that asks for the memory of elements to come: the objects of a model are scattered, and waiting for memory is
    most of the time.

    16 elements ahead the object, 8 ahead what its field at `field_offset` points to, 4 ahead what the pointers at the
    offsets `pointers` of that point to. A field is only followed in objects of the given types; prefetching itself never
    faults, whatever the address.
    """
    touch = "call void @llvm.prefetch.p0(ptr {0}, i32 0, i32 3, i32 1)"
    lines = [f"%final = sub i64 {length}, 1"]
    for name, distance in (("far", 16), ("near", 8), ("close", 4)):
        lines += [
            f"%{name}.k = add i64 %k, {distance}",
            f"%{name}.inside = icmp slt i64 %{name}.k, %final",
            f"%{name}.index = select i1 %{name}.inside, i64 %{name}.k, i64 %final",
            f"%{name}.p = getelementptr ptr, ptr %items, i64 %{name}.index",
            f"%{name}.object = load ptr, ptr %{name}.p",
        ]
    lines.append(touch.format("%far.object"))
    lines += _field_of("near", types, field_offset)
    for line in (0, 64, 128):
        lines += [f"%near.line{line} = getelementptr i8, ptr %near.field, i64 {line}", touch.format(f"%near.line{line}")]
    if pointers:
        lines += _field_of("close", types, field_offset)
    for offset in pointers:
        lines += [
            f"%close.at{offset} = getelementptr i8, ptr %close.field, i64 {offset}",
            f"%close.pointer{offset} = load ptr, ptr %close.at{offset}",
            touch.format(f"%close.pointer{offset}"),
        ]
    return "\n".join(f"  {line}" for line in lines)


def _field_of(name: str, types: tuple[type, ...], offset: int) -> list[str]:
    """IR that sets %NAME.field to a field of %NAME.object, or to the list's items where the object has another type."""
    lines = [
        f"%{name}.type.p = getelementptr i8, ptr %{name}.object, i64 {TYPE}",
        f"%{name}.type = load ptr, ptr %{name}.type.p",
    ]
    known = "false"
    for k, kind in enumerate(types):
        lines.append(f"%{name}.is{k} = icmp eq ptr %{name}.type, inttoptr (i64 {id(kind)} to ptr)")
        lines.append(f"%{name}.known{k} = or i1 {known}, %{name}.is{k}")
        known = f"%{name}.known{k}"
    return [
        *lines,
        f"%{name}.field.p = getelementptr i8, ptr %{name}.object, i64 {offset}",
        f"%{name}.from = select i1 {known}, ptr %{name}.field.p, ptr %list.items.p",
        f"%{name}.field = load ptr, ptr %{name}.from",
    ]


def _module(tensor_offset: int) -> str:
    return "\n".join(
        [
            "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
            _reader(
                "quickfuse_getattr_each", "%value = call ptr {PyObject_GetAttr}(ptr %object, ptr %key)",
                prefetch_ahead("%size.now", TENSOR_TYPES, tensor_offset, TENSOR_POINTERS), owned=True,
            ),
            _reader(
                "quickfuse_getitem_each", "%value = call ptr {PyDict_GetItemWithError}(ptr %object, ptr %key)",
                prefetch_ahead("%size.now", (dict,), _DICT_TABLE_OFFSET), owned=False,
            ),
            _tester(
                "quickfuse_types_are", "ptr %wanted",
                f"%kind.p = getelementptr i8, ptr %object, i64 {TYPE}\n"
                "  %kind = load ptr, ptr %kind.p\n  %good = icmp eq ptr %kind, %wanted",
            ),
            _tester(
                "quickfuse_lengths_are", "i64 %wanted",
                "%length = call i64 {PyObject_Size}(ptr %object)\n  %good = icmp eq i64 %length, %wanted",
            ),
            _SAME_OBJECTS,
        ]
    )  # fmt: skip


def _api(code: str) -> str:
    """Put the addresses of CPython's functions into IR."""
    for name in _API:
        if f"{{{name}}}" in code:
            address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
            code = code.replace(f"{{{name}}}", f"inttoptr (i64 {address} to ptr)")
    return code


_LIST_PARTS = f"""
  %{{0}}.size.p = getelementptr i8, ptr %{{0}}, i64 {LIST_SIZE}
  %{{0}}.size = load i64, ptr %{{0}}.size.p
  %{{0}}.items.p = getelementptr i8, ptr %{{0}}, i64 {LIST_ITEMS}
"""


def _reader(name: str, read: str, ahead: str, *, owned: bool) -> str:
    """A function from a list and a key to the list of what `read` gives for each element.

    Running an element's getter may change the list: its length and items are read again for every element.
    """
    keep = "" if owned else "call void {Py_IncRef}(ptr %value)"
    return _api(f"""
define ptr @{name}(ptr %list, ptr %key) {{
entry:
{_LIST_PARTS.format("list")}
  %made = call ptr {{PyList_New}}(i64 %list.size)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %fail, label %start
start:
  %made.items.p = getelementptr i8, ptr %made, i64 {LIST_ITEMS}
  %made.items = load ptr, ptr %made.items.p
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %k.next, %kept ]
  %done = icmp sge i64 %k, %list.size
  br i1 %done, label %exit, label %body
body:
  %size.now = load i64, ptr %list.size.p
  %inside = icmp slt i64 %k, %size.now
  br i1 %inside, label %read, label %drop
read:
  %items = load ptr, ptr %list.items.p
  %object.p = getelementptr ptr, ptr %items, i64 %k
  %object = load ptr, ptr %object.p
{ahead}
  {read}
  %missing = icmp eq ptr %value, null
  br i1 %missing, label %drop, label %kept
kept:
  {keep}
  %slot = getelementptr ptr, ptr %made.items, i64 %k
  store ptr %value, ptr %slot
  %k.next = add i64 %k, 1
  br label %head
exit:
  ret ptr %made
drop:
  call void {{Py_DecRef}}(ptr %made)
  br label %fail
fail:
  %error = call ptr {{PyErr_Occurred}}()
  %untold = icmp eq ptr %error, null
  br i1 %untold, label %tell, label %leave
tell:
  %exception.p = load ptr, ptr {{PyExc_LookupError}}
  call void {{PyErr_SetNone}}(ptr %exception.p)
  br label %leave
leave:
  ret ptr null
}}
""")


def _tester(name: str, parameter: str, test: str) -> str:
    """A function that tells whether `test` sets %good for every %object of a list."""
    return _api(f"""
define i64 @{name}(ptr %list, {parameter}) {{
entry:
{_LIST_PARTS.format("list")}
  %items = load ptr, ptr %list.items.p
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %done = icmp sge i64 %k, %list.size
  br i1 %done, label %yes, label %body
body:
  %object.p = getelementptr ptr, ptr %items, i64 %k
  %object = load ptr, ptr %object.p
  {test}
  br i1 %good, label %next, label %no
next:
  %k.next = add i64 %k, 1
  br label %head
yes:
  ret i64 1
no:
  ret i64 0
}}
""")


_SAME_OBJECTS = f"""
define i64 @quickfuse_same_objects(ptr %left, ptr %right) {{
entry:
{_LIST_PARTS.format("left")}
{_LIST_PARTS.format("right")}
  %left.items = load ptr, ptr %left.items.p
  %right.items = load ptr, ptr %right.items.p
  %same.size = icmp eq i64 %left.size, %right.size
  br i1 %same.size, label %head, label %no
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %done = icmp sge i64 %k, %left.size
  br i1 %done, label %yes, label %body
body:
  %left.p = getelementptr ptr, ptr %left.items, i64 %k
  %right.p = getelementptr ptr, ptr %right.items, i64 %k
  %a = load ptr, ptr %left.p
  %b = load ptr, ptr %right.p
  %same = icmp eq ptr %a, %b
  br i1 %same, label %next, label %no
next:
  %k.next = add i64 %k, 1
  br label %head
yes:
  ret i64 1
no:
  ret i64 0
}}
"""
