"""The process that compiles kernels for another one: it imports Triton once, and forks a worker for each processor.

Jobs come in on standard input, answers leave on standard output: pickled, each after its length. It ends with its input, or
when nothing was asked for a while. It imports nothing of the package but `triton_compile`: PyTorch would take seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import selectors
import signal
import struct
from collections import deque
from typing import Any

#: Seconds after which workers without work end, and the server with them.
_IDLE = 60.0
#: Of prctl(2).
_PARENT_DEATH_SIGNAL = 1
_LENGTH = struct.Struct("<q")


def send(descriptor: int, message: Any) -> None:
    """Write a message as a whole."""
    data = pickle.dumps(message)
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[os.write(descriptor, left) :]


def receive(descriptor: int) -> Any:
    """Read a message as a whole.

    Raises:
        EOFError: where the other end is closed.
    """
    return pickle.loads(_read(descriptor, _LENGTH.unpack(_read(descriptor, _LENGTH.size))[0]))


def _read(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def serve(most: int) -> None:
    """Answer jobs with at most so many workers.

    A job is a number, the environment that Triton reads, and a `Job`; its answer is the number, and a `Machine` or the text
    of an error.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # what Triton prints is no answer
    send(answers, (0, "running"))
    with contextlib.suppress(Exception):  # what is missing will be missed by each job
        from . import triton_compile

        triton_compile.load_triton()
    server = _Server(answers, most)
    with contextlib.suppress(EOFError, BrokenPipeError):
        server.run()


class _Worker:
    """A forked process: jobs go to `jobs`, answers come from `results`. `number` is that of its job, None without."""

    def __init__(self, jobs: int, results: int) -> None:
        self.jobs = jobs
        self.results = results
        self.number: int | None = None


class _Server:
    def __init__(self, answers: int, most: int) -> None:
        self._answers = answers
        self._most = most
        self._waiting: deque[tuple[int, dict[str, str], Any]] = deque()
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            ready = self._selector.select(_IDLE)
            if not ready and not self._waiting and all(worker.number is None for worker in self._workers):
                return
            for key, _ in ready:
                if key.data is None:
                    self._waiting.append(receive(0))
                else:
                    self._finished(key.data)
            self._start()

    def _finished(self, worker: _Worker) -> None:
        try:
            answer = receive(worker.results)
        except EOFError:
            answer = "the process that compiled it ended"
            self._selector.unregister(worker.results)
            self._workers.remove(worker)
            os.close(worker.jobs)
            os.close(worker.results)
        number, worker.number = worker.number, None
        if number is not None:
            send(self._answers, (number, answer))

    def _start(self) -> None:
        """Give jobs to workers that have none."""
        while self._waiting:
            idle = next((worker for worker in self._workers if worker.number is None), None)
            if idle is None and len(self._workers) < self._most:
                idle = self._forked()
            if idle is None:
                return
            number, environment, job = self._waiting.popleft()
            idle.number = number
            try:
                send(idle.jobs, (environment, job))
            except BrokenPipeError:
                continue  # the end of its results is seen later, and answers the job

    def _forked(self) -> _Worker:
        jobs, results = os.pipe(), os.pipe()
        if os.fork() == 0:
            _end_with_server()
            _work_and_exit(jobs[0], results[1], [0, self._answers, jobs[1], results[0], *self._descriptors()])
        os.close(jobs[0])
        os.close(results[1])
        worker = _Worker(jobs[1], results[0])
        self._workers.append(worker)
        self._selector.register(worker.results, selectors.EVENT_READ, worker)
        return worker

    def _descriptors(self) -> list[int]:
        return [descriptor for worker in self._workers for descriptor in (worker.jobs, worker.results)]


def _end_with_server() -> None:
    """Be killed when the server ends, however it does: LLVM may work on a large kernel for minutes that nobody waits for."""
    with contextlib.suppress(AttributeError, OSError):  # elsewhere than on Linux
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _work_and_exit(jobs: int, results: int, others: list[int]) -> None:
    """What a worker does until there are no more jobs. `others` are the server's, which only the server is to hold open."""
    for descriptor in others:
        os.close(descriptor)
    with contextlib.suppress(BaseException):
        while True:
            environment, job = receive(jobs)
            for name in [name for name in os.environ if name.startswith("TRITON_")]:
                del os.environ[name]
            os.environ.update(environment)
            send(results, _answer(job))
    os._exit(0)


def _answer(job: Any) -> Any:
    try:
        from . import triton_compile

        return tuple(triton_compile.compile_job(triton_compile.Job(*job)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
