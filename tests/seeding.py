"""Random numbers that are the same in each run."""

from __future__ import annotations

import torch

#: `torch.manual_seed` also seeds devices that are not there, and keeps for each kind of these the formatted stack of who
#: asked: milliseconds within a test.
seed_torch = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
