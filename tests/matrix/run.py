"""Run the combinations of `combinations.py`: `python tests/matrix/run.py --count 20000 --shard 0/4 --seed 1`.

Prints those where a compiled function gives something else than eager, and exits 1 if there are any.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import quickfuse
from matrix.combinations import difference, drawn

#: How long one combination may take, in eager mode and compiled.
SECONDS_EACH = 120


class TooLong(BaseException):
    """A combination does not end."""


def _too_long(*_: object) -> None:
    raise TooLong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=0, help="how many to draw at random; 0 for no end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="index/number of shards")
    parser.add_argument("--match", default="", help="only those drawn whose name contains this")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long")
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    index, shards = map(int, options.shard.split("/"))
    drawn_ones = itertools.islice(drawn(options.seed), options.count or None)
    chosen = (c for c in itertools.islice(drawn_ones, index, None, shards) if options.match in str(c))
    found: Counter[str] = Counter()
    started = time.time()
    ran = 0
    for combination in chosen:
        if options.seconds and time.time() - started > options.seconds:
            break
        ran += 1
        signal.alarm(SECONDS_EACH)
        try:
            text = difference(combination, options.backend)
        except TooLong:
            text = f"takes more than {SECONDS_EACH} seconds"
        finally:
            signal.alarm(0)
        if text:
            found[combination.kind] += 1
            print(f"{combination}\n    {text[:400]}", flush=True)
        if not ran % 200:
            quickfuse.reset()
        if not ran % 1000:
            print(f"{ran} ran after {time.time() - started:.0f} s", file=sys.stderr, flush=True)
    print(f"{sum(found.values())} of {ran} combinations differ: {dict(found.most_common(20))}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
