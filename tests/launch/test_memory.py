"""New tensors, in huge pages where there are some."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from quickfuse.ir.values import TensorMeta
from quickfuse.launch.memory import maker

CPU = torch.device("cpu")
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


SHAPES = [((3, 5), (5, 1)), ((3000, 1001), (1001, 1)), ((2, 3, 700, 800), (1680000, 1, 2400, 3)), ((0,), (1,))]


@pytest.mark.parametrize(("shape", "stride"), SHAPES)
def test_tensors_are_as_described(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    tensor = maker(TensorMeta(torch.float32, shape, stride, CPU))()
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (shape, stride, torch.float32)
    tensor.fill_(2.0)
    assert tensor.sum() == 2.0 * tensor.numel()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has huge pages")
def test_large_tensors_take_few_page_faults() -> None:
    if not SETTING.exists() or "[never]" in SETTING.read_text():
        pytest.skip("no huge pages on this machine")
    make = maker(TensorMeta(torch.float32, (1 << 24,), (1,), CPU))  # 64 MB, that is 16384 small pages
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    make().fill_(1.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 8192


REPEATED = """
import resource, torch
from quickfuse.launch.memory import keep_freed_memory
kept, faults = keep_freed_memory(), []
for _ in range(12):  # glibc 2.43 puts blocks at other places than before for some rounds, and the heap grows meanwhile
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made = [torch.ones(1 << 21) for _ in range(8)]
    del made
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(kept, min(faults))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a parameter of glibc's malloc")
@pytest.mark.parametrize("setting", [None, "MALLOC_TRIM_THRESHOLD_"])
def test_freed_memory_is_kept_unless_the_user_has_set_how_much(setting: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), **({setting: "131072"} if setting else {})}
    run = subprocess.run([sys.executable, "-c", REPEATED], env=environment, check=True, capture_output=True, text=True)
    kept, faults = run.stdout.split()
    assert kept == str(setting is None)
    assert (int(faults) < 100) == (setting is None)
