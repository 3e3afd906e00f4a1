"""Random functions that reach objects in several ways, which lead to other ones in each call, or to the same.

What a function changes in one place it may read in another: a specialisation that was made where these are two objects must
not run where they are one. A seed is a function and the objects of its calls, made anew in each, or once for all.

    python tests/test_aliases.py --seed 5000 --count 1500
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from many_seeds import print_differences

SEEDS = range(60)
CALLS = 6

#: How the function's arguments lead to an object; `q` is an item of a loop.
PLACES = ("a", "b", "box[0]", "box[1]", "held.one", "held.two", "table['p']", "table['q']")


class Held:
    """With attributes of all kinds."""

    def __init__(self) -> None:
        self.v, self.n, self.numbers, self.table = torch.ones(2), 1, [1.0], {"k": 2.0}


class Table(dict[str, Any]):
    pass


def _table() -> dict[str, Any]:
    return {"v": torch.ones(2), "n": 1}


OF_TABLES = (
    ("{}['v'] = x * 2", "{}['n'] = 7", "{}.update(z=4)", "{}.clear(); {}['v'] = x; {}['n'] = 2", "{}['v'].add_(1)"),
    ("{}['v'] + 1", "{}['n'] * x", "len({})", "list({})", "'z' in {}", "{} is b", "{}.get('z', 0) * x"),
)
#: For each kind of objects how one is made, what is done to it, and what is asked.
KINDS: dict[str, tuple[Callable[[], Any], tuple[str, ...], tuple[str, ...]]] = {
    "parameter": (
        lambda: nn.Parameter(torch.ones(2)),
        ("{}.grad = None", "{}.grad = x * 2", "({} * x).sum().backward()", "{}.tag = 3", "{}.data.mul_(2)",
         "{}.data = x * 3"),
        ("{}.grad is None", "None if {}.grad is None else {}.grad + 0", "getattr({}, 'tag', 0)", "{} * 2", "{} is b"),
    ),
    "module": (
        lambda: nn.Linear(2, 2),
        ("{}.weight.grad = None", "{}(x).sum().backward()", "{}.zero_grad()", "{}.weight = nn.Parameter(torch.eye(2))",
         "{}.eval()", "{}.extra = 3", "{}.weight.data.mul_(2)", "{}.bias = None"),
        ("{}.weight.grad is None", "{}(x)", "{}.training", "getattr({}, 'extra', 0)", "{}.weight * 2", "{}.bias is None",
         "[p.grad is None for p in {}.parameters()]"),
    ),
    "tensor": (
        lambda: torch.ones(2),
        ("{}.add_(1)", "{}[0] = 5", "{}.tag = 3"),
        ("{} * 2", "getattr({}, 'tag', 0)", "{} is b", "{}.sum()"),
    ),
    "object": (
        Held,
        ("{}.v = x * 2", "{}.n += 1", "{}.numbers.append(2.0)", "{}.table['z'] = 1.0", "del {}.n; {}.n = 9",
         "{}.numbers = [4.0]", "setattr({}, 'q', 1)"),
        ("{}.v + 1", "{}.n * x", "len({}.numbers)", "len({}.table)", "hasattr({}, 'q')", "{} is b", "{} == b"),
    ),
    "list": (
        lambda: [torch.ones(2), 1],
        ("{}[0] = x * 2", "{}[1] = 7", "{}.append(3)", "{}[0].add_(1)", "{}.insert(0, x)", "del {}[1:]; {}.append(4)"),
        ("{}[0] + 1", "len({})", "{}[-1] * x", "{} is b"),
    ),
    "deque": (
        lambda: collections.deque([torch.ones(2), 1]),
        ("{}[0] = x * 2", "{}.append(3)", "{}.appendleft(x)", "{}[0].add_(1)"),
        ("{}[0] + 1", "len({})", "{}[-1] * x"),
    ),
    "set": (lambda: {1, 2}, ("{}.add(5)", "{}.discard(1)"), ("len({})", "5 in {}", "sorted({})")),
    "dict": (_table, *OF_TABLES),
    "ordered": (lambda: collections.OrderedDict(_table()), *OF_TABLES),
    "subclass": (lambda: Table(_table()), *OF_TABLES),
}  # fmt: skip


def source_of(seed: int) -> tuple[str, str]:
    """The kind of a seed's objects, and its function. Few statements and places, so that they meet."""
    draw = random.Random(seed)
    kind = draw.choice(["parameter"] * 4 + [*KINDS])
    _, changes, questions = KINDS[kind]
    changes, questions = draw.sample(changes, 2), draw.sample(questions, 2)
    places = draw.sample(PLACES, 3)
    lines = ["def function(a, b, box, held, table, x):", "    out = []"]
    for _ in range(draw.randint(3, 8)):
        place, indent = draw.choice(places), "    "
        if draw.random() < 0.3:
            lines.append("    for q in box:")
            place, indent = "q", "        "
        text = draw.choice(changes) if draw.random() < 0.5 else f"out.append({draw.choice(questions)})"
        lines.append(indent + text.replace("{}", place))
    return kind, "\n".join([*lines, "    return out"])


