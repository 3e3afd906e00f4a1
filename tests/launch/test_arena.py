"""One block of memory for the temporaries on a GPU: no two that are alive together may share a byte of it."""

from __future__ import annotations

import random

import pytest
import torch

from kernel_bodies import pointwise_body
from quickfuse.ir.expr import Const
from quickfuse.ir.kernel import KernelCall, Member, Schedule, Slot
from quickfuse.ir.loop import Buffer, Extern, Program
from quickfuse.ir.values import TensorMeta
from quickfuse.launch.arena import Arena
from quickfuse.verify import Place, check_placement

F32, CUDA = torch.float32, torch.device("cuda", 0)


def temporary(name: str, size: int) -> Buffer:
    return Buffer(name, TensorMeta(F32, (size,), (1,), CUDA), "temp")


def kernel(buffers: list[Buffer]) -> KernelCall:
    slots = tuple(Slot(F32, (1,), "w") for _ in buffers)
    body = pointwise_body("cuda", 1, slots, (), tuple((k, Const(0.0, F32)) for k in range(len(buffers))))
    member = Member((1,), tuple(buffers), (0,) * len(buffers), ((1,),) * len(buffers))
    return KernelCall(body, [member], [], CUDA)


@pytest.mark.parametrize("seed", range(30))
def test_no_two_share_memory_while_both_are_alive(seed: int) -> None:
    rng = random.Random(seed)
    buffers = [temporary(f"t{k}", rng.choice([1, 100, 128, 1000, 5000])) for k in range(rng.randint(1, 40))]
    steps = [kernel(rng.sample(buffers, rng.randint(1, min(4, len(buffers))))) for _ in range(rng.randint(1, 30))]
    schedule = Schedule(Program(), list(steps), buffers)
    arena = Arena(schedule)
    used = {b for step in steps for b in step.buffers}
    assert set(arena.offsets) == used
    assert all(offset % 512 == 0 for offset in arena.offsets.values())
    check_placement(schedule, {b: Place("arena", offset, size=arena.size) for b, offset in arena.offsets.items()})


def test_a_chain_needs_room_for_two() -> None:
    buffers = [temporary(f"t{k}", 256) for k in range(20)]
    schedule = Schedule(Program(), [kernel([a, b]) for a, b in zip(buffers, buffers[1:], strict=False)], buffers)
    assert Arena(schedule).size == 2 * 1024


def test_what_operators_get_and_large_temporaries_are_tensors() -> None:
    passed, large, small = temporary("p", 10), temporary("l", 2 << 20), temporary("s", 10)
    result = Buffer("r", TensorMeta(F32, (10,), (1,), CUDA), "output")
    steps = [kernel([passed, large, small]), Extern(torch.relu, (passed,), {}, [result])]
    assert set(Arena(Schedule(Program(outputs=[result]), steps, [passed, large, small])).offsets) == {small}
