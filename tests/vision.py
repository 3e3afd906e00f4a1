"""torchvision's models."""

from __future__ import annotations

from typing import Any

import pytest

from quickfuse.bench import zoo


def vision_models() -> Any:
    """The module `torchvision.models`; skips the test where torchvision is not installed."""
    try:
        return zoo.vision_models()
    except ImportError:
        pytest.skip("torchvision is not installed")
