"""Models to measure: torchvision's, and small ones of our own for language and segmentation.

`build(name)` gives the model with an example of its input and of what a loss compares the output with. Sizes are such that
a step takes well under a second on two cores.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

#: Keeps the declarations of torchvision's operators alive.
_declared: list[torch.library.Library] = []


def vision_models() -> Any:
    """The module `torchvision.models`, also where torchvision's compiled operators do not fit the installed PyTorch:
    models need none of them.

    Raises:
        ImportError: without torchvision.
    """
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
    return importlib.import_module("torchvision.models")


@dataclass
class Example:
    """A model, its input, and what `loss(model(input), target)` wants."""

    model: nn.Module
    input: torch.Tensor
    target: torch.Tensor

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Cross entropy over axis 1 of images and sequences of scores."""
        return functional.cross_entropy(output, target)


def build(name: str, **size: int) -> Example:
    """The model `name` of `MODELS`, with random weights that are always the same.

    `size`: `batch`, `pixels` (the side of an image) and `tokens` (of a sequence) in place of the model's own. A model of
    images has no use for `tokens`, nor one of language for `pixels`.
    """
    torch.manual_seed(0)
    return MODELS[name](**size)


# --- pictures ---


def _classifier(name: str, own_batch: int, own_pixels: int) -> Callable[..., Example]:
    def make(batch: int = own_batch, pixels: int = own_pixels, tokens: int = 0) -> Example:
        settings = {"image_size": pixels} if name.startswith("vit") else {}
        model = getattr(vision_models(), name)(**settings)
        return Example(model, torch.randn(batch, 3, pixels, pixels), torch.randint(1000, (batch,)))

    return make


class UNet(nn.Module):
    """Ronneberger et al. (2015), with batch norm: down by pooling, up by transposed convolutions, joined by `cat`."""

    def __init__(self, width: int = 16, depth: int = 3, classes: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(_double(a, b) for a, b in zip([3, *widths], widths[:-1], strict=False))
        self.bottom = _double(widths[-2], widths[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.up = nn.ModuleList(_double(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([kept.pop(), grow(x)], 1))
        return self.head(x)


def _double(inputs: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def _unet(batch: int = 2, pixels: int = 96, tokens: int = 0) -> Example:
    return Example(UNet(), torch.randn(batch, 3, pixels, pixels), torch.randint(4, (batch, pixels, pixels)))


# --- language ---


class GPT(nn.Module):
    """A decoder-only transformer (Radford et al., 2019): learned positions, norms first, tied embeddings."""

    def __init__(self, vocabulary: int = 1024, context: int = 128, width: int = 256, heads: int = 8, layers: int = 4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, time) of tokens -> (batch, vocabulary, time) of scores."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)


class Block(nn.Module):
    """Attention to earlier places, then a feed-forward network, each after a norm and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        parts = self.attend(self.norm1(x)).split(width, dim=2)
        query, key, value = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, time, width))
        return x + self.feed(self.norm2(x))


class LstmLanguageModel(nn.Module):
    """An LSTM over embedded tokens: PyTorch's layers, or cells in a loop."""

    def __init__(self, vocabulary: int = 1024, width: int = 256, layers: int = 2, cells: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)
        self.lstm = None if cells else nn.LSTM(width, width, layers, batch_first=True)
        self.cells = nn.ModuleList(LstmCell(width, width) for _ in range(layers if cells else 0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, time) of tokens -> (batch, vocabulary, time) of scores."""
        x = self.tokens(tokens)
        x = self._by_cells(x) if self.lstm is None else self.lstm(x)[0]
        return self.head(x).transpose(1, 2)

    def _by_cells(self, x: torch.Tensor) -> torch.Tensor:
        nothing = x.new_zeros(x.shape[0], x.shape[2])
        states = [(nothing, nothing) for _ in self.cells]
        outputs = []
        for step in x.unbind(1):
            for k, cell in enumerate(self.cells):
                states[k] = cell(step, states[k])
                step = states[k][0]
            outputs.append(step)
        return torch.stack(outputs, 1)


class LstmCell(nn.Module):
    """Hochreiter and Schmidhuber (1997), with the forget gate of Gers et al. (2000)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(inputs, 4 * width)
        self.hidden = nn.Linear(width, 4 * width, bias=False)

    def forward(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, memory = state
        enter, forget, content, leave = (self.inputs(x) + self.hidden(hidden)).chunk(4, 1)
        memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(content)
        return torch.sigmoid(leave) * torch.tanh(memory), memory


def _language(model: Callable[..., nn.Module], own_batch: int, own_tokens: int, **own: Any) -> Callable[..., Example]:
    def make(batch: int = own_batch, tokens: int = own_tokens, pixels: int = 0) -> Example:
        text = torch.randint(1024, (batch, tokens + 1))
        settings = {**own, "context": max(128, tokens)} if model is GPT else own
        return Example(model(**settings), text[:, :-1].clone(), text[:, 1:].clone())

    return make


# --- the list ---

MODELS: dict[str, Callable[..., Example]] = {
    "densenet121": _classifier("densenet121", 4, 128),
    "resnet18": _classifier("resnet18", 4, 128),
    "resnet50": _classifier("resnet50", 4, 128),
    "mobilenet_v3_large": _classifier("mobilenet_v3_large", 4, 128),
    "vit_b_16": _classifier("vit_b_16", 4, 64),
    "unet": _unet,
    "gpt": _language(GPT, 4, 128),
    "lstm": _language(LstmLanguageModel, 8, 32),
    "lstm_cells": _language(LstmLanguageModel, 8, 16, cells=True),
}

TITLES = {
    "densenet121": "DenseNet-121, 4 x 128x128", "resnet18": "ResNet-18, 4 x 128x128", "resnet50": "ResNet-50, 4 x 128x128",
    "mobilenet_v3_large": "MobileNetV3 large, 4 x 128x128", "vit_b_16": "ViT-B/16, 4 x 64x64",
    "unet": "U-Net, 2 x 96x96", "gpt": "GPT, 4 layers, 4 x 128", "lstm": "LSTM, 2 layers, 8 x 32",
    "lstm_cells": "LSTM of cells, 2 layers, 8 x 16",
}  # fmt: skip
