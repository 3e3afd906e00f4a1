"""What other tools see of compiled functions: inspect, pickle, torch.jit, torch.fx, torch.func, torch.compile, profilers."""

from __future__ import annotations

import asyncio
import collections
import copy
import functools
import gc
import inspect
import linecache
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import quickfuse
from quickfuse import config, launch

T = torch.Tensor


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", True)


def double(x: T, scale: float = 2.0, *, shift: int = 0) -> T:
    """Twice."""
    return (x * scale).sin() + x.sum() + shift


def plain(x: T) -> T:
    return x * 2 + 1


@quickfuse.compile
def compiled_double(x: T) -> T:
    return x * 2


# inspect, pickle, methods -----------------------------------------------------------------------------------------


async def a_coroutine(x: T) -> T:
    return x + 1


def a_generator(x: T) -> Iterator[T]:
    yield x + 1


async def an_async_generator(x: T) -> Any:
    yield x + 1


@pytest.mark.parametrize("function", [double, a_coroutine, a_generator, an_async_generator])
def test_inspect(function: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(function)
    for question in (
        inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.signature,
        inspect.getdoc, inspect.getsource, asyncio.iscoroutinefunction, inspect.isclass, inspect.ismethod, callable,
    ):  # fmt: skip
        assert question(compiled) == question(function), question.__name__
    assert compiled.__wrapped__ is function and compiled.__name__ == function.__name__
    assert compiled.__defaults__ == function.__defaults__ and compiled.__kwdefaults__ == function.__kwdefaults__

    class Owner:
        method = compiled

    assert inspect.iscoroutinefunction(Owner().method) == inspect.iscoroutinefunction(function)


def test_coroutines_and_generators_run() -> None:
    assert asyncio.run(quickfuse.compile(a_coroutine)(torch.ones(1))).item() == 2
    assert next(quickfuse.compile(a_generator)(torch.ones(1))).item() == 2


def test_pickle_and_copy() -> None:
    assert pickle.loads(pickle.dumps(compiled_double)) is compiled_double
    again = pickle.loads(pickle.dumps(quickfuse.compile(double, fullgraph=True)))
    assert again.settings.fullgraph and torch.equal(again(torch.ones(2)), double(torch.ones(2)))
    assert copy.copy(compiled_double) is compiled_double
    assert torch.equal(copy.deepcopy(compiled_double)(torch.ones(1)), torch.full((1,), 2.0))


class Model:
    scale = 3.0

    @quickfuse.compile
    def method(self, x: T) -> T:
        return x * self.scale

    @classmethod
    def of_class(cls, x: T) -> T:
        return x * cls.scale

    def __call__(self, x: T, shift: float = 0.0) -> T:
        return x * self.scale + shift


def test_compiled_twice() -> None:
    """A method that is compiled already, a compiled function, a compiled module."""
    x = torch.ones(2)
    for compiled in (
        quickfuse.compile(Model().method), quickfuse.compile(quickfuse.compile(Model().method)),
        quickfuse.compile(Model.of_class), quickfuse.compile(Model().__call__),
    ):  # fmt: skip
        assert torch.equal(compiled(x), x * 3) and compiled.graph_count == 1
    linear = nn.Linear(2, 2)
    twice = quickfuse.compile(quickfuse.compile(linear))
    assert torch.equal(twice(x), linear(x)) and list(twice.state_dict()) == ["weight", "bias"]


def test_callables_that_are_no_functions() -> None:
    """Objects with `__call__` and `functools.partial` are captured: what they call is Python code."""
    x = torch.ones(2)
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (Model(), (x,)), (functools.partial(double, scale=3.0), (x,)), (functools.partial(double, shift=1), (x,)),
        (functools.partial(Model(), x), ()),
    ]  # fmt: skip
    for function, args in calls:
        compiled = quickfuse.compile(function, fullgraph=True)
        assert torch.allclose(compiled(*args), function(*args)) and compiled.graph_count == 1
    model = Model()
    compiled = quickfuse.compile(model)
    compiled(x)
    model.scale = 5.0
    assert torch.equal(compiled(x, shift=1.0), x * 5 + 1)


