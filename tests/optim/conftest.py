"""Which of this folder's tests do not hold yet. The table is to become empty, and this file to go.

A pattern must match a test's whole name, its case in brackets included; the first that does counts. The marks are
strict: a test that begins to hold fails the suite until its line is gone.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STEP = r"test_(step_is_one_graph|kernels)"

OPEN: dict[str, str] = {
    # test_optim_db.py
    rf"{STEP}\[NAdam-.*": "`tuple[float, float]`, an argument of typing.cast in step()",
    rf"{STEP}\[RAdam-.*": "as NAdam; then `rho_t > 5.0`, a branch on a number out of a state tensor",
    rf"{STEP}\[ASGD-.*": "`mu.item() != 1`, a branch on a number out of a state tensor; torch.as_tensor of such a number",
    rf"{STEP}\[Adafactor-.*": "torch.finfo; with a tensor rate, `min()` of a tensor and a number",
    rf"{STEP}\[(SGD|Adagrad)-.*-fused\]": "PyTorch's own fused kernels with a float rate have no meta function",
    rf"{STEP}\[.*tensor-lr-fused\]": "PyTorch's own fused kernels with a tensor rate have no meta function",
    r"test_kernels\[Muon-default\]": "no rule for norm: runs operator by operator",
    # test_schedulers.py
    r"test_inside\[MultiStepLR-.*": "membership of a number from outside in a Counter",
    r"test_inside\[SequentialLR-.*": "bisect_right of a number from outside",
    r"test_inside\[(CosineAnnealing.*|CyclicLR.*|OneCycleLR-(float|tensor)|SWALR-(float|tensor))\]":
        "math.cos and math.floor take numbers from outside for constants",
    # test_step_extras.py
    r"test_pre_and_post_hooks|test_hooks_come_and_go|test_hooks_for_all_optimizers":
        "appending to a list of the user's guards its length",
    r"test_zero_grad.*|test_two_optimizers": "zero_grad, which PyTorch keeps out of its own compiler",
    r"test_clipping\[norm.*": "`norm.to(device)` where the norm is on that device already",
    r"test_(closure_with_backward|whole_training_step)\[whole\]": "backward() inside the compiled function",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            reason = next((reason for pattern, reason in OPEN.items() if re.fullmatch(pattern, item.name)), None)
            if reason is not None:
                item.add_marker(pytest.mark.xfail(strict=True, reason=reason))
