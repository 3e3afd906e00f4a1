"""The command line of tests that draw programs by seed."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def print_differences(difference: Callable[[int], str | None], description: str | None) -> None:
    """Print the programs of `--count` seeds from `--seed` on that differ from eager."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = [text for seed in range(options.seed, options.seed + options.count) if (text := difference(seed))]
    print("\n\n".join(texts), f"\n{len(texts)} of {options.count} programs differ")
