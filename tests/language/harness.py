"""Programs that run twice, in eager Python and compiled, and have to be indistinguishable.

A file of cases is an ordinary module of functions with `@case(...)` above them, or of factories with `@setup(...)` that make
the callable and the arguments of its calls (for modules, bound methods, closures). Each run executes the file anew, so
that globals, defaults, class attributes and cells start fresh; nothing that a run leaves behind reaches another one.

A run makes the calls twice over, with one compiled object: first, first again, second, third, ..., and all once more.
After each call everything is observed (see `snapshot.py`): result, exception, output, warnings, log records, arguments,
whatever the function can reach, random numbers, PyTorch's global settings, and the gradients of what was returned.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import random
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import quickfuse
import turns
from language.snapshot import Blind, Observer, first_difference, without_addresses
from seeding import seed_torch

#: What the tests run with: "graphs" runs the captured graphs as they are, exactly like eager; "quickfuse" is ours.
BACKENDS = ("graphs", "quickfuse")
MOST_GRAPHS_OF_A_LOOP = 12
SECONDS_PER_RUN = 60
MESSAGE_LENGTH = 400


class Keywords(dict):
    """The last element of a call's arguments: what to pass by name."""


@dataclass
class Case:
    """One program and what is expected of its compilation.

    `graphs`: exactly so many are compiled for the first call. `at_most`: no more than so many, over all calls.
    `steady`: when calls that were made before compile nothing any more: "at once"; "later", after a second round, where the
    first call changes what the second one meets, as a cache does, or where it takes a round to see that a number keeps
    changing or that a line need not raise; "never", where each call meets something new. `bounded`: calls are the same
    loop with more and more iterations; the last must need no more graphs than the one before. `then`: what the caller
    does with the result.
    """

    function: Callable[..., Any]
    calls: tuple[Any, ...]
    is_factory: bool = False
    graphs: int | None = None
    at_most: int | None = None
    steady: str = "at once"
    bounded: bool = False
    then: Callable[[Any], Any] | None = None
    note: str = ""


