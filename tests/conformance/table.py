"""The summary of a conformance run, as a table to read and as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from measure import HOW
from run import records

_TITLES = {"forward": "Results", "gradients": "Gradients"}
_RIGHT_WAYS = ("fused", "extern")


def write(build: Path, results: Path, device: str) -> None:
    """Write conformance.md and conformance.json (for a GPU: conformance-cuda) from the records under `build`."""
    stem, where = ("conformance", "the CPU") if device == "cpu" else (f"conformance-{device}", _device_name())
    command = "make conformance" if device == "cpu" else f"make conformance DEVICE={device}"
    found = {name: records(build / f"{name}.jsonl") for name in _TITLES}
    lines = [
        "# PyTorch's operators through the default backend", "",
        f"Made by `{command}`: every sample of every operator in `torch.testing._internal`'s `op_db`, run in eager",
        f"mode and compiled, on {where}. Compared are values, type, shape, strides, memory shared with the arguments, the",
        "arguments afterwards, the random numbers drawn, and the exception where eager raises one.", "",
        "*fused*: in kernels alone. *extern*: calls of PyTorch's own operators, and kernels. *operator by operator*: the",
        "captured graph runs as PyTorch calls. *break*, *natively*: in parts, or as plain Python. An operator counts by the",
        "worst of its samples.", "",
    ]  # fmt: skip
    for name, title in _TITLES.items():
        if found[name]:
            lines += _section(title, found[name])
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{stem}.md").write_text("\n".join(lines).rstrip() + "\n")
    summary = {name: sorted(map(_brief, rs), key=lambda r: (r["operator"], r["dtype"])) for name, rs in found.items() if rs}
    (results / f"{stem}.json").write_text(_one_line_each(summary))
    print(f"written: {results / f'{stem}.md'}")


def _device_name() -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "a GPU"
    return f"{name} (PyTorch {torch.__version__})"


def _section(title: str, found: list[dict[str, Any]]) -> list[str]:
    lines = [f"## {title}", "", "| type | operators | samples | right | wrong | " + " | ".join(HOW[:-1]) + " |"]
    lines += ["| --- |" + " ---: |" * (len(HOW) + 3)]
    for dtype in dict.fromkeys(r["dtype"] for r in found):
        of_type = [r for r in found if r["dtype"] == dtype]
        worst = Counter(map(_worst, of_type))
        wrong = sum(r["wrong_cases"] for r in of_type)
        samples = sum(r["cases"] for r in of_type)
        cells = [dtype, len(of_type), samples, samples - wrong, wrong, *(worst[how] for how in HOW[:-1])]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    most = {r.get("most_samples") for r in found} - {None}
    if most:
        lines += ["", f"Of some operators only the first {min(most)} samples were run."]
    lines += ["", *_wrong(found), *_reasons(found), *_externs(found)]
    return lines


def _worst(record: dict[str, Any]) -> str:
    """How an operator runs: the worst way in which one of its samples ran."""
    ways = [how for how in HOW[:-1] if record["how"].get(how)]
    return ways[-1] if ways else "fused"


def _wrong(found: list[dict[str, Any]]) -> list[str]:
    bad = [r for r in found if r["wrong_cases"]]
    if not bad:
        return []
    rows = [f"| {r['operator']} | {r['dtype']} | {r['wrong_cases']} of {r['cases']} | {_cell(r['wrong'][0])} |" for r in bad]
    return ["### Not as in eager", "", "| operator | type | samples | the first |", "| --- | --- | --- | --- |", *rows, ""]


def _reasons(found: list[dict[str, Any]]) -> list[str]:
    operators: dict[str, dict[str, None]] = defaultdict(dict)
    for record in found:
        for reason in record["reasons"]:
            operators[reason][record["operator"]] = None
    if not operators:
        return []
    rows = [
        f"| {_cell(reason)} | {', '.join(sorted(names))} |"
        for reason, names in sorted(operators.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    head = ["### What is not in one graph of kernels and calls", "", "| the log says | operators |", "| --- | --- |"]
    return [*head, *rows, ""]


def _externs(found: list[dict[str, Any]]) -> list[str]:
    ways: dict[str, set[str]] = defaultdict(set)
    for record in found:
        ways[record["operator"]].update(how for how in HOW[:-1] if record["how"].get(how))
    fused = sorted(name for name, how in ways.items() if how == {"fused"})
    partly = sorted(name for name, how in ways.items() if "fused" in how and how != {"fused"})
    return [
        f"### Fused: {len(fused)} operators in kernels alone, {len(partly)} more for some samples or types", "",
        ", ".join(fused) + ".", "", "For some: " + ", ".join(partly) + ".", "",
    ]  # fmt: skip


def _brief(record: dict[str, Any]) -> dict[str, Any]:
    kept = ("operator", "dtype", "cases", "wrong_cases", "how", "reasons", "wrong")
    return {key: record[key] for key in kept if record[key] or key == "wrong_cases"}


def _one_line_each(summary: dict[str, list[dict[str, Any]]]) -> str:
    parts = [f'"{name}": [\n' + ",\n".join(json.dumps(r) for r in rs) + "\n]" for name, rs in summary.items()]
    return "{" + ",\n".join(parts) + "}\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
