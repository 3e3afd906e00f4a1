"""Settings. Assign to them at any time; they are read when a function is compiled.

    import quickfuse
    quickfuse.config.specialize_floats = True
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any


def _processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


#: Guard on the value of every Python float, instead of passing it as an argument (what torch.compile does at first).
specialize_floats: bool = False

#: How many specialisations one function may have before it runs natively.
recompile_limit: int = 16

#: How many specialisations one place in a program keeps where they differ in sizes of tensors: those that were used least
#: recently are forgotten.
most_sizes: int = 128

#: How often capture is tried on a function that it cannot follow, before every call runs natively at once.
capture_attempts: int = 3

#: What happens at the recompile limit: "warn" once and run natively, or "error".
on_recompile_limit: str = "warn"

#: Keep copies of convolutions' weights in the order that the processor wants, where no gradients are needed. That takes as
#: much memory as these weights, and saves an eighth to a sixth of a convolutional network's time on the CPU.
pack_weights: bool = True

#: Ask the C library (glibc) to keep up to 256 MB of freed memory for the tensors of the next step instead of giving it back
#: to the system, which saves 3 to 12% of a training step on the CPU. It holds for the whole process, from the first kernel
#: for the CPU on. Whoever sets `MALLOC_TRIM_THRESHOLD_` or the like in the environment has decided already.
keep_freed_memory: bool = True

#: How many bytes of a GPU's memory the CUDA graphs of `mode="reduce-overhead"` may take. Once they hold as many, further
#: functions run without graphs. 0: no bound.
cuda_graph_bytes: int = 0

#: A graph of fewer launches than so many (a call of PyTorch's counts as two) runs without a CUDA graph under
#: `mode="reduce-overhead"`: launching one or two kernels takes half the time of a replay, six about as long.
cuda_graph_launches: int = 6

#: How many processes compile kernels for GPUs at a time, which Triton cannot do in threads alone. 0: this process does it.
#: The environment variable `QUICKFUSE_COMPILE_PROCESSES` sets it, too.
compile_processes: int = int(os.environ.get("QUICKFUSE_COMPILE_PROCESSES") or min(_processors(), 32))

#: Where the machine code of kernels for the CPU is kept for the next process, "" for nowhere: in `~/.cache/quickfuse` where
#: the environment variable `QUICKFUSE_CACHE_DIR` does not say otherwise. It takes a few megabytes, some 150 MB at the most;
#: whoever deletes it loses nothing but time.
cache_folder: str = os.environ.get(
    "QUICKFUSE_CACHE_DIR", os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "quickfuse")
)

#: Measure calls that take less than 2 ms (with breaks between small tensors, 50 ms) once they have settled, some compiled
#: and some as plain Python, and go on as what was faster (see `pipeline/trials.py`). The log of graph breaks says so.
measure_short_calls: bool = True

#: Raise internal errors of the compiler instead of logging them and running natively. For our own tests.
raise_internal_errors: bool = False

#: Check each schedule against the loops that it was made from, element by element (see `verify/`). A schedule that is wrong
#: is an internal error, and the function runs natively. The environment variable `QUICKFUSE_VERIFY=1` turns it on, too.
verify: bool = os.environ.get("QUICKFUSE_VERIFY", "0") not in ("", "0")


class _Config(ModuleType):
    """This module, with a check of what is assigned to it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("__"):  # what Python keeps in a module
            _check(name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"quickfuse.config.{name} cannot be deleted")


def _check(name: str, value: Any) -> None:
    """Refuse what is no setting, or has another type than the setting's default.

    Raises:
        AttributeError: for an unknown name; the message lists the known ones.
        TypeError, ValueError: for a value that the setting cannot have.
    """
    if name not in _KINDS:
        raise AttributeError(f"quickfuse.config has no setting {name!r}; the settings are {', '.join(_KINDS)}")
    kind = _KINDS[name]
    if type(value) is not kind:
        raise TypeError(f"quickfuse.config.{name} is of type {kind.__name__}, not {value!r}")
    if type(value) is int and value < 0:
        raise ValueError(f"quickfuse.config.{name} is not negative: {value}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ValueError(f"quickfuse.config.{name} is one of {', '.join(map(repr, _CHOICES[name]))}, not {value!r}")


_KINDS: dict[str, type] = {name: type(value) for name, value in [*globals().items()] if type(value) in (bool, int, str)}
_KINDS = {name: kind for name, kind in _KINDS.items() if not name.startswith("_")}
_CHOICES = {"on_recompile_limit": ("warn", "error")}

sys.modules[__name__].__class__ = _Config
