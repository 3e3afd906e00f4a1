"""Makes a failing program of `lives` small: first by leaving out calls and events, then as `programs.reduce` does."""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable

from programs.reduce import reduced


def shortened(source: str, fails: Callable[[str], bool], seconds: float) -> str:
    """The smallest program found for which `fails` is true, within a time limit."""
    deadline = time.monotonic() + seconds
    tree = ast.parse(source)
    turns = [s for s in _life(tree).body if isinstance(s, ast.With)]
    size = max(len(turns) // 2, 1)
    kept = [*range(len(turns))]
    while size and time.monotonic() < deadline:
        start = len(kept) - size
        while start > -size and time.monotonic() < deadline:  # from the end: what follows the failure goes at once
            smaller = kept[: max(start, 0)] + kept[start + size :]
            if len(smaller) < len(kept) and fails(_with_turns(tree, smaller)):
                kept = smaller
            start -= size
        size //= 2
    return reduced(_with_turns(tree, kept), fails, max(deadline - time.monotonic(), 0.0))


def _life(tree: ast.Module) -> ast.FunctionDef:
    return next(s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name == "life")


def _with_turns(tree: ast.Module, kept: list[int]) -> str:
    """The program with these of its calls and events."""
    made = copy.deepcopy(tree)
    life, numbers = _life(made), iter(range(len(_life(made).body)))
    life.body = [s for s in life.body if not isinstance(s, ast.With) or next(numbers) in kept]
    return ast.unparse(made) + "\n"
