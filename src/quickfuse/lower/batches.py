"""Small products of matrices as one large product.

A network that goes through time step by step multiplies by the same weight in each step, and adds up the weight's gradient
over all steps. Each of these products reads or writes the whole weight for the sake of a few rows. Two identities make one
product of many:

    a1 @ b1 + a2 @ b2  =  [a1 a2] @ [b1; b2]            for gradients
    a1 @ w,  a2 @ w    =  the rows of [a1; a2] @ w      where a2 does not depend on a1 @ w

The second one delays what reads a1 @ w until a2 is known, so that the steps of a program get another order.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.arguments import map_leaves
from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Load, Op, walk
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, StoreKind, View, as_view, memory_at
from quickfuse.ir.reindex import replace_parts, rewrite_accesses
from quickfuse.ir.values import TensorMeta

from .products import PLAIN, is_summed_by_one_dnn
from .step_order import Order, StepReads, in_order
from .symbolic import whole_load

MM = frozenset({
    torch.mm, torch.Tensor.mm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, operator.matmul,
    torch.ops.aten.mm.default,
})  # fmt: skip
ADDMM = frozenset({torch.addmm, torch.ops.aten.addmm.default})


@dataclass(eq=False, slots=True)
class _Product:
    """A call that computes `left @ right (+ bias)`; `place` is that of `left` among its arguments."""

    step: Extern
    left: View
    right: View
    bias: Any
    place: int

    @property
    def out(self) -> Buffer:
        return self.step.outputs[0]

    @property
    def depth(self) -> int:
        return self.left.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], self.right.shape[1]

    @property
    def is_tiny(self) -> bool:
        """Whether it takes less than to put its operands beside others."""
        return self.out.meta.device.type == "cpu" and work_of(*self.shape, self.depth) <= COSTS.most_for_tiny_product


def work_of(rows: int, columns: int, depth: int) -> int:
    """The multiplications of a small product: two rows take as long as eight, and a vector as long as one number of it."""
    return max(rows, _ROWS) * max(columns, _COLUMNS) * max(depth, _DEPTH)


_ROWS, _COLUMNS, _DEPTH = 8, 16, 8


def batch_products(program: Program) -> None:
    """Put the small products of a program together, where that is less work."""
    found = [_product(step) for step in program.steps if isinstance(step, Extern)]
    products = [product for product in found if product is not None and not product.is_tiny]
    if len(products) > 1:
        stacks, reads = _Stacks(), StepReads()
        _Sums(program, products, stacks, reads).batch()
        left = {id(step) for step in program.steps}
        _Rows(program, [p for p in products if id(p.step) in left], stacks, reads).batch()


def _product(step: Extern) -> _Product | None:
    target, args = step.target, step.args
    if step.kwargs or step.draws or len(step.outputs) != 1 or step.outputs[0].kind != "temp":
        return None
    bias: Any = None
    if target in MM and len(args) == 2:
        place, left, right = 0, _matrix(args[0]), _matrix(args[1])
    elif target in ADDMM and len(args) == 3:
        place, left, right, bias = 1, _matrix(args[1]), _matrix(args[2]), args[0]
    elif (target is functional.linear or target == PLAIN) and 2 <= len(args) <= 3:
        place, left, right, bias = 0, _matrix(args[0]), _matrix(args[1]), args[2] if len(args) > 2 else None
        right = None if right is None else right.transposed
    else:
        return None
    meta = step.outputs[0].meta
    if left is None or right is None or meta.dtype not in (torch.float32, torch.float64):
        return None
    shape = (left.shape[0], right.shape[1])
    usual = meta.shape == shape and meta.stride == (shape[1], 1) and left.shape[1] == right.shape[0] and 0 not in shape
    return _Product(step, left, right, bias, place) if usual else None


def _matrix(memory: Any) -> View | None:
    view = as_view(memory) if isinstance(memory, (Buffer, View)) else None
    return view if view is not None and len(view.shape) == 2 else None


def _chunks(products: Sequence[_Product], sizes: Sequence[int], enough: int) -> list[list[_Product]]:
    """Runs of products that are large enough together."""
    chunks: list[list[_Product]] = [[]]
    total = 0
    for product, size in zip(products, sizes, strict=True):
        if total >= enough:
            chunks.append([])
            total = 0
        chunks[-1].append(product)
        total += size
    return [chunk for chunk in chunks if len(chunk) > 1]


class _Stacks:
    """Matrices on top of each other, in memory of their own. `steps` are the calls that make them."""

    def __init__(self) -> None:
        self.steps: list[Extern] = []
        self._known: dict[tuple[Any, ...], Buffer] = {}

    def of(self, parts: Sequence[View]) -> Buffer:
        key = tuple([(id(p.buffer), p.offset, p.shape, p.stride) for p in parts])
        known = self._known.get(key)
        if known is None:
            columns, like = parts[0].shape[1], parts[0].buffer.meta
            rows = sum(part.shape[0] for part in parts)
            meta = TensorMeta(like.dtype, (rows, columns), (columns, 1), like.device)
            known = self._known[key] = Buffer(f"stack{len(self._known)}_{parts[0].buffer.name}", meta, "temp")
            arguments = [memory_at(p.buffer, p.shape, p.stride, p.offset) for p in parts]
            self.steps.append(Extern(torch.cat, (arguments,), {}, [known]))
        return known


# --- sums of products ---


class _Sums:
    """Sums of products with nobody else reading the summands."""

    def __init__(self, program: Program, products: list[_Product], stacks: _Stacks, reads: StepReads) -> None:
        self.program = program
        self.reads = reads
        uses = Counter(buffer for step in program.steps for buffer in reads.of(step))
        self.summands = {p.out: p for p in products if uses[p.out] == 1 and p.bias is None and _is_thin(p)}
        self.place: dict[Buffer, int] = {}
        self.writers: dict[Buffer, list[Loop | Extern]] = {}
        for number, step in enumerate(program.steps):
            for buffer in step.writes:
                self.writers.setdefault(buffer, []).append(step)
                self.place.setdefault(buffer, number)
        #: The loops that do nothing but to store what a single other one loads.
        self.partial = {
            buffer: step for buffer, (step, *others) in self.writers.items()
            if isinstance(step, Loop) and not others and buffer.kind == "temp" and uses[buffer] == 1 and _is_plain(step)
        }  # fmt: skip
        self.stacks = stacks
        #: The products of what is stacked, by their results.
        self.added: dict[Buffer, Extern] = {}
        self.gone: set[int] = set()
        #: The loops whose sums are parts of one in which there was nothing to be gained.
        self.tried: set[int] = set()

    def batch(self) -> None:
        """Rewrite the program."""
        if len(self.summands) < 2:
            return
        for step in reversed(self.program.steps):
            if isinstance(step, Loop) and id(step) not in self.gone and _is_plain(step):
                self._rewrite(step)
        if self.gone:
            left = [step for step in self.program.steps if id(step) not in self.gone]
            self.program.steps = in_order([*self.stacks.steps, *self.added.values(), *left], self.reads)

    def _rewrite(self, loop: Loop) -> None:
        """Replace the sums in a loop."""
        value = loop.stores[0].value
        nodes = walk(value)
        inner = _inner_sums(nodes)
        replaced: dict[int, Expr] = {}
        for node in nodes:
            if _is_sum(node) and id(node) not in inner and not (node is value and id(loop) in self.tried):
                terms, partial = self._terms(node, loop, inner)
                made = self._summed(terms)
                (self.tried if made is None else self.gone).update(map(id, partial))
                if made is not None:
                    replaced[id(node)] = made
        if replaced:
            loop.stores = [replace(loop.stores[0], value=replace_parts(value, replaced))]
            self.reads.forget(loop)
            self._give_away(loop)

    def _give_away(self, loop: Loop) -> None:
        """Let a product be what a loop only copies it to."""
        store = loop.stores[0]
        target, value = store.access.buffer, store.value
        if not isinstance(value, Load) or self.writers[target] != [loop] or target.kind == "input":
            return
        copied, whole = value.access.buffer, whole_load(target).access
        if copied.meta == target.meta and store.access == whole == replace(value.access, buffer=target):
            self.added[copied].outputs = [target]
            self.gone.add(id(loop))

    def _terms(self, root: Expr, loop: Loop, inner: set[int]) -> tuple[list[Expr], list[Loop]]:
        """What is added up, through loops that store a part of the sum, and these loops."""
        terms: list[Expr] = []
        partial: list[Loop] = []
        stack = [(root, inner)]
        while stack:
            node, inside = stack.pop()
            if node is root or id(node) in inside:
                stack.extend([(arg, inside) for arg in reversed(node.args)])  # type: ignore[attr-defined]
                continue
            part = self.partial.get(node.access.buffer) if isinstance(node, Load) else None
            if part is not None and (part.shape, part.device) == (loop.shape, loop.device):
                store = part.stores[0]
                if store.access == node.access and _is_sum(store.value):  # type: ignore[attr-defined]
                    partial.append(part)
                    stack.append((store.value, {id(store.value), *_inner_sums(walk(store.value))}))
                    continue
            terms.append(node)
        return terms, partial

    def _summed(self, terms: list[Expr]) -> Expr | None:
        """The sum with fewer products; None where there is nothing to be gained."""
        groups: dict[tuple[Any, ...], dict[Buffer, Load]] = {}
        for term in terms:
            if isinstance(term, Load) and (product := self.summands.get(term.access.buffer)) is not None:
                key = (term.access.offset, term.access.strides, product.shape, term.dtype, product.out.meta.device)
                groups.setdefault(key, {})[product.out] = term
        made: dict[int, Expr | None] = {}
        for loads in groups.values():
            products = sorted([self.summands[b] for b in loads], key=self._order)
            for chunk in _chunks(products, [p.depth for p in products], COSTS.enough_summed):
                made.update((id(loads[p.out]), None) for p in chunk)
                load = loads[chunk[0].out]
                made[id(load)] = Load(replace(load.access, buffer=self._product_of(chunk)), load.dtype)
        if not made:
            return None
        first, *others = [new for term in terms if (new := made.get(id(term), term)) is not None]
        for term in others:
            first = first + term
        return first

    def _order(self, product: _Product) -> tuple[int, int, int]:
        """The same for sums with the same left operands, which then are stacked once."""
        left = product.left
        return self.place.get(left.buffer, -1), left.buffer.position, left.offset

    def _product_of(self, chunk: list[_Product]) -> Buffer:
        left = self.stacks.of([p.left.transposed for p in chunk])
        right = self.stacks.of([p.right for p in chunk])
        out = Buffer(f"sum_{chunk[0].out}", chunk[0].out.meta, "temp")
        depth, rows = left.meta.shape
        first = View(left, (rows, depth), (1, rows), 0)
        self.added[out] = Extern(torch.mm, (first, right), {}, [out])
        if out.meta.dtype is torch.float32 and is_summed_by_one_dnn(rows, out.meta.shape[1], depth):
            self.added[out] = Extern(PLAIN, (first, as_view(right).transposed, None), {}, [out])
        self.gone.update(id(p.step) for p in chunk)
        return out


def _is_thin(product: _Product) -> bool:
    """Whether a product's result is larger than its operands."""
    rows, columns = product.shape
    return product.depth * (rows + columns) < rows * columns


