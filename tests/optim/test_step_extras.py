"""What people do around `optimizer.step()`: hooks, closures, clipping, averaging, groups with options of their own.

Each test is a small program over a `Side`, run by eager PyTorch on one side and by compiled code on an equal one. After
each call the results, the parameters with their gradients, the optimizer and what the program noted are equal.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import optimizer as optimizer_module
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import quickfuse
from optim.sides import OPTIMIZERS, Side, check_sides, fresh_gradients, just_step, lockstep
from optim.step_twins import compile_step, compiled_count, difference

# hooks ----------------------------------------------------------------------------------------------------------


def test_pre_and_post_hooks() -> None:
    def program(side: Side) -> Callable[[], Any]:
        side.optimizer.register_step_pre_hook(lambda opt, args, kwargs: side.seen.append(("pre", len(args), len(kwargs))))
        side.optimizer.register_step_post_hook(lambda opt, args, kwargs: side.seen.append(("post", opt is side.optimizer)))
        return just_step(side)

    mine, _, _ = lockstep(program)
    assert len(mine.seen) == 10


def test_hooks_that_change_gradients_and_rates() -> None:
    def program(side: Side) -> Callable[[], Any]:
        def before(opt: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            for group in opt.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5)

        def after(opt: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            for group in opt.param_groups:
                group["lr"] *= 0.9

        side.optimizer.register_step_pre_hook(before)
        side.optimizer.register_step_post_hook(after)
        return just_step(side)

    lockstep(program)


def test_hook_that_passes_a_closure() -> None:
    def program(side: Side) -> Callable[[], Any]:
        side.optimizer.register_step_pre_hook(lambda opt, args, kwargs: ((opt, lambda: 5.0), kwargs))
        return just_step(side)

    lockstep(program)


def test_hooks_come_and_go() -> None:
    handles: dict[int, Any] = {}

    def before(side: Side, step: int) -> None:
        fresh_gradients(side, step)
        if step == 2:
            handles[id(side)] = side.optimizer.register_step_post_hook(lambda *_: side.seen.append("post"))
        if step == 4:
            handles[id(side)].remove()

    mine, _, _ = lockstep(just_step, steps=6, before=before)
    assert mine.seen == ["post", "post"]


def test_hooks_for_all_optimizers() -> None:
    calls: list[str] = []
    handles = [
        optimizer_module.register_optimizer_step_pre_hook(lambda *_: calls.append("pre")),
        optimizer_module.register_optimizer_step_post_hook(lambda *_: calls.append("post")),
    ]
    try:
        lockstep(just_step, steps=3)
    finally:
        for handle in handles:
            handle.remove()
    assert calls == ["pre", "post"] * 6


def test_hook_that_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def program(side: Side) -> Callable[[], Any]:
        side.optimizer.register_step_post_hook(lambda *_: print(len(side.seen)))
        return just_step(side)

    lockstep(program, steps=3, fullgraph=False)
    assert capsys.readouterr().out == "0\n" * 6


# closures -------------------------------------------------------------------------------------------------------


def test_closure_without_tensors() -> None:
    lockstep(lambda side: lambda: side.optimizer.step(lambda: 1.5))


def test_closure_that_makes_gradients() -> None:
    def program(side: Side) -> Callable[[], Any]:
        def closure() -> torch.Tensor:
            for parameter in side.parameters:
                parameter.grad = parameter.detach() * 2 + 1
            return sum(p.detach().sum() for p in side.parameters)

        return lambda: side.optimizer.step(closure)

    lockstep(program)


def training_closure(side: Side) -> Callable[[], Any]:
    def closure() -> torch.Tensor:
        side.optimizer.zero_grad()
        loss = torch.stack([p.tanh().square().sum() for p in side.parameters]).sum()
        loss.backward()
        return loss

    return lambda: side.optimizer.step(closure).detach()


@pytest.mark.parametrize("fullgraph", ["in parts", "whole"])
def test_closure_with_backward(fullgraph: str) -> None:
    lockstep(training_closure, fullgraph=fullgraph == "whole")


# gradients: zeroing, clipping, missing ----------------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zero_grad(name: str, set_to_none: bool) -> None:
    def program(side: Side) -> Callable[[], Any]:
        def train() -> None:
            side.optimizer.step()
            side.optimizer.zero_grad(set_to_none=set_to_none)

        return train

    lockstep(program, OPTIMIZERS[name])


def test_zero_grad_of_missing_gradients() -> None:
    def program(side: Side) -> Callable[[], Any]:
        def train() -> None:
            side.optimizer.zero_grad(set_to_none=False)
            side.parameters[1].grad = torch.ones_like(side.parameters[1])
            side.optimizer.step()

        return train

    lockstep(program, before=lambda side, step: fresh_gradients(side, step, missing=[1] if step % 2 else [0]), most=3)


CLIPPING: dict[str, Callable[[Any], Any]] = {
    "norm": lambda parameters: clip_grad_norm_(parameters, 0.5),
    "norm-foreach": lambda parameters: clip_grad_norm_(parameters, 0.5, foreach=True),
    "norm-for": lambda parameters: clip_grad_norm_(parameters, 100.0, foreach=False),
    "norm-inf": lambda parameters: clip_grad_norm_(parameters, 0.5, norm_type=float("inf")),
    "norm-1": lambda parameters: clip_grad_norm_(parameters, 0.5, norm_type=1.0),
    "norm-iterator": lambda parameters: clip_grad_norm_(iter(parameters), 0.5),
    "value": lambda parameters: clip_grad_value_(parameters, 0.3),
    "value-foreach": lambda parameters: clip_grad_value_(parameters, 0.3, foreach=True),
    "by hand": lambda parameters: [p.grad.clamp_(-0.1, 0.1) for p in parameters],
}


@pytest.mark.parametrize("clipping", CLIPPING)
def test_clipping(clipping: str) -> None:
    def program(side: Side) -> Callable[[], Any]:
        def train() -> Any:
            result = CLIPPING[clipping](side.parameters)
            side.optimizer.step()
            return result

        return train

    lockstep(program, most=1)


def test_clipping_that_looks_for_nan() -> None:
    """`error_if_nonfinite` branches on the norm; the error is eager's, and nothing was stepped."""

    def program(side: Side) -> Callable[[], Any]:
        def train() -> Any:
            norm = clip_grad_norm_(side.parameters, 0.5, error_if_nonfinite=True)
            side.optimizer.step()
            return norm

        return train

    mine, theirs, compiled = lockstep(program, steps=3, fullgraph=False)
    for side, train in ((mine, compiled), (theirs, program(theirs))):
        side.parameters[0].grad = torch.full_like(side.parameters[0], float("nan"))
        with pytest.raises(RuntimeError, match="non-finite"):
            train()
    check_sides(mine, theirs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_without_gradients(name: str) -> None:
    lockstep(just_step, OPTIMIZERS[name], before=lambda side, step: fresh_gradients(side, step, missing=[1]))


def test_no_gradients_at_all() -> None:
    """Nothing to compute: no graph, and no break."""
    before = lambda side, step: fresh_gradients(side, step, missing=range(9))  # noqa: E731
    _, _, compiled = lockstep(just_step, steps=3, least=0, most=0, before=before)
    assert not compiled.breaks and compiled.native_reason is None


def test_frozen_parameters() -> None:
    def before(side: Side, step: int) -> None:
        side.parameters[0].requires_grad_(False)
        fresh_gradients(side, step, missing=[0])

    lockstep(just_step, before=before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_that_come_later(name: str) -> None:
    """State is made in the second step for one parameter, in the fourth for another; one disappears again."""
    missing = [[1, 2], [2], [2], [], [], [0], []]
    lockstep(
        just_step, OPTIMIZERS[name], steps=7, most=7,
        before=lambda side, step: fresh_gradients(side, step, missing=missing[step]),
    )  # fmt: skip


# groups and options ---------------------------------------------------------------------------------------------


def grouped(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [
            {"params": parameters[:1], "lr": 0.1, "weight_decay": 0.0},
            {"params": parameters[1:2], "amsgrad": True, "betas": (0.5, 0.9)},
            {"params": parameters[2:], "maximize": True, "foreach": True},
        ],
        lr=0.01,
    )


def test_groups_with_options_of_their_own() -> None:
    lockstep(just_step, grouped, most=1)


def test_group_added_between_steps() -> None:
    def make(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters[:1], lr=0.01)

    def before(side: Side, step: int) -> None:
        fresh_gradients(side, step)
        if step in (2, 4):
            side.optimizer.add_param_group({"params": [side.parameters[step // 2]], "lr": 0.1 * step})

    _, _, compiled = lockstep(just_step, make, steps=6, before=before, most=3)
    assert compiled_count(compiled) == 3


def test_options_changed_by_hand() -> None:
    """Numbers are arguments; weight decay that begins is a branch of the optimizer's, and so one specialisation more."""

    def before(side: Side, step: int) -> None:
        fresh_gradients(side, step)
        for group in side.optimizer.param_groups:
            group["lr"] = 0.01 * (step + 1)
            group["betas"] = (0.9 - 0.1 * step, 0.99)
            group["eps"] = 10.0 ** -(step + 4)
            group["weight_decay"] = 0.0 if step < 2 else 0.1 * step

    _, _, compiled = lockstep(just_step, before=before, most=2)
    assert compiled_count(compiled) == 2


def test_rate_changed_inside() -> None:
    def program(side: Side) -> Callable[[], Any]:
        def train() -> Any:
            for group in side.optimizer.param_groups:
                group["lr"] = group["lr"] * 0.5 + 0.001
            side.optimizer.step()
            return side.optimizer.param_groups[0]["lr"]

        return train

    lockstep(program, most=1)


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam], ids=lambda cls: cls.__name__)
def test_differentiable(cls: Any) -> None:
    """A step that autograd goes through: gradients of what the parameters were before it."""
    leaves = [torch.randn(4, 3, requires_grad=True) for _ in range(2)]
    leaves[1].data.copy_(leaves[0].data)
    for leaf, compiled in zip(leaves, (False, True), strict=True):
        parameter = leaf.clone()
        optimizer = cls([parameter], lr=0.1, differentiable=True)
        step = compile_step(optimizer.step, fullgraph=False) if compiled else optimizer.step
        for k in range(3):
            parameter.grad = leaf * 0.1 + k
            step()
        parameter.square().sum().backward()
    assert not (problem := difference(leaves[1].grad, leaves[0].grad)), problem


class SignDescent(torch.optim.Optimizer):
    """An optimizer as users write them."""

    def __init__(self, parameters: Any, lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                    state["count"] = 0
                state["count"] += 1
                state["average"].mul_(group["momentum"]).add_(parameter.grad, alpha=1 - group["momentum"])
                parameter.add_(state["average"].sign(), alpha=-group["lr"] / state["count"] ** 0.5)
        return loss


def test_optimizer_of_the_users_own() -> None:
    lockstep(just_step, SignDescent, most=2)


# several things in one function -----------------------------------------------------------------------------------


def test_two_optimizers() -> None:
    def program(side: Side) -> Callable[[], Any]:
        first = torch.optim.SGD(side.parameters[:1], lr=0.1, momentum=0.9)
        side.optimizer = torch.optim.Adam(side.parameters[1:], lr=0.01)
        side.seen.append(first.param_groups)

        def train() -> None:
            first.step()
            side.optimizer.step()
            first.zero_grad()

        return train

    lockstep(program)


def test_two_steps_in_a_call() -> None:
    def program(side: Side) -> Callable[[], Any]:
        def train() -> None:
            side.optimizer.step()
            for parameter in side.parameters:
                parameter.grad.neg_()
            side.optimizer.step()

        return train

    lockstep(program)


AVERAGES: dict[str, Callable[[list[torch.Tensor], list[torch.nn.Parameter]], Any]] = {
    "foreach": lambda averages, parameters: torch._foreach_lerp_(averages, parameters, 0.1),
    "in two": lambda averages, parameters: (
        torch._foreach_mul_(averages, 0.9), torch._foreach_add_(averages, parameters, alpha=0.1)
    ),
    "for": lambda averages, parameters: [a.lerp_(p, 0.1) for a, p in zip(averages, parameters, strict=True)],
}  # fmt: skip


@pytest.mark.parametrize("average", AVERAGES)
def test_moving_averages(average: str) -> None:
    def program(side: Side) -> Callable[[], Any]:
        side.seen = [p.detach().clone() for p in side.parameters]

        def train() -> None:
            side.optimizer.step()
            with torch.no_grad():
                AVERAGES[average](side.seen, side.parameters)

        return train

    lockstep(program, most=1)


@pytest.mark.parametrize("average", ["mean", "ema"])
def test_averaged_model(average: str) -> None:
    """It begins with a branch on a tensor, `n_averaged == 0`: a guard with two outcomes."""

    def program(side: Side) -> Callable[[], Any]:
        model = torch.nn.ParameterList(side.parameters)
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9) if average == "ema" else None)
        side.seen = [*averaged.parameters(), *averaged.buffers()]

        def train() -> None:
            side.optimizer.step()
            averaged.update_parameters(model)

        return train

    lockstep(program)


@pytest.mark.parametrize("enabled", ["disabled", "enabled"])
def test_grad_scaler(enabled: str) -> None:
    """Disabled, it is a plain call of `step`. Enabled, it asks a tensor whether there were infinities: in parts."""

    def program(side: Side) -> Callable[[], Any]:
        scaler = torch.amp.GradScaler("cpu", enabled=enabled == "enabled", init_scale=4.0, growth_interval=2)
        scaler.scale(torch.ones(()))

        def train() -> Any:
            scaler.step(side.optimizer)
            scaler.update()
            return scaler.get_scale()

        return train

    lockstep(program, fullgraph=enabled == "disabled")


def whole_training_step(side: Side) -> Callable[[], Any]:
    schedule = torch.optim.lr_scheduler.ExponentialLR(side.optimizer, gamma=0.9)

    def train() -> Any:
        side.optimizer.zero_grad()
        loss = torch.stack([p.tanh().square().sum() for p in side.parameters]).sum()
        loss.backward()
        norm = clip_grad_norm_(side.parameters, 1.0)
        side.optimizer.step()
        schedule.step()
        return loss.detach(), norm

    return train


@pytest.mark.parametrize("fullgraph", ["in parts", "whole"])
def test_whole_training_step(fullgraph: str) -> None:
    lockstep(whole_training_step, fullgraph=fullgraph == "whole")


def test_under_no_grad() -> None:
    """The mode around the call is the caller's, and stays it."""

    def before(side: Side, step: int) -> None:
        fresh_gradients(side, step)
        torch.set_grad_enabled(step % 2 == 0)

    try:
        lockstep(just_step, before=before)
    finally:
        torch.set_grad_enabled(True)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop])
def test_gradients_that_an_optimizer_refuses(kind: Any) -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = kind(table.parameters())

    def step(k: torch.Tensor) -> None:
        optimizer.zero_grad()
        table(k).square().sum().backward()
        optimizer.step()

    compiled = quickfuse.compile(step, options={"raise_internal_errors": True})
    for function in (step, compiled, compiled):
        with pytest.raises(RuntimeError, match="sparse"):
            function(torch.tensor([1, 2]))


@pytest.mark.parametrize("earlier", [False, True])
def test_state_is_laid_out_as_a_gradient_that_the_step_computes(earlier: bool) -> None:
    weight = torch.randn(3, 24, 24)
    x = torch.randn(4, 7, 24)

    def run(compiled: bool) -> list[tuple[int, ...]]:
        parameter = torch.nn.Parameter(weight.clone())
        optimizer = torch.optim.Rprop([parameter])
        if earlier:
            parameter.grad = torch.zeros_like(parameter)

        def step() -> None:
            loss = torch.einsum("btd,edf->btef", x, parameter).square().sum()
            (parameter.grad,) = torch.autograd.grad(loss, [parameter])
            optimizer.step()

        (quickfuse.compile(step) if compiled else step)()
        state = optimizer.state[parameter]
        return [parameter.grad.stride(), state["prev"].stride(), state["step_size"].stride()]

    assert run(compiled=True) == run(compiled=False)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_closure_that_takes_gradients(name: str) -> None:
    """What had a gradient before the closure ran, and has none after it, has no state then, in any group."""

    def run(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        layer, unused = torch.nn.Linear(3, 3), [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        optimizer = OPTIMIZERS[name]([{"params": [*layer.parameters(), unused[0]]}, {"params": unused[1:]}])
        for p in unused:
            p.grad = torch.ones(3)

        def step(x: torch.Tensor) -> torch.Tensor:
            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = layer(x).square().sum()
                loss.backward()
                return loss

            return optimizer.step(closure)

        step = quickfuse.compile(step, options={"raise_internal_errors": True}) if compiled else step
        losses = [step(torch.ones(2, 3)).item() for _ in range(3)]
        return [losses, [p.data for p in (*layer.parameters(), *unused)], [len(s) for s in optimizer.state.values()]]

    torch.testing.assert_close(run(compiled=True), run(compiled=False))


@pytest.mark.parametrize("inside", ["model", "copy"])
def test_the_same_step_for_parameters_that_the_optimizer_has(inside: str) -> None:
    """First a model that it does not train, and then the one that it does: those tensors are two in the first call, and one
    in the second."""

    def run(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
        other = copy.deepcopy(model) if inside == "copy" else torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def step(net: torch.nn.Module, x: torch.Tensor) -> None:
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()

        step = quickfuse.compile(step, options={"raise_internal_errors": True}) if compiled else step
        found = []
        for net in (other, model, other, model):
            step(net, torch.ones(2, 4))
            found.append([len(optimizer.state), *[p.detach().clone() for p in model.parameters()]])
        return found

    torch.testing.assert_close(run(compiled=True), run(compiled=False))


def test_gradients_that_were_taken_are_read_again() -> None:
    """`p.grad = None` for all of a list, one of which then gets a gradient: in the first call, what gets one is another."""

    def step(parameters: list[torch.nn.Parameter], trained: torch.nn.Parameter) -> int:
        for p in parameters:
            p.grad = None
        (trained * 2).sum().backward()
        return sum(p.grad is not None for p in parameters)

    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    compiled = quickfuse.compile(step)
    for trained, expected in ((2, 0), (1, 1), (2, 0), (0, 1)):
        assert compiled(parameters[:2], parameters[trained]) == expected


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.ASGD, torch.optim.Rprop, torch.optim.Adam])
def test_a_rate_that_changes_before_the_first_step(kind: type[torch.optim.Optimizer], known: bool) -> None:
    """Some optimizers keep the rate of their first step in their state."""

    def run(compiler: Callable[..., Any]) -> Any:
        p = torch.nn.Parameter(torch.linspace(-1, 1, 5))
        optimizer = kind([p], lr=0.1)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            (p * x).square().sum().backward()
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * 0.9 if known else 1 / x.sum().item()
            optimizer.step()

        compiled = compiler(step)
        for k in range(3):
            compiled(torch.arange(5.0) + k)
        return p.detach(), [v for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]

    torch.testing.assert_close(run(quickfuse.compile), run(lambda step: step))


def _turn_groups(optimizer: torch.optim.Optimizer) -> None:
    first, *rest = optimizer.param_groups
    optimizer.param_groups[:] = [*rest, first]


def _set_groups(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups = optimizer.param_groups[::-1]


def _turn_parameters(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[1]["params"].reverse()


def _set_parameters(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["params"] = group["params"][::-1]


def _take_parameter_out(optimizer: torch.optim.Optimizer) -> None:
    if len(optimizer.param_groups[1]["params"]) > 1:
        optimizer.param_groups[1]["params"].pop(0)


def _new_first_group(optimizer: torch.optim.Optimizer) -> None:
    if len(optimizer.param_groups) < 3:
        group = optimizer.param_groups[1]
        optimizer.param_groups.insert(0, {**group, "params": [group["params"].pop()]})


def _rate_of_the_graph(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["params"][0].detach().abs().sum() * 0.01


@pytest.mark.parametrize("change", [_turn_groups, _set_groups, _turn_parameters, _set_parameters, _take_parameter_out,
                                    _new_first_group, _rate_of_the_graph])  # fmt: skip
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Rprop])
def test_states_are_made_in_the_order_of_the_captured_groups(
    kind: Callable[..., torch.optim.Optimizer], change: Callable[[torch.optim.Optimizer], None]
) -> None:
    """The keys of `optimizer.state` are in the order in which the step comes to the parameters."""

    def make(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return kind([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.1}], lr=0.01)

    def program(side: Side) -> Callable[[], Any]:
        def step() -> list[int]:
            change(side.optimizer)
            side.optimizer.step()

        return step

    def check(mine: Side, theirs: Side) -> None:
        places = [[next(k for k, q in enumerate(s.parameters) if q is p) for p in s.optimizer.state] for s in (mine, theirs)]
        assert places[0] == places[1]

    mine, theirs = Side(make), Side(make)
    compiled, eager = quickfuse.compile(program(mine), backend="eager"), program(theirs)
    for step in range(4):
        fresh_gradients(mine, step)
        fresh_gradients(theirs, step)
        compiled()
        eager()
        check_sides(mine, theirs, step)
        check(mine, theirs)
