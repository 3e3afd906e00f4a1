"""The questions that every class of value answers. Here the answer to each is a graph break, with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import Unsupported
from ..symbolic import type_of

#: What gets an answer, at once or when an inlined frame returns.
Then = Callable[[Any], None]
#: The arguments of a call, and those by name.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def always_true(kind: Any, i: Any, value: Any) -> bool:
    """The truth of objects that have no say in it."""
    return True


def itself(kind: Any, i: Any, value: Any) -> Any:
    """As a key, or as an iterator: the value as it is."""
    return value


def natively(function: Callable[[Any], Any]) -> Any:
    """An answer that a native function gives."""
    return lambda kind, i, value: function(value)


class Kind:
    """How values of one class are captured; `i` is the interpreter (`interpreter.Interpreter`)."""

    #: Whether the value's class may say in Python what an operation does; that is asked first.
    asks_class = True
    #: Of two operands of a binary operator, the one whose kind has the higher rank answers.
    rank = 0

    def attribute(self, i: Any, base: Any, name: str, then: Then) -> None:
        """`base.name`, given to `then`."""
        raise Unsupported(f"the attribute {name} of a {type_of(base).__name__}")

    def set_attribute(self, i: Any, base: Any, name: str, value: Any) -> None:
        """`base.name = value`."""
        raise Unsupported(f"setting an attribute of a {type_of(base).__name__}")

    def delete_attribute(self, i: Any, base: Any, name: str) -> None:
        """`del base.name`."""
        raise Unsupported(f"deleting an attribute of a {type_of(base).__name__}")

    def item(self, i: Any, base: Any, key: Any, then: Then) -> None:
        """`base[key]`, given to `then`."""
        raise Unsupported(f"an item of a {type_of(base).__name__}")

    def set_item(self, i: Any, base: Any, key: Any, value: Any) -> None:
        """`base[key] = value`."""
        raise Unsupported(f"setting an item of a {type_of(base).__name__}")

    def delete_item(self, i: Any, base: Any, key: Any) -> None:
        """`del base[key]`."""
        raise Unsupported(f"deleting an item of a {type_of(base).__name__}")

    def contains(self, i: Any, container: Any, element: Any) -> bool:
        """`element in container`."""
        raise Unsupported(f"membership in a {type_of(container).__name__}")

    def iterate(self, i: Any, value: Any) -> Any:
        """`iter(value)`: a native iterator over what the symbolic stack holds, or a generator of the captured code."""
        raise Unsupported(f"iterating over a {type_of(value).__name__}")

    def advance(self, i: Any, iterator: Any) -> tuple[bool, Any]:
        """What `next(iterator)` gives: (True, element) or, at the end, (False, the value of StopIteration)."""
        raise Unsupported(f"advancing a {type_of(iterator).__name__}")

    def length(self, i: Any, value: Any) -> int | None:
        """`len(value)`, None where it has none that capture knows."""
        return None

    def truth(self, i: Any, value: Any) -> bool:
        """`bool(value)`."""
        raise Unsupported(f"the truth of a {type_of(value).__name__}")

    def binary(self, i: Any, function: Any, left: Any, right: Any, then: Then) -> None:
        """`function(left, right)`, an operator or a comparison, given to `then`; one operand is of this kind."""
        kinds = " and a ".join(type_of(operand).__name__ for operand in (left, right))
        raise Unsupported(f"{function.__name__} of a {kinds}")

    def unary(self, i: Any, function: Any, value: Any, then: Then) -> None:
        """`function(value)`, one of `operator.neg`, `pos`, `invert` and `abs`, given to `then`: what the class says."""
        name = f"__{function.__name__}__"
        if not hasattr(type_of(value), name):
            raise Unsupported(f"{function.__name__} of a {type_of(value).__name__}")
        i.attribute(value, name, lambda method: i.call(method, (), {}, then))

    def method(self, i: Any, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        """`function(value, *args, **kwargs)`, where `function` is a method of a builtin class: past what the class of the
        value says in Python."""
        raise Unsupported(f"the method {function.__name__} of a {type_of(value).__name__}")

    def backwards(self, i: Any, value: Any) -> Any:
        """`reversed(value)`, a native iterator."""
        raise Unsupported(f"reversed() of a {type_of(value).__name__}")

    def call(self, i: Any, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        """`function(*args, **kwargs)`, given to `then`."""
        raise Unsupported(f"a call of a {type_of(function).__name__}")

    def key(self, i: Any, value: Any) -> Any:
        """The value as a key, to be looked up in a dictionary or set."""
        raise Unsupported(f"hashing a {type_of(value).__name__}")

    def rebuild(self, book: Any, value: Any) -> Any:
        """How compiled code makes the real value (an `ir.segment.Recipe`); `book` is the `effects.RecipeBook`."""
        raise Unsupported(f"a {type_of(value).__name__} that outlives the captured code")
