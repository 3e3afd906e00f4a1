"""Outputs as objects: whether they are views, and of what, and how often they and the inputs were changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import exact
import quickfuse

T = torch.Tensor


def _then(value: Any, use: Callable[[Any], Any]) -> Any:
    return use(value)


PROGRAMS: dict[str, Callable[[T], Any]] = {
    "add_mul_": lambda x: x.add_(1).mul_(2),
    "detach": lambda x: x.detach(),
    "group": lambda x: (x.view(-1), x.detach(), x[0]),
    "view of temp": lambda x: (x+1).t(),
    "two views of temp": lambda x: _then(x+1, lambda y: (y.t(), y[0])),
    "view and base": lambda x: _then(x+1, lambda y: (y, y[0])),
    "inplace on view of input": lambda x: x[0].add_(1),
    "inplace temp": lambda x: (x+1).mul_(2).add_(3),
    "inplace view temp": lambda x: _then(x*1, lambda y: (y, y[0].add_(1), y.t().mul_(2))),
    "setitem": lambda x: _then(x.clone(), lambda y: (y.__setitem__(0, 1.), y)[1]),
    "setitem in": lambda x: (x.__setitem__(0, 1.), x)[1],
    "chunk": lambda x: x.chunk(2),
    "unbind": lambda x: x.unbind(),
    "split temp": lambda x: (x+1).split(1),
    "reshape": lambda x: x.reshape(-1),
    "reshape copy": lambda x: x.t().reshape(-1),
    "flatten": lambda x: x.flatten(),
    "expand": lambda x: x[:1].expand(4,3),
    "contiguous": lambda x: x.contiguous(),
    "contiguous t": lambda x: x.t().contiguous(),
    "to same": lambda x: x.to(torch.float32),
    "alias": lambda x: torch.ops.aten.alias(x),
    "data": lambda x: x.data,
    "squeeze": lambda x: x[None].squeeze(0),
    "T": lambda x: x.T,
    "as_strided": lambda x: x.as_strided((2,), (1,)),
    "diag": lambda x: x.diagonal(),
    "nested view": lambda x: x.view(3,2).t()[0],
    "view detach view": lambda x: x.view(3,2).detach()[0],
    "out": lambda x: torch.add(x, 1, out=torch.empty(2,3)),
    "copy_": lambda x: x.copy_(x.flip(0)),
    "zero_": lambda x: x.zero_(),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "swap": lambda x: (x.mul_(2), x.detach().add_(1), x.view(-1).sub_(1))[0],
    "resize": lambda x: x.unsqueeze_(0) ,
    "clone then version": lambda x: x.clone().add_(1)._version,
    "noop": lambda x: x.add_(0).mul_(1),
    "version in": lambda x: (x.add_(1), x._version)[1],
    "cond_version": lambda x: (x.add_(1), x*2, x.mul_(3))[1],
    "copy_ self": lambda x: x.copy_(x),
    "real": lambda x: x.real,
    "view_as": lambda x: x.view_as(x),
    "narrow+": lambda x: x.narrow(1,0,2)+1,
    "empty slice": lambda x: x[0:0],
    "empty inplace": lambda x: x[0:0].add_(1),
    "sort": lambda x: x.sort()[0].add_(1),
    "mm inplace": lambda x: (x@x.t()).add_(1).mul_(2),
    "mm out": lambda x: (x@x.t())[0],
    "relu_": lambda x: torch.relu_(x),
    "F.relu inplace": lambda x: F.relu(x, inplace=True),
    "dropout": lambda x: F.dropout(x, 0.5, inplace=True),
    "batchnorm": lambda x: F.batch_norm(x+1, torch.zeros(3), torch.ones(3), training=True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_gradients(name: str) -> None:
    exact.check(PROGRAMS[name], torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_gradients(name: str) -> None:
    """Views of what is computed inside are plain results of one operation of autograd."""
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    for program in (PROGRAMS[name], lambda x: PROGRAMS[name](x * 1)):
        found = exact.differences(program, x, calls=2)
        assert not [line for line in found if "is view is False" not in line and "base is None" not in line]


def test_changes_of_data_go_unnoticed() -> None:
    """Autograd would refuse to go through what was changed: not so where the change goes through `data`."""

    def program(x: T, w: T) -> T:
        loss = (x * w).sum()
        w.data.add_(1)
        loss.backward()
        return loss.detach()

    exact.check(program, torch.ones(3), torch.ones(3, requires_grad=True))


def test_a_result_that_autograd_keeps() -> None:
    """It was changed before autograd noted how often, and not since."""

    def program(x: T) -> Any:
        y = x.sin().mul_(2).add_(1)
        return y, y.exp(), y * y

    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    sum(t.sum() for t in program(x)).backward()
    results = quickfuse.compile(program)(y)
    assert [t._version for t in results] == [2, 0, 0]
    sum(t.sum() for t in results).backward()
    torch.testing.assert_close(y.grad, x.grad)


def test_steps_of_optimizers_count_their_changes() -> None:
    counts = []
    for wrap in (lambda f: f, quickfuse.compile):
        model = torch.nn.Linear(3, 3)
        model(torch.ones(3)).sum().backward()
        optimizer = torch.optim.Adam(model.parameters())
        step = wrap(optimizer.step)
        for _ in range(3):
            step()
        state = [t._version for values in optimizer.state.values() for t in values.values()]
        counts.append([*(p._version for p in model.parameters()), *state])
    assert counts[0] == counts[1]
