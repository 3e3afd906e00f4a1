"""The text of values: `str`, `repr`, `format`, and what is written into strings with `%` and `f"{...}"`."""

from __future__ import annotations

import dataclasses
import enum
import operator
import re
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ..branches.held_contents import float_in
from ..interpreter import Interpreter
from ..objects.class_attributes import guard_class_attribute, lookup_class, python_method
from ..objects.containers import as_plain_dict
from ..objects.keys import check_conversions
from ..objects.native_functions import plain_copy
from ..symbolic import type_of
from ..symbolic.containers import ShadowContainer, ShadowDict
from ..symbolic.graph_values import FormedText, LateNumber, Symbol, TensorProxy
from ..symbolic.outside import ATOMS, ForeignScalar, is_constant
from ..symbolic.raising import raise_in_program

#: The methods that give a text, those that are asked first in front.
_METHODS = {"str": ("__str__", "__repr__"), "repr": ("__repr__",), "format": ("__format__", "__str__", "__repr__")}


@dataclasses.dataclass
class _Example:
    """A class whose `__repr__` has the wrapper that `dataclasses` puts around it."""


#: The code of that wrapper, which keeps objects that contain themselves from being printed without end.
AROUND_REPR = _Example.__repr__.__code__


def text_of(i: Interpreter, value: Any, how: str = "str", spec: str = "", later: bool = False) -> Any:
    """`str(value)`, `repr(value)` or `format(value, spec)`, as `how` says. `later`: that of any number may be formed later.
    Raises `Unsupported` where it is known only when the compiled code runs, or tells where the object is in memory."""
    if type(spec) is not str:
        raise Unsupported("a format that is formed of what keeps changing")
    if _has_python_text(value):
        for name in _METHODS[how]:
            if name != "__format__" and spec:  # builtin classes format what they hold, whatever a class of the user's says
                if lookup_class(type_of(value), "__format__")[0] is object:
                    text = f"unsupported format string passed to {type_of(value).__name__}.__format__"
                    raise_in_program(TypeError(text))
                break
            if (method := python_method(i, value, name)) is not None:
                given = (value, spec) if name == "__format__" else (value,)
                made = i.call_now(method, given)
                if type_of(made) is not str:
                    raise Unsupported(f"{name} that gives a {type_of(made).__name__}")
                return made if type(made) is FormedText else i.outside.concrete(made)
    if (formed := _formed(i, value, how, spec, later)) is not None:
        return formed
    if spec:
        check_conversions(i, value)
    plain = printable(i, value)
    if how == "format":
        return str(i.native(format, plain, spec))
    return str(i.native(repr if how == "repr" else str, plain))


#: What makes the text of a number.
_FORMING: dict[str, Any] = {"str": str, "repr": repr, "ascii": ascii, "format": format}


def _formed(i: Interpreter, value: Any, how: str, spec: str, later: bool) -> FormedText | None:
    """The text of a number that only the running graph tells, or that keeps changing (of any, if `later`), or of another
    such text."""
    value = i.outside.number_of_numpy(value)
    if is_late_text(i, value):
        if how == "str" or (how == "format" and not spec):
            return value
        return FormedText(_FORMING[how], value, *([spec] if how == "format" else []))
    if type(value) in _CONTAINERS and not spec and (parts := late_parts(i, value)) is not None:
        return FormedText(_FORMING["str" if how == "format" else how], parts)
    if not (is_changing_number(i, value) or (later and type(value) in _NUMBERS)) or type(spec) is not str:
        return None
    if spec and spec[-1] in "cn":  # may fail for some numbers
        return None
    try:
        format(_EXAMPLES[value.kind], spec)
    except _REFUSED:
        return None
    if spec and value.kind is not float and spec[-1] in "eEfFgG%" and not fits_float(i, value):
        return None
    return FormedText(_FORMING[how], value, *([spec] if how == "format" else []))


def fits_float(i: Interpreter, number: Symbol) -> bool:
    """Whether a whole number can be written as a float; guards hold that it still can."""
    if number.from_tensor:
        return True  # it has 64 bits
    fits = bool(abs(number.hint) < _LARGEST)
    if fits:
        i.outside.require(NumberExpr("(abs({}) < {})", (number.expr, _LARGEST)), True)
    return fits


_LARGEST = 1 << 1000