def t(*shape: int, seed: int = 0, grad: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of numbers between -2 and 2, the same ones for the same arguments."""
    generator = torch.Generator().manual_seed(1000 + seed)
    values = torch.rand(shape, generator=generator, dtype=torch.float64) * 4 - 2
    return values.to(dtype).requires_grad_(grad)


def case(*calls: Any, **options: Any) -> Callable[[Any], Any]:
    """Register a function; each call is a tuple of arguments, copied before use, or a function that makes the tuple.

    Without calls it gets one 3x4 matrix, another one, and one of another shape.
    """
    calls = calls or ((t(3, 4),), (t(3, 4, seed=1),), (t(2, 5, seed=2),))

    def register(function: Any) -> Any:
        cases = function.__globals__.setdefault("CASES", {})
        assert function.__name__ not in cases, f"two cases are called {function.__name__}"
        cases[function.__name__] = Case(function, calls, **options)
        return function

    return register


def setup(**options: Any) -> Callable[[Any], Any]:
    """Register a factory that returns (callable, [arguments, ...]); its objects are used as they are, without copies."""
    return case(None, is_factory=True, **options)


def names(namespace: dict[str, Any]) -> list[str]:
    return list(namespace["CASES"])


_codes: dict[str, types.CodeType] = {}


def load(path: str) -> types.ModuleType:
    """Execute a file of cases in a module of its own."""
    code = _codes.get(path)
    if code is None:
        code = _codes[path] = compile(Path(path).read_text(), path, "exec", dont_inherit=True)
    module = types.ModuleType(f"language_cases_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses and pickle look there
    exec(code, module.__dict__)
    return module


class Operators(TorchDispatchMode):
    """Counts the ATen operators that the function calls while this is active.

    Not counted are those that PyTorch runs to print a tensor, those that autograd's engine runs in `backward()`, and the
    reading of a value into Python: that one is the break itself, and cannot be in a graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.printing = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = func is torch.ops.aten._local_scalar_dense.default
        self.count += not (self.printing or reads or torch._C._current_graph_task_id() != -1)
        return func(*args, **(kwargs or {}))


class Graphs:
    """A backend that runs graphs as they are, and counts."""

    def __init__(self, counting: bool = True) -> None:
        self.compiled = 0
        self.runs = 0
        self.operators = Operators() if counting else None

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.compiled += 1

        def run(*inputs: Any) -> Any:
            self.runs += 1
            with self.operators or contextlib.nullcontext():
                return graph_module.forward(*inputs)

        return run


@dataclass
class Call:
    """What was observed of one call, by aspect, and how many graphs had been compiled when it ended."""

    label: str
    seen: dict[str, Any]
    graphs: int = 0


@dataclass
class Run:
    """A whole run; `first_pass` is the number of its calls up to where they start over for the last time."""

    calls: list[Call] = field(default_factory=list)
    first_pass: int = 0
    distinct: int = 0
    operators: int = 0
    graphs: Graphs | None = None
    messages: list[str] = field(default_factory=list)


def run_eager(
    path: str, name: str, counting: bool = False, observer: type[Observer] = Observer, once: bool = False
) -> Run:
    """The program in plain Python; with `counting`, its operators are counted."""
    mode = Operators() if counting else None
    result = _run(path, name, lambda function: function, mode, observer=observer, once=once)
    result.operators = mode.count if mode else 0
    return result


def run_compiled(
    path: str, name: str, backend: Any = None, only: int | None = None, observer: type[Observer] = Observer,
    once: bool = False,
) -> Run:  # fmt: skip
    """The program under `quickfuse.compile`; with `only`, just that one of its calls, and with `once`, each call once."""
    quickfuse.reset()
    backend = Graphs(counting=False) if backend is None else backend
    graphs = backend if isinstance(backend, Graphs) else None
    compiled = functools.partial(quickfuse.compile, backend=backend)
    result = _run(path, name, compiled, None, graphs, only, observer, once)
    result.graphs = graphs
    result.operators = graphs.operators.count if graphs and graphs.operators else 0
    return result


def _run(
    path: str, name: str, wrap: Callable[[Any], Any], mode: Operators | None, graphs: Graphs | None = None,
    only: int | None = None, observer: type[Observer] = Observer, once: bool = False,
) -> Run:  # fmt: skip
    module = load(path)
    case = module.CASES[name]
    function, calls = case.function, case.calls
    _seed(0)
    if case.is_factory:
        with contextlib.redirect_stdout(io.StringIO()):
            function, calls = function()
    numbered = list(enumerate(calls))
    rounds = (3 if case.steady == "later" else 2) * turns.CALLS_EACH
    order = [*numbered[:1], *numbered * rounds] if only is None else [numbered[only]]
    if once:
        order = numbered
    result = Run(first_pass=len(order) - len(calls), distinct=len(calls))
    watching = observer(module)
    callable_ = wrap(function)
    with _quiet_process(), _time_limit(), _collecting_messages(result.messages):
        for position, (k, arguments) in enumerate(order):
            copied = copy.deepcopy(arguments) if type(arguments) is tuple and not case.is_factory else arguments
            arguments = copied if type(copied) is tuple else copied()
            _seed(k)
            seen = _observe_call(watching, case, function, callable_, arguments, mode)
            label = f"call {k + 1}" + (" again" if position >= result.first_pass or position == 1 else "")
            result.calls.append(Call(label, seen, graphs.compiled if graphs else 0))
    _restore_settings()
    return result


def _observe_call(
    observer: Observer, case: Case, function: Any, callable_: Any, arguments: tuple[Any, ...], mode: Operators | None
) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    observer.begin()
    observer.tuples_have_identity = True
    seen["arguments before"] = observer.see(list(arguments))
    observer.tuples_have_identity = False
    by_name = bool(arguments) and type(arguments[-1]) is Keywords
    keywords = arguments[-1] if by_name else {}
    positional = arguments[:-1] if by_name else arguments
    result = error = None
    printed, complained, records = io.StringIO(), io.StringIO(), _Records()
    with (
        contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained), records,
        warnings.catch_warnings(record=True) as warned,
    ):  # fmt: skip
        warnings.simplefilter("always")
        try:
            with _counted(mode):
                result = callable_(*positional, **keywords)
                if case.then is not None:
                    result = case.then(result)
        except BaseException as raised:
            if isinstance(raised, (KeyboardInterrupt, TookTooLong)):
                raise
            error = raised
    settings, randomness = _settings(), _random_state()
    _restore_settings()
    observer.begin()
    seen["exception"] = None if error is None else observer.see(error)
    if error is not None:
        seen["traceback"] = _places(error, str(observer.module.__file__))
    seen["result"] = observer.see(result)
    seen["arguments"] = observer.see(list(arguments))
    seen["state"] = observer.see(function)
    seen["printed"] = without_addresses(printed.getvalue())
    seen["printed as errors"] = without_addresses(complained.getvalue())
    seen["logged"] = tuple(records.lines)
    seen["warnings"] = tuple(
        (w.category.__name__, without_addresses(str(w.message)))
        for w in warned
        if "torch.jit" not in str(w.message)  # PyTorch's modules about themselves, when something imports them first
    )
    seen["settings"] = settings
    seen["random numbers"] = randomness
    seen["gradients"] = _gradients(observer, result, arguments, function)
    return seen


