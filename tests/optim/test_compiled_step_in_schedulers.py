"""Schedulers wrap the `step` of their optimizer: one that was compiled stays compiled, and counts like eager's."""

import copy
import pickle
import warnings

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

import quickfuse

MADE = {
    "OneCycleLR": lambda opt: schedulers.OneCycleLR(opt, 1e-2, total_steps=20),
    "StepLR": lambda opt: schedulers.StepLR(opt, 2),
    "LambdaLR": lambda opt: schedulers.LambdaLR(opt, lambda n: 0.9**n),
    "MultiplicativeLR": lambda opt: schedulers.MultiplicativeLR(opt, lambda n: 0.9),
    "MultiStepLR": lambda opt: schedulers.MultiStepLR(opt, [2, 3]),
    "ConstantLR": lambda opt: schedulers.ConstantLR(opt),
    "LinearLR": lambda opt: schedulers.LinearLR(opt),
    "ExponentialLR": lambda opt: schedulers.ExponentialLR(opt, 0.9),
    "PolynomialLR": lambda opt: schedulers.PolynomialLR(opt),
    "CosineAnnealingLR": lambda opt: schedulers.CosineAnnealingLR(opt, 5),
    "CosineAnnealingWarmRestarts": lambda opt: schedulers.CosineAnnealingWarmRestarts(opt, 3),
    "CyclicLR": lambda opt: schedulers.CyclicLR(opt, 1e-3, 1e-2, cycle_momentum=False),
    "ReduceLROnPlateau": lambda opt: schedulers.ReduceLROnPlateau(opt),
    "SequentialLR": lambda opt: schedulers.SequentialLR(
        opt, [schedulers.LinearLR(opt), schedulers.ExponentialLR(opt, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda opt: schedulers.ChainedScheduler([schedulers.LinearLR(opt), schedulers.StepLR(opt, 2)]),
}


def _train(make, when):
    weight = torch.linspace(-1, 1, 6).requires_grad_()
    opt = torch.optim.Adam([weight], lr=1e-2)
    compiled = None
    if when == "before":
        compiled = opt.step = quickfuse.compile(opt.step)
    scheduler = make(opt)
    if when == "after":
        compiled = opt.step = quickfuse.compile(opt.step)
    seen, graphs = [getattr(opt, "_opt_called", False), opt.step.__name__, opt.step.__qualname__], []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(5):
            opt.zero_grad()
            weight.square().sum().backward()
            opt.step()
            scheduler.step(*([1.0] if isinstance(scheduler, schedulers.ReduceLROnPlateau) else []))
            seen += [weight.detach().clone(), float(opt.param_groups[0]["lr"]), getattr(opt, "_opt_called", None)]
            graphs.append(None if compiled is None else compiled.graph_count)
    seen.append([str(w.message) for w in said if "lr_scheduler.step" in str(w.message)])
    for again in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        seen += [type(again), again.param_groups[0]["params"][0].detach(), hasattr(again, "_opt_called")]
    return seen, graphs


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", MADE)
def test_scheduler_of_an_optimizer_with_a_compiled_step(name, when, monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)
    expected, _ = _train(MADE[name], None)
    found, graphs = _train(MADE[name], when)
    torch.testing.assert_close(found[3:6], expected[3:6])
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other or one == pytest.approx(other)
    assert graphs[-1] >= 1
    assert graphs[1:] == graphs[1:2] * 4


def test_a_compiled_method_is_one_to_those_who_take_it_apart():
    opt = torch.optim.SGD([torch.ones(2).requires_grad_()], lr=0.1)
    step = quickfuse.compile(opt.step)
    assert step.__self__ is opt
    assert step.__func__.__get__(opt, type(opt)) is step
    assert step.__func__.__name__ == opt.step.__name__
    assert not hasattr(quickfuse.compile(torch.sin), "__func__")
    assert not hasattr(quickfuse.compile(lambda x: x), "__self__")
