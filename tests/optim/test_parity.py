"""Compiled optimizers against eager ones: parameters, state, counts of kernels and of specialisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

STEPS = 20
SHAPES = [(8, 8), (3,), (5, 7), (1,), (64,), (2, 3, 4)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

VARIANTS: list[tuple[type[torch.optim.Optimizer], dict[str, Any], int]] = [
    (torch.optim.Adam, {}, 2),
    (torch.optim.Adam, {"weight_decay": 0.1}, 2),
    (torch.optim.Adam, {"amsgrad": True, "maximize": True}, 2),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.01, "betas": (0.8, 0.95), "eps": 1e-6}, 2),
    (torch.optim.AdamW, {}, 2),
    (torch.optim.AdamW, {"amsgrad": True, "weight_decay": 0.1}, 2),
    (torch.optim.AdamW, {"maximize": True}, 2),
    (torch.optim.SGD, {}, 1),
    (torch.optim.SGD, {"weight_decay": 0.1, "maximize": True}, 1),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}, 1),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, 1),
]
IDS = [f"{cls.__name__}-{'-'.join(f'{k}={v}' for k, v in options.items())}" for cls, options, _ in VARIANTS]


class Pair:
    """Two equal optimizers, one stepped by eager PyTorch and one by compiled code, and always equal gradients."""

    def __init__(
        self, make: Callable[[Any], torch.optim.Optimizer], shapes: Any = SHAPES, dtype: torch.dtype = torch.float32,
        device: str = "cpu", wrap: Callable[[torch.optim.Optimizer], Callable[..., Any]] | None = None,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(1)
        values = [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]
        self.eager_parameters = [torch.nn.Parameter(v.clone()) for v in values]
        self.parameters = [torch.nn.Parameter(v.clone()) for v in values]
        self.eager = make(self.eager_parameters)
        self.optimizer = make(self.parameters)
        self.compiled = quickfuse.compile((wrap or (lambda opt: opt.step))(self.optimizer))
        self.generator = generator

    def gradients(self, missing: frozenset[int] = frozenset()) -> None:
        """New gradient tensors, as after `zero_grad(set_to_none=True)` and a backward pass."""
        for k, (mine, theirs) in enumerate(zip(self.parameters, self.eager_parameters, strict=True)):
            if k in missing:
                mine.grad = theirs.grad = None
            else:
                value = torch.randn(mine.shape, generator=self.generator).to(mine.device, mine.dtype)
                mine.grad, theirs.grad = value.clone(), value.clone()

    def step(self) -> None:
        self.eager.step()
        self.compiled()

    def set(self, name: str, value: Any) -> None:
        for group in [*self.eager.param_groups, *self.optimizer.param_groups]:
            group[name] = value

    def check(self, rtol: float = 1e-5, atol: float = 1e-7) -> None:
        for mine, theirs in zip(self.parameters, self.eager_parameters, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)
        compare_state(self.optimizer.state_dict(), self.eager.state_dict(), rtol, atol)


def compare_state(mine: dict[str, Any], theirs: dict[str, Any], rtol: float, atol: float) -> None:
    assert mine["param_groups"] == theirs["param_groups"]
    assert list(mine["state"]) == list(theirs["state"])
    for key, expected in theirs["state"].items():
        found = mine["state"][key]
        assert list(found) == list(expected)
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                assert found[name].dtype == value.dtype and found[name].device == value.device
                torch.testing.assert_close(found[name], value, rtol=rtol, atol=atol)
            else:
                assert found[name] == value


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize(("cls", "options", "kernels"), VARIANTS, ids=IDS)
def test_twenty_steps(cls: Any, options: dict[str, Any], kernels: int, foreach: bool | None, device: str) -> None:
    pair = Pair(lambda p: cls(p, lr=0.01, foreach=foreach, **options), device=device)
    for step in range(STEPS):
        pair.gradients()
        pair.set("lr", 0.01 / (1 + step))
        pair.step()
    pair.check()
    momentum = bool(options.get("momentum"))
    assert pair.compiled.graph_count == (2 if momentum else 1), "a learning rate does not recompile"
    assert [s.kernels for s in pair.compiled.specialisations] == [kernels] * pair.compiled.graph_count


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("foreach", [True, False])
def test_dtypes(dtype: torch.dtype, device: str, foreach: bool) -> None:
    pair = Pair(lambda p: torch.optim.AdamW(p, lr=0.01, foreach=foreach, eps=1e-4), dtype=dtype, device=device)
    for _ in range(STEPS):
        pair.gradients()
        pair.step()
    tolerance = 1e-12 if dtype is torch.float64 else 1e-2
    pair.check(rtol=tolerance, atol=tolerance)
    assert pair.compiled.specialisations[0].kernels == 2


def test_mixed_dtypes_are_one_launch_each() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    pair = Pair(make)
    for group in (pair.parameters, pair.eager_parameters):
        for p in group[::2]:
            p.data = p.data.double()
    for _ in range(3):
        pair.gradients()
        pair.step()
    pair.check()
    assert pair.compiled.specialisations[0].kernels == 3


@pytest.mark.parametrize("count", [1, 2, 50, 300])
def test_launches_do_not_grow_with_parameters(count: int) -> None:
    for foreach in (True, False):
        pair = Pair(lambda p: torch.optim.Adam(p, foreach=foreach), shapes=[(4, 4)] * count)  # noqa: B023
        for _ in range(2):
            pair.gradients()
            pair.step()
        pair.check()
        assert pair.compiled.specialisations[0].kernels == 2


def test_missing_gradients() -> None:
    pair = Pair(lambda p: torch.optim.Adam(p, lr=0.01))
    for missing in (set(), {1}, {1}, {0, 5}, set(), {1}, set(range(6))):
        pair.gradients(frozenset(missing))
        pair.step()
    pair.check()
    assert len(pair.compiled.specialisations) == 4


def test_several_groups_and_one_added_later() -> None:
    def make(p: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW([{"params": p[:2], "lr": 0.1}, {"params": p[2:4], "weight_decay": 0.0}], lr=0.01)

    pair = Pair(make)
    for step in range(6):
        pair.gradients()
        if step == 3:
            pair.optimizer.add_param_group({"params": pair.parameters[4:], "lr": 0.5})
            pair.eager.add_param_group({"params": pair.eager_parameters[4:], "lr": 0.5})
        pair.step()
    pair.check()
    assert pair.compiled.graph_count == 2


@pytest.mark.parametrize("device", DEVICES)
def test_tensor_learning_rate(device: str) -> None:
    def make(p: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False)

    pair = Pair(make, device=device)
    for step in range(5):
        pair.gradients()
        for group in [*pair.eager.param_groups, *pair.optimizer.param_groups]:
            group["lr"].fill_(0.01 * (step + 1))
        pair.step()
    pair.check()
    assert pair.compiled.graph_count == 1


@pytest.mark.gpu
@pytest.mark.parametrize("foreach", [True, False])
def test_capturable(foreach: bool) -> None:
    pair = Pair(
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01, device="cuda"), foreach=foreach, capturable=True),
        device="cuda",
    )
    for _ in range(STEPS):
        pair.gradients()
        pair.step()
    pair.check()


def test_state_moves_between_eager_and_compiled() -> None:
    pair = Pair(lambda p: torch.optim.Adam(p, lr=0.01))
    for _ in range(3):
        pair.gradients()
        pair.step()
    mine, theirs = pair.optimizer.state_dict(), pair.eager.state_dict()
    pair.optimizer.load_state_dict(theirs)
    pair.eager.load_state_dict(mine)
    for _ in range(3):
        pair.gradients()
        pair.step()
    pair.check()
    assert pair.compiled.graph_count == 1, "replaced state tensors of the same kind do not recompile"


WRAPPERS: dict[str, Callable[[torch.optim.Optimizer], Callable[..., Any]]] = {
    "bound method": lambda opt: opt.step,
    "lambda": lambda opt: lambda: opt.step(),
    "attribute": lambda opt: (lambda holder: lambda: holder["opt"].step())({"opt": opt}),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_ways_to_call(wrap: Any) -> None:
    pair = Pair(lambda p: torch.optim.Adam(p, lr=0.01), wrap=wrap)
    for _ in range(3):
        pair.gradients()
        pair.step()
    pair.check()
    assert pair.compiled.graph_count == 1


def test_step_hooks_run() -> None:
    calls: list[str] = []
    pair = Pair(lambda p: torch.optim.SGD(p, lr=0.01))
    pair.gradients()
    pair.step()
    handle = pair.optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    pair.step()
    assert calls == ["post"]
    handle.remove()
    pair.step()
    assert calls == ["post"]
    pair.check()


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (torch.optim.Adam, {"betas": (0.9, 0.99), "weight_decay": 0.1}),
        (torch.optim.AdamW, {"betas": (0.9, 0.99)}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
        (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    ],
    ids=["Adam", "AdamW", "SGD", "Adagrad"],
)
def test_fused_hyperparameters_may_change(cls: Any, options: dict[str, Any]) -> None:
    pair = Pair(lambda p: cls(p, fused=True, **options))
    pair.gradients()
    pair.step()
    made = pair.compiled.graph_count
    for name in ("lr", "betas", "weight_decay", "eps", "momentum", "dampening", "lr_decay"):
        if name not in pair.eager.defaults:
            continue
        value = (0.8, 0.95) if name == "betas" else pair.eager.defaults[name] * 1.5
        pair.set(name, value)
        pair.gradients()
        pair.step()
    pair.check()
    assert pair.compiled.graph_count <= max(made, 2)  # SGD has no momentum before its first step
