"""Labels of a graph in the profiler: the names that the program gave to blocks with `torch.profiler.record_function`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

_NO_LABELS: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def labelled(names: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """A context in which a graph is shown under `names`, if a profiler is active."""
    return _recorded(names) if torch.autograd._profiler_enabled() else _NO_LABELS


@contextlib.contextmanager
def _recorded(names: Sequence[str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(torch.profiler.record_function(name))
        yield
