"""Compilers that the user brings: the graph that they get, their names, their failures; and ours in torch.compile."""

from __future__ import annotations

import importlib.metadata
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse import backends

T = torch.Tensor


class Recorder:
    """A backend that keeps what it gets."""

    def __init__(self) -> None:
        self.modules: list[torch.fx.GraphModule] = []
        self.inputs: list[list[Any]] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.modules.append(gm)
        self.inputs.append(example_inputs)
        return gm.forward

    def names(self, which: int = 0) -> list[str]:
        return [node.name for node in self.modules[which].graph.nodes]

    def nodes(self) -> dict[str, torch.fx.Node]:
        return {node.name: node for node in self.modules[0].graph.nodes}


@pytest.fixture
def registry() -> Iterator[None]:
    before = dict(backends._registered)
    yield
    backends._registered.clear()
    backends._registered.update(before)


# the graph --------------------------------------------------------------------------------------------------------


def test_nodes_have_the_names_of_variables() -> None:
    def function(x: T, scale: float) -> T:
        angle = torch.sin(x)
        for _ in range(2):
            angle = angle * scale
        left, right = angle.chunk(2)
        return left + right

    recorder = Recorder()
    quickfuse.compile(function, backend=recorder)(torch.randn(4), 2.0)
    assert recorder.names() == ["x", "scale", "angle", "angle_1", "angle_2", "chunk", "left", "right", "add", "output"]


def test_inner_functions_name_what_has_no_name_yet() -> None:
    def inner(v: T) -> T:
        doubled = v * 2
        return doubled

    def function(x: T) -> T:
        y = inner(x)
        return inner(y + 1)

    recorder = Recorder()
    quickfuse.compile(function, backend=recorder)(torch.randn(4))
    assert recorder.names() == ["x", "doubled", "add", "doubled_1", "output"]


def test_inputs_have_the_names_of_their_paths() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.settings = {"rate": 0.5}

        def forward(self, x: T, *, shift: T) -> T:
            return self.linear(x) * self.settings["rate"] + shift

    recorder = Recorder()
    with torch.no_grad():
        quickfuse.compile(Scaled(), backend=recorder)(torch.randn(2, 3), shift=torch.randn(3))
    placeholders = [node.name for node in recorder.modules[0].graph.nodes if node.op == "placeholder"]
    assert placeholders == ["x", "self_linear_weight", "self_linear_bias", "self_settings_rate", "shift"]


def test_a_value_with_the_name_of_an_argument() -> None:
    """Neither inputs by their path nor variables may take the place of an argument in the generated code."""

    class Options:
        lr = 2.0

    options = Options()

    def function(x: T, options_lr: float, y: float) -> T:
        z = x * options.lr
        y_ = z + y
        return y_ * options_lr

    compiled = quickfuse.compile(function)
    x = torch.randn(3)
    assert torch.allclose(compiled(x, 3.0, 4.0), function(x, 3.0, 4.0))
    assert compiled.native_reason is None and compiled.graph_count == 1


def test_every_node_has_its_source_line() -> None:
    def inner(v: T) -> T:
        return v.cos() * 2

    def function(x: T) -> T:
        y = x + 1
        return inner(y)

    recorder = Recorder()
    quickfuse.compile(function, backend=recorder)(torch.randn(4))
    nodes = recorder.nodes()
    first = function.__code__.co_firstlineno
    assert nodes["y"].meta["location"] == f"{__file__}:{first + 1}"
    assert nodes["x"].meta["location"] == f"{__file__}:{first + 1}"
    assert nodes["cos"].meta["location"] == f"{__file__}:{inner.__code__.co_firstlineno + 1}"
    trace = nodes["cos"].stack_trace
    assert trace is not None
    assert trace.splitlines() == [
        f'  File "{__file__}", line {first + 2}, in function',
        "    return inner(y)",
        f'  File "{__file__}", line {inner.__code__.co_firstlineno + 1}, in inner',
        "    return v.cos() * 2",
    ]
    readable = recorder.modules[0].print_readable(print_output=False)
    assert f"{__file__}:{first + 1} in function, code: y = x + 1" in readable
    assert 'y: "f32[4]" = x + 1' in readable


def test_example_inputs_are_those_of_the_call() -> None:
    def function(x: T, n: float, table: dict[str, T]) -> T:
        y = x * n
        if y.sum() > 0:
            return y + table["key"]
        return y

    recorder = Recorder()
    x, key = torch.rand(4), torch.rand(4)
    quickfuse.compile(function, backend=recorder)(x, 2.5, {"key": key})
    assert recorder.inputs[0][0] is x and recorder.inputs[0][1] == 2.5
    y, same_key = recorder.inputs[1]
    assert torch.equal(y, x * 2.5) and same_key is key


def test_example_inputs_are_let_go() -> None:
    compiled = quickfuse.compile(lambda x: x + 1, backend="eager")
    compiled(torch.randn(3))
    assert all(made.segment.examples == [] for made in compiled.specialisations)


