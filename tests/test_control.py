"""disable, graph_break, is_compiling, allow_in_graph and mark_dynamic; and PyTorch's own forms of them in user code."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse import is_compiling
from quickfuse.pipeline.compiled import Compiled

T = torch.Tensor


def reasons(compiled: Any) -> list[str]:
    assert isinstance(compiled, Compiled)
    return [broken.reason for broken in compiled.breaks]


def x() -> T:
    return torch.arange(1.0, 5.0)


# disable ----------------------------------------------------------------------------------------------------------


def helper(v: T) -> tuple[T, bool]:
    return v * 2, is_compiling()


@pytest.mark.parametrize(
    "disabled",
    [
        quickfuse.disable(helper),
        quickfuse.disable()(helper),
        quickfuse.disable(reason="slow to compile")(helper),
        quickfuse.disable(helper, recursive=False),
        quickfuse.disable(quickfuse.compile(helper)),
    ],
    ids=["function", "empty", "reason", "not recursive", "compiled"],
)
def test_a_disabled_function_is_one_step_in_python(disabled: Callable[[T], tuple[T, bool]]) -> None:
    def function(v: T) -> tuple[T, bool, bool]:
        v = v + 1
        v, inside = disabled(v)
        return v + 1, inside, is_compiling()

    compiled = quickfuse.compile(function)
    for _ in range(3):
        v, inside, outside = compiled(x())
        assert torch.equal(v, (x() + 1) * 2 + 1)
        assert (inside, outside) == (False, True)
    assert compiled.graph_count == 2
    (reason,) = reasons(compiled)
    assert reason.startswith("helper, which quickfuse.disable keeps out of graphs")


def test_the_reason_is_shown() -> None:
    natively = quickfuse.disable(reason="talks to a database")(helper)
    with pytest.raises(quickfuse.errors.GraphBreak, match=r"quickfuse.disable keeps out of graphs \(talks to a database\)"):
        quickfuse.compile(lambda v: natively(v)[0] + 1, fullgraph=True)(x())


def test_disabled_names_and_arguments() -> None:
    @quickfuse.disable
    def documented(a: int, *rest: int, key: int = 0) -> tuple[Any, ...]:
        """A text."""
        return a, rest, key

    assert documented(1, 2, key=3) == (1, (2,), 3)
    assert documented.__name__ == "documented" and documented.__doc__ == "A text."
    with pytest.raises(TypeError, match="callable"):
        quickfuse.disable(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="functions and modules"):
        quickfuse.disable(dict)


def test_a_disabled_method() -> None:
    class Model:
        factor = 3

        @quickfuse.disable
        def scale(self, v: T) -> T:
            return v * self.factor

        def run(self, v: T) -> T:
            return self.scale(v + 1) - 1

    compiled = quickfuse.compile(Model().run)
    assert torch.equal(compiled(x()), (x() + 1) * 3 - 1)
    assert [r.partition(",")[0].rpartition(".")[2] for r in reasons(compiled)] == ["scale"]


def test_compiling_a_disabled_function_runs_it() -> None:
    compiled = quickfuse.compile(quickfuse.disable(helper))
    assert compiled(x())[1] is False and compiled.graph_count == 0


def test_a_wrapper_of_a_disabled_function_is_captured() -> None:
    natively = quickfuse.disable(helper)

    @functools.wraps(natively)
    def wrapper(v: T) -> Any:
        return natively(v + 1)[0], is_compiling()

    v, inside = quickfuse.compile(lambda v: wrapper(v))(x())
    assert inside and torch.equal(v, (x() + 1) * 2)


def test_recursive_or_not() -> None:
    inner = quickfuse.compile(lambda v: (v + 1, is_compiling()))
    assert quickfuse.disable(lambda v: inner(v))(x())[1] is False
    assert quickfuse.disable(lambda v: inner(v), recursive=False)(x())[1] is True


def test_inside_of_disable_everything_runs_natively() -> None:
    compiled = quickfuse.compile(lambda v: (v + 1, is_compiling()))
    with quickfuse.disable():
        assert compiled(x())[1] is False
        with quickfuse.disable():
            assert compiled(x())[1] is False
        assert compiled(x())[1] is False
    assert compiled.graph_count == 0
    assert compiled(x())[1] is True
    with pytest.raises(ZeroDivisionError), quickfuse.disable():
        raise ZeroDivisionError
    with quickfuse.disable():
        assert compiled(x())[1] is False, "compiled before"
    assert compiled(x())[1] is True


def test_other_threads_are_not_disabled() -> None:
    compiled = quickfuse.compile(lambda v: (v + 1, is_compiling()))
    found: list[bool] = []
    with quickfuse.disable():
        thread = threading.Thread(target=lambda: found.append(compiled(x())[1]))
        thread.start()
        thread.join()
    assert found == [True]


def test_disable_in_captured_code() -> None:
    def function(v: T) -> tuple[T, bool, bool, bool]:
        before = is_compiling()
        v = v + 1
        with quickfuse.disable():
            for k in range(3):
                v = v * (k + 1)
            inside = is_compiling()
        v = v - 1
        return v, before, inside, is_compiling()

    compiled = quickfuse.compile(function)
    for _ in range(3):
        result = compiled(x())
        assert torch.equal(result[0], (x() + 1) * 6 - 1) and result[1:] == (True, False, True)
    assert compiled.graph_count == 2
    assert "quickfuse.disable()" in reasons(compiled)


def test_disable_in_captured_code_with_other_ways_out() -> None:
    def function(v: T, n: int) -> Any:
        for k in range(3):
            with quickfuse.disable(reason="by hand"):
                try:
                    v = v + 1
                    if k == n:
                        return v, "returned"
                    if n == 7:
                        raise KeyError(n)
                except KeyError:
                    break
                finally:
                    v = v * 2
        return v, is_compiling()

    compiled = quickfuse.compile(function)
    for n in (0, 1, 7, 5, 7, 0):
        mine, theirs = compiled(x(), n), function(x(), n)
        assert torch.equal(mine[0], theirs[0]) and (mine[1] == "returned") == (theirs[1] == "returned")
    assert quickfuse.control.disabled.depth == 0


def test_disabled_modules() -> None:
    inner = torch.nn.Linear(4, 4)
    natively = quickfuse.disable(inner)
    assert torch.equal(natively(x()), inner(x()))
    assert list(natively.state_dict()) == ["weight", "bias"]
    compiled = quickfuse.compile(lambda v: natively(v + 1) + 1)
    assert torch.equal(compiled(x()), inner(x() + 1) + 1)
    assert reasons(compiled) == ["Linear, which quickfuse.disable keeps out of graphs"]


def test_disabled_by_pytorch() -> None:
    @torch.compiler.disable
    def natively(v: T) -> tuple[T, bool]:
        return v * 2, is_compiling()

    compiled = quickfuse.compile(lambda v: (natively(v + 1), is_compiling()))
    (v, inside), outside = compiled(x())
    assert torch.equal(v, (x() + 1) * 2) and (inside, outside) == (False, True)
    assert "torch.compiler.disable keeps out of graphs" in reasons(compiled)[0]
    itself = quickfuse.compile(natively)
    assert itself(x())[1] is False and itself.graph_count == 0


def test_a_wrapper_around_what_pytorch_disabled_is_compiled() -> None:
    @torch.compiler.disable
    def natively(v: T) -> T:
        return v * 2

    @functools.wraps(natively)  # copies the attributes that say so
    def wrapper(v: T) -> tuple[T, bool]:
        return natively(v + 1) + 1, is_compiling()

    compiled = quickfuse.compile(wrapper)
    v, inside = compiled(x())
    assert torch.equal(v, (x() + 1) * 2 + 1) and inside and compiled.graph_count == 2


# graph_break and is_compiling -------------------------------------------------------------------------------------


def dynamo_break() -> None:
    torch._dynamo.graph_break()


@pytest.mark.parametrize(
    ("end", "name"), [(quickfuse.graph_break, "quickfuse.graph_break()"), (dynamo_break, "graph_break")]
)
def test_graph_break(end: Callable[[], None], name: str) -> None:
    def function(v: T) -> T:
        v = v + 1
        end()
        return v * 2

    assert torch.equal(function(x()), (x() + 1) * 2), "nothing natively"
    compiled = quickfuse.compile(function)
    for _ in range(3):
        assert torch.equal(compiled(x()), (x() + 1) * 2)
    assert compiled.graph_count == 2
    (reason,) = reasons(compiled)
    assert name in reason
    with pytest.raises(quickfuse.errors.GraphBreak, match="graph_break"):
        quickfuse.compile(function, fullgraph=True)(x())


@pytest.mark.parametrize("ask", [quickfuse.is_compiling, torch.compiler.is_compiling])
def test_is_compiling(ask: Callable[[], bool]) -> None:
    assert ask() is False
    compiled = quickfuse.compile(lambda v: v + 1 if ask() else v - 1, fullgraph=True)
    assert torch.equal(compiled(x()), x() + 1)
    assert ask() is False


def test_compiled_functions_in_compiled_functions() -> None:
    """The inner one becomes a part of the outer one's graph."""
    inner = quickfuse.compile(lambda v: v.sin(), backend="eager")
    module = quickfuse.compile(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()))

    class Model:
        @quickfuse.compile
        def method(self, v: T) -> T:
            return v * 2

    model = Model()
    compiled = quickfuse.compile(lambda v: model.method(module(inner(v) + 1)) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(x()), (x().sin() + 1).relu().tanh() * 2 + 1)
    assert compiled.graph_count == 1 and inner.graph_count == 0


