"""Machine code on disk, so that the next process need not generate it again (decision 37).

    find    the object of a key, if some process has kept it
    keep    write an object down, for each of the keys of what it holds

A key is a hash of all that the object depends on. A file is written elsewhere and gets its name when it is complete; it
begins with a hash of the rest, and one that is damaged counts as none. Nothing goes wrong without the folder: everything is
generated. Machine code is only read from a folder that nobody else may write to.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import config

#: How many files a folder of the 256 may hold; then the half goes that was not used for the longest time. A file takes 4 to
#: 40 KB, and kernels that were compiled together share one.
_MOST_FILES = 128

#: Larger objects are not kept.
_MOST_BYTES = 1 << 20

#: The time of a file's last use is exact to so many seconds, so that reading does not write each time.
_USED = 86_400.0

_HASH_BYTES = 32


@dataclass(frozen=True)
class CompiledObject:
    """An object file in memory, and the names of the functions that it calls."""

    image: bytes
    imports: tuple[str, ...]


def key_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def find(key: str) -> CompiledObject | None:
    folder = _folder()
    if folder is None:
        return None
    path = _path(folder, key)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, rest = data[:_HASH_BYTES], data[_HASH_BYTES:]
    if hashlib.sha256(rest).digest() != digest:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _USED:
            os.utime(path)
    imports, image = rest.split(b"\n", 1)
    return CompiledObject(image, tuple(imports.decode().split()))


def keep(keys: Sequence[str], compiled: CompiledObject) -> None:
    folder = _folder()
    rest = " ".join(compiled.imports).encode() + b"\n" + compiled.image
    if folder is None or len(rest) > _MOST_BYTES:
        return
    data = hashlib.sha256(rest).digest() + rest
    written: Path | None = None
    for key in keys:
        path = _path(folder, key)
        try:
            path.parent.mkdir(exist_ok=True)
            if written is None or not _linked(written, path):
                _write(path, data)
                written = path
            _make_room(path.parent)
        except OSError:  # a full disk, say
            return


def _path(folder: Path, key: str) -> Path:
    return folder / key[:2] / key[2:]


def _linked(known: Path, path: Path) -> bool:
    try:
        path.hardlink_to(known)
    except FileExistsError:
        return True
    except OSError:  # a file system without them
        return False
    return True


def _write(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _make_room(folder: Path) -> None:
    if len(os.listdir(folder)) <= _MOST_FILES:
        return
    used = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder))
    for _, path in used[: len(used) // 2]:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _folder() -> Path | None:
    return _usable(config.cache_folder) if config.cache_folder else None


@functools.cache
def _usable(cache_folder: str) -> Path | None:
    """The folder for kernels, which is made if need be; None where there cannot be one, or others may write to it."""
    folder = Path(cache_folder).expanduser() / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return folder if is_own and os.access(folder, os.W_OK) else None
