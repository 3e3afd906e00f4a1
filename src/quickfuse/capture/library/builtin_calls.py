"""Python's builtins and the standard library's helpers, as captured code sees them.

`HANDLERS` maps a callable to a function `(interpreter, *args, **kwargs) -> value`. Those that simply run on what they are
given are in `native_functions.py`; methods of builtin classes are in the file of their kind in `values/`.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import io
import itertools
import math
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import Unsupported
from ...ir.frame import UNBOUND
from ...ir.guard import added
from ..branches.held_contents import float_in, number_in
from ..inference.number_operators import check_kind
from ..interpreter import Interpreter
from ..objects import (
    binary_operators,
    class_checks,
    construction,
    containers,
    copying,
    native_functions,
    numpy_functions,
    variables,
)
from ..objects.changing_parts import growing_length, is_growing
from ..objects.class_attributes import python_method, special_method
from ..objects.containers import iterate, listed, members, native_iterator
from ..objects.either import either
from ..objects.exceptions import stop_iteration
from ..objects.iterators import FilterIterator, MapIterator, ObjectIterator, StarMapIterator, TakeWhileIterator
from ..objects.keys import concrete_key, hashable, number_given
from ..symbolic import real_of, type_of
from ..symbolic.graph_values import LateNumber, Symbol, TensorProxy
from ..symbolic.kinds import CODE_TYPES
from ..symbolic.made import ABSENT, NativeHandler, SuperProxy
from ..symbolic.outside import ForeignScalar, FromOutside, is_constant, numpy_class
from ..symbolic.raising import raise_in_program
from . import function_calls, late_values, messages, module_hooks, number_calls, random_numbers, weak_references
from .text import text_of


def _type(i: Interpreter, value: Any, *rest: Any) -> type:
    if rest:
        raise Unsupported("a class made by type()")
    check_kind(value)
    return type_of(value)


def _getattr(i: Interpreter, value: Any, name: str, default: Any = ABSENT) -> Any:
    name = _name(i, name)
    return i.attribute_now(value, name) if default is ABSENT else i.attribute_or(value, name, default)


def _name(i: Interpreter, name: Any) -> str:
    """What is given as the name of an attribute."""
    name = i.outside.concrete(name)
    if isinstance(name, str) and type(name) is not str:  # a member of an enumeration
        name = str.__str__(name)
    if type(name) is not str:
        raise Unsupported("the name of an attribute that is no string")
    return name


def _next(i: Interpreter, iterator: Any, default: Any = ABSENT) -> Any:
    found, element = containers.next_of(i, iterator)
    if not found and default is ABSENT:
        stop_iteration(i, element)
    return element if found else default


def _iter(i: Interpreter, value: Any) -> Any:
    made = containers.make_iterator(i, value)
    return made.parts[0] if type(made) is ObjectIterator else made


class _Iterators(MapIterator):
    """`map(iter, iterator)`, of iterators that native functions can use."""

    def __next__(self) -> Any:
        return native_iterator(self.i, next(self.parts[1]))


def _reversed(i: Interpreter, value: Any) -> Any:
    kind = i.kind_of(value)
    if kind.asks_class:
        if (method := python_method(i, value, "__reversed__")) is not None:
            return i.call_now(method, (value,))
        by_index = [special_method(i, value, name) is ABSENT for name in ("__reversed__", "__getitem__")] == [True, False]
        if by_index and any(python_method(i, value, name) is not None for name in ("__getitem__", "__len__")):
            return iter([i.now(i.item, value, k) for k in range(i.length(value) - 1, -1, -1)])
    return kind.backwards(i, value)


def _sorted(i: Interpreter, values: Any, *, key: Any = None, reverse: Any = False) -> list[Any]:
    if key is None and type_of(values) is set and _may_come_in_any_order(contents := i.outside.contents(values)):
        return i.mark_created(i.native(sorted, contents, reverse=i.truth(reverse)))  # type: ignore[no-any-return]
    elements = list(listed(i, values))
    if key is None and (ordered := late_values.late_order(elements, i.truth(reverse))) is not None:
        return i.mark_created(ordered)  # type: ignore[no-any-return]
    keys = [i.outside.concrete(e if key is None else i.call_now(key, (e,))) for e in elements]
    if all(is_constant(k) for k in keys):
        order = i.native(sorted, range(len(keys)), key=keys.__getitem__, reverse=i.truth(reverse))
    else:
        compared = [_Sorted(i, k) for k in keys]
        order = i.read(sorted, range(len(keys)), key=compared.__getitem__, reverse=i.truth(reverse))
    return i.mark_created([elements[k] for k in order])  # type: ignore[no-any-return]


def _may_come_in_any_order(values: Any) -> bool:
    """Whether all is known about what a set gives when it is sorted: its elements have but one order."""
    return type(values) is set and any({type(v) for v in values} <= kinds for kinds in ({str}, {int, bool}))


@dataclass(eq=False, slots=True)
class _Sorted:
    """A value to be sorted, as `sorted` sees it: which of two comes first is asked as the captured program would."""

    i: Interpreter
    value: Any

    def __lt__(self, other: _Sorted) -> bool:
        return self.i.truth(self.i.now(self.i.binary, operator.lt, self.value, other.value))


def _frozenset(i: Interpreter, values: Any = ()) -> Any:
    if type_of(values) is frozenset:  # which is what it gives
        return values
    found = _members(i, values)
    return frozenset(set(found) if type(found) is frozenset else found)  # another one, of plain elements


def _members(i: Interpreter, values: Any) -> Any:
    """What a set is made of: another set as it is, because a copy takes over where its elements lie."""
    elements = members(i, values)
    others = i.outside.contents(values)
    if isinstance(others, (set, frozenset)) and all(map(is_constant, others)):
        return others
    return [hashable(i, v) for v in elements]


def _dict(i: Interpreter, values: Any = (), /, **kwargs: Any) -> dict[Any, Any]:
    return i.mark_created({**dict(containers.key_value_pairs(i, values)), **kwargs})  # type: ignore[no-any-return]


def _defaultdict(i: Interpreter, factory: Any = None, values: Any = (), /, **kwargs: Any) -> Any:
    if factory is not None and not _callable(i, factory):
        raise_in_program(TypeError("first argument must be callable or None"))
    return i.mark_created(collections.defaultdict(factory, _dict(i, values, **kwargs)))


def _ordered_dict(i: Interpreter, values: Any = (), /, **kwargs: Any) -> Any:
    pairs = containers.key_value_pairs(i, values, by_ordered=True)
    return i.mark_created(collections.OrderedDict({**dict(pairs), **kwargs}))


def _sum(i: Interpreter, values: Any, start: Any = 0) -> Any:
    if isinstance(start, (str, bytes, bytearray)):
        return i.native(sum, (), start)
    rest = native_iterator(i, values)
    if _COMPENSATES and type(start) in _NUMBERS:
        numbers = []
        for value in rest:
            if type(value) not in _NUMBERS:
                rest = itertools.chain([value], rest)
                break
            numbers.append(value)
        start = _sum_of_numbers(i, start, numbers)
    return functools.reduce(lambda a, b: i.now(i.binary, operator.add, a, b), rest, start)


def _sum_of_numbers(i: Interpreter, start: Any, numbers: list[Any]) -> Any:
    terms = numbers if type(start) is int and start == 0 else [start, *numbers]
    kinds = {value.kind if type(value) is Symbol else type(value) for value in terms}
    if not any(type(value) is Symbol for value in terms):
        return i.native(sum, numbers, start)
    if complex in kinds:
        return i.native(sum, [i.outside.concrete(value) for value in numbers], i.outside.concrete(start))
    if len(terms) > 2 and float in kinds:  # a sum of two is rounded only once
        return i.graph.number(added, start, *numbers)
    return functools.reduce(lambda a, b: i.now(i.binary, operator.add, a, b), numbers, start)


#: From 3.12 on, sums of floats have the sum of all rounding errors added at the end, in 3.14 those of complex numbers too.
_COMPENSATES = sys.version_info >= (3, 12)
_NUMBERS = frozenset({int, float, bool, complex, Symbol})


def _extremum(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(i: Interpreter, *values: Any, key: Any = None, **default: Any) -> Any:
        if not values or (default and len(values) > 1):
            raise Unsupported(f"a call of {function.__name__} with these arguments")
        elements = [i.outside.number_of_numpy(e) for e in (iterate(i, values[0]) if len(values) == 1 else values)]
        known = (type(e) in (int, float, bool, Symbol) or numpy_class(e) is not None for e in elements)
        numbers = key is None and all(known)
        if key is None and (late := late_values.late_extremum(function, elements)) is not None:
            return late
        if numbers and any(type(e) is Symbol for e in elements):
            return functools.reduce(lambda a, b: i.graph.number(function, a, b), elements)
        if not elements:
            return i.native(function, (), **default)
        keys = [e if key is None else i.call_now(key, (e,)) for e in elements]
        better = operator.lt if function is min else operator.gt
        best = 0
        for k in range(1, len(keys)):
            wins = i.now(i.binary, better, keys[k], keys[best])
            try:
                best = k if i.truth(wins) else best
            except Unsupported as reason:
                found = either(i, wins, *elements[::-1]) if key is None and len(elements) == 2 else NotImplemented
                if found is NotImplemented or type(reason) is not Unsupported:
                    raise
                return found
        return elements[best]

    return handler


def _conversion(kind: type) -> Callable[..., Any]:
    def handler(i: Interpreter, value: Any = ABSENT, *rest: Any) -> Any:
        if value is ABSENT:
            return kind()
        if type(value) is TensorProxy:
            value = float_in(i, value) if kind is float else number_in(i, value)
        if type(value) is ForeignScalar and python_method(i, value, f"__{kind.__name__}__") is None:
            value = i.outside.number(value) if value.cls in (int, float) and not rest else i.outside.concrete(value)
        if type(value) is LateNumber and kind is float and not rest:
            return value if value.cls is float else LateNumber(float, (value,))
        if type(value) is Symbol:
            return value if value.cls is kind and not value.may_be_int else i.graph.number(kind, value)
        if is_constant(value):
            return i.native(kind, value, *map(i.outside.concrete, rest))
        names = [f"__{kind.__name__}__", "__index__"]
        method = next((found for name in names if (found := python_method(i, value, name)) is not None), None)
        if method is None or rest:
            raise Unsupported(f"{kind.__name__}() of a {type_of(value).__name__}")
        return i.read(kind, number_given(i, method, value, kind if method.__name__ == names[0] else int))

    return handler


def _made_of(kind: type, *names: str) -> Callable[..., Any]:
    """A class of plain values that asks what it is made of for methods of these names."""
    make = native_functions.pure(kind)

    def handler(i: Interpreter, *parts: Any, **named: Any) -> Any:
        for value in (*parts, *named.values()):
            if any(python_method(i, value, name) is not None for name in names):
                raise Unsupported(f"{kind.__name__}() of a {type_of(value).__name__}")
        return make(i, *parts, **named)

    return handler


def _super(i: Interpreter, *args: Any) -> SuperProxy:
    if len(args) == 1:
        raise Unsupported("super() of a class alone")
    if args:
        return _super_of(i, *args)
    frame = i.frames[-1]
    if not frame.code.co_argcount or "__class__" not in frame.names:
        raise Unsupported("super() outside of a method")
    cell = frame.locals[frame.names.index("__class__")]
    first = frame.locals[0] = i.outside.read(frame.locals[0])
    if type(first) is type(cell):
        first = first.cell_contents
    if first is UNBOUND:
        raise Unsupported("super() after its first argument was deleted")
    return _super_of(i, i.native(operator.attrgetter("cell_contents"), cell), first)


def _super_of(i: Interpreter, *args: Any) -> SuperProxy:
    if len(args) == 2:
        cls, instance = args
        held = real_of(instance)
        kinds = (type_of(instance), held) if isinstance(held, type) else (type_of(instance),)
        if isinstance(cls, type) and any(issubclass(kind, cls) for kind in kinds):
            return SuperProxy(cls, instance)
    raise Unsupported("super() with arguments that Python may refuse")


def _callable(i: Interpreter, value: Any) -> bool:
    if type(value) in (TensorProxy, Symbol, NativeHandler):
        return type(value) is NativeHandler
    return special_method(i, value, "__call__") is not ABSENT


def _hash(i: Interpreter, value: Any) -> int:
    value = i.kind_of(value).key(i, value) if type(value) is ForeignScalar else concrete_key(i, value)
    if is_constant(value) or isinstance(value, CODE_TYPES):
        return i.native(hash, value)  # type: ignore[no-any-return]
    method = python_method(i, value, "__hash__")
    result = None if method is None else i.outside.concrete(i.call_now(method, (value,)))
    if type(result) is not int:
        raise Unsupported(f"hash() of a {type_of(value).__name__}")
    return hash(type("", (), {"__hash__": lambda _: result})())  # which makes another one of a large number


def _print(i: Interpreter, *args: Any, **kwargs: Any) -> None:
    """A line of texts that are known during capture, or formed of numbers, is printed after the graph."""
    asked = "file" not in kwargs or kwargs["file"] is not None  # `file=None` says that the line is written where it stands
    file = kwargs.pop("file", None)
    options = {name: i.outside.concrete(value) for name, value in kwargs.items()}
    plain = options.keys() <= {"sep", "end", "flush"} and all(map(is_constant, options.values()))
    plain = plain and asked and bool(args or options.get("end") != "")  # `print(end="")` writes nothing, but ends a graph
    source = i.outside.roots.constant("sys", sys).attr("stdout") if file is None else i.outside.source_of(file)
    written = sys.stdout if file is None else real_of(file)
    try:
        texts = [text_of(i, value, later=True) for value in args] if plain else None
    except Unsupported:
        texts = None
    if texts is None or source is None or not isinstance(written, (io.TextIOWrapper, io.StringIO)):
        raise Unsupported("print", "print after the compiled function returns")
    i.outside.guard("type", source, type(written))
    i.outside.printed.append((functools.partial(_print_to, **options), [file, *texts]))


def _print_to(file: Any, *texts: Any, **options: Any) -> None:
    print(*texts, file=file, **options)


def _identity(i: Interpreter, value: Any) -> Any:
    """`id(value)` of what existed before the call: a number from outside."""
    source = i.outside.source_of(value)
    if source is None or not isinstance(value, (FromOutside, TensorProxy)):
        raise Unsupported("the native function builtins.id")
    return i.outside.wrap(id(value.real), source.identity())


def match_class(i: Interpreter, count: int, subject: Any, cls: Any, names: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The values that a class pattern takes out of its subject, None where it does not match."""
    if not isinstance(cls, type):
        raise Unsupported("a class pattern without a class")
    if not class_checks.check_instance(i, subject, cls):
        return None
    if not count:
        positional: tuple[str, ...] = ()
    elif cls.__flags__ & (1 << 22):  # int, str, list, ...: one positional pattern, for the subject itself
        if count > 1:
            raise Unsupported(_REFUSED)
        return subject, *[i.attribute_or(subject, name, ABSENT) for name in names]
    else:
        positional = getattr(cls, "__match_args__", ())
        known = type(positional) is tuple and all(type(name) is str for name in positional[:count])
        if not known or len({*positional[:count], *names}) < count + len(names):
            raise Unsupported(_REFUSED)
    values = [i.attribute_or(subject, name, ABSENT) for name in (*positional[:count], *names)]
    return None if any(v is ABSENT for v in values) else tuple(values)