def test_inputs_with_gradients() -> None:
    weight = torch.nn.Parameter(torch.randn(3))
    recorder = Recorder()
    compiled = quickfuse.compile(lambda x: (x * weight).sum(), backend=recorder)
    compiled(torch.ones(3)).backward()
    assert recorder.inputs[0][1] is weight
    assert torch.equal(weight.grad, torch.ones(3))  # type: ignore[arg-type]


def test_an_optimizer_under_a_custom_backend() -> None:
    weight, twin = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    weight.grad, twin.grad = torch.ones(3), torch.ones(3)
    recorder = Recorder()
    optimizer, eager = torch.optim.Adam([weight], lr=0.1), torch.optim.Adam([twin], lr=0.1)
    step = quickfuse.compile(optimizer.step, backend=recorder)
    for _ in range(3):
        step()
        eager.step()
    assert torch.allclose(weight, twin) and len(recorder.modules) == 1
    assert "self_param_groups_0_params_0" in recorder.names()


# names ------------------------------------------------------------------------------------------------------------


def test_register_a_function(registry: None) -> None:
    recorder = Recorder()

    def my_backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return recorder(gm, example_inputs)

    assert quickfuse.register_backend(my_backend) is my_backend
    quickfuse.register_backend(recorder, name="recorder")
    assert {"my_backend", "recorder"} <= set(quickfuse.list_backends())
    for name in ("my_backend", "recorder"):
        quickfuse.compile(lambda x: x + 1, backend=name)(torch.randn(3))
    assert len(recorder.modules) == 2


