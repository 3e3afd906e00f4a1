"""PyTorch's whole database of modules, each input in every way of using a module, compared with eager.

    python tests/modules/run.py [--only Conv2d LSTM ...] [--ways plain step ...] [--dtype float64] [--count 5] [--part 1/4]

Prints what is not as in eager, and a line for each module. All inputs in all ways take some hours on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import quickfuse  # noqa: E402 - after the path to it is known
from modules.module_cases import MODULES, WAYS, cases, faults  # noqa: E402

#: A way that takes longer than this is reported.
_SECONDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(MODULES), metavar="NAME", help="these modules")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--dtype", default="float64", help="float64, float32 or another type that the modules take")
    parser.add_argument("--count", type=int, default=None, help="at most so many inputs of each module")
    parser.add_argument("--part", default="1/1", help="which part of the modules: 1/4 to 4/4")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, value in (("raise_internal_errors", True), ("verify", True), ("measure_short_calls", False)):
        setattr(quickfuse.config, name, value)
    part, parts = map(int, options.part.split("/"))
    found = [
        _module(name, options)
        for name in (options.only or list(MODULES))[part - 1 :: parts]
        if getattr(torch, options.dtype) in MODULES[name].supported_dtypes("cpu")
    ]
    print(f"{sum(wrong for _, wrong in found)} of {sum(ran for ran, _ in found)} are not as in eager")


def _module(name: str, options: argparse.Namespace) -> tuple[int, int]:
    """How many uses of a module ran, and how many were wrong."""
    begin = time.perf_counter()
    ran = wrong = 0
    for training, gradients in ((True, True), (False, True), (True, False), (False, False)):
        for case in cases(name, getattr(torch, options.dtype), training, gradients, options.count):
            for way in options.ways:
                start = time.perf_counter()
                found = faults(case, WAYS[way])
                if (seconds := time.perf_counter() - start) > _SECONDS:
                    found.append(f"took {seconds:.0f} s")
                ran += 1
                wrong += bool(found)
                for text in found[:3]:
                    print(f"WRONG {case.label}, {way}: {text}", flush=True)
    print(f"{name}: {ran} ran, {wrong} wrong, {time.perf_counter() - begin:.0f} s", flush=True)
    return ran, wrong


if __name__ == "__main__":
    main()
