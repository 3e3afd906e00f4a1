"""Losses: what a step computes from the output of the model and a target, and the source of that target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.draft import Draft


@dataclass(frozen=True)
class Loss:
    """`call` is an expression of `out` and `target`; `target` makes one target of `n` rows and `c` columns.

    `flat`: `out` has shape (n, c); else any shape, (..., c).
    """

    call: str
    target: str
    flat: bool = True


CLASSES = "torch.randint({c}, ({n},))"
NUMBERS = "torch.randn({shape}).to(dtype)"
SHARES = "torch.randn({n}, {c}).to(dtype).softmax(-1)"
SOME_CLASSES = "torch.randint({c}, ({n},)).clamp(1) * (torch.arange({n}) % 3 != 1)"
SIGNS = "torch.randint(2, ({n},)) * 2.0 - 1"

CLASSIFYING = {
    "cross-entropy": Loss("F.cross_entropy(out, target)", CLASSES),
    "cross-entropy-again": Loss("F.cross_entropy(out, target)", CLASSES),
    "label-smoothing": Loss("F.cross_entropy(out, target, label_smoothing=0.1)", CLASSES),
    "ignore-index": Loss("F.cross_entropy(out, target, ignore_index=0)", SOME_CLASSES),
    "summed-cross-entropy": Loss("F.cross_entropy(out, target, reduction='sum') / 7", CLASSES),
    "class-weights": Loss("F.cross_entropy(out, target, weight=torch.linspace(0.5, 1.5, {c}, device=DEVICE))", CLASSES),
    "soft-targets": Loss("F.cross_entropy(out, target)", SHARES),
    "nll": Loss("F.nll_loss(F.log_softmax(out, dim=-1), target)", CLASSES),
    "gathered": Loss("-out.log_softmax(-1).gather(-1, target[:, None]).mean()", CLASSES),
    "kl": Loss("F.kl_div(F.log_softmax(out, -1), target, reduction='batchmean')", SHARES),
    "focal": Loss(
        "(lambda ce: ((1 - torch.exp(-ce)) ** 2 * ce).mean())(F.cross_entropy(out, target, reduction='none'))", CLASSES
    ),
    "multi-margin": Loss("F.multi_margin_loss(out, target)", CLASSES),
    "z-loss": Loss("F.cross_entropy(out, target) + 0.01 * out.logsumexp(-1).square().mean()", CLASSES),
    "one-hot": Loss("(out.softmax(-1) - F.one_hot(target, {c})).square().sum(-1).mean()", CLASSES),
}  # fmt: skip
BINARY = "torch.randint(2, ({shape})).to(dtype)"
DENSE = {
    "mse": Loss("F.mse_loss(out, target)", NUMBERS, False),
    "l1": Loss("F.l1_loss(out, target)", NUMBERS, False),
    "smooth-l1": Loss("F.smooth_l1_loss(out, target, beta=0.5)", NUMBERS, False),
    "huber": Loss("F.huber_loss(out, target, delta=0.7)", NUMBERS, False),
    "bce": Loss("F.binary_cross_entropy_with_logits(out, target)", BINARY, False),
    "bce-weighted": Loss(
        "F.binary_cross_entropy_with_logits(out, target, pos_weight=torch.linspace(0.5, 2.0, {c}, device=DEVICE))",
        BINARY, False,
    ),
    "bce-of-sigmoid": Loss("F.binary_cross_entropy(torch.sigmoid(out), target)", BINARY, False),
    "soft-margin": Loss("F.soft_margin_loss(out, target * 2 - 1)", BINARY, False),
    "multi-label": Loss("F.multilabel_soft_margin_loss(out, target)", BINARY),
    "hinge": Loss("F.relu(1 - out * (target * 2 - 1)).mean()", BINARY, False),
    "poisson": Loss("F.poisson_nll_loss(out, target)", "torch.randint(4, ({shape})).to(dtype)", False),
    "gaussian": Loss("F.gaussian_nll_loss(out, target, F.softplus(out) + 0.1)", NUMBERS, False),
    "log-cosh": Loss("(out - target).cosh().log().mean()", NUMBERS, False),
    "summed-squares": Loss("(out - target).pow(2).sum(-1).mean()", NUMBERS, False),
    "dice": Loss("1 - 2 * (out.sigmoid() * target).sum() / (out.sigmoid().sum() + target.sum() + 1)", BINARY, False),
    "cosine-distance": Loss("(1 - F.cosine_similarity(out, target, dim=-1)).mean()", NUMBERS, False),
}  # fmt: skip
EMBEDDING = {
    "cosine-embedding": Loss("F.cosine_embedding_loss(out, out.roll(1, 0), target, margin=0.1)", SIGNS),
    "triplet": Loss("F.triplet_margin_loss(out, out.roll(1, 0), target)", NUMBERS),
    "ranking": Loss("F.margin_ranking_loss(out[:, 0], out[:, 1], target, margin=0.2)", SIGNS),
    "hinge-embedding": Loss("F.hinge_embedding_loss(out.square().sum(-1), target)", SIGNS),
    "contrastive": Loss(
        "F.cross_entropy(F.normalize(out, dim=-1) @ F.normalize(target, dim=-1).T / 0.2, torch.arange({n}, device=DEVICE))",
        NUMBERS,
    ),
    "variance": Loss("F.relu(1 - out.std(0)).mean() + F.mse_loss(out, target)", NUMBERS),
}  # fmt: skip


def loss(d: Draft, rows: int, classifying: bool) -> Loss:
    """Draw a loss for `rows` rows."""
    tables: list[dict[str, Loss]] = [CLASSIFYING, CLASSIFYING, DENSE] + [EMBEDDING] * (rows > 2)
    table = CLASSIFYING if classifying else d.pick(*tables)
    kind = d.pick(*table)
    if d.precision == "autocast" and kind == "bce-of-sigmoid":  # PyTorch refuses it under autocast
        kind = "bce"
    d.uses(f"loss-{kind}")
    return table[kind]


#: Added to a loss; of `model` and `out`.
PENALTIES: dict[str, Callable[[Draft], str]] = {
    "squares": lambda d: "1e-3 * sum(p.pow(2).sum() for p in model.parameters())",
    "sizes": lambda d: "1e-3 * sum(p.abs().mean() for p in model.parameters() if p.ndim > 1)",
    "outputs": lambda d: "1e-2 * out.pow(2).mean()",
    "entropy": lambda d: "1e-2 * (out.softmax(-1) * out.log_softmax(-1)).sum(-1).mean()",
}
