"""LLVM IR of a product of small matrices, `left @ right + bias`, for matrices of any size and nearly any strides.

A block of columns, one vector wide, is gone through at a time, with sums for eight rows in registers. Where the columns of
the right operand are what is contiguous, as those of the transposed weight of a linear layer are, the block is copied first
so that its rows are. What is at the edges is masked.

Products are added up in the type of the elements, in the order of the depth and with one rounding for a multiplication and
an addition, as libraries for large products do; the bias is added last.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.products import MOST_DEPTH

#: The words of the block that a product gets, in order. Strides and sizes are in elements; `floor` is the bits of the least
#: value of a result, in the elements' type: minus infinity, or zero after a ReLU. There are `batch` such products, whose
#: operands are `left_step` and `right_step` apart; the results lie one after the other.
WORDS = (
    "left", "right", "bias", "result", "rows", "columns", "depth", "left_row", "left_column", "right_row", "right_column",
    "floor", "batch", "left_step", "right_step",
)  # fmt: skip

#: The sums of so many rows are formed together.
_TOGETHER = (8, 4, 2, 1)


def product_ir(name: str, element: str, vector_bytes: int) -> str:
    """A function `name` of the address of a block, and one that it calls. `element` is "float" or "double"."""
    lanes = vector_bytes // (4 if element == "float" else 8)
    return "\n".join([_copy_ir(name, element, lanes), *_product_lines(name, element, lanes)])


class _Types:
    def __init__(self, element: str, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        self.vector = f"<{lanes} x {element}>"
        self.mask = f"<{lanes} x i1>"
        self.short = f"v{lanes}{'f32' if element == 'float' else 'f64'}"
        self.bytes = 4 if element == "float" else 8
        self.numbers = f"<{', '.join([f'i64 {k}' for k in range(lanes)])}>"

    def declarations(self) -> list[str]:
        return [
            f"declare {self.vector} @llvm.masked.load.{self.short}.p0(ptr, i32, {self.mask}, {self.vector})",
            f"declare void @llvm.masked.store.{self.short}.p0({self.vector}, ptr, i32, {self.mask})",
            f"declare {self.vector} @llvm.fmuladd.{self.short}({self.vector}, {self.vector}, {self.vector})",
        ]

    def load(self, to: str, pointer: str, mask: str) -> str:
        return (
            f"  {to} = call {self.vector} @llvm.masked.load.{self.short}.p0(ptr {pointer}, i32 {self.bytes}, "
            f"{self.mask} {mask}, {self.vector} zeroinitializer)"
        )

    def store(self, value: str, pointer: str, mask: str) -> str:
        return (
            f"  call void @llvm.masked.store.{self.short}.p0({self.vector} {value}, ptr {pointer}, i32 {self.bytes}, "
            f"{self.mask} {mask})"
        )

    def splat(self, to: str, kind: str, value: str) -> list[str]:
        """The same value in all lanes."""
        vector = f"<{self.lanes} x {kind}>"
        return [
            f"  {to}.one = insertelement {vector} poison, {kind} {value}, i32 0",
            f"  {to} = shufflevector {vector} {to}.one, {vector} poison, <{self.lanes} x i32> zeroinitializer",
        ]

    def below(self, to: str, limit: str) -> list[str]:
        """The lanes whose numbers are below a limit."""
        limits = f"<{self.lanes} x i64>"
        return [
            *self.splat(f"{to}.limit", "i64", limit),
            f"  {to} = icmp ult {limits} {self.numbers}, {to}.limit",
        ]

    def at(self, to: str, pointer: str, index: str) -> str:
        return f"  {to} = getelementptr {self.element}, ptr {pointer}, i64 {index}"


def _copy_ir(name: str, element: str, lanes: int) -> str:
    """A function that copies up to as many columns as a vector has lanes, each of which is contiguous, as rows."""
    t = _Types(element, lanes)
    lines = [
        *t.declarations(),
        f"define internal void @{name}.copy(ptr %to, ptr %from, i64 %step, i64 %depth, i64 %count) nounwind {{",
        "entry:",
        "  br label %squares",
        "squares:",
        "  %k = phi i64 [ 0, %entry ], [ %k.next, %squares ]",
        "  %left = sub i64 %depth, %k",
        *t.below("%deep", "%left"),
        t.at("%from.k", "%from", "%k"),
    ]
    rows = []
    for r in range(lanes):
        lines += [
            f"  %there.{r} = icmp ult i64 {r}, %count",
            *t.splat(f"%there.{r}.all", "i1", f"%there.{r}"),
            f"  %mask.{r} = and {t.mask} %deep, %there.{r}.all",
            f"  %far.{r} = mul i64 %step, {r}",
            t.at(f"%from.{r}", "%from.k", f"%far.{r}"),
            t.load(f"%row.{r}", f"%from.{r}", f"%mask.{r}"),
        ]
        rows.append(f"%row.{r}")
    lines += _transposed(t, rows)
    lines += ["  %at = mul i64 %k, " + str(lanes), t.at("%to.k", "%to", "%at")]
    for r in range(lanes):
        lines += [t.at(f"%to.{r}", "%to.k", str(r * lanes)), f"  store {t.vector} {rows[r]}, ptr %to.{r}, align {t.bytes}"]
    lines += [
        f"  %k.next = add i64 %k, {lanes}",
        "  %more = icmp slt i64 %k.next, %depth",
        "  br i1 %more, label %squares, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def _transposed(t: _Types, rows: list[str]) -> Iterator[str]:
    """Make the rows of a square its columns: for each bit of the numbers of rows and lanes, exchange where it differs."""
    bit = 1
    while bit < t.lanes:
        for first in [r for r in range(t.lanes) if not r & bit]:
            second = first | bit
            upper, lower = rows[first], rows[second]
            low = [k if not k & bit else t.lanes + (k ^ bit) for k in range(t.lanes)]
            high = [k | bit if not k & bit else t.lanes + k for k in range(t.lanes)]
            for place, lanes in ((first, low), (second, high)):
                made = f"%turned.{bit}.{place}"
                chosen = ", ".join([f"i32 {k}" for k in lanes])
                yield (
                    f"  {made} = shufflevector {t.vector} {upper}, {t.vector} {lower}, <{t.lanes} x i32> <{chosen}>"
                )
                rows[place] = made
        bit *= 2


def _product_lines(name: str, element: str, lanes: int) -> Iterator[str]:
    t = _Types(element, lanes)
    yield f"define void @{name}(ptr %block) nounwind {{"
    yield "start:"
    yield f"  %copied = alloca [{MOST_DEPTH * lanes} x {element}], align 64"
    for k, word in enumerate(WORDS):
        kind = "ptr" if word in ("left", "right", "bias", "result") else "i64"
        kind = element if word == "floor" else kind
        first = ".0" if word in ("left", "right", "result") else ""
        yield f"  %{word}.at = getelementptr i64, ptr %block, i64 {k}"
        yield f"  %{word}{first} = load {kind}, ptr %{word}.at"
    yield from t.splat("%floors", element, "%floor")
    yield "  %has.bias = icmp ne ptr %bias, null"
    yield from t.splat("%has.biases", "i1", "%has.bias")
    yield "  %turn = icmp ne i64 %right_column, 1"
    yield "  %size = mul i64 %rows, %columns"
    yield "  br label %entry"
    yield "entry:"
    yield "  %n = phi i64 [ 0, %start ], [ %n.next, %columns.done ]"
    for word, step in (("left", "left_step"), ("right", "right_step"), ("result", "size")):
        yield f"  %{word}.far = mul i64 %n, %{step}"
        yield t.at(f"%{word}", f"%{word}.0", f"%{word}.far")
    yield "  br label %block.of.columns"
    yield "block.of.columns:"
    yield "  %j = phi i64 [ 0, %entry ], [ %j.next, %rows.done ]"
    yield "  %left.over = sub i64 %columns, %j"
    yield from t.below("%inside", "%left.over")
    yield "  %far = mul i64 %j, %right_column"
    yield t.at("%right.j", "%right", "%far")
    yield "  br i1 %turn, label %copy, label %multiply"
    yield "copy:"
    yield f"  call void @{name}.copy(ptr %copied, ptr %right.j, i64 %right_column, i64 %depth, i64 %left.over)"
    yield "  br label %multiply"
    yield "multiply:"
    yield "  %from = phi ptr [ %right.j, %block.of.columns ], [ %copied, %copy ]"
    yield f"  %from.step = phi i64 [ %right_row, %block.of.columns ], [ {lanes}, %copy ]"
    yield f"  %bias.mask = and {t.mask} %inside, %has.biases"
    yield t.at("%bias.j", "%bias", "%j")
    yield t.load("%biases", "%bias.j", "%bias.mask")
    yield t.at("%result.j", "%result", "%j")
    yield f"  br label %rows.{_TOGETHER[0]}"
    before = "%multiply"
    start = "0"
    for rows, following in zip(_TOGETHER, [*[f"rows.{r}" for r in _TOGETHER[1:]], "rows.done"], strict=True):
        yield from _tile(t, rows, before, start, following)
        before, start = f"%rows.{rows}", f"%i.{rows}"
    yield "rows.done:"
    yield f"  %j.next = add i64 %j, {lanes}"
    yield "  %more = icmp slt i64 %j.next, %columns"
    yield "  br i1 %more, label %block.of.columns, label %columns.done"
    yield "columns.done:"
    yield "  %n.next = add i64 %n, 1"
    yield "  %again = icmp slt i64 %n.next, %batch"
    yield "  br i1 %again, label %entry, label %done"
    yield "done:"
    yield "  ret void"
    yield "}"


def _tile(t: _Types, rows: int, before: str, start: str, following: str) -> Iterator[str]:
    """So many rows of the block of columns at a time, as long as there are as many; then on to the block `following`."""
    n = f".{rows}"
    yield f"rows{n}:"
    yield f"  %i{n} = phi i64 [ {start}, {before} ], [ %i.next{n}, %store{n} ]"
    yield f"  %i.next{n} = add i64 %i{n}, {rows}"
    yield f"  %fits{n} = icmp sle i64 %i.next{n}, %rows"
    yield f"  br i1 %fits{n}, label %begin{n}, label %{following}"
    yield f"begin{n}:"
    for r in range(rows):
        yield f"  %i{n}.{r} = add i64 %i{n}, {r}"
        yield f"  %far{n}.{r} = mul i64 %i{n}.{r}, %left_row"
        yield t.at(f"%left{n}.{r}", "%left", f"%far{n}.{r}")
    yield f"  br label %sum{n}"
    yield f"sum{n}:"
    yield f"  %k{n} = phi i64 [ 0, %begin{n} ], [ %k.next{n}, %sum{n} ]"
    yield f"  %at.left{n} = phi i64 [ 0, %begin{n} ], [ %at.left.next{n}, %sum{n} ]"
    yield f"  %at.right{n} = phi i64 [ 0, %begin{n} ], [ %at.right.next{n}, %sum{n} ]"
    for r in range(rows):
        yield f"  %sum{n}.{r} = phi {t.vector} [ zeroinitializer, %begin{n} ], [ %sum.next{n}.{r}, %sum{n} ]"
    yield t.at(f"%from{n}", "%from", f"%at.right{n}")
    yield t.load(f"%b{n}", f"%from{n}", "%inside")
    for r in range(rows):
        yield t.at(f"%a.at{n}.{r}", f"%left{n}.{r}", f"%at.left{n}")
        yield f"  %a{n}.{r} = load {t.element}, ptr %a.at{n}.{r}"
        yield from t.splat(f"%as{n}.{r}", t.element, f"%a{n}.{r}")
        yield (
            f"  %sum.next{n}.{r} = call {t.vector} @llvm.fmuladd.{t.short}({t.vector} %as{n}.{r}, {t.vector} %b{n}, "
            f"{t.vector} %sum{n}.{r})"
        )
    yield f"  %k.next{n} = add i64 %k{n}, 1"
    yield f"  %at.left.next{n} = add i64 %at.left{n}, %left_column"
    yield f"  %at.right.next{n} = add i64 %at.right{n}, %from.step"
    yield f"  %more{n} = icmp slt i64 %k.next{n}, %depth"
    yield f"  br i1 %more{n}, label %sum{n}, label %store{n}"
    yield f"store{n}:"
    for r in range(rows):
        yield f"  %biased{n}.{r} = fadd {t.vector} %sum.next{n}.{r}, %biases"
        yield f"  %value{n}.{r} = select i1 %has.bias, {t.vector} %biased{n}.{r}, {t.vector} %sum.next{n}.{r}"
        yield f"  %low{n}.{r} = fcmp olt {t.vector} %value{n}.{r}, %floors"
        yield f"  %floored{n}.{r} = select {t.mask} %low{n}.{r}, {t.vector} %floors, {t.vector} %value{n}.{r}"
        yield f"  %below{n}.{r} = mul i64 %i{n}.{r}, %columns"
        yield t.at(f"%to{n}.{r}", "%result.j", f"%below{n}.{r}")
        yield t.store(f"%floored{n}.{r}", f"%to{n}.{r}", "%inside")
    yield f"  br label %rows{n}"
