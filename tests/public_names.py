"""`python tests/public_names.py`: the public names of PyTorch, and of its main classes, that no test mentions.

A name that is listed may still be met, by a program that uses it under another one. The list is where to look for features
that nobody tried: write a small program for each, and run it by `language/harness.py`.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

MODULES = """
torch torch.accelerator torch.amp torch.autograd torch.autograd.forward_ad torch.autograd.function
torch.autograd.functional torch.autograd.grad_mode torch.autograd.graph torch.autograd.profiler torch.backends
torch.backends.cuda torch.compiler torch.cpu torch.distributions torch.distributions.constraints
torch.distributions.kl torch.distributions.transforms torch.distributions.utils torch.export torch.fft torch.func
torch.fx torch.futures torch.library torch.linalg torch.masked torch.nested torch.nn torch.nn.attention
torch.nn.attention.bias torch.nn.attention.varlen torch.nn.functional torch.nn.grad torch.nn.init
torch.nn.modules.module torch.nn.parallel torch.nn.parameter torch.nn.utils torch.nn.utils.parametrizations
torch.nn.utils.parametrize torch.nn.utils.prune torch.nn.utils.rnn torch.nn.utils.stateless torch.optim
torch.optim.lr_scheduler torch.optim.swa_utils torch.overrides torch.profiler torch.quasirandom torch.random
torch.serialization torch.signal.windows torch.sparse torch.special torch.storage torch.testing torch.utils
torch.utils._pytree torch.utils.checkpoint torch.utils.data torch.utils.dlpack torch.utils.flop_counter
torch.utils.hooks torch.utils.module_tracker torch.utils.weak
""".split()

CLASSES = (
    torch.Tensor, torch.nn.Module, torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList,
    torch.nn.ParameterDict, torch.optim.Optimizer, torch.Generator, torch.Size, torch.dtype, torch.device, torch.finfo,
    torch.UntypedStorage, torch.nn.utils.rnn.PackedSequence, torch.autograd.Function, torch.autograd.graph.Node,
    torch.amp.GradScaler, torch.distributions.Distribution, torch.library.Library,
)  # fmt: skip


def public(module: ModuleType) -> list[str]:
    """The names that a module says are public, or else those without an underscore that it defines itself."""
    said: list[str] | None = getattr(module, "__all__", None)
    if said is not None:
        return said
    own = [name for name in dir(module) if not name.startswith("_")]
    return [name for name in own if getattr(getattr(module, name), "__module__", "") == module.__name__]


def namespaces() -> Iterator[tuple[str, list[str]]]:
    """Each module and class, with its public names."""
    for name in MODULES:
        try:
            yield name, public(importlib.import_module(name))
        except ImportError:  # of another version of PyTorch
            continue
    for cls in CLASSES:
        yield cls.__qualname__, [name for name in dir(cls) if not name.startswith("_") and not hasattr(object, name)]


def mentioned(tests: Path) -> set[str]:
    """All words in the tests."""
    here: Any = Path(__file__).resolve()
    texts = [path.read_text() for path in tests.rglob("*.py") if path.resolve() != here]
    return {word for text in texts for word in re.findall(r"\w+", text)}


def main() -> None:
    warnings.simplefilter("ignore")
    known = mentioned(Path(__file__).parent)
    for owner, names in namespaces():
        missing = [name for name in names if name not in known]
        if missing:
            print(f"{owner}: {len(missing)} of {len(names)}: {' '.join(missing)}")


if __name__ == "__main__":
    main()
