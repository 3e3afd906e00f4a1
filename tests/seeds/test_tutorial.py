"""The statements of PyTorch's tutorial "Introduction to torch.compile", for quickfuse.

Where the tutorial shows what other ways of compiling get wrong, so does the test, beside what we get right.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import quickfuse
from vision import vision_models

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
T = torch.Tensor


def foo(x: T, y: T) -> T:
    a = torch.sin(x)
    b = torch.cos(y)
    return a + b


class MyModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(100, 10)

    def forward(self, x: T) -> T:
        return torch.nn.functional.relu(self.lin(x))


def same(fn1: Callable[..., T], fn2: Callable[..., T], args: tuple[Any, ...]) -> bool:
    """The tutorial's `test_fns`: an eager and a compiled function give the same result."""
    return torch.allclose(fn1(*args), fn2(*args), atol=1e-6)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """TorchScript warns that it is deprecated, and that tracing takes branches for granted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


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
    mod = MyModule().to(device)
    opt_mod = quickfuse.compile(mod)
    x = torch.randn(10, 100, device=device)
    assert isinstance(opt_mod, torch.nn.Module)
    assert list(opt_mod.state_dict()) == ["lin.weight", "lin.bias"]
    assert same(mod, opt_mod, (x,))
    with torch.no_grad():
        assert same(mod, opt_mod, (x,))


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


# comparison to TorchScript and FX tracing -------------------------------------------------------------------------


def f1(x: T, y: T) -> T:
    if x.sum() < 0:
        return -y
    return y


@pytest.fixture
def inputs() -> tuple[T, T]:
    """Two inputs; the sum of the first is positive."""
    return torch.rand(5, 5), torch.randn(5, 5)


def test_f1_traced_by_torchscript_is_silently_wrong(inputs: tuple[T, T]) -> None:
    inp1, inp2 = inputs
    traced_f1 = torch.jit.trace(f1, (inp1, inp2))
    assert same(f1, traced_f1, (inp1, inp2))
    assert not same(f1, traced_f1, (-inp1, inp2))


def test_f1_traced_by_fx_is_an_error_or_silently_wrong(inputs: tuple[T, T]) -> None:
    inp1, inp2 = inputs
    with pytest.raises(torch.fx.proxy.TraceError, match="control flow"):
        torch.fx.symbolic_trace(f1)
    fx_f1 = torch.fx.symbolic_trace(f1, concrete_args={"x": inp1})
    assert same(f1, fx_f1, (inp1, inp2))
    assert not same(f1, fx_f1, (-inp1, inp2))


@pytest.mark.parametrize("device", DEVICES)
def test_f1_compiled_is_right(device: str, inputs: tuple[T, T]) -> None:
    compile_f1 = quickfuse.compile(f1)
    inp1, inp2 = (inp.to(device) for inp in inputs)
    for _ in range(2):
        assert same(f1, compile_f1, (inp1, inp2))
        assert same(f1, compile_f1, (-inp1, inp2))


def f2(x, y):  # TorchScript takes what has no annotation for a tensor
    return x + y


def test_f2_scripted_takes_no_int() -> None:
    script_f2 = torch.jit.script(f2)
    with pytest.raises(RuntimeError, match="Expected a value of type 'Tensor"):
        script_f2(torch.randn(5, 5), 3)


@pytest.mark.parametrize("device", DEVICES)
def test_f2_compiled_is_right(device: str) -> None:
    compile_f2 = quickfuse.compile(f2)
    x = torch.randn(5, 5, device=device)
    assert same(f2, compile_f2, (x, 3))
    assert same(f2, compile_f2, (x, 4))
    assert compile_f2.graph_count == 1, "another number is another argument"
    assert same(f2, compile_f2, (x, x))


def make_f3() -> Callable[[T], T]:
    scipy_fft = pytest.importorskip("scipy.fft")

    def f3(x):
        x = x * 2
        x = scipy_fft.dct(x.numpy())
        x = torch.from_numpy(x)
        x = x * 2
        return x

    return f3


def test_f3_traced_by_torchscript_is_silently_wrong(inputs: tuple[T, T]) -> None:
    f3 = make_f3()
    inp1, inp2 = inputs
    traced_f3 = torch.jit.trace(f3, (inp1,))
    assert not same(f3, traced_f3, (inp2,))


def test_f3_is_an_error_for_torchscript_and_fx() -> None:
    f3 = make_f3()
    with pytest.raises((RuntimeError, TypeError)):
        torch.jit.script(f3)
    with pytest.raises((TypeError, ValueError)):
        torch.fx.symbolic_trace(f3)


def test_f3_compiled_is_right(inputs: tuple[T, T]) -> None:
    f3 = make_f3()
    compile_f3 = quickfuse.compile(f3)
    for inp in inputs * 2:
        assert same(f3, compile_f3, (inp,))
    assert compile_f3.graph_count == 2, "before and after scipy"


# TorchDynamo and FX graphs ----------------------------------------------------------------------------------------


def custom_backend(gm: torch.fx.GraphModule, example_inputs: list[T]) -> Callable[..., Any]:
    print("custom backend called with FX graph:")
    gm.graph.print_tabular()
    return gm.forward


def tables(printed: str) -> list[list[str]]:
    """The graphs that `custom_backend` printed: for each row the kind of node and its name."""
    graphs = printed.split("custom backend called with FX graph:")[1:]
    return [[" ".join(line.split()[:2]) for line in graph.splitlines()[3:]] for graph in graphs]


def bar(a: T, b: T) -> T:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


@pytest.mark.parametrize("device", DEVICES)
def test_a_custom_backend_gets_the_graph(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tabulate")
    compiled = quickfuse.compile(foo, backend=custom_backend)
    args = torch.randn(10, 10, device=device), torch.randn(10, 10, device=device)
    for _ in range(3):
        assert same(foo, compiled, args)
    rows = ["placeholder x", "placeholder y", "call_function a", "call_function b", "call_function add", "output output"]
    assert sorted(tables(capsys.readouterr().out)[0]) == sorted(rows)


@pytest.mark.parametrize("device", DEVICES)
def test_bar_is_three_graphs(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tabulate")
    opt_bar = quickfuse.compile(bar, backend=custom_backend)
    inp1, inp2 = torch.randn(10, device=device), torch.rand(10, device=device) + 0.1
    for _ in range(2):
        assert same(bar, opt_bar, (inp1, inp2))
        assert same(bar, opt_bar, (inp1, -inp2))
    first, without_branch, branch = tables(capsys.readouterr().out)
    assert "call_function x" in first and "call_method sum_1" in first
    assert sorted(without_branch) == ["call_function mul", "output output", "placeholder b", "placeholder x"]
    assert sorted(branch) == ["call_function b_1", "call_function mul", "output output", "placeholder b", "placeholder x"]
    assert opt_bar.graph_count == 3


def test_backends_by_name() -> None:
    assert {"eager", "quickfuse"} <= set(quickfuse.list_backends())
    assert same(foo, quickfuse.compile(foo, backend="eager"), (torch.randn(10), torch.randn(10)))


def test_explain_bar() -> None:
    quickfuse.reset()
    explain_output = quickfuse.explain(bar)(torch.randn(10), torch.randn(10))
    assert (explain_output.graph_count, explain_output.graph_break_count) == (2, 1)
    printed = str(explain_output)
    assert "if b.sum() < 0:" in printed and "torch.where" in printed


def test_fullgraph_raises_on_bar() -> None:
    opt_bar = quickfuse.compile(bar, fullgraph=True)
    with pytest.raises(quickfuse.errors.GraphBreak) as raised:
        opt_bar(torch.randn(10), torch.randn(10))
    line = bar.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}: a branch on a tensor's value" in str(raised.value)
    assert "if b.sum() < 0:" in str(raised.value) and "hint: " in str(raised.value)


# DenseNet ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def densenet() -> torch.nn.Module:
    torch.manual_seed(0)
    model: torch.nn.Module = vision_models().densenet121()
    return model.eval()


def image(device: str) -> T:
    return torch.randn(1, 3, 32, 32, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_densenet_is_one_graph(device: str, densenet: torch.nn.Module) -> None:
    model = densenet.to(device)
    opt_model = quickfuse.compile(model, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(2):
            inp = image(device)
            torch.testing.assert_close(opt_model(inp), model(inp), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_densenet_in_a_custom_backend(
    device: str, densenet: torch.nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tabulate")
    model = densenet.to(device)
    opt_model = quickfuse.compile(model, backend=custom_backend)
    inp = image(device)
    torch.testing.assert_close(opt_model(inp), model(inp), rtol=1e-3, atol=1e-4)
    (table,) = tables(capsys.readouterr().out)
    assert table[0] == "placeholder x" and "placeholder self_features_conv0_weight" in table
    assert len([row for row in table if row.startswith("call_")]) > 400


# reset ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_reset_forgets_what_was_compiled(device: str) -> None:
    compiled = quickfuse.compile(foo)
    args = torch.randn(10, device=device), torch.randn(10, device=device)
    assert same(foo, compiled, args) and compiled.graph_count == 1
    quickfuse.reset()
    assert compiled.graph_count == 0
    assert same(foo, compiled, args) and compiled.graph_count == 1
