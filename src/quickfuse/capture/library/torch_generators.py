"""Seeding PyTorch's generators of random numbers, and NumPy's, and generators that the captured code makes.

As draws of Python's are, this is done before the graph runs, so nothing in the graph may come before it that draws. What
stands for a generator made inside belongs to the compiled code, and begins anew in each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.segment import Call, Constant, Recipe
from ..interpreter import Interpreter
from ..symbolic import ForeignObject, Symbol, type_of

#: What `torch.Generator()` begins with.
_FIRST_SEED = torch.Generator().initial_seed()


def _make(i: Interpreter, device: Any = "cpu") -> ForeignObject:
    """`torch.Generator()`, on the CPU."""
    device = i.outside.concrete(device)
    if torch.device(device).type != "cpu":
        raise Unsupported("making a Generator for another device")
    _check_nothing_drawn(i, "making a Generator")
    made = torch.Generator()
    stand_in = i.outside.constant_object(made, "torch.Generator()")
    i.outside.generators_made[stand_in.source] = i.performed
    _seed_before(i, torch.Generator.manual_seed, made, _FIRST_SEED)
    return stand_in  # type: ignore[return-value]


def _seed_made_or_given(i: Interpreter, generator: Any, seed: Any) -> Any:
    """`generator.manual_seed(seed)`."""
    if type(generator) is not ForeignObject or generator.real.device.type != "cpu":
        raise Unsupported("the method manual_seed of a Generator")
    _check_nothing_drawn(i, "seeding a Generator")
    made = generator.source in i.outside.generators_made
    _seed_before(i, torch.Generator.manual_seed, generator.real if made else generator, _whole(i, seed))
    return generator


def _seed_torch(i: Interpreter, seed: Any) -> Any:
    """`torch.manual_seed(seed)`, which gives the generator of the CPU."""
    _check_nothing_drawn(i, "torch.manual_seed()")
    _seed_before(i, _seed_all, torch.default_generator, _whole(i, seed))
    return i.outside.constant_object(torch.default_generator, "torch.default_generator")


def _seed_numpy(i: Interpreter, seed: Any) -> None:
    """`numpy.random.seed(seed)`."""
    _seed_before(i, _seed_of_numpy, numpy.random.mtrand._rand, _whole(i, seed, 0, (1 << 32) - 1))


def _check_nothing_drawn(i: Interpreter, what: str) -> None:
    """Only what comes first can be done before the graph."""
    if i.graph.nested or any(node.op.startswith("call") for node in i.graph.root.nodes):
        raise Unsupported(f"{what} behind operators")


def _whole(i: Interpreter, seed: Any, lowest: int = -(1 << 63), largest: int = (1 << 64) - 1) -> Any:
    """A seed that no generator refuses."""
    symbolic = type(seed) is Symbol and not seed.from_tensor and seed.cls is seed.kind
    value = seed.hint if symbolic else i.outside.concrete(seed)
    if type(value) is not int or not lowest <= value <= largest:
        raise Unsupported(f"a seed that is a {type_of(seed).__name__} or out of range")
    if not symbolic:
        return value
    i.outside.require(NumberExpr("({1} <= {0} <= {2})", (seed.expr, lowest, largest)), True)
    return seed


def _seed_before(i: Interpreter, function: Callable[..., None], generator: Any, seed: Any) -> None:
    def call(recipe: Callable[[Any], Recipe]) -> Call:
        of = recipe(generator) if type(generator) is ForeignObject else Constant(generator)
        return Call(function, [of, recipe(seed)])

    i.outside.draws.append((None, call))


def _seed_all(generator: torch.Generator, seed: int) -> None:
    torch.manual_seed(seed)


def _seed_of_numpy(generator: Any, seed: int) -> None:
    numpy.random.seed(seed)


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.Generator: _make, torch.Generator.manual_seed: _seed_made_or_given, torch.manual_seed: _seed_torch,
    numpy.random.seed: _seed_numpy,
}  # fmt: skip
