"""The call of a graph after which the program goes on in Python with the results."""

from __future__ import annotations

from typing import Any

import torch

from .followed_data import follow, note_results
from .joined import JoinedCall


class FollowedCall(JoinedCall):
    """A call whose results, or inputs, the program may change through their `data` after it: see `followed_data`."""

    may_be_left = False

    def __init__(self, made: Any, *others: Any) -> None:
        super().__init__(made, *others)
        #: The outputs of the captured graph of which something is saved, by eager or here.
        saved = {s.index for s in made.saved if not s.of_input}
        self.kept_results = {k for k, r in enumerate(made.results) if not r.of_input and r.index in saved}
        self.kept_results.update(made.kept_results)

    def __call__(self, tensors: list[Any], numbers: tuple[Any, ...]) -> Any:
        made = super().__call__(tensors, numbers)
        if not self.unfit:
            note_results(self, made)
        return made

    def follow_data(self, node: Any, tensor: torch.Tensor) -> None:
        """The program is about to get hold of the `data` of a tensor."""
        if node.again is None and node.handed_out and follow(self, node, tensor):
            self.note_eager("backward", "the data of a tensor that it needs may be changed, unseen by autograd")
