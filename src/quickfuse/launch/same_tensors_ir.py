"""LLVM IR that writes down the words of which checks of tensors depend, and that compares them: see `same_tensors.py`."""

from __future__ import annotations

import sys

import torch

from ..ir.walk import MOVED
from . import builtin, unchanged
from .bulk_reads import LIST_ITEMS, LIST_SIZE, TYPE
from .same_words_ir import (
    ANY,
    ASK,
    ASKED,
    COUNT,
    FIRST,
    HELD,
    PAIRED,
    SHARE_WORDS,
    STORAGE_WORDS,
    load_word,
    records_ir,
)
from .tensor_check import key_included_function, tracing_ir
from .tensor_layout import TensorLayout
from .unchanged_ir import RESULTS_WORD, RETURNED_NONE, pairs_ir

#: Words of the block that the scan reads: which of them has the share and which the changes to count, which counts how often
#: everything was the same, and with how many threads to compare, and to count changes.
SHARE, COUNTS, HITS, THREADS, COUNTING_THREADS = range(8, 13)
BLOCK_WORDS = 14
assert MOVED == BLOCK_WORDS - 1
#: What is held: with how many threads, 0, how many objects, whether one has no other owner any more; then the objects.
HELD_WORDS = 4
#: How many objects ahead memory is asked for when they are let go.
_OBJECTS_AHEAD = 16
#: Words of a tensor that are collected besides those of its C++ object: its object, its type, its C++ object, four words and
#: another one of its storage, its gradient, the function that made it, the flags of autograd.
COLLECTED = 11
#: The name of the attribute, which lives as long as the process.
_GRAD_NAME = sys.intern("grad")