#: What may hold numbers that are known later.
_CONTAINERS = (list, tuple, dict, ShadowContainer, ShadowDict)
#: What stands for numbers.
_NUMBERS = (Symbol, LateNumber)
#: What stands for numbers and texts that are known later.
_LATER = (*_NUMBERS, FormedText, ForeignScalar)
_EXAMPLES: dict[type, Any] = {int: 1, float: 1.5, bool: True}

#: What a template raises that does not fit its values: the program is to do so by itself.
_REFUSED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def late_parts(i: Interpreter, value: Any, all_numbers: bool = False) -> Any:
    """A number or text that is known later, or a copy of a list, tuple or dictionary with some in it; None for others.
    `all_numbers`: any number from outside may be written later."""
    number = i.outside.number_of_numpy(value)
    plain = type(number) is not Symbol or number.cls is number.kind
    if plain and (is_changing_number(i, number) or is_late_text(i, number) or (all_numbers and type(number) is Symbol)):
        return number
    kind = type_of(value)
    if kind is dict and type(value) in (dict, ShadowDict):
        entries = as_plain_dict(i, value)
        found = {key: late_parts(i, part, all_numbers) for key, part in entries.items()}
        if any(part is not None for part in found.values()):
            copied = {plain_copy(i, k): plain_copy(i, entries[k]) if part is None else part for k, part in found.items()}
            return i.mark_created(copied)
    elif kind in (list, tuple) and type(value) in (list, tuple, ShadowContainer):
        elements = list(i.outside.contents(value))
        parts = [late_parts(i, element, all_numbers) for element in elements]
        if any(part is not None for part in parts):
            pairs = zip(elements, parts, strict=True)
            return i.mark_created(kind([plain_copy(i, element) if part is None else part for element, part in pairs]))
    return None


def is_late_text(i: Interpreter, value: Any) -> bool:
    """Whether a text is formed after the graph, or keeps changing."""
    if type(value) is ForeignScalar:
        return value.cls is str and i.outside.is_changing_text(value)
    return type(value) is FormedText


def is_changing_number(i: Interpreter, value: Any) -> bool:
    """Whether a number is told only by the running graph, or keeps changing, so that no guard on it is worth having."""
    if type(value) is not Symbol:
        return type(value) is LateNumber
    return value.from_tensor or i.outside.has_changing_sources(value)


def joined(i: Interpreter, parts: list[Any], between: str = "", later: bool = False) -> Any:
    """`between.join(parts)`, where some may be formed later. Where no number keeps changing, none is, unless `later`."""
    if not any((later and type(part) is FormedText) or _changes(i, part) for part in parts):
        return i.native(between.join, [_settled(i, part) for part in parts])
    return FormedText(between.join, [part if is_late_text(i, part) else i.outside.concrete(part) for part in parts])


def _changes(i: Interpreter, part: Any) -> bool:
    """Whether a number keeps changing, or a text is formed of such numbers."""
    if type(part) is FormedText:
        part = part.args
    if type(part) in (tuple, list):
        return any(_changes(i, one) for one in part)
    return is_changing_number(i, part) or is_late_text(i, part)


def _settled(i: Interpreter, part: Any) -> Any:
    """A text that need not be formed later, with guards on the numbers in it."""
    if type(part) is FormedText:
        return i.native(part.function, *[_settled(i, one) for one in part.args])
    return type(part)([_settled(i, one) for one in part]) if type(part) in (tuple, list) else i.outside.concrete(part)


#: A conversion of `%`, with the letter that says which.
_CONVERSION = re.compile(r"%[^%a-zA-Z]*([a-zA-Z%])")
#: The name in a conversion of `%`.
_NAMED = re.compile(r"(?<!%)%\((\w+)\)")


def formed_by(i: Interpreter, template: str, values: Any) -> FormedText | None:
    """`template % values`, where some of these are formed later or keep changing."""
    if "%(" in template and type_of(values) is dict and type(values) in (dict, ShadowDict):
        entries, names = as_plain_dict(i, values), _NAMED.findall(template)
        if not all(name in entries for name in names):
            return None
        template, values = _NAMED.sub("%", template), tuple([entries[name] for name in names])
    given = [i.outside.number_of_numpy(v) for v in (values if type(values) is tuple else (values,))]
    letters = [letter for letter in _CONVERSION.findall(template) if letter != "%"]
    if all(letter in "eEfFgG" for letter in letters):
        one = [type(v) is TensorProxy and v.meta.numel == 1 and not v.meta.dtype.is_complex for v in given]
        given = [float_in(i, v) if is_one else v for v, is_one in zip(given, one, strict=True)]
    if not any(is_late_text(i, v) or is_changing_number(i, v) for v in given):
        return None
    made = [v if type(v) in _NUMBERS or is_late_text(i, v) else printable(i, v) for v in given]
    if not all(type(v) in _LATER or is_constant(v) for v in made):
        return None
    if len(letters) != len(made) or not _is_plain(template):
        return None
    if not all(_never_fails(i, letter, value) for letter, value in zip(letters, made, strict=True)):
        return None
    examples = [example_of(v) for v in made]
    try:
        template % tuple(examples)
    except _REFUSED:
        return None
    return FormedText(operator.mod, template, tuple(made))


