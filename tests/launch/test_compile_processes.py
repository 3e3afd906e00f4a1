"""Kernels compiled by other processes: the same code, and no harm where these are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from quickfuse import config
from quickfuse.bench.traffic import on_gpu
from quickfuse.emit.sources import emit_gpu
from quickfuse.errors import Unsupported
from quickfuse.ir.kernel import KernelCall
from quickfuse.launch import compile_processes, cuda_compile, gpu_call
from quickfuse.launch.compile_processes import Server, compiled
from quickfuse.launch.cuda_compile import LaunchShape
from quickfuse.launch.triton_compile import Job, Machine, compile_job

pytest.importorskip("triton")


def _job(number: int = 2, body: str = "tl.store(p + lane, tl.load(p + lane) * {})") -> Job:
    source = f"""
import triton
import triton.language as tl


@triton.jit
def kernel(p, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    {body.format(number)}
"""
    return Job(source, "kernel", (("p", "*fp32"),), (("BLOCK", 128),), 0, 90, 1)


@pytest.fixture(autouse=True)
def own_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(compile_processes, "_server", None)
    monkeypatch.setattr(config, "compile_processes", 2)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    yield
    if compile_processes._server is not None:
        compile_processes._server.close()


def test_a_signal_comes_after_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a part of one, the server would wait for the rest, and take the next message for it."""
    send = compile_processes.send

    def interrupted(descriptor: int, message: object) -> None:
        signal.raise_signal(signal.SIGUSR1)
        send(descriptor, message)

    def handler(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    assert compiled(_job()).name == "kernel"
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(compile_processes, "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                compiled(_job(3))
    finally:
        signal.signal(signal.SIGUSR1, before)
    server = compile_processes._server
    assert (
        compiled(_job(4)).name == "kernel"
        and compile_processes._server is server
        and server is not None
        and not server.ended
    )
    assert server._count == 3


def test_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = compiled(_job())
    assert compile_processes._server is not None
    assert list(tmp_path.iterdir()), "Triton's files are where the environment says"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "another"))
    here = compile_job(_job())
    assert (there.name, there.shared_bytes, there.ptx) == (here.name, here.shared_bytes, here.ptx)
    assert len(there.cubin) == len(here.cubin)


def test_many_at_a_time() -> None:
    server = compile_processes.start()
    assert server is not None
    futures = [server.submit(_job(k)) for k in range(6)]
    found = [future.result(120) for future in futures]
    assert len({machine.cubin for machine in found if machine is not None}) == 6


def test_what_does_not_compile_raises_here() -> None:
    job = _job(body="tl.store(p + lane, nothing_of_this_name + {})")
    with pytest.raises(Exception, match="nothing_of_this_name"):
        compiled(job)
    assert compiled(_job()).cubin


def test_a_worker_that_ends() -> None:
    server = compile_processes.start()
    assert server is not None
    deadly = Job("import os\nos._exit(3)", "kernel", (), (), 0, 90, 1)
    assert server.submit(deadly).result(60) is None
    made = server.submit(_job()).result(60)
    assert made is not None
    assert not server.ended


def test_a_server_that_is_killed() -> None:
    server = compile_processes.start()
    assert server is not None
    os.kill(server._process.pid, signal.SIGKILL)
    assert compiled(_job()).cubin
    assert server.ended
    assert compile_processes.start() is None, "what does not run is not started again and again"


def test_workers_end_with_the_server(tmp_path: Path) -> None:
    """Also in the middle of a job."""
    server = compile_processes.start()
    assert server is not None
    mark = tmp_path / "worker"
    program = f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    server.submit(Job(program, "kernel", (), (), 0, 90, 1))
    until = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    worker = int(mark.read_text())
    assert _runs(worker)
    os.kill(server._process.pid, signal.SIGKILL)
    until = time.monotonic() + 20
    while _runs(worker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(worker)


def test_a_server_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert compiled(_job()).cubin
    assert config.compile_processes == 0


def test_python_in_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/env")
    assert compile_processes.start() is None
    monkeypatch.setattr(sys, "executable", None)
    assert compiled(_job()).cubin


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_processes, "_BOOT", "import time; time.sleep(60)")
    monkeypatch.setattr(compile_processes, "_PATIENCE_TO_START", 0.2)
    assert compiled(_job()).cubin
    assert compile_processes.start() is None


def test_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "compile_processes", 0)
    assert compiled(_job()).cubin
    assert compile_processes._server is None


def test_a_forked_process_has_its_own() -> None:
    first = compile_processes.start()
    assert first is not None
    first.owner = -1
    second = compile_processes.start()
    assert second is not None
    assert second is not first
    first.close()


@pytest.mark.usefixtures("forked_interpreters")
def test_it_ends_with_its_process() -> None:
    """However that ends."""
    program = (
        "import os, sys; from quickfuse.launch import compile_processes as c; s = c.start(); "
        "print(s._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    source = str(Path(compile_processes.__file__).resolve().parents[2])
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": source}
    )
    pid = int(run.stdout)
    until = time.monotonic() + 20
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_is_idle_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    short = "from quickfuse.launch import compile_server\ncompile_server._IDLE = 0.5\nserve("
    monkeypatch.setattr(compile_processes, "_BOOT", compile_processes._BOOT.replace("serve(", short))
    server = Server(2)
    assert server.submit(_job()).result(60) is not None
    until = time.monotonic() + 20
    while not server.ended and time.monotonic() < until:
        time.sleep(0.05)
    assert server.ended
    assert server.ended_well()


def test_narrow_accesses_where_triton_fails_with_wide_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compiled(job: Job) -> Machine:
        if dict(job.constants)["ALIGN"]:
            raise RuntimeError("PassManager::run failed")
        return Machine(b"narrow", job.name, 0, ".entry kernel(.param .u64 a)")

    monkeypatch.setattr(compile_processes, "compiled", compiled)
    arguments = (("rows", "*i64"),)
    made = cuda_compile._compile("source of its own", "kernel", arguments, 90, LaunchShape(64, 1, 8), 32, 0, 0, True)
    assert made.cubin == b"narrow" and "narrow" in caplog.text


def test_others_go_on_while_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def compile_call(*_: object) -> None:
        begun.set()
        assert go_on.wait(60)
        raise Unsupported("a reason")

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    (schedule,) = on_gpu(function, torch.randn(64))
    calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
    monkeypatch.setattr(gpu_call, "compile_call", compile_call)
    monkeypatch.setattr(gpu_call, "multiprocessors_of", lambda call: 132)
    shapes, wait = gpu_call.compile_together(calls, emit_gpu, False)
    assert len(shapes) == len(calls) == 1
    assert begun.wait(60)
    go_on.set()
    with pytest.raises(Unsupported):
        wait()
