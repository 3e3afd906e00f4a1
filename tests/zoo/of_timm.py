"""Models of `timm`: two of the smallest of each family (a module of timm's is one)."""

from __future__ import annotations

import re
from typing import Any

import torch

from zoo.measure import Case

#: Words in names of small models, the smallest first.
_SMALL = "test_ zepto atto femto pico nano xxs xxtiny tiny xxsmall xs xsmall mini small lite".split()
_EACH = 2


def names() -> list[str]:
    import timm

    found = []
    for family in timm.list_modules():
        models = sorted(timm.list_models(module=family), key=_size)
        found += models[:_EACH]
    return found


def _size(name: str) -> tuple[int, int, str]:
    """How large a model is, as far as its name tells."""
    rank = next((k for k, word in enumerate(_SMALL) if word in name), len(_SMALL))
    numbers = [int(n) for n in re.findall(r"\d+", name)]
    return rank, max(numbers, default=0), name


def build(name: str) -> Case:
    """A model with two pictures, as small as it takes them.

    Raises:
        Exception: where it takes none of the sizes.
    """
    import timm

    errors: list[Exception] = []
    settings: list[dict[str, Any]] = [{"img_size": 64}, {}]
    for extra in settings:
        try:
            model = timm.create_model(name, pretrained=False, num_classes=10, **extra).eval()
        except Exception as error:
            errors.append(error)
            continue
        wanted = getattr(model, "default_cfg", {}).get("input_size") or (3, 224, 224)
        for size in (64, 96, 128, wanted[-1]):
            pictures = torch.randn(2, wanted[0], size, size)
            try:
                with torch.no_grad():
                    model(pictures)
                return Case(model, (pictures,))
            except Exception as error:
                errors.append(error)
    raise errors[0]
