"""Objects whose class says in Python how they are hashed and compared, as keys of dictionaries and elements of sets.

Native containers ask them while the program is captured. So that must be all that there is to it: methods that compute with
attributes alone, and change nothing (`_reads`), and attributes that are constants, held by guards.
"""

from __future__ import annotations

import builtins
import functools
import gc
import weakref
from collections.abc import Iterable
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any

import torch

from ...bytecode.decoding import decode
from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.reading import HEAP_TYPE
from ...ir.source import Source
from ..interpreter import Interpreter
from ..symbolic import ABSENT, ForeignObject, instance_dict, is_constant, real_of, type_of
from ..symbolic.containers import ShadowDict
from .class_attributes import class_source, lookup_class, python_method
from .variables import load_global

_METHODS = ("__hash__", "__eq__")
#: What such a method may call: what looks at the class of an object, or asks constants.
_CALLED = frozenset({"hash", "tuple", "isinstance", "type", "frozenset", "len", "bool", "int"})
#: What else it may find among the builtins.
_BUILTINS = _CALLED | {"NotImplemented", "str", "float", "object", "dict", "list", "set", "bytes"}
#: The instructions that it may consist of, by how their names begin.
_HARMLESS = (
    "RESUME", "LOAD_FAST", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_DEREF", "COPY_FREE_VARS",
    "BUILD_TUPLE", "CALL", "PRECALL", "RETURN_", "IS_OP", "COMPARE_OP", "CONTAINS_OP", "BINARY_OP", "UNARY_", "POP_JUMP_",
    "JUMP_", "TO_BOOL", "COPY", "SWAP", "POP_TOP", "NOP", "NOT_TAKEN", "STORE_FAST",
)  # fmt: skip


def is_by_content(i: Interpreter, value: Any) -> bool:
    """Whether the class of an object says in Python how it is hashed or compared."""
    return any(python_method(i, value, name) is not None for name in _METHODS)


def key_by_content(i: Interpreter, value: Any) -> Any:
    """Such an object as a key, with guards on all that it is compared by. Raises `Unsupported` where its class does more,
    and where containers would find it otherwise than the program does, as what stands for an object has another class."""
    _freeze(i, value)
    alike = i.keys_by_content.setdefault(hash(value), [])
    for known in alike:
        if known is not value:
            _freeze(i, known)
            try:
                outcomes = real_of(known) == real_of(value), known == value, value == known
            except Exception:
                outcomes = (None,)
            if not any(all(found is outcome for found in outcomes) for outcome in (True, False)):
                raise Unsupported(f"a comparison of a {type_of(value).__name__} with another object")
    if not any(value is known for known in alike):
        alike.append(value)
    return value


def is_key_by_content(i: Interpreter, value: Any) -> bool:
    """Whether an object is such a key."""
    return any(value is known for alike in i.keys_by_content.values() for known in alike)


def check_compared(table: ShadowDict) -> None:
    """Require that no key of a dictionary of the user's does more than `_reads` allows: where another one is looked up, both
    are asked whether they are equal."""
    if table.compares is None:
        table.compares = all(is_constant(key) or _only_compares(key) for key in dict.keys(table.real))
    if not table.compares:
        raise Unsupported("looking into a dictionary with keys whose class may do more than compare attributes")


def _only_compares(key: Any) -> bool:
    if type(key) is tuple:
        return all(map(_only_compares, key))
    if isinstance(key, weakref.ref):  # which asks what it is to
        return _only_compares(weakref.ref.__call__(key))
    if is_constant(key) or isinstance(key, torch.Tensor):
        return True
    methods = [getattr(type(key), name) for name in _METHODS]
    return all(_reads(method.__code__) is not None for method in methods if isinstance(method, FunctionType))


def check_unchanged(i: Interpreter) -> None:
    """Require that keys are hashed as they were where the program used them: containers are made again in the end."""
    for hashed, alike in i.keys_by_content.items():
        for key in alike:
            _freeze(i, key)
            if hash(key) != hashed:
                raise Unsupported(f"a {type_of(key).__name__} that was changed while it was a key")


def looked_up(i: Interpreter, key: Any) -> NumberExpr:
    """What guards look for: the key from outside, or a copy of one that captured code made, which the program may change; a
    reference to what a weak reference is to."""
    if isinstance(key, weakref.ref) and id(key) in i.referenced:
        return NumberExpr("_weak({})", (i.outside.source_of(i.referenced[id(key)]),))
    source = i.outside.source_of(key)
    return NumberExpr("{}", (constant_key(i, key) if source is None else source,))


def constant_key(i: Interpreter, key: Any) -> Source:
    """A copy of a key that captured code made."""
    copied = _copied(i, key)
    return i.outside.roots.constant(_shown(i, copied), copied)


def _copied(i: Interpreter, key: Any) -> Any:
    if type(key) is tuple:
        return tuple([_copied(i, part) for part in key])
    if is_constant(key) or isinstance(key, type):
        return key
    if not i.is_created(key) or not is_by_content(i, key):
        raise Unsupported(f"a dictionary key with a {type_of(key).__name__} in it")
    made = object.__new__(type(key))
    for name in _names(i, key):
        object.__setattr__(made, name, _copied(i, object.__getattribute__(key, name)))
    return made


