"""The long run of random chains of operators.

python tests/chains/run.py --count 1000 --first 0     # each failure is printed as it is found
python tests/chains/run.py --first 123 --show         # prints a program
python tests/chains/run.py --first 123 --reduce 60    # checks one, and makes it small if it fails
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from chains.generate import program
from chains.judge import check
from long_runs import LongRun

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(LongRun(__doc__, program, check).run())
