"""Small models of each kind, trained for three steps: losses, gradients of all parameters, buffers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from differentiate.twins import check_model


def images(*shape, count=3):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(*shape, generator=generator),) for _ in range(count)]


def test_mlp() -> None:
    def make():
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))

    check_model(make, *images(4, 6))


def test_frozen_layers() -> None:
    def make():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3))
        model[0].requires_grad_(False)
        model[2].bias.requires_grad_(False)
        return model

    check_model(make, *images(4, 6))


def test_convolutions_with_batch_norm() -> None:
    def make():
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=2, stride=2), nn.BatchNorm2d(8, momentum=0.3), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(8, 4),
        )  # fmt: skip

    check_model(make, *images(2, 3, 16, 16))


def test_batch_norm_in_evaluation() -> None:
    def make():
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, stride=2))
        model[1].running_mean.uniform_()
        return model.eval()

    check_model(make, *images(2, 3, 8, 8))


def test_channels_last() -> None:
    def make():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)).to(
            memory_format=torch.channels_last
        )

    check_model(make, *[(x.to(memory_format=torch.channels_last),) for (x,) in images(2, 3, 8, 8)])


class Block(nn.Module):
    def __init__(self, width=16, heads=2, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.second = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.first(x)).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp(self.second(x))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.position = nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].reshape(-1, 20), tokens[:, 1:].reshape(-1)), logits


def test_transformer() -> None:
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 20, (3, 8), generator=generator),) for _ in range(3)]
    check_model(Language, *batches, loss=lambda x: x)


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(5, 7)
        self.head = nn.Linear(7, 2)

    def forward(self, x):
        h = c = torch.zeros(x.shape[1], 7)
        outputs = []
        for step in x:
            h, c = self.cell(step, (h, c))
            outputs.append(self.head(h))
        return torch.stack(outputs), (h, c)


def test_lstm_cells() -> None:
    check_model(Cells, *images(4, 3, 5))


def test_lstm() -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(5, 7, num_layers=2)

        def forward(self, x):
            return self.lstm(x)[0]

    check_model(Model, *images(4, 3, 5), fallback=True)


def test_shared_and_unused_parameters() -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = self.a
            self.unused = nn.Linear(4, 4)

        def forward(self, x):
            self.unused(x)
            return self.b(self.a(x).relu())

    check_model(Model, *images(3, 4))


def test_weight_norm() -> None:
    check_model(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), *images(3, 4), fallback=True)
