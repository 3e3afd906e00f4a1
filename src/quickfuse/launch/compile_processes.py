"""Kernels compiled in processes of their own: a part of Triton's work holds Python's interpreter, so that threads wait.

There is one server (`compile_server.py`), started as early as possible. What goes wrong there is compiled here instead,
where errors are raised.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

from .. import config
from ..signals import handlers_wait
from .compile_server import receive, send
from .triton_compile import Job, Machine, compile_job

#: Seconds to wait for a kernel, and for the server to say that it runs, before it is compiled here.
_PATIENCE, _PATIENCE_TO_START = 120.0, 30.0

#: The package without what its `__init__` imports.
_BOOT = """
import json, os, sys, types
sys.path[:] = json.loads(sys.argv[1])
for name in ("quickfuse", "quickfuse.emit", "quickfuse.launch"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [os.path.join(sys.argv[2], *name.split(".")[1:])]
from quickfuse.launch.compile_server import serve
serve(int(sys.argv[3]))
"""


class Server:
    """A running server. Jobs may come from several threads."""

    def __init__(self, processes: int) -> None:
        package = str(Path(__file__).resolve().parents[1])
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, path, package, str(processes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        self.owner = os.getpid()
        self.ended = False
        #: Set when the server has said that it runs.
        self.runs = threading.Event()
        self._lock = threading.Lock()
        #: Held while a job is written, which waits where the server is writing an answer: `_lock` is free meanwhile.
        self._sending = threading.Lock()
        self._futures: dict[int, Future[Machine | None]] = {}
        self._count = 0
        threading.Thread(target=self._listen, name="quickfuse-compile-server", daemon=True).start()

    def submit(self, job: Job) -> Future[Machine | None]:
        """The machine code that there will be, None where it has to be compiled here."""
        future: Future[Machine | None] = Future()
        environment = {name: value for name, value in os.environ.items() if name.startswith("TRITON_")}
        with self._lock:
            if self.ended:
                future.set_result(None)
                return future
            self._count += 1
            number = self._count
            self._futures[number] = future
        try:
            with handlers_wait(), self._sending:  # after a part of a message nothing else is understood
                send(self._jobs, (number, environment, tuple(job)))
        except OSError:
            self.ended = True
            with self._lock:
                lost = self._futures.pop(number, None)
            if lost is not None:
                lost.set_result(None)
        return future

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, answer = receive(self._answers)
                self.runs.set()
                if not number:
                    continue
                with self._lock:
                    future = self._futures.pop(number)
                future.set_result(Machine(*answer) if isinstance(answer, tuple) else None)
        with self._lock:
            self.ended = True
            left, self._futures = self._futures, {}
        self.runs.set()
        for future in left.values():
            future.set_result(None)

    def ended_well(self) -> bool:
        """Whether a server that has ended did so because it was idle. One that cannot run is not to be started again."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(1) == 0
        return False

    def close(self) -> None:
        """End the server and its workers."""
        self.ended = True
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_server: Server | None = None
_starting = threading.Lock()


def start() -> Server | None:
    """The server of this process, started if need be; None where kernels are to be compiled in this process."""
    global _server
    processes = config.compile_processes
    # Where Python is part of another program, that program would be started.
    if not processes or not os.path.basename(sys.executable or "").startswith("python") or hasattr(sys, "frozen"):
        return None
    with _starting:
        if _server is not None and _server.owner != os.getpid():
            _server = None  # that of the process which this one was forked from
        if _server is None or (_server.ended and _server.ended_well()):
            try:
                _server = Server(processes)
            except OSError:
                config.compile_processes = 0  # nothing can be started here
                return None
            atexit.register(_close, _server)
        return None if _server.ended else _server


def _close(server: Server) -> None:
    if server.owner == os.getpid():
        server.close()


def compiled(job: Job) -> Machine:
    """Compile a kernel: by the server, or here."""
    server = start()
    made = None
    if server is not None and server.runs.wait(_PATIENCE_TO_START):
        with contextlib.suppress(TimeoutError):
            made = server.submit(job).result(_PATIENCE)
    elif server is not None:
        server.close()  # and none is started again
    return compile_job(job) if made is None else made
