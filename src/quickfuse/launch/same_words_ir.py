"""LLVM IR that compares the words of tensors with those of records, a range for each thread, and holds the tensors: see
`same_tensors_ir.py`."""

from __future__ import annotations

from .bulk_reads import TYPE
from .tensor_layout import FIRST_WORDS as LANES
from .tensor_layout import OBJECT_MASK, TensorLayout

#: A gradient's row: where the pointer to it is, where its address was noted, how many bytes it begins after its storage, and
#: whether it may be another tensor than before.
GRADIENT_WORDS = 4
#: A tensor's record, two cache lines: its template, its C++ object, the first words of this, those of its storage from the
#: address of the data on, and the flags of autograd.
TEMPLATE, IMPL, OWN_WORDS = 0, 1, 2
STORAGE = OWN_WORDS + LANES
STORAGE_WORDS = 4
NEEDS = STORAGE + STORAGE_WORDS
RECORD_WORDS = 16
#: A template: a word of the storage, the type of the Python object, then masks and values of the other words.
TEMPLATE_HEADER = 2
#: How many records ahead memory is asked for, and how many ahead Python objects.
AHEAD = 8
#: All tensors: where their records are, whether one of them was found changed, 0, how many there are, how many of them are
#: tensors with their gradients after them, where the gradients' rows are, the word that says that one moved, whether none
#: may, where to put the objects that are held, and whether one of them is `ASK`.
RECORDS, ANY, FIRST, COUNT, PAIRED, GRADIENTS, MOVES, STRICT, HELD, ASKED = range(10)
SHARE_WORDS = 10
#: Stands for a gradient whose tensor has to be asked for it.
ASK = 1


def load_word(name: str, base: str, offset: int) -> str:
    """IR that sets %name to the word at a byte offset from %base."""
    return f"  %{name}.p = getelementptr i8, ptr %{base}, i64 {offset}\n  %{name} = load i64, ptr %{name}.p"


