"""Models of `timm`: two of the smallest of each family (a module of timm's is one)."""

from __future__ import annotations

import re
from typing import Any

import torch

from zoo.measure import Case

#: Words in names of small models, the smallest first.
_SMALL = "test_ zepto atto femto pico nano xxs xxtiny tiny xxsmall xs xsmall mini small lite".split()
_EACH = 2

#: What makes a model shallow; which of them one takes depends on its family.
_SHALLOW: list[dict[str, Any]] = [
    {"depth": 2}, {"depths": (1, 1, 1, 1)}, {"depths": (1, 1, 1)}, {"layers": (1, 1, 1, 1)}, {"layers": (1, 1, 1, 1, 1)},
    {"block_config": (2, 2, 2, 2)}, {},
]  # fmt: skip


def names() -> list[str]:
    import timm

    families = [sorted(timm.list_models(module=family), key=_size)[:_EACH] for family in timm.list_modules()]
    return [models[k] for k in range(_EACH) for models in families if k < len(models)]


def _size(name: str) -> tuple[int, int, str]:
    """How large a model is, as far as its name tells."""
    rank = next((k for k, word in enumerate(_SMALL) if word in name), len(_SMALL))
    numbers = [int(n) for n in re.findall(r"\d+", name)]
    return rank, max(numbers, default=0), name


def build(name: str) -> Case:
    """A model with few layers and two pictures, as small as it takes them.

    Raises:
        Exception: where it takes none of the sizes.
    """
    import timm

    errors: list[Exception] = []
    for extra in [small | shallow for shallow in _SHALLOW for small in ({"img_size": 64}, {})]:
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
    raise errors[-1]
