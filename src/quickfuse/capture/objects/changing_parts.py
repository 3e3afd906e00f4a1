"""Parts of what is outside, read without a look at the rest.

Parts of tensors at an index that changes from call to call: `data[i:i + length]`. Where the part lies is no question for a
kernel, which gets addresses. So the part is an input of its own, that generated code takes out of the tensor before the
graph runs: one graph for all parts of a shape. The first call does not know that an index will change, and holds it by a
guard, as that costs no view in each call.
"""

from __future__ import annotations

import array
import operator
from typing import Any

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.reading import part_of
from ..interpreter import Interpreter
from ..outside.guarding import expression
from ..outside.numbers import LENGTH
from ..symbolic import ForeignObject, ShadowContainer, Symbol, TensorProxy, type_of
from .keys import as_index


def changing_part(i: Interpreter, tensor: TensorProxy, key: Any) -> TensorProxy | None:
    """`tensor[key]` as a view of an input of its own; None where the index does not change, or the tensor may be another
    one before the graph than where the program reads it."""
    if not i.outside.volatile or not _changes(i, key) or not _is_as_before(i, tensor):
        return None
    try:
        index, expr = index_expression(i, key)
    except Unsupported:
        return None
    source = tensor.source.part(i.outside.key_of_expr(expr))  # type: ignore[union-attr]
    if i.outside.keeps_changing(source):
        raise Unsupported("a part of a tensor whose shape keeps changing", "pad it, so that there are few shapes")
    part = i.outside.parts.get(source)
    if part is None:
        real = part_of(tensor.real, index)
        if real is None or real is tensor.real:
            return None
        part = i.outside.parts[source] = i.outside.wrap(real, source)
    return i.graph.call("call_function", operator.getitem, (part, ...), {})  # type: ignore[no-any-return]


def changing_element(i: Interpreter, base: ShadowContainer, key: Any) -> Any:
    """`base[key]` of a list from outside that nobody looked into or changed, read by its path, so that one graph
    takes all elements that are alike; NotImplemented where the index does not change."""
    if type(key) is not Symbol or not i.outside.volatile or not _changes(i, key):
        return NotImplemented
    if type(base.real) is not list or base.items is not None or base.added:
        return NotImplemented
    index, expr = index_expression(i, key)
    if not -len(base.real) <= index < len(base.real):
        return NotImplemented
    return i.outside.wrap(base.real[index], base.source.item(i.outside.key_of_expr(expr)))


def _changes(i: Interpreter, key: Any) -> bool:
    """Whether an index is made of numbers alone, of which one had another value in an earlier call."""
    parts = list(_parts(key))
    if not all(part is None or part is ... or type(part) is int or _is_number(i, part) for part in parts):
        return False
    return any(i.outside.varies(part) for part in parts if type(part) is Symbol)


def _parts(key: Any) -> Any:
    for part in key if type(key) is tuple else (key,):
        yield from (part.start, part.stop, part.step) if type(part) is slice else (part,)


def is_whole_number(value: Any) -> bool:
    """Whether a value is a whole number of Python's from outside."""
    return type(value) is Symbol and value.kind is int and value.cls is int and not value.from_tensor


def _is_number(i: Interpreter, part: Any) -> bool:
    return is_whole_number(part) and not i.outside.is_dynamic_size(part) and abs(part.hint) < 1 << 31


def _is_as_before(i: Interpreter, tensor: TensorProxy) -> bool:
    """Whether a tensor from outside is what it was before the graph, and views of it need no autograd."""
    if type(tensor) is not TensorProxy or tensor.source is None or tensor.real is None or type_of(tensor) is not tensor.cls:
        return False
    if tensor.real.requires_grad or tensor.attributes or tensor.data is not None or tensor.real.is_inference():
        return False
    if i.graph.nested or i.graph.indexing_modes or i.graph.user_modes or i.graph.inference.entered_at:
        return False
    if i.outside.function_classes:
        return False
    return tensor.node is None or (tensor.node.op == "placeholder" and not i.graph.contents.is_written(tensor.node))