# allow_in_graph ---------------------------------------------------------------------------------------------------


@quickfuse.allow_in_graph
def opaque(a: T, b: T, *, scale: float = 1.0) -> tuple[T, T]:
    if len(a.shape) != 1:
        raise ValueError("vectors only")
    return a * b * scale, torch.cat([a, b])


def opaque_nodes(target: Any = opaque) -> Any:
    """A backend that counts the nodes which call `target`."""

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        backend.found += sum(node.target is target for node in gm.graph.nodes)  # type: ignore[attr-defined]
        return gm.forward

    backend.found = 0  # type: ignore[attr-defined]
    return backend


def test_allowed_functions_are_one_node() -> None:
    def function(v: T) -> T:
        product, both = opaque(v, v + 1, scale=2.0)
        return product.sin() + both[:4]

    expected = (x() * (x() + 1) * 2).sin() + x()
    backend = opaque_nodes()
    assert torch.equal(quickfuse.compile(function, fullgraph=True, backend=backend)(x()), expected)
    assert backend.found == 1
    compiled = quickfuse.compile(function, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x()), expected)


def test_allowed_by_pytorch() -> None:
    @torch._dynamo.allow_in_graph
    def allowed(v: T) -> T:
        return v * 2

    backend = opaque_nodes(allowed)
    compiled = quickfuse.compile(lambda v: allowed(v + 1), fullgraph=True, backend=backend)
    assert torch.equal(compiled(x()), (x() + 1) * 2) and backend.found == 1