def _gradients(observer: Observer, result: Any, arguments: Any, function: Any) -> Any:
    """What flows back from a result that needs gradients; they stay in the leaves, for the next call to add to."""
    outputs = [x for x in _tensors(result) if x.requires_grad and x.grad_fn is not None]
    if not outputs:
        return None
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sum((x.abs().double() ** 2).sum() for x in outputs).backward()
    except Exception as error:
        return type(error).__name__, without_addresses(str(error))
    observer.begin()
    return observer.see(list(arguments)), observer.see(function)


def _tensors(value: Any, above: tuple[int, ...] = ()) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)) and id(value) not in above:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item, (*above, id(value)))


def _places(error: BaseException, path: str) -> tuple[Any, ...]:
    """The functions of the file that an exception went through, outermost first, and the line that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    return (tuple(f.name for f in frames), frames[-1].lineno if frames else None)


@contextlib.contextmanager
def _counted(mode: Operators | None) -> Iterator[None]:
    if mode is None:
        yield
        return
    original = torch._tensor_str._str

    def to_text(*args: Any, **kwargs: Any) -> str:
        mode.printing += 1
        try:
            return original(*args, **kwargs)
        finally:
            mode.printing -= 1

    torch._tensor_str._str = to_text
    try:
        with mode:
            yield
    finally:
        torch._tensor_str._str = original


class _Records(logging.Handler):
    """Collects what the program logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("quickfuse"):
            self.lines.append((record.name, record.levelname, without_addresses(record.getMessage())))

    def __enter__(self) -> None:
        logging.getLogger().addHandler(self)

    def __exit__(self, *_: Any) -> None:
        logging.getLogger().removeHandler(self)


