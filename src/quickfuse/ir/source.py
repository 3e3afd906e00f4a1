"""Where in the user's program a value comes from: a path such as `L['self'].param_groups[0]['lr']`.

Sources are interned: equal paths are one object, so they compare and hash by identity. `L` are the arguments of the
compiled function or the variables of a suspended frame, `S` the values on its stack, `G` the globals of a function, `C`
the closure of the compiled function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import errors

#: How each kind of source prints.
_SHOWN = {
    "local": "L[{key!r}]", "slot": "{owner}", "global": "G[{key!r}]", "closure": "C[{key!r}]", "constant": "{key}",
    "attr": "{base}.{key}", "item": "{base}[{key}]", "referent": "{base}()", "context": "{base}.get()",
    "default": "{base}.get()", "contents": "{base}.item()", "elements": "{base}",
    "numbers": "{base}.flatten().tolist()", "plain": "{key}({base})", "computed": "{key}", "identity": "id({base})",
    "shared": "torch.from_numpy({base})", "copied": "torch.tensor({base})", "ahead": "ahead({base})",
    "read_by": "read_by({base})", "keys": "list({base})", "part": "{base}[{key}]",
}  # fmt: skip
_ROOTS = frozenset({"local", "slot", "global", "closure", "constant"})


def _without_key(kind: str) -> Callable[[Source], Source]:
    return lambda source: source._child(kind, "")


class Source:
    """A path. `kind` is one of "local", "slot", "global", "closure", "constant", "attr", "item", "referent",
    "contents", "numbers", "elements", "plain", "shared", "copied", "identity", "context", "default",
    "ahead", "read_by", "keys", "computed", "part".

    * local: `key` is the argument's name
    * slot: `key` is (depth, "locals" | "stack" | "handled", index) in suspended frames, `owner` how it prints
    * global: `key` is the name, `owner` the dictionary of globals
    * closure: `key` is the name of the free variable of the compiled function
    * constant: `owner` is the object itself: modules, classes, functions and cells only, never a user's data
    * attr: attribute `key` of `base`
    * item: element `key` of `base`; `key` is a Python constant, itself a source (a dictionary keyed by an object), or a
      `NumberExpr` (a number that the program computes)
    * referent: what the weak reference `base` refers to
    * contents: the number in the one-element tensor `base`
    * numbers: all numbers in the small tensor `base`, as a flat tuple, see `ir.reading.numbers_in`
    * elements: the tensor `base` for a guard that looks at its elements, see `ir.reading.elements_in`
    * context: the value of the context variable `base` in the current context, `MISSING` where it has none
    * default: what the context variable `base` gives where it has none
    * ahead: what the iterator `base` gives next, see `ir.iterating.ahead`; `item(k)` is the element after `k` others
    * keys: the keys of the dictionary `base`, or the elements of the set, in order, a list
    * read_by: the iterators and containers that the iterator `base` reads, a tuple
    * shared: a tensor in the memory of the array `base` of NumPy's; copied: the copy number `key` of it as a tensor, see
      `ir.reading`
    * identity: `id(base)`
    * part: the view of the tensor `base` at the index that the `NumberExpr` `key` gives, see `ir.reading.part_of`
    * computed: the number that the `NumberExpr` `key` gives, of `base` among others
    * plain: the number or text that `base`, of a subclass of the builtin class `key` or of NumPy's, holds

    `label` is how it prints where that is not its path: an argument behind a wrapper of `*args`.
    """

    __slots__ = ("__weakref__", "base", "children", "key", "kind", "label", "owner")

    def __init__(self, kind: str, base: Source | None, key: Any, owner: Any = None) -> None:
        self.kind = kind
        self.base = base
        self.key = key
        self.owner = owner
        self.label = ""
        self.children: dict[tuple[str, Any], Source] = {}

    def _child(self, kind: str, key: Any) -> Source:
        index = (kind, key if isinstance(key, (str, int, Source)) else (type(key), key))
        child = self.children.get(index)
        if child is None:
            child = self.children[index] = Source(kind, self, key)
        return child

    def attr(self, name: str) -> Source:
        return self._child("attr", name)

    def item(self, key: Any) -> Source:
        return self._child("item", key)

    def plain(self, cls: type) -> Source:
        return self._child("plain", cls)

    def computed(self, expr: Any) -> Source:
        return self._child("computed", expr)

    def part(self, index: Any) -> Source:
        return self._child("part", index)

    def copied(self, number: int) -> Source:
        return self._child("copied", number)

    referent, contents, numbers, elements, shared = map(
        _without_key, ("referent", "contents", "numbers", "elements", "shared")
    )
    identity, context, default, ahead, read_by, keys = map(
        _without_key, ("identity", "context", "default", "ahead", "read_by", "keys")
    )

    def __str__(self) -> str:
        if self.label:
            return self.label
        if self.kind not in _ROOTS and self.base is None:
            raise errors.QuickfuseError(f"a source of kind {self.kind} needs a base")
        key: Any = self.key
        if self.kind == "plain":
            key = key.__name__
        elif self.kind == "item" and not isinstance(key, Source) and not hasattr(key, "operands"):
            key = repr(key)
        return _SHOWN[self.kind].format(base=self.base, key=key, owner=self.owner)

    __repr__ = __str__


def root_of(source: Source) -> Source:
    """Where the path to a value begins."""
    while source.base is not None:
        source = source.base
    return source


def steps_to(source: Source) -> list[Source]:
    """The path to a value, itself first, and where it begins last."""
    steps = [source]
    while steps[-1].base is not None:
        steps.append(steps[-1].base)
    return steps


def place_on_stack(source: Source | None, frames: int) -> int | None:
    """Where on the stack of the innermost of so many frames the path to a value begins, if it begins there."""
    root = None if source is None else root_of(source)
    if root is None or root.kind != "slot" or root.key[:2] != (frames - 1, "stack"):
        return None
    return int(root.key[2])


def other_sizes(source: Source | None) -> str:
    """The name by which capture is told that a tensor has other sizes in each call."""
    return f"{source}.shape"


def is_element(name: str) -> bool:
    """Whether what prints as `name` was read from what an iterator gives next."""
    return "ahead(" in name


class SourceRoots:
    """The roots of one capture's sources: makes each root once."""

    def __init__(self) -> None:
        self._roots: dict[Any, Source] = {}

    def _root(self, kind: str, key: Any, owner: Any = None) -> Source:
        index = (kind, key, id(owner))
        if index not in self._roots:
            self._roots[index] = Source(kind, None, key, owner)
        return self._roots[index]

    def local(self, name: str) -> Source:
        return self._root("local", name)

    def slot(self, depth: int, place: str, index: int, label: str) -> Source:
        index_ = ("slot", (depth, place, index))
        if index_ not in self._roots:
            self._roots[index_] = Source("slot", None, (depth, place, index), label)
        return self._roots[index_]

    def closure(self, name: str) -> Source:
        return self._root("closure", name)

    def global_(self, name: str, globals_: dict[str, Any]) -> Source:
        return self._root("global", name, globals_)

    def constant(self, label: str, value: Any) -> Source:
        return self._root("constant", label, value)
