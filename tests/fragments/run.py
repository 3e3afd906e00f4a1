"""Tries programs of fragments by seed: `python -m fragments.run 0 1000`, in `tests/`. Prints what differs from eager."""

from __future__ import annotations

import random
import sys

from .class_fragments import FRAGMENTS as CLASSES
from .compose import difference, program
from .flow_fragments import FRAGMENTS as FLOW
from .tensor_fragments import FRAGMENTS as TENSORS


def main() -> None:
    first, last = map(int, sys.argv[1:3])
    for seed in range(first, last):
        found = difference(program(random.Random(seed), [*CLASSES, *FLOW, *TENSORS]))
        if found is not None:
            print(f"seed {seed}, {found}")


if __name__ == "__main__":
    main()
