"""Lowering: a torch.fx graph -> loops over elements and calls of PyTorch operators.

`targets.py` finds the rule of a node, `rules.py` says what a rule is, and the families of operators hold them:
`arithmetic`, `elementary`, `activations`, `creation`, `transfer`, `views`, `numbers`; `extern.py` is for the rest.
"""

from __future__ import annotations

from .lowering import lower

__all__ = ["lower"]
