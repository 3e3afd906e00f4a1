"""What the commands of `cli` have in common: their options, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import torch
import typer
from rich.console import Console

from quickfuse import doctor
from quickfuse.bench.optimizers import OPTIMIZERS
from quickfuse.bench.variants import OURS, PEERS
from quickfuse.bench.workloads import DTYPES

T = TypeVar("T")
console = Console(highlight=False)

Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU if there is one.")]
Dtype = Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")]
Peers = Annotated[str, typer.Option(help=f"Comma-separated, from {', '.join(PEERS)}. quickfuse is always measured.")]
Seconds = Annotated[float, typer.Option(help="How long each variant runs for its steady time.")]
ColdTimeout = Annotated[float, typer.Option(help="Give up on a first call after as many seconds.")]
Params = Annotated[str, typer.Option(help="A number of parameters, or gpt2: the 148 of GPT-2 124M.")]
OptimizerName = Annotated[str, typer.Option("--optimizer", help=f"One of {', '.join(OPTIMIZERS)}.")]
Shape = Annotated[str, typer.Option(help="The shape of each tensor.")]
Dtypes = Annotated[str, typer.Option(help="With a GPU: comma-separated dtypes.")]
Jobs = Annotated[int, typer.Option(min=1, help="With a GPU: how many processes get ready at a time.")]
Budget = Annotated[float, typer.Option(help="With a GPU: end after as many seconds; 0: when all is done.")]
JsonOfMany = Annotated[Path | None, typer.Option("--json", help="Write all numbers here; with a GPU, go on after those.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw a bar chart into this file (needs matplotlib).")]


def known_names(text: str, known: Iterable[str]) -> list[str]:
    """The names in a comma-separated list, which must be known."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"unknown name {unknown[0]!r}; known are {', '.join(known)}")
    return names


def peer_names(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip() not in ("", OURS)))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ValueError(f"unknown peer {unknown[0]!r}; known are {', '.join(PEERS)}")
    return names


def found_device(name: str) -> str:
    """The device to measure on. Ends the program, with success, where its GPU is too old for any compiler here."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}; known are auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("no usable NVIDIA GPU was found; `quickfuse doctor` says more")
    if name == "cpu" or not torch.cuda.is_available():
        return "cpu"
    too_old = doctor.gpu_too_old()
    if too_old is not None:
        say(too_old)
        raise typer.Exit(0)
    return "cuda"


def checked(make: Callable[[], T]) -> T:
    """What `make` returns; its ValueError becomes the usual message for a wrong option."""
    try:
        return make()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def say(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)
