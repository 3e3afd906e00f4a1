"""What programs that live long found wrong, each as small as it could be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse


def outcome(call: Callable[..., Any], *args: Any) -> str:
    """What a call raises, or "nothing"."""
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_random_numbers_are_drawn_once_where_a_label_is_refused() -> None:
    """The graph draws, then eager does, and then plain Python, which raises: each begins with the same random state."""
    weight = torch.randn(3, 3, requires_grad=True)

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.dropout(x @ weight, 0.5), target)

    compiled, x = quickfuse.compile(loss), torch.randn(4, 3)
    for label in (1, 1000, 1000, 2):
        target, seen = torch.tensor([0, 1, 2, label]), []
        for function in (loss, compiled):
            torch.manual_seed(0)
            seen.append((outcome(function, x, target), torch.get_rng_state().tolist()))
        assert seen[0] == seen[1]


def _single(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float32)


MIXED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": lambda x: x @ _single(6, 6),
    "vector": lambda x: x @ _single(6),
    "linear": lambda x: F.linear(x, _single(5, 6)),
    "bias": lambda x: F.linear(x, torch.ones(5, 6, dtype=x.dtype), _single(5)),
    "conv1d": lambda x: F.conv1d(x[None], _single(4, 4, 3)),
    "conv2d": lambda x: F.conv2d(x[None, None], _single(4, 1, 3, 3)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], _single(1, 4, 3, 3)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.ones(4, dtype=torch.int32)),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_types_that_do_not_fit_are_refused_after_changes(name: str, needs_grad: bool) -> None:
    """What came before is done, as in eager, where an operator refuses operands of several types."""
    x, total, log = torch.randn(4, 6, dtype=torch.float64, requires_grad=needs_grad), torch.zeros(3), []

    def step() -> torch.Tensor:
        total.add_(1)
        log.append(1)
        return MIXED[name](x)

    compiled, seen = quickfuse.compile(step), []
    for function in (step, compiled, compiled):
        total.zero_()
        log.clear()
        seen.append((outcome(function), total.tolist(), list(log)))
    assert "type" in seen[0][0]
    assert seen[0] == seen[1] == seen[2]


AROUND: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_index_out_of_range_leaves_settings_as_they_were(around: str, needs_grad: bool) -> None:
    """The graph that eager runs instead changes settings and raises in between: plain Python begins with those before."""
    table = torch.randn(4, 4, requires_grad=needs_grad)

    def pick(index: torch.Tensor) -> torch.Tensor:
        first = table.sum()
        with AROUND[around]():
            return first + table[index].sum()

    compiled = quickfuse.compile(pick)
    for index in ([0, 1], [0, 99], [1, 2], [0, 99]):
        seen = []
        for function in (pick, compiled):
            raised = outcome(function, torch.tensor(index))
            seen.append((raised, torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
                torch.is_autocast_enabled("cpu")))
            torch.set_grad_enabled(True)
        assert seen[0] == seen[1]


@pytest.mark.parametrize("label", [4, -1])
@pytest.mark.parametrize("inside", [False, True])
def test_one_hot_refuses_a_class_beside_gradients(label: int, inside: bool) -> None:
    """PyTorch leaves out its checks for tensors in a trace."""
    weight = torch.randn(3, 4, requires_grad=True)

    def loss(target: torch.Tensor) -> torch.Tensor:
        value = (F.one_hot(target, 4) * weight).sum()
        if inside:
            value.backward()
        return value

    compiled = quickfuse.compile(loss)
    for last in (2, label, 1):
        target = torch.tensor([0, 1, last])
        assert outcome(compiled, target) == outcome(loss, target)


@pytest.mark.parametrize("kind", ["Adam", "NAdam", "RMSprop", "ASGD", "Rprop"])
def test_an_optimizer_has_no_state_where_its_first_step_was_not_reached(kind: str) -> None:
    """Capture makes the state that the first step would make; here a label is refused before."""
    weight = torch.randn(3, 4, requires_grad=True)
    optimizer = getattr(torch.optim, kind)([weight])

    @quickfuse.compile
    def step(target: torch.Tensor) -> None:
        F.cross_entropy(weight, target).backward()
        optimizer.step()

    for _ in range(2):
        assert outcome(step, torch.tensor([0, 1, 4])).startswith("IndexError")
        assert not optimizer.state
    step(torch.tensor([0, 1, 2]))
    assert [float(state["step"]) for state in optimizer.state.values()] == [1.0]


@pytest.mark.parametrize("inside", [False, True])
def test_inference_tensors_are_refused_where_eager_would_save_them(inside: bool) -> None:
    """Also where backward is a part of the graph, or needs something else."""
    weight = torch.randn(6, 4, requires_grad=True)

    def step(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        loss = F.embedding(index, weight).sum() + (x * weight).sum()
        if inside:
            weight.grad = None
            loss.backward()
        return loss.detach() if inside else loss

    compiled = quickfuse.compile(step)
    with torch.inference_mode():
        frozen = torch.randn(6, 4), torch.tensor([0, 5])
    usual = torch.randn(6, 4), torch.tensor([1, 2])
    for batch in (usual, frozen, (usual[0], frozen[1]), (frozen[0], usual[1]), usual):
        assert outcome(compiled, *batch) == outcome(step, *batch)


@pytest.mark.parametrize("kind", ["backward", "accumulated", "grad", "grad of one", "graph of one", "backward to one"])
def test_weights_that_are_tied_later_have_one_gradient(kind: str) -> None:
    """A graph that adds up the gradients of two parameters is not for one that is both."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(3)))

    def step(x: torch.Tensor) -> Any:
        loss = model(x).square().sum()
        if kind == "grad":
            return torch.autograd.grad(loss, [layer.weight for layer in model])
        if kind.endswith("of one"):  # the other one is reached, too
            return torch.autograd.grad(loss, model[2].weight, create_graph="graph" in kind)[0] * 2
        if kind == "backward to one":
            loss.backward(inputs=[model[2].weight])
            return model[2].weight.grad.clone()
        loss.backward()
        return [layer.weight.grad.clone() for layer in model]

    compiled, x, apart = quickfuse.compile(step), torch.randn(3, 4, dtype=torch.float64), model[2].weight
    for number in range(6):
        if number in (2, 4):
            model[2].weight = model[0].weight if number == 2 else apart
        gradients = []
        for function in (step, compiled):
            for p in model.parameters():
                p.grad = torch.ones_like(p) if kind == "accumulated" else None
            gradients.append(function(x))
        torch.testing.assert_close(gradients[1], gradients[0])
    assert compiled.graph_count == 2


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_anomaly_mode_finds_the_operator(inside: bool, fullgraph: bool) -> None:
    """Compiled before, inside or after it, the step raises what eager raises, and leaves no gradient."""
    weight = torch.ones(3, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        value = (weight * x).sqrt().sum()
        if inside:
            value.backward()
        return value

    def step(function: Callable[..., Any], x: torch.Tensor) -> None:
        value = function(x)
        if not inside:
            value.backward()

    compiled = quickfuse.compile(loss, fullgraph=fullgraph)
    for number, anomalies in enumerate((False, True, True, False)):
        with torch.autograd.set_detect_anomaly(anomalies):
            seen = []
            for function in (loss, compiled):
                weight.grad = None
                seen.append((outcome(step, function, torch.full((3,), -1.0 if number else 1.0)), weight.grad is None))
        assert seen[0] == seen[1]
        assert seen[0][1] is anomalies


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_backward_of_some_results_after_others_are_gone(dropped: int) -> None:
    """Several nodes of autograd stand for one call, and the references that they share may lead nowhere by then."""

    def results(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a.exp().sum(), (a * b).sum(), b.sin().sum()

    found = []
    for function in (results, quickfuse.compile(results)):
        leaves = [torch.full((3,), value, dtype=torch.float64, requires_grad=True) for value in (1.0, 2.0)]
        values = list(function(*(leaf * 2 for leaf in leaves)))
        del values[dropped]
        sum(values).backward()
        found.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("kind", ["Adam", "NAdam", "RAdam", "Adamax", "Adafactor"])
def test_a_group_has_no_state_where_the_step_ended_before_it(kind: str) -> None:
    """Capture makes the state of all groups; here the first one's is of a type that does not fit."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        weight, extra = torch.ones(3, 4, requires_grad=True), torch.ones(3, requires_grad=True)
        optimizer = getattr(torch.optim, kind)([weight])
        weight.grad, extra.grad = torch.ones(3, 4), torch.ones(3)
        step = compiler(lambda o=optimizer: o.step())
        step()
        for state in optimizer.state.values():
            state |= {k: v.double() if v.ndim else v for k, v in state.items()}
        optimizer.add_param_group({"params": [extra]})
        found.append([(outcome(step), len(optimizer.state)) for _ in range(2)])
        assert found[-1][0][1] == 1
    assert found[0] == found[1]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("around", [False, True])
def test_backward_under_autocast(inside: bool, around: bool) -> None:
    """Its products are those of autocast, and what forward computed is not."""
    torch.manual_seed(0)
    one, two = torch.nn.Linear(6, 5), torch.nn.Linear(5, 5)

    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return F.cross_entropy(two(torch.tanh(one(x))), torch.tensor([0, 1, 2, 3]))

    compiled, x = quickfuse.compile(loss), torch.randn(4, 6)
    for later in (True, False, True):
        found = []
        for function in (loss, compiled):
            with torch.autocast("cpu", torch.bfloat16, enabled=around):
                value = function(x)
            with torch.autocast("cpu", torch.bfloat16, enabled=later):
                found.append(torch.autograd.grad(value, [*one.parameters(), *two.parameters()]))
        rounding = 0.01 if inside else 1e-6
        torch.testing.assert_close(found[1], found[0], rtol=rounding, atol=rounding)


def test_one_buffer_for_both_statistics_of_a_batch_norm() -> None:
    """The order of both changes is PyTorch's."""
    norms = [torch.nn.BatchNorm1d(4, dtype=torch.float64) for _ in range(2)]
    compiled, x = quickfuse.compile(lambda x: norms[1](x)), torch.randn(5, 4, dtype=torch.float64)
    for number in range(4):
        if number == 1:
            for norm in norms:
                norm.running_var = norm.running_mean
        torch.testing.assert_close(compiled(x), norms[0](x))
        torch.testing.assert_close(norms[1].state_dict(), norms[0].state_dict())


def test_clipping_no_gradients_by_value_raises() -> None:
    """PyTorch refuses to sort a list without tensors."""

    def clip() -> None:
        torch.nn.utils.clip_grad_value_([], 0.1)

    compiled = quickfuse.compile(clip)
    for _ in range(2):
        assert outcome(compiled) == outcome(clip)


def test_a_hook_that_raises_stops_the_gradients_behind_it() -> None:
    """Also where only the hooked parameter is one that a second result does not depend on."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        torch.manual_seed(0)
        trunk, one, two = (torch.nn.Linear(4, 4) for _ in range(3))
        one.weight.register_hook(lambda g: g[:1])

        def losses(x: torch.Tensor, trunk: Any = trunk, one: Any = one, two: Any = two) -> tuple[torch.Tensor, torch.Tensor]:
            h = trunk(x)
            first, second = one(h).square().sum(), two(h).square().sum()
            return first + second, second

        compiled = compiler(losses)
        for _ in range(2):
            raised = outcome(lambda c=compiled: c(torch.ones(2, 4))[0].backward())
            kept = [p.grad is not None for m in (trunk, one, two) for p in m.parameters()]
            found.append((raised, kept))
    assert found[:2] == found[2:]
    assert found[0][0].startswith("RuntimeError")


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Adagrad"])
def test_fused_updates_refuse_other_types_after_changes(kind: str) -> None:
    """The model is converted, the optimizer's state is not: what the step did before it raises is done."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        model = torch.nn.Linear(3, 3)
        optimizer = getattr(torch.optim, kind)(model.parameters(), fused=True, **{"momentum": 0.9} if kind == "SGD" else {})
        log: list[torch.Tensor] = []

        def step(x: torch.Tensor, model: Any = model, optimizer: Any = optimizer, log: list[Any] = log) -> None:
            optimizer.zero_grad(set_to_none=False)
            log.append(model(x))
            log[-1].sum().backward()
            optimizer.step()

        compiled = compiler(step)
        compiled(torch.ones(2, 3))
        model.double()
        for _ in range(2):
            raised = outcome(compiled, torch.ones(2, 3).double())
            found.append((raised, len(log), [p.grad is None for p in model.parameters()]))
    assert found[:2] == found[2:]
    assert "type" in found[0][0]


@pytest.mark.parametrize("kind", ["loops", "products", "gradients", "inside"])
def test_memory_of_two_parameters_that_is_changed_for_a_while(kind: str) -> None:
    """As a line search does, where `weight_norm` came later: the optimizer's parameter and another one are in one memory."""

    def step(p: torch.Tensor, q: torch.Tensor) -> Any:
        with torch.no_grad():
            before = p.clone()
            p.add_(1)
        value = q @ q if kind == "products" else (q * q).sum()
        if kind == "inside":
            (value,) = torch.autograd.grad(value, q)
        with torch.no_grad():
            p.copy_(before)
        return value

    compiled = quickfuse.compile(step)
    for shared in (False, True, False, True):
        found = []
        for function in (step, compiled):
            p = torch.eye(3)
            q = (p.detach() if shared else torch.eye(3)).requires_grad_(kind in ("gradients", "inside"))
            value = function(p, q)
            found.append((value.detach(), p, p._version))
            if kind == "gradients" and not shared:
                found[-1] += torch.autograd.grad(value, q)
        torch.testing.assert_close(found[1], found[0])


def _grad_in_batch(model: torch.nn.Module) -> torch.Tensor:
    """A batch that begins in the middle of the memory of the first gradient."""
    p = next(model.parameters())
    whole = torch.randn(2 * p.numel(), dtype=p.dtype)
    p.grad = whole[: p.numel()].view(p.shape)
    return whole[p.numel() // 2 :][: p.numel()].view(p.shape)


def _grad_in_weight(model: torch.nn.Module) -> torch.Tensor:
    """The last layer's gradient is in the weight of the layer before, whose version does not tell."""
    model[4].weight.grad = model[2].weight.data
    return torch.randn(3, 6, dtype=torch.float64)


@pytest.mark.parametrize("change", [_grad_in_batch, _grad_in_weight])
def test_gradients_that_share_memory_with_what_others_need(change: Callable[[Any], torch.Tensor]) -> None:
    """Autograd adds to gradients before it computes others: it raises, or computes these from what is there by then."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6)]
        model = torch.nn.Sequential(*layers).double()
        norm = torch.nn.LayerNorm(6).double()

        def step(x: torch.Tensor, model: Any = model, norm: Any = norm) -> None:
            model(norm(x)).pow(2).sum().backward()

        compiled = compiler(step)
        for turn in range(4):
            x = torch.randn(3, 6, dtype=torch.float64) if turn == 0 else change(model)
            raised = outcome(compiled, x)
            found.append((raised, [p.grad is not None for p in norm.parameters()],
                          *(round(float(p.grad.sum()), 9) for p in model.parameters() if p.grad is not None)))  # fmt: skip
    assert found[:4] == found[4:]


@pytest.mark.parametrize("count", [3, 4, 6])
def test_many_global_hooks(count: int) -> None:
    """Their keys are 0, 1, 2, .., by which the elements of lists are read together."""
    from torch.nn.modules import module as modules

    found: list[Any] = []
    for compiler in (lambda f: f, quickfuse.compile):
        noted: list[list[Any]] = [[] for _ in range(count)]
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        before = dict(modules._global_forward_pre_hooks)
        for place, notes in enumerate(noted):  # the keys as in a process without other hooks
            modules._global_forward_pre_hooks[place] = lambda m, args, notes=notes: notes.append(type(m).__name__)
        try:
            compiled = compiler(lambda x, model=model: model(x).sum())
            found.append(([compiled(torch.ones(2, 3)).item() for _ in range(3)], noted))
        finally:
            modules._global_forward_pre_hooks.clear()
            modules._global_forward_pre_hooks.update(before)
    assert found[0] == found[1]
    assert compiled.native_reason is None and compiled.captures == 1


@pytest.mark.parametrize("size", [8, 300])  # large gradients: the old ones are let go of before kernels run
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_gradients_that_replace_old_ones(kind: str, size: int) -> None:
    """Gradients that were computed elsewhere are set, and an optimizer takes its step with them."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        weights = [torch.nn.Parameter(torch.ones(size, size)), torch.nn.Parameter(torch.ones(size))]
        optimizer = getattr(torch.optim, kind)(weights, lr=0.1, foreach=False)

        def step(gradients: list[torch.Tensor], weights: Any = weights, optimizer: Any = optimizer) -> None:
            for p, g in zip(weights, gradients, strict=True):
                p.grad = g
            optimizer.step()

        compiled = compiler(step)
        for turn in range(4):
            compiled([torch.full_like(p, turn + 1.0) for p in weights])
        found.append([*weights, *(p.grad for p in weights)])
    torch.testing.assert_close(found[1], found[0])
    assert compiled.native_reason is None


@pytest.mark.parametrize("size", [8, 300])
@pytest.mark.parametrize("order", ["before", "behind"])
def test_gradients_of_a_step_that_fails(order: str, size: int) -> None:
    """A bad label is refused in forward: a step that clears gradients after that leaves the old ones."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        weight = torch.nn.Parameter(torch.ones(size, size))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(x: torch.Tensor, target: torch.Tensor, weight: Any = weight, optimizer: Any = optimizer) -> torch.Tensor:
            if order == "before":
                optimizer.zero_grad()
            loss = F.cross_entropy(x @ weight, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        compiled, seen = compiler(step), []
        for label in (1, 2, 1000, 3):
            raised = outcome(compiled, torch.ones(2, size), torch.tensor([0, label]))
            seen.append((raised, weight.grad is None))
        found.append(seen)
    assert found[1] == found[0]


REFUSED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "shape": lambda p, x: x * 2,
    "more axes": lambda p, x: x.sum() * torch.ones(1, 4, 3),
    "type": lambda p, x: x.sum().double() * torch.ones(4, 3, dtype=torch.float64),
    "whole numbers": lambda p, x: torch.ones(4, 3, dtype=torch.int64) + x.long().sum(),
    "itself": lambda p, x: p,
    "device": lambda p, x: torch.ones(4, 3, device="meta"),
    "taken": lambda p, x: x.sum().expand(4, 3),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_that_are_refused(kind: str, momentum: float) -> None:
    """What comes after has not run then, and what comes before has."""
    found = []
    for compiler in (lambda f: f, quickfuse.compile):
        first, second = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(4, 3))
        optimizer, log = torch.optim.SGD([first, second], lr=0.1, momentum=momentum), []

        def step(x: torch.Tensor, a: Any = first, b: Any = second, optimizer: Any = optimizer, log: Any = log) -> None:
            log.append("before")
            a.grad = x.sum() * torch.ones(3)
            b.grad = REFUSED[kind](b, x)
            log.append("behind")
            optimizer.step()

        compiled = compiler(step)
        raised = [outcome(compiled, torch.ones(4)) for _ in range(2)]
        found.append((raised, log, first.tolist(), second.tolist(), first.grad.tolist(), second.grad is None))
    assert found[1] == found[0]
