"""LLVM IR of walks that are known to be unchanged: it compares the words at addresses with those that are wanted, in order,
and makes lists of objects. See `unchanged.py`."""

from __future__ import annotations

from . import builtin
from .bulk_reads import LIST_ITEMS, LIST_SIZE

#: Words of the block that the native function reads for each list: how many roots, where they are, the same for words and
#: results, and how often it found everything unchanged.
BLOCK_WORDS = 7
#: Which of these words is where the results are, another place for each list.
RESULTS_WORD = 5


def returned_list_ir(count: str, value: str) -> str:
    """LLVM IR that returns a new Python list, or null where there is no memory for it. `value` sets %value to a reference of
    the list's own for object %o."""
    return f"""  %made = call ptr {builtin.api("PyList_New")}(i64 {count})
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %fail, label %fill
fill:
  %slots.p = getelementptr i8, ptr %made, i64 {LIST_ITEMS}
  %slots = load ptr, ptr %slots.p
  br label %out.head
out.head:
  %o = phi i64 [ 0, %fill ], [ %o.next, %out.body ]
  %out.done = icmp sge i64 %o, {count}
  br i1 %out.done, label %exit, label %out.body
out.body:
{value}
  %list.slot = getelementptr ptr, ptr %slots, i64 %o
  store ptr %value, ptr %list.slot
  %o.next = add i64 %o, 1
  br label %out.head
exit:
  ret ptr %made
fail:
  ret ptr null"""


def held_object_ir(objects: str) -> str:
    """LLVM IR of the `value` of such a list that has the objects of an array."""
    return f"""  %value.p = getelementptr ptr, ptr {objects}, i64 %o
  %value = load ptr, ptr %value.p
  call void {builtin.api("Py_IncRef")}(ptr %value)"""


#: LLVM IR that returns None.
RETURNED_NONE = f"""  call void {builtin.api("Py_IncRef")}(ptr inttoptr (i64 {id(None)} to ptr))
  ret ptr inttoptr (i64 {id(None)} to ptr)"""


def pairs_ir(before: str, count: str, after: str) -> str:
    """LLVM IR of the block `pair.head`, which comes after the block `before`: it compares the words at addresses with those
    wanted, by the pairs at %pairs, in their order, and goes to the block `after`, or to `changed`."""
    return f"""pair.head:
  %k = phi i64 [ 0, {before} ], [ %k.next, %pair.next ]
  %pairs.done = icmp sge i64 %k, {count}
  br i1 %pairs.done, label %{after}, label %pair.body
pair.body:
  %pair = getelementptr {{ i64, i64 }}, ptr %pairs, i64 %k
  %address = load ptr, ptr %pair
  %want.p = getelementptr i64, ptr %pair, i64 1
  %want = load i64, ptr %want.p
  %word = load i64, ptr %address
  %same = icmp eq i64 %word, %want
  br i1 %same, label %pair.next, label %changed
pair.next:
  %k.next = add i64 %k, 1
  br label %pair.head"""


def find_ir(name: str) -> str:
    """LLVM IR that finds the block with the roots in an array, and compares all its words."""
    fields = "\n".join(
        f"  %f{k}.p = getelementptr i64, ptr %block, i64 {k}\n  %f{k} = load i64, ptr %f{k}.p" for k in range(BLOCK_WORDS)
    )
    return f"""
define ptr @{name}(ptr %items, i64 %size, i64 %block.i) {{
entry:
  %blocks = inttoptr i64 %block.i to ptr
  %count = load i64, ptr %blocks
  br label %block.head
block.head:
  %b = phi i64 [ 0, %entry ], [ %b.next, %block.next ]
  %blocks.done = icmp sge i64 %b, %count
  br i1 %blocks.done, label %changed, label %block.body
block.next:
  %b.next = add i64 %b, 1
  br label %block.head
block.body:
  %block.at = mul i64 %b, {BLOCK_WORDS}
  %block.word = add i64 %block.at, 1
  %block = getelementptr i64, ptr %blocks, i64 %block.word
{fields}
  %as.many = icmp eq i64 %size, %f0
  br i1 %as.many, label %start, label %block.next
start:
  %roots = inttoptr i64 %f1 to ptr
  %pairs = inttoptr i64 %f3 to ptr
  br label %root.head
root.head:
  %r = phi i64 [ 0, %start ], [ %r.next, %root.next ]
  %roots.done = icmp sge i64 %r, %f0
  br i1 %roots.done, label %pair.head, label %root.body
root.body:
  %root.now.p = getelementptr i64, ptr %items, i64 %r
  %root.now = load i64, ptr %root.now.p
  %root.then.p = getelementptr i64, ptr %roots, i64 %r
  %root.then = load i64, ptr %root.then.p
  %root.same = icmp eq i64 %root.now, %root.then
  br i1 %root.same, label %root.next, label %block.next
root.next:
  %r.next = add i64 %r, 1
  br label %root.head
{pairs_ir("%root.head", "%f2", "found")}
found:
  %hits = add i64 %f6, 1
  store i64 %hits, ptr %f6.p
  ret ptr %block
changed:
  ret ptr null
}}
"""


def scan_ir(name: str, find: str) -> str:
    """LLVM IR of the scan of the roots in a Python list, which makes the list of results where all is unchanged."""
    return f"""
define ptr @{name}(ptr %list, i64 %block.i) {{
entry:
  %size.p = getelementptr i8, ptr %list, i64 {LIST_SIZE}
  %size = load i64, ptr %size.p
  %items.p = getelementptr i8, ptr %list, i64 {LIST_ITEMS}
  %items = load ptr, ptr %items.p
  %block = call ptr @{find}(ptr %items, i64 %size, i64 %block.i)
  %none = icmp eq ptr %block, null
  br i1 %none, label %changed, label %collect
collect:
  %count.p = getelementptr i64, ptr %block, i64 4
  %count = load i64, ptr %count.p
  %results.p = getelementptr i64, ptr %block, i64 {RESULTS_WORD}
  %results = load ptr, ptr %results.p
{returned_list_ir("%count", held_object_ir("%results"))}
changed:
{RETURNED_NONE}
}}
"""


#: IR that puts what is at `places` into `words`. A word that is not 0 there before is what must be found: 0 is returned
#: where it is not, and nothing after it is read.
READ_WORDS = """
define i64 @quickfuse_read_words(i64 %places.i, i64 %words.i, i64 %count) {
entry:
  %places = inttoptr i64 %places.i to ptr
  %words = inttoptr i64 %words.i to ptr
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %keep ]
  %done = icmp sge i64 %k, %count
  br i1 %done, label %exit, label %body
body:
  %place.p = getelementptr ptr, ptr %places, i64 %k
  %place = load ptr, ptr %place.p
  %word = load i64, ptr %place
  %word.p = getelementptr i64, ptr %words, i64 %k
  %wanted = load i64, ptr %word.p
  %any = icmp eq i64 %wanted, 0
  %as.wanted = icmp eq i64 %wanted, %word
  %good = or i1 %any, %as.wanted
  br i1 %good, label %keep, label %changed
keep:
  store i64 %word, ptr %word.p
  %k.next = add i64 %k, 1
  br label %head
exit:
  ret i64 1
changed:
  ret i64 0
}
"""