def collect_ir(name: str, layout: TensorLayout) -> str:
    """LLVM IR that writes down the words of all tensors of a list."""
    width = layout.last + 1 - layout.first
    stores = []
    storage = [("storage", f"data{k}", layout.data + k) for k in range(STORAGE_WORDS)]
    storage.append(("storage", "flag", layout.storage_flag))
    fields = [("object", "kind", TYPE), ("object", "impl.i", layout.handle), *((b, n, 8 * w) for b, n, w in storage)]
    for k, (base, value, offset) in enumerate(fields):
        stores += [load_word(value, base, offset), f"  %{value}.out = getelementptr i64, ptr %out, i64 {k + 1}",
                   f"  store i64 %{value}, ptr %{value}.out"]  # fmt: skip
    autograd = []
    for k, (value, word) in enumerate((("grad", layout.grad), ("function", layout.function), ("needs", layout.flags))):
        autograd += [load_word(value, "autograd", 8 * word), f"  %{value}.out = getelementptr i64, ptr %out, i64 {k + 8}",
                     f"  store i64 %{value}, ptr %{value}.out"]  # fmt: skip
    lines = "\n".join(stores)
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i64 @{name}(ptr %list, i64 %out.i) {{
entry:
  %out.first = inttoptr i64 %out.i to ptr
{load_word("size", "list", LIST_SIZE)}
  %items.p = getelementptr i8, ptr %list, i64 {LIST_ITEMS}
  %items = load ptr, ptr %items.p
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %done = icmp sge i64 %k, %size
  br i1 %done, label %exit, label %body
body:
  %at = mul i64 %k, {COLLECTED + width}
  %out = getelementptr i64, ptr %out.first, i64 %at
  %object.p = getelementptr ptr, ptr %items, i64 %k
  %object = load ptr, ptr %object.p
  %object.i = ptrtoint ptr %object to i64
  store i64 %object.i, ptr %out
  %impl.p0 = getelementptr i8, ptr %object, i64 {layout.handle}
  %impl = load ptr, ptr %impl.p0
  %storage.p = getelementptr i64, ptr %impl, i64 {layout.storage}
  %storage = load ptr, ptr %storage.p
{lines}
  %words.out = getelementptr i64, ptr %out, i64 {COLLECTED}
  %words.in = getelementptr i64, ptr %impl, i64 {layout.first}
  call void @llvm.memcpy.p0.p0.i64(ptr %words.out, ptr %words.in, i64 {8 * width}, i1 false)
  %autograd.p = getelementptr i64, ptr %impl, i64 {layout.autograd}
  %autograd = load ptr, ptr %autograd.p
  %none = icmp eq ptr %autograd, null
  br i1 %none, label %next, label %known
known:
{chr(10).join(autograd)}
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %head
exit:
  ret i64 %size
}}
"""


def scan_ir(name: str, layout: TensorLayout) -> str:
    """LLVM IR of the scan: the walk's words, what the caller holds, the classes, the tensors. It gives an object that holds
    these as long as it lives, or None."""
    fields = "\n".join(load_word(f"f{k}", "block", 8 * k) for k in range(BLOCK_WORDS))
    find = unchanged.find_address()
    included = key_included_function()
    assert included is not None  # see `same_tensors.available`
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.vector.reduce.or.v2i64(<2 x i64>)
declare i64 @llvm.vector.reduce.or.v4i64(<4 x i64>)
declare i64 @llvm.vector.reduce.or.v8i64(<8 x i64>)
declare void @quickfuse_run(ptr, i64, i64, ptr, ptr, i64, ptr, i64)
{records_ir(f"{name}_records", layout)}
{_let_go_ir(f"{name}_let_go")}
define ptr @{name}(ptr %list, i64 %block.i) {{
entry:
  %block = inttoptr i64 %block.i to ptr
{fields}
  %known = icmp ne i64 %f0, 0
  br i1 %known, label %start, label %changed
start:
{load_word("size", "list", LIST_SIZE)}
  %items.p = getelementptr i8, ptr %list, i64 {LIST_ITEMS}
  %items = load ptr, ptr %items.p
  %held.size = add i64 %f3, %f4
  %as.many = icmp eq i64 %size, %held.size
  br i1 %as.many, label %alone, label %changed
alone:
{tracing_ir(included, "changed")}
  %walked = icmp ne i64 %f1, 0
  br i1 %walked, label %walk, label %held
walk:
  %found = call ptr inttoptr (i64 {find} to ptr)(ptr %items, i64 %f3, i64 %f1)
  %any = icmp ne ptr %found, null
  br i1 %any, label %walk.found, label %changed
walk.found:
{load_word("results", "found", 8 * RESULTS_WORD)}
  %same.note = icmp eq i64 %results, %f2
  br i1 %same.note, label %held, label %changed
held:
  %ids = inttoptr i64 %f5 to ptr
  br label %held.head
held.head:
  %h = phi i64 [ 0, %held ], [ %h.next, %held.next ]
  %held.done = icmp sge i64 %h, %f4
  br i1 %held.done, label %heads, label %held.body
held.body:
  %h.at = add i64 %h, %f3
  %now.p = getelementptr i64, ptr %items, i64 %h.at
  %now = load i64, ptr %now.p
  %then.p = getelementptr i64, ptr %ids, i64 %h
  %then = load i64, ptr %then.p
  %same.held = icmp eq i64 %now, %then
  br i1 %same.held, label %held.next, label %changed
held.next:
  %h.next = add i64 %h, 1
  br label %held.head
heads:
  %pairs = inttoptr i64 %f7 to ptr
  br label %pair.head
{pairs_ir("%heads", "%f6", "tensors")}
tensors:
  %share = inttoptr i64 %f{SHARE} to ptr
{load_word("count", "share", 8 * COUNT)}
  %words = add i64 %count, {HELD_WORDS}
  %bytes = mul i64 %words, 8
  %hold = call ptr {builtin.api("PyMem_RawMalloc")}(i64 %bytes)
  %no.memory = icmp eq ptr %hold, null
  br i1 %no.memory, label %changed, label %compare
compare:
  store i64 %f{THREADS}, ptr %hold
  %hold.first = getelementptr i64, ptr %hold, i64 1
  store i64 0, ptr %hold.first
  %hold.count = getelementptr i64, ptr %hold, i64 2
  store i64 %count, ptr %hold.count
  %objects = getelementptr i64, ptr %hold, i64 {HELD_WORDS}
  %objects.p = getelementptr i64, ptr %share, i64 {HELD}
  store ptr %objects, ptr %objects.p
  %any.p = getelementptr i64, ptr %share, i64 {ANY}
  store i64 0, ptr %any.p
  %asked.p = getelementptr i64, ptr %share, i64 {ASKED}
  store i64 0, ptr %asked.p
  %starts = getelementptr i64, ptr %share, i64 {FIRST}
  call void @quickfuse_run(ptr @{name}_records, i64 {SHARE_WORDS}, i64 2, ptr %share, ptr %starts, i64 1, ptr null,
    i64 %f{THREADS})
  %other = load i64, ptr %any.p
  %none.other = icmp eq i64 %other, 0
  br i1 %none.other, label %unchanged, label %undo
unchanged:
  %asked = load i64, ptr %asked.p
  %none.asked = icmp eq i64 %asked, 0
  br i1 %none.asked, label %made, label %ask
{_ask_ir("ask", "made", "undo")}
made:
  %capsule = call ptr {builtin.api("PyCapsule_New")}(ptr %hold, ptr null, ptr @{name}_let_go)
  %no.capsule = icmp eq ptr %capsule, null
  br i1 %no.capsule, label %failed, label %exit
exit:
  %hits = add i64 %f{HITS}, 1
  store i64 %hits, ptr %f{HITS}.p
  ret ptr %capsule
failed:
  call void @{name}_let_go_all(ptr %hold)
  ret ptr null
undo:
  call void @{name}_let_go_all(ptr %hold)
  br label %changed
changed:
  store i64 0, ptr %block
{RETURNED_NONE}
}}
"""


