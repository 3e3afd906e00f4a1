"""Products on a GPU in full precision: TF32 rounds operands to 10 bits, so that a last bit more or less becomes 0.1%."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def products_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
