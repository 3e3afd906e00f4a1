"""Text templates with typed holes: `<int> + <int>` becomes a random expression.

A hole is `<kind>`, an expression of that kind, or `<how kind>`, or `<how:x kind>`; `<x>` repeats what was put there.
  var     a variable in scope
  mut     a variable that this function may bind again
  new     a new variable, in scope from the next line on
  later   a new variable, in scope after the whole template
  local   a new variable, in scope in this template only: from the next line on, or in all of an expression
  arg     a new variable, in scope in this line only
  outer   an expression that does not use the template's own `local` variables (the first iterable of a comprehension)
  lit     a literal
  call    a call of a helper function that returns this kind
A line that is only `<block>`, `<loop>`, `<guarded>` or `<arm>` is replaced by random statements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

HOLE = re.compile(r"<(?:(?P<how>[a-z]+)(?::(?P<label>[a-z]))? )?(?P<kind>[a-z]+)>")
BLOCK = re.compile(r"\s*<(block|loop|guarded|arm)>$")


class NoWay(Exception):
    """A template needs something that is not in scope: a variable of `kind`, if that is what would help."""

    def __init__(self, kind: str = "") -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True)
class Template:
    """`needs` are flags of the scope without which the template makes no sense (`break` outside of a loop)."""

    weight: int
    feature: str
    needs: frozenset[str]
    text: str

    @property
    def has_block(self) -> bool:
        return any(BLOCK.match(line) for line in self.text.splitlines())


def parse_expressions(text: str) -> dict[str, list[Template]]:
    """Read a table: a line with a kind, then indented lines with weight, feature[@needs] and template."""
    table: dict[str, list[Template]] = {}
    kind = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            kind = line.strip()
        elif line.strip():
            weight, feature, template = line.split(maxsplit=2)
            name, *needs = feature.split("@")
            table.setdefault(kind, []).append(Template(int(weight), name, frozenset(needs), template))
    return table


def parse_statements(text: str) -> list[Template]:
    """Read a table: paragraphs that begin with `[weight feature@needs]`."""
    table = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        head, _, body = paragraph.partition("\n")
        weight, feature = head.strip("[]").split()
        name, *needs = feature.split("@")
        table.append(Template(int(weight), name, frozenset(needs), body))
    return table


@dataclass
class Helper:
    """A function that expressions may call: templates of calls, by what they return."""

    name: str
    returns: str
    calls: list[str]
    feature: str = "call-helper"
    needs: frozenset[str] = frozenset()


@dataclass
class Scope:
    """What code at some place may use. `own` are the variables that this function may bind again or delete."""

    visible: dict[str, str] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    helpers: list[Helper] = field(default_factory=list)
    returns: str = "int"
    yields: str = "int"
    hidden: set[str] = field(default_factory=set)

    def copy(self) -> Scope:
        return replace(
            self, visible=dict(self.visible), own=set(self.own), flags=set(self.flags), helpers=list(self.helpers),
            hidden=set(self.hidden),
        )  # fmt: skip

    def of_kind(self, kind: str, own: bool = False) -> list[str]:
        names = [n for n, k in self.visible.items() if k == kind and n not in self.hidden]
        return [n for n in names if n in self.own] if own else names
