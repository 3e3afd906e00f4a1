"""PyTorch wraps parts of its optimizers when its own compiler is imported: that changes nothing for us. What that compiler
says about itself is known in a graph."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch
import torch._dynamo
import quickfuse
quickfuse.config.raise_internal_errors = True
for cls in (torch.optim.Adam, torch.optim.SGD):
    a, b = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    eager, optimizer = cls([a], lr=0.1), cls([b], lr=0.1)
    step = quickfuse.compile(lambda: optimizer.step())
    for k in range(3):
        a.grad, b.grad = torch.full((4,), 1.0 + k), torch.full((4,), 1.0 + k)
        eager.step()
        step()
    assert torch.allclose(a, b), (a, b)
    assert step.graph_count == 1, step.graph_count
    assert step.specialisations[0].kernels

def train(compile):  # PyTorch's compiler puts a wrapper of its own around LBFGS.step
    p = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.LBFGS([p], max_iter=5)
    def closure():
        optimizer.zero_grad()
        loss = ((p - torch.tensor([3.0, -1.0])) ** 2).sum() + p.prod() ** 2
        loss.backward()
        return loss
    step = compile(lambda: optimizer.step(closure))
    return [step().item() for _ in range(3)], p.detach()

for expected, actual in zip(train(lambda f: f), train(quickfuse.compile)):
    torch.testing.assert_close(actual, expected)

@torch.compiler.disable
def outside(x):
    return x + 1

def f(x):
    return outside(x * 2) * 3

assert torch.equal(quickfuse.compile(f)(torch.ones(2)), f(torch.ones(2)))

from torch._dynamo.utils import is_compile_supported

def asks_what_it_can(x):  # as libraries do that have a version of their own for it
    if is_compile_supported(x.device.type) and torch._dynamo.is_dynamo_supported():
        x = x * 2
    return x if is_compile_supported(device_type="vulkan") else x + 1

assert torch.equal(quickfuse.compile(asks_what_it_can, fullgraph=True)(torch.ones(2)), asks_what_it_can(torch.ones(2)))
"""


@pytest.mark.usefixtures("forked_interpreters")
def test_with_the_peer_imported() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120, env=environment)
