"""What a program asks about how PyTorch is set, and what follows when it is set otherwise."""

import types

import pytest
import torch
from torch import backends

import quickfuse


def _set(place, name):
    return lambda value: setattr(place, name, value)


SETTINGS = {
    "threads": (torch.get_num_threads, torch.set_num_threads, (1, 2)),
    "benchmark": (lambda: backends.cudnn.benchmark, torch._C._set_cudnn_benchmark, (False, True)),
    "deterministic": (lambda: backends.cudnn.deterministic, torch._C._set_cudnn_deterministic, (False, True)),
    "TF32": (lambda: backends.cuda.matmul.allow_tf32, _set(backends.cuda.matmul, "allow_tf32"), (False, True)),
    "oneDNN": (lambda: backends.mkldnn.enabled, torch._C._set_mkldnn_enabled, (True, False)),
    "einsum": (lambda: backends.opt_einsum.strategy, _set(backends.opt_einsum, "strategy"), ("auto", "greedy")),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest", "high")),
    "algorithms": (
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, (False, True),
    ),
    "memory": (
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        _set(torch.utils.deterministic, "fill_uninitialized_memory"),
        (True, False),
    ),
    "warnings": (torch.is_warn_always_enabled, torch.set_warn_always, (False, True)),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_each_value_has_its_graph(name):
    read, write, values = SETTINGS[name]

    def f(x):
        setting = read()
        return (x * 2 if setting == values[0] else x + 1), setting

    before, x = read(), torch.ones(3)
    compiled = quickfuse.compile(f)
    try:
        for value in (*values, *values):
            write(value)
            wanted, found = f(x), compiled(x)
            assert wanted[0].equal(found[0]) and wanted[1] == found[1] == value
    finally:
        write(before)
    assert compiled.graph_count == 2 and not compiled.breaks


def test_what_stays():
    def f(x):
        parts = backends.cudnn.is_available(), backends.mkldnn.is_available(), torch.is_anomaly_enabled()
        named = backends.cudnn.conv.fp32_precision, backends.quantized.engine, torch.cuda.device_count()
        process = torch.cuda.is_initialized(), torch.accelerator.is_available(), torch.accelerator.current_accelerator()
        return x * 2, parts, named, process, torch.utils.data.get_worker_info()

    x = torch.ones(3)
    compiled = quickfuse.compile(f, fullgraph=True)
    assert str(compiled(x)) == str(f(x))


def test_attributes_that_the_class_of_a_module_computes():
    class Settings(types.ModuleType):
        factor = 3

        @property
        def double(self):
            return self.held * 2

    settings = Settings("settings")
    settings.held = 2
    g = quickfuse.compile(lambda x: x * settings.double + settings.factor, fullgraph=True)
    x = torch.ones(3)
    assert g(x).tolist() == [7.0] * 3
    settings.held = 5
    assert g(x).tolist() == [13.0] * 3
    settings.factor = 4  # before that of the class
    assert g(x).tolist() == [14.0] * 3
    Settings.double = 1
    assert g(x).tolist() == [5.0] * 3


def _algorithms():
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_algorithms(value):
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _set_benchmark(value):
    backends.cudnn.benchmark = value


def _set_deterministic(value):
    backends.cudnn.deterministic = value


CHANGED = {
    "threads": (torch.get_num_threads, torch.set_num_threads, 1, 2),
    "benchmark": (lambda: backends.cudnn.benchmark, _set_benchmark, False, True),
    "deterministic": (lambda: backends.cudnn.deterministic, _set_deterministic, False, True),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest", "medium"),
    "algorithms": (_algorithms, _set_algorithms, (False, False), (True, True)),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("where", ["before", "between", "after", "around", "without"])
def test_changes(name, where, monkeypatch):
    variables = backends.flags_frozen.__globals__  # PyTorch's own tests forbid it
    monkeypatch.setitem(variables, "__allow_nonbracketed_mutation_flag", True)
    read, write, old, new = CHANGED[name]

    def f(x):
        y = x * 2 if where in ("between", "after", "around") else x
        write(new)
        asked = read()
        if where in ("before", "between", "around"):
            y = (y @ y).sin()
        if where == "around":
            write(old)
        return y, asked

    before, x = read(), torch.rand(4, 4, requires_grad=True)
    compiled = quickfuse.compile(f, fullgraph=True)
    try:
        for begins in (old, old, new, old):
            write(begins)
            wanted, told = f(x)
            after = read()
            write(begins)
            found, asked = compiled(x)
            assert read() == after and asked == told == new
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
            if where != "without":
                gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (found, wanted)]
                torch.testing.assert_close(*gradients)
    finally:
        write(before)


def test_a_change_before_what_raises():
    def f(x, k):
        y = x * 2
        torch.set_num_threads(2)
        return y[k] + 1

    before, x = torch.get_num_threads(), torch.rand(3)
    compiled = quickfuse.compile(f)
    try:
        for k in (1, 2, 5):
            torch.set_num_threads(1)
            k = torch.tensor([k])
            if k < 3:
                assert compiled(x, k).equal(f(x, k))
            else:
                with pytest.raises(IndexError):
                    compiled(x, k)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_changes_that_pytorch_refuses():
    def f(x, value):
        torch.set_float32_matmul_precision(value)
        return x * 2

    with pytest.raises(RuntimeError) as wanted:
        f(torch.ones(2), 3)
    with pytest.raises(wanted.type):
        quickfuse.compile(f)(torch.ones(2), 3)


def test_a_change_in_front_of_a_break():
    def f(x):
        y = x * 2
        torch.set_num_threads(2)
        quickfuse.graph_break()
        return y + torch.get_num_threads()

    before, x = torch.get_num_threads(), torch.ones(3)
    try:
        torch.set_num_threads(1)
        assert quickfuse.compile(f)(x).tolist() == [4.0] * 3
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_exported_programs_change_no_setting(at_the_end):
    class Changes(torch.nn.Module):
        def forward(self, x):
            if not at_the_end:
                torch.set_num_threads(before + 1)
            y = x * 2
            if at_the_end:
                torch.set_num_threads(before + 1)
            return y

    before = torch.get_num_threads()
    with pytest.raises((quickfuse.errors.GraphBreak, quickfuse.errors.ExportError), match="set_num_threads"):
        quickfuse.export(Changes(), (torch.ones(3),))
    assert torch.get_num_threads() == before
