"""Putting a prologue's parts together: what walks through modules and containers, and what looks at many tensors, runs only
where something changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..ir.source import Source
from ..ir.walk import Holder
from .prologue import Prologue
from .walk import BEFORE, FEWEST_STATEMENTS, TENSORS, WALK, Walk

#: So many values are read again, at most, rather than found by a walk.
_MOST_READ_AGAIN = 16

#: Variables that generated code assigns, and names that look like one.
_VARIABLE = re.compile(r"\b_[a-z]+\d+\b")


@dataclass(slots=True)
class TensorsInOrder:
    """What is known of the checked tensors, for skipping their checks while they are the same.

    `sources` are they, in the order of the check; `later` the statements that run where checks were skipped. `make` gives
    what finds out if they are the same, from (walk, number of roots, holders); `ready` is a variable for a function that
    tells whether to ask.
    """

    sources: list[Source]
    later: list[str]
    make: Callable[[Any, int, list[Holder]], Any]
    ready: str = ""
    #: Whether generated code asks: then `_same0` is True where they are the same.
    used: bool = False


def assembled(prologue: Prologue, rest: list[str], later: Iterable[str], tensors: TensorsInOrder | None = None) -> list[str]:
    """All statements of a prologue, then those of `rest`; `later` come after them.

    The last one of `rest` makes the list of tensors, if there are any."""
    before, walk, regarded, after = prologue.parts
    if prologue.walk is None or prologue.remember is None:
        return [*prologue.lines, *rest]
    uses = Counter(_VARIABLE.findall("\n".join([*regarded, *after, *rest, *later])))
    needed = [name for name in _set_in(walk) if name in uses]
    if len(walk) < FEWEST_STATEMENTS or any(name not in prologue.read_in_walk for name in needed):
        return _unless_same(prologue, [*before, *walk], [], regarded, after, rest, tensors, None)
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
    before = [*before, f"_roots0 = [{', '.join(prologue.names(roots))}]"]
    walking = [
        "_known0 = _scan0(_roots0)",
        "if _known0 is None:",
        "    _note0 = _walk0.begin(_roots0)",
        *(f"    {line}" for line in walk),
        *(f"    {name} = [{', '.join(f'*{part}' for part in parts)}]" for name, parts in joined.items()),
        "    if _note0 is not None: _walk0.finish(_note0)",
        *(["else:"] if unpacked else []),
        *(f"    {line}" for line in unpacked),
    ]
    known = _Walked(walked, results, len(roots), [*_set_in(walk), *joined], walk)
    return _unless_same(prologue, before, walking, regarded, after, rest, tensors, known)


@dataclass(frozen=True, slots=True)
class _Walked:
    """A walk: what tells if it is unchanged, the sources of its results, how many roots it has, the variables that it sets,
    and its statements."""

    unchanged: Any
    results: list[Source]
    roots: int
    variables: list[str]
    statements: list[str]

    def read_again(self, names: Iterable[str]) -> list[str] | None:
        """The statements that set some variables, where these are few and read single values."""
        assignments = {line.partition(" = ")[0]: line for line in self.statements if not line.startswith("if ")}
        needed: set[str] = set()
        left = [*names]
        while left:
            name = left.pop()
            if name not in needed and name in self.variables:
                if not name.startswith("_v") or len(needed) == _MOST_READ_AGAIN:
                    return None
                needed.add(name)
                left += _VARIABLE.findall(assignments[name].partition(" = ")[2])
        return [line for name, line in assignments.items() if name in needed]


def _unless_same(
    prologue: Prologue, before: list[str], walking: list[str], regarded: list[str], after: list[str], rest: list[str],
    tensors: TensorsInOrder | None, walked: _Walked | None,
) -> list[str]:  # fmt: skip
    """The statements in order: those that walk and look at tensors only where these are not the same, if that is known."""
    plain = [*before, *walking, *regarded, *after, *rest]
    if tensors is None or prologue.walk is None:
        return plain
    hidden = {*(walked.variables if walked is not None else ()), *_set_in(regarded)}
    numbers, making = rest[:-1], rest[-1]
    shown = "\n".join([*after, *numbers, *tensors.later])
    needed = hidden & {*_VARIABLE.findall(shown)}
    again = walked.read_again(needed) if walked is not None and needed <= {*walked.variables} else None if needed else []
    if again is None or re.search(r"\b_tensors\b", shown):
        return plain
    holders = _holders(prologue.walk, tensors.sources, walked)
    if holders is None:
        return plain
    tensors.used = True
    count = walked.roots if walked is not None else 0
    held = [source for source, holder in zip(tensors.sources, holders, strict=True) if holder.kind == "caller"]
    same = tensors.make(walked.unchanged if walked is not None else None, count, holders)
    prologue.constants |= {"_same1": same.block, "_same2": same, "_holds0": same.holds, "_count0": same.count}
    names = [*(["*_roots0"] if count else []), *prologue.names(held)]
    unless = f" if {tensors.ready}() else None" if tensors.ready else ""
    return [
        *before,
        f"_held0 = [{', '.join(names)}]" if names != ["*_roots0"] else "_held0 = _roots0",
        "_known1 = _same1[0]",
        f"_tensors = _holds0(_held0){unless}",
        "_same0 = _tensors is not None",
        "if not _same0:",
        *(f"    {line}" for line in [*walking, *regarded, making]),
        *(["else:"] if again else []),
        *(f"    {line}" for line in again),
        *after,
        *numbers,
    ]


def _holders(walk: Walk, sources: list[Source], walked: _Walked | None) -> list[Holder] | None:
    """What holds each tensor, None where one is held by something that is not looked at."""
    position = {source: k for k, source in enumerate(sources)}
    results = {source: k for k, source in enumerate(walked.results)} if walked is not None else {}
    holders = []
    callers = 0
    for source in sources:
        part = walk.part(source)
        if part == BEFORE or (part == WALK and walked is None):
            holders.append(Holder("caller", callers))
            callers += 1
        elif source in results:
            holders.append(Holder("walk", results[source]))
        elif part == TENSORS and source.base in position:
            holders.append(Holder("grad", position[source.base]))
        else:
            return None
    return holders


def _join(needed: list[str], uses: Counter[str], rest: list[str]) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """Make one list of those that are only used one after the other, in the list of all tensors.

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
