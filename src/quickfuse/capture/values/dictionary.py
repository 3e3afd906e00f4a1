"""Dictionaries, those that captured code made and those of the user's, and views of them."""

from __future__ import annotations

import collections
import operator
from typing import Any

from ...errors import Unsupported
from ...ir.segment import Build, Call, Recipe
from .. import binary_operators, container_methods, containers, native_methods
from ..binary_operators import IN_PLACE_OF
from ..containers import concrete_key, hashable, lookup_key
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..raising import raise_in_program
from ..symbolic import DELETED, ForeignObject, MappingProxy, ShadowDict, stored_key
from .kind import Then
from .object import ObjectKind
from .outside import OutsideKind


class DictKind(ObjectKind):
    """A dictionary that captured code made, of whichever class: a real one, which holds stand-ins."""

    def attribute(self, i: Interpreter, base: dict[Any, Any], name: str, then: Then) -> None:
        if type(base) is not dict:
            super().attribute(i, base, name, then)
        else:
            then(dict if name == "__class__" else i.native(getattr, base, name))

    def item(self, i: Interpreter, base: dict[Any, Any], key: Any, then: Then) -> None:
        key = hashable(i, concrete_key(i, key))
        if not i.read(dict.__contains__, base, key):
            if isinstance(base, collections.defaultdict) and base.default_factory is not None:
                base[key] = i.call_now(base.default_factory, ())
            elif not isinstance(base, collections.Counter):
                raise_in_program(KeyError(key))
        then(i.read(operator.getitem, base, key))

    def set_item(self, i: Interpreter, base: dict[Any, Any], key: Any, value: Any) -> None:
        i.read(_class_of(base).__setitem__, base, hashable(i, concrete_key(i, key)), value)

    def delete_item(self, i: Interpreter, base: dict[Any, Any], key: Any) -> None:
        i.read(_class_of(base).__delitem__, base, hashable(i, concrete_key(i, key)))

    def contains(self, i: Interpreter, container: dict[Any, Any], element: Any) -> bool:
        return bool(i.read(dict.__contains__, container, hashable(i, element)))

    def iterate(self, i: Interpreter, value: dict[Any, Any]) -> Any:
        return iter(value)

    def length(self, i: Interpreter, value: dict[Any, Any]) -> int:
        return dict.__len__(value)

    def truth(self, i: Interpreter, value: dict[Any, Any]) -> bool:
        return bool(value) if type(value) is dict else super().truth(i, value)

    def rebuild(self, book: RecipeBook, value: dict[Any, Any]) -> Recipe:
        made: Any
        if type(value) in (dict, collections.OrderedDict, collections.Counter):
            made = book.begin(value, Build(type(value), []))
        elif type(value) is collections.defaultdict:
            made = book.begin(value, Call(collections.defaultdict, [book.recipe(value.default_factory)]))
            made.items = []
        else:
            return super().rebuild(book, value)
        made.items.extend((book.recipe(k), book.recipe(v)) for k, v in value.items())
        return made  # type: ignore[no-any-return]


def _class_of(value: dict[Any, Any]) -> type[dict[Any, Any]]:
    return collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict


class ViewKind(ObjectKind):
    """`d.keys()`, `d.values()` and `d.items()`."""

    def contains(self, i: Interpreter, container: Any, element: Any) -> bool:
        return containers.is_among(i, container, element)

    def iterate(self, i: Interpreter, value: Any) -> Any:
        return iter(value)

    def length(self, i: Interpreter, value: Any) -> int:
        return len(value)

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        raise Unsupported("a view of a dictionary that outlives the captured code")


class ShadowDictKind(OutsideKind):
    """A dictionary of the user's, past its class: each entry is read by its path, changes are noted."""

    rank = 3

    def item(self, i: Interpreter, base: ShadowDict, key: Any, then: Then) -> None:
        then(containers.shadow_item(i, base, concrete_key(i, key)))

    def set_item(self, i: Interpreter, base: ShadowDict, key: Any, value: Any) -> None:
        stored = stored_key(i.outside, hashable(i, concrete_key(i, key)))
        base.begin_change(stored)
        base.get(i.outside, stored)
        base.entries[stored] = value
        base.changes[stored] = None

    def delete_item(self, i: Interpreter, base: ShadowDict, key: Any) -> None:
        key = concrete_key(i, key)
        stored = stored_key(i.outside, hashable(i, key))
        if base.get(i.outside, stored) is DELETED:
            raise_in_program(KeyError(key))
        base.begin_change(stored)
        del base.entries[stored]
        base.changes[stored] = None
        base.removed[stored] = None

    def contains(self, i: Interpreter, container: ShadowDict, element: Any) -> bool:
        return container.get(i.outside, stored_key(i.outside, lookup_key(i, element))) is not DELETED

    def iterate(self, i: Interpreter, value: ShadowDict) -> Any:
        return iter(containers.dict_view(i, value, "keys"))

    def length(self, i: Interpreter, value: ShadowDict) -> int:
        return value.length(i.outside)

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if type(left) is ShadowDict and function in (operator.or_, operator.ior):
            name = "__or__" if function is operator.or_ else "__ior__"
            then(native_methods.call_container_method(i, left, name, (right,), {}))
            return
        if function in IN_PLACE_OF and function is not operator.ior:
            raise Unsupported("a dictionary changed in place by an operator")
        left, right = (container_methods.ordered_copy(i, v) for v in (left, right))
        binary_operators.binary_operator(i, function, left, right, then)


class MappingProxyKind(OutsideKind):
    """A read-only view of a dictionary of the user's: that answers."""

    def item(self, i: Interpreter, base: MappingProxy, key: Any, then: Then) -> None:
        i.item(base.behind, key, then)

    def contains(self, i: Interpreter, container: MappingProxy, element: Any) -> bool:
        return containers.contains(i, container.behind, element)

    def iterate(self, i: Interpreter, value: MappingProxy) -> Any:
        return i.iterator(value.behind)

    def length(self, i: Interpreter, value: MappingProxy) -> Any:
        return i.length(value.behind)

    def key(self, i: Interpreter, value: ForeignObject) -> Any:
        raise Unsupported("hashing a mappingproxy")