@pytest.mark.parametrize("function", [torch.sin, len, print, str.upper], ids=["sin", "len", "print", "upper"])
def test_callables_without_python_code(function: Callable[..., Any]) -> None:
    """They run as they are; under `fullgraph` there is no graph of them to be had."""
    argument: Any = "a" if function is str.upper else torch.ones(2)
    assert str(quickfuse.compile(function)(argument)) == str(function(argument))
    with pytest.raises(quickfuse.errors.GraphBreak, match="a callable without Python code"):
        quickfuse.compile(function, fullgraph=True)(argument)


# other tracers ----------------------------------------------------------------------------------------------------


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = quickfuse.compile(nn.Linear(2, 2))

    def forward(self, x: T) -> T:
        return self.linear(x) + 1


def warm(function: Any, called_before: bool, x: T) -> Any:
    compiled = quickfuse.compile(function)
    if called_before:
        compiled(x)
    return compiled


class Own(nn.Module):
    """Says more of itself than `nn.Module` does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.moved = nn.Linear(3, 3), 0
        self.layer.weight.data.fill_(0.25)
        self.layer.bias.data.zero_()

    def forward(self, x: T) -> T:
        return self.layer(x) + sum(buffer.sum() for buffer in self.buffers())

    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.moved += 1
        return super().to(*args, **kwargs)

    def get_extra_state(self) -> Any:
        return {"moved": self.moved}

    def set_extra_state(self, state: Any) -> None:
        self.moved = state["moved"]

    def extra_repr(self) -> str:
        return "its own"


def _changed_from_outside(module: Any) -> list[Any]:
    x = torch.ones(2, 3)
    seen = [module(x)]
    module.register_buffer("ema", torch.ones(1))
    module.register_parameter("scale", nn.Parameter(torch.ones(1)))
    module.add_module("head", nn.ReLU())
    module.register_module("tail", nn.Identity())
    seen += [module(x), [name for name, _ in module.named_parameters()], [name for name, _ in module.named_modules()]]
    seen += [module.to(torch.float32) is module, module.eval() is module, module.requires_grad_(False) is module]
    seen += [module.get_submodule("") is module, module.moved, module.get_extra_state(), module.extra_repr()]
    torch.nn.utils.prune.l1_unstructured(module.layer, "weight", amount=1)
    seen += [module(x), list(module.state_dict())]
    module.set_submodule("layer", nn.Linear(3, 3, bias=False))
    module.layer.weight.data.fill_(0.5)
    return [*seen, module(x)]


def test_methods_of_modules() -> None:
    wanted, got = _changed_from_outside(Own()), _changed_from_outside(quickfuse.compile(Own()))
    for eager, compiled in zip(wanted, got, strict=True):
        if isinstance(eager, T):
            torch.testing.assert_close(compiled, eager)
        else:
            assert compiled == eager
    weights = [nn.utils.weight_norm(make(nn.Linear(3, 3))) for make in (quickfuse.compile, lambda module: module)]
    weights[1].load_state_dict(weights[0].state_dict())
    torch.testing.assert_close(weights[0](torch.ones(2, 3)), weights[1](torch.ones(2, 3)))


@pytest.mark.parametrize("called_before", [False, True])
def test_torch_jit(called_before: bool) -> None:
    x, y = torch.ones(1, 2), torch.full((1, 2), 3.0)

    def breaks(x: T) -> T:
        quickfuse.graph_break()
        return x.sin() if x.sum() > 0 else x

    for function in (lambda x: double(x), breaks, nn.Linear(2, 2), Inner()):
        compiled = warm(function, called_before, x)
        traced = torch.jit.trace(compiled, x, check_trace=False)
        assert torch.equal(traced(y), function(y))
        assert torch.allclose(compiled(y), function(y))
    factory = warm(lambda n: torch.ones(2) * n, called_before, 3.0)  # type: ignore[arg-type]
    assert torch.equal(torch.jit.trace(lambda x: factory(3.0) + x, x)(y), y + 3)
    scripted = torch.jit.script(warm(nn.Linear(2, 2), called_before, x))
    assert isinstance(scripted, torch.jit.ScriptModule)
    assert torch.equal(torch.jit.script(warm(plain, called_before, x))(y), plain(y))


@pytest.mark.parametrize("called_before", [False, True])
def test_torch_fx(called_before: bool) -> None:
    x, y = torch.ones(1, 2), torch.full((1, 2), 3.0)
    compiled = warm(double, called_before, x)
    traced = torch.fx.symbolic_trace(lambda x: compiled(x) + 1)
    assert torch.equal(traced(y), double(y) + 1) and len(traced.graph.nodes) == 8
    assert torch.equal(make_fx(warm(plain, called_before, x))(x)(y), plain(y))
    inner = Inner()
    assert torch.equal(torch.fx.symbolic_trace(inner)(y), inner(y))
    with pytest.raises(TypeError, match="cannot trace a compiled module"):
        torch.fx.symbolic_trace(quickfuse.compile(nn.Linear(2, 2)))
    exported = torch.export.export(inner, (x,), strict=False)
    assert torch.equal(exported.module()(y), inner(y))
    assert torch.allclose(compiled(y), double(y)) and compiled.graph_count == 1


@pytest.mark.parametrize("called_before", [False, True])
def test_torch_func(called_before: bool) -> None:
    """Also with tensors that look like those that were compiled for; and the function is compiled afterwards as usual."""
    x, y = torch.ones(2), torch.rand(2)
    compiled = warm(double, called_before, x)
    func: Any = torch.func
    for transform in (
        lambda f: func.vmap(f)(torch.stack([x, y])), lambda f: func.grad(lambda z: f(z).sum())(y),
        lambda f: func.jvp(f, (y,), (x,)), lambda f: func.functionalize(f)(y), lambda f: func.vjp(f, y)[1](x),
        lambda f: func.jacrev(f)(y), lambda f: func.hessian(f)(y),
    ):  # fmt: skip
        torch.testing.assert_close(transform(compiled), transform(double))
    assert torch.allclose(compiled(y), double(y)) and compiled.graph_count == 1


# torch.compile ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("calls_before", [0, 50])
def test_torch_compile_around(measured: bool, calls_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls compiled code as it is: it does not follow the compiler, in no thread of execution (backward is one), nor
    what finds out whether compiled code is worth running."""
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", measured)

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    compiled, model, inner = quickfuse.compile(double), Model(), Inner()
    for _ in range(calls_before):
        compiled(torch.ones(2)), model.method(torch.ones(1, 2)), inner(torch.ones(1, 2))

    def gradients(x: T) -> T:
        return torch.autograd.grad(compiled(x * 1.0).sum(), x)[0] * 3

    try:
        for function, wanted in (
            (lambda x: compiled(x) * 3, lambda x: double(x) * 3), (lambda x: model.method(x) * 3, lambda x: x * 9),
            (inner, lambda x: nn.functional.linear(x, inner.linear.weight, inner.linear.bias) + 1),
            (gradients, lambda x: torch.autograd.grad(double(x * 1.0).sum(), x)[0] * 3),
        ):  # fmt: skip
            graphs: list[Any] = []
            x = torch.ones(1, 2, requires_grad=True)
            around = torch.compile(function, backend=backend)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                for _ in range(2):
                    torch.testing.assert_close(around(x), wanted(x))
            assert not [w for w in seen if "Dynamo" in str(w.message)] and len(graphs) <= 4
    finally:
        torch._dynamo.reset()


