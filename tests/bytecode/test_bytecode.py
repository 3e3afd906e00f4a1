"""Decoding, on each interpreter that is found."""

from __future__ import annotations

import dis
import importlib
import subprocess
from pathlib import Path

import pytest

from interpreters import interpreters
from quickfuse.bytecode.decoding import TABLE, decode
from quickfuse.support import PYTHON_VERSIONS, within

FOUND = {version: path for version, path in interpreters().items() if within(version, PYTHON_VERSIONS)}


@pytest.mark.parametrize("version", FOUND, ids=lambda v: f"{v[0]}.{v[1]}")
def test_the_standard_library_is_decoded_and_written_again(version: tuple[int, int]) -> None:
    script = Path(__file__).with_name("reassemble.py")
    ran = subprocess.run([FOUND[version], str(script)], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"{version[0]}.{version[1]}: "), ran.stdout


def test_there_is_a_table_for_each_version() -> None:
    (major, first), (_, after) = PYTHON_VERSIONS
    for minor in range(first, after):
        table = importlib.import_module(f"quickfuse.bytecode.python_{major}_{minor}").TABLE
        assert table.version == (major, minor)


def test_what_is_made_of_instructions_is_the_same_everywhere() -> None:
    def function(x, y=1, *args, key=None):
        total = 0
        with x as z:
            for i in range(y):
                if i < 3 and not args:
                    total += z(i, key=key)[i]
        return f"{total!r:>{y}}", lambda a=x: (a, y)

    names = {instruction.name for instruction in decode(function.__code__).instructions}
    ours = {"LOAD_FAST", "STORE_FAST", "LOAD_GLOBAL", "LOAD_ATTR", "KW_NAMES", "CALL", "BINARY_SUBSCR", "COMPARE_OP",
            "BEFORE_WITH", "MAKE_FUNCTION", "FORMAT_VALUE", "FOR_ITER", "WITH_EXCEPT_START"}  # fmt: skip
    assert ours - {"LOAD_ATTR"} <= names
    assert not {name for name in names if name.startswith(("LOAD_FAST_", "STORE_FAST_")) and name.count("FAST") > 1}
    assert not names & {"PRECALL", "CALL_KW", "TO_BOOL", "LOAD_METHOD", "SET_FUNCTION_ATTRIBUTE", "LOAD_SPECIAL"}


def test_places_in_the_code() -> None:
    def function(x):
        return x.method(x, 1) if x > 0 else -x

    decoded = decode(function.__code__)
    for position, (start, unit) in enumerate(zip(decoded.starts, decoded.units, strict=True)):
        name = dis.opname[function.__code__.co_code[2 * unit]]
        if position not in decoded.before and name == decoded.instructions[position].name:
            assert start <= unit
    assert decoded.units == sorted(decoded.units)
    assert bool(decoded.before) is (TABLE.version >= (3, 13))
