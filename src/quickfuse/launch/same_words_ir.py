"""LLVM IR that compares the words of tensors with those of records, a range for each thread: see `same_tensors_ir.py`."""

from __future__ import annotations

from .bulk_reads import TYPE
from .tensor_layout import FIRST_WORDS as LANES
from .tensor_layout import OBJECT_MASK, TensorLayout

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
#: How many records ahead memory is asked for.
AHEAD = 8


def load_word(name: str, base: str, offset: int) -> str:
    """IR that sets %name to the word at a byte offset from %base."""
    return f"  %{name}.p = getelementptr i8, ptr %{base}, i64 {offset}\n  %{name} = load i64, ptr %{name}.p"


def _each_record(name: str, layout: TensorLayout, before: str, body: str) -> str:
    """IR of a function that goes through a range of a share's records. Number %t.k is %t.record; `body` ends by going to the
    block `next`, or to `changed`, which says so in the share."""
    assert layout.handle == TYPE + 8
    return f"""
define internal void @{name}(ptr %share, ptr %scalars, i64 %first, i64 %past, ptr %memo) nounwind {{
entry:
  %t.records = load ptr, ptr %share
{before}
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
{body}
next:
  %t.k.next = add i64 %t.k, 1
  br label %head
changed:
  %any.p = getelementptr i64, ptr %share, i64 1
  store atomic i64 1, ptr %any.p monotonic, align 8
  ret void
exit:
  ret void
}}
"""


def records_ir(name: str, layout: TensorLayout) -> str:
    """IR of a function that compares the words of some tensors, a range of those of a share, and says there if they are
    others. Their C++ objects are known to be alive."""
    return _each_record(name, layout, "", f"{_tensor_ir('t', layout)}\nt.next:\n  br label %next")


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


def gradients_ir(name: str, layout: TensorLayout) -> str:
    """IR of a function that compares gradients, a range of those of a share. A backward pass makes new tensors: such a one
    has to be as the one before was in all but its address."""
    before = f"""{load_word("objects.i", "share", 32)}
  %objects = inttoptr i64 %objects.i to ptr
{load_word("gradients.i", "share", 40)}
  %gradients = inttoptr i64 %gradients.i to ptr
{load_word("moved.i", "share", 48)}
  %moved = inttoptr i64 %moved.i to ptr
{load_word("strict.i", "share", 56)}
  %strict = icmp ne i64 %strict.i, 0"""
    body = f"""  %gradient.at = mul i64 %t.k, {GRADIENT_WORDS}
  %gradient = getelementptr i64, ptr %gradients, i64 %gradient.at
  %slot = load ptr, ptr %gradient
  %impl = load ptr, ptr %slot
{load_word("address.i", "gradient", 8)}
{load_word("offset", "gradient", 16)}
{load_word("free", "gradient", 24)}
{load_word("place.i", "gradient", 32)}
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
  %object.at = mul i64 %t.k, {OBJECT_WORDS}
  %object.p = getelementptr i64, ptr %objects, i64 %object.at
  %object = load i64, ptr %object.p
  store i64 %object, ptr %place
  br label %found
n.compare:
{_new_tensor_ir("n", layout)}
n.next:
{load_word("python", "impl", 8 * layout.object)}
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
  br label %next"""
    return _each_record(name, layout, before, body)


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
    return "\n".join(lines)
