"""Interpreters that have PyTorch imported when they start: each is forked from a process that did nothing else.

Importing PyTorch takes most of the time of many tests that run a program in a process of its own. `executable()` is the path
of a command that takes a program as `python` does (a file, `-c` or `-m`) and runs it in such a process, with the caller's
arguments, environment, folder and streams. What needs a new interpreter, because of an option or a variable that PyTorch or
the C library reads when it is loaded, gets one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import runpy
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import types
import warnings
from pathlib import Path

#: Names of variables that are read before a program begins.
READ_BEFORE = ("GOMP_", "LD_", "MALLOC_", "MKL_", "OPENBLAS_", "PYTHONWARNINGS", "TORCH_")

#: Python without libraries of the user's: it starts in 20 ms.
_CLIENT = """#!{python} -IS
import json, os, socket, sys
arguments = sys.argv[1:]
plain = [name for name in arguments[:1] if name == "-P"]
program = arguments[len(plain):]
known = bool(program) and (program[0] in ("-c", "-m") and len(program) > 1 or program[0][:1] not in ("", "-"))
read_before = {{name: value for name, value in os.environ.items() if name.startswith({read_before!r})}}
if not known or read_before != {now!r}:
    os.execv({python!r}, [{python!r}, *arguments])
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
task = dict(program=program, plain=bool(plain), environment=dict(os.environ), folder=os.getcwd())
socket.send_fds(connection, [b"x"], [0, 1, 2])
connection.sendall(json.dumps(task).encode())
connection.shutdown(socket.SHUT_WR)
answer = connection.recv(16)
code = int(answer) if answer else 1
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@functools.cache
def executable() -> str:
    """The path of the command, which is there as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="quickfuse-test-")
    address = f"{folder.name}/socket"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen([sys.executable, __file__, address], stdin=subprocess.PIPE, env=environment)
    now = {name: value for name, value in os.environ.items() if name.startswith(READ_BEFORE)}
    path = Path(folder.name) / "python"
    path.write_text(_CLIENT.format(python=sys.executable, read_before=READ_BEFORE, now=now, address=address))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def close() -> None:
        server.communicate()  # the end of its input is its end
        folder.cleanup()

    atexit.register(close)
    while not os.path.exists(address):
        assert server.poll() is None, "it did not start"
        select.select([], [], [], 0.02)
    return str(path)


# the process that is forked -------------------------------------------------------------------------------------------


def serve(address: str) -> dict | None:
    """Fork a process for each caller; in there, the task to do. None at the end."""
    import gc

    import torch  # noqa: F401

    gc.collect()
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{address}.new")
    listening.listen(64)
    os.rename(f"{address}.new", address)
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if sys.stdin in ready:
            return None
        connection, _ = listening.accept()
        if _fork() == 0:
            listening.close()
            return _attend(connection)
        connection.close()


def _fork() -> int:
    with warnings.catch_warnings():  # NumPy's threads, which wait
        warnings.simplefilter("ignore")
        return os.fork()


def _attend(connection: socket.socket) -> dict:
    """In a process of its own, the task; this process waits for that one, and ends it where the caller has ended."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    child = _fork()
    if child == 0:
        os.setsid()
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return json.loads(b"".join(parts))
    for stream in (0, 1, 2, *streams):  # who reads its output sees the end of it
        os.close(stream)
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    poll.register(ended, select.POLLIN)
    if ended not in [number for number, _ in poll.poll()]:
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        connection.sendall(str(code).encode())
    finally:
        os._exit(0)


def run(task: dict) -> None:
    """Run a program as a new interpreter would."""
    (kind, *arguments), environment = task["program"], task["environment"]
    os.chdir(task["folder"])
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))
    first = {"-c": "", "-m": task["folder"]}.get(kind, os.path.dirname(os.path.realpath(kind)))
    searched = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [*([] if task["plain"] else [first]), *searched]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    try:
        if kind == "-m":
            sys.argv = ["-m", *arguments[1:]]
            runpy._run_module_as_main(arguments[0])
        elif kind == "-c":
            sys.argv = ["-c", *arguments[1:]]
            exec(compile(arguments[0], "<string>", "exec", dont_inherit=True), main.__dict__)
        else:
            sys.argv = [kind, *arguments]
            main.__file__ = kind
            exec(compile(Path(kind).read_bytes(), kind, "exec", dont_inherit=True), main.__dict__)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        sys.exit(1)


if __name__ == "__main__":
    found = serve(sys.argv[1])
    if found is not None:
        run(found)