def outcome(seed: int, compile: Callable[[Any], Any]) -> list[Any]:
    """What each call returns or raises, and how it leaves all objects."""
    kind, source = source_of(seed)
    made: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(source, made)
    function, draw, found = compile(made["function"]), random.Random(seed), []
    torch.manual_seed(seed)
    new = draw.random() < 0.7
    objects = [KINDS[kind][0]() for _ in range(7)]
    for call in range(CALLS):
        objects = [KINDS[kind][0]() for _ in range(7)] if new else objects
        which = [*range(7)]
        for _ in range(draw.randint(1, 3) if call not in (0, 3) else 0):
            which[draw.randrange(7)] = draw.randrange(7)
        a, b, *box, one, two, last = [objects[k] for k in which]
        held = Held()
        held.one, held.two = one, two  # type: ignore[attr-defined]
        table = {"p": one if draw.random() < 0.3 else last, "q": last}
        try:
            result = _seen(function(a, b, box, held, table, torch.full((2,), 1.0 + call)))
        except (TypeError, AttributeError, IndexError, KeyError, RuntimeError) as error:
            result = type(error).__name__
        found.append((result, [*map(_seen, objects)]))
    return found


def _seen(value: Any) -> Any:
    """What can be compared of a value."""
    if isinstance(value, torch.Tensor):
        gradient = value.grad if value.is_leaf else None
        numbers = None if gradient is None else gradient.tolist()
        return value.detach().tolist(), value.requires_grad, numbers, getattr(value, "tag", None)
    if isinstance(value, nn.Module):
        return [_seen([*value.parameters()]), value.training, getattr(value, "extra", None), value.bias is None]
    if isinstance(value, dict):
        return [(key, _seen(part)) for key, part in value.items()]
    if isinstance(value, Held):
        return _seen(vars(value))
    if isinstance(value, (list, collections.deque)):
        return [*map(_seen, value)]
    return sorted(value) if isinstance(value, set) else value


def compiled(function: Any) -> Any:
    return quickfuse.compile(function, options={"raise_internal_errors": True})


def difference(seed: int) -> str | None:
    quickfuse.reset()
    same = _are_alike(outcome(seed, compiled), outcome(seed, lambda function: function))
    return None if same else source_of(seed)[1]


def _are_alike(one: Any, other: Any) -> bool:
    """Whether two outcomes are equal but for the rounding of products."""
    if isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        return all(map(_are_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6)
    return bool(one == other)


@pytest.mark.parametrize("seed", SEEDS)
def test_as_in_eager(seed: int) -> None:
    assert _are_alike(outcome(seed, compiled), outcome(seed, lambda function: function)), source_of(seed)[1]


if __name__ == "__main__":
    print_differences(difference, __doc__)
