"""Scenarios that are written as text: programs of a field of research, with alternatives that are drawn.

In the text, `<<a || b>>` is one of them, and a line with nothing left is left out. `<NAME>` alone in a line is one of the
parts of that name. A function under `@compiled` is compiled; `{batch}` in a call stands for the arguments' source.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field

from lives import studies_layers, studies_loops, studies_networks, studies_objectives, studies_policies, studies_scripts
from lives.event import event
from lives.life import Life
from training.draft import Draft


@dataclass(frozen=True)
class Study:
    """A program: its setup with the functions that are compiled, calls by name, and events by name."""

    setup: str
    calls: dict[str, str]
    events: dict[str, str] = field(default_factory=dict)
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    watched: str = "optimizer"
    models: str = "model"
    optimizers: str = "optimizer"
    schedulers: str = ""
    lengths: bool = False


def drawn(d: Draft, text: str, parts: dict[str, tuple[str, ...]] | None = None) -> list[str]:
    """The lines of a text, with what was drawn in its places."""
    lines: list[str] = []
    for line in textwrap.dedent(text).strip("\n").split("\n"):
        name = re.fullmatch(r" *<([A-Z]+)>", line)
        if name is not None and name[1] in (parts or {}):
            part = drawn(d, d.pick(*(parts or {})[name[1]]), parts)
            lines += [line[: name.start(1) - 1] + inner for inner in part]
            continue
        chosen = re.sub(r"<<(.*?)>>", lambda found: d.pick(*found[1].split("||")).strip(), line)
        lines += [chosen.rstrip()] * bool(chosen.strip())
    return lines


def scenario(name: str, study: Study) -> Callable[[Life], None]:
    """What draws the program of a study."""

    def scenario(life: Life) -> None:
        d = life.d
        life.setup += _compiled(life, drawn(d, study.setup, study.parts))
        life.calls |= {call: drawn(d, text) for call, text in study.calls.items()}
        life.events += [event(kind, *drawn(d, text)) for kind, text in study.events.items()]
        life.models, life.optimizers = study.models.split(), study.optimizers.split()
        life.schedulers = study.schedulers.split()
        life.watched = list(dict.fromkeys([*life.models[1:], *study.watched.split()]))
        life.model.lengths = study.lengths

    scenario.__name__ = name
    return scenario


def _compiled(life: Life, lines: list[str]) -> list[str]:
    """The setup, where a function under `@compiled` has the name that others of its kind have."""
    made: list[str] = []
    for statement in ast.parse("\n".join(lines)).body:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]) - 1
        text = lines[first : statement.end_lineno]
        if isinstance(statement, ast.FunctionDef) and text[0] == "@compiled":
            name = statement.name
            made += [text[1].replace(f"def {name}(", f"def plain_{name}(", 1), *text[2:], f"{name} = compile(plain_{name})"]
            life.functions[name] = f"plain_{name}"
        else:
            made += text
    return made


SCENARIOS: dict[Callable[[Life], None], float] = {
    scenario(name, Study(**study)): 1.0
    for part in (studies_networks, studies_layers, studies_loops, studies_objectives, studies_policies, studies_scripts)
    for name, study in part.STUDIES.items()
}
