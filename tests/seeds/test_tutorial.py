"""The statements about basic usage in PyTorch's tutorial "Introduction to torch.compile", for quickfuse.

Programs that are not captured yet run natively: their results are what is tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
T = torch.Tensor


def foo(x: T, y: T) -> T:
    a = torch.sin(x)
    b = torch.cos(y)
    return a + b


def f1(x: T, y: T) -> T:
    if x.sum() < 0:
        return -y
    return y


def f2(x: T, y: Any) -> T:
    return x + y


def bar(a: T, b: T) -> T:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


class MyModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(100, 10)

    def forward(self, x: T) -> T:
        return torch.nn.functional.relu(self.lin(x))


def same(fn1: Callable[..., T], fn2: Callable[..., T], args: tuple[Any, ...]) -> bool:
    """The tutorial's `test_fns`: an eager and a compiled function give the same result."""
    return torch.allclose(fn1(*args), fn2(*args), atol=1e-6)


# basic usage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_compile_a_function(device: str) -> None:
    opt_foo1 = quickfuse.compile(foo)
    args = torch.randn(10, 10, device=device), torch.randn(10, 10, device=device)
    assert same(foo, opt_foo1, args)
    assert [specialisation.kernels for specialisation in opt_foo1.specialisations] == [1]


@pytest.mark.parametrize("device", DEVICES)
def test_decorate_a_function(device: str) -> None:
    @quickfuse.compile
    def opt_foo2(x: T, y: T) -> T:
        a = torch.sin(x)
        b = torch.cos(y)
        return a + b

    args = torch.randn(10, 10, device=device), torch.randn(10, 10, device=device)
    assert same(foo, opt_foo2, args)
    assert opt_foo2.__name__ == "opt_foo2"
    assert opt_foo2.graph_count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_compile_a_module(device: str) -> None:
    module = MyModule().to(device)
    compiled = quickfuse.compile(module)
    x = torch.randn(10, 100, device=device)
    assert isinstance(compiled, torch.nn.Module)
    assert list(compiled.state_dict()) == ["lin.weight", "lin.bias"]
    assert same(module, compiled, (x,))
    with torch.no_grad():
        assert same(module, compiled, (x,))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_give_the_same_result(mode: str) -> None:
    assert same(foo, quickfuse.compile(foo, mode=mode), (torch.randn(10, 10), torch.randn(10, 10)))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="reduce-overhead"):
        quickfuse.compile(foo, mode="fast")
    with pytest.raises(ValueError, match="eager, quickfuse"):
        quickfuse.compile(foo, backend="no such backend")
    with pytest.raises(ValueError, match="raise_internal_errors"):
        quickfuse.compile(foo, options={"no such option": True})


# what other ways of compiling get wrong -------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_data_dependent_control_flow(device: str) -> None:
    compile_f1 = quickfuse.compile(f1)
    inp1, inp2 = torch.randn(5, 5, device=device), torch.randn(5, 5, device=device)
    assert same(f1, compile_f1, (inp1, inp2))
    assert same(f1, compile_f1, (-inp1, inp2))


@pytest.mark.parametrize("device", DEVICES)
def test_an_int_for_a_tensor(device: str) -> None:
    compile_f2 = quickfuse.compile(f2)
    x = torch.randn(5, 5, device=device)
    assert same(f2, compile_f2, (x, 3))
    assert same(f2, compile_f2, (x, 4))
    assert compile_f2.graph_count == 1, "another number is another argument"
    assert same(f2, compile_f2, (x, x))


def test_functions_that_are_not_pytorch() -> None:
    fft = pytest.importorskip("scipy.fft")

    def f3(x: T) -> T:
        x = x * 2
        x = fft.dct(x.numpy())
        x = torch.from_numpy(x)
        x = x * 2
        return x

    compile_f3 = quickfuse.compile(f3)
    for _ in range(2):
        assert same(f3, compile_f3, (torch.randn(5, 5),))


# backends and graphs --------------------------------------------------------------------------------------------


def custom_backend(gm: torch.fx.GraphModule, example_inputs: list[T]) -> Callable[..., Any]:
    print("custom backend called with FX graph:")
    print(gm.graph)
    return gm.forward


@pytest.mark.parametrize("device", DEVICES)
def test_custom_backend_gets_the_graph(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = quickfuse.compile(foo, backend=custom_backend)
    args = torch.randn(10, 10, device=device), torch.randn(10, 10, device=device)
    for _ in range(3):
        assert same(foo, compiled, args)
    printed = capsys.readouterr().out
    assert printed.count("custom backend called with FX graph:") == 1
    for target in ("torch.sin", "torch.cos", "operator.add"):
        assert printed.count(f"call_function[target={target}]") == 1


def test_graph_prints_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tabulate")

    def backend(gm: torch.fx.GraphModule, example_inputs: list[T]) -> Callable[..., Any]:
        gm.graph.print_tabular()
        return gm.forward

    quickfuse.compile(foo, backend=backend)(torch.randn(10), torch.randn(10))
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == ["placeholder", "placeholder", "call_function", "call_function", "call_function", "output"]


def test_backends_by_name() -> None:
    assert {"eager", "quickfuse"} <= set(quickfuse.list_backends())
    assert same(foo, quickfuse.compile(foo, backend="eager"), (torch.randn(10), torch.randn(10)))


@pytest.mark.parametrize("device", DEVICES)
def test_bar_takes_both_branches(device: str) -> None:
    opt_bar = quickfuse.compile(bar, backend=custom_backend)
    inp1, inp2 = torch.randn(10, device=device), torch.rand(10, device=device) + 0.1
    assert same(bar, opt_bar, (inp1, inp2))
    assert same(bar, opt_bar, (inp1, -inp2))


def test_fullgraph_raises_on_bar() -> None:
    opt_bar = quickfuse.compile(bar, fullgraph=True)
    with pytest.raises(quickfuse.errors.GraphBreak) as raised:
        opt_bar(torch.randn(10), torch.randn(10))
    line = bar.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}: a branch on a tensor's value" in str(raised.value)
    assert "hint: " in str(raised.value)


@pytest.mark.parametrize("device", DEVICES)
def test_reset_forgets_what_was_compiled(device: str) -> None:
    compiled = quickfuse.compile(foo)
    args = torch.randn(10, device=device), torch.randn(10, device=device)
    assert same(foo, compiled, args) and compiled.graph_count == 1
    quickfuse.reset()
    assert compiled.graph_count == 0
    assert same(foo, compiled, args) and compiled.graph_count == 1
