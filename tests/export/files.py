"""Helpers: a program for files, and files that are put together by hand."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

x = torch.randn(3, 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.table = torch.arange(12.0).view(3, 4)
        self.register_buffer("rows", self.table[1:])

    def forward(self, x: torch.Tensor, scale: float, options: dict[str, Any]) -> dict[str, Any]:
        if scale > 1:
            x = x / scale
        left, right = self.norm(self.one(x)).split(2, 1)
        return {"sum": left + right, "table": self.table + 1, "rows": self.rows, "scale": scale * 2, "kind": options["kind"]}


ARGUMENTS = (x, 2.0, {"kind": "sum", "unused": None})


def parts_of(data: bytes, folder: Path) -> dict[str, bytes]:
    (folder / "parts.qfx").write_bytes(data)
    with zipfile.ZipFile(folder / "parts.qfx") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, parts: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """A file with these parts, and checksums that are right."""
    sums = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items() if name != "checksums.json"}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, part in {**parts, "checksums.json": json.dumps(sums).encode()}.items():
            archive.writestr(name, part)
    return path
