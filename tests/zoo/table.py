"""The zoo's results as a table."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

_WAYS = ("eval", "gradients", "step")


def write(build: Path, path: Path) -> None:
    """Write benchmarks/results/zoo.md, and what it is made of as zoo.json, from the results in `build`."""
    found = [json.loads(file.read_text()) for file in sorted(build.glob("*/*.json"))]
    built = [model for model in found if "step" in model or "died" in model]
    unbuilt = sum("not built" in model for model in found)
    lines = [
        "# Models of other libraries",
        "",
        "Small models with random weights, compiled with the default backend, beside eager: evaluation, gradients of a call",
        "in training mode, and a whole training step (loss, backward, SGD) in one function. Written by `make zoo`.",
        f"{len(built)} models were measured; {unbuilt} more could not be built small by rules of thumb.",
        "",
        *_versions(built),
        "",
        "| library | models | right in all three | one graph in evaluation | one graph for a step | more than the peer |",
        "| --- | --- | --- | --- | --- | --- |",
        *[_summary(library, [m for m in built if m["library"] == library]) for library in _libraries(built)],
        "",
        f"One graph in {_single(built)} of the ways of use that are right.",
        "Graphs are those of the first call with operators; torch.compile's are counted beside them where there is more.",
        "Seconds are of the processor, with one thread.",
        "",
        *_commits(built),
        "",
        "| model | evaluation | graphs | torch.compile | operators | first call, s | gradients | graphs |"
        " torch.compile | step | graphs | torch.compile | first call, s | commit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *[_row(model) for model in built],
        "",
        "## Why graphs end",
        "",
        "| models | reason |",
        "| --- | --- |",
        *[f"| {count} | {reason.replace('|', '/')} |" for reason, count in _reasons(built).most_common(60)],
    ]
    path.write_text("\n".join(lines) + "\n")
    path.with_suffix(".json").write_text(json.dumps([_without_texts(model) for model in built], indent=0) + "\n")


def _single(models: list[dict[str, Any]]) -> str:
    graphs = [m[way]["graphs"] for m in models for way in _WAYS if m.get(way, {}).get("outcome") == "right"]
    return f"{graphs.count(1)} of {len(graphs)}"


def _without_texts(model: dict[str, Any]) -> dict[str, Any]:
    """A result without what tells of this machine."""
    ways = {way: {k: v for k, v in model[way].items() if k != "traceback"} for way in _WAYS if way in model}
    return model | ways


def _libraries(found: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(model["library"] for model in found))


def _versions(found: list[dict[str, Any]]) -> list[str]:
    known: dict[str, dict[str, None]] = {}
    for model in found:
        for name, version in model.get("versions", {}).items():
            known.setdefault(name, {})[version] = None
    return [", ".join(f"{name} {' and '.join(sorted(versions))}" for name, versions in known.items()) + "."]


def _commits(models: list[dict[str, Any]]) -> list[str]:
    """At which commits how many models were measured."""
    counts = Counter(model.get("commit", "") for model in models)
    known = [f"{commit} ({count})" for commit, count in counts.items() if commit]
    lines = [f"Measured at the commits {', '.join(known)}." if known else ""]
    if counts[""]:
        lines += [
            f"{counts['']} models without a commit were measured before 8697070, when the loss was the mean of the squares,",
            "which has no gradient below a normalization but rounding errors.",
        ]
    return lines


def _summary(library: str, models: list[dict[str, Any]]) -> str:
    fair = [m for m in models if not any(m.get(way, {}).get("outcome") == "eager fails" for way in _WAYS)]
    right = sum(all(m.get(way, {}).get("outcome") == "right" for way in _WAYS) for m in fair)
    single = [sum(m.get(way, {}).get("graphs") == 1 for m in models) for way in ("eval", "step")]
    more = sum(any(_more(m.get(way, {})) for way in _WAYS) for m in models)
    return f"| {library} | {len(models)} | {right} of {len(fair)} | {single[0]} | {single[1]} | {more} |"


def _more(way: dict[str, Any]) -> bool:
    """Whether there are more graphs than torch.compile's."""
    peer = way.get("peer_graphs")
    return isinstance(peer, int) and way.get("graphs", 0) > max(peer, 1)


def _row(model: dict[str, Any]) -> str:
    evaluation, gradients, step = (model.get(way, {}) for way in _WAYS)
    cells = [
        f"{model['library']} {model['name']}", _outcome(evaluation, model), evaluation.get("graphs", ""), _peer(evaluation),
        evaluation.get("operators", ""), evaluation.get("first_s", ""), _outcome(gradients, model),
        gradients.get("graphs", ""), _peer(gradients), _outcome(step, model), step.get("graphs", ""),
        _peer(step), step.get("first_s", ""), model.get("commit", ""),
    ]  # fmt: skip
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _outcome(way: dict[str, Any], model: dict[str, Any]) -> str:
    told = " (told)" if way.get("outcome") == "right" and way.get("detail") else ""
    return way.get("outcome", model.get("died", "")) + told


def _peer(way: dict[str, Any]) -> str:
    peer = way.get("peer_graphs", "")
    return str(peer) if isinstance(peer, int) or not peer else "error"


def _reasons(found: list[dict[str, Any]]) -> Counter[str]:
    """In how many models graphs end for each reason."""
    return Counter(
        reason
        for model in found
        for reason in {b["reason"] for way in _WAYS for b in model.get(way, {}).get("breaks", [])}
    )


def print_more_graphs(build: Path, known: Path) -> None:
    """Print what became of the models in `build` other than right, and those with more graphs than `known` results have."""
    before = {(m["library"], m["name"]): m for m in json.loads(known.read_text())}
    found = [json.loads(file.read_text()) for file in sorted(build.glob("*/*.json"))]
    outcomes, reasons = Counter[str](), Counter[str]()
    for model in found:
        name = f"{model['library']} {model['name']}"
        if "died" in model:
            print(f"{name}: {model['died']}")
        for way in _WAYS:
            made, wanted = model.get(way), before.get((model["library"], model["name"]), {}).get(way, {})
            if made is None:
                continue
            outcomes[made["outcome"]] += 1
            if made["outcome"] not in ("right", "eager fails"):
                print(f"{name}, {way}: {made['outcome']}: {made['detail'][:200]}")
            graphs = made.get("graphs", 0)
            if graphs <= wanted.get("graphs", graphs) and not made.get("native"):
                continue
            breaks = [f"{b['reason']} at {b['location']}" for b in made["breaks"]]
            said = [made["native"]] if made["native"] else breaks
            reasons.update({text.partition(" at ")[0] for text in said})
            print(f"{name}, {way}: {graphs} graphs, {wanted.get('graphs')} on the CPU: {'; '.join(said[:3])[:300]}")
    print(dict(outcomes))
    print("\n".join(f"{count} {reason}" for reason, count in reasons.most_common(40)))
