"""A number in each dictionary that changes whenever the dictionary does, where CPython has none.

Up to Python 3.13 every change gives a dictionary a new version. From 3.14 on it does not, but a dictionary can be watched
(`PyDict_AddWatcher`): a native function is called before each change. The one here counts on, in the upper bits of the word
in which CPython keeps the watchers of a dictionary, and where the version was: bits 0 to 11 are CPython's, and the others
have been unused since there are no versions. So "the same number as before" means "unchanged" on all versions.

A class has a version in all of them. For attributes that an instance keeps beside its dictionary, see `inline_values.py`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import sys
from typing import Any

from . import cpu

#: Where a dictionary has its version, and its watchers.
DICT_VERSION = 24
_OWN_BITS = 12
_HIGHEST = -(1 << 63)
_NAME = "quickfuse_dictionary_changes"

#: Whether there are no versions: watchers are needed.
NEEDED = sys.version_info >= (3, 14)


def follow(dictionary: dict[Any, Any]) -> None:
    """See to it that each change of a dictionary gives it another version."""
    if not NEEDED:
        return
    number, count_on = _watcher()
    if not ctypes.c_int64.from_address(id(dictionary) + DICT_VERSION).value >> number & 1:
        ctypes.pythonapi.PyDict_Watch(ctypes.c_int(number), ctypes.py_object(dictionary))
        count_on(0, id(dictionary), 0, 0)


def available() -> bool:
    """Whether `follow` works here. There may be no room for one more watcher."""
    if not NEEDED:
        return True
    try:
        return 0 <= _watcher()[0] < 8
    except (RuntimeError, OSError):  # of CPython, without room for a watcher, and of LLVM, without memory for its function
        return False


@functools.cache
def _watcher() -> tuple[int, Any]:
    """The number of our watcher, and its function.

    Raises:
        RuntimeError: where there are too many.
    """
    counter = ctypes.c_int64(1 << _OWN_BITS)
    address = cpu.load(_count_ir(ctypes.addressof(counter)), [_NAME])[_NAME]
    number = ctypes.pythonapi.PyDict_AddWatcher(ctypes.c_void_p(address))
    # Dictionaries change while the interpreter ends, when there is no native function any more.
    atexit.register(ctypes.pythonapi.PyDict_ClearWatcher, ctypes.c_int(number))
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)
    function.counter = counter  # type: ignore[attr-defined]  # kept, since the native function has its address
    return number, function


def _count_ir(counter: int) -> str:
    """LLVM IR of `(event, dictionary, key, value)`, CPython's `PyDict_WatchCallback`."""
    return f"""
define i32 @{_NAME}(i32 %event, ptr %dictionary, ptr %key, ptr %value) {{
entry:
  %number = atomicrmw add ptr inttoptr (i64 {counter} to ptr), i64 {1 << _OWN_BITS} monotonic
  %word.p = getelementptr i8, ptr %dictionary, i64 {DICT_VERSION}
  %word = load i64, ptr %word.p
  %theirs = and i64 %word, {(1 << _OWN_BITS) - 1}
  %marked = or i64 %number, {_HIGHEST}
  %new = or i64 %theirs, %marked
  store i64 %new, ptr %word.p
  ret i32 0
}}
"""
