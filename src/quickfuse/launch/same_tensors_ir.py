"""LLVM IR that writes down the words of which checks of tensors depend, and that compares them: see `same_tensors.py`."""

from __future__ import annotations

import sys

import torch

from . import builtin, unchanged
from .bulk_reads import LIST_ITEMS, LIST_SIZE, TYPE
from .same_words_ir import AHEAD, GRADIENT_WORDS, OBJECT_WORDS, STORAGE_WORDS, gradients_ir, load_word, records_ir
from .tensor_check import key_included_function, tracing_ir
from .tensor_layout import TensorLayout
from .unchanged_ir import RESULTS_WORD, RETURNED_NONE, pairs_ir, returned_list_ir

#: Words of the block that the scan reads: which of them counts how often everything was the same, and with how many threads
#: to compare, and to count changes.
BLOCK_WORDS = 18
HITS = 13
THREADS = 14
COUNTING_THREADS = 15  # 16 is `MOVED`
#: Where the list of all has the tensors that gradients belong to.
PARENTS = 17
#: Some tensors: where their records are, whether one of them was found changed, 0, how many there are, and where the rows
#: of their objects are; for gradients, where their rows are, the word that says that one moved, and whether none may.
SHARE_WORDS = 8
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
    """LLVM IR of the scan: the walk's words, what the caller holds, the classes, the tensors. It gives the list of these, or
    None."""
    fields = "\n".join(load_word(f"f{k}", "block", 8 * k) for k in range(BLOCK_WORDS))
    first = [_objects_ir("oa", "first", "%f8", "a.threads"),
             _threads_ir(f"{name}_records", "a", "%f8", "a.threads", "second")]  # fmt: skip
    second = [_threads_ir(f"{name}_gradients", "b", "%f9", "second", "b.objects"),
              _objects_ir("ob", "b.objects", "%f9", "collect", gradients=True)]  # fmt: skip
    passes = "\n".join([*first, *second])
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
{gradients_ir(f"{name}_gradients", layout)}
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
{pairs_ir("%heads", "%f6", "first")}
{passes}
collect:
  %hits = add i64 %f{HITS}, 1
  store i64 %hits, ptr %f{HITS}.p
  %objects = inttoptr i64 %f12 to ptr
  %parents = inttoptr i64 %f{PARENTS} to ptr
  %strict.p = getelementptr i64, ptr %b.share, i64 7
  %strict.i = load i64, ptr %strict.p
  %strict = icmp ne i64 %strict.i, 0
{list_ir()}
changed:
  store i64 0, ptr %block
{RETURNED_NONE}
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
  %counts.p = getelementptr i64, ptr %block, i64 10
  %counts = load ptr, ptr %counts.p
  %threads.p = getelementptr i64, ptr %block, i64 {COUNTING_THREADS}
  %threads = load i64, ptr %threads.p
  %starts = getelementptr i64, ptr %counts, i64 1
  call void @quickfuse_run(ptr @{name}_some, i64 1, i64 1, ptr %counts, ptr %starts, i64 1, ptr null, i64 %threads)
  ret i64 0
}}
"""


def _objects_ir(x: str, label: str, share: str, after: str, *, gradients: bool = False) -> str:
    """IR of the block `label`, in which this thread compares the types of Python objects, and what they point to; of
    `gradients`, of those that have one."""
    head = f"  br label %{x}.compare\n{x}.compare:\n  %{x}.object = load ptr, ptr %{x}.row"
    wanted = f"  %{x}.want = load <2 x i64>, ptr %{x}.want.p, align 8"
    if gradients:
        head = f"""
  %{x}.gradient.at = mul i64 %{x}.k, {GRADIENT_WORDS}
  %{x}.gradient = getelementptr i64, ptr %{x}.gradients, i64 %{x}.gradient.at
{load_word(f"{x}.place.i", f"{x}.gradient", 32)}
  %{x}.place = inttoptr i64 %{x}.place.i to ptr
  %{x}.object = load ptr, ptr %{x}.place
  %{x}.none = icmp eq ptr %{x}.object, null
  br i1 %{x}.none, label %{x}.next, label %{x}.compare
{x}.compare:"""
        wanted = f"""  %{x}.slot = load ptr, ptr %{x}.gradient
  %{x}.impl = load i64, ptr %{x}.slot
  %{x}.kind = load <2 x i64>, ptr %{x}.want.p, align 8
  %{x}.want = insertelement <2 x i64> %{x}.kind, i64 %{x}.impl, i32 1"""
    return f"""{label}:
  %{x}.share = inttoptr i64 {share} to ptr
{load_word(f"{x}.count", f"{x}.share", 24)}
{load_word(f"{x}.rows.i", f"{x}.share", 32)}
  %{x}.rows = inttoptr i64 %{x}.rows.i to ptr
{load_word(f"{x}.gradients.i", f"{x}.share", 40)}
  %{x}.gradients = inttoptr i64 %{x}.gradients.i to ptr
  %{x}.final = sub i64 %{x}.count, 1
  br label %{x}.head
{x}.head:
  %{x}.k = phi i64 [ 0, %{label} ], [ %{x}.k.next, %{x}.next ]
  %{x}.bits = phi <2 x i64> [ zeroinitializer, %{label} ], [ %{x}.bits.then, %{x}.next ]
  %{x}.done = icmp sge i64 %{x}.k, %{x}.count
  br i1 %{x}.done, label %{x}.exit, label %{x}.body
{x}.body:
  %{x}.ahead = add i64 %{x}.k, {2 * AHEAD}
  %{x}.inside = icmp slt i64 %{x}.ahead, %{x}.final
  %{x}.then = select i1 %{x}.inside, i64 %{x}.ahead, i64 %{x}.final
  %{x}.then.at = mul i64 %{x}.then, {OBJECT_WORDS}
  %{x}.then.p = getelementptr i64, ptr %{x}.rows, i64 %{x}.then.at
  %{x}.then.object = load ptr, ptr %{x}.then.p
  call void @llvm.prefetch.p0(ptr %{x}.then.object, i32 0, i32 3, i32 1)
  %{x}.at = mul i64 %{x}.k, {OBJECT_WORDS}
  %{x}.row = getelementptr i64, ptr %{x}.rows, i64 %{x}.at
{head}
  %{x}.now.p = getelementptr i8, ptr %{x}.object, i64 {TYPE}
  %{x}.now = load <2 x i64>, ptr %{x}.now.p, align 8
  %{x}.want.p = getelementptr i64, ptr %{x}.row, i64 1
{wanted}
  %{x}.xor = xor <2 x i64> %{x}.now, %{x}.want
  %{x}.bits.next = or <2 x i64> %{x}.bits, %{x}.xor
  br label %{x}.next
{x}.next:
  %{x}.bits.then = phi <2 x i64> [ %{x}.bits.next, %{x}.compare ]{f", [ %{x}.bits, %{x}.body ]" if gradients else ""}
  %{x}.k.next = add i64 %{x}.k, 1
  br label %{x}.head
{x}.exit:
  %{x}.any = call i64 @llvm.vector.reduce.or.v2i64(<2 x i64> %{x}.bits)
  %{x}.same = icmp eq i64 %{x}.any, 0
  br i1 %{x}.same, label %{after}, label %changed"""


def _threads_ir(function: str, x: str, share: str, label: str, after: str) -> str:
    """IR of the block `label`, in which threads compare the records of some tensors by a function."""
    return f"""{label}:
  %{x}.share = inttoptr i64 {share} to ptr
  %{x}.any.p = getelementptr i64, ptr %{x}.share, i64 1
  %{x}.starts = getelementptr i64, ptr %{x}.share, i64 2
  store i64 0, ptr %{x}.any.p
  call void @quickfuse_run(ptr @{function}, i64 {SHARE_WORDS}, i64 1, ptr %{x}.share, ptr %{x}.starts, i64 1, ptr null,
    i64 %f{THREADS})
  %{x}.any = load i64, ptr %{x}.any.p
  %{x}.none = icmp eq i64 %{x}.any, 0
  br i1 %{x}.none, label %{after}, label %changed"""


def list_ir() -> str:
    """LLVM IR that returns a new list of the objects in %objects, %f11 of them. For one that is 0 it asks the tensor in
    %parents for its gradient; without one, or where the list is not looked at (%strict), None stands there."""
    increment, attribute = builtin.api("Py_IncRef"), builtin.api("PyObject_GetAttr")
    value = f"""  %value.p = getelementptr ptr, ptr %objects, i64 %o
  %kept = load ptr, ptr %value.p
  %absent = icmp eq ptr %kept, null
  br i1 %absent, label %out.ask, label %out.keep