# the profiler -----------------------------------------------------------------------------------------------------


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: T, *, scale: float = 2.0) -> dict[str, Any]:
        return {"rows": self.layer(x).relu() * scale, "rest": (x.sum(), scale)}


def test_modules_of_torch_export() -> None:
    x = torch.linspace(-1, 1, 12).view(3, 4)
    rows = torch.export.Dim("rows")
    program = torch.export.export(Parts(), (x,), {"scale": 2.0}, dynamic_shapes=({0: rows}, None))
    module = program.module()
    compiled = quickfuse.compile(module, fullgraph=True)
    for given in (x, x + 1, torch.ones(5, 4)):
        torch.testing.assert_close(compiled(given, scale=2.0), module(given, scale=2.0))
    for wrong in (torch.ones(3, 5), [x]):
        with pytest.raises(Exception) as eager:
            module(wrong, scale=2.0)
        with pytest.raises(type(eager.value)) as found:
            quickfuse.compile(module)(wrong, scale=2.0)
        assert str(found.value) == str(eager.value)


def test_blocks_for_torch_compile() -> None:
    from torch._dynamo.decorators import patch_dynamo_config

    options = patch_dynamo_config(capture_scalar_outputs=True)

    @options
    def decorated(x: T) -> T:
        return x.sin() + 1

    def with_breaks(x: T) -> T:
        for k in range(3):
            with options:
                if x.sum() > 0:
                    x = x + 1
                if k == 1:
                    continue
            x = x * 2
        with torch._dynamo.error_on_graph_break(False):
            print(end=str(x.tolist())[:0])
        return x * 2

    x, before = torch.linspace(-1, 1, 12), torch._dynamo.config.capture_scalar_outputs
    for function in (decorated, with_breaks):
        compiled = quickfuse.compile(function, fullgraph=function is decorated)
        for k in range(60):
            torch.testing.assert_close(compiled(x + k % 3), function(x + k % 3))
            assert torch._dynamo.config.capture_scalar_outputs == before


