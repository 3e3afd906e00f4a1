"""Native functions that run while the program is captured, on the values of the symbolic stack.

What differs between them is how they read their arguments: as they are, as a plain number, as a key, as an iterator, ... A
table gives a *reader* for each argument, the last one for all that follow.
"""

from __future__ import annotations

import ast
import base64
import binascii
import cmath
import collections
import fnmatch
import functools
import html
import itertools
import json
import keyword
import math
import operator
import os.path
import re
import statistics
import string
import struct
import textwrap
import urllib.parse
import zlib
from collections.abc import Callable
from types import NoneType
from typing import Any

import torch

from ...errors import Unsupported
from ..interpreter import Args, Interpreter, Kwargs
from ..symbolic import ATOMS, is_constant, real_of, type_of
from .containers import as_plain_dict, iterate, listed, native_iterator, tupled
from .iterators import BATCHED, MatchIterator
from .keys import as_index, check_conversions, hashable

Reader = Callable[[Interpreter, Any], Any]
Handler = Callable[..., Any]


# how an argument is read -----------------------------------------------------------------------------------------


def as_is(i: Interpreter, value: Any) -> Any:
    """The function does not look at it."""
    return value


def concrete(i: Interpreter, value: Any) -> Any:
    """Numbers from outside with the value that they have, guarded; others as they are."""
    check_conversions(i, value)
    return i.outside.concrete(value)


def index(i: Interpreter, value: Any) -> Any:
    """A whole number, as those with an `__index__` are, or None."""
    plain = as_index(i, value)
    if not is_constant(plain):
        raise Unsupported(f"a {type_of(plain).__name__} as a whole number")
    return plain


def each(rule: Reader) -> Reader:
    """The elements of an iterable, each as it is looked for in a set or dictionary."""
    return lambda i, value: [rule(i, element) for element in iterate(i, value)]


def plain_copy(i: Interpreter, value: Any, what: str = "the contents") -> Any:
    """A constant, or a list, tuple, dictionary or set of such, with the values of numbers, each guarded. Raises
    `Unsupported` for anything else; `what` of it was asked for."""
    check_conversions(i, value)
    value = i.outside.concrete(value)
    if is_constant(value):
        return value
    kind = type_of(value)
    if kind is dict:
        entries = as_plain_dict(i, value)
        return {plain_copy(i, k, what): plain_copy(i, v, what) for k, v in entries.items()}
    if kind not in (list, tuple, set, frozenset):
        raise Unsupported(f"{what} of a {kind.__name__}")
    elements = i.outside.contents(value)
    if kind is set and i.outside.is_changed_set(elements):
        raise Unsupported("the order of a set that was changed")
    copied = kind([v if type(v) in ATOMS else plain_copy(i, v, what) for v in elements])
    if kind is set and list(copied) != list(elements) and all(map(is_constant, elements)):
        copied = set(elements)  # which takes over the order, too, of a set that is as large as it needs to be
    if kind in (set, frozenset) and list(copied) != list(elements):
        raise Unsupported("a set whose order comes from what was in it before")
    return copied


# running ---------------------------------------------------------------------------------------------------------


def run(
    i: Interpreter, function: Callable[..., Any], readers: tuple[Reader, ...], args: Args, kwargs: Kwargs,
    named: Reader = concrete,
) -> Any:  # fmt: skip
    """`function(*args, **kwargs)`, with arguments read by `readers`, and those by name by `named`. What it raises is raised
    in the captured program."""
    last = len(readers) - 1
    given = [readers[min(k, last)](i, a) if readers else a for k, a in enumerate(args)]
    return i.read(function, *given, **{name: named(i, v) for name, v in kwargs.items()})


def makes(function: Callable[..., Any], *readers: Reader, named: Reader = concrete) -> Handler:
    """The handler of a native function that makes a new object, which the captured code may change."""
    return lambda i, *args, **kwargs: i.mark_created(run(i, function, readers, args, kwargs, named))


def gives(function: Callable[..., Any], *readers: Reader) -> Handler:
    """The handler of a native function that makes something that nobody changes."""
    return lambda i, *args, **kwargs: run(i, function, readers, args, kwargs)


def pure(function: Callable[..., Any], reader: Reader | None = None) -> Handler:
    """The handler of a native function whose result depends on the contents of its arguments alone, and that does nothing
    else."""
    module = getattr(function, "__module__", None) or "a method"
    reader = reader or functools.partial(plain_copy, what=f"{module}.{getattr(function, '__name__', function)}")
    return lambda i, *args, **kwargs: adopt(i, run(i, function, (reader,), args, kwargs, reader))


def adopt(i: Interpreter, value: Any) -> Any:
    """What is made anew, all of it: its containers may be changed by the captured code."""
    if isinstance(value, (list, tuple, dict, set)):
        for element in value.values() if isinstance(value, dict) else value:
            adopt(i, element)
    return i.mark_created(value) if isinstance(value, (list, dict, set, bytearray)) else value


# which functions are run -----------------------------------------------------------------------------------------

_PATHS = "basename commonpath commonprefix dirname isabs join normcase normpath split splitext"
_PATTERNS = "compile escape findall fullmatch match search split sub subn"

