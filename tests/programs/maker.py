"""Fills templates: the random part of the generator."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from programs.expressions import EXPRESSIONS, LITERALS, PREFIXES
from programs.statements import GROUPS
from programs.templates import BLOCK, HOLE, Helper, NoWay, Scope, Template

#: What an assignment to a new variable, a parameter or an item of a result may be.
VALUES = {
    "mat": 12, "int": 6, "ints": 5, "mats": 4, "float": 3, "str": 3, "scal": 3, "vec": 2, "ten": 2, "imat": 1, "bool": 2,
    "intmap": 3, "matmap": 3, "idmap": 1, "intset": 2, "triple": 2, "couple": 2, "pair": 2, "settings": 1, "matqueue": 1,
    "intqueue": 1, "groups": 1, "counts": 1, "point": 1, "box": 3, "matfn": 3, "intfn": 2, "intgen": 2, "matgen": 2,
    "nested": 1, "opt": 2, "strs": 1,
}  # fmt: skip

#: Holes that are new variables.
NEW = ("new", "local", "later", "arg")

IDENTIFIER = re.compile(r"[\w.]+$")


class Maker:
    """Makes expressions and statements that make sense in `scope`; notes the features that it used."""

    def __init__(self, random: Any) -> None:
        self.random = random
        self.scope = Scope()
        self.features: list[str] = []
        self.names = 0
        self.budget = 0

    # choices ------------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def weighted(self, weights: dict[Any, int]) -> Any:
        return self.random.choices(list(weights), list(weights.values()))[0]

    def value_kind(self) -> str:
        kinds = VALUES if "methods" in self.scope.flags else {k: w for k, w in VALUES.items() if k != "box"}
        return str(self.weighted(kinds))

    def pick(self, table: list[Template], blocks: bool = True) -> Template:
        """A template whose needs the scope meets."""
        usable = [t for t in table if t.needs <= self.scope.flags and (blocks or not t.has_block)]
        if not usable:
            raise NoWay
        return self.random.choices(usable, [t.weight for t in usable])[0]  # type: ignore[no-any-return]

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{PREFIXES[kind]}{self.names}"

    # expressions --------------------------------------------------------------------------------------------------

    def expression(self, kind: str, depth: int) -> str:
        """A random expression of this kind.

        Raises:
            NoWay: if there is none, for lack of a variable.
        """
        if depth > 0 and self.chance(0.75):
            for _ in range(6):
                saved = self.save()
                try:
                    return self.from_template(kind, depth)
                except NoWay:
                    self.restore(saved)
        return self.atom(kind)

    def from_template(self, kind: str, depth: int) -> str:
        template = self.pick(EXPRESSIONS.get(kind, []))
        if template.feature == "walrus" and "no-walrus" in self.scope.flags:
            raise NoWay
        self.features.append(template.feature)
        return self.line(template.text, {}, depth - 1, inside=True)

    def atom(self, kind: str) -> str:
        names = self.scope.of_kind(kind)
        if kind == "result" or kind == "item":
            return self.expression(self.scope.returns if kind == "result" else self.scope.yields, 1)
        if names and self.chance(0.8) or kind not in LITERALS:
            if not names:
                raise NoWay(kind)
            return str(self.random.choice(names))
        for _ in range(8):
            with contextlib.suppress(NoWay):
                return self.line(self.random.choice(LITERALS[kind]), {}, 0)
        raise NoWay(kind)

    def call(self, returns: str, depth: int) -> str:
        helpers = [h for h in self.scope.helpers if h.returns == returns and h.needs <= self.scope.flags]
        if not helpers:
            raise NoWay
        helper: Helper = self.random.choice(helpers)
        self.features.append(helper.feature)
        return self.line(self.random.choice(helper.calls), {}, depth)

    # templates ----------------------------------------------------------------------------------------------------

    def line(
        self, text: str, labels: dict[str, str], depth: int, later: dict[str, str] | None = None, inside: bool = False
    ) -> str:
        """Fill the holes of a line. New variables get into scope after it, those of `later` in the caller's good time.

        With `inside`, the text is an expression, and its `local` variables are in scope in it.
        """
        later = {} if later is None else later
        fresh: dict[str, str] = {}
        hidden = []
        for match in HOLE.finditer(text):
            how, label, kind = match["how"], match["label"], match["kind"]
            if how in NEW and (label is None or label not in labels):
                name = self.name(kind)
                if label:
                    labels[label] = name
                if how == "arg" or how == "local" and inside:
                    self.scope.visible[name] = kind
                    hidden.append(name)
                else:
                    (later if how == "later" else fresh)[name] = kind
                fresh.setdefault(f"@{match.start()}", name)

        def fill(match: re.Match[str]) -> str:
            how, label, kind = match["how"], match["label"], match["kind"]
            if how is None and kind in labels:
                return labels[kind]
            if how in NEW:
                return labels[label] if label else fresh[f"@{match.start()}"]
            if how in ("var", "mut"):
                return self.variable(kind, how == "mut", label, labels)
            filled = self.call(kind, depth) if how == "call" else self.hole(how, kind, depth, hidden)
            return filled if IDENTIFIER.match(filled) else f"({filled})"

        result = HOLE.sub(fill, text)
        for name in hidden:
            self.scope.visible.pop(name, None)
        for name, kind in fresh.items():
            if not name.startswith("@"):
                self.scope.visible[name] = kind
                if name != labels.get("i"):  # the counter of a loop must only count
                    self.scope.own.add(name)
        return result

    def variable(self, kind: str, own: bool, label: str | None, labels: dict[str, str]) -> str:
        names = self.scope.of_kind(kind, own)
        if not names:
            raise NoWay("" if own else kind)
        name = str(self.random.choice(names))
        if label:
            labels[label] = name
        return name

    def hole(self, how: str | None, kind: str, depth: int, local: list[str]) -> str:
        if how != "outer":
            return self.expression(kind, depth)
        saved = set(self.scope.hidden), set(self.scope.flags)
        self.scope.hidden |= set(local)
        self.scope.flags.add("no-walrus")
        try:
            return self.expression(kind, depth)
        finally:
            self.scope.hidden, self.scope.flags = saved

    # statements ---------------------------------------------------------------------------------------------------

    def block(self, size: int, depth: int, indent: str) -> list[str]:
        """Up to `size` random statements, and at least one line."""
        lines: list[str] = []
        for _ in range(size):
            if self.budget <= 0:
                break
            lines += self.statement(depth, indent)
        return lines or [f"{indent}pass"]

    def statement(self, depth: int, indent: str) -> list[str]:
        self.budget -= 1
        for _ in range(10):
            saved = self.save()
            try:
                if self.chance(0.15):
                    return [indent + self.definition(self.value_kind())]
                group = self.random.choices([g for *_, g in GROUPS], [w[depth > 0] for *w, _ in GROUPS])[0]
                return self.compound(self.pick(group, depth > 0), depth, indent)
            except NoWay:
                self.restore(saved)
        return [f"{indent}pass"]

    def definition(self, kind: str) -> str:
        return self.line(f"<new {kind}> = <{kind}>", {}, self.random.choice([1, 2, 2, 3]))

    def compound(self, template: Template, depth: int, indent: str) -> list[str]:
        """Fill a template of one or more lines; a variable that it lacks is often defined before it."""
        saved = self.save()
        try:
            return self.filled(template, depth, indent)
        except NoWay as missing:
            if missing.kind not in VALUES or self.chance(0.3):
                raise
            self.restore(saved)
            first = self.definition(missing.kind)
            return [indent + first, *self.filled(template, depth, indent)]

    def filled(self, template: Template, depth: int, indent: str) -> list[str]:
        """The lines of a template, with its blocks."""
        self.features.append(template.feature)
        labels: dict[str, str] = {}
        later: dict[str, str] = {}
        before = dict(self.scope.visible)
        lines = []
        local: set[str] = set()
        for text in template.text.splitlines():
            if block := BLOCK.match(text):
                lines += self.nested(block[1], depth, indent + text[: len(text) - len(text.lstrip())])
                continue
            for match in HOLE.finditer(text):
                if match["how"] == "local" and match["label"]:
                    local.add(match["label"])
            lines.append(indent + self.line(text, labels, self.random.choice([1, 1, 2]), later))
        gone = {labels[label] for label in local}
        added = {n: k for n, k in self.scope.visible.items() if n not in before and n not in gone}
        self.scope.visible = {n: k for n, k in before.items() if n in self.scope.visible} | added | later
        self.scope.own |= set(later)
        return self.drop_deleted(lines)

    def drop_deleted(self, lines: list[str]) -> list[str]:
        for line in lines:
            if match := re.match(r"\s*del (\w+)$", line):
                self.scope.visible.pop(match[1], None)
        return lines

    def nested(self, kind: str, depth: int, indent: str) -> list[str]:
        """A block inside a statement: what it defines stays inside."""
        outside = self.scope
        self.scope = outside.copy()
        if kind == "loop":
            self.scope.flags.add("loop")
        if kind == "guarded":
            self.scope.flags.add("protected")
        size = 1 if kind == "arm" else self.random.choice([1, 2, 2, 3, 4])
        lines = self.block(size, depth - 1, indent)
        self.scope = outside
        return lines

    # undoing ------------------------------------------------------------------------------------------------------

    def save(self) -> tuple[Scope, int]:
        return self.scope.copy(), len(self.features)

    def restore(self, saved: tuple[Scope, int]) -> None:
        self.scope = saved[0].copy()
        del self.features[saved[1] :]
