"""Export models of transformers, timm and torchvision, and compare them in processes without these: `make export-zoo`.

    python tests/export/run_zoo.py [--libraries timm] [--only NAME ...] [--fresh] [--report]

Each model is exported in evaluation and in training, saved, loaded and run in a fresh process that never imports the
library; values, gradients of all parameters, and buffers are compared with eager mode's. Nothing is downloaded: models have
random weights. What became of a model is in build/export-zoo as soon as it is known, so that a run that was stopped goes
on where it was. The table is written to benchmarks/results/export-zoo.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT / "src")]

from zoo.run import SETTINGS, builder_of, save  # noqa: E402

BUILD = ROOT / "build" / "export-zoo"
TABLE = ROOT / "benchmarks" / "results" / "export-zoo.md"
MODES = ("evaluation", "training")

NAMES: dict[str, list[str]] = {
    "transformers": (
        "albert bart beit bert blenderbot clip convnext convnextv2 deberta-v2 deit dinov2 distilbert electra ernie "
        "falcon fnet gemma gemma2 gpt2 gpt_neo gpt_neox gptj ibert layoutlm llama marian mbart mistral mobilebert "
        "mobilenet_v2 mpnet opt pegasus phi phi3 poolformer pvt qwen2 qwen3 regnet resnet roberta roformer segformer "
        "siglip squeezebert stablelm starcoder2 swin t5 vit xglm xlm-roberta yolos"
    ).split(),
    "timm": (
        "resnet10t resnetv2_50 seresnet50 ecaresnet26t convnext_atto convnextv2_atto efficientnet_lite0 ghostnet_100 "
        "hrnet_w18_small mobilenetv4_conv_small mobileone_s0 repvgg_a0 rexnet_100 tf_efficientnet_b0 "
        "vit_tiny_patch16_224 deit_tiny_patch16_224 mixer_s32_224 gmlp_ti16_224 poolformer_s12 edgenext_xx_small "
        "fastvit_t8 xcit_nano_12_p16_224 cait_xxs24_224 coat_tiny convmixer_768_32 crossvit_tiny_240 davit_tiny dla34 "
        "eva02_tiny_patch14_224 levit_128s mobilevit_xxs nfnet_l0 pit_ti_224 pvt_v2_b0 regnetx_002 selecsls42 "
        "tinynet_e visformer_tiny"
    ).split(),
    "torchvision": (
        "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t "
        "mnasnet0_5 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 "
        "resnet50 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11_bn vit_b_32 wide_resnet50_2 "
        "deeplabv3_mobilenet_v3_large fcn_resnet50 lraspp_mobilenet_v3_large mc3_18 r2plus1d_18 s3d raft_small"
    ).split(),
}  # fmt: skip


def main() -> None:
    options = _options()
    os.environ |= SETTINGS
    warnings.simplefilter("ignore")
    if not options.report:
        for library in options.libraries:
            _run_library(library, options)
    write_table()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", nargs="*", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--only", nargs="*", default=[], help="names of models; they run again")
    parser.add_argument("--fresh", action="store_true", help="do again what has a result")
    parser.add_argument("--report", action="store_true", help="only write the table")
    return parser.parse_args()


def _run_library(library: str, options: argparse.Namespace) -> None:
    models = builder_of(library)
    if models is None:
        print(f"{library} is not installed", flush=True)
        return
    for name in options.only or NAMES[library]:
        path = BUILD / library / f"{name}.json"
        if name not in NAMES[library] or (path.exists() and not options.fresh and not options.only):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        found = _measured(models, name, path)
        found |= {"library": library, "name": name, "version": version(library), "torch": version("torch")}
        save(path, found)
        said = ", ".join(f"{mode} {found[mode]['outcome']} {found[mode].get('detail', '')}" for mode in MODES)
        print(f"{library} {name}: {said} ({time.perf_counter() - start:.0f} s)", flush=True)


def _measured(models: Any, name: str, path: Path) -> dict[str, Any]:
    """What became of a model in both modes."""
    import torch

    from export.zoo_cases import EagerFails, write_case
    from quickfuse import errors

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    files, notes = {}, {}
    for mode in MODES:
        files[mode] = path.with_name(f"{name}-{mode}.qfx")
        try:
            case = _built(models, name)
            notes[mode] = write_case(files[mode], case.model, case.args, case.kwargs, mode)
        except Exception as error:  # a model's failure is its result
            outcome = "refused" if isinstance(error, errors.QuickfuseError) else "error"
            found[mode] = {
                "outcome": "not run" if isinstance(error, EagerFails) else outcome, "detail": _in_words(error)
            }  # fmt: skip
            del files[mode]
    found |= {mode: entry | {"note": notes[mode]} for mode, entry in _compared(files).items()}
    for file in files.values():
        file.unlink(missing_ok=True)
        file.with_suffix(".pt").unlink(missing_ok=True)
    return found


def _built(models: Any, name: str) -> Any:
    """A model with the arguments of a call."""
    import torch

    from export.zoo_cases import EagerFails

    torch.manual_seed(0)
    try:
        case = models.build(name)
    except Exception as error:  # whatever a library raises
        raise EagerFails(f"{type(error).__name__}: {error}") from None
    for module in case.model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False  # a cache is an object of the library's, which no graph returns
    return case


def _in_words(error: Exception) -> str:
    """An error without the place where libraries are installed."""
    from export.zoo_cases import EagerFails

    text = re.sub(r"\S*site-packages/", "", " ".join(str(error).split()))
    kind = "" if isinstance(error, EagerFails) else f"{type(error).__name__}: "
    return f"{kind}{text}"[:250]


def _compared(files: dict[str, Path]) -> dict[str, Any]:
    if not files:
        return {}
    command = [sys.executable, str(HERE / "compare_files.py"), *map(str, files.values())]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    found = {entry.pop("file"): entry for entry in map(json.loads, done.stdout.splitlines())}
    said = (done.stderr.splitlines() or ["no answer"])[-1]
    if done.returncode:
        return {mode: {"outcome": "error", "detail": said} for mode in files}
    return {mode: found.get(str(file), {"outcome": "error", "detail": said}) for mode, file in files.items()}


def write_table() -> None:
    """The table of all results so far."""
    rows = [json.loads(path.read_text()) for path in sorted(BUILD.glob("*/*.json"))]
    right = [row for row in rows if all(row[mode]["outcome"] in ("equal", "close") for mode in MODES)]
    versions = {row["library"]: row["version"] for row in rows} | ({"torch": rows[0]["torch"]} if rows else {})
    lines = [
        "# Exported models of other libraries",
        "",
        "Written by `make export-zoo`. Each model is exported in evaluation and in training, saved, and loaded in a process",
        "that never imports its library. Values, gradients of all parameters, and buffers are compared with eager mode's:",
        "*equal* is bit for bit, *close* within 1e-5 of a tensor's largest value (gradients: 1e-3).",
        "",
        "*Refused* are those that cannot be a graph, and the error says why; *not run* those that fail in eager mode.",
        "Where the error is about an attribute that is set, export is tried again as the error says: after a call that",
        "fills caches, and then with `strict=False`, which leaves it out. The last column says which it was.",
        "",
        f"{', '.join(f'{name} {number}' for name, number in versions.items())}.",
        f"**{len(right)} of {len(rows)} models are right in both modes.**",
        "",
        "| library | models | right in both modes | equal bit for bit | wrong |",
        "| --- | --- | --- | --- | --- |",
    ]
    for library in dict.fromkeys(row["library"] for row in rows):
        ours = [row for row in rows if row["library"] == library]
        count = collections.Counter(row[mode]["outcome"] for row in ours for mode in MODES)
        good = sum(row in right for row in ours)
        lines.append(f"| {library} | {len(ours)} | {good} | {count['equal']} of {2 * len(ours)} | {count['wrong']} |")
    lines += ["", "| model | evaluation | training | gradients | buffers | detail |", f"|{' --- |' * 6}"]
    lines += [_line(row) for row in rows]
    TABLE.write_text("\n".join(lines) + "\n")
    print(f"{len(right)} of {len(rows)} models are right in both modes: {TABLE.relative_to(ROOT)}")


def _line(row: dict[str, Any]) -> str:
    modes = [row[mode] for mode in MODES]
    counts = [str(next((m[what] for m in modes if what in m), "")) for what in ("gradients", "buffers")]
    said = [m.get("note", "") if "distance" in m else m["detail"] for m in modes]
    details = "; ".join(dict.fromkeys(text for text in said if text))
    cells = [f"{row['library']} {row['name']}", *[m["outcome"] for m in modes], *counts, details.replace("|", "\\|")]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
