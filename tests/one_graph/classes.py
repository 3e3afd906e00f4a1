"""Classes that several programs use: dataclasses, a named tuple, enumerations."""

import dataclasses
import enum
import typing
from typing import NamedTuple

import torch


@dataclasses.dataclass
class DC:
    a: int
    b: float = 2.0
    t: typing.Any = None
    l: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class FDC:
    a: int
    b: float = 2.0


class NT(NamedTuple):
    a: torch.Tensor
    b: int = 3

    def total(self):
        return self.a * self.b

    @property
    def twice(self):
        return self.b * 2


class Color(enum.Enum):
    RED = 1
    GREEN = "g"

    @property
    def scale(self):
        return {"RED": 2, "GREEN": 3}[self.name]

    @classmethod
    def parse(cls, s):
        return cls[s.upper()]


class Fl(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = A | B


class IE(enum.IntEnum):
    X = 1
    Y = 2
