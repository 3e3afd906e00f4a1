"""Triton kernels for bodies whose rows are gone through: reductions, scans and scatters, on tiles of rows and columns.

A program handles BLOCK rows of one member, in row-major order of the parallel axes, COLUMNS elements of each at a time; the
elements of a row are in row-major order of the other axes. A tile has whole rows, or there are loops over tiles (`Form`).
Where neighbours in memory belong to different rows, a tile extends along the innermost parallel axis alone.

Where all addresses and strides are multiples of 16, accesses are of 128 bits a thread, if no mask cuts them up: tiles that
are full have none. The kernel finds that out for each member and tile, if ALIGN says that it can be: ALIGN and ALIGNED are
numbers of `Access`. Rows that begin at any address are gone through from the first in each that is a multiple of 128 bits,
and the few elements before it come with those after the last whole tile; tiles of their own begin at the multiple before a
row, and only those at its ends have masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quickfuse.emit.plan import Plan
from quickfuse.emit.triton_builder import Scope, TritonBuilder, follows
from quickfuse.emit.triton_online import OnlineWalker, sums_along
from quickfuse.emit.triton_ops import constant, pointer_type, triton_type
from quickfuse.emit.triton_text import (
    alignment_hints,
    function,
    in_memory,
    index_lines,
    is_aligned,
    member_lines,
    member_parameters,
    offset,
    scalars,
    word_names,
    wrapped,
)
from quickfuse.emit.walker import Walker
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Const, Expr, walk
from quickfuse.ir.kernel import Form, KernelBody, Reduced, RowLength, StoreKind
from quickfuse.ir.loop import identity
from quickfuse.ir.target import CUDA


def row_functions(body: KernelBody, name: str, form: Form, in_arguments: bool) -> list[list[str]]:
    """The kernel `name`, and the function that handles a tile or a row of them."""
    names = word_names(body)
    numbers = [f"s{k}" for k, slot in enumerate(body.slots) if slot.by_value]
    outer = body.outer_axes(form)
    place = ["first", "start"] if form is Form.SPREAD else ["outer", "first"] if outer else ["first"]
    passed = [*names.values(), *numbers, *scalars(body), *place]
    sizes = ["BLOCK", "COLUMNS", "INDEX"]
    kernel = member_lines(body, in_arguments)
    if form is Form.SPREAD:
        more = f" + (ALIGN == 1) * {_elements_before(body)}" if body.shifted_slots else ""
        kernel += [
            f"tiles = tl.cdiv({_product(body.column_axes)}{more}, COLUMNS).to(tl.int32)",  # divisions of 64 bits are slow
            "first, start = (block // tiles).to(tl.int64) * BLOCK, (block % tiles).to(tl.int64) * COLUMNS",
        ]
    elif outer:
        kernel += [
            f"tiles = tl.cdiv({_product(body.row_axes[-1:])}, BLOCK).to(tl.int32)",
            "outer, first = block // tiles, (block % tiles).to(tl.int64) * BLOCK",
        ]
    else:
        kernel.append("first = block.to(tl.int64) * BLOCK")

    def call(indent: str, aligned: str) -> list[str]:
        return [indent + line for line in wrapped(f"{name}_rows({', '.join([*passed, aligned, *sizes])})")]

    words = body.aligned_words(form)
    if words:
        full = f"(first + BLOCK <= {_product(_tile_rows(body, form))})"
        full += f" & (start + COLUMNS <= {_product(body.column_axes)})" if form is Form.SPREAD else ""
        kernel += [
            "if ALIGN > 1:",
            f"    wide = {is_aligned(body, words)} & {full}",
            "    if ALIGN == 3:",
            f"        wide = wide & ({_product(body.column_axes)} % COLUMNS == 0)",
            "    if wide:",
            *call("        ", "ALIGN"),
            "    else:",
            *call("        ", "0"),
            *_shifted_call(body, form, call),
            "else:",
            *call("    ", "0"),
        ]
    else:
        kernel += call("", "0")
    parameters = [*passed, *(f"{x}: tl.constexpr" for x in ("ALIGNED", *sizes))]
    constexprs = [f"{x}: tl.constexpr" for x in ("BLOCK", "COLUMNS", "ALIGN", "INDEX")]
    return [
        function(f"{name}_rows", parameters, _rows(body, form)),
        function(name, [*member_parameters(body, in_arguments), *constexprs], kernel),
    ]


def _shifted_call(body: KernelBody, form: Form, call: Callable[[str, str], list[str]]) -> list[str]:
    """The branch for rows that begin anywhere. Their operands begin as many elements before an address that is a multiple of
    128 bits as the first one does, in all rows: else accesses are narrow, as they are at both ends of rows (-1)."""
    slots = [] if form is Form.WHOLE else body.shifted_slots
    if not slots:
        return []
    names, first = word_names(body), slots[0]
    conditions = []
    if form is Form.SPREAD:
        rows, length = _product(_tile_rows(body, form)), _product(body.column_axes)
        conditions.append(f"(start > 0) & (start + COLUMNS <= {length}) & (first + BLOCK <= {rows})")
    for k in slots[1:]:
        of_address = f"p{k} // {body.slots[k].dtype.itemsize} - p{first} // {body.slots[first].dtype.itemsize}"
        of_rows = [[names[body.stride_word(slot, axis)] for slot in (k, first)] for axis in body.row_axes]
        count = 16 // body.slots[k].dtype.itemsize
        conditions += [f"(({x}) % {count} == 0)" for x in (of_address, *(f"{one} - {other}" for one, other in of_rows))]
    if not conditions:
        return ["elif ALIGN == 1:", *call("    ", "1")]
    return [
        "elif ALIGN == 1:",
        f"    if {' & '.join(conditions)}:",
        *call("        ", "1"),
        "    else:",
        *call("        ", "-1" if form is Form.SPREAD else "0"),
    ]


def _elements_before(body: KernelBody) -> int:
    """How many elements a row may begin after an address that is a multiple of 128 bits, at most."""
    return 16 // body.slots[body.shifted_slots[0]].dtype.itemsize - 1


def _tile_rows(body: KernelBody, form: Form) -> tuple[int, ...]:
    """The axes that count the rows of a tile."""
    return body.row_axes[len(body.outer_axes(form)) :]


def _rows(body: KernelBody, form: Form) -> list[str]:
    """The statements of the function that handles BLOCK rows from `first` on. ALIGNED is what `Access` says of them."""
    names = word_names(body)
    kept = [f"p{k} = p{k}.to({pointer_type(slot.dtype)})" for k, slot in in_memory(body)]
    pointers = {f"p{k}" for k, _ in in_memory(body)}
    kept += [f"{x} = {x}.to(INDEX)" for x in names.values() if x not in pointers]
    if words := body.aligned_words(form):
        kept += ["if ALIGNED > 1:", *(f"    {line}" for line in alignment_hints(body, words))]
    lines = [
        *kept,
        f"length = {_product(body.column_axes)}",
        "x = first.to(INDEX) + tl.arange(0, BLOCK)[:, None]",
        *_mask_lines("x_mask", "[BLOCK, 1]", f"x < {_product(_tile_rows(body, form))}", "(ALIGNED > 1) | (BLOCK == 1)"),
        *index_lines("outer.to(INDEX)", body.outer_axes(form)),
        *index_lines("x", _tile_rows(body, form)),
        *(f"q{k} = p{k} + {moved}" for k, _ in in_memory(body) if (moved := offset(body, k, body.row_axes))),
        "lane = tl.arange(0, COLUMNS)[None, :]",
    ]
    if form is Form.WHOLE:
        lines += _tile_lines(body, "lane", _mask_lines("r_mask", "[1, COLUMNS]", "r < length", "ALIGNED == 3"))
    elif form is Form.SPREAD:
        lines += _spread_lines(body)
    else:
        lines += _begin_lines(body)
    return [*lines, *RowsBuilder(body, form).lines]


def base_of_rows(body: KernelBody, k: int) -> str:
    """Where a slot's rows begin."""
    return f"q{k}" if offset(body, k, body.row_axes) else f"p{k}"


