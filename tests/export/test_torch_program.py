"""Exported programs as those of `torch.export`, and the tools that take them. Tools that are not installed are skipped."""

from __future__ import annotations

import copy
import io
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import quickfuse
from export.programs import through_file
from quickfuse import errors
from quickfuse.bench.zoo import GPT, LstmLanguageModel, UNet
from quickfuse.export import Exported
from vision import vision_models

x = torch.randn(3, 4)
pytestmark = pytest.mark.filterwarnings("ignore")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("offset", torch.ones(4), persistent=False)
        self.constant = torch.full((4,), 0.5)

    def forward(self, x: torch.Tensor, scale: float = 2.0, options: Any = None) -> dict[str, Any]:
        self.average = self.average * 0.9 + x.detach().mean(0)
        made = self.norm(self.one(x)) * scale + self.average + self.offset + self.constant
        return {"made": made + options["y"], "x": x, "nothing": None, "rows": (made[torch.tensor([0, 2])], 3)}


ARGUMENTS = ((x,), {"options": {"y": torch.randn(4), "unused": 1}})


@pytest.mark.parametrize("training", [True, False])
def test_it_runs_like_the_original(training: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model().train(training)
    exported = through_file(quickfuse.export(model, *ARGUMENTS), tmp_path)
    program = exported.to_torch()
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    for one in (program, torch.export.load(buffer), exported.to_torch().run_decompositions()):
        original, module = copy.deepcopy(model), one.module()
        for _ in range(2):
            wanted, got = original(*ARGUMENTS[0], **ARGUMENTS[1]), module(*ARGUMENTS[0], **ARGUMENTS[1])
            torch.testing.assert_close(got["made"], wanted["made"])
            torch.testing.assert_close(got["rows"], wanted["rows"])
            assert got["nothing"] is None and got["x"] is x
        for name, buffer_ in original.named_buffers():
            torch.testing.assert_close(module.get_buffer(name), buffer_)
    torch.testing.assert_close(exported.state_dict["average"], torch.zeros(4))  # it has tensors of its own


def test_the_signature() -> None:
    signature = quickfuse.export(Model(), *ARGUMENTS).to_torch().graph_signature
    assert {*signature.parameters} == {"one.weight", "one.bias", "norm.weight", "norm.bias"}
    assert {"average", "offset", "norm.running_mean"} <= {*signature.buffers}
    assert signature.non_persistent_buffers == ("offset",)
    assert "average" in signature.buffers_to_mutate.values()


def test_a_training_step() -> None:
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = torch.tensor([0, 1, 2])

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    module = quickfuse.export(step, (x, y)).to_torch().module()
    for _ in range(3):
        with torch.no_grad():
            got = module(x, y)
        torch.testing.assert_close(got, step(x, y))


@pytest.mark.parametrize(
    "program, message",
    [
        (lambda x: x.sum().item(), "a number out of a tensor"),
        (lambda x: x * x.long().sum().item(), "a number out of a tensor"),
        (lambda x: x.dtype, "torch.float32, which torch.export has no form of"),
    ],
)
def test_what_has_no_such_form(program: Any, message: str) -> None:
    with pytest.raises(errors.ExportError, match=message):
        quickfuse.export(program, (x,)).to_torch()


def test_arithmetic_with_numbers_out_of_tensors() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        number = x.abs().sum().item()
        x = x * (1 - 0.5**number) + number / 3
        return torch.addcdiv(x, x, x + 10, value=-number).sub(x, alpha=number**2)

    module = quickfuse.export(program, (x,)).to_torch().module()
    for value in (x, x * 2):
        torch.testing.assert_close(module(value), program(value), rtol=1e-5, atol=1e-5)


def _tokens() -> torch.Tensor:
    return torch.randint(50, (2, 6))


MODELS: dict[str, Any] = {
    "linear": lambda: (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)), torch.randn(3, 4)),
    "unet": lambda: (UNet(4, 2), torch.randn(1, 3, 16, 16)),
    "gpt": lambda: (GPT(50, 16, 32, 4, 2), _tokens()),
    "lstm": lambda: (LstmLanguageModel(50, 16), _tokens()),
    "resnet18": lambda: (vision_models().resnet18(num_classes=10), torch.randn(2, 3, 64, 64)),
    "densenet121": lambda: (vision_models().densenet121(), torch.randn(1, 3, 128, 128)),
    "vit": lambda: (
        vision_models().VisionTransformer(64, 16, 4, 6, 192, 768, num_classes=1000), torch.randn(1, 3, 64, 64)
    ),
    "a larger gpt": lambda: (GPT(1000, 64, 256, 8, 6), torch.randint(1000, (1, 64))),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime(name: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, example = _made(name)
    program = through_file(quickfuse.export(model, (example,)), tmp_path).to_torch()
    torch.onnx.export(program, dynamo=True, verbose=False).save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    (result,) = session.run(None, {session.get_inputs()[0].name: example.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), model(example).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_executorch(name: str, tmp_path: Path) -> None:
    exir = pytest.importorskip("executorch.exir")
    model, example = _made(name)
    program = through_file(quickfuse.export(model, (example,)), tmp_path).to_torch()
    result = _on_executorch(exir.to_edge(program), example)
    torch.testing.assert_close(result, model(example).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_executorchs_delegate_for_cpus(name: str) -> None:
    exir = pytest.importorskip("executorch.exir")
    pytest.importorskip("torchao")
    partitioner = pytest.importorskip("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    model, example = _made(name)
    program = quickfuse.export(model, (example,)).to_torch()
    edge = exir.to_edge_transform_and_lower(program, partitioner=[partitioner.XnnpackPartitioner()])
    torch.testing.assert_close(_on_executorch(edge, example), model(example).detach(), rtol=1e-3, atol=1e-4)


def _made(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, example = MODELS[name]()
    return model.eval(), example


def _on_executorch(edge: Any, example: torch.Tensor) -> torch.Tensor:
    runtime = pytest.importorskip("executorch.runtime")
    buffer = edge.to_executorch().buffer  # this, and what is made of it, has to live as long as it runs
    program = runtime.Runtime.get().load_program(buffer)
    method = program.load_method("forward")
    return method.execute([example])[0].clone()


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")


def _on_aotinductor(exported: Exported, folder: Path) -> Any:
    program = through_file(exported, folder).to_torch()
    quick = {  # whether it takes the program is the question: no headers for later programs, no trials of instructions
        "aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0", "cpp.vec_isa_ok": True,
    }  # fmt: skip
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(folder / "model.pt2"), inductor_configs=quick
    )
    return torch._inductor.aoti_load_package(package)


@pytest.mark.slow
@needs_compiler
def test_aotinductor(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model().eval()
    with torch.no_grad():
        compiled = _on_aotinductor(quickfuse.export(model, *ARGUMENTS), tmp_path)
        for _ in range(2):
            wanted = model(*ARGUMENTS[0], **ARGUMENTS[1])
            found = compiled(*ARGUMENTS[0], **ARGUMENTS[1])
            torch.testing.assert_close(found["made"], wanted["made"])
            torch.testing.assert_close(found["rows"][0], wanted["rows"][0])  # it makes a tensor of the number beside it


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(not os.environ.get("EXPORT_LONG"), reason="takes minutes: make export-tools")
@pytest.mark.parametrize("name", MODELS)
def test_models_on_aotinductor(name: str, tmp_path: Path) -> None:
    model, example = _made(name)
    with torch.no_grad():
        compiled = _on_aotinductor(quickfuse.export(model, (example,)), tmp_path)
        torch.testing.assert_close(compiled(example), model(example), rtol=1e-4, atol=1e-4)
