"""Export: one graph out of a Python program, for environments without Python.

`building` captures a call whole (`capture/`) and traces it into ATen operators (`tracing`, `recording`); `program` is what
comes out, as data. `module` runs it, and `archive` reads and writes files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import ExportError, kind_of
from ..ir.garbage import collected_later
from ..ir.meta_kernels import light_meta_kernels
from .archive import read
from .building import build
from .exported import Exported
from .module import ExportedModule

__all__ = ["Exported", "ExportedModule", "export", "load"]


def export(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
    dynamic_shapes: Any = None,
) -> Exported:
    """The program that `model(*args, **kwargs)` runs, as one graph of ATen operators.

    The call is captured, not run: nothing of the user's is changed. (An optimizer makes its state, if it has none yet.)

    Args:
        model: a module, function or method: a forward pass, or a whole training step.
        args: example arguments. The program is specialised on their types, shapes, dtypes, strides and devices.
        kwargs: example keyword arguments.
        strict: side effects on Python objects are an error. With False they are left out of the program, and listed by
            `Exported.assumptions`.
        dynamic_shapes: not possible yet: sizes are those of the example.

    Raises:
        errors.GraphBreak: where something has to happen in Python, with the user's line.
        errors.ExportError: for arguments, results and side effects that a graph cannot have.
        TypeError: if `model` cannot be called, or not with these arguments.
    """
    if dynamic_shapes is not None:
        raise ExportError("dynamic_shapes: sizes are fixed to those of the example, since they are not symbols yet")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args is a tuple of the arguments, not {kind_of(args)}: export(model, (x,))")
    if not isinstance(kwargs, (Mapping, type(None))):
        raise TypeError(f"kwargs is a dictionary of arguments by name, not {kind_of(kwargs)}")
    with collected_later(), light_meta_kernels():
        return Exported(build(model, tuple(args), dict(kwargs or {}), strict))


def load(path: str | os.PathLike[str], *, namespaces: Collection[str] = ()) -> Exported:
    """The exported program in a file that `Exported.save` wrote.

    Neither the source of the model nor pickle is needed, and no code from the file runs. The program calls operators of
    ATen, and of the libraries whose `namespaces` are given: `load(path, namespaces=["torchvision"])`.

    Raises:
        errors.ExportFileError: for a file that is none, is damaged, was made by a newer version, or asks for what it may
            not.
        OSError: where the file cannot be opened.
    """
    return Exported(read(path, namespaces))
