"""The builder of Triton code for GPUs: what the walker asks for, on blocks of values.

A program handles a block of elements, or a tile of rows and columns (`triton_rows.py`). Values are names of blocks, or of
what broadcasts to them: numbers, and in tiles the values of each row, of shape (rows, 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from quickfuse.emit.plan import Plan, Region
from quickfuse.emit.triton_ops import POWER_OF_ONCE, QUICK, bitcast, cast, constant, from_memory, template, to_memory
from quickfuse.emit.walker import Walker
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import HALF_TYPES, Const, Expr, Index, Op, short
from quickfuse.ir.kernel import ArgScalar, KernelBody, Reduced, SlotLoad, SlotPrevious, StoreKind, walk
from quickfuse.ir.philox import WIDTHS


class BlockPlan(Plan):
    """A plan for code on whole blocks: all axes of a row are one loop, or none, and elements have none.

    Nothing is kept in memory from one pass to the next, which other threads may read. `rounded` are the values that come
    from reductions and of which no more than 16 bits count.
    """

    widens = keeps = False

    def __init__(self, body: KernelBody) -> None:
        super().__init__(body)
        for k, store in enumerate(body.stores):
            if store.kind is StoreKind.SCATTER and any(isinstance(node, SlotPrevious) for node in walk(*store.roots)):
                offset, inside, root = self.roots[k]
                self.roots[k] = (offset, inside, self._added(root))
                self.added.add(k)
        self.rounded = self._rounded() if body.inner else set[int]()

    def _rounded(self) -> set[int]:
        """The values that are only used in products and sums of rows which are rounded to 16 bits, and that depend on what
        was reduced: there kernels compute more than they load."""
        stored = [k for k, store in enumerate(self.body.stores) if store.kind is not StoreKind.REDUCE]
        exact = {root for k in stored for root in self.roots[k]}
        for number in reversed(range(len(self.nodes))):
            expr, args = self.nodes[number].expr, self.nodes[number].args
            if isinstance(expr, Reduced):
                store = self.body.stores[expr.reduction]
                if number in exact or self.body.ordered or store.combine not in ("sum", "add"):
                    exact.update(self.roots[expr.reduction])
            elif isinstance(expr, Op) and not (expr.name == "cast" and expr.dtype in HALF_TYPES):
                passes = number not in exact and expr.name in ("mul", "div", "neg")
                exact.update(() if passes else args)
        late = set[int]()
        for number, node in enumerate(self.nodes):
            if isinstance(node.expr, Reduced) or any(arg in late for arg in node.args):
                late.add(number)
        return late - exact

    def _added(self, root: int) -> int:
        """What is added to what a scatter finds."""
        expr, args = self.nodes[root].expr, self.nodes[root].args
        others = [arg for arg in args if not isinstance(self.nodes[arg].expr, SlotPrevious)]
        below = [self.nodes[k].expr for k in self.closure(others)]
        if not (isinstance(expr, Op) and expr.name == "add") or len(others) != 1:
            raise Unsupported("a scatter that does not add, whose order counts, on a GPU")
        if any(isinstance(other, SlotPrevious) for other in below):
            raise Unsupported("a scatter of a function of what it finds, on a GPU")
        return others[0]

    def nest(self, stores: Sequence[int]) -> tuple[int, ...]:
        body = self.body
        return () if stores == body.last or not body.inner else (body.inner[-1],)

    def region(self, nest: tuple[int, ...], roots: Iterable[int], leaves: Collection[int] = ()) -> Region:
        levels: list[list[int]] = [[] for _ in range(len(nest) + 1)]
        for number in sorted(self.closure(roots, leaves)):
            levels[1 if nest and self.within(number) else 0].append(number)
        return Region(nest, levels)


def follows(element: Expr, axis: int) -> bool:
    """Whether a number of an element, an affine function of indices, grows by one along an axis, and is a multiple of four
    where that begins. Steps that are no constants are multiples of the others (`lower/dropout.py`)."""
    steps: dict[int, int] = {}
    far = False
    left = [(element, 1)]
    while left:
        node, factor = left.pop()
        if isinstance(node, Op) and node.name == "cast":
            left.append((node.args[0], factor))
        elif isinstance(node, Op) and node.name == "add":
            left += [(arg, factor) for arg in node.args]
        elif isinstance(node, Op) and node.name == "mul" and isinstance(node.args[1], Const):
            left.append((node.args[0], factor * int(node.args[1].value)))
        elif isinstance(node, Op) and node.name == "mul" and isinstance(node.args[1], SlotLoad):
            far = True
        elif isinstance(node, Index):
            steps[node.axis] = steps.get(node.axis, 0) + factor
        elif isinstance(node, Const):
            steps[-1] = steps.get(-1, 0) + factor * int(node.value)
        else:
            return False
    along, begin = steps.pop(axis, 0), steps.pop(-1, 0)
    return along == 1 and begin % 4 == 0 and all(step % 4 == 0 for step in steps.values()) and (bool(steps) or not far)


@dataclass(slots=True)
class Scope:
    """The statements of a loop's body, or of the function: loads come first. `named` are the values by their code."""

    loads: dict[int, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> list[str]:
        return [*(line for _, line in sorted(self.loads.items())), *self.lines]


class TritonBuilder:
    """The statements that compute a block of values and store them, with one name for each distinct value.

    `address` gives the pointer to a slot's elements, and the mask for loads of them, if they need one. `mask` says which
    elements of the block there are, and `zero` is a zero of the shape of the block.
    """

    mask = "mask"
    zero = "lane * 0"

    def __init__(self, body: KernelBody, address: Callable[[int], tuple[str, str]]) -> None:
        self.zero = "member * 0" if body.ndim == 0 else self.zero
        self.body = body
        self.address = address
        self.scopes = [Scope()]
        self._count: Counter[str] = Counter()
        plan = BlockPlan(body)
        self._rounded = {id(plan.nodes[number].expr) for number in plan.rounded}
        self.walker(plan).unit()

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"{name}, which {type(self).__name__} does not write")

    def walker(self, plan: Plan) -> Walker[str]:
        """What goes over the body."""
        return Walker(plan, self)

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    @property
    def lines(self) -> list[str]:
        return self.scope.text

    def vectors(self, body: Callable[[], object], has_loop: bool = False) -> None:
        body()  # a block has all axes in it

    def memoized(self, operands: Sequence[str], results: Sequence[Expr], body: Callable[[], Sequence[str]]) -> Sequence[str]:
        return body()

    # --- values ---

    def leaf(self, expr: Expr) -> str:
        if isinstance(expr, SlotLoad):
            if not self.body.slots[expr.slot].by_value:
                loaded = f"tl.load({', '.join(filter(None, self.address(expr.slot)))})"
                self.scope.loads.setdefault(expr.slot, f"s{expr.slot} = {from_memory(loaded, expr.dtype)}")
            return f"s{expr.slot}"
        if isinstance(expr, ArgScalar):
            # A bool argument arrives as a byte.
            return self.name(f"a{expr.arg} != 0", "b") if expr.dtype == torch.bool else f"a{expr.arg}"
        if isinstance(expr, Index):
            return self.name(f"index{expr.axis}.to(tl.int64)", "i")
        if isinstance(expr, Const):
            return self.name(constant(expr), "c")
        raise Unsupported(f"Triton code for {type(expr).__name__}")

    def operation(self, op: Op, args: Sequence[str]) -> str:
        if op.name == "cast":
            code = cast(args[0], op.args[0].dtype, op.dtype)
        elif op.name == "bitcast":
            code = bitcast(args[0], op.args[0].dtype, op.dtype)
        elif op.name in WIDTHS:
            code = f"qm.random_number({', '.join(args)}, {WIDTHS[op.name]}, {self.neighbours(op.args[2])})"
        elif self.body.ndim == 0 and op.name == "pow" and op.dtype == torch.float32:
            code = POWER_OF_ONCE.format(*args)
        elif id(op) in self._rounded and op.name in QUICK:
            code = QUICK[op.name].format(*args)
        else:
            code = template(op).format(*args)
        return code if code.isidentifier() else self.name(code, "t")

    def neighbours(self, element: Expr) -> str:
        """A condition on constants of the kernel: the numbers of four neighbours in a block, from the first on, follow each
        other from a multiple of four on."""
        axis = self.body.ndim - 1
        if axis < 0 or not follows(element, axis):
            return "False"
        if axis == 0:
            return "True"
        # Neighbours are in one row where its length is a multiple of four, as it is where accesses are wide.
        vectors = any(slot.strides[-1] == 1 for slot in self.body.slots if not slot.by_value)
        return "ALIGNED" if vectors and self.body.elements_of_128_bits % 4 == 0 else "False"

    def pick(self, slot: int, offset: str, inside: str) -> str:
        pointer, _ = self.address(slot)
        dtype = self.body.slots[slot].dtype
        code = f"tl.load({pointer} + ({offset} + {self.zero}), {self.mask} & {inside}, 0)"
        return self.name(from_memory(code, dtype), "e")

    def name(self, code: str, letter: str) -> str:
        """Equal statements have equal values: each is written once, however often the expression occurs."""
        known = next((scope.named[code] for scope in self.scopes if code in scope.named), None)
        if known is None:
            known = self.scope.named[code] = f"{letter}{self._count[letter]}"
            self._count[letter] += 1
            self.scope.lines.append(f"{known} = {code}")
        return known

    # --- stores ---

    def assign(self, slot: int, value: str) -> None:
        # Where all lanes store to one element, the member has only that one: the mask selects its lane.
        address, mask = self.address(slot)
        address = address if mask else f"{address} + {self.zero}"
        self.store(slot, address, value, self.mask)

    def store(self, slot: int, address: str, value: str, mask: str) -> None:
        self.scope.lines.append(f"tl.store({address}, {to_memory(value, self.body.slots[slot].dtype)}, {mask})")

    def set_flag(self, slot: int, value: str) -> None:
        """The kernel stops with an error, as eager's kernels do: nothing is to be stored for it."""
        self.scope.lines.append(f'tl.device_assert(({value} & {self.mask}) == 0, "index out of range")')

    def scatter(self, slot: int, value: str, offset: str, inside: str) -> None:
        address = f"{self.address(slot)[0]} + ({offset} + {self.zero})"
        self.store(slot, address, value, f"{self.mask} & {inside}")

    def scatter_added(self, slot: int, value: str, offset: str, inside: str) -> None:
        dtype = self.body.slots[slot].dtype
        if dtype not in (torch.float32, torch.float64, torch.int32, torch.int64):
            raise Unsupported(f"atomic additions to {short(dtype)}")
        address = f"{self.address(slot)[0]} + ({offset} + {self.zero})"
        # A number that is the same for all elements needs their shape.
        added = f"{value} + ({self.zero}).to({value}.dtype)"
        self.scope.lines.append(f'tl.atomic_add({address}, {added}, {self.mask} & {inside}, sem="relaxed")')
