"""Random programs on a cache that grows, with operators whose results grow with it, or do not, compared with eager.

    python tests/capture/random_growing.py --count 500 --seed 0     # prints the programs that differ
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

import quickfuse
from differential import same
from many_seeds import print_differences
from seeding import seed_torch

OPERATORS = [
    "{a} * 2", "{a} + {b}", "torch.cat([{a}, {b}], 1)", "{a}[:, -2:]", "{a}[:, :-1]", "{a}.transpose(1, 2)",
    "{a}.transpose(1, 2).contiguous().transpose(1, 2)", "{a}.softmax(1)", "{a}.cumsum(1)", "{a}.flip(1)",
    "F.pad({a}, (0, 0, 1, 0))", "{a}.reshape(2, -1, 4)", "{a}.view({a}.shape[0], {a}.size(1), 4)",
    "{a} - {a}.mean(1, keepdim=True)", "({a} @ w)", "torch.relu({a})", "{a}.expand(2, {a}.shape[1], 4)",
    "{a}.repeat_interleave(2, 1)", "{a}.chunk(2, 1)[0]", "torch.where({a} > 0, {a}, -{a})",
    "{a} * torch.arange({a}.shape[1])[:, None]",
    "{a}.masked_fill(torch.arange({a}.shape[1])[:, None] > {a}.shape[1] - 2, 0.0)",
    "F.scaled_dot_product_attention({a}[:, None], {a}[:, None], {a}[:, None])[:, 0]", "{a}.clone()", "{a}.sort(1)[0]",
    "{a}.narrow(1, 0, {a}.shape[1] - 1)", "rest[:, :{a}.shape[1]]", "{a}.unfold(1, 2, 1)[..., 0]", "{a}.roll(1, 1)",
    "{a}.unsqueeze(0).squeeze(0)", "{a}.index_select(1, torch.arange({a}.shape[1] - 1))",
    "torch.stack([{a}, {a}], 0).sum(0)",
    "{a}.to(torch.float64).to(torch.float32)", "{a}[:, torch.arange({a}.shape[1] - 1)]",
]  # fmt: skip
STATEMENTS = [
    "cache['seen'] = {a}", "{a} = {a}.clone(); {a}.add_(1)", "n = n + {a}.shape[1]", "if {a}.shape[1] > 6: x = x + 1",
    "print(end='')", "{a} = {a} * ({a}.shape[1] ** -0.5)", "y = {a}.sum(1)",
]  # fmt: skip
RESULTS = ["{a}.sum(1)", "{a}.amax(1)", "{a}[:, -1]", "{a}[:, 0]", "{a}.mean((1, 2))", "x", "{a}.argmax(1)", "{a}"]


def source(rng: random.Random) -> str:
    """A function of a cache, what is added to it, a mask that grows, and memory for more."""
    names, lines = ["k", "mask"], []
    for number in range(rng.randint(2, 7)):
        a, b = rng.choice(names[-3:]), rng.choice(names)
        if rng.random() < 0.25:
            lines.append(rng.choice(STATEMENTS).format(a=a, b=b))
        else:
            lines.append(f"t{number} = " + rng.choice(OPERATORS).format(a=a, b=b))
            names.append(f"t{number}")
    returned = [rng.choice(RESULTS).format(a=a) for a in (names[-1], rng.choice(names))]
    head = ["n = 0; y = x", "k = torch.cat([cache['k'], x], 1); cache['k'] = k"]
    lines = [*head, *lines, f"return {returned[0]}, {returned[1]}, n, y"]
    return "def f(cache, x, mask, rest):\n" + "".join(f"    {line}\n" for line in lines)


def outcome(text: str, seed: int, compiled: bool) -> list[Any]:
    """What twelve calls return and keep. With odd seeds, the cache is another one now and then."""
    rng = random.Random(seed)
    seed_torch(seed)
    space: dict[str, Any] = {"torch": torch, "F": F, "w": torch.randn(4, 4)}
    exec(text, space)
    function = quickfuse.compile(space["f"], options={"raise_internal_errors": True}) if compiled else space["f"]
    cache, rest, found = {"k": torch.randn(2, 1, 4)}, torch.randn(2, 64, 4), []
    with torch.no_grad():
        for _ in range(12):
            if seed % 2 and rng.random() < 0.15:
                cache["k"] = torch.randn(2, rng.randint(1, 5), 4)
            x, mask = torch.randn(2, 1, 4), torch.randn(2, cache["k"].shape[1] + 1, 4)
            try:
                result = function(cache, x, mask, rest)
            except (RuntimeError, IndexError) as error:
                found.append(type(error).__name__)
                continue
            found.append([value.clone() if isinstance(value, torch.Tensor) else value for value in result])
            found.append([value.stride() for value in result if isinstance(value, torch.Tensor)])
            found.append([*({name: value.clone() for name, value in cache.items()}.values()), rest.clone()])
    return found


def difference(seed: int) -> str | None:
    """What is not as in eager, with the program."""
    text = source(random.Random(seed))
    for number, (theirs, mine) in enumerate(zip(outcome(text, seed, False), outcome(text, seed, True), strict=True)):
        if not same(theirs, mine, rtol=1e-4, atol=1e-5):
            return f"seed {seed}\n{text}value {number}: eager gives {theirs}, compiled gives {mine}"
    return None


if __name__ == "__main__":
    print_differences(difference, __doc__)
