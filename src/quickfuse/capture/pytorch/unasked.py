"""Methods of PyTorch's that ask what makes no difference to what they do. Capture follows functions that do not ask in their
place, so that the first training step, before which there are no gradients, is one specialisation with all others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ..interpreter import Args, Interpreter, Kwargs
from ..library.in_python import forget_gradients, forget_gradients_of_module, step_scheduler
from ..symbolic import ABSENT


def without_asking(i: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """The function that does what this call does and does not ask, None where there is none."""
    same, makes_no_difference = _METHODS.get(function, (None, None))
    return same if makes_no_difference is not None and args and makes_no_difference(i, args, kwargs) else None


def _forgets(i: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether there are no gradients afterwards: then it is all one which there were."""
    options = [*args[1:], *kwargs.values()]
    return not options or (len(options) == 1 and options[0] is True and kwargs.keys() <= {"set_to_none"})


def _module_forgets(i: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return _forgets(i, args, kwargs) and i.attribute_or(args[0], "_is_replica", ABSENT) is ABSENT  # replicas are warned of


def _warns_of_nothing(i: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether a scheduler's first step would find that its optimizer has made one, too."""
    if len(args) > 1 or kwargs:
        return False
    optimizer = i.attribute_or(args[0], "optimizer", None)
    step = i.attribute_or(optimizer, "step", None)
    counted = i.attribute_or(step, "_wrapped_by_lr_sched", ABSENT)
    return counted is not ABSENT and i.attribute_or(optimizer, "_opt_called", None) is True


#: For each what does the same, and whether what is not asked makes no difference in a call.
_METHODS: dict[Any, tuple[Callable[..., None], Callable[..., bool]]] = {
    inspect.unwrap(torch.optim.Optimizer.zero_grad): (forget_gradients, _forgets),
    torch.nn.Module.zero_grad: (forget_gradients_of_module, _module_forgets),
    LRScheduler.step: (step_scheduler, _warns_of_nothing),
}
