"""Training loops of other libraries that compile by a backend's name: transformers.Trainer, accelerate, Lightning.

They call `torch.compile(model, backend="quickfuse")`, which finds the backend among the published ones.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from quickfuse import backends, config
from quickfuse.bench import zoo

T = torch.Tensor


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What torch.compile got from our backend."""
    if not importlib.metadata.entry_points(group=backends.ENTRY_POINTS, name="quickfuse"):
        pytest.skip("quickfuse is not installed, so its backend is not published")
    with contextlib.suppress(ImportError):
        zoo.vision_models()  # transformers looks for torchvision, whose operators may not fit
    made: list[Any] = []

    from quickfuse.pipeline import compiled as module

    class Noted(module.Compiled):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(module, "Compiled", Noted)
    monkeypatch.setattr(config, "raise_internal_errors", True)
    yield made
    torch._dynamo.reset()


def tiny_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=50, max_position_embeddings=32,
        )
    )  # fmt: skip


def close(mine: nn.Module, theirs: nn.Module) -> None:
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_trainer_of_transformers(tmp_path: Path, compiled: list[Any]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    tokens = torch.randint(0, 50, (8, 10), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]

    def trained(**more: Any) -> Any:
        model = tiny_llama()
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, use_cpu=True, report_to=[], seed=0,
            save_strategy="no", disable_tqdm=True, logging_strategy="no", learning_rate=1e-3, **more,
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=data).train()
        return model

    close(trained(torch_compile=True, torch_compile_backend="quickfuse"), trained())
    assert sum(function.graph_count for function in compiled) >= 1


def test_accelerate(compiled: list[Any]) -> None:
    accelerate = pytest.importorskip("accelerate")

    def trained(**more: Any) -> nn.Module:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # all accelerators share it
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        data = TensorDataset(torch.randn(16, 4), torch.randint(3, (16,)))
        accelerator = accelerate.Accelerator(cpu=True, **more)
        prepared, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 4))
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(prepared(x), y))
            optimizer.step()
        return model

    close(trained(dynamo_backend="quickfuse"), trained())
    assert sum(function.graph_count for function in compiled) >= 1


def test_lightning(tmp_path: Path, compiled: list[Any]) -> None:
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.BatchNorm1d(8), nn.Linear(8, 1))

        def training_step(self, batch: Any, index: int) -> T:
            x, y = batch
            return nn.functional.mse_loss(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    def trained(compile_it: bool) -> nn.Module:
        lightning.seed_everything(0, verbose=False)
        module = Module()
        data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
        fitted = torch.compile(module, backend="quickfuse") if compile_it else module
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=str(tmp_path),
        )  # fmt: skip
        trainer.fit(fitted, DataLoader(data, 4))
        return module

    close(trained(True), trained(False))
    assert sum(function.graph_count for function in compiled) >= 1
