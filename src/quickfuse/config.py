"""Settings. Assign to them at any time; they are read when a function is compiled.

    import quickfuse
    quickfuse.config.specialize_floats = True
"""

from __future__ import annotations

import os

#: Guard on the value of every Python float, instead of passing it as an argument (what torch.compile does at first).
specialize_floats: bool = False

#: How many specialisations one function may have before it runs natively.
recompile_limit: int = 16

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

#: Raise internal errors of the compiler instead of logging them and running natively. For our own tests.
raise_internal_errors: bool = False

#: Check each schedule against the loops that it was made from, element by element (see `verify/`). A schedule that is wrong
#: is an internal error, and the function runs natively. The environment variable `QUICKFUSE_VERIFY=1` turns it on, too.
verify: bool = os.environ.get("QUICKFUSE_VERIFY", "0") not in ("", "0")