@contextlib.contextmanager
def _collecting_messages(messages: list[str]) -> Iterator[None]:
    """Why quickfuse ran something natively."""

    class Messages(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() not in messages:
                messages.append(record.getMessage())

    handler = Messages()
    logger = logging.getLogger("quickfuse")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    quickfuse.set_logs(graph_breaks=True)
    try:
        yield
    finally:
        quickfuse.set_logs(graph_breaks=False)
        logger.propagate = propagates
        logger.removeHandler(handler)


@contextlib.contextmanager
def _quiet_process() -> Iterator[None]:
    """One thread, since threads that wait for each other take most of the time of small tensors on a busy machine; and no
    word about exceptions in finalizers, which come whenever garbage of an earlier case is collected."""
    threads, hook = torch.get_num_threads(), sys.unraisablehook
    torch.set_num_threads(1)
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        sys.unraisablehook = hook


class TookTooLong(BaseException):
    """A run that does not come to an end."""


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TookTooLong(f"not finished after {SECONDS_PER_RUN} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_RUN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _seed(seed: int) -> None:
    seed_torch(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def _random_state() -> tuple[Any, ...]:
    numpy_state = numpy.random.get_state()
    return (
        ("of torch", hash(torch.get_rng_state().numpy().tobytes())), ("of Python", hash(random.getstate())),
        ("of NumPy", hash((numpy_state[1].tobytes(), numpy_state[2:]))),
    )  # fmt: skip


def _settings() -> tuple[Any, ...]:
    return (
        ("grad mode", torch.is_grad_enabled()), ("inference mode", torch.is_inference_mode_enabled()),
        ("autocast", torch.is_autocast_enabled("cpu")), ("autocast's type", torch.get_autocast_dtype("cpu")),
        ("autocast's cache", torch.is_autocast_cache_enabled()), ("autocast's blocks", _autocast_blocks()),
        ("default type", torch.get_default_dtype()), ("function modes", torch._C._len_torch_function_stack()),
        ("dispatch modes", torch._C._len_torch_dispatch_stack()), ("math attention", torch._C._get_math_sdp_enabled()),
        ("deterministic", torch.are_deterministic_algorithms_enabled()),
        ("anomalies", torch.is_anomaly_enabled()),
    )  # fmt: skip


def _autocast_blocks() -> int:
    try:
        return torch.autocast_increment_nesting()
    finally:
        torch.autocast_decrement_nesting()


def _restore_settings() -> None:
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    while (blocks := _autocast_blocks() - 1) != 0:
        torch.autocast_decrement_nesting() if blocks > 0 else torch.autocast_increment_nesting()
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


@dataclass
class Verdict:
    """`wrong` tells the first difference, `unexpected` which graphs the case does not expect.

    Operators are counted over all calls of the run.
    """

    name: str
    wrong: str | None = None
    unexpected: str | None = None
    operators: int = 0
    in_graphs: int = 0
    graphs: int = 0
    messages: list[str] = field(default_factory=list)

    @property
    def native(self) -> bool:
        return self.operators > 0 and self.in_graphs == 0

    @property
    def share(self) -> float:
        return min(self.in_graphs, self.operators) / self.operators if self.operators else 1.0


def compare(eager: Run, compiled: Run, exact: bool = True) -> str | None:
    """The first difference between two runs, in words."""
    for expected, found in zip(eager.calls, compiled.calls, strict=True):
        for aspect in dict.fromkeys([*expected.seen, *found.seen]):
            if (aspect in expected.seen) != (aspect in found.seen):
                continue  # a traceback: the difference between the exceptions says more
            difference = first_difference(expected.seen[aspect], found.seen[aspect], exact)
            if difference:
                return f"{expected.label}: {aspect}{difference[:MESSAGE_LENGTH]}"
    return None


def unexpected_compilation(path: str, case: Case, run: Run) -> str | None:
    """Where graphs were compiled that the case does not expect."""
    counts = [call.graphs for call in run.calls]
    if case.graphs is not None and counts[0] != case.graphs:
        return f"{counts[0]} graphs for the first call, not {case.graphs}"
    if case.at_most is not None and counts[-1] > case.at_most:
        return f"{counts[-1]} graphs, more than {case.at_most}"
    if case.steady == "at once" and counts[1] > counts[0]:
        return f"the second of two equal calls compiled {counts[1] - counts[0]} graphs"
    if case.steady != "never" and counts[-1] > counts[run.first_pass - 1]:
        return f"making all calls again compiled {counts[-1] - counts[run.first_pass - 1]} graphs"
    if case.bounded:
        name = case.function.__name__
        alone = [run_compiled(path, name, only=k, observer=Blind).calls[-1].graphs for k in range(run.distinct)]
        if alone[-1] > alone[-2]:
            return f"the number of graphs grows with the number of iterations: {alone}"
        if max(alone) > MOST_GRAPHS_OF_A_LOOP:
            return f"{max(alone)} graphs for one loop"
    return None


@functools.lru_cache(maxsize=1)
def _plain_run(path: str, name: str) -> Run:
    """Eager's run, which a case needs for each backend, one after the other."""
    return run_eager(path, name)


def judge(path: str, name: str, backend: str = "graphs", counting: bool = True) -> Verdict:
    """Run a case both ways. `backend` is "graphs" (ours, that counts) or the name of one of quickfuse's."""
    verdict = Verdict(name)
    eager = _plain_run(path, name)
    try:
        compiled = run_compiled(path, name, Graphs(counting) if backend == "graphs" else backend)
    except TookTooLong as error:
        verdict.wrong = str(error)
        return verdict
    verdict.wrong = compare(eager, compiled, exact=backend in ("graphs", "eager"))
    verdict.messages = compiled.messages
    if backend == "graphs" and not turns.IS_ON:
        verdict.unexpected = unexpected_compilation(path, load(path).CASES[name], compiled)
        verdict.graphs = compiled.calls[-1].graphs
    if counting:
        verdict.operators = run_eager(path, name, counting=True).operators
        verdict.in_graphs = compiled.operators
    return verdict


def count(path: str, name: str) -> Verdict:
    """How many operators a case calls, and how many of them in graphs, in calls that are not made again: these would count
    the same operators. Whether it is right is not asked."""
    compiled = run_compiled(path, name, Graphs(), observer=Blind, once=True)
    eager = run_eager(path, name, counting=True, observer=Blind, once=True)
    return Verdict(name, operators=eager.operators, in_graphs=compiled.operators)


def check(path: str, name: str, backend: str) -> None:
    """The test of one case."""
    verdict = judge(path, name, backend, counting=False)
    failure = verdict.wrong or verdict.unexpected
    assert failure is None, "\n".join([failure, *verdict.messages])
