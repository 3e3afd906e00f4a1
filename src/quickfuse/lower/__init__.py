"""Lowering: a torch.fx graph -> loops over elements and calls of PyTorch operators.

`targets.py` finds the rule of a node, `aten.py` that of an operator of ATen, `rules.py` and `calls.py` say what a rule is.
The families of operators hold them: `arithmetic`, `elementary`, `activations`, `reductions`, `normalisation`,
`views`, `joining` and so on; `formulas` and `compositions` say in PyTorch calls what others are; `extern` calls the rest.
`twins` leaves out of a graph what does the same with other tensors.
"""

from __future__ import annotations

from .lowering import lower
from .twins import without_twins

__all__ = ["lower", "without_twins"]
