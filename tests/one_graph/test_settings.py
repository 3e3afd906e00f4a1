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