def _from_aligned(body: KernelBody, k: int) -> list[str]:
    """Statements that find how many elements after an address that is a multiple of 128 bits a slot's rows begin: `h0` .."""
    within = " + ".join(filter(None, [f"before{k}", offset(body, k, body.row_axes)]))
    return [f"before{k} = (p{k}.to(tl.int64) % 16 // {body.slots[k].dtype.itemsize}).to(INDEX)", f"h{k} = {within}"]


def _aligned(body: KernelBody, k: int, moved: str) -> str:
    """The statement that makes an address of `h0` .., which is a multiple of 128 bits where it is moved by some elements. It
    is written as one that Triton sees to be: it loses a hint on the addresses of a single row."""
    count = 16 // body.slots[k].dtype.itemsize
    return f"h{k} = tl.multiple_of(p{k} - before{k}, 16) + (h{k} {moved}) // {count} * {count}"


def _begin_lines(body: KernelBody) -> list[str]:
    """Statements that find `head`, the elements of each row before the first address that is a multiple of 128 bits, and
    `full`, the elements of whole tiles: after the head, whose elements come with those that are left."""
    slots, lines = body.shifted_slots, ["full = length // COLUMNS * COLUMNS", "head = 0"]
    if slots:
        most = _elements_before(body)
        lines += [
            "if ALIGNED == 1:",
            *(f"    {line}" for k in slots for line in _from_aligned(body, k)),
            f"    head = (0 - h{slots[0]}) & {most}",
            f"    full = tl.maximum(length - {most}, 0) // COLUMNS * COLUMNS",
            *(f"    {_aligned(body, k, '+ head')}" for k in slots),
            "else:",
            *(f"    h{k} = {base_of_rows(body, k)}" for k in slots),
        ]
    return lines


