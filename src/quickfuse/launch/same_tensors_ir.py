"""LLVM IR that writes down the words of which checks of tensors depend, and that compares them: see `same_tensors.py`."""

from __future__ import annotations

import sys

import torch

from . import builtin, unchanged
from .tensor_check import key_included_function, tracing_ir
from .tensor_layout import FIRST_WORDS as LANES
from .tensor_layout import OBJECT_MASK, TensorLayout

_TYPE = 8
_LIST_SIZE, _LIST_ITEMS = 16, 24

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
#: A gradient's row: where the pointer to it is, where its address was noted, how many bytes it begins after its storage,
#: whether it may be another tensor than before, and where the list of all has its Python object, 0 if it has none that
#: Python owns.
GRADIENT_WORDS = 5
#: A tensor's row among the objects: the Python object, its type, and the C++ object that it points to.
OBJECT_WORDS = 3
#: A tensor's record, two cache lines: its template, its C++ object, the first words of this, those of its storage from the
#: address of the data on, and the flags of autograd.
TEMPLATE, IMPL, OWN_WORDS = 0, 1, 2
STORAGE = OWN_WORDS + LANES
STORAGE_WORDS = 4
NEEDS = STORAGE + STORAGE_WORDS
RECORD_WORDS = 16
#: A template: a word of the storage, then masks and values of the other words of the C++ object.
TEMPLATE_HEADER = 1
#: Words of a tensor that are collected besides those of its C++ object: its object, its type, its C++ object, four words and
#: another one of its storage, its gradient, the function that made it, the flags of autograd.
COLLECTED = 11
#: The name of the attribute, which lives as long as the process.
_GRAD_NAME = sys.intern("grad")
#: How many records ahead memory is asked for.
_AHEAD = 8


def _load(name: str, base: str, offset: int) -> str:
    """IR that sets %name to the word at a byte offset from %base."""
    return f"  %{name}.p = getelementptr i8, ptr %{base}, i64 {offset}\n  %{name} = load i64, ptr %{name}.p"