def test_torch_compile_inside() -> None:
    class WithMethods:
        scale = 2.0

        @torch.compile(backend="eager")
        def scaled(self, x: T) -> T:
            return x * self.scale + 1

        @staticmethod
        @torch.compile(backend="eager", fullgraph=True)
        def doubled(x: T) -> T:
            return x * 2

    x, owner = torch.linspace(-1, 1, 12).view(3, 4), WithMethods()
    module = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    decorated = torch.compile(plain, backend="eager")
    as_it_is = module._orig_mod
    disabled = torch.compiler.disable(decorated)

    def inside(x: T) -> T:
        return module(decorated(x) + owner.scaled(x)) + WithMethods.doubled(x)

    def by_hand(x: T) -> T:
        return as_it_is(plain(x) + x * owner.scale + 1) + x * 2

    compiled = quickfuse.compile(inside, fullgraph=True)
    torch.testing.assert_close(compiled(x), by_hand(x))
    hook = module.register_forward_hook(lambda module, inputs, output: output * 2)
    torch.testing.assert_close(compiled(x), 2 * by_hand(x) - x * 2)
    torch.testing.assert_close(quickfuse.compile(module)(x), 2 * as_it_is(x))
    hook.remove()
    torch.testing.assert_close(compiled(x), by_hand(x))
    for outer, eager in ((module, as_it_is), (decorated, plain), (owner.scaled, lambda x: x * 2 + 1)):
        outermost = quickfuse.compile(outer, fullgraph=True)
        torch.testing.assert_close(outermost(x), eager(x))
        assert quickfuse.explain(outer)(x).graph_count == 1
    assert list(quickfuse.compile(module).state_dict()) == list(as_it_is.state_dict())
    assert len(quickfuse.explain(lambda x: disabled(x) + 1)(x).break_reasons) == 1


