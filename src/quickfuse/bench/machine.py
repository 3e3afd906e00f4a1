"""Where the numbers were measured."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("torch", "quickfuse", "llvmlite", "triton", "numpy", "jax", "optax")


def describe_machine(device: str) -> dict[str, Any]:
    """Processor, GPU (if that is what is measured), versions, threads and date, as JSON data."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cuda": torch.version.cuda if device == "cuda" else None,
        **{name: version_of(name) for name in _PACKAGES},
    }


def show_machine(machine: dict[str, Any]) -> str:
    """The description in one line."""
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    versions = [f"{name} {machine[name]}" for name in ("torch", "triton", "jax") if machine[name]]
    return f"{where}; Python {machine['python']}, {', '.join(versions)}; {machine['date']}"


def cpu_model() -> str:
    """The processor's name as it calls itself, or its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def busy_cores(seconds: float = 0.3) -> float | None:
    """How many cores are at work while this process sleeps for a moment, or None where Linux cannot be asked."""
    before = _busy_ticks()
    time.sleep(seconds)
    after = _busy_ticks()
    if before is None or after is None:
        return None
    return (after - before) / os.sysconf("SC_CLK_TCK") / seconds


def _busy_ticks() -> int | None:
    """Clock ticks that all cores together have worked since the machine started."""
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return None
    user, nice, system, _idle, _waiting, *interrupts = map(int, statistics.read_text().split("\n")[0].split()[1:9])
    return user + nice + system + sum(interrupts)


def version_of(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
