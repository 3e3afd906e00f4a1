"""Functions of the standard library whose result depends on their arguments alone, and that do nothing else: on plain
arguments they are called while the program is captured."""

from __future__ import annotations

import ast
import base64
import binascii
import fnmatch
import html
import json
import keyword
import math
import operator
import os.path
import re
import string
import struct
import textwrap
import urllib.parse
from collections.abc import Callable
from typing import Any

import numpy

from ..errors import Unsupported
from .interpreter import Interpreter
from .plain import adopt, plain_copy
from .symbolic import is_constant


def _pure(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        what = f"{getattr(function, '__module__', None) or 'a method'}.{function.__name__}"
        plain = [plain_copy(i, a, what) for a in args]
        named = {name: plain_copy(i, v, what) for name, v in kwargs.items()}
        return adopt(i, i.native(function, *plain, **named))

    return handler


_PATHS = "basename commonpath commonprefix dirname isabs join normcase normpath split splitext"
_PATTERNS = "compile escape findall fullmatch match search split sub subn"

FUNCTIONS: tuple[Any, ...] = (
    *(getattr(os.path, name) for name in _PATHS.split()),
    *(getattr(re, name) for name in _PATTERNS.split()),
    textwrap.dedent, textwrap.fill, textwrap.indent, textwrap.shorten, textwrap.wrap, string.capwords,
    str.maketrans, int.from_bytes, float.fromhex, bytes.fromhex, math.prod, math.fsum, math.dist,
    operator.indexOf, operator.length_hint, json.dumps, json.loads, ast.literal_eval, html.escape, html.unescape,
    fnmatch.fnmatchcase, keyword.iskeyword, base64.b64encode, base64.b64decode, binascii.hexlify, binascii.unhexlify,
    binascii.crc32, struct.calcsize, struct.pack, struct.unpack, urllib.parse.quote, urllib.parse.unquote,
    urllib.parse.urljoin,
)  # fmt: skip


def _numpy(name: str) -> Callable[..., Any]:
    """A function of NumPy's that gives a scalar for numbers, or a list or tuple of them, and does not warn of it."""
    function = getattr(numpy, name)

    def handler(i: Interpreter, *args: Any) -> Any:
        plain = [plain_copy(i, a, f"numpy.{name}") for a in args]
        with numpy.errstate(all="ignore"):
            made = i.native(function, *plain)
        if not is_constant(made):
            raise Unsupported(f"numpy.{name} that gives a {type(made).__name__}")
        if not numpy.isfinite(made):
            raise Unsupported(f"numpy.{name} of numbers for which it may warn")
        return made

    return handler


#: Functions of NumPy's that shapes and factors are computed with.
_NUMPY = ("sqrt exp log log2 log10 power floor ceil abs sin cos tan tanh minimum maximum add subtract multiply divide prod "
          "sum mean max min cumprod isfinite isnan sign mod").split()

HANDLERS: dict[Any, Callable[..., Any]] = {
    **{function: _pure(function) for function in FUNCTIONS},
    **{getattr(numpy, name): _numpy(name) for name in _NUMPY},
}
