"""Dictionaries, those that captured code made and those of the user's, and views of them."""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar

from ...errors import Unsupported
from ...ir.segment import Build, Call, New, Recipe
from ..effects import RecipeBook
from ..inference.mutation import IN_PLACE_OF
from ..interpreter import Interpreter
from ..objects import containers, hashing
from ..objects.class_attributes import python_method
from ..objects.containers import is_dict, key_value_pairs
from ..objects.keys import can_be_late, concrete_key, hashable, is_late_key, is_of_own_class, lookup_key, sought
from ..symbolic import instance_dict, type_of
from ..symbolic.containers import MappingProxy, ShadowDict, key_value, stored_key
from ..symbolic.graph_values import TensorProxy
from ..symbolic.made import DELETED, LAZY
from ..symbolic.outside import ForeignObject, FromOutside, is_constant
from ..symbolic.raising import raise_in_program
from .kind import Args, Kwargs, Then, natively
from .object import ContainerKind, Methods, ObjectKind, is_among
from .outside import OutsideKind, WrappedKind

# methods, on what each kind of dictionary says how it is found, set and deleted --------------------------------------


def _get(i: Interpreter, table: Any, key: Any, default: Any = None) -> Any:
    found = i.kind_of(table).find(i, table, key)
    return default if found is DELETED else found


def _pop(i: Interpreter, table: Any, key: Any, default: Any = DELETED) -> Any:
    kind = i.kind_of(table)
    _to_change(i, table, key)
    found = kind.find(i, table, key)
    if found is not DELETED:
        kind.delete_item(i, table, key)
        return found
    if default is DELETED:
        raise_in_program(KeyError(key))
    return default


def _popitem(i: Interpreter, table: Any, last: Any = DELETED) -> tuple[Any, Any]:
    if last is not DELETED and not _is_ordered(table):
        raise Unsupported("popitem() of a dictionary with arguments")
    keys = list(i.kind_of(table).entries(i, table))
    if not keys:
        raise_in_program(KeyError("dictionary is empty" if _is_ordered(table) else "popitem(): dictionary is empty"))
    key = keys[-1 if last is DELETED or i.truth(last) else 0]
    return key, _pop(i, table, key)


def _move_to_end(i: Interpreter, table: Any, key: Any, last: Any = True) -> None:
    """Entries that are taken out and put in again come last: where it is to be the first, all others."""
    kind = i.kind_of(table)
    if kind.find(i, table, key) is DELETED:
        raise_in_program(KeyError(key))
    key = stored_key(i.outside, lookup_key(i, key))
    moved = [key] if i.truth(last) else [other for other in list(table.entries) if other != key]
    for value in [key_value(i.outside, stored) for stored in moved]:
        kind.set_item(i, table, value, _pop(i, table, value))


def _setdefault(i: Interpreter, table: Any, key: Any, default: Any = None) -> Any:
    kind = i.kind_of(table)
    found = kind.find(i, table, key)
    if found is DELETED:
        kind.set_item(i, table, key, default)
        return default
    return found


def _update(i: Interpreter, table: Any, /, *others: Any, **kwargs: Any) -> None:
    """It passes a `__setitem__` of the class by, but for an ordered dictionary, which calls it."""
    if len(others) > 1:
        raise Unsupported("a dictionary made of more than one other")
    kind = i.kind_of(table)
    pairs = (pair for other in others for pair in key_value_pairs(i, other, _is_ordered(table)))
    own = python_method(i, table, "__setitem__") if _is_ordered(table) else None
    for key, value in itertools.chain(pairs, kwargs.items()):
        if own is not None:
            i.call_now(own, (table, key, value))
        else:
            kind.set_item(i, table, key, value)


def _init(i: Interpreter, table: Any, /, *args: Any, **kwargs: Any) -> None:
    """`dict.__init__`, or what an ordered dictionary or one with default values has in its place."""
    if issubclass(type_of(table), collections.defaultdict):
        factory, *args = args or (None,)  # type: ignore[assignment]
        if not i.is_created(table) or isinstance(factory, FromOutside):
            raise Unsupported("setting what makes the default values of a dictionary")
        i.native(collections.defaultdict.__init__, table, factory)
    _update(i, table, *args, **kwargs)


def _clear(i: Interpreter, table: Any) -> None:
    kind = i.kind_of(table)
    for key in list(kind.entries(i, table)):
        kind.delete_item(i, table, key)


