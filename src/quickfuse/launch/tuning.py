"""Launch shapes by measuring: `mode="max-autotune"`.

The kernels of a graph that move most are compiled for a few shapes around the one that was chosen by sizes, each runs some
times on memory of its own, and the quickest is used. Winners are kept on disk, in the folder of Triton's compiled kernels:
the next process measures nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from quickfuse.ir.kernel import Access, Form, KernelCall
from quickfuse.ir.target import CUDA

from .cuda_compile import LaunchShape
from .cuda_shapes import longest_row
from .shared_shapes import bytes_moved

#: Seconds that a call takes with a shape.
Timer = Callable[[KernelCall, LaunchShape], float]
#: Compiles kernels, several at a time.
Compile = Callable[[list[tuple[KernelCall, LaunchShape]]], None]


def tuned_shapes(
    calls: Sequence[KernelCall], shapes: Sequence[LaunchShape], key: Callable[[KernelCall, LaunchShape], str],
    compile_all: Compile, timer: Timer,
) -> list[LaunchShape]:  # fmt: skip
    """The launch shapes of calls, of which those of the largest kernels are the quickest ones.

    `shapes` are those chosen by sizes; calls of a body with one shape are measured once, by the largest of them. `key` says
    what a measurement is good for.
    """
    groups: dict[tuple[object, LaunchShape], list[int]] = {}
    for k, (call, shape) in enumerate(zip(calls, shapes, strict=True)):
        groups.setdefault((call.body, shape), []).append(k)
    moved = {group: sum(bytes_moved(calls[k].body, calls[k].members) for k in numbers) for group, numbers in groups.items()}
    largest = sorted(groups, key=lambda group: -moved[group])[: CUDA.most_tuned_kernels]
    found, open_ = list(shapes), []
    for group in largest:
        call = calls[max(groups[group], key=lambda k: bytes_moved(calls[k].body, calls[k].members))]
        if call.body.ndim == 0 or bytes_moved(call.body, call.members) < CUDA.bytes_worth_tuning:
            continue
        place = _folder() / f"{hashlib.sha256(key(call, group[1]).encode()).hexdigest()}.json"
        winner = _read(place)
        if winner is None:
            open_.append((groups[group], call, candidates(call, group[1]), place))
        for k in groups[group]:
            found[k] = winner or found[k]
    compile_all([(call, shape) for _, call, tried, _ in open_ for shape in tried])
    for numbers, call, tried, place in open_:
        winner = _quickest(call, tried, timer)
        _write(place, winner)
        for k in numbers:
            found[k] = winner
    return found


def candidates(call: KernelCall, shape: LaunchShape) -> list[LaunchShape]:
    """The shape itself, then others of the same form: more or less work for each program, more or fewer threads for it."""
    halved, doubled = shape.num_warps // 2, shape.num_warps * 2
    found = [shape, replace(shape, num_warps=halved), replace(shape, num_warps=doubled)]
    found += [replace(shape, block=shape.block // 2), replace(shape, block=shape.block * 2)]
    found += [replace(shape, block=shape.block * 2, num_warps=doubled)]
    if shape.columns and shape.form is not Form.WHOLE:
        found += [
            replace(shape, columns=shape.columns // 2, block=shape.block * 2),
            replace(shape, columns=shape.columns * 2, block=shape.block // 2),
        ]
    longest = longest_row(call.body, call.members)
    return [one for one in dict.fromkeys(found) if one == shape or _is_sound(one, longest)]


def _is_sound(shape: LaunchShape, longest: int) -> bool:
    """Whether there are elements for all threads, and registers for all elements."""
    elements = shape.block * max(shape.columns, 1)
    if shape.columns and shape.columns >= 2 * longest and shape.form is not Form.WHOLE:
        return False
    enough = shape.num_warps >= 1 and shape.block >= (1 if shape.columns else 16) and elements >= shape.threads
    return enough and shape.num_warps <= CUDA.most_warps and elements <= CUDA.most_elements_a_thread * shape.threads


def _quickest(call: KernelCall, tried: list[LaunchShape], timer: Timer) -> LaunchShape:
    """The shape that takes least time: the first one, if another is not clearly better."""
    first = best = timer(call, tried[0]) * (1 - CUDA.clearly_better)
    winner = tried[0]
    for shape in tried[1:]:
        with contextlib.suppress(Exception):  # one that the device has not enough registers or shared memory for
            seconds = timer(call, shape)
            if seconds < min(best, first):
                best, winner = seconds, shape
    return winner


# --- on disk ---


def _folder() -> Path:
    """A folder of ours beside Triton's compiled kernels."""
    set_ = os.environ.get("TRITON_CACHE_DIR")
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return (Path(set_) if set_ else home / ".triton" / "cache") / "quickfuse-launch-shapes"


def _read(place: Path) -> LaunchShape | None:
    try:
        kept = json.loads(place.read_text())
        shape = LaunchShape(kept["block"], kept["warps"], kept["columns"], Form(kept["form"]), Access(kept["access"]))
        return shape if all(type(n) is int for n in (shape.block, shape.num_warps, shape.columns)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(place: Path, shape: LaunchShape) -> None:
    """Keep a winner. Where that is impossible, the next process measures again."""
    kept = {
        "block": shape.block, "warps": shape.num_warps, "columns": shape.columns, "form": shape.form.value,
        "access": int(shape.access),
    }  # fmt: skip
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(kept, file)
        os.replace(name, place)
