"""PyTorch's own database of operators as small programs, run natively and captured.

Each sample of each operator becomes the function that a user would write: `def program(t0, t1): return op(t0, t1, dim=1)`,
as a function, as a method, in place, and with numbers as arguments in place of constants.
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import FunctionType
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

import quickfuse
from comparing import NOT_CLOSE, copy_argument, differences, is_as_accurate, outcome_of, random_states, seed_all, sharing
from quickfuse.backends import Backend
from quickfuse.capture.inference.results import meta_of
from quickfuse.ir.segment import Segment
from quickfuse.ir.values import TensorMeta

OPERATORS: dict[str, OpInfo] = {f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}": op for op in op_db}
FORMS = ("function", "method", "in place", "numbers")
#: Samples as they are, requiring gradients, and in other memory layouts.
VARIANTS = ("plain", "gradients", "gaps", "reversed", "channels last")

#: The contents of what these return are whatever the memory held.
UNINITIALISED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_".split()
)
#: Results that are so without dropout: the state of the random numbers that it would have drawn, by their numbers.
_STATES = {
    "torch.ops.aten._flash_attention_forward": (2, 3, 4), "torch.ops.aten._efficient_attention_forward": (2, 3),
}  # fmt: skip

#: What stands before and after the reason in the message of a graph break.
_BREAK = re.compile(r"^\[graph_breaks\] (graph break at [^:]*:\d+: |.* runs natively: )")
_LOCATION = re.compile(r" at \S+:\d+$")


@dataclass
class Case:
    """A program and the arguments of one call of it."""

    operator: str
    label: str
    program: Callable[..., Any]
    arguments: list[Any]
    source: str
    has_values: bool = True


@dataclass
class Outcome:
    """What became of a case. `reasons` tell what ran natively, `errors` what was not as in eager."""

    errors: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    eager_raises: bool = False
    operator_nodes: int = 0

    @property
    def captured(self) -> bool:
        return not self.reasons and not self.eager_raises


def clear_states(case: Case, *results: Any) -> None:
    """Make states of random numbers, which hold whatever the memory held, the same in all results."""
    for result in results:
        for k in _STATES.get(case.operator, ()):
            result[k].zero_()


# programs -------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes a sample's arguments as source: tensors are arguments, the rest constants or arguments as well."""

    def __init__(self, numbers_as_arguments: bool) -> None:
        self.arguments: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._numbers = numbers_as_arguments
        self._names: dict[int, str] = {}

    def text(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, torch.Tensor) or (self._numbers and kind in (int, float)):
            return self._argument(value)
        if kind in (list, tuple):
            parts = "".join(f"{self.text(v)}, " for v in value)
            return f"[{parts}]" if kind is list else f"({parts})"
        if kind is dict:
            return "{" + "".join(f"{self.text(k)}: {self.text(v)}, " for k, v in value.items()) + "}"
        if kind is slice:
            return f"slice({self.text(value.start)}, {self.text(value.stop)}, {self.text(value.step)})"
        if kind in (int, bool, str, type(None), type(Ellipsis)):
            return repr(value)
        return self.constant(value)

    def _argument(self, value: Any) -> str:
        is_tensor = isinstance(value, torch.Tensor)
        name = self._names.get(id(value)) if is_tensor else None
        if name is None:
            name = f"{'t' if is_tensor else 'n'}{len(self.arguments)}"
            self.arguments.append(value)
            if is_tensor:
                self._names[id(value)] = name
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


def cases(
    name: str, dtype: torch.dtype, count: int, forms: tuple[str, ...] = FORMS, variant: str = "plain", device: str = "cpu"
) -> Iterator[Case]:
    """The first `count` samples of an operator, in every form that there is."""
    op = OPERATORS[name]
    gradients = variant == "gradients"
    if gradients and not (op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_all(1)
        samples = list(islice(op.sample_inputs_func(op, torch.device(device), dtype, gradients), count))
    for number, sample in enumerate(samples):
        if variant in _LAYOUTS:
            sample = sample.transform(lambda v: _LAYOUTS[variant](v) if isinstance(v, torch.Tensor) else v)
        for form in forms:
            case = _case(op, name, sample, form)
            if case is not None:
                case.label = f"{name} [{form}, {variant}, {str(dtype).removeprefix('torch.')}, sample {number}]"
                yield case


def _with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or not tensor.dim():
        return tensor
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def _reversed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        return tensor
    axes = tuple(reversed(range(tensor.dim())))
    return tensor.permute(axes).contiguous().permute(axes)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.layout != torch.strided or tensor.dim() not in formats:
        return tensor
    return tensor.contiguous(memory_format=formats[tensor.dim()])


_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gaps": _with_gaps, "reversed": _reversed, "channels last": _channels_last,
}  # fmt: skip


