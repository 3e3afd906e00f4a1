"""Saving, loading and copying an optimizer between compiled steps."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from optim.sides import OPTIMIZERS, Side, check_sides, fresh_gradients, just_step, lockstep
from optim.step_twins import compile_step, compiled_count, difference


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_load_state_dict_between_steps(name: str) -> None:
    """Back to an earlier state, by way of a file: new state tensors of the same kind compile nothing."""
    saved: dict[int, io.BytesIO] = {}

    def before(side: Side, step: int) -> None:
        fresh_gradients(side, step)
        if step == 2:
            saved[id(side)] = io.BytesIO()
            torch.save(side.optimizer.state_dict(), saved[id(side)])
        if step == 4:
            saved[id(side)].seek(0)
            side.optimizer.load_state_dict(torch.load(saved[id(side)]))

    lockstep(just_step, OPTIMIZERS[name], steps=7, before=before)


def test_state_dict_in_between_is_a_view() -> None:
    """`state_dict()` refers to the state's tensors, which later steps change in place; a copy of it stays."""
    mine, theirs, compiled = lockstep(just_step, steps=2)
    pairs = [(side.optimizer.state_dict(), copy.deepcopy(side.optimizer.state_dict())) for side in (mine, theirs)]
    for side, step in ((mine, compiled), (theirs, theirs.optimizer.step)):
        fresh_gradients(side, 9)
        step()
    for found, expected in zip(pairs[0], pairs[1], strict=True):
        assert not (problem := difference(found, expected)), problem
    assert difference(pairs[0][0]["state"], pairs[0][1]["state"]), "the state moved on"


def test_state_dict_inside() -> None:
    def program(side: Side) -> Callable[[], Any]:
        def train() -> Any:
            side.optimizer.step()
            return side.optimizer.state_dict()

        return train

    lockstep(program, fullgraph=False)


def copied(side: Side, how: Callable[[Any], Any]) -> Side:
    """A copy of parameters and optimizer that belong to each other."""
    other = copy.copy(side)
    other.parameters, other.optimizer = how((side.parameters, side.optimizer))
    other.seen = []
    return other


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value))}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_copies_of_an_optimizer(name: str, how: str) -> None:
    """A copy is made after compiled steps. It goes on alone, in eager and compiled, and the original stays where it is."""
    mine, theirs, _ = lockstep(just_step, OPTIMIZERS[name], steps=3)
    before = copy.deepcopy((mine.parameters, mine.optimizer.state_dict()))
    one, two, reference = copied(mine, COPIES[how]), copied(mine, COPIES[how]), copied(theirs, copy.deepcopy)
    compiled = compile_step(two.optimizer.step)
    for step in range(3, 6):
        for side, call in ((one, one.optimizer.step), (two, compiled), (reference, reference.optimizer.step)):
            fresh_gradients(side, step)
            call()
        check_sides(one, reference, step)
        check_sides(two, reference, step)
    assert not (problem := difference((mine.parameters, mine.optimizer.state_dict()), before)), problem


def test_copy_of_a_compiled_step() -> None:
    """A copy of a compiled method steps the copy of its optimizer."""
    mine, theirs, _ = lockstep(just_step, steps=2)
    one, reference = copied(mine, copy.deepcopy), copied(theirs, copy.deepcopy)
    step_of_mine = compile_step(mine.optimizer.step)
    one.parameters, one.optimizer, compiled = copy.deepcopy((mine.parameters, mine.optimizer, step_of_mine))
    for step in range(2, 5):
        fresh_gradients(one, step)
        fresh_gradients(reference, step)
        compiled()
        reference.optimizer.step()
        check_sides(one, reference, step)
    assert compiled_count(compiled) == 1
