"""The Python interpreters of this machine."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

_SAY = "import sys; print(*sys.version_info[:2], int('t' in sys.abiflags))"  # which builds without the global lock have


@functools.cache
def interpreters() -> dict[tuple[int, int], str]:
    """An interpreter for each version that is found: this one, those of PATH, of pyenv, and of the variable `PYTHONS`, which
    has commands with a space between them. Later ones in this list go before others of the same version."""
    found = {sys.version_info[:2]: sys.executable}
    candidates = [path for minor in range(7, 20) if (path := shutil.which(f"python3.{minor}"))]
    candidates = [path for path in candidates if ".pyenv/shims" not in path]  # scripts that take a second to find these:
    candidates += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))]
    candidates += os.environ.get("PYTHONS", "").split()
    for candidate in candidates:
        try:
            said = subprocess.run([candidate, "-ISc", _SAY], capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        major, minor, free_threaded = map(int, said.split())
        if not free_threaded:
            found[major, minor] = candidate
    found[sys.version_info[:2]] = sys.executable
    return dict(sorted(found.items()))
