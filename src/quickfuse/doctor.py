"""`quickfuse doctor`: what was found on this machine, and what that means for the user."""

from __future__ import annotations

import ctypes.util
import importlib
import importlib.metadata
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from . import support

Level = Literal["good", "limited", "broken"]

LOWEST_CAPABILITY = (7, 0)


@dataclass(frozen=True)
class Finding:
    """One line. `level`: "limited" if something is slower or missing, "broken" if quickfuse cannot work like this."""

    name: str
    found: str
    meaning: str
    level: Level = "good"


def examine() -> list[Finding]:
    """All findings, in the order in which they matter. Never raises."""
    host = host_description()
    return [
        _finding("Python", find_python),
        _finding("PyTorch", find_torch),
        _finding("LLVM", lambda: find_llvm(host)),
        _finding("vector math", lambda: find_vector_math(host)),
        _finding("threads", find_threads),
        _finding("GPU", find_gpu),
        _finding("Triton", find_triton),
    ]


def host_description() -> dict[str, Any]:
    """What the CPU launcher says of this machine. Where it fails: what can be told without it, and its `problem`."""
    try:
        return dict(importlib.import_module("quickfuse.launch.cpu").host_description())
    except Exception as error:  # whatever keeps the launcher from working, the doctor must still be able to speak
        return {**_host_without_launcher(), "problem": f"{type(error).__name__}: {error}"}


def find_python() -> Finding:
    found = platform.python_version()
    reason = support.python_problem()
    if reason is None:
        return Finding("Python", found, "supported")
    return Finding("Python", found, f"not supported: quickfuse runs programs as they are, because {reason}", "broken")


def find_torch() -> Finding:
    import torch

    version = torch.__version__
    reason = support.torch_problem()
    if reason is None:
        return Finding("PyTorch", version, "supported")
    return Finding("PyTorch", version, f"not supported: quickfuse runs programs as they are, because {reason}", "broken")


def find_llvm(host: dict[str, Any]) -> Finding:
    if "triple" not in host:
        return Finding("LLVM", "no llvmlite", "no CPU kernels: pip install llvmlite", "broken")
    bits = f", {host['vector_bits']}-bit vectors" if host.get("vector_bits") else ""
    found = f"llvmlite {_version('llvmlite')}, {host['cpu']} ({host['triple']}){bits}"
    if "problem" in host:
        return Finding("LLVM", found, f"no CPU kernels: {host['problem']}", "broken")
    return Finding("LLVM", found, "CPU kernels are compiled for this processor, without a C++ toolchain")


def find_vector_math(host: dict[str, Any]) -> Finding:
    if host.get("libmvec"):
        return Finding("vector math", "libmvec (glibc)", "exp, log, sin and the like run on whole vectors")
    meaning = "exp, log, sin and the like run one element at a time on the CPU; optimizers do not use them"
    return Finding("vector math", "none", meaning, "limited")


def find_threads() -> Finding:
    import torch

    meaning = "large CPU kernels use them, small ones use one; torch.set_num_threads(n) sets another number"
    return Finding("threads", str(torch.get_num_threads()), meaning)


def find_gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        build = "this PyTorch is built without CUDA" if torch.version.cuda is None else "no driver or no device"
        return Finding("GPU", f"none ({build})", "only CPU tensors can be compiled", "limited")
    capability = torch.cuda.get_device_capability()
    found = f"{torch.cuda.get_device_name()}, compute capability {_dotted(capability)}"
    if capability < LOWEST_CAPABILITY:
        needed = _dotted(LOWEST_CAPABILITY)
        return Finding("GPU", found, f"below {needed}: code on this GPU runs in plain PyTorch", "limited")
    return Finding("GPU", found, "GPU kernels can be compiled for it")


def find_triton() -> Finding:
    version = _version("triton")
    if version is None:
        return Finding("Triton", "not installed", "needed for GPU kernels only: pip install triton", "limited")
    if support.within(support.release(version), support.TRITON_VERSIONS):
        return Finding("Triton", version, "supported; used for GPU kernels")
    tested = support.spoken(support.TRITON_VERSIONS)
    return Finding("Triton", version, f"not tested: quickfuse is made for {tested}", "limited")


def gpu_too_old() -> str | None:
    """The sentence for a user whose GPU is not supported, or None. Call it only where there is a GPU."""
    import torch

    capability = torch.cuda.get_device_capability()
    if capability >= LOWEST_CAPABILITY:
        return None
    return (
        f"{torch.cuda.get_device_name()} has compute capability {_dotted(capability)}; "
        f"quickfuse and torch.compile need {_dotted(LOWEST_CAPABILITY)} or higher. Try --device cpu."
    )


def _finding(name: str, examine_one: Callable[[], Finding]) -> Finding:
    try:
        return examine_one()
    except Exception as error:  # a broken installation may fail in any way, and that is what to report
        return Finding(name, "could not be examined", f"{type(error).__name__}: {error}", "broken")


def _host_without_launcher() -> dict[str, Any]:
    try:
        from llvmlite import binding
    except Exception:
        return {}
    return {
        "triple": binding.get_default_triple(),
        "cpu": binding.get_host_cpu_name(),
        "libmvec": ctypes.util.find_library("mvec") is not None,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
