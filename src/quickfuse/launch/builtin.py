"""Native functions that Python calls as it calls its own built-in ones.

A call through ctypes takes 150 to 250 ns, more than many of our native functions need for their work. CPython calls a
built-in function in 30 ns, and `PyCFunction_NewEx`, part of its stable interface, makes one of any native function with
the right parameters. Such a function gets an object of its own: here, a bytes object that holds the address of a block of
data, where there is one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

_NO_ARGUMENT = 0x0004
_ONE_ARGUMENT = 0x0008
_ARGUMENT_ARRAY = 0x0080

#: Where a bytes object keeps its contents.
_BYTES_CONTENTS = 32


class _Definition(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


#: Functions refer to their definitions as long as they live, so they are kept, one for each native function.
_definitions: dict[tuple[str, int], _Definition] = {}


def no_argument(name: str, address: int, block: np.ndarray) -> Callable[[], Any]:
    """The function at `address`, made by `of_one_argument`, with its block, which it keeps alive: its argument is null."""
    return _function(name, address, _NO_ARGUMENT, block.ctypes.data.to_bytes(8, "little"), block)


def one_argument(name: str, address: int, block: int) -> Callable[[Any], Any]:
    """The function at `address`, made by `of_one_argument`, with the address of its block."""
    return _function(name, address, _ONE_ARGUMENT, block.to_bytes(8, "little"))


def two_arguments(name: str, address: int) -> Callable[[Any, Any], Any]:
    """The function at `address`, made by `of_two_arguments`."""
    return _function(name, address, _ARGUMENT_ARRAY, b"")


def with_own(name: str, address: int, own: bytes, kept: object) -> Callable[[], Any]:
    """The function at `address` of no argument, with bytes of its own. It keeps an object alive."""
    return _function(name, address, _NO_ARGUMENT, own, kept)


def _function(name: str, address: int, flags: int, own: bytes, kept: object = None) -> Callable[..., Any]:
    definition = _definitions.get((name, address))
    if definition is None:
        definition = _definitions[name, address] = _Definition(name.encode(), address, flags, None)
        # Functions may outlast this module while the interpreter ends, and are asked for their flags until then.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    make = ctypes.pythonapi.PyCFunction_NewEx
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    # The last argument is for the function's module, which may be any object.
    made = prototype(ctypes.cast(make, ctypes.c_void_p).value or 0)(ctypes.addressof(definition), own, kept)
    return made  # type: ignore[no-any-return]


def layout_holds() -> bool:
    """Whether bytes objects keep their contents where these functions look for them."""
    probe = b"8 bytes!"
    return ctypes.string_at(id(probe) + _BYTES_CONTENTS, len(probe)) == probe


def of_one_argument(name: str, inner: str, result: str) -> str:
    """IR of a function of one object, from `inner`, a function of that object and the address of the block.

    `result` is what it gives: "object" or "number" (i64).
    """
    return f"""
define ptr @{name}(ptr %own, ptr %argument) {{
entry:
  %block.p = getelementptr i8, ptr %own, i64 {_BYTES_CONTENTS}
  %block = load i64, ptr %block.p
  %found = call {"ptr" if result == "object" else "i64"} @{inner}(ptr %argument, i64 %block)
{_returned(result)}
}}
"""


def launching(name: str) -> str:
    """IR of a function without arguments that calls the function whose address is the first word of its own with the second
    word, and returns None."""
    return f"""
define ptr @{name}(ptr %own, ptr %argument) {{
entry:
  %function.p = getelementptr i8, ptr %own, i64 {_BYTES_CONTENTS}
  %block.p = getelementptr i8, ptr %own, i64 {_BYTES_CONTENTS + 8}
  %function = load ptr, ptr %function.p
  %block = load ptr, ptr %block.p
  call void %function(ptr %block)
  %none = bitcast ptr {_object("_Py_NoneStruct")} to ptr
  call void {api("Py_IncRef")}(ptr %none)
  ret ptr %none
}}
"""


def of_two_arguments(name: str, inner: str, result: str, second: str = "object") -> str:
    """IR of a function of two objects, from `inner`, a function of them; `second` may be a "number" for it.

    `result` is what it gives: "object" or "truth" (i64).
    """
    convert = "" if second == "object" else f"  %number = call i64 {api('PyLong_AsLongLong')}(ptr %second)\n"
    argument = "ptr %second" if second == "object" else "i64 %number"
    return f"""
define ptr @{name}(ptr %own, ptr %arguments, i64 %count) {{
entry:
  %first = load ptr, ptr %arguments
  %second.p = getelementptr ptr, ptr %arguments, i64 1
  %second = load ptr, ptr %second.p
{convert}  %found = call {"ptr" if result == "object" else "i64"} @{inner}(ptr %first, {argument})
{_returned(result)}
}}
"""


def _returned(result: str) -> str:
    if result == "object":
        return "  ret ptr %found"
    make = api("PyLong_FromLongLong" if result == "number" else "PyBool_FromLong")
    return f"  %made = call ptr {make}(i64 %found)\n  ret ptr %made"


def api(name: str) -> str:
    """A function of CPython's, as IR calls it."""
    address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    return f"inttoptr (i64 {address} to ptr)"


def _object(name: str) -> str:
    """An object of CPython's, as IR refers to it."""
    return f"inttoptr (i64 {ctypes.addressof(ctypes.c_byte.in_dll(ctypes.pythonapi, name))} to ptr)"
