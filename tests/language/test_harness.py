"""The harness itself: it sees each kind of difference, and takes none for one that is not."""

import collections
import dataclasses
import sys
import types
import warnings

import pytest
import torch

from language import harness, report
from language.snapshot import Observer, first_difference

THIS = sys.modules[__name__] if __name__ in sys.modules else types.ModuleType(__name__)


def difference(left, right, exact=True):
    """What tells two values apart, each seen in a run of its own."""
    first, second = Observer(THIS), Observer(THIS)
    return first_difference(first.see(left), second.see(right), exact)


@dataclasses.dataclass
class Holder:
    value: object
    other: object = None


def linked(same):
    shared = [1]
    return [shared, shared if same else [1]]


def views(same):
    x = torch.zeros(4)
    return x[:2], (x if same else x.clone())[2:]


PAIRS = {
    "values": (torch.zeros(3), torch.ones(3)),
    "dtype": (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
    "shape": (torch.zeros(3), torch.zeros(3, 1)),
    "stride": (torch.zeros(3, 3), torch.zeros(3, 3).t()),
    "requires_grad": (torch.zeros(3), torch.zeros(3, requires_grad=True)),
    "leaf": (torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True) * 1),
    "class": (torch.zeros(3), torch.nn.Parameter(torch.zeros(3))),
    "number": (1, 2),
    "bool": (1, True),
    "float": (1.0, 1),
    "sign of zero": (0.0, -0.0),
    "sequence": ([1], (1,)),
    "length": ([1], [1, 2]),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "kind of dict": ({}, collections.OrderedDict()),
    "maxlen": (collections.deque([1], 2), collections.deque([1], 3)),
    "attribute": (Holder(1), Holder(2)),
    "identity": (linked(True), linked(False)),
    "memory": (views(True), views(False)),
    "size": (torch.Size([1]), (1,)),
    "exception": (ValueError("a"), ValueError("b")),
    "cause": (ValueError("a").with_traceback(None), KeyError("a")),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_differences_are_seen(kind):
    left, right = PAIRS[kind]
    assert difference(left, right) is not None
    assert difference(left, left) is None
    assert difference(right, right) is None


def test_tolerance_is_for_kernels_only():
    x = torch.ones(3)
    assert difference(x, x + 1e-6) is not None
    assert difference(x, x + 1e-6, exact=False) is None
    assert difference(x, x + 1e-2, exact=False) is not None
    nan = torch.tensor([float("nan")])
    assert difference(nan, nan.clone()) is None


def test_returned_inputs_are_told_from_copies():
    def observe(function):
        observer = Observer(THIS)
        x = [torch.zeros(2)]
        observer.see(x)
        observer.begin()
        return observer.see(function(x))

    assert first_difference(observe(lambda x: x), observe(lambda x: list(x)), True)
    assert first_difference(observe(lambda x: x[0]), observe(lambda x: x[0].clone()), True)


CASES_FILE = """
import warnings
import torch
from language.harness import case, setup, t
STATE = {"mode": 0}

@case((t(3),), (t(3, seed=1),))
def prints(x):
    print("hello")
    return x + 1

@case((t(3),), (t(3, seed=1),))
def raises(x):
    x.add_(1)
    raise ValueError("text")

@setup()
def counts():
    calls = 0
    def run(x):
        nonlocal calls
        calls += 1
        warnings.warn("careful")
        return x * calls + torch.rand(3)
    return run, [(t(3),), (t(3),)]
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "cases.py"
    file.write_text(CASES_FILE)
    return str(file)


def tampered(path, name, change):
    """The difference between a run and one whose function was replaced by `change(function)`."""
    expected = harness.run_eager(path, name)
    return harness.compare(expected, harness._run(path, name, change, None))


def test_equal_runs_agree(path):
    for name in ("prints", "raises", "counts"):
        assert tampered(path, name, lambda function: function) is None


@pytest.mark.parametrize(
    ("name", "change", "aspect"),
    [
        ("prints", lambda f: lambda x: x + 1, "printed"),
        ("prints", lambda f: lambda x: (f(x), x.add_(1))[0], "arguments"),
        ("prints", lambda f: lambda x: (f(x), torch.rand(1))[0], "random numbers"),
        ("prints", lambda f: lambda x: (f(x), torch.set_grad_enabled(False))[0], "settings"),
        ("prints", lambda f: lambda x: f(x).clone().requires_grad_(), "result"),
        ("counts", lambda f: lambda x: (f(x), f(x))[0], "state"),
        ("counts", lambda f: lambda x: (f(x), warnings.warn("more"))[0], "warnings"),
        ("raises", lambda f: lambda x: x, "exception"),
    ],
)
def test_tampering_is_noticed(path, name, change, aspect):
    assert aspect in tampered(path, name, change)


def test_traceback_is_compared(path):
    def change(function):
        def run(x):
            try:
                function(x)
            except ValueError as error:
                caught = error
            raise caught.with_traceback(None)

        return run

    assert "traceback" in tampered(path, "raises", change)


def test_operators_are_counted(path):
    run = harness.run_eager(path, "prints", counting=True)
    assert run.operators == len(run.calls)


@pytest.mark.parametrize("path", report.files(), ids=lambda path: path.stem)
def test_cases_agree_with_themselves(path):
    """A case gives the same twice in eager Python, also while its operators are counted. One in three is tried: each is
    compared with a compiled run anyway."""
    feature = report.collect(path, backend="none", only=[*harness.load(str(path)).CASES][::3])
    assert not [(v.name, v.wrong) for v in feature.wrong]


def test_the_suite_is_large():
    assert sum(len(harness.load(str(path)).CASES) for path in report.files()) >= 430
