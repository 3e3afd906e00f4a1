"""torchvision's models, also where its compiled operators do not fit the installed PyTorch: models need none of them."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch

#: Keeps the declarations alive.
_declared: list[torch.library.Library] = []


def vision_models() -> Any:
    """The module `torchvision.models`; skips the test where torchvision is not installed."""
    try:
        return importlib.import_module("torchvision.models")
    except ImportError:
        pytest.skip("torchvision is not installed")
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
    return importlib.import_module("torchvision.models")
