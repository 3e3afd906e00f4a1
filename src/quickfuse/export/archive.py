"""Files of exported programs: a zip archive with the program as JSON, its weights as safetensors, and checksums.

Reading one runs no code from it: there is no pickle, operators are looked up by name among those that PyTorch has
registered, and everything is checked before it is used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import zipfile
from collections.abc import Collection
from typing import Any

from ..errors import ExportFileError
from .decoding import decoded
from .encoding import encoded
from .program import Program
from .weights import packed

PROGRAM, WEIGHTS, CHECKSUMS = "program.json", "weights.safetensors", "checksums.json"
_ENTRIES = (PROGRAM, WEIGHTS, CHECKSUMS)
#: Of the parts that are read as text, in bytes. Weights may be as large as the file.
LARGEST_TEXT = 1 << 28


def write(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program to a file. What was there is replaced when all is written.

    Raises:
        ExportError: for a program with a value that no file can describe.
    """
    weights, places = packed(program.state)
    text = encoded(program)
    text["state"] = places
    parts = {PROGRAM: json.dumps(text, indent=1, allow_nan=False).encode(), WEIGHTS: weights}
    sums = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    parts[CHECKSUMS] = json.dumps(sums, indent=1).encode()
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", folder)
    temporary = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, part in parts.items():
                archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), part)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def read(path: str | os.PathLike[str], namespaces: Collection[str] = ()) -> Program:
    """The program in a file. Operators of libraries are called only if their namespace is among `namespaces`.

    Raises:
        ExportFileError: for a file that is none, is damaged, was made by a newer version, or asks for what it may not.
        OSError: where the file cannot be opened.
    """
    try:
        parts = _parts(path)
        return decoded(_json(parts[PROGRAM], PROGRAM), parts[WEIGHTS], {"aten", *namespaces})
    except ExportFileError as error:
        raise ExportFileError(f"{os.fspath(path)}: {error}") from error.__cause__


def _parts(path: str | os.PathLike[str]) -> dict[str, bytes]:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                _check_entries(entries, size)
                parts = {entry.filename: archive.read(entry) for entry in entries}
        except (
            zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError, OSError, OverflowError, IndexError,
            UnicodeError, zipfile.LargeZipFile,
        ) as error:  # fmt: skip
            raise ExportFileError(f"this is no exported program, or a damaged one: {error}") from None
    sums = _json(parts[CHECKSUMS], CHECKSUMS)
    for name in (PROGRAM, WEIGHTS):
        wanted = sums.get(name) if isinstance(sums, dict) else None
        if wanted != hashlib.sha256(parts[name]).hexdigest():
            raise ExportFileError(f"{name} is damaged: its checksum is another one")
    return parts


def _check_entries(entries: list[zipfile.ZipInfo], size: int) -> None:
    names = [entry.filename for entry in entries]
    if sorted(names) != sorted(_ENTRIES):
        missing = [name for name in _ENTRIES if name not in names]
        odd = [name for name in names if name not in _ENTRIES]
        what = f"there is {odd[0]!r:.80} in it" if odd else "an entry is there twice"
        what = f"{missing[0]} is missing" if missing else what
        raise ExportFileError(f"this is no exported program: {what}")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise ExportFileError(f"{entry.filename} is compressed or encrypted, which parts of an exported program are not")
        limit = size if entry.filename == WEIGHTS else min(size, LARGEST_TEXT)
        if entry.file_size > limit or entry.file_size != entry.compress_size:
            raise ExportFileError(f"{entry.filename} says that it has {entry.file_size} bytes, which cannot be")


def _json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ExportFileError(f"{name} is no JSON: {error}") from None