def records_ir(name: str, layout: TensorLayout) -> str:
    """IR of a function that compares the words of some tensors, a range of those of a share, and says there if they are
    others. It holds the Python objects of those that are the same.

    A gradient comes after its tensor, which shows where it is, in the same range. A backward pass makes new tensors: such a
    one has to be as the one before was in all but its address.
    """
    assert layout.handle == TYPE + 8
    fields = {"paired": PAIRED, "strict.i": STRICT}
    pointers = {"t.records": RECORDS, "gradients": GRADIENTS, "moved": MOVES, "held": HELD}
    before = [load_word(field, "share", 8 * word) for field, word in fields.items()]
    before += [_load_pointer(field, "share", 8 * word) for field, word in pointers.items()]
    return f"""
define internal void @{name}(ptr %share, ptr %scalars, i64 %first, i64 %past, ptr %memo) nounwind {{
entry:
{chr(10).join(before)}
  %strict = icmp ne i64 %strict.i, 0
  %t.final = sub i64 %past, 1
  br label %head
head:
  %t.k = phi i64 [ %first, %entry ], [ %t.k.next, %next ]
  %done = icmp sge i64 %t.k, %past
  br i1 %done, label %exit, label %body
body:
  %t.at = mul i64 %t.k, {RECORD_WORDS}
  %t.record = getelementptr i64, ptr %t.records, i64 %t.at
{_ahead_ir("t", layout)}
  %place = getelementptr i64, ptr %held, i64 %t.k
{_load_pointer("then.impl", "t.record", 8 * IMPL)}
{_load_pointer("then.template", "t.record", 8 * TEMPLATE)}
{load_word("then.type", "then.template", 8)}
{_load_pointer("own.object", "t.record", 8 * (OWN_WORDS + layout.object - layout.first))}
  %half = and i64 %t.k, 1
  %second = icmp ne i64 %half, 0
  %of.pair = icmp slt i64 %t.k, %paired
  %is.gradient = and i1 %second, %of.pair
  br i1 %is.gradient, label %gradient, label %object
object:
{_same_object("o", "own.object", "then.impl", "t.compare")}
t.compare:
{_tensor_ir("t", layout)}
t.next:
  br label %hold
gradient:
  %row.number = lshr i64 %t.k, 1
  %row.at = mul i64 %row.number, {GRADIENT_WORDS}
  %row = getelementptr i64, ptr %gradients, i64 %row.at
{_load_pointer("slot", "row", 0)}
  %impl = load ptr, ptr %slot
{_load_pointer("address", "row", 8)}
{load_word("offset", "row", 16)}
{load_word("free", "row", 24)}
  %same = icmp eq ptr %impl, %then.impl
  %may = icmp ne i64 %free, 0
  br i1 %may, label %n.compare, label %known
known:
  %k.record = getelementptr i64, ptr %t.record, i64 0
  br i1 %same, label %k.compare, label %changed
k.compare:
{_tensor_ir("k", layout)}
k.next:
{load_word("k.found", "k.record", 8 * STORAGE)}
  br label %found
n.compare:
{_new_tensor_ir("n", layout)}
n.next:
  br label %found
found:
  %data = phi i64 [ %k.found, %k.next ], [ %n.found, %n.next ]
  %now = add i64 %data, %offset
  %noted = load i64, ptr %address
  %stays = icmp eq i64 %now, %noted
  br i1 %stays, label %owned, label %moves
moves:
  br i1 %strict, label %changed, label %note
note:
  store i64 %now, ptr %address
  store atomic i64 1, ptr %moved monotonic, align 8
  br label %owned
owned:
{load_word("python", "impl", 8 * layout.object)}
  %python.bits = and i64 %python, {~OBJECT_MASK}
  %python.own = and i64 %python, {OBJECT_MASK}
  %python.object = inttoptr i64 %python.own to ptr
  %python.none = icmp eq i64 %python.own, 0
  br i1 %python.none, label %ask, label %python.known
python.known:
{_same_object("p", "python.object", "impl", "python.same")}
python.same:
  %python.owns = icmp eq i64 %python.bits, 0
  %python.held = and i1 %python.owns, %same
  br i1 %python.held, label %hold, label %ask
ask:
  %is.owned = phi i1 [ false, %owned ], [ %python.owns, %python.same ]
  %not.strict = xor i1 %strict, true
  %asks = or i1 %not.strict, %is.owned
  br i1 %asks, label %ask.noted, label %without
ask.noted:
  store i64 {ASK}, ptr %place
  %asked.p = getelementptr i64, ptr %share, i64 {ASKED}
  store atomic i64 1, ptr %asked.p monotonic, align 8
  br label %next
without:
  store i64 0, ptr %place
  br label %next
hold:
  %kept = phi ptr [ %own.object, %t.next ], [ %python.object, %python.same ]
  %references = load i32, ptr %kept
  %references.more = add i32 %references, 1
  store i32 %references.more, ptr %kept
  store ptr %kept, ptr %place
  br label %next
next:
  %t.k.next = add i64 %t.k, 1
  br label %head
changed:
  %any.p = getelementptr i64, ptr %share, i64 {ANY}
  store atomic i64 1, ptr %any.p monotonic, align 8
  br label %rest
rest:
  %r = phi i64 [ %t.k, %changed ], [ %r.next, %rest ]
  %rest.p = getelementptr i64, ptr %held, i64 %r
  store i64 0, ptr %rest.p
  %r.next = add i64 %r, 1
  %rest.done = icmp sge i64 %r.next, %past
  br i1 %rest.done, label %exit, label %rest
exit:
  ret void
}}
"""


def _load_pointer(name: str, base: str, offset: int) -> str:
    return f"  %{name}.p = getelementptr i8, ptr %{base}, i64 {offset}\n  %{name} = load ptr, ptr %{name}.p"


