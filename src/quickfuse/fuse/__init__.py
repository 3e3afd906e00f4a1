"""Fusion: a program of loops -> few kernels, each run for many members in one launch.

In order: `units` (one store each, what must come before what, levels), `merge` (units of one level and shape into one
loop), `collapse` (fewer axes), `canonical` (code without sizes and buffers), `schedule` (equal bodies into one call).
"""

from __future__ import annotations

from .schedule import fuse

__all__ = ["fuse"]
