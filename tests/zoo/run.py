"""Run models of transformers, timm, torchvision, diffusers and peft through the default backend: `make zoo`.

    python tests/zoo/run.py [--libraries timm peft] [--only NAME ...] [--shard 1/4] [--peer more] [--fresh] [--report]
    python tests/zoo/run.py --device cuda [--backend eager]

Nothing is downloaded: models are small and have random weights. Each runs in a process of its own, which is given up after
a time limit; what became of it is in build/zoo/LIBRARY/NAME.json as soon as it is known, so that a run that was stopped
goes on where it was. torch.compile's graphs are counted afterwards, also for models that have a result without them. In the
end, and with `--report` at once, the table in benchmarks/results/zoo.md is written. On a GPU results are in build/zoo-cuda,
and the models that take more graphs there than on the CPU, where that is known, are printed; `--backend eager` runs graphs
without kernels, which take long to compile there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent)]

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers", "peft")
BUILD = {"cpu": ROOT / "build" / "zoo", "cuda": ROOT / "build" / "zoo-cuda"}
#: Of the environment: nothing is downloaded, and libraries say little.
#: PyTorch asks the driver for GPUs, since a process that has asked CUDA has no working forks.
SETTINGS = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "critical",
    "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip


def main() -> None:
    options = _options()
    os.environ |= SETTINGS
    if not options.report:
        for library in options.libraries:
            _run_library(library, options)
    from zoo.table import print_more_graphs, write

    if options.device == "cpu":
        write(BUILD["cpu"], ROOT / "benchmarks" / "results" / "zoo.md")
    else:
        print_more_graphs(BUILD[options.device], ROOT / "benchmarks" / "results" / "zoo.json")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", nargs="*", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--only", nargs="*", default=[], help="names of models; they run again")
    parser.add_argument("--shard", default="1/1", help="which part of the models: 1/4 to 4/4")
    parser.add_argument("--seconds", type=float, default=300, help="the time limit of one model")
    parser.add_argument(
        "--peer", choices=("all", "more", "none"), default="all",
        help="count torch.compile's graphs for all models, for those with more than one graph here, or for none",
    )  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", choices=("quickfuse", "eager"), default="quickfuse", help="what runs the graphs")
    parser.add_argument("--fresh", action="store_true", help="measure again what has a result")
    parser.add_argument("--report", action="store_true", help="only write the table")
    return parser.parse_args()


def _run_library(library: str, options: argparse.Namespace) -> None:
    """Measure the models of one library. The processes are forks of this one, which has imported it already."""
    models = builder_of(library)
    if models is None:
        print(f"{library} is not installed", flush=True)
        return
    part, parts = map(int, options.shard.split("/"))
    names = [name for name in options.only if name in models.names()] if options.only else models.names()[part - 1 :: parts]
    for name in names:
        path = BUILD[options.device] / library / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        measured = _is_measured(path) and not options.fresh and not options.only
        if not measured:
            _in_a_process(_measure, library, name, path, options.seconds, options.device, options.backend)
        if ways := _without_peer(path, options.peer if options.device == "cpu" else "none"):
            _in_a_process(_count_peer, library, name, path, options.seconds, ways)
        if ways or not measured:
            print(f"{library} {name}: {_in_words(path)} ({time.perf_counter() - start:.0f} s)", flush=True)


def _in_a_process(work: Any, library: str, name: str, path: Path, seconds: float, *more: Any) -> None:
    """Run `work` in a fork of this process; what ended it, if it did not end by itself, is noted in the result."""
    worker = multiprocessing.get_context("fork").Process(target=_quietly, args=(work, library, name, path, *more))
    worker.start()
    worker.join(seconds)
    ended = not worker.is_alive()
    if not ended:
        worker.kill()
        worker.join()
    if worker.exitcode:
        how = f"signal {-worker.exitcode}" if ended else f"more than {seconds:.0f} s"
        _note(path, {"peer died" if work is _count_peer else "died": how})


def _is_measured(path: Path) -> bool:
    return path.exists() and not {"step", "died", "not built"}.isdisjoint(json.loads(path.read_text()))


def _without_peer(path: Path, wanted: str) -> list[str]:
    """The ways of use of a measured model for which torch.compile's graphs are wanted, and were not counted."""
    found = json.loads(path.read_text())
    if wanted == "none" or "not built" in found or "peer died" in found:
        return []
    missing = [way for way in ("eval", "gradients", "step") if "peer_graphs" not in found.get(way, {"peer_graphs": 0})]
    return [way for way in missing if wanted == "all" or found[way].get("graphs", 2) > 1]


def builder_of(library: str) -> Any:
    """The module that builds a library's models; None where the library is not installed."""
    from quickfuse.bench.zoo import vision_models

    try:
        vision_models()  # also where torchvision's operators do not fit, which transformers and timm look for
        importlib.import_module(library)
    except ImportError:
        return None
    return importlib.import_module(f"zoo.of_{library}")


def _quietly(work: Any, library: str, name: str, path: Path, *more: Any) -> None:
    import torch

    warnings.simplefilter("ignore")
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # which of cuDNN's algorithms round products so is not ours to say
    try:
        work(library, name, path, *more)
    except Exception as error:
        _note(path, {"died": f"{type(error).__name__}: {error}"[:300]})


def _measure(library: str, name: str, path: Path, device: str, backend: str) -> None:
    from zoo.measure import equal_cases, measure

    found: dict[str, Any] = {"library": library, "name": name, "commit": _commit(), "versions": _versions(library)}
    models = builder_of(library)
    try:
        make = equal_cases(lambda: models.build(name), device)
        make()
    except Exception as error:
        save(path, {**found, "not built": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]})
        return
    save(path, found)
    measure(make, lambda so_far: save(path, {**found, **so_far}), backend)


def _count_peer(library: str, name: str, path: Path, ways: list[str]) -> None:
    from zoo.measure import equal_cases, peer_graphs

    models = builder_of(library)
    make = equal_cases(lambda: models.build(name))
    for way in ways:
        found = json.loads(path.read_text())
        found[way]["peer_graphs"] = peer_graphs(make, way)
        save(path, found)


def _commit() -> str:
    """The commit that is measured; with a + where files were changed since."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=+"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return told.stdout.strip()


def _versions(library: str) -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", library)} | {"python": ".".join(map(str, sys.version_info[:2]))}


def save(path: Path, found: dict[str, Any]) -> None:
    """Write what is known of a model; a run that is stopped meanwhile leaves what was there before."""
    path.with_suffix(".new").write_text(json.dumps(found, indent=1))
    path.with_suffix(".new").replace(path)


def _note(path: Path, more: dict[str, Any]) -> None:
    found = json.loads(path.read_text()) if path.exists() else {"library": path.parent.name, "name": path.stem}
    save(path, {**found, **more})


def _in_words(path: Path) -> str:
    found = json.loads(path.read_text())
    if "not built" in found:
        return f"not built: {found['not built'][:80]}"
    known = {way: f for way, f in found.items() if isinstance(f, dict) and "outcome" in f}
    ways = [f"{way} {f['outcome']} {f.get('graphs', '')}" for way, f in known.items()]
    return ", ".join([*ways, *([found["died"]] if "died" in found else [])])


if __name__ == "__main__":
    main()