def test_allowed_functions_run_each_time() -> None:
    calls: list[str] = []

    @quickfuse.allow_in_graph
    def counting(v: T) -> T:
        calls.append(str(v.device))
        return v + len([c for c in calls if c == "cpu"])

    compiled = quickfuse.compile(lambda v: counting(v * 1), fullgraph=True)
    for k in range(1, 4):
        assert torch.equal(compiled(x()), x() + k)
    assert calls == ["meta", "cpu", "cpu", "cpu"]


def test_allowed_with_gradients() -> None:
    weight = torch.ones(4, requires_grad=True)
    compiled = quickfuse.compile(lambda v: opaque(v, weight * 3)[0].sum(), fullgraph=True)
    compiled(x()).backward()
    assert torch.equal(weight.grad, x() * 3)  # type: ignore[arg-type]


def reads_data(v: T) -> T:
    return v * v.sum().item()


def changes(v: T) -> T:
    return v.add_(1)


def gives_a_number(v: T) -> int:
    return v.dim() + 3


def gives_a_view(v: T) -> T:
    return v[1:]


@pytest.mark.parametrize("function", [reads_data, changes, gives_a_number, gives_a_view])
def test_what_cannot_be_allowed_breaks(function: Callable[[T], Any]) -> None:
    allowed = quickfuse.allow_in_graph(function)
    compiled = quickfuse.compile(lambda v: allowed(v * 2) + 1)
    for _ in range(2):
        assert torch.equal(torch.as_tensor(compiled(x())), torch.as_tensor(function(x() * 2) + 1))
    assert any("allowed in graphs" in reason for reason in reasons(compiled))


def test_functions_made_anew_are_not_mixed_up() -> None:
    def function(v: T, factor: float) -> T:
        @quickfuse.allow_in_graph
        def scaled(a: T) -> T:
            return a * factor

        return scaled(v) + 1

    compiled = quickfuse.compile(function)
    for factor in (2.0, 3.0, 4.0):
        assert torch.equal(compiled(x(), factor), x() * factor + 1)

    def make(factor: float) -> Callable[[T], T]:
        return quickfuse.allow_in_graph(lambda a: a * factor)

    other = quickfuse.compile(lambda v, scaled: scaled(v) + 1)
    for factor in (2.0, 3.0, 4.0):
        assert torch.equal(other(x(), make(factor)), x() * factor + 1)


def test_only_functions_can_be_allowed() -> None:
    with pytest.raises(TypeError, match="needs a function, not a Linear"):
        quickfuse.allow_in_graph(torch.nn.Linear(3, 3))


# mark_dynamic -----------------------------------------------------------------------------------------------------


def test_mark_dynamic_changes_no_result() -> None:
    compiled = quickfuse.compile(lambda v: v * v.shape[0])
    for size in (3, 4, 5):
        v = torch.randn(size, 2)
        quickfuse.mark_dynamic(v, 0)
        quickfuse.mark_dynamic(v, [0, -1])
        assert torch.allclose(compiled(v), v * size)

    def marking(v: T) -> T:
        quickfuse.mark_dynamic(v, 0)
        return v + 1

    assert torch.equal(quickfuse.compile(marking, fullgraph=True)(x()), x() + 1)


def test_mark_dynamic_checks_its_arguments() -> None:
    with pytest.raises(IndexError, match="dimension 1 of a tensor that has 1"):
        quickfuse.mark_dynamic(x(), 1)
    with pytest.raises(TypeError, match="not a str"):
        quickfuse.mark_dynamic(x(), ["0"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="needs a tensor"):
        quickfuse.mark_dynamic(3, 0)  # type: ignore[arg-type]


def test_a_function_that_is_never_captured_has_no_frame_of_ours_below_it() -> None:
    def below(x: Any) -> str:
        return sys._getframe(2).f_code.co_name  # below the frame of `disable` itself

    compiled = quickfuse.compile(quickfuse.disable(below))
    compiled(1)
    assert compiled(1) == sys._getframe().f_code.co_name
    compiled.reset()
    compiled(1)
    assert compiled(1) == sys._getframe().f_code.co_name
