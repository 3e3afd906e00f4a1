"""Methods of built-in types on objects that captured code made, and on plain constants.

Containers are real ones that hold stand-ins: methods that never look at what the elements are run natively; the others
have a rule here.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from ..errors import Unsupported
from . import attributes
from .class_attributes import lookup_class, python_method
from .container_methods import DICT_METHODS
from .containers import as_index, equal, hashable, iterate, key_value_pairs
from .interpreter import Interpreter
from .kinds import VIEW_TYPES
from .plain import adopt, plain_copy
from .raising import call_handler, raise_in_program
from .symbolic import ForeignObject, ShadowContainer, ShadowDict, contains_symbolic, is_constant, opened
from .text import printable

#: Methods that never look at the elements.
_BLIND: dict[type, frozenset[str]] = {
    list: frozenset("append insert pop clear reverse copy __getitem__ __len__ __iter__ __reversed__".split()),
    tuple: frozenset("__getitem__ __len__ __iter__".split()),
    dict: frozenset("keys values items get pop popitem setdefault clear copy move_to_end __getitem__ __delitem__ __len__ "
                    "__iter__ __contains__ __setitem__".split()),
    set: frozenset("add discard remove clear copy pop __contains__ __len__ __iter__".split()),
    frozenset: frozenset("copy __contains__ __len__ __iter__".split()),
    collections.deque: frozenset("append appendleft pop popleft clear rotate copy reverse __getitem__ __len__".split()),
}  # fmt: skip

#: Methods that take iterables and otherwise are blind.
_TAKE_ITERABLES = frozenset(
    "extend extendleft union difference intersection symmetric_difference issubset issuperset isdisjoint "
    "difference_update intersection_update symmetric_difference_update update".split()
)

#: Methods whose first argument is hashed.
_HASH_FIRST = frozenset(
    "get pop setdefault __getitem__ __delitem__ __contains__ __setitem__ add discard remove move_to_end".split()
)


#: Methods of ordered dictionaries that call others, which a class may define anew.
_CALL_OTHERS = frozenset({"setdefault", "pop", "popitem", "copy"})


def _overrides(cls: type) -> bool:
    names = ("__setitem__", "__getitem__", "__delitem__", "__init__", "__missing__")
    return any(isinstance(lookup_class(cls, name)[1], FunctionType) for name in names)


def call_method(i: Interpreter, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function(instance, *args, **kwargs)`, where `function` is a method of a built-in type."""
    name = function.__name__
    if (shadow := opened(instance)) is not instance:
        return call_container_method(i, shadow, name, args, kwargs)
    kind = next((k for k in _BLIND if isinstance(instance, k)), None)
    if name in _ANY_OBJECT and (kind is None or name == "__init__" or name in ("__setattr__", "__getattribute__")):
        return call_handler(i, _ANY_OBJECT[name], name, (instance, *args), kwargs)
    ours = i.outside.made(instance) is not None or isinstance(instance, (tuple, frozenset))
    if kind is None or not ours:
        return _of_constant(i, function, instance, args, kwargs)
    rule = _RULES.get((kind, name))
    if rule is not None:
        return call_handler(i, rule, name, (instance, *args), kwargs)
    if name in _TAKE_ITERABLES:
        args = tuple(iterate(i, a) for a in args)
        if kind in (set, frozenset):
            args = tuple([hashable(i, v) for v in a] for a in args)
    elif name in _BLIND[kind]:
        if name in _CALL_OTHERS and isinstance(instance, collections.OrderedDict) and _overrides(type(instance)):
            raise Unsupported(f"the method {name} of a {type(instance).__name__}")
        first = args[:1]
        if name in _HASH_FIRST and kind not in (list, collections.deque):
            first = tuple(hashable(i, a) for a in first)
        elif name not in ("append", "appendleft"):
            first = tuple(as_index(i, a) for a in first)
        args = (*first, *args[1:])
    elif contains_symbolic(instance) or contains_symbolic(args):
        raise Unsupported(f"the method {name} of a {kind.__name__} of tensors or numbers")
    elif kwargs or any(isinstance(a, (FunctionType, MethodType)) for a in args):
        raise Unsupported(f"the method {name} with a function")
    run = i.read if name in _BLIND[kind] or name in _TAKE_ITERABLES else i.native  # elements are only put in or taken out
    result = run(function, instance, *args, **kwargs)
    if isinstance(result, VIEW_TYPES):
        i.outside.mark_made(result, instance, name)
    if isinstance(result, (list, dict, set, collections.deque)) and name in ("copy", *_TAKE_ITERABLES):
        i.mark_created(result)
    return result


