"""The warnings of a compiled program are those of the plain one: as often, and from the same lines.

Python remembers what it has shown until it is told of other filters, so that compiling must not tell it of any.
"""

from __future__ import annotations

import subprocess
import sys
import types
import warnings

import pytest
import torch

import quickfuse

FILTERS = ("default", "once", "module", "always", "error", "ignore")

PROGRAMS = {
    "in a function": """
def program(x):
    y = x * 2
    warnings.warn("hello")
    return y * 3
""",
    "after a break": """
@quickfuse.disable
def other(x):
    return x + 1
def program(x):
    y = other(x * 2).sin()
    warnings.warn("hello")
    y = other(y) * 2
    warnings.warn("hello", DeprecationWarning)
    return y * 3
""",
    "in a loop": """
def program(x):
    for i in range(3):
        x = x * 2
        warnings.warn("hello")
    return x
""",
    "of the caller": """
def inner(x):
    warnings.warn("hello", FutureWarning, stacklevel=2)
    return x.cos()
def program(x):
    return inner(x * 2) + inner(x)
""",
    "in a branch": """
def program(x):
    y = x * 2
    if y.sum() > 0:
        warnings.warn("positive")
    else:
        warnings.warn("negative")
    return y.view(-1).flip(0)
""",
    "that is caught": """
def program(x):
    y = x * 2
    try:
        warnings.warn("hello")
        y = y + 1
    except UserWarning:
        y = y - 1
    return y.exp()
""",
    "in a module": """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
    def forward(self, x):
        y = self.linear(x)
        warnings.warn("hello")
        return y.relu().detach()
program = Model()
""",
    "in a training step": """
torch.manual_seed(0)
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
def program(x):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    warnings.warn("before")
    loss.backward()
    optimizer.step()
    warnings.warn("after")
    return loss.detach()
""",
    "around arrays": """
def program(x):
    numbers = numpy.sqrt(numpy.arange(3.0)).mean() + numpy.log(2.0)
    y = x * float(numbers)
    warnings.warn("hello")
    return y[list(itertools.islice(iter([0, 1, 2]), 2))]
""",
    "with iterators across breaks": """
def program(x):
    rows = itertools.chain([1, 2], [3])
    for n in rows:
        x = x * n
        warnings.warn("hello")
    return torch.add(x, 1, out=torch.empty(3))
""",
    "of PyTorch's Python code": """
def program(x):
    y = x * 2
    z = torch.nn.functional.dropout2d(y.view(1, 3), 0.0)
    warnings.warn("hello")
    return z + torch.nn.functional.softmax(y.view(1, 3))
""",
    "of NumPy": """
def program(x):
    y = x * 2
    n = numpy.log(numpy.array([0.0, 1.0]))[1]
    m = numpy.mean(numpy.array([]))
    return y + float(n), m
""",
}  # fmt: skip


def _shown(source: str, action: str, compiled: bool) -> list[object]:
    """What each call returned or raised, and the warnings that were shown in it."""
    name = "program_that_warns"
    module = types.ModuleType(name)
    vars(module).update(warnings=warnings, torch=torch, quickfuse=quickfuse, numpy=pytest.importorskip("numpy"))
    exec(compile("import itertools\n" + source, f"{name}.py", "exec"), vars(module))
    made = module.program
    program = quickfuse.compile(made) if compiled else made
    found: list[object] = []
    sys.modules[name] = module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            warnings.showwarning = lambda *args: found.append((str(args[0]), args[1].__name__, *args[2:4]))
            for _ in range(4):
                try:
                    found.append(str(program(torch.ones(3))))
                except Warning as error:
                    found.append(repr(error))
    finally:
        del sys.modules[name]
    return found


@pytest.mark.parametrize("action", FILTERS)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_warnings_are_shown_as_often_as_in_the_plain_program(kind, action):
    expected = _shown(PROGRAMS[kind], action, False)
    assert _shown(PROGRAMS[kind], action, True) == expected
    quickfuse.reset()


#: What PyTorch itself warns of, most of it once a process.
OF_PYTORCH = """
import sys, warnings, torch, quickfuse
def a_grid(x):
    a, b = torch.meshgrid(x, x * 2)
    return a + b
def places(x):
    y = x.cumsum(0)
    return torch.searchsorted(y, torch.ones(4, 2).t().flatten()[::2])
def inner(x, y):
    return torch.cross(x, y)
def products(x):
    y = inner(
        x * 2,
        x,
    )
    return inner(x, y) + torch.cross(y, y)
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.softmax(x.view(1, 3)) + x.tanh()
compiled, action = sys.argv[1:]
warnings.simplefilter(action)
for program in (a_grid, places, products, Model()):
    function = quickfuse.compile(program) if compiled == "True" else program
    for _ in range(3):
        try:
            print(function(torch.ones(3)).sum(), file=sys.stderr)
        except Warning as error:
            print(repr(error), file=sys.stderr)
"""


@pytest.mark.parametrize("action", ["default", "error", "module"])
def test_warnings_of_pytorch_come_from_the_program(action, tmp_path):
    """And where warnings are exceptions, they are raised as often as in the plain program."""
    path = tmp_path / "program.py"
    path.write_text(OF_PYTORCH)
    plain, compiled = (
        subprocess.run([sys.executable, path, how, action], capture_output=True, text=True, timeout=300, check=True).stderr
        for how in ("False", "True")
    )
    assert "Warning" in plain and compiled == plain