def _case(op: OpInfo, name: str, sample: Any, form: str) -> Case | None:
    writer = _Writer(numbers_as_arguments=form == "numbers")
    first = writer.text(sample.input)
    rest = [writer.text(a) for a in sample.args] + [f"{k}={writer.text(v)}" for k, v in sample.kwargs.items()]
    if form == "numbers" and not any(type(a) in (int, float) for a in writer.arguments):
        return None
    if form in ("function", "numbers"):
        call = f"{writer.constant(_function(op))}({', '.join([first, *rest])})"
    else:
        variant = op.get_method() if form == "method" else op.get_inplace()
        method = getattr(variant, "__name__", "")
        if variant is None or getattr(torch.Tensor, method, None) is None or not isinstance(sample.input, torch.Tensor):
            return None
        call = f"{first}.{method}({', '.join(rest)})"
    signature = ", ".join(("t" if isinstance(a, torch.Tensor) else "n") + str(k) for k, a in enumerate(writer.arguments))
    source = f"def program({signature}): return {call}"
    outer = f"def make({', '.join(writer.constants)}):\n    {source}\n    return program\n"
    namespace: dict[str, Any] = {"torch": torch, "__name__": "user_program"}
    exec(outer, namespace)
    program = namespace["make"](**writer.constants)
    return Case(name, "", program, writer.arguments, source, op.name not in UNINITIALISED)


def _function(op: OpInfo) -> Callable[..., Any]:
    """What a user calls. The database has functions of its own; it wraps random operators in code that sets the seed."""
    function: Any = op.op
    wrapped = "wrapper_set_seed" in getattr(getattr(function, "__code__", None), "co_names", ())
    if not wrapped or op.name.endswith("_lowrank"):
        if isinstance(function, FunctionType) and (function.__module__ or "").startswith("torch.testing"):
            own = {**function.__globals__, "__name__": "user_program"}
            copied = FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)
            copied.__module__ = "user_program"
            return copied
        return function
    function = torch
    for part in op.name.split("."):
        function = getattr(function, part, None) or getattr(torch.Tensor, part, None) or getattr(torch.Tensor, f"{part}_")
    return function


# running --------------------------------------------------------------------------------------------------------


class _Checking(Backend):
    """Runs captured graphs, and compares what capture says of each operator's result with what it is."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("checking", None)
        self._outcome = outcome

    def compile(self, segment: Segment) -> Callable[..., Any]:
        operators = [node for node in segment.graph.nodes if node.op in ("call_function", "call_method")]
        self._outcome.operator_nodes += len(operators)
        return lambda *inputs: _CheckedRun(segment.module, self._outcome.errors).run(*inputs)


class _CheckedRun(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule, errors: list[str]) -> None:
        super().__init__(module)
        self._errors = errors

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        if node.op not in ("placeholder", "output"):
            self._errors += [f"node {node.name}: {e}" for e in _wrong_metadata(node.meta["val"], result)]
        return result


def _wrong_metadata(expected: Any, found: Any) -> Iterator[str]:
    if isinstance(expected, TensorMeta):
        if not isinstance(found, torch.Tensor):
            yield f"a {type(found).__name__} where {expected} is expected"
            return
        real = meta_of(found)
        if real != expected:
            yield f"captured as {expected}, is {real}"
    elif isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        for e, f in zip(expected, found, strict=True):
            yield from _wrong_metadata(e, f)


def run(case: Case, backend: str = "eager") -> Outcome:
    """Run a case natively and captured. What capture says of each node is checked with the backend "eager".

    With kernels the compiled code runs a second time, on other copies: the first run must leave nothing behind.
    """
    outcome = Outcome()
    theirs = [copy_argument(a) for a in case.arguments]
    expected = outcome_of(case.program, theirs)
    random_state = random_states()
    outcome.eager_raises = expected[0] == "raised"
    compiled: Any = quickfuse.compile(case.program, backend=backend, options={"raise_internal_errors": True})
    if backend == "eager":
        compiled.settings.backend = _Checking(outcome)
    for _ in range(1 if backend == "eager" else 2):
        mine = [copy_argument(a) for a in case.arguments]
        with breaks(outcome.reasons):
            found = outcome_of(compiled, mine)
        if not torch.equal(random_states(), random_state):
            outcome.errors.append("another number of random numbers was drawn")
        if expected[0] == "raised" or found[0] == "raised":
            if expected != found:
                outcome.errors.append(f"eager: {str(expected)[:200]}, captured: {str(found)[:200]}")
            continue
        clear_states(case, expected[1], found[1])
        tolerance = 1e-6 if backend == "eager" else None
        wrong = list(differences(expected[1], found[1], "result", case.has_values, tolerance))
        wrong += differences(theirs, mine, "arguments", case.has_values, tolerance)
        if tolerance is None and wrong and all(NOT_CLOSE in error for error in wrong):
            wrong = [] if is_as_accurate(case.program, case.arguments, (expected[1], theirs), (found[1], mine)) else wrong
        outcome.errors += wrong
        if sharing(expected[1], theirs) != sharing(found[1], mine):
            outcome.errors.append("the results share memory in another way")
    return outcome


@contextlib.contextmanager
def breaks(reasons: list[str]) -> Iterator[None]:
    """Collect what the log says about native execution."""

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "[graph_breaks]" in text:
                reasons.append(_LOCATION.sub("", _BREAK.sub("", text)).splitlines()[0])

    handler = Collect()
    log = logging.getLogger("quickfuse")
    propagate, log.propagate = log.propagate, False
    log.addHandler(handler)
    quickfuse.set_logs(graph_breaks=True)
    try:
        yield
    finally:
        quickfuse.set_logs(graph_breaks=False)
        log.removeHandler(handler)
        log.propagate = propagate
