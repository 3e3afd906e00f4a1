"""The bytecode of CPython 3.12, which the compiler's own instructions follow."""

from __future__ import annotations

from .table import Table

TABLE = Table(version=(3, 12), compared=lambda arg: arg >> 4, behind_for=1, for_end=("END_FOR",))