out.keep:
  call void {increment}(ptr %kept)
  br label %out.put
out.ask:
  br i1 %strict, label %out.none, label %out.get
out.none:
  call void {increment}(ptr inttoptr (i64 {id(None)} to ptr))
  br label %out.put
out.get:
  %parent.p = getelementptr ptr, ptr %parents, i64 %o
  %parent = load ptr, ptr %parent.p
  %got = call ptr {attribute}(ptr %parent, ptr inttoptr (i64 {id(_GRAD_NAME)} to ptr))
  %missing = icmp eq ptr %got, null
  br i1 %missing, label %out.error, label %out.got
out.got:
{load_word("got.kind", "got", TYPE)}
  %is.tensor = icmp eq i64 %got.kind, {id(torch.Tensor)}
  br i1 %is.tensor, label %out.put, label %out.other
out.other:
  call void {builtin.api("Py_DecRef")}(ptr %got)
  br label %out.drop
out.error:
  call void {builtin.api("PyErr_Clear")}()
  br label %out.drop
out.drop:
  call void {builtin.api("Py_DecRef")}(ptr %made)
  br label %changed
out.put:
  %value = phi ptr [ %kept, %out.keep ], [ inttoptr (i64 {id(None)} to ptr), %out.none ], [ %got, %out.got ]"""
    return returned_list_ir("%f11", value, "out.put")
