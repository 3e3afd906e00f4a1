"""Machine code on disk: found by the next process, harmless when damaged, bounded."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import forked
import quickfuse
from quickfuse.launch import cpu, object_cache

NUMBER = ctypes.CFUNCTYPE(ctypes.c_int64)
PROGRAM = """
import torch, quickfuse
from quickfuse.launch import cpu
compiled = []
compile_ = cpu._Engine._compile
cpu._Engine._compile = lambda self, sources: compiled.append(len(sources)) or compile_(self, sources)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

@quickfuse.compile
def step(x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss

losses = [step(torch.ones(3, 8), torch.tensor([0, 1, 3])).item() for _ in range(12)]
print(sum(compiled), losses)
"""


def kernel(number: int) -> str:
    other = f"define internal i64 @kernel.other() {{ ret i64 {number} }}"
    return f"{other}\ndefine i64 @kernel() {{ %n = call i64 @kernel.other() ret i64 %n }}"


def results(*numbers: int) -> list[int]:
    """What kernels give that return these numbers."""
    loaded = cpu.load_kernels([kernel(n) for n in numbers])
    return [NUMBER(one._address)() for one in loaded]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sources each run of LLVM compiled, with an empty cache in `tmp_path`."""
    cpu.load(kernel(0), ["kernel"])  # the driver's own code is compiled by now
    runs: list[int] = []
    compile_ = cpu._Engine._compile
    monkeypatch.setattr(quickfuse.config, "cache_folder", str(tmp_path))

    def counted(engine: Any, sources: list[str]) -> Any:
        runs.append(len(sources))
        return compile_(engine, sources)

    monkeypatch.setattr(cpu._Engine, "_compile", counted)
    return runs


def test_kernels_are_found_again_one_by_one_and_beside_new_ones(compiled: list[int]) -> None:
    assert results(1, 2, 3) == [1, 2, 3] and compiled == [3]
    assert results(2) == [2] and results(3, 1, 3) == [3, 1, 3] and compiled == [3]
    assert results(4, 2, 5) == [4, 2, 5] and compiled == [3, 2]
    assert results(5, 1, 4, 3) == [5, 1, 4, 3] and compiled == [3, 2]


def test_a_function_of_the_same_text_is_no_kernel(compiled: list[int]) -> None:
    """It keeps its name."""
    for _ in range(2):
        assert NUMBER(cpu.load(kernel(1), ["kernel"])["kernel"])() == 1 and results(1) == [1]
    assert compiled == [1, 1]


def test_addresses_are_those_of_this_process(compiled: list[int]) -> None:
    numbers = [ctypes.c_int64(7), ctypes.c_int64(8)]
    for number in numbers:
        at = ctypes.addressof(number)
        ir = f"define i64 @read() {{ %n = load i64, ptr inttoptr (i64 {at} to ptr) ret i64 %n }}"
        assert NUMBER(cpu.load(ir, ["read"])["read"])() == number.value
    assert compiled == [1]


def _flipped(data: bytes) -> bytes:
    return data[:200] + bytes([data[200] ^ 1]) + data[201:]


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:40], lambda data: data + b"0", _flipped]
)
def test_damaged_files_count_as_none(compiled: list[int], tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    assert results(1) == [1]
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert results(1) == [1] and compiled == [1, 1]
    assert results(1) == [1] and compiled == [1, 1]


def test_nothing_is_kept_without_a_folder(compiled: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickfuse.config, "cache_folder", "")
    assert results(1) == results(1) == [1] and compiled == [1, 1] and not files(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(quickfuse.config, "cache_folder", str(tmp_path / "file"))
    assert results(1) == results(1) == [1] and compiled == [1, 1, 1, 1]


def test_a_folder_that_others_may_write_to_is_not_used(compiled: list[int], tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(0o777)
    assert results(1) == results(1) == [1] and compiled == [1, 1] and not files(tmp_path)


def test_files_that_cannot_be_written_stop_nothing(compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert results(1) == results(1) == [1] and compiled == [1, 1]


def test_without_hard_links_files_are_copies(compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refused)
    assert results(1, 2) == [1, 2] and results(2, 1) == [2, 1] and compiled == [2]


def test_a_folder_does_not_grow_without_bounds(compiled: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "_MOST_FILES", 4)
    keys = [f"ab{number:062}" for number in range(20)]
    for number, key in enumerate(keys):
        object_cache.keep([key], object_cache.CompiledObject(b"code", ("f",)))
        os.utime(tmp_path / "kernels" / key[:2] / key[2:], (number, number))
        assert object_cache.find(keys[0]) is not None  # and so it was used just now
        assert len(files(tmp_path)) <= 4
    assert object_cache.find(keys[1]) is None and object_cache.find(keys[-1]) is not None


def test_large_objects_are_not_kept(compiled: list[int], tmp_path: Path) -> None:
    object_cache.keep(["ab"], object_cache.CompiledObject(bytes(2 << 20), ()))
    assert not files(tmp_path)


def test_another_process_compiles_nothing(tmp_path: Path) -> None:
    """Whatever the order of sets in it is, and wherever the system puts libraries: the second one is no fork of the first's
    parent, and hashes otherwise."""
    told = []
    for interpreter in (forked.executable(), sys.executable):
        environment = {**os.environ, "QUICKFUSE_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": "1"}
        command = [interpreter, "-c", PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        count, losses = done.stdout.split(maxsplit=1)
        told.append((int(count), losses))
    assert told[0][0] > 5 and told[1][0] == 0 and told[0][1] == told[1][1]


def test_the_folder_is_a_setting() -> None:
    assert quickfuse.config.cache_folder == os.environ["QUICKFUSE_CACHE_DIR"]
    with pytest.raises(TypeError):
        quickfuse.config.cache_folder = None  # type: ignore[assignment]
    assert torch.equal(quickfuse.compile(lambda x: x + 1)(torch.ones(3)), torch.full((3,), 2.0))