def with_texts(i: Interpreter, template: str, values: Any) -> Any:
    """The values of `template % values`, with the texts of objects whose classes say in Python what these are."""
    given = values if type(values) is tuple else (values,)
    letters = [letter for letter in _CONVERSION.findall(template) if letter != "%"]
    for value in given if {*letters} - {*"sra"} else ():
        check_conversions(i, value)
    several = type(values) is not tuple and issubclass(type_of(values), tuple)  # Python takes it for a tuple of values
    if several or len(letters) != len(given) or not _is_plain(template) or not any(map(_has_python_text, given)):
        return values
    ways = {"s": "str", "r": "repr"}
    pairs = zip(letters, given, strict=True)
    return tuple([text_of(i, v, ways[x]) if x in ways and _has_python_text(v) else v for x, v in pairs])


def _is_plain(template: str) -> bool:
    """Whether each conversion of `%` takes one value, in order."""
    return "*" not in template and "%(" not in template


def example_of(value: Any) -> Any:
    """A number or text for one that is formed later, in lists, tuples and dictionaries too; other values as they are."""
    if type(value) in (list, tuple):
        return type(value)([example_of(part) for part in value])
    if type(value) is dict:
        return {key: example_of(part) for key, part in value.items()}
    return _EXAMPLES[value.kind] if type(value) in _NUMBERS else "" if type(value) in _LATER else value


def _never_fails(i: Interpreter, letter: str, value: Any) -> bool:
    """Whether a conversion of `%` takes all numbers of a kind."""
    if type(value) in (FormedText, ForeignScalar):
        return letter == "s"
    if type(value) in _NUMBERS and value.kind is not float and letter in "eEfFgG":
        return fits_float(i, value)
    return type(value) not in _NUMBERS or letter in ("sreEfFgG" if value.kind is float else "srdi")


def _has_python_text(value: Any) -> bool:
    """Whether a value's class may say in Python what its text is: builtin ones do not, nor do the classes of `enum`, whose
    texts are constants."""
    if isinstance(value, enum.Enum):
        found = [lookup_class(type(value), name) for name in _METHODS["format"]]
        return any(isinstance(method, FunctionType) and owner.__module__ != "enum" for owner, method in found)
    if isinstance(value, (type, FunctionType, BaseException)) or is_constant(value):
        return False
    return any(isinstance(lookup_class(type_of(value), name)[1], FunctionType) for name in _METHODS["format"])


def printable(i: Interpreter, value: Any) -> Any:
    """A value whose text is known during capture: constants, containers of them, classes, exceptions with constant
    arguments."""
    if type(value) is ForeignScalar or isinstance(value, enum.Enum):
        for name in ("__str__", "__repr__", "__format__"):
            owner, found = lookup_class(type_of(value), name)
            guard_class_attribute(i, type_of(value).__mro__, owner, name, found)
            if isinstance(found, FunctionType) and owner.__module__ != "enum":
                raise Unsupported(f"the text of a {type_of(value).__name__}")
    value = i.outside.concrete(i.outside.number_of_numpy(value))
    if is_constant(value) or isinstance(value, (type, MethodDescriptorType, WrapperDescriptorType)):
        return value
    if type(value) is BuiltinFunctionType and isinstance(value.__self__, (type, ModuleType)):
        return value
    if isinstance(value, BaseException) and is_constant(value.args):
        return value
    if type(value) in (ShadowContainer, ShadowDict, list, tuple, dict, set, frozenset):
        of_dict = issubclass(type_of(value), dict)
        elements = [*sum(as_plain_dict(i, value).items(), ())] if of_dict else [*i.outside.contents(value)]
        for element in elements:
            if type(element) not in ATOMS:
                printable(i, element)
        return plain_copy(i, value, "the text")
    raise Unsupported(f"the text of a {type_of(value).__name__}")