def _of_constant(i: Interpreter, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a string, a number or another plain value."""
    name = function.__name__
    plain = tuple(i.outside.concrete(a) for a in args)
    options = {key: i.outside.concrete(v) for key, v in kwargs.items()}
    if is_constant(instance):
        if isinstance(instance, str) and name == "join" and len(plain) == 1:
            plain = (list(iterate(i, plain[0])),)
            return i.native(instance.join, [i.outside.concrete(p) for p in plain[0]])
        if isinstance(instance, str) and name == "format":
            plain = tuple(printable(i, a) for a in plain)
            options = {key: printable(i, v) for key, v in options.items()}
            return i.native(instance.format, *plain, **options)
        what = f"the method {name} of a {type(instance).__name__}"
        copied = [plain_copy(i, value, what) for value in plain]
        return adopt(i, i.native(function, instance, *copied, **{k: plain_copy(i, v, what) for k, v in options.items()}))
    raise Unsupported(f"the method {name} of a {type(instance).__name__}")


# rules ----------------------------------------------------------------------------------------------------------


def _sort(i: Interpreter, instance: list[Any], *, key: Any = None, reverse: Any = False) -> None:
    instance[:] = i.call_now(sorted, (instance,), {"key": key, "reverse": reverse})


def _index(i: Interpreter, instance: Any, wanted: Any, *bounds: Any) -> int:
    start, stop, _ = slice(*(map(i.outside.concrete, bounds or (None, None)))).indices(len(instance)) if bounds else (
        0, len(instance), 1)  # fmt: skip
    for position in range(start, stop):
        if equal(i, instance[position], wanted):
            return position
    raise Unsupported(f"index() of what is not in the {type(instance).__name__}")


def _count(i: Interpreter, instance: Any, wanted: Any) -> int:
    return sum(equal(i, element, wanted) for element in list(instance))


def _remove(i: Interpreter, instance: Any, wanted: Any) -> None:
    for position, element in enumerate(instance):
        if equal(i, element, wanted):
            del instance[position]
            return
    raise Unsupported(f"remove() of what is not in the {type(instance).__name__}")


def _update(i: Interpreter, instance: dict[Any, Any], other: Any = (), /, **kwargs: Any) -> None:
    for key, value in [*key_value_pairs(i, other), *kwargs.items()]:
        _fill_item(i, instance, hashable(i, key), value)


def _fill_item(i: Interpreter, instance: dict[Any, Any], key: Any, value: Any) -> None:
    """Set an item as `dict.update` does, which passes a `__setitem__` of the class by, or as that of an ordered dictionary
    does, which calls it."""
    if not isinstance(instance, collections.OrderedDict):
        dict.__setitem__(instance, key, value)
        return
    setter = lookup_class(type(instance), "__setitem__")[1]
    if isinstance(setter, FunctionType):
        i.call_now(setter, (instance, key, value))
    else:
        collections.OrderedDict.__setitem__(instance, key, value)


_RULES: dict[tuple[type, str], Callable[..., Any]] = {
    (list, "sort"): _sort,
    **{(kind, "index"): _index for kind in (list, tuple, collections.deque)},
    **{(kind, "count"): _count for kind in (list, tuple, collections.deque)},
    **{(kind, "remove"): _remove for kind in (list, collections.deque)},
    (dict, "update"): _update,
}


def _init(i: Interpreter, instance: Any, *args: Any, **kwargs: Any) -> None:
    """`__init__` of a built-in base class, called by that of a Python class."""
    if type(instance) is ForeignObject and isinstance(instance.real, BaseException):
        raise Unsupported("__init__ of an exception from outside")
    if isinstance(instance, BaseException):
        i.read(BaseException.__init__, instance, *args)
    elif isinstance(instance, dict):
        for key, value in i.call_now(dict, args, kwargs).items():
            _fill_item(i, instance, key, value)
    elif isinstance(instance, list):
        instance[:] = [v for a in args for v in iterate(i, a)]
    elif isinstance(instance, set):
        instance.update(*[i.call_now(set, (a,)) for a in args])
    elif args or kwargs:
        raise_in_program(TypeError("object.__init__() takes exactly one argument (the instance to initialize)"))


def _getattribute(i: Interpreter, instance: Any, name: str) -> Any:
    return i.now(attributes.load_plain, i, instance, name)


def _not_equal(i: Interpreter, instance: Any, other: Any) -> Any:
    return NotImplemented if instance is not other else False


def of_any_object(name: str) -> Callable[..., Any] | None:
    """What a method of `object` does with any object; None for `__init__` and comparisons, of which classes have others."""
    return _ANY_OBJECT.get(name) if name in ("__setattr__", "__delattr__", "__getattribute__", "__init_subclass__") else None


#: Methods of `object`, and `__init__` of every built-in class.
_ANY_OBJECT: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "__setattr__": lambda i, instance, name, value: attributes.set_plain(i, instance, name, value),
    "__delattr__": lambda i, instance, name: attributes.delete_plain(i, instance, name),
    "__getattribute__": _getattribute,
    "__eq__": lambda i, instance, other: True if instance is other else NotImplemented,
    "__ne__": _not_equal,
    "__init_subclass__": lambda i, *args: None,
}


# containers of the user's ----------------------------------------------------------------------------------------

#: Methods of ordered dictionaries that call others, which a class may define anew.
_ASKS = {"setdefault": "__setitem__", "pop": "__delitem__", "popitem": "__delitem__"}


def call_container_method(i: Interpreter, shadow: ShadowDict | ShadowContainer, name: str, args: Any, kwargs: Any) -> Any:
    """A method of the builtin class of a dictionary, list, set or deque of the user's."""
    if (general := of_any_object(name)) is not None and not (type(shadow) is ShadowDict and name in DICT_METHODS):
        return call_handler(i, general, name, (shadow, *args), kwargs)
    if type(shadow) is ShadowDict:
        if name not in DICT_METHODS:
            raise Unsupported(f"the method {name} of a dictionary")
        called = _ASKS.get(name)
        if called is not None and shadow.cls is collections.OrderedDict and python_method(i, shadow, called) is not None:
            raise Unsupported(f"the method {name} of a {type(shadow.real).__name__}")
        return call_handler(i, DICT_METHODS[name], name, (shadow, *args), kwargs)
    cls = shadow.cls
    if shadow.items is None and getattr(shadow.real, "maxlen", None) is None and len(args) == 1:
        if name == ("add" if cls is set else "append"):
            shadow.added.append(args[0])
            return None
        if name == ("update" if cls is set else "extend"):
            shadow.added.extend(iterate(i, args[0]))
            return None
    if cls not in (list, tuple) and type(shadow.real) is not cls and name in _OF_ITS_CLASS:
        raise Unsupported(f"the method {name} of a {type(shadow.real).__name__}")
    if cls is set and name in ("pop", "__iter__"):
        if name == "pop":
            raise Unsupported("which element a set from outside gives")
        if i.outside.is_changed_set(i.outside.open(shadow)):
            raise Unsupported("the order of a set that was changed")
    result = call_method(i, getattr(cls, name), i.outside.open(shadow), args, kwargs)
    return shadow if result is shadow.items else result


#: Methods of sets and deques that give another one of the same class.
_OF_ITS_CLASS = frozenset(
    "copy union intersection difference symmetric_difference __or__ __and__ __sub__ __xor__ __ror__ __rand__ __rsub__ "
    "__rxor__ __add__ __mul__ __rmul__ __copy__".split()
)
