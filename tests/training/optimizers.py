"""Optimizers: those of torch.optim with their options, several parameter groups, schedulers, and updates by hand."""

from __future__ import annotations

from training.draft import Draft, arguments, indented

# torch.optim ----------------------------------------------------------------------------------------------------


def _options(d: Draft, kind: str) -> dict[str, object]:
    """Options of an optimizer, each None where it is left out."""
    decay = d.pick(None, None, 0.01)
    betas = d.pick(None, (0.8, 0.95))
    options: dict[str, dict[str, object]] = {
        "SGD": {"momentum": d.pick(None, 0.9), "dampening": d.pick(None, None, 0.1), "weight_decay": decay},
        "Adam": {"betas": betas, "weight_decay": decay, "amsgrad": d.pick(None, True)},
        "AdamW": {"betas": betas, "weight_decay": decay, "amsgrad": d.pick(None, None, True)},
        "Adadelta": {"rho": d.pick(None, 0.8), "weight_decay": decay},
        "Adagrad": {"lr_decay": d.pick(None, 0.01), "weight_decay": decay, "initial_accumulator_value": d.pick(None, 0.1)},
        "Adamax": {"betas": betas, "weight_decay": decay},
        "ASGD": {"t0": d.pick(None, 1.0), "weight_decay": decay},
        "NAdam": {"betas": betas, "weight_decay": decay, "decoupled_weight_decay": d.pick(None, True)},
        "RAdam": {"betas": betas, "weight_decay": decay, "decoupled_weight_decay": d.pick(None, True)},
        "RMSprop": {
            "alpha": d.pick(None, 0.9), "momentum": d.pick(None, 0.5), "centered": d.pick(None, True), "weight_decay": decay,
        },
        "Rprop": {"etas": d.pick(None, (0.6, 1.1))},
        "Adafactor": {"weight_decay": decay, "d": d.pick(None, 1.5)},
    }  # fmt: skip
    drawn = options[kind]
    if kind == "SGD" and drawn["momentum"] and not drawn["dampening"]:
        drawn["nesterov"] = d.pick(None, True)
    drawn["foreach"] = d.pick(None, None, False, True)
    if kind in ("SGD", "Adam", "AdamW", "Adagrad") and d.chance(0.15):
        drawn["foreach"], drawn["fused"] = None, True
    if d.chance(0.08):
        drawn["maximize"] = True
    return drawn


KINDS = {
    "SGD": 8, "Adam": 5, "AdamW": 6, "Adadelta": 1, "Adagrad": 1.5, "Adamax": 1, "ASGD": 1, "NAdam": 1, "RAdam": 1,
    "RMSprop": 2, "Rprop": 0.5, "Adafactor": 1,
}  # fmt: skip
RATES = {"SGD": (0.1, 0.05), "Adadelta": (1.0,), "ASGD": (0.05,), "Adagrad": (0.05,)}


def _parameters(d: Draft, rate: float) -> str:
    """All parameters, or groups of them; `trained` is the list of those that are not frozen."""
    kind = d.weighted({"all": 5, "list": 2, "by-ndim": 2, "by-name": 1, "each": 0.7})
    d.uses(f"groups-{kind}")
    if kind == "all" and "frozen" not in d.features:
        return "model.parameters()"
    if kind == "by-ndim":
        d.setup.append("matrices, vectors = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim < 2]")
        second = d.pick("'weight_decay': 0.0", f"'lr': {rate / 2}")
        return f"[group for group in ({{'params': matrices}}, {{'params': vectors, {second}}}) if group['params']]"
    if kind == "by-name":
        d.setup.append("named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]")
        d.setup.append("weights, others = ([p for n, p in named if ('weight' in n) is known] for known in (True, False))")
        groups = f"{{'params': weights}}, {{'params': others, 'lr': {rate / 4}}}"
        return f"[group for group in ({groups}) if group['params']]"
    if kind == "each":
        return f"[{{'params': [p], 'lr': {rate} * 0.9**k}} for k, p in enumerate(trained)]"
    return "trained"


def optimizer(d: Draft) -> list[str]:
    """Set an optimizer up; returns the lines that take its step."""
    kind = d.weighted({**KINDS, "Muon": 0.5})
    d.uses(f"optimizer-{kind}")
    if kind == "Muon" and d.precision == "float32":
        d.setup += [
            "optimizer = torch.optim.Muon([p for p in trained if p.ndim == 2] or [nn.Parameter(torch.ones(2, 2))], lr=0.01)",
            "other = torch.optim.SGD([p for p in trained if p.ndim != 2] or [nn.Parameter(torch.ones(2))], lr=0.1)",
        ]
        d.watched += ["optimizer", "other"]
        return ["optimizer.step()", "other.step()"]
    if kind == "Muon":  # its own arithmetic is bfloat16
        kind = "SGD"
    rate = d.pick(*RATES.get(kind, (0.01, 0.003)))
    shown = f"torch.tensor({rate})" if kind in ("Adam", "AdamW", "SGD") and d.chance(0.08) else str(rate)
    options = arguments(**_options(d, kind))
    if shown != str(rate) and "foreach=True" in options:
        shown = str(rate)
    d.setup.append(f"optimizer = torch.optim.{kind}({_parameters(d, rate)}, lr={shown}{options and ', ' + options})")
    d.watched.append("optimizer")
    return ["optimizer.step()", *scheduler(d)]


