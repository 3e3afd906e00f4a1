"""Fusion: a program of loops -> few kernels, each run for many members in one launch.

In order: `levels` (units of one store each, what must come before what), `merge` (units of one level and shape into one
loop), `collapse` (fewer axes), `canonical` (code without sizes and buffers), `schedule` (equal bodies into one call).
"""

from __future__ import annotations

from .schedule import fuse

__all__ = ["fuse"]