def _spread_lines(body: KernelBody) -> list[str]:
    """Statements that find the indices in a tile of its own, which begins at a multiple of 128 bits."""
    slots, mask = body.shifted_slots, _mask_lines("r_mask", "[1, COLUMNS]", "r < length", "ALIGNED > 1")
    if not slots:
        return _tile_lines(body, "start.to(INDEX) + lane", mask)
    shifted = [
        *(line for k in slots for line in _from_aligned(body, k)),
        f"head = h{slots[0]} & {_elements_before(body)}",
        *(_aligned(body, k, "- head") for k in slots),
    ]
    return [
        "step = start.to(INDEX) + lane",
        "head = 0",
        "if (ALIGNED == 1) | (ALIGNED == -1):",
        *(f"    {line}" for line in shifted),
        *_tile_lines(body, "step - head", [
            "if (ALIGNED == 1) | (ALIGNED > 1):", f"    r_mask = {_everywhere('[1, COLUMNS]')}",
            "else:", "    r_mask = (r >= 0) & (r < length)",
        ]),
        "if ALIGNED == 1:",
        *(f"    v{k} = h{k}" for k in slots),
        "else:",
        *(f"    v{k} = {base_of_rows(body, k)}" for k in slots),
        "    step = r",
    ]  # fmt: skip


def _mask_lines(name: str, shape: str, condition: str, everywhere: str) -> list[str]:
    """Statements that make a mask, which holds everywhere if a condition on constants does."""
    return [f"if {everywhere}:", f"    {name} = {_everywhere(shape)}", "else:", f"    {name} = {condition}"]


def _everywhere(shape: str) -> str:
    return f"tl.full({shape}, True, tl.int1)"


def _tile_lines(body: KernelBody, first: str, mask: Sequence[str]) -> list[str]:
    return [
        f"r = {first}",
        *mask,
        "mask = x_mask & r_mask",
        "tile = x * 0 + r * 0",
        *index_lines("r", body.column_axes),
    ]