def _ask_ir(label: str, after: str, failed: str) -> str:
    """IR of the block `label`, in which tensors are asked for their gradients, where these are to be held and have no Python
    object that Python owns."""
    return f"""{label}:
{load_word("paired", "share", 8 * PAIRED)}
  br label %ask.head
ask.head:
  %a = phi i64 [ 1, %{label} ], [ %a.next, %ask.next ]
  %ask.done = icmp sge i64 %a, %paired
  br i1 %ask.done, label %{after}, label %ask.body
ask.body:
  %ask.p = getelementptr i64, ptr %objects, i64 %a
  %ask.word = load i64, ptr %ask.p
  %ask.this = icmp eq i64 %ask.word, {ASK}
  br i1 %ask.this, label %ask.get, label %ask.next
ask.get:
  %parent.p = getelementptr ptr, ptr %ask.p, i64 -1
  %parent = load ptr, ptr %parent.p
  %got = call ptr {builtin.api("PyObject_GetAttr")}(ptr %parent, ptr inttoptr (i64 {id(_GRAD_NAME)} to ptr))
  %missing = icmp eq ptr %got, null
  br i1 %missing, label %ask.error, label %ask.got
ask.error:
  call void {builtin.api("PyErr_Clear")}()
  br label %{failed}
ask.got:
  store ptr %got, ptr %ask.p
{load_word("got.kind", "got", TYPE)}
  %is.tensor = icmp eq i64 %got.kind, ptrtoint (ptr inttoptr (i64 {id(torch.Tensor)} to ptr) to i64)
  br i1 %is.tensor, label %ask.next, label %{failed}
ask.next:
  %a.next = add i64 %a, 2
  br label %ask.head"""