def _compared(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def compare(i: Interpreter, table: Any, other: Any) -> Any:
        if not is_dict(other):
            return NotImplemented
        return i.now(i.binary, function, _plain(i, table), _plain(i, other))

    return compare


def _plain(i: Interpreter, table: Any) -> Any:
    """A dictionary with the entries of one, past its class: an ordered one of an ordered one."""
    made = collections.OrderedDict if _is_ordered(table) else dict
    return i.mark_created(made(i.kind_of(table).entries(i, table)))


def _copy(i: Interpreter, table: Any) -> Any:
    """`d.copy()`: of the same class where that is one of Python's own; what derives from `dict` gives a plain one."""
    kind = type_of(table)
    if kind is collections.defaultdict:
        factory = i.kind_of(table).factory(i, table)
        return i.mark_created(collections.defaultdict(factory, i.kind_of(table).entries(i, table)))
    if kind is not collections.OrderedDict and issubclass(kind, (collections.OrderedDict, collections.defaultdict)):
        raise Unsupported(f"copying a {kind.__name__}")
    return _plain(i, table)


def _merged(i: Interpreter, table: Any, other: Any) -> Any:
    if not is_dict(other):
        return NotImplemented
    if type_of(table) not in (dict, collections.OrderedDict, collections.defaultdict):
        raise Unsupported(f"merging a {type_of(table).__name__}")
    made = _copy(i, table)
    made.update(containers.as_plain_dict(i, other))
    return made


def _check_merged(left: Any, right: Any) -> None:
    """Of two dictionaries of different classes, the class of the right one may say what both together are."""
    kind = type_of(right)
    if kind is not type_of(left) and issubclass(kind, (collections.OrderedDict, collections.defaultdict)):
        raise Unsupported(f"merging a {type_of(left).__name__} and a {kind.__name__}")


def _merged_into(i: Interpreter, table: Any, other: Any) -> Any:
    _update(i, table, other)
    return table


def _is_ordered(table: Any) -> bool:
    return issubclass(type_of(table), collections.OrderedDict)


def _to_change(i: Interpreter, table: Any, key: Any) -> Any:
    """A key that is set or taken out. One that is there already stays as it is."""
    if is_of_own_class(key):
        return sought(i, key) if i.kind_of(table).contains(i, table, key) else hashable(i, key)
    return hashable(i, concrete_key(i, key))


#: Methods of ordered dictionaries that call others, which a class may define anew.
_CALL_OTHERS = frozenset({"setdefault", "pop", "popitem", "copy"})
_CALLED = ("__setitem__", "__getitem__", "__delitem__", "__contains__", "__init__", "__missing__")


def _own_method(cls: type, name: str) -> Any:
    """What the nearest builtin class has under a name, past what derived classes say in Python."""
    found = (owner.__dict__[name] for owner in cls.__mro__ if name in owner.__dict__)
    return next((raw for raw in found if not isinstance(raw, FunctionType)), None)


class MappingKind(ObjectKind):
    """What all dictionaries have in common, past their classes."""

    methods: ClassVar[Methods] = {
        **ObjectKind.methods, "get": _get, "pop": _pop, "popitem": _popitem, "setdefault": _setdefault, "update": _update,
        "clear": _clear, "copy": _copy, "__copy__": _copy, "__init__": _init, "__eq__": _compared(operator.eq),
        "__ne__": _compared(operator.ne), "__or__": _merged, "__ior__": _merged_into,
        "keys": lambda i, d: i.kind_of(d).view(i, d, "keys"), "values": lambda i, d: i.kind_of(d).view(i, d, "values"),
        "items": lambda i, d: i.kind_of(d).view(i, d, "items"),
        "__getitem__": lambda i, d, key: i.now(i.kind_of(d).item, i, d, key),
        "__setitem__": lambda i, d, key, value: i.kind_of(d).set_item(i, d, key, value),
        "__delitem__": lambda i, d, key: i.kind_of(d).delete_item(i, d, key),
        "__contains__": lambda i, d, key: i.kind_of(d).contains(i, d, key),
        "__len__": lambda i, d: i.kind_of(d).length(i, d),
        "__iter__": lambda i, d: i.kind_of(d).iterate(i, d),
        "__reversed__": lambda i, d: i.kind_of(d).backwards(i, d),
    }  # fmt: skip

    #: Each kind says: the value at a key, `DELETED` if there is none; all entries; `d.keys()`, `d.values()` or `d.items()`;
    #: and what makes the values that a `defaultdict` does not have, None for other dictionaries.
    find: Callable[..., Any]
    entries: Callable[..., dict[Any, Any]]
    view: Callable[..., Any]
    factory: Callable[..., Any]

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        name = function.__name__
        asks = name in _CALL_OTHERS and _is_ordered(value) and type_of(value) is not collections.OrderedDict
        if asks and any(python_method(i, value, called) is not None for called in _CALLED):
            raise Unsupported(f"the method {name} of a {type_of(value).__name__}")
        of_dict = issubclass(getattr(function, "__objclass__", object), dict)  # not of a mappingproxy that shows it
        if of_dict and name not in ObjectKind.methods and function is not _own_method(type_of(value), name):
            raise Unsupported(f"{function.__objclass__.__name__}.{name} of a {type_of(value).__name__}")
        return super().method(i, function, value, args, kwargs)

    def item(self, i: Interpreter, base: Any, key: Any, then: Then) -> None:
        key = key if is_of_own_class(key) else concrete_key(i, key)
        found = self.find(i, base, key)
        then(self._missing(i, base, key) if found is DELETED else found)

    def _missing(self, i: Interpreter, base: Any, key: Any) -> Any:
        if (method := python_method(i, base, "__missing__")) is not None:
            return i.call_now(method, (base, key))
        if (factory := self.factory(i, base)) is None:
            raise_in_program(KeyError(key))
        value = i.call_now(factory, ())
        containers.set_item(i, base, key, value)
        return value

    def contains(self, i: Interpreter, container: Any, element: Any) -> bool:
        return self.find(i, container, element) is not DELETED


class DictKind(MappingKind, ContainerKind):
    """A dictionary that captured code made, of whichever class: a real one, which holds stand-ins."""

    methods: ClassVar[Methods] = {**MappingKind.methods, "popitem": (), "move_to_end": (hashable,)}

    def attribute(self, i: Interpreter, base: dict[Any, Any], name: str, then: Then) -> None:
        if type(base) is not dict:
            super().attribute(i, base, name, then)
        else:
            then(i.native(getattr, base, name))

    def find(self, i: Interpreter, table: dict[Any, Any], key: Any) -> Any:
        key = sought(i, key)
        return dict.__getitem__(table, key) if i.read(dict.__contains__, table, key) else DELETED

    def entries(self, i: Interpreter, table: dict[Any, Any]) -> dict[Any, Any]:
        return dict(_native(table, "items")(table))

    def view(self, i: Interpreter, table: dict[Any, Any], name: str) -> Any:
        return i.outside.mark_made(_native(table, name)(table), table, name)

    def factory(self, i: Interpreter, table: dict[Any, Any]) -> Any:
        return table.default_factory if isinstance(table, collections.defaultdict) else None

    def set_item(self, i: Interpreter, base: dict[Any, Any], key: Any, value: Any) -> None:
        i.read(_native(base, "__setitem__"), base, _to_change(i, base, key), value)

    def delete_item(self, i: Interpreter, base: dict[Any, Any], key: Any) -> None:
        i.read(_native(base, "__delitem__"), base, _to_change(i, base, key))

    iterate, length = natively(iter), natively(dict.__len__)

    def backwards(self, i: Interpreter, value: dict[Any, Any]) -> Any:
        return _native(value, "__reversed__")(value)

    def truth(self, i: Interpreter, value: dict[Any, Any]) -> bool:
        return bool(value) if type(value) is dict else super().truth(i, value)

    def operator(self, i: Interpreter, function: Any, left: Any, right: Any) -> Any:
        both = isinstance(left, dict) and isinstance(right, dict)
        if both and function is operator.or_:
            _check_merged(left, right)
            return i.mark_created(left | right)
        if both and function is operator.ior:
            return i.native(operator.ior, left, right)
        if both and function in (operator.eq, operator.ne):
            ordered = isinstance(left, collections.OrderedDict) and isinstance(right, collections.OrderedDict)
            same_keys = list(left) == list(right) if ordered else left.keys() == right.keys()
            same = same_keys and all(containers.equal(i, left[k], right[k]) for k in left)
            return same ^ (function is operator.ne)
        return super().operator(i, function, left, right)

    def rebuild(self, book: RecipeBook, value: dict[Any, Any]) -> Recipe:
        made: Any
        if type(value) is collections.OrderedDict and (own := instance_dict(value)):  # such as a module's `state_dict()`
            made = book.begin(value, New(collections.OrderedDict, {}))
            made.attributes.update({name: book.recipe(held) for name, held in own.items()})
        elif type(value) in (dict, collections.OrderedDict, collections.Counter):
            made = book.begin(value, Build(type(value), []))
        elif type(value) is collections.defaultdict:
            made = book.begin(value, Call(collections.defaultdict, [book.recipe(value.default_factory)]))
            made.items = []
        else:
            return super().rebuild(book, value)
        made.items.extend((book.recipe(k), book.recipe(v)) for k, v in value.items())
        return made  # type: ignore[no-any-return]


def _native(value: dict[Any, Any], name: str) -> Any:
    """A method of the builtin class, past those that derive from it."""
    return getattr(collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict, name)


class ViewKind(ContainerKind):
    """`d.keys()`, `d.values()` and `d.items()`."""

    contains = is_among
    iterate, backwards, length = natively(iter), natively(reversed), natively(len)

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        raise Unsupported("a view of a dictionary that outlives the captured code")


def _all_apart(found: dict[Any, Any], keys: list[Any]) -> dict[Any, Any]:
    if len(found) != len(keys):
        raise Unsupported("a dictionary whose keys were changed")
    return found


class ShadowDictKind(MappingKind, OutsideKind):
    """A dictionary of the user's, past its class: each entry is read by its path, changes are noted."""

    rank = 5
    methods: ClassVar[Methods] = {**MappingKind.methods, "move_to_end": _move_to_end}

    def find(self, i: Interpreter, table: ShadowDict, key: Any) -> Any:
        hashing.check_compared(table)
        return i.read(table.get, i.outside, stored_key(i.outside, lookup_key(i, key)))

    def entries(self, i: Interpreter, table: ShadowDict) -> dict[Any, Any]:
        table.keys(i.outside)
        keys = [(k, key_value(i.outside, k)) for k in list(table.entries)]
        found = {key if is_constant(key) else lookup_key(i, key): table.get(i.outside, k) for k, key in keys}
        return _all_apart(found, keys)

    def view(self, i: Interpreter, table: ShadowDict, name: str) -> Any:
        """A live view of the stand-in's entries, as the user's would be."""
        keys = table.keys(i.outside)
        found = self.entries(i, table) if name != "keys" else dict.fromkeys(
            [key if is_constant(key) else lookup_key(i, key) for key in keys])
        _all_apart(found, keys)
        if any(isinstance(key, (TensorProxy, FromOutside)) for key in found):  # of whose keys the entries have the real ones
            return getattr(found, name)()
        return i.outside.mark_made(getattr(table.entries, name)(), table, name)

    def factory(self, i: Interpreter, table: ShadowDict) -> Any:
        if table.cls is not collections.defaultdict:
            return None
        return i.outside.wrap(table.real.default_factory, table.source.attr("default_factory"))

    def set_item(self, i: Interpreter, base: ShadowDict, key: Any, value: Any) -> None:
        if base.late or (base.may_have_late_keys and is_late_key(i, key)):
            self._set_late(i, base, key, value)
            return
        hashing.check_compared(base)
        stored = stored_key(i.outside, _to_change(i, base, key))
        base.begin_change(stored)
        if not base.has_unread_tensor(i.outside, stored) and (old := i.read(base.get, i.outside, stored)) is not DELETED:
            i.overwritten(type_of(old))
        base.entries[stored] = value
        base.changes[stored] = None

    def _set_late(self, i: Interpreter, base: ShadowDict, key: Any, value: Any) -> None:
        """What is there already may be overwritten, or what was set before."""
        known = (LAZY, DELETED)
        held = [v for v in (*base.entries.values(), *dict.values(base.real)) if not any(v is mark for mark in known)]
        for cls in dict.fromkeys(map(type_of, held)):
            i.overwritten(cls)
        base.late.append((key if can_be_late(i, key) else hashable(i, concrete_key(i, key)), value))

    def delete_item(self, i: Interpreter, base: ShadowDict, key: Any) -> None:
        hashing.check_compared(base)
        stored = stored_key(i.outside, _to_change(i, base, key))
        if (old := i.read(base.get, i.outside, stored)) is DELETED:
            raise_in_program(KeyError(concrete_key(i, key)))
        base.begin_change(stored)
        i.overwritten(type_of(old))
        del base.entries[stored]
        base.changes[stored] = None
        base.removed[stored] = None

    def iterate(self, i: Interpreter, value: ShadowDict) -> Any:
        return iter(self.view(i, value, "keys"))

    def backwards(self, i: Interpreter, value: ShadowDict) -> Any:
        return reversed(self.view(i, value, "keys"))

    def length(self, i: Interpreter, value: ShadowDict) -> int:
        return value.length(i.outside)

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if function is operator.or_:
            _check_merged(left, right)
        if type(left) is ShadowDict and function in (operator.or_, operator.ior):
            made = (_merged if function is operator.or_ else _merged_into)(i, left, right)
            if made is NotImplemented:
                raise Unsupported(f"merging a {type_of(left).__name__} and a {type_of(right).__name__}")
            then(made)
            return
        if function in IN_PLACE_OF and function is not operator.ior:
            raise Unsupported("a dictionary changed in place by an operator")
        left, right = (_plain(i, v) if type(v) is ShadowDict else v for v in (left, right))
        i.binary(function, left, right, then)


class MappingProxyKind(WrappedKind):
    """A read-only view of a dictionary of the user's: that answers."""

    set_item, delete_item = ObjectKind.set_item, ObjectKind.delete_item

    def within(self, i: Interpreter, value: MappingProxy) -> ShadowDict:
        return value.behind

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        return i.kind_of(value.behind).method(i, function, value.behind, args, kwargs)

    def key(self, i: Interpreter, value: ForeignObject) -> Any:
        raise Unsupported("hashing a mappingproxy")
