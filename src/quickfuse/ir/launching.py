"""What the generated glue needs of kernels that are ready to run, and of what knows where their operands are."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
import torch

from .loop import Buffer
from .values import TensorMeta

Words = ctypes.Array[ctypes.c_int64]


class BoundCall(Protocol):
    """A kernel call with its table of members, of which `words` are the 64-bit words."""

    words: Words

    def words_of(self, buffer: Buffer, /) -> list[tuple[int, int]]:
        """For a buffer that is made in each call: the words where its address has to be put, and what is to be added to it,
        in bytes."""


class CpuLaunch(BoundCall, Protocol):
    """`launch()` runs a kernel with `arguments`; scalars go to `floats` or `integers`, by their type. If it is `parallel`,
    the number of threads is the last argument."""

    device_type: Literal["cpu"]
    parallel: bool
    arguments: Words
    floats: ctypes.Array[ctypes.c_double]
    integers: Words

    def launch(self) -> None: ...


class ProductLaunch(BoundCall, Protocol):
    """`launch()` runs a `SmallProduct`."""

    device_type: Literal["cpu"]

    def launch(self) -> None: ...


class GpuLaunch(BoundCall, Protocol):
    """`launch(stream, *scalars)` runs a kernel. `rows_changed()` is called where words were written, if it `uploads` them;
    `gather()` before a launch, if it `gathers` host numbers."""

    device_type: Literal["cuda"]
    gathers: bool
    uploads: bool

    def launch(self, stream: int, /, *scalars: float) -> None: ...
    def current_stream(self, device: int, /) -> int: ...
    def rows_changed(self) -> None: ...
    def gather(self) -> None: ...


Launch = CpuLaunch | ProductLaunch | GpuLaunch


class Placement(Protocol):
    """Where the buffers of a schedule are. `position` gives the index of each input among the checked tensors; `written` are
    the positions of those that the program changes, and `overlapping` says whether memory of theirs belongs to another input
    as well. `changes`: how often the program changes inputs, by their positions. `is_needed`: whether addresses are asked
    for at all."""

    tables: list[Any]
    position: dict[Buffer, int]
    written: set[int]
    overlapping: bool
    arena: Any
    made_at: list[int]
    changes: dict[int, int]

    @property
    def is_needed(self) -> bool: ...
    def made_number(self, buffer: Buffer) -> int:
        """The index in `made_at` of a tensor that is made in each call, where the address is that it had in the last one."""

    def move_arena(self, base: int, /) -> None:
        """Let what lies in the arena, which is one block of memory for temporaries, begin at `base`."""

    def note_changes(self, tensors: list[Any], /) -> bool:
        """Tell autograd that the kernels change inputs. Returns whether one must not be changed by them."""

    def take_back_changes(self, tensors: list[Any], /) -> None:
        """Undo `note_changes`, where the kernels have not changed any."""

    def maker(self, meta: TensorMeta, /) -> Callable[[], torch.Tensor]:
        """What makes new tensors."""

    def is_resident(self, buffer: Buffer) -> bool:
        """Whether a temporary has its memory already."""

    def resident_tensor(self, buffer: Buffer) -> torch.Tensor:
        """A tensor in the memory of such a temporary."""

    def cell_address(self, buffer: Buffer) -> int: ...
    def place(self, addresses: np.ndarray) -> None:
        """Write the inputs' addresses into all tables."""