def index_expression(i: Interpreter, key: Any) -> tuple[Any, Any]:
    """An index in the captured call, and as generated code writes it: a number, or an expression."""
    if is_whole_number(key):
        return key.hint, expression(key.expr)  # type: ignore[arg-type]
    if type(key) is tuple:
        parts = [index_expression(i, k) for k in key]
        text = ", ".join(["{}"] * len(parts))
        return tuple([p for p, _ in parts]), NumberExpr(f"({text},)", tuple([expr for _, expr in parts]))
    if type(key) is slice:
        bounds = [(None, None) if b is None else index_expression(i, b) for b in (key.start, key.stop, key.step)]
        return slice(*[b for b, _ in bounds]), NumberExpr("_slice({}, {}, {})", tuple([expr for _, expr in bounds]))
    if key is None or key is ...:
        return key, NumberExpr(repr(key), ())
    plain = as_index(i, key)
    if type(plain) is not int:
        raise Unsupported(f"a {type_of(plain).__name__} as an index of an array of NumPy's")
    return plain, plain


# Lists of the user's that grow from call to call, such as histories of losses: their length is a number from outside, and
# the elements at their ends are read alone.


#: So many elements at the end of a list may be read together.
MOST_TOGETHER = 64


def is_growing(i: Interpreter, value: Any) -> bool:
    """Whether a value is a list whose length keeps changing, to which the captured code has only appended."""
    unopened = type(value) is ShadowContainer and type(value.real) is list and value.items is None
    return unopened and i.outside.keeps_changing(value.source)


def growing_length(i: Interpreter, growing: ShadowContainer) -> Symbol:
    """`len(growing)`."""
    before = Symbol(int, len(growing.real), NumberExpr(LENGTH, (growing.source,)))
    return i.graph.number(operator.add, before, len(growing.added)) if growing.added else before  # type: ignore[no-any-return]


def growing_element(i: Interpreter, growing: ShadowContainer, key: Any) -> Any:
    """`growing[key]`, an element or a slice up to the end; `NotImplemented` where only a look at the whole list tells."""
    added = growing.added
    if type(key) is int:
        if key < 0 and key + len(added) >= 0:
            return added[key]
        place = key + len(added) if key < 0 else key
        return _read(i, growing, place) if _reaches(i, growing, place) else NotImplemented
    if type(key) is slice and type(key.start) is int and key.stop is key.step is None and -MOST_TOGETHER <= key.start < 0:
        first = key.start + len(added)
        if first >= 0:
            return i.mark_created(added[key.start :])
        if _reaches(i, growing, first):
            return i.mark_created([*[_read(i, growing, place) for place in range(first, 0)], *added])
    return NotImplemented


def _reaches(i: Interpreter, growing: ShadowContainer, place: int) -> bool:
    """Whether the list has had an element at a place from the start; a guard holds that it still has."""
    needed = -place if place < 0 else place + 1
    if len(growing.real) < needed:
        return False
    i.outside.require(NumberExpr("(_len({}) >= {})", (growing.source, needed)), True)
    return True


def _read(i: Interpreter, growing: ShadowContainer, place: int) -> Any:
    return i.outside.wrap(growing.real[place], growing.source.item(place))


# Bytes and arrays of Python's own (`bytearray`, `memoryview`, `array.array`): each element that is read is a number from
# outside. What changes one is left to Python.


def has_raw_numbers(value: ForeignObject) -> bool:
    """Whether an object is one of these, of numbers in one row."""
    real = value.real
    if type(real) is memoryview:
        try:
            return real.ndim == 1 and real.format in ("B", "b", "h", "i", "l", "q", "f", "d")
        except ValueError:  # it was released
            return False
    return type(real) is bytearray or (type(real) is array.array and real.typecode != "u")


def raw_length(i: Interpreter, value: ForeignObject) -> int:
    """`len(value)`, held by a guard."""
    i.outside.guard("length", value.source, len(value.real))
    return len(value.real)


def raw_element(i: Interpreter, value: ForeignObject, key: Any) -> Any:
    """`value[key]` of one element."""
    if i.graph.contents.has_written_inputs():  # which may have this memory
        raise Unsupported(f"an item of a {type(value.real).__name__} after a change in place of a tensor")
    index, expr = index_expression(i, key)
    if type(index) is not int:
        raise Unsupported(f"a part of a {type(value.real).__name__}")
    found = i.read(value.real.__getitem__, index)
    return i.outside.wrap(found, value.source.item(i.outside.key_of_expr(expr) if expr is not index else expr))


def raw_elements(i: Interpreter, value: ForeignObject) -> list[Any]:
    """All elements in order."""
    return [raw_element(i, value, k) for k in range(raw_length(i, value))]
