"""Putting a prologue's parts together: what walks through modules and containers runs only where something changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ..ir.source import Source
from .prologue import Prologue
from .walk import FEWEST_STATEMENTS

#: Variables that generated code assigns, and names that look like one.
_VARIABLE = re.compile(r"\b_[a-z]+\d+\b")


def assembled(prologue: Prologue, rest: list[str], later: Iterable[str]) -> list[str]:
    """All statements of a prologue, then those of `rest`; `later` come behind them."""
    before, walk, after = prologue.parts
    if prologue.walk is None or prologue.remember is None:
        return [*prologue.lines, *rest]
    uses = Counter(_VARIABLE.findall("\n".join([*after, *rest, *later])))
    needed = [name for name in _set_in(walk) if name in uses]
    if len(walk) < FEWEST_STATEMENTS or any(name not in prologue.read_in_walk for name in needed):
        return [*before, *walk, *after, *rest]
    needed, joined, rest = _join(needed, uses, rest)
    results: list[Source] = []
    unpacked = []
    for name in needed:
        parts = [prologue.read_in_walk[part] for part in joined.get(name, [name])]
        start = len(results)
        for found in parts:
            results += found if isinstance(found, list) else [found]
        single = not isinstance(parts[0], list)
        unpacked.append(f"{name} = _known0[{start if single else f'{start}:{len(results)}'}]")
    steps, numbers, roots = prologue.walk.steps(prologue.walk_guards, results)
    walked = prologue.remember(steps, numbers)
    prologue.constants["_walk0"], prologue.constants["_scan0"] = walked, walked.scan
    return [
        *before,
        f"_roots0 = [{', '.join(prologue.names(roots))}]",
        "_known0 = _scan0(_roots0)",
        "if _known0 is None:",
        "    _note0 = _walk0.begin(_roots0)",
        *(f"    {line}" for line in walk),
        *(f"    {name} = [{', '.join(f'*{part}' for part in parts)}]" for name, parts in joined.items()),
        "    if _note0 is not None: _walk0.finish(_note0)",
        *(["else:"] if unpacked else []),
        *(f"    {line}" for line in unpacked),
        *after,
        *rest,
    ]


def _join(needed: list[str], uses: Counter[str], rest: list[str]) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """Make one list of those that are only used one behind the other, in the list of all tensors.

    Returns what is needed now, which variables each new list is made of, and `rest` with the new lists.
    """
    joined: dict[str, list[str]] = {}
    changed = []
    for line in rest:
        runs: list[list[str]] = [[]]
        for part in line.removeprefix("_tensors = [").removesuffix("]").split(", ") if "_tensors = " in line else ():
            name = part.removeprefix("*")
            if part.startswith("*") and uses[name] == 1 and name in needed:
                runs[-1].append(name)
            elif runs[-1]:
                runs.append([])
        for run in runs:
            if len(run) > 1:
                name = f"_run{len(joined)}"
                joined[name] = run
                line = line.replace(", ".join(f"*{part}" for part in run), f"*{name}")
        changed.append(line)
    gone = {part for run in joined.values() for part in run}
    return [*joined, *(name for name in needed if name not in gone)], joined, changed


def _set_in(lines: list[str]) -> list[str]:
    """The variables that these statements assign."""
    return [line.partition(" = ")[0] for line in lines if not line.startswith("if ")]