def _same_object(x: str, python: str, impl: str, label: str) -> str:
    """IR that goes on where a Python object has the type %then.type and the C++ object %`impl`."""
    return f"""  %{x}.impl.i = ptrtoint ptr %{impl} to i64
  %{x}.now.p = getelementptr i8, ptr %{python}, i64 {TYPE}
  %{x}.now = load <2 x i64>, ptr %{x}.now.p, align 8
  %{x}.want0 = insertelement <2 x i64> poison, i64 %then.type, i32 0
  %{x}.want = insertelement <2 x i64> %{x}.want0, i64 %{x}.impl.i, i32 1
  %{x}.xor = xor <2 x i64> %{x}.now, %{x}.want
  %{x}.bits = call i64 @llvm.vector.reduce.or.v2i64(<2 x i64> %{x}.xor)
  %{x}.good = icmp eq i64 %{x}.bits, 0
  br i1 %{x}.good, label %{label}, label %changed"""


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
{load_word(f"{x}.flag.now", f"{x}.storage", 8 * layout.storage_flag)}
{load_word(f"{x}.flag", f"{x}.template", 0)}
  %{x}.flag.same = icmp eq i64 %{x}.flag.now, %{x}.flag
  br i1 %{x}.flag.same, label %{x}.storage.known, label %changed
{x}.storage.known:
  %{x}.no.autograd = icmp eq ptr %{x}.autograd, null
  br i1 %{x}.no.autograd, label %{x}.next, label %{x}.autograd.known
{x}.autograd.known:
{load_word(f"{x}.function.now", f"{x}.autograd", 8 * layout.function)}
{load_word(f"{x}.needs.now", f"{x}.autograd", 8 * layout.flags)}
{load_word(f"{x}.needs", f"{x}.record", 8 * NEEDS)}
  %{x}.needs.xor = xor i64 %{x}.needs.now, %{x}.needs
  %{x}.all.bits = or i64 %{x}.needs.xor, %{x}.function.now
  %{x}.autograd.same = icmp eq i64 %{x}.all.bits, 0
  br i1 %{x}.autograd.same, label %{x}.next, label %changed"""


def _new_tensor_ir(x: str, layout: TensorLayout) -> str:
    """IR that compares the tensor %impl with the record of another one: in all but what tells one from the other. It sets
    `x.found` to where its storage is."""
    free = {layout.storage, layout.version, layout.object, *([layout.object - 1] if layout.interpreter else [])}
    bits = ", ".join(f"i64 {0 if layout.first + k in free else -1}" for k in range(LANES))
    own = _same_words(x, "own", "impl", 8 * layout.first, LANES, [("record", 8 * OWN_WORDS)], f"<{bits}>", also_wanted=True)
    same = []
    for k in (1, 2):  # who owns the memory: what is the address of the data there must be it here
        same.append(f"""{load_word(f"{x}.now{k}", f"{x}.storage", 8 * (layout.data + k))}
{load_word(f"{x}.then{k}", f"{x}.record", 8 * (STORAGE + k))}
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
{load_word(f"{x}.version", f"{x}.impl", 8 * layout.version)}
{load_word(f"{x}.storage.i", f"{x}.impl", 8 * layout.storage)}
  %{x}.counted = icmp ne i64 %{x}.version, 0
  %{x}.stored = icmp ne i64 %{x}.storage.i, 0
  %{x}.usual = and i1 %{x}.counted, %{x}.stored
  br i1 %{x}.usual, label %{x}.is.usual, label %changed
{x}.is.usual:
  %{x}.storage = inttoptr i64 %{x}.storage.i to ptr
{load_word(f"{x}.found", f"{x}.storage", 8 * layout.data)}
{load_word(f"{x}.data.then", f"{x}.record", 8 * STORAGE)}
{chr(10).join(same)}
{load_word(f"{x}.flag.now", f"{x}.storage", 8 * layout.storage_flag)}
{load_word(f"{x}.flag", f"{x}.template", 0)}
  %{x}.flag.xor = xor i64 %{x}.flag.now, %{x}.flag
  %{x}.flag.bits = and i64 %{x}.flag.xor, {layout.storage_bits}
  %{x}.flag.same = icmp eq i64 %{x}.flag.bits, 0
  br i1 %{x}.flag.same, label %{x}.next, label %changed"""


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
        f"  %{x}.ahead = add i64 %{x}.k, {AHEAD}",
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
    lines += [f"  %{x}.far = add i64 %{x}.k, {2 * AHEAD}", f"  %{x}.far.inside = icmp slt i64 %{x}.far, %{x}.final",
              f"  %{x}.far.k = select i1 %{x}.far.inside, i64 %{x}.far, i64 %{x}.final",
              f"  %{x}.far.at = mul i64 %{x}.far.k, {RECORD_WORDS}",
              f"  %{x}.far.record = getelementptr i64, ptr %{x}.records, i64 %{x}.far.at",
              _load_pointer(f"{x}.far.object", f"{x}.far.record", 8 * (OWN_WORDS + layout.object - layout.first)),
              f"  call void @llvm.prefetch.p0(ptr %{x}.far.object, i32 1, i32 3, i32 1)"]  # fmt: skip
    return "\n".join(lines)
