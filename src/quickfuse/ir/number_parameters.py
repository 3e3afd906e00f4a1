"""Number parameters of PyTorch's functions that may change from call to call, such as the margin of a loss.

Capture holds such a number by its value at first, since most never change and constants make better kernels. One that has
changed becomes an input of the graph, with guards on what the function's formula depends on.
"""

from __future__ import annotations

from typing import NamedTuple


class NumberParameters(NamedTuple):
    """The names of parameters that are plain operands of a function's formulas, in forward and in backward, where
    `conditions` on them hold: templates of Python expressions with the names of parameters as fields."""

    names: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    #: Whether they are symbols from the beginning: what stays a call of PyTorch's is no better with constants.
    always: bool = False


def _of(names: str, *conditions: str) -> NumberParameters:
    return NumberParameters(tuple(names.split()), conditions)


_POSITIVE_EPS = _of("eps", "{eps} > 0")
_PROBABILITY = _of("p", "0 < {p} < 1")
_ADAM = NumberParameters(("lr", "beta1", "beta2", "weight_decay", "eps"), always=True)
_MARGIN = _of("margin", "{margin} > 0")

#: By the name of the function, without underscores at its end.
NUMBER_PARAMETERS: dict[str, NumberParameters] = {
    "leaky_relu": _of("negative_slope", "{negative_slope} > 0"),
    "elu": _of("alpha", "{alpha} > 0"),
    "celu": _of("alpha", "{alpha} > 0"),
    "softplus": _of("beta threshold", "{beta} > 0"),
    "hardtanh": _of("min_val max_val", "{min_val} < {max_val}"),
    "threshold": _of("threshold value"),
    "hardshrink": _of("lambd", "{lambd} > 0"),
    "softshrink": _of("lambd", "{lambd} > 0", "{lambd} - {lambd} == 0"),
    "huber_loss": _of("delta", "{delta} > 0"),
    "smooth_l1_loss": _of("beta", "{beta} > 0"),
    "cross_entropy": _of("label_smoothing", "0 < {label_smoothing} < 1"),
    "margin_ranking_loss": _MARGIN,
    "hinge_embedding_loss": _MARGIN,
    "cosine_embedding_loss": _MARGIN,
    "multi_margin_loss": _MARGIN,
    "triplet_margin_loss": _of("margin eps", "{margin} > 0", "{eps} > 0"),
    "poisson_nll_loss": _POSITIVE_EPS,
    "layer_norm": _POSITIVE_EPS,
    "group_norm": _POSITIVE_EPS,
    "instance_norm": _of("eps momentum", "{eps} > 0", "{momentum} > 0"),
    "batch_norm": _of("eps momentum", "{eps} > 0", "{momentum} > 0"),
    "rms_norm": _POSITIVE_EPS,
    "normalize": _POSITIVE_EPS,
    "cosine_similarity": _POSITIVE_EPS,
    "pairwise_distance": _POSITIVE_EPS,
    "dropout": _PROBABILITY,
    "dropout1d": _PROBABILITY,
    "dropout2d": _PROBABILITY,
    "dropout3d": _PROBABILITY,
    "scaled_dot_product_attention": _of("scale dropout_p", "{scale} > 0", "0 < {dropout_p} < 1"),
    "bernoulli": _of("p", "0 <= {p} <= 1"),
    "uniform": _of("from to", "{from} < {to}"),
    "normal": _of("mean std", "{std} > 0"),
    "exponential": _of("lambd", "{lambd} > 0"),
    "nan_to_num": _of("nan posinf neginf"),
    "isclose": _of("rtol atol", "{rtol} > 0", "{atol} > 0"),
    "pad": _of("value"),
    "linspace": _of("start end"),
    "fused_adam": _ADAM,
    "fused_adamw": _ADAM,
    "fused_sgd": NumberParameters(("weight_decay", "momentum", "lr", "dampening"), always=True),
    "fused_adagrad": NumberParameters(("lr", "lr_decay", "weight_decay", "eps"), always=True),
}


def changed(name: str) -> str:
    """How it is said to capture that the number of this name has had another value."""
    return f"changed: {name}"