def test_annotations_for_the_profiler() -> None:
    linear = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(linear.parameters())

    def step(x: T) -> T:
        optimizer.zero_grad()
        with torch.profiler.record_function("forward"):
            with torch.profiler.record_function("inner"):
                y = linear(x)
            loss = y.square().sum()
        loss.backward()
        optimizer.step()
        return loss

    def annotations(function: Callable[..., Any]) -> set[str]:
        function(torch.ones(2, 3))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            function(torch.ones(2, 3))
        function(torch.ones(2, 3))
        return {e.key for e in profile.key_averages() if e.key in ("forward", "inner") or "Optimizer" in e.key}

    wanted = annotations(step)
    assert wanted == annotations(quickfuse.compile(step)) and len(wanted) == 4
    compiled = quickfuse.compile(step)
    compiled(torch.ones(2, 3))
    assert compiled.graph_count == 1 and not compiled.breaks


# threads and memory -----------------------------------------------------------------------------------------------


def test_dropped_functions_leave_nothing() -> None:
    """Not in `linecache`, nor in any table of the compiler."""

    def one(k: int) -> None:
        compiled = quickfuse.compile(eval(f"lambda x: x * {k}.5") if k % 5 == 0 else lambda x: x * 2.5 + k)
        compiled(torch.ones(3))
        if k % 2:
            compiled(torch.ones(2, requires_grad=True)).sum().backward()
            quickfuse.graph_break()
        assert compiled.graph_count

    def counts() -> tuple[int, int]:
        gc.collect()
        gc.collect()  # what finalizers of the first time let go
        sources = [name for name in map(str, linecache.cache) if "quickfuse" in name or "eval_with_key" in name]
        return len(sources), len(gc.get_objects())

    for k in range(20):
        one(k)
    before = counts()
    for k in range(100):
        one(k)
    after = counts()
    assert after[0] <= before[0] and after[1] - before[1] < 2000, (before, after)


def test_kernels_that_nobody_uses_are_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last ones, which somebody may compile again."""
    monkeypatch.setattr(launch, "_recent", collections.deque(maxlen=4))
    gc.collect()
    before = len(launch._cpu_kernels)
    functions = []
    for k in range(12):
        compiled = quickfuse.compile(eval(f"lambda x: x * {k}.75 - 1"))
        compiled(torch.ones(5))
        if k % 4 == 0:
            functions.append((k, compiled))
        del compiled
        gc.collect()
    assert len(launch._cpu_kernels) - before <= 4 + len(functions)
    for k, compiled in functions:
        assert torch.equal(compiled(torch.ones(5)), torch.full((5,), k + 0.75 - 1))


def test_a_dropped_model_is_let_go() -> None:
    model = nn.Linear(3, 3)
    compiled = quickfuse.compile(model)
    compiled(torch.ones(2, 3)).sum().backward()
    seen = weakref.ref(model)
    del model, compiled
    gc.collect()
    assert seen() is None


def test_the_number_of_threads_after_compiling() -> None:
    """`torch.set_num_threads` counts for kernels that were compiled before."""
    from quickfuse.launch import cpu

    before = torch.get_num_threads()
    x = torch.randn(1 << 18)
    compiled = quickfuse.compile(lambda x: x.sin() + x.sum())
    try:
        for threads in (1, 2, 1, 3):
            torch.set_num_threads(threads)
            assert torch.allclose(compiled(x), x.sin() + x.sum(), rtol=1e-4)
            assert cpu.threads_for(1 << 20, 8) == threads
    finally:
        torch.set_num_threads(before)


def test_modules_are_made_inside_after_torch_compile_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import mutation_guard

    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(torch.nn.Module, name, getattr(torch.nn.Module, name))  # put back afterwards
    monkeypatch.setattr(torch.nn.Module, "___needs_generation_tag_patch", True, raising=False)
    mutation_guard.install_generation_tagging_init()

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.GELU()(x) * 2

    x = torch.randn(3)
    torch.testing.assert_close(quickfuse.compile(program, fullgraph=True)(x), program(x))