def collect_ir(name: str, layout: TensorLayout) -> str:
    """LLVM IR that writes down the words of all tensors of a list."""
    width = layout.last + 1 - layout.first
    stores = []
    storage = [("storage", f"data{k}", layout.data + k) for k in range(STORAGE_WORDS)]
    storage.append(("storage", "flag", layout.storage_flag))
    fields = [("object", "kind", _TYPE), ("object", "impl.i", layout.handle), *((b, n, 8 * w) for b, n, w in storage)]
    for k, (base, value, offset) in enumerate(fields):
        stores += [_load(value, base, offset), f"  %{value}.out = getelementptr i64, ptr %out, i64 {k + 1}",
                   f"  store i64 %{value}, ptr %{value}.out"]  # fmt: skip
    autograd = []
    for k, (value, word) in enumerate((("grad", layout.grad), ("function", layout.function), ("needs", layout.flags))):
        autograd += [_load(value, "autograd", 8 * word), f"  %{value}.out = getelementptr i64, ptr %out, i64 {k + 8}",
                     f"  store i64 %{value}, ptr %{value}.out"]  # fmt: skip
    lines = "\n".join(stores)
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i64 @{name}(ptr %list, i64 %out.i) {{
entry:
  %out.first = inttoptr i64 %out.i to ptr
{_load("size", "list", _LIST_SIZE)}
  %items.p = getelementptr i8, ptr %list, i64 {_LIST_ITEMS}
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
    fields = "\n".join(_load(f"f{k}", "block", 8 * k) for k in range(BLOCK_WORDS))
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
{_records_ir(f"{name}_records", layout)}
{gradients_ir(f"{name}_gradients", layout)}
define ptr @{name}(ptr %list, i64 %block.i) {{
entry:
  %block = inttoptr i64 %block.i to ptr
{fields}
  %known = icmp ne i64 %f0, 0
  br i1 %known, label %start, label %changed
start:
{_load("size", "list", _LIST_SIZE)}
  %items.p = getelementptr i8, ptr %list, i64 {_LIST_ITEMS}
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
{_load("results", "found", 8 * unchanged.RESULTS_WORD)}
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
{unchanged.pairs_ir("%heads", "%f6", "first")}
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
{unchanged.RETURNED_NONE}
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
{_load(f"{x}.place.i", f"{x}.gradient", 32)}
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
{_load(f"{x}.count", f"{x}.share", 24)}
{_load(f"{x}.rows.i", f"{x}.share", 32)}
  %{x}.rows = inttoptr i64 %{x}.rows.i to ptr
{_load(f"{x}.gradients.i", f"{x}.share", 40)}
  %{x}.gradients = inttoptr i64 %{x}.gradients.i to ptr
  %{x}.final = sub i64 %{x}.count, 1
  br label %{x}.head
{x}.head:
  %{x}.k = phi i64 [ 0, %{label} ], [ %{x}.k.next, %{x}.next ]
  %{x}.bits = phi <2 x i64> [ zeroinitializer, %{label} ], [ %{x}.bits.then, %{x}.next ]
  %{x}.done = icmp sge i64 %{x}.k, %{x}.count
  br i1 %{x}.done, label %{x}.exit, label %{x}.body
{x}.body:
  %{x}.ahead = add i64 %{x}.k, {2 * _AHEAD}
  %{x}.inside = icmp slt i64 %{x}.ahead, %{x}.final
  %{x}.then = select i1 %{x}.inside, i64 %{x}.ahead, i64 %{x}.final
  %{x}.then.at = mul i64 %{x}.then, {OBJECT_WORDS}
  %{x}.then.p = getelementptr i64, ptr %{x}.rows, i64 %{x}.then.at
  %{x}.then.object = load ptr, ptr %{x}.then.p
  call void @llvm.prefetch.p0(ptr %{x}.then.object, i32 0, i32 3, i32 1)
  %{x}.at = mul i64 %{x}.k, {OBJECT_WORDS}
  %{x}.row = getelementptr i64, ptr %{x}.rows, i64 %{x}.at
{head}
  %{x}.now.p = getelementptr i8, ptr %{x}.object, i64 {_TYPE}
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


def _records_ir(name: str, layout: TensorLayout) -> str:
    """IR of a function that compares the words of some tensors, a range of those of a share, and says there if they are
    others. Their C++ objects are known to be alive."""
    x = "t"
    assert layout.handle == _TYPE + 8
    return f"""
define internal void @{name}(ptr %share, ptr %scalars, i64 %first, i64 %past, ptr %memo) nounwind {{
entry:
  %{x}.records = load ptr, ptr %share
  %{x}.final = sub i64 %past, 1
  br label %{x}.head
{x}.head:
  %{x}.k = phi i64 [ %first, %entry ], [ %{x}.k.next, %{x}.next ]
  %{x}.done = icmp sge i64 %{x}.k, %past
  br i1 %{x}.done, label %exit, label %{x}.body
{x}.body:
  %{x}.at = mul i64 %{x}.k, {RECORD_WORDS}
  %{x}.record = getelementptr i64, ptr %{x}.records, i64 %{x}.at
{_ahead_ir(x, layout)}
{_tensor_ir(x, layout)}
{x}.next:
  %{x}.k.next = add i64 %{x}.k, 1
  br label %{x}.head
changed:
  %any.p = getelementptr i64, ptr %share, i64 1
  store atomic i64 1, ptr %any.p monotonic, align 8
  ret void
exit:
  ret void
}}
"""


def _tensor_ir(x: str, layout: TensorLayout) -> str:
    """IR that compares a tensor with its record, and goes on to the block `x.next`, or to `changed`."""
    pointers = {"template": TEMPLATE, "impl": IMPL, "storage": OWN_WORDS,
                "autograd": OWN_WORDS + layout.autograd - layout.first}  # fmt: skip
    loads = [
        line
        for name, word in pointers.items()
        for line in (
            f"  %{x}.{name}.p = getelementptr i64, ptr %{x}.record, i64 {word}",
            f"  %{x}.{name} = load ptr, ptr %{x}.{name}.p",
        )
    ]
    return f"""{chr(10).join(loads)}
{_impl_ir(x, layout)}
{_same_words(x, "data", "storage", 8 * layout.data, STORAGE_WORDS, [("record", 8 * STORAGE)])}
{_load(f"{x}.flag.now", f"{x}.storage", 8 * layout.storage_flag)}
{_load(f"{x}.flag", f"{x}.template", 0)}
  %{x}.flag.same = icmp eq i64 %{x}.flag.now, %{x}.flag
  br i1 %{x}.flag.same, label %{x}.storage.known, label %changed
{x}.storage.known:
  %{x}.no.autograd = icmp eq ptr %{x}.autograd, null
  br i1 %{x}.no.autograd, label %{x}.next, label %{x}.autograd.known
{x}.autograd.known:
{_load(f"{x}.function.now", f"{x}.autograd", 8 * layout.function)}
{_load(f"{x}.needs.now", f"{x}.autograd", 8 * layout.flags)}
{_load(f"{x}.needs", f"{x}.record", 8 * NEEDS)}
  %{x}.needs.xor = xor i64 %{x}.needs.now, %{x}.needs
  %{x}.all.bits = or i64 %{x}.needs.xor, %{x}.function.now
  %{x}.autograd.same = icmp eq i64 %{x}.all.bits, 0
  br i1 %{x}.autograd.same, label %{x}.next, label %changed"""


def gradients_ir(name: str, layout: TensorLayout) -> str:
    """IR of a function that compares gradients, a range of those of a share. A backward pass makes new tensors: such a one
    has to be as the one before was in all but its address."""
    assert layout.handle == _TYPE + 8
    return f"""
define internal void @{name}(ptr %share, ptr %scalars, i64 %first, i64 %past, ptr %memo) nounwind {{
entry:
  %t.records = load ptr, ptr %share
{_load("objects.i", "share", 32)}
  %objects = inttoptr i64 %objects.i to ptr
{_load("gradients.i", "share", 40)}
  %gradients = inttoptr i64 %gradients.i to ptr
{_load("moved.i", "share", 48)}
  %moved = inttoptr i64 %moved.i to ptr
{_load("strict.i", "share", 56)}
  %strict = icmp ne i64 %strict.i, 0
  %t.final = sub i64 %past, 1
  br label %head
head:
  %k = phi i64 [ %first, %entry ], [ %k.next, %next ]
  %done = icmp sge i64 %k, %past
  br i1 %done, label %exit, label %body
body:
  %t.k = add i64 %k, 0
  %t.at = mul i64 %k, {RECORD_WORDS}
  %t.record = getelementptr i64, ptr %t.records, i64 %t.at
{_ahead_ir("t", layout)}
  %gradient.at = mul i64 %k, {GRADIENT_WORDS}
  %gradient = getelementptr i64, ptr %gradients, i64 %gradient.at
  %slot = load ptr, ptr %gradient
  %impl = load ptr, ptr %slot
{_load("address.i", "gradient", 8)}
{_load("offset", "gradient", 16)}
{_load("free", "gradient", 24)}
{_load("place.i", "gradient", 32)}
  %address = inttoptr i64 %address.i to ptr
  %place = inttoptr i64 %place.i to ptr
  %may = icmp ne i64 %free, 0
  br i1 %may, label %n.compare, label %known
known:
  %then.p = getelementptr i64, ptr %t.record, i64 {IMPL}
  %then = load ptr, ptr %then.p
  %same = icmp eq ptr %impl, %then
  br i1 %same, label %t.compare, label %changed
t.compare:
{_tensor_ir("t", layout)}
t.next:
  %t.data.p0 = getelementptr i64, ptr %t.record, i64 {STORAGE}
  %t.found = load i64, ptr %t.data.p0
  %object.at = mul i64 %k, {OBJECT_WORDS}
  %object.p = getelementptr i64, ptr %objects, i64 %object.at
  %object = load i64, ptr %object.p
  store i64 %object, ptr %place
  br label %found
n.compare:
{_new_tensor_ir("n", layout)}
n.next:
{_load("python", "impl", 8 * layout.object)}
  %python.bits = and i64 %python, {~OBJECT_MASK}
  %python.owns = icmp eq i64 %python.bits, 0
  %python.own = select i1 %python.owns, i64 %python, i64 0
  store i64 %python.own, ptr %place
  br label %found
found:
  %data = phi i64 [ %t.found, %t.next ], [ %n.found, %n.next ]
  %now = add i64 %data, %offset
  %noted = load i64, ptr %address
  %stays = icmp eq i64 %now, %noted
  br i1 %stays, label %next, label %moves
moves:
  br i1 %strict, label %changed, label %note
note:
  store i64 %now, ptr %address
  store atomic i64 1, ptr %moved monotonic, align 8
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %head
changed:
  %any.p = getelementptr i64, ptr %share, i64 1
  store atomic i64 1, ptr %any.p monotonic, align 8
  ret void
exit:
  ret void
}}
"""


def _new_tensor_ir(x: str, layout: TensorLayout) -> str:
    """IR that compares the tensor %impl with the record of another one: in all but what tells one from the other. It sets
    `x.found` to where its storage is."""
    free = {layout.storage, layout.version, layout.object, *([layout.object - 1] if layout.interpreter else [])}
    bits = ", ".join(f"i64 {0 if layout.first + k in free else -1}" for k in range(LANES))
    own = _same_words(x, "own", "impl", 8 * layout.first, LANES, [("record", 8 * OWN_WORDS)], f"<{bits}>", also_wanted=True)
    same = []
    for k in (1, 2):  # who owns the memory: what is the address of the data there must be it here
        same.append(f"""{_load(f"{x}.now{k}", f"{x}.storage", 8 * (layout.data + k))}
{_load(f"{x}.then{k}", f"{x}.record", 8 * (STORAGE + k))}
  %{x}.is.data{k} = icmp eq i64 %{x}.then{k}, %{x}.data.then
  %{x}.want{k} = select i1 %{x}.is.data{k}, i64 %{x}.found, i64 %{x}.then{k}
  %{x}.good{k} = icmp eq i64 %{x}.now{k}, %{x}.want{k}
  br i1 %{x}.good{k}, label %{x}.after{k}, label %changed
{x}.after{k}:""")
    return f"""  %{x}.impl = getelementptr i8, ptr %impl, i64 0
  %{x}.record = getelementptr i8, ptr %t.record, i64 0
  %{x}.template.p = getelementptr i64, ptr %{x}.record, i64 {TEMPLATE}
  %{x}.template = load ptr, ptr %{x}.template.p
{own}
{_template_ir(x, layout)}
{_load(f"{x}.version", f"{x}.impl", 8 * layout.version)}
{_load(f"{x}.storage.i", f"{x}.impl", 8 * layout.storage)}
  %{x}.counted = icmp ne i64 %{x}.version, 0
  %{x}.stored = icmp ne i64 %{x}.storage.i, 0
  %{x}.usual = and i1 %{x}.counted, %{x}.stored
  br i1 %{x}.usual, label %{x}.is.usual, label %changed
{x}.is.usual:
  %{x}.storage = inttoptr i64 %{x}.storage.i to ptr
{_load(f"{x}.found", f"{x}.storage", 8 * layout.data)}
{_load(f"{x}.data.then", f"{x}.record", 8 * STORAGE)}
{chr(10).join(same)}
{_load(f"{x}.flag.now", f"{x}.storage", 8 * layout.storage_flag)}
{_load(f"{x}.flag", f"{x}.template", 0)}
  %{x}.flag.xor = xor i64 %{x}.flag.now, %{x}.flag
  %{x}.flag.bits = and i64 %{x}.flag.xor, {layout.storage_bits}
  %{x}.flag.same = icmp eq i64 %{x}.flag.bits, 0
  br i1 %{x}.flag.same, label %{x}.next, label %changed"""


def list_ir() -> str:
    """LLVM IR that returns a new list of the objects in %objects, %f11 of them. For one that is 0 it asks the tensor in
    %parents for its gradient; without one, or where the list is not looked at (%strict), None stands there."""
    increment, attribute = builtin.api("Py_IncRef"), builtin.api("PyObject_GetAttr")
    return f"""  %made = call ptr {builtin.api("PyList_New")}(i64 %f11)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %fail, label %fill
fill:
  %slots.p = getelementptr i8, ptr %made, i64 {_LIST_ITEMS}
  %slots = load ptr, ptr %slots.p
  br label %out.head
out.head:
  %o = phi i64 [ 0, %fill ], [ %o.next, %out.put ]
  %out.done = icmp sge i64 %o, %f11
  br i1 %out.done, label %exit, label %out.body
out.body:
  %value.p = getelementptr ptr, ptr %objects, i64 %o
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
{_load("got.kind", "got", _TYPE)}
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
  %value = phi ptr [ %kept, %out.keep ], [ inttoptr (i64 {id(None)} to ptr), %out.none ], [ %got, %out.got ]
  %list.slot = getelementptr ptr, ptr %slots, i64 %o
  store ptr %value, ptr %list.slot
  %o.next = add i64 %o, 1
  br label %out.head
exit:
  ret ptr %made
fail:
  ret ptr null"""


def _impl_ir(x: str, layout: TensorLayout) -> str:
    """IR that compares the words of the C++ object: the first ones with the record, and the others with the template."""
    first = 8 * layout.first
    bits = ", ".join(f"i64 {OBJECT_MASK if layout.first + k == layout.object else -1}" for k in range(LANES))
    own = _same_words(x, "own", "impl", first, LANES, [("record", 8 * OWN_WORDS)], f"<{bits}>")
    return f"{own}\n{_template_ir(x, layout)}"


def _template_ir(x: str, layout: TensorLayout) -> str:
    """IR that compares the words of the C++ object after the first ones with the template."""
    width, first, parts = layout.last + 1 - layout.first, 8 * layout.first, []
    for start in sorted({*range(LANES, width - LANES + 1, LANES), max(width - LANES, LANES)}):
        place = 8 * (TEMPLATE_HEADER + start - LANES)
        parts.append(_same_words(x, f"words{start}", "impl", first + 8 * start, min(LANES, width - start), [
            ("template", place + 8 * (width - LANES)), ("template", place),
        ]))  # fmt: skip
    return "\n".join(parts)


def _same_words(
    x: str, label: str, base: str, offset: int, count: int, wanted: list[tuple[str, int]], mask: str = "", *,
    also_wanted: bool = False,
) -> str:  # fmt: skip
    """IR that goes on where `count` words at a byte offset are as wanted: as those at a place, under the mask at another, if
    there is one, or under a constant, which may hold for what is wanted as well."""
    kind = f"<{count} x i64>"
    n = f"{x}.{label}"
    lines = [f"  %{n}.p = getelementptr i8, ptr %{x}.{base}, i64 {offset}", f"  %{n}.now = load {kind}, ptr %{n}.p, align 8"]
    for k, (place, at) in enumerate(wanted):
        lines += [f"  %{n}.w{k}.p = getelementptr i8, ptr %{x}.{place}, i64 {at}",
                  f"  %{n}.w{k} = load {kind}, ptr %{n}.w{k}.p, align 8"]  # fmt: skip
    if len(wanted) == 2:
        mask = f"%{n}.w1"
    kept = f"%{n}.now"
    if mask:
        kept = f"%{n}.kept"
        lines.append(f"  {kept} = and {kind} %{n}.now, {mask}")
    if also_wanted:
        lines.append(f"  %{n}.wanted = and {kind} %{n}.w0, {mask}")
    return "\n".join([
        *lines, f"  %{n}.xor = xor {kind} {kept}, %{n}.{'wanted' if also_wanted else 'w0'}",
        f"  %{n}.bits = call i64 @llvm.vector.reduce.or.v{count}i64({kind} %{n}.xor)",
        f"  %{n}.good = icmp eq i64 %{n}.bits, 0", f"  br i1 %{n}.good, label %{n}.same, label %changed", f"{n}.same:",
    ])  # fmt: skip


def _ahead_ir(x: str, layout: TensorLayout) -> str:
    """IR that asks for the memory of a tensor to come. Asking never faults, whatever the address."""
    lines = [
        f"  %{x}.ahead = add i64 %{x}.k, {_AHEAD}",
        f"  %{x}.inside = icmp slt i64 %{x}.ahead, %{x}.final",
        f"  %{x}.then = select i1 %{x}.inside, i64 %{x}.ahead, i64 %{x}.final",
        f"  %{x}.then.at = mul i64 %{x}.then, {RECORD_WORDS}",
        f"  %{x}.then.record = getelementptr i64, ptr %{x}.records, i64 %{x}.then.at",
    ]
    autograd = OWN_WORDS + layout.autograd - layout.first
    lines_of = {IMPL: (8 * layout.first, 8 * layout.first + 64, 8 * layout.last),
                OWN_WORDS: (8 * layout.data,), autograd: (8 * layout.grad, 8 * layout.flags)}  # fmt: skip
    for word, offsets in lines_of.items():
        lines += [f"  %{x}.then{word}.p = getelementptr i64, ptr %{x}.then.record, i64 {word}",
                  f"  %{x}.then{word} = load ptr, ptr %{x}.then{word}.p"]  # fmt: skip
        for offset in offsets:
            lines += [f"  %{x}.then{word}.{offset} = getelementptr i8, ptr %{x}.then{word}, i64 {offset}",
                      f"  call void @llvm.prefetch.p0(ptr %{x}.then{word}.{offset}, i32 0, i32 3, i32 1)"]  # fmt: skip
    return "\n".join(lines)