SCHEDULERS = (
    "StepLR(optimizer, step_size=2, gamma=0.5)",
    "ExponentialLR(optimizer, gamma=0.9)",
    "CosineAnnealingLR(optimizer, T_max=8)",
    "LinearLR(optimizer, start_factor=0.5, total_iters=4)",
    "LambdaLR(optimizer, lambda k: 1 / (1 + k))",
    "OneCycleLR(optimizer, max_lr=0.02, total_steps=10, cycle_momentum=False)",
    "MultiStepLR(optimizer, milestones=[1, 2])",
    "CosineAnnealingWarmRestarts(optimizer, T_0=2)",
    "PolynomialLR(optimizer, total_iters=5)",
    "ConstantLR(optimizer, factor=0.5, total_iters=2)",
)


def scheduler(d: Draft) -> list[str]:
    kind = d.weighted({"none": 6, "torch": 3, "by hand": 1})
    if kind == "none":
        return []
    if kind == "by hand":
        d.uses("schedule-by-hand")
        return ["for group in optimizer.param_groups:", "    group['lr'] *= 0.9"]
    made_by = d.pick(*SCHEDULERS)
    d.uses(f"schedule-{made_by.partition('(')[0]}")
    d.setup.append(f"scheduler = torch.optim.lr_scheduler.{made_by}")
    d.watched.append("scheduler")
    return ["scheduler.step()"]


# by hand --------------------------------------------------------------------------------------------------------


def _for_each(*lines: str) -> list[str]:
    return ["with torch.no_grad():", *indented(["for p in trained:", *indented(list(lines))])]


def plain_updates(d: Draft) -> list[str]:
    line = d.pick(
        "p.sub_(p.grad, alpha=0.1)", "p -= 0.1 * p.grad", "p.add_(p.grad, alpha=-0.1)", "p.copy_(p - 0.1 * p.grad)",
        "p.data.sub_(0.1 * p.grad)", "p.data = p.data - 0.1 * p.grad", "p.mul_(0.99).sub_(p.grad * 0.1)",
        "p.sub_(p.grad / (p.grad.norm() + 0.1) * 0.1)", "p.sub_(0.1 * p.grad.clamp(-0.01, 0.01))",
        "p.sub_(0.1 * p.norm() / (p.grad.norm() + 1) * p.grad)",
    )  # fmt: skip
    return _for_each(line)


def listed_updates(d: Draft) -> list[str]:
    first = "grads = [p.grad for p in trained]"
    kinds = (
        ["torch._foreach_sub_(trained, grads, alpha=0.1)"],
        ["torch._foreach_add_(trained, torch._foreach_mul(grads, -0.1))"],
        [
            "torch._foreach_mul_(trained, 0.99)",
            "torch._foreach_addcmul_(trained, grads, [torch.full_like(g, -0.1) for g in grads])",
        ],
        [
            "norms = torch._foreach_norm(grads)",
            "torch._foreach_add_(norms, 0.1)",
            "torch._foreach_sub_(trained, torch._foreach_div(grads, norms), alpha=0.1)",
        ],
    )
    return ["with torch.no_grad():", *indented([first, *d.pick(*kinds)])]


def momentum_updates(d: Draft) -> list[str]:
    d.setup.append("momenta = [torch.zeros_like(p) for p in trained]")
    d.watched.append("momenta")
    if d.chance(0.4):
        lines = ["grads = [p.grad for p in trained]", "torch._foreach_mul_(momenta, 0.9)",
                 "torch._foreach_add_(momenta, grads)", "torch._foreach_add_(trained, momenta, alpha=-0.05)"]  # fmt: skip
        return ["with torch.no_grad():", *indented(lines)]
    update = d.pick(["m.mul_(0.9).add_(p.grad)", "p.sub_(m, alpha=0.05)"], ["m.lerp_(p.grad, 0.1)", "p -= 0.1 * m"],
                    ["m.copy_(0.9 * m + p.grad)", "p.sub_(0.05 * (p.grad + 0.9 * m))"])  # fmt: skip
    return ["with torch.no_grad():", *indented(["for p, m in zip(trained, momenta):", *indented(update)])]


def adam_by_hand(d: Draft) -> list[str]:
    d.setup += [
        "first, second = [torch.zeros_like(p) for p in trained], [torch.zeros_like(p) for p in trained]",
        "count = torch.zeros(())",
    ]
    d.watched += ["first", "second", "count"]
    update = ["m.lerp_(p.grad, 0.1)", "v.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)"]
    lion = ["p.sub_(0.01 * torch.tanh(50 * (0.9 * m + 0.1 * p.grad)))", "m.lerp_(p.grad, 0.05)", "v.copy_(m * m)"]
    last = d.pick(
        ["p.addcdiv_(m / (1 - 0.9**count), (v / (1 - 0.99**count)).sqrt() + 1e-4, value=-0.01)"],
        ["u = m / (v.sqrt() + 1e-3) + 0.01 * p", "p.sub_(0.01 * p.norm().clamp(1e-2, 10.0) / (u.norm() + 1e-3) * u)"],
        ["p.sub_(0.01 * m / (v + 1e-6).sqrt())"],
    )
    lines = lion if d.chance(0.2) else update + last
    body = ["count.add_(1)", "for p, m, v in zip(trained, first, second):", *indented(lines)]
    return ["with torch.no_grad():", *indented(body)]


BY_HAND = {plain_updates: 4, listed_updates: 2, momentum_updates: 3, adam_by_hand: 2}


def updates(d: Draft) -> list[str]:
    """The lines that change the parameters: an optimizer's, or written out."""
    if d.chance(0.7):
        return optimizer(d)
    drawn = d.weighted(BY_HAND)
    d.uses(f"optimizer-{drawn.__name__.replace('_', '-')}")
    return drawn(d)