def test_register_by_decorator(registry: None) -> None:
    @quickfuse.register_backend
    def plain(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return gm.forward

    @quickfuse.register_backend(name="another")
    def named(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return gm.forward

    assert plain.__name__ == "plain" and named.__name__ == "named"
    assert {"plain", "another"} <= set(quickfuse.list_backends()) and "named" not in quickfuse.list_backends()


def test_names_that_cannot_be_registered() -> None:
    with pytest.raises(ValueError, match="'eager' is taken"):
        quickfuse.register_backend(lambda gm, inputs: gm, name="eager")
    with pytest.raises(ValueError, match="no __name__"):
        quickfuse.register_backend(Recorder())
    with pytest.raises(TypeError, match="callable"):
        quickfuse.register_backend(3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="eager, quickfuse"):
        quickfuse.compile(lambda x: x, backend="no such backend")
    with pytest.raises(ValueError, match="not an int"):
        quickfuse.compile(lambda x: x, backend=3)


class Published:
    """Stands for the entry points of installed packages."""

    def __init__(self, **loaders: Callable[[], Any]) -> None:
        self.loaders = loaders
        self.loaded: list[str] = []

    def __call__(self, group: str, name: str | None = None) -> Any:
        assert group == "torch_dynamo_backends"
        outer = self

        class Entry:
            def __init__(self, name: str) -> None:
                self.name, self.value = name, f"package:{name}"

            def load(self) -> Any:
                outer.loaded.append(self.name)
                return outer.loaders[self.name]()

        class Entries(list[Entry]):
            names = set(outer.loaders)

        return Entries(Entry(n) for n in self.loaders if name in (None, n))


def test_published_backends_are_loaded_when_asked_for(registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()

    def broken() -> Any:
        raise ImportError("no module named fast")

    published = Published(theirs=lambda: recorder, broken=broken)
    monkeypatch.setattr(importlib.metadata, "entry_points", published)
    assert {"eager", "quickfuse", "theirs", "broken"} <= set(quickfuse.list_backends()) and published.loaded == []
    for _ in range(2):
        quickfuse.compile(lambda x: x + 1, backend="theirs")(torch.randn(3))
    assert published.loaded == ["theirs"] and len(recorder.modules) == 2
    with pytest.raises(quickfuse.errors.BackendError, match=r"'broken', published as package:broken.*no module named fast"):
        quickfuse.compile(lambda x: x, backend="broken")


def test_backends_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(backends.QUICKFUSE)) is backends.QUICKFUSE
    assert pickle.loads(pickle.dumps(backends.EAGER)) is backends.EAGER


# failures ---------------------------------------------------------------------------------------------------------


def test_a_backend_that_raises() -> None:
    def failing(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        raise ZeroDivisionError("no luck")

    with pytest.raises(quickfuse.errors.BackendError, match="'failing' raised ZeroDivisionError: no luck") as raised:
        quickfuse.compile(lambda x: x + 1, backend=failing)(torch.randn(3))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("returned", "named"), [(None, "None"), (3, "an int")])
def test_a_backend_that_returns_no_callable(returned: Any, named: str) -> None:
    def forgetful(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        return returned

    with pytest.raises(quickfuse.errors.BackendError, match=f"'forgetful' returned {named}, not a callable"):
        quickfuse.compile(lambda x: x + 1, backend=forgetful)(torch.randn(3))


def test_what_a_backend_made_returns_no_tuple() -> None:
    def lonely(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda *inputs: gm.forward(*inputs)[0]

    with pytest.raises(quickfuse.errors.BackendError, match="'lonely' made returned a Tensor, not the tuple of outputs"):
        quickfuse.compile(lambda x: x + 1, backend=lonely)(torch.randn(1, 3))


def test_what_a_backend_made_raises_later() -> None:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            raise RuntimeError("at run time")

        return run

    def changes(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    def breaks(x: torch.Tensor) -> torch.Tensor:
        quickfuse.graph_break()
        return x + 1

    for function in (lambda x: x + 1, changes, breaks):
        compiled = quickfuse.compile(function, backend=backend)
        for _ in range(2):
            with pytest.raises(quickfuse.errors.BackendError, match="made raised RuntimeError: at run time") as raised:
                compiled(torch.randn(3))
            assert isinstance(raised.value.__cause__, RuntimeError)


def test_the_programs_own_failure_is_not_the_backends() -> None:
    """The graph raises as well: the user gets that exception, with their own traceback."""
    compiled = quickfuse.compile(lambda x, index: x[index] + 1, backend=lambda gm, example_inputs: gm.forward)
    compiled(torch.ones(3), torch.tensor([1]))
    with pytest.raises(IndexError, match="out of bounds") as raised:
        compiled(torch.ones(3), torch.tensor([7]))
    assert raised.traceback[-1].frame.code.name == "<lambda>"


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda gm: lambda *inputs: (*gm(*inputs), 1), "a tuple of length 3, not the graph's 2 outputs"),
        (lambda gm: lambda *inputs: gm(*inputs)[:1], "a tuple of length 1, not the graph's 2 outputs"),
        (lambda gm: lambda *inputs: (None, gm(*inputs)[1]), "None as output 0, which is a tensor"),
        (lambda gm: lambda *inputs: (gm(*inputs)[0], "text"), "a str as output 1, which is a tensor"),
        (lambda gm: lambda *inputs: (gm(*inputs)[0], torch.ones(5)), r"output 1 as torch.float32 of shape \(5,\) on cpu"),
        (lambda gm: lambda *inputs: (gm(*inputs)[0].double(), gm(*inputs)[1]), "output 0 as torch.float64"),
        (lambda gm: lambda: (1, 2), "raised TypeError"),
    ],
)
def test_what_a_backend_made_returns_nonsense(made: Any, named: str) -> None:
    def strange(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        return made(gm)

    compiled = quickfuse.compile(lambda x: (x + 1, x * 2), backend=strange)
    for _ in range(2):
        with pytest.raises(quickfuse.errors.BackendError, match=f"'strange' made (returned )?{named}"):
            compiled(torch.ones(3))


# in torch.compile -------------------------------------------------------------------------------------------------


def for_torch(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    made = backends.for_torch_compile(gm, example_inputs)
    for_torch.made.append(made)  # type: ignore[attr-defined]
    return made


@pytest.fixture
def made() -> Iterator[list[Any]]:
    for_torch.made = []  # type: ignore[attr-defined]
    yield for_torch.made  # type: ignore[attr-defined]
    torch._dynamo.reset()


def test_published_for_torch_compile() -> None:
    found = importlib.metadata.entry_points(group="torch_dynamo_backends", name="quickfuse")
    if not found:
        pytest.skip("quickfuse is not installed, only on the path")
    assert next(iter(found)).load() is backends.for_torch_compile


def test_function_in_torch_compile(made: list[Any]) -> None:
    def function(x: T, y: T) -> T:
        return torch.sin(x) + torch.cos(y) * x.shape[0]

    compiled = torch.compile(function, backend=for_torch)
    x, y = torch.randn(10, 10), torch.randn(10, 10)
    for _ in range(2):
        assert torch.allclose(compiled(x, y), function(x, y), atol=1e-5)
    assert [specialisation.kernels for specialisation in made[0].specialisations] == [1]


def test_training_in_torch_compile(made: list[Any]) -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.BatchNorm1d(4))

    ours, eager = model(), model()
    compiled = torch.compile(ours, backend=for_torch)
    for _ in range(2):
        x = torch.randn(5, 4)
        compiled(x).square().sum().backward()
        eager(x).square().sum().backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)  # sums of what cancels out
    torch.testing.assert_close(ours.state_dict(), eager.state_dict())


def test_symbolic_sizes_in_torch_compile(made: list[Any]) -> None:
    def function(x: T, n: float) -> T:
        return x * n + x.shape[0]

    compiled = torch.compile(function, backend=for_torch, dynamic=True)
    for size in (3, 4, 5):
        x = torch.randn(size)
        assert torch.allclose(compiled(x, size + 0.5), function(x, size + 0.5))
        assert torch.allclose(compiled(x, size), function(x, size))


def test_aten_graphs_run_as_they_are() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.sin.default, (x,)),))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    assert backends.for_torch_compile(gm, [torch.ones(2)]) == gm.forward


def test_options_of_torch_compile() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(ValueError, match="unknown options bogus"):
        backends.for_torch_compile(gm, [], options={"bogus": 1})
    with pytest.raises(ValueError, match="unknown mode"):
        backends.for_torch_compile(gm, [], mode="bogus")
