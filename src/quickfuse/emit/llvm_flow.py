"""Control flow in LLVM IR: loops and branches that carry values along, with what is inside them written by functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quickfuse.emit.llvm_math import Code, Module

#: The type and the name of a value that a loop or a branch carries along.
Carried = tuple[str, str]


@dataclass(slots=True, eq=False)
class Scope:
    """The text between two ends of a loop or a branch, and the vectors of which all lanes are a number made there."""

    lines: list[str] = field(default_factory=list)
    spread: dict[tuple[str, str], str] = field(default_factory=dict)


class Flow:
    """The body of a function.

    `entry` is what is executed first; `numbers` writes where the current scope is. Text of an inner scope is put into the
    outer one when it ends, so that outer ones, too, can still be written to, for what is to be computed only once.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.entry = Code(module)
        self.numbers = Code(module)
        self.block = "entry"  # the basic block that is written to
        self.attributes = ""
        self._enter(Scope())

    def _enter(self, scope: Scope) -> None:
        self.scope = scope
        self.numbers.lines = scope.lines

    def function(self, head: str) -> list[str]:
        """The lines of the whole function."""
        head = f"define internal void {head} #0 {self.attributes} {{"
        return [head, "entry:", *self.entry.lines, *self.scope.lines, "  ret void", "}", ""]

    def _nested(self, body: Callable[[], Sequence[str]]) -> tuple[list[str], Sequence[str]]:
        outer, inner = self.scope, Scope()
        self._enter(inner)
        results = body()
        self._enter(outer)
        return inner.lines, results

    def _label(self, hint: str) -> str:
        self.module.names += 1
        return f"{hint}.{self.module.names}"

    def _phis(self, names: list[str], carried: Sequence[Carried], before: str, ends: Sequence[str]) -> list[str]:
        """What is carried, from the block before or from where `ends` were made."""
        return [f"  {name} = phi {type_} [ {start}, %{before} ], [ {end}, %{self.block} ]"
                for name, (type_, start), end in zip(names, carried, ends, strict=True)]  # fmt: skip

    def repeat(
        self, hint: str, begin: str, end: str, step: str, carried: Sequence[Carried],
        body: Callable[[str, list[str]], Sequence[str]],
    ) -> Sequence[str]:  # fmt: skip
        """A loop from `begin` to `end`, which is run at least once. `body` gets the index and the names of what is carried
        along, and returns the names of what comes next. Returns those of the last iteration."""
        label, before = self._label(hint), self.block
        self.block = label
        index = f"%{label}.i"
        names = [f"%{label}.v{k}" for k in range(len(carried))]
        lines, ends = self._nested(lambda: body(index, names))
        phis = self._phis(names, carried, before, ends)
        self.scope.lines += [
            f"  br label %{label}",
            f"{label}:",
            f"  {index} = phi i64 [ {begin}, %{before} ], [ {index}.next, %{self.block} ]",
            *phis,
            *lines,
            f"  {index}.next = add i64 {index}, {step}",
            f"  {index}.more = icmp slt i64 {index}.next, {end}",
            f"  br i1 {index}.more, label %{label}, label %{label}.after",
            f"{label}.after:",
        ]
        self.block = f"{label}.after"
        return ends

    def when(self, condition: str, carried: Sequence[Carried], body: Callable[[], Sequence[str]]) -> list[str]:
        """What `body` returns where the condition holds, what was carried to here elsewhere."""
        label, before = self._label("when"), self.block
        self.block = label
        lines, ends = self._nested(body)
        names = [f"%{label}.v{k}" for k in range(len(carried))]
        phis = self._phis(names, carried, before, ends)
        self.scope.lines += [
            f"  br i1 {condition}, label %{label}, label %{label}.after",
            f"{label}:",
            *lines,
            f"  br label %{label}.after",
            f"{label}.after:",
            *phis,
        ]
        self.block = f"{label}.after"
        return names

    def load_word(self, code: Code, word: int, type_: str = "i64", name: str = "word") -> str:
        """A word of the member's row."""
        return code.let(f"load {type_}, ptr {code.let(f'getelementptr i64, ptr %row, i64 {word}')}", name)

    def least(self, code: Code, one: str, two: str) -> str:
        return code.let(f"select i1 {code.let(f'icmp slt i64 {one}, {two}')}, i64 {one}, i64 {two}")