def _shown(i: Interpreter, key: Any) -> str:
    """How a copy of a key prints."""
    if type(key) is tuple:
        return f"({', '.join([_shown(i, part) for part in key])},)"
    if is_constant(key) or isinstance(key, type):
        return repr(key)
    held = [f"{name}={_shown(i, object.__getattribute__(key, name))}" for name in _names(i, key)]
    return f"{type(key).__qualname__}({', '.join(held)})"


def _freeze(i: Interpreter, value: Any) -> None:
    """Hold by guards what an object is hashed and compared by: constants, classes, and other such objects."""
    for name in _names(i, value):
        held = i.attribute_now(value, name)
        plain = _constant(i, held, of_outside=isinstance(value, ForeignObject))
        if isinstance(value, ForeignObject):
            if name in value.attributes:
                raise Unsupported(f"hashing a {type_of(value).__name__} that was changed")
        elif plain is not held:
            if _of_class(value, name) is not ABSENT:  # which native code reads as it was before the call
                if i.outside.assigned(lookup_class(type(value), name)[0], name) is not None:
                    raise Unsupported(f"hashing a {type(value).__name__} by an attribute that its class was given")
                continue
            object.__setattr__(value, name, plain)
    if isinstance(value, ForeignObject):
        value.by_content = True


def _of_class(value: Any, name: str) -> Any:
    """The attribute that an object has from its class alone, `ABSENT` where it has one itself."""
    raw = lookup_class(type(value), name)[1]
    own = instance_dict(value)
    return ABSENT if isinstance(raw, MemberDescriptorType) or (own is not None and name in own) else raw


def _constant(i: Interpreter, held: Any, of_outside: bool) -> Any:
    plain = i.outside.concrete(held)
    if type(plain) is tuple and not is_constant(plain):
        parts = tuple([_constant(i, part, of_outside) for part in plain])
        return plain if all(new is old for new, old in zip(parts, plain, strict=True)) else parts
    if isinstance(plain, type) and type(plain) is type:
        return plain
    if not is_constant(plain):
        if isinstance(plain, ForeignObject) is not of_outside or not is_by_content(i, plain):
            raise Unsupported(f"hashing an object by a {type_of(plain).__name__}")
        _freeze(i, plain)
    elif plain != plain:
        raise Unsupported("NaN as a key, which is found by its identity")
    return plain


def _names(i: Interpreter, value: Any) -> list[str]:
    """The attributes that an object is hashed and compared by."""
    kind = type_of(value)
    if kind not in i.compared_by:
        i.compared_by[kind] = _found_names(i, value, kind)
    return i.compared_by[kind]


def _found_names(i: Interpreter, value: Any, kind: type) -> list[str]:
    found: dict[str, None] = {}
    if any(cls is not object and not cls.__flags__ & HEAP_TYPE for cls in kind.__mro__):
        raise Unsupported(f"hashing a {kind.__name__}, whose class derives from a builtin one")
    for method in _METHODS:
        function, owner = python_method(i, value, method), lookup_class(kind, method)[0]
        source = None if i.is_created(owner) else class_source(i, owner).attr("__dict__").item(method)
        if function is not None and source is not None:
            i.outside.guard_function(function, source)
        read = None if function is None or function.__defaults__ or function.__kwdefaults__ else _reads(function.__code__)
        if function is None or read is None or not _check_names(i, function, read[1], source):
            raise Unsupported(f"hashing a {kind.__name__}, whose {method} may do more than compare attributes")
        found |= read[0]
    if any(python_method(i, value, name) is not None for name in ("__getattribute__", "__getattr__")):
        raise Unsupported(f"hashing a {kind.__name__}, which computes its attributes")
    for name in found:
        raw = lookup_class(kind, name)[1]
        if raw is not ABSENT and hasattr(type(raw), "__get__") and not isinstance(raw, MemberDescriptorType):
            raise Unsupported(f"hashing a {kind.__name__} by its {name}, which is computed")
    return list(found)


@functools.lru_cache(maxsize=1024)
def _reads(code: CodeType) -> tuple[dict[str, None], dict[str, None]] | None:
    """The attributes and the globals that a function reads; None if it may do more than compute with those."""
    attributes, names = {}, {}
    for instruction in decode(code).instructions:
        name, value, called = instruction.name, instruction.value, instruction.arg & 1
        if not name.startswith(_HARMLESS) or name.startswith("CALL_"):
            return None
        if name == "LOAD_GLOBAL":
            if called and value not in _CALLED:
                return None
            names[value] = None
        elif name == "LOAD_ATTR":
            if called:  # a method
                return None
            if value != "__class__":
                attributes[value] = None
    return attributes, names


def _check_names(i: Interpreter, function: FunctionType, names: Iterable[str], source: Source | None) -> bool:
    """Whether the names in such a method lead to classes and harmless builtins; a guard holds that they do."""
    for name in names:
        found = load_global(i, function.__globals__, name)
        if found is not getattr(builtins, name, None) if name in _BUILTINS else type(found) is not type:
            return False
    for k, cell in enumerate(function.__closure__ or ()):
        found = gc.get_referents(cell)
        if len(found) != 1 or type(found[0]) is not type:
            return False
        if source is not None:
            i.outside.guard("is", source.attr("__closure__").item(k).attr("cell_contents"), found[0])
    return True