def _let_go_ir(name: str) -> str:
    """LLVM IR that lets go of what is held: `name` gets the capsule with it, `name`_all itself. The threads that looked at
    objects count down their references; what has no other owner any more is left to this thread."""
    return f"""
define internal void @{name}_some(ptr %hold, ptr %scalars, i64 %first, i64 %past, ptr %memo) nounwind {{
entry:
  %objects = getelementptr i64, ptr %hold, i64 {HELD_WORDS}
  %final = sub i64 %past, 1
  br label %head
head:
  %k = phi i64 [ %first, %entry ], [ %k.next, %next ]
  %done = icmp sge i64 %k, %past
  br i1 %done, label %exit, label %body
body:
  %ahead = add i64 %k, {_OBJECTS_AHEAD}
  %inside = icmp slt i64 %ahead, %final
  %then = select i1 %inside, i64 %ahead, i64 %final
  %then.p = getelementptr ptr, ptr %objects, i64 %then
  %then.object = load ptr, ptr %then.p
  call void @llvm.prefetch.p0(ptr %then.object, i32 1, i32 3, i32 1)
  %object.p = getelementptr ptr, ptr %objects, i64 %k
  %object = load ptr, ptr %object.p
  %object.i = ptrtoint ptr %object to i64
  %none = icmp ule i64 %object.i, {ASK}
  br i1 %none, label %clear, label %count
count:
  %references = load i32, ptr %object
  %last = icmp eq i32 %references, 1
  br i1 %last, label %left, label %drop
left:
  %any.p = getelementptr i64, ptr %hold, i64 3
  store atomic i64 1, ptr %any.p monotonic, align 8
  br label %next
drop:
  %references.less = sub i32 %references, 1
  store i32 %references.less, ptr %object
  br label %clear
clear:
  store ptr null, ptr %object.p
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %head
exit:
  ret void
}}
define internal void @{name}_all(ptr %hold) {{
entry:
  %threads = load i64, ptr %hold
  %starts = getelementptr i64, ptr %hold, i64 1
  %count.p = getelementptr i64, ptr %hold, i64 2
  %count = load i64, ptr %count.p
  %any.p = getelementptr i64, ptr %hold, i64 3
  store i64 0, ptr %any.p
  call void @quickfuse_run(ptr @{name}_some, i64 1, i64 2, ptr %hold, ptr %starts, i64 1, ptr null, i64 %threads)
  %any = load i64, ptr %any.p
  %none = icmp eq i64 %any, 0
  br i1 %none, label %free, label %left
left:
  %objects = getelementptr i64, ptr %hold, i64 {HELD_WORDS}
  br label %head
head:
  %k = phi i64 [ 0, %left ], [ %k.next, %next ]
  %done = icmp sge i64 %k, %count
  br i1 %done, label %free, label %body
body:
  %object.p = getelementptr ptr, ptr %objects, i64 %k
  %object = load ptr, ptr %object.p
  %without = icmp eq ptr %object, null
  br i1 %without, label %next, label %drop
drop:
  call void {builtin.api("Py_DecRef")}(ptr %object)
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %head
free:
  call void {builtin.api("PyMem_RawFree")}(ptr %hold)
  ret void
}}
define void @{name}(ptr %capsule) {{
entry:
  %hold = call ptr {builtin.api("PyCapsule_GetPointer")}(ptr %capsule, ptr null)
  call void @{name}_all(ptr %hold)
  ret void
}}
"""


def count_ir(name: str) -> str:
    """LLVM IR that counts the changes of tensors which the scan has found the same, and gives 0."""
    return f"""
define internal void @{name}_some(ptr %row, ptr %scalars, i64 %first, i64 %past, ptr %memo) nounwind {{
entry:
  %count.places = load ptr, ptr %row
  br label %count.head
count.head:
  %c = phi i64 [ %first, %entry ], [ %c.next, %count.body ]
  %count.done = icmp sge i64 %c, %past
  br i1 %count.done, label %exit, label %count.body
count.body:
  %count.pair = getelementptr {{ i64, i64 }}, ptr %count.places, i64 %c
  %version.p = load ptr, ptr %count.pair
  %times.p = getelementptr i64, ptr %count.pair, i64 1
  %times.wide = load i64, ptr %times.p
  %times = trunc i64 %times.wide to i32
  %version = load atomic i32, ptr %version.p monotonic, align 4
  %version.next = add i32 %version, %times
  store atomic i32 %version.next, ptr %version.p monotonic, align 4
  %c.next = add i64 %c, 1
  br label %count.head
exit:
  ret void
}}
define i64 @{name}(ptr %nothing, i64 %block.i) {{
entry:
  %block = inttoptr i64 %block.i to ptr
  %counts.p = getelementptr i64, ptr %block, i64 {COUNTS}
  %counts = load ptr, ptr %counts.p
  %threads.p = getelementptr i64, ptr %block, i64 {COUNTING_THREADS}
  %threads = load i64, ptr %threads.p
  %starts = getelementptr i64, ptr %counts, i64 1
  call void @quickfuse_run(ptr @{name}_some, i64 1, i64 1, ptr %counts, ptr %starts, i64 1, ptr null, i64 %threads)
  ret i64 0
}}
"""