_REFUSED = "a class pattern that Python refuses"


HANDLERS: dict[Any, Callable[..., Any]] = {
    **numpy_functions.HANDLERS,
    **number_calls.HANDLERS,
    **native_functions.HANDLERS,
    **late_values.HANDLERS,
    type: _type, getattr: _getattr, iter: _iter,
    len: lambda i, value: growing_length(i, value) if is_growing(i, value) else containers.length(i, value),
    hasattr: lambda i, value, name: i.attribute_or(value, _name(i, name), ABSENT) is not ABSENT,
    next: _next, reversed: _reversed, sorted: _sorted, dict: _dict, sum: _sum,
    set: lambda i, values=(): i.mark_created(set(_members(i, values))),
    math.prod: lambda i, values, *, start=1: functools.reduce(
        lambda a, b: i.now(i.binary, operator.mul, a, b), native_iterator(i, values), start
    ),
    map: lambda i, function, first, *rest: MapIterator(i, function, *(native_iterator(i, v) for v in (first, *rest))),
    filter: lambda i, function, values: FilterIterator(i, function, native_iterator(i, values)),
    itertools.starmap: lambda i, function, values: StarMapIterator(i, function, native_iterator(i, values)),
    itertools.takewhile: lambda i, function, values: TakeWhileIterator(i, function, native_iterator(i, values)),
    frozenset: _frozenset,
    all: lambda i, values: all(i.truth(v) for v in native_iterator(i, values)),
    any: lambda i, values: any(i.truth(v) for v in native_iterator(i, values)),
    min: _extremum(min), max: _extremum(max), float: _conversion(float), int: _conversion(int),
    complex: _made_of(complex, "__complex__", "__float__", "__index__"),
    bytes: _made_of(bytes, "__bytes__", "__index__", "__iter__"), bytearray: _made_of(bytearray, "__index__", "__iter__"),
    bool: lambda i, value=False: number_calls.truth_as_number(i, value),
    str: lambda i, value="": text_of(i, value), repr: lambda i, value: text_of(i, value, "repr"),
    format: lambda i, value, spec="": text_of(i, value, "format", i.outside.concrete(spec)),
    hash: _hash, id: _identity, super: _super, callable: _callable, print: _print, copy.copy: copying.shallow,
    copy.deepcopy: copying.deep,
    setattr: lambda i, base, name, value: i.kind_of(base).set_attribute(i, base, _name(i, name), value),
    delattr: lambda i, base, name: i.kind_of(base).delete_attribute(i, base, _name(i, name)),
    object.__new__: construction.new_object,
    tuple.__new__: lambda i, cls, values=(): i.native(tuple.__new__, cls, tuple(containers.tupled(i, values))),
    property.__init__: construction.init_property,
    object.__eq__: binary_operators.equal_objects, object.__ne__: binary_operators.unequal_objects,
    itertools.chain.from_iterable: lambda i, values: itertools.chain.from_iterable(
        _Iterators(i, iter, native_iterator(i, values))),
    collections.defaultdict: _defaultdict, collections.OrderedDict: _ordered_dict,
    **class_checks.HANDLERS,
    **variables.HANDLERS,
    builtins.__build_class__: construction.build_class,
    **messages.HANDLERS,
    **weak_references.HANDLERS,
    **random_numbers.HANDLERS,
    **function_calls.HANDLERS,
    **module_hooks.HANDLERS,
}  # fmt: skip
