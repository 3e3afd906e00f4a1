"""Products on a GPU in full precision: TF32 rounds operands to 10 bits, so that a last bit more or less becomes 0.1%."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def products_in_full_precision() -> Iterator[None]:
    if not torch.cuda.is_available():
        yield
        return
    now = torch.backends.cudnn
    with now.flags(now.enabled, now.benchmark, now.benchmark_limit, now.deterministic, allow_tf32=False):
        yield