def _product(axes: Sequence[int]) -> str:
    return " * ".join(f"n{axis}" for axis in axes) or "1"


#: What combines all elements of each row of a tile: `{0}` is the tile.
_REDUCE = {
    "sum": "tl.sum({0}, 1)[:, None]",
    "add": "tl.sum({0}, 1)[:, None]",
    "or": "tl.max({0}, 1)[:, None]",
    "and": "tl.min({0}, 1)[:, None]",
    **{name: f"tl.reduce({{0}}, 1, qm.{name})[:, None]" for name in ("mul", "maximum", "minimum")},
}
#: What combines two tiles.
_COMBINE = {
    "sum": "{0} + {1}", "add": "{0} + {1}", "mul": "{0} * {1}", "or": "{0} | {1}", "and": "{0} & {1}",
    "maximum": "qm.maximum({0}, {1})", "minimum": "qm.minimum({0}, {1})",
}  # fmt: skip


class RowsBuilder(TritonBuilder):
    """Writes what is done with the rows of a program. Accumulators of bools are int32."""

    zero = "tile"

    def __init__(self, body: KernelBody, form: Form) -> None:
        self.form = form
        self.in_tile = not body.inner
        self._loops = self._passes = 0
        #: The sums that are computed with a maximum, by number, and the names of those that are there.
        self.sums: dict[int, int] = {}
        self.totals: dict[int, str] = {}
        within = walk(*(root for k, store in enumerate(body.stores) if k not in body.last for root in store.roots))
        #: The reductions that are only used once a row.
        self._for_rows = {*range(len(body.stores))} - {node.reduction for node in within if isinstance(node, Reduced)}
        super().__init__(body, self._address)

    def walker(self, plan: Plan) -> Walker[str]:
        self.sums = sums_along(plan) if self.form is Form.LOOPED else {}
        return OnlineWalker(plan, self, self.sums, self.totals)

    def _address(self, slot: int) -> tuple[str, str]:
        """The masks are None where all programs find the element there."""
        body = self.body
        by_row, within = offset(body, slot, _tile_rows(body, self.form)), offset(body, slot, body.column_axes)
        moves = by_row or offset(body, slot, body.outer_axes(self.form))
        if self.form is not Form.WHOLE and slot in body.shifted_slots:
            return f"v{slot} + step", "mask" if by_row else "r_mask"
        pointer = " + ".join([f"q{slot}" if moves else f"p{slot}", *([within] if within else [])])
        return pointer, "mask" if by_row and within else "x_mask" if by_row else "r_mask" if within else ""

    # --- values ---

    def leaf(self, expr: Expr) -> str:
        if isinstance(expr, RowLength):
            return self.name("length.to(tl.int64)", "n")
        return super().leaf(expr)

    def neighbours(self, element: Expr) -> str:
        axes = self.body.column_axes
        return "ALIGNED * ALIGNED != 1" if len(axes) == 1 and follows(element, axes[0]) else "False"

    def pick(self, slot: int, offset: str, inside: str) -> str:
        if self.in_tile:
            return super().pick(slot, offset, inside)
        self.mask, self.zero = "x_mask", "x * 0"
        value = super().pick(slot, offset, inside)
        self.mask, self.zero = RowsBuilder.mask, RowsBuilder.zero
        return value

    # --- stores ---

    def assign(self, slot: int, value: str) -> None:
        pointer, mask = self.address(slot)
        if self.in_tile:
            self.store(slot, pointer if mask == "mask" else f"{pointer} + tile", value, "mask")
            return
        if self.body.slots[slot].access == "rw":
            # Several threads may have loaded what one of them stores.
            self.scope.lines.append("tl.debug_barrier()")
        self.store(slot, pointer if mask == "x_mask" else f"{pointer} + x * 0", value, "x_mask")

    # --- loops ---

    def reduce_vectors(
        self, reductions: Sequence[int], accumulators: Sequence[str], computed: Sequence[Expr],
        body: Callable[[], Sequence[str]],
    ) -> Sequence[str]:  # fmt: skip
        if self.form is not Form.LOOPED:
            values = self._inside(body)
            return [self._reduced(k, self._masked(k, value)) for k, value in zip(reductions, values, strict=False)]
        groups = "[BLOCK, COLUMNS // GROUP]"
        maxima = set(self.sums.values())
        if maxima.intersection(reductions):
            count = self.body.elements_of_128_bits
            self.scope.lines.append(f"GROUP: tl.constexpr = {count} if (ALIGNED > 0) & (COLUMNS >= {count}) else 1")
        names = [self._accumulator(k, groups if k in maxima else "[BLOCK, COLUMNS]") for k in reductions]
        along = {k: self._accumulator(k, groups) for k, maximum in self.sums.items() if maximum in reductions}

        def step() -> None:
            for k, name, value in zip(reductions, names, body(), strict=False):
                if k in maxima:
                    self._advance(name, self._masked(k, value), [along[one] for one in along if self.sums[one] == k])
                    continue
                combined = self._combined(k, name, self._as_accumulated(k, value))
                self.scope.lines.append(f"{name} = tl.where(r_mask, {combined}, {name})")

        self._loop(step)
        results = [self._reduced(k, name) for k, name in zip(reductions, names, strict=True)]
        for k, one in along.items():
            place = list(reductions).index(self.sums[k])
            self.totals[k] = self.name(f"qm.unscaled_sum({one}, {names[place]}, {results[place]})", "r")
        return results

    def _advance(self, maximum: str, value: str, sums: Sequence[str]) -> None:
        """A maximum, and sums of exponentials relative to it, with the values of another tile. What a thread loads at a time
        is a group, which has one maximum: the sums so far are scaled once for all of it."""
        group = self.name(f"tl.reshape({value}, [BLOCK, COLUMNS // GROUP, GROUP])", "g")
        largest = self.name(f"qm.maximum({maximum}, tl.reduce({group}, 2, qm.maximum))", "g")
        self.scope.lines += [f"{one} = qm.scaled_sum({one}, {maximum}, {largest}, {group})" for one in sums]
        self.scope.lines.append(f"{maximum} = {largest}")

    def loop(
        self, axis: int, carried: Sequence[str], body: Callable[[Sequence[str]], Sequence[str]], flushed: Sequence[int]
    ) -> Sequence[str]:
        """Scans: what is carried is the last column of what they give for a tile."""
        scans = [k for k, store in enumerate(self.body.stores) if store.kind is StoreKind.SCAN]
        if self.form is not Form.LOOPED:
            return self._inside(lambda: body([""] * len(scans)))
        names = [self._accumulator(k, "[BLOCK, 1]") for k in scans]

        def step() -> None:
            ends = body(names)
            for k, name, end in zip(scans, names, ends, strict=False):
                zero = constant(Const(0, self.body.stores[k].value.dtype))
                last = f"tl.where(lane == COLUMNS - 1, {end}, {zero})"
                self.scope.lines.append(f"{name} = tl.sum({last}, 1)[:, None]")

        self._loop(step)
        return names

    def _inside(self, body: Callable[[], Sequence[str]]) -> Sequence[str]:
        self.in_tile = True
        ends = body()
        self.in_tile = False
        return ends

    def _loop(self, step: Callable[[], None]) -> None:
        self.scopes.append(Scope())
        self._inside(lambda: step() or [])
        inner = self.scopes.pop()
        slots = self.body.shifted_slots
        # What was read last may still be in a cache: every other pass begins there.
        backwards = not self.body.ordered and self._passes % 2 == 1
        self._passes += 1
        masked = ["r_mask = r < length"]
        if slots:
            masked += ["if ALIGNED == 1:", "    r = tl.where(r - full >= head, r, r - full)"]
        full, rest = (
            [f"    {line}" for line in [*_tile_lines(self.body, first, mask), *steps, *inner.text]]
            for first, mask, steps in (
                ("begin + lane + head", [f"r_mask = {_everywhere('[1, COLUMNS]')}"],
                 ["step = begin + lane", *(f"v{k} = h{k}" for k in slots)]),
                ("begin + lane", masked, ["step = r", *(f"v{k} = {base_of_rows(self.body, k)}" for k in slots)]),
            )
        )  # fmt: skip
        self.scope.lines += [  # more loops without masks made all of them slower, those of aligned rows as well: H200
            "if ALIGNED:",
            f"    for begin in {self._tiles()}:",
            *(["        begin = full - COLUMNS - begin"] if backwards else []),
            *(f"    {line}" for line in full),
            "    if ALIGNED != 3:",
            "        for begin in range(full, length, COLUMNS):",
            *(f"        {line}" for line in rest),
            "else:",
            "    for begin in range(0, length, COLUMNS):",
            *(f"    {line}" for line in rest),
        ]

    def _tiles(self) -> str:
        """The loop over full tiles. Small tiles of few operands are loaded several at a time."""
        body = self.body
        if body.lies_across and body.is_narrow and len(body.moving) <= CUDA.few_operands:
            return f"tl.range(0, full, COLUMNS, loop_unroll_factor={CUDA.unrolled_across})"
        return "range(0, full, COLUMNS)"

    # --- reductions and scans ---

    def start(self, reduction: int) -> str:
        return ""  # the loop makes it

    def total(self, reduction: int, accumulator: str) -> str:
        return accumulator

    def combine(self, reduction: int, accumulator: str, value: str) -> str:
        """The running values of a scan in a tile, after those of the tiles before."""
        store = self.body.stores[reduction]
        scanned = self.name(f"tl.associative_scan({self._masked(reduction, value)}, 1, qm.{store.operation})", "z")
        return self.name(self._combined(reduction, accumulator, scanned), "z") if accumulator else scanned

    def _is_bool(self, k: int) -> bool:
        return self.body.stores[k].combine in ("or", "and")

    def _identity(self, k: int) -> str:
        store = self.body.stores[k]
        value = identity(store.combine, store.value.dtype)
        if self._is_bool(k):
            return f"tl.full((), {int(value)}, tl.int32)"
        return constant(Const(value, store.value.dtype))

    def _as_accumulated(self, k: int, value: str) -> str:
        return f"{value}.to(tl.int32)" if self._is_bool(k) else value

    def _accumulator(self, k: int, shape: str) -> str:
        self._loops += 1
        name = f"acc{self._loops}"
        kind = "tl.int32" if self._is_bool(k) else triton_type(self.body.stores[k].value.dtype)
        self.scope.lines.append(f"{name} = tl.zeros({shape}, {kind}) + {self._identity(k)}")
        return name

    def _combined(self, k: int, one: str, other: str) -> str:
        return _COMBINE[self.body.stores[k].combine].format(one, other)

    def _masked(self, k: int, value: str) -> str:
        """A tile with what changes nothing where there are no elements."""
        spread = f"tl.broadcast_to({self._as_accumulated(k, value)}, [BLOCK, COLUMNS])"
        return self.name(f"tl.where(r_mask, {spread}, {self._identity(k)})", "m")

    def _reduced(self, k: int, tile: str) -> str:
        if self._is_bool(k) and self.body.stores[k].value.dtype.itemsize != 1:
            raise Unsupported(f"a bitwise {self.body.stores[k].combine} of all elements")
        code = _REDUCE[self.body.stores[k].combine].format(tile)
        if k in self._for_rows:  # Triton 3.6 fails on long formulas of such a column, with "does not dominate this use"
            code = f"tl.reshape({code.removesuffix('[:, None]')}, [BLOCK, 1])"
        return self.name(f"{code} != 0" if self._is_bool(k) else code, "r")