def _is_plain(loop: Loop) -> bool:
    """Whether a loop stores one value for each index, and nothing else."""
    (store, *others) = loop.stores
    return not others and store.kind is StoreKind.ASSIGN


def _is_sum(node: Expr) -> bool:
    return isinstance(node, Op) and node.name == "add" and node.dtype.is_floating_point


def _inner_sums(nodes: list[Expr]) -> set[int]:
    """The sums that are summands, and nothing else."""
    users = Counter(id(arg) for node in nodes if isinstance(node, Op) for arg in node.args)
    args = [arg for node in nodes if _is_sum(node) for arg in node.args]  # type: ignore[attr-defined]
    return {id(arg) for arg in args if _is_sum(arg) and users[id(arg)] == 1}


# --- products with a common operand ---


class _Rows:
    """Products of several matrices with the same one on the right, and the same bias."""

    def __init__(self, program: Program, products: list[_Product], stacks: _Stacks, reads: StepReads) -> None:
        self.program = program
        self.reads = reads
        self.groups: dict[tuple[Any, ...], list[_Product]] = {}
        for product in products:
            (rows, columns), right, bias = product.shape, product.right, product.bias
            small = rows <= COSTS.most_rows and 4 * rows * (product.depth + columns) <= product.depth * columns
            if small and (bias is None or (isinstance(bias, Buffer) and bias.meta.shape == (columns,))):
                target = product.step.target
                key = (target, id(right.buffer), right.offset, right.shape, right.stride, id(bias), rows)
                self.groups.setdefault(key, []).append(product)
        self.moved: dict[Buffer, tuple[Buffer, int]] = {}
        self.stacks = stacks

    def batch(self) -> None:
        """Rewrite the program."""
        groups = [group for group in self.groups.values() if len(group) > 1]
        if not groups:
            return
        steps = self.program.steps
        for group in groups:
            steps = self._batched(steps, group)
        if self.moved:
            self.program.steps = [self._rewritten(step) for step in steps]

    def _batched(self, steps: list[Loop | Extern], group: list[_Product]) -> list[Loop | Extern]:
        """The steps in order, with those of a group's products as one that do not depend on each other."""
        order = Order(steps, self.reads, self._homes())
        ranks = order.ranks([p.step for p in group])
        made: list[Loop | Extern] = []
        gone: set[int] = set()
        for rank in sorted(set(ranks)):
            equal = [p for p, r in zip(group, ranks, strict=True) if r == rank]
            for chunk in _chunks(equal, [p.shape[0] for p in equal], COSTS.enough_rows):
                known = len(self.stacks.steps)
                made.append(self._product_of(chunk))
                made += self.stacks.steps[known:]
                gone.update(id(p.step) for p in chunk)
        if not gone:
            return steps
        left = [step for step in steps if id(step) not in gone]
        return in_order([*left, *made], self.reads, self._homes())

    def _product_of(self, chunk: list[_Product]) -> Extern:
        first = chunk[0]
        stack = self.stacks.of([p.left for p in chunk])
        rows, columns = first.shape
        like = first.out.meta
        meta = TensorMeta(like.dtype, (rows * len(chunk), columns), (columns, 1), like.device)
        out = Buffer(f"rows_{first.out}", meta, "temp")
        for k, product in enumerate(chunk):
            self.moved[product.out] = (out, k * rows * columns)
        args = list(first.step.args)
        args[first.place] = stack
        return Extern(first.step.target, tuple(args), {}, [out], may_fail=any(p.step.may_fail for p in chunk))

    def _homes(self) -> dict[Buffer, Buffer]:
        return {old: new for old, (new, _) in self.moved.items()}

    # what reads the results ---------------------------------------------------------------------------------------

    def _rewritten(self, step: Loop | Extern) -> Loop | Extern:
        if not any(buffer in self.moved for buffer in self.reads.of(step)):
            return step
        if isinstance(step, Loop):
            step.stores = [store.rewritten(lambda value: rewrite_accesses(value, self._access)) for store in step.stores]
        else:
            step.args, step.kwargs = map_leaves(self._argument, (step.args, step.kwargs))
        return step

    def _access(self, access: Access) -> Access:
        if access.buffer not in self.moved:
            return access
        buffer, offset = self.moved[access.buffer]
        return replace(access, buffer=buffer, offset=access.offset + offset)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Buffer) and value in self.moved:
            buffer, offset = self.moved[value]
            return View(buffer, value.meta.shape, value.meta.stride, offset)
        if isinstance(value, View) and value.buffer in self.moved:
            buffer, offset = self.moved[value.buffer]
            return replace(value, buffer=buffer, offset=value.offset + offset)
        return value