_PURE: tuple[Any, ...] = (
    ord, chr, hex, oct, bin, ascii, operator.index,
    torch.Size, torch.device, torch.dtype, torch.iinfo,
    *(getattr(os.path, name) for name in _PATHS.split()),
    *(getattr(re, name) for name in _PATTERNS.split()),
    textwrap.dedent, textwrap.fill, textwrap.indent, textwrap.shorten, textwrap.wrap, string.capwords,
    str.maketrans, int.from_bytes, float.fromhex, bytes.fromhex, math.dist,
    json.dumps, json.loads, ast.literal_eval, html.escape, html.unescape,
    fnmatch.fnmatchcase, keyword.iskeyword, base64.b64encode, base64.b64decode, binascii.hexlify, binascii.unhexlify,
    binascii.crc32, struct.calcsize, struct.pack, struct.unpack, urllib.parse.quote, urllib.parse.unquote,
    urllib.parse.urljoin, zlib.crc32, zlib.adler32,
)  # fmt: skip

#: Functions of lists of numbers, or of what else gives numbers: exact arithmetic, or a look at all of them.
_STATISTICS = ("mean fmean geometric_mean harmonic_mean median median_low median_high median_grouped mode multimode "
               "quantiles stdev pstdev variance pvariance covariance correlation").split()  # fmt: skip


def _data(i: Interpreter, value: Any) -> Any:
    """Numbers in anything that can be iterated over, or a number by itself, each guarded."""
    value = i.outside.concrete(value)
    return value if is_constant(value) and type(value) is not tuple else plain_copy(i, [*iterate(i, value)], "statistics")


def _named_tuple(i: Interpreter, *args: Any, **kwargs: Any) -> type:
    """`collections.namedtuple(...)`: a class that captured code makes, as by a class statement."""
    given, options = plain_copy(i, args), plain_copy(i, kwargs)
    options.setdefault("module", i.frames[-1].globals.get("__name__"))
    made: type = i.native(collections.namedtuple, *given, **options)
    i.outside.mark_made(made)
    i.outside.classes_made[made] = i.performed
    return made


def _default_finfo(i: Interpreter, *dtype: Any) -> Any:
    """`torch.finfo()` is about the default dtype."""
    if not dtype:
        i.outside.guard("state", None, ("torch.get_default_dtype()", torch.get_default_dtype()))
    return pure(torch.finfo)(i, *dtype)


def _of_numbers(function: Callable[..., Any]) -> Handler:
    """`pow` or `divmod`, which asks its operands' classes for a method."""
    compute = pure(function)

    def handler(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if type_of(value) not in (int, float, bool, complex, NoneType):
                raise Unsupported(f"{function.__name__}() of a {type_of(value).__name__}")
        return compute(i, *args, **kwargs)

    return handler


def _matches(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
    """`re.finditer(...)`."""
    return MatchIterator(i, run(i, re.finditer, (plain_copy,), args, kwargs, plain_copy))


_TEMPLATE_PATTERN: Any = vars(string.Template)["pattern"]


def _fills(function: Callable[..., str]) -> Handler:
    """`string.Template.substitute` and its like, which read the template's text."""

    def handler(i: Interpreter, template: Any, *mapping: Any, **named: Any) -> Any:
        if type_of(template) is not string.Template:
            raise Unsupported(f"{function.__name__}() of a {type_of(template).__name__}")
        text = i.outside.concrete(i.attribute_now(template, "template"))
        if real_of(i.attribute_now(template, "pattern")) is not _TEMPLATE_PATTERN:
            raise Unsupported("a template with a pattern of its own")
        if type(text) is not str:
            raise Unsupported(f"a template of a {type_of(text).__name__}")
        given = [plain_copy(i, part) for part in mapping]
        return i.read(function, string.Template(text), *given, **{k: plain_copy(i, v) for k, v in named.items()})

    return handler


HANDLERS: dict[Any, Handler] = {
    **{f: _fills(f) for f in (string.Template.substitute, string.Template.safe_substitute)},
    re.finditer: _matches,
    collections.namedtuple: _named_tuple,
    list: makes(list, listed), tuple: gives(tuple, tupled), object: makes(object), slice: gives(slice, as_is),
    range: gives(range, index),
    collections.deque: makes(collections.deque, iterate, concrete),
    dict.fromkeys: makes(dict.fromkeys, each(hashable), as_is),
    collections.OrderedDict.fromkeys: makes(collections.OrderedDict.fromkeys, each(hashable), as_is),
    **{cls: makes(cls, concrete) for cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller)},
    functools.partial: makes(functools.partial, as_is, named=as_is),
    # iterators
    **{function: gives(function, native_iterator) for function in (
        zip, itertools.chain, itertools.cycle, itertools.product, itertools.zip_longest, itertools.pairwise,
    )},
    **{function: gives(function, native_iterator, index) for function in (
        enumerate, itertools.islice, itertools.combinations, itertools.permutations,
        itertools.combinations_with_replacement, *BATCHED,
    )},
    itertools.count: gives(itertools.count, concrete), itertools.repeat: gives(itertools.repeat, as_is, index),
    **{function: pure(function) for function in _PURE},
    **{function: pure(function) for function in vars(cmath).values() if callable(function)},
    **{getattr(statistics, name): pure(getattr(statistics, name), _data) for name in _STATISTICS},
    math.fsum: pure(math.fsum, _data),
    torch.finfo: _default_finfo, pow: _of_numbers(pow), divmod: _of_numbers(divmod),
}  # fmt: skip
