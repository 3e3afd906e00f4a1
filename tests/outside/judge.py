"""Compares a program of `outside` that was compiled with its twin in eager PyTorch, after each thing that it does.

What the documents say that compiled code does otherwise is a rule here, in words. A program in which one applies is judged up
to there: it is "documented" where the two differ, and right where they agree but have nothing in common from there on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lives.check import TOO_LATE, Comparison, Report
from lives.check import check as check_life
from lives.execute import Record
from quickfuse.launch.several_results import SECOND_TIME

AGAIN = SECOND_TIME[:50]


@dataclass(frozen=True)
class Step:
    """A step of a program, and those before it, in eager and compiled."""

    before: Sequence[str]
    eager: Record
    compiled: Record
    differences: Sequence[str]

    def happened(self, *names: str) -> bool:
        return any(name in names for name in (*self.before, self.eager.name))

    def only(self, pattern: str) -> bool:
        """Whether all that differs has a name of such a form."""
        return all(re.match(pattern, text) for text in self.differences)


@dataclass(frozen=True)
class Rule:
    words: str
    applies: Callable[[Step], bool]


CHANGES = ("input changed", "optimizer", "result changed", "result changed without gradients", "data of an input", "parameter",
           "in a block", "detached in place", "chained", "call")  # fmt: skip
SECOND = ("penalty", "kept gradients", "directional", "backward with graph", "checked")
RULES = [
    Rule("A result that needs gradients and is a view of what nobody has is no view: `detach_()`, which eager refuses, detaches it.",
         lambda s: "Can't detach views in-place" in s.eager.error and not s.compiled.error),
    Rule("Gradients that are views of one complex tensor in eager have memory of their own.",
         lambda s: s.only(r".*\[\[3, 1\]\] where eager has \[\[6, 2\]\]")),
    Rule("A gradient that eager hands on as an expanded view has memory of its own, where it crosses from one graph to another.",
         lambda s: s.only(r".*\[\[3, 1\]\] where eager has \[\[0, 0\]\]")),
    Rule("A graph holds references to inputs that backward may need again, so that they are not swapped while a result is alive.",
         lambda s: s.eager.name == "parameter" and bool(re.search("Cannot swap|use_count", s.compiled.error))),
    Rule("Backward raises for what was changed since, though this result's gradients do not need it in eager: an input that "
         "eager saves for another result may be read again for this one.",
         lambda s: TOO_LATE in s.compiled.error and not s.eager.error and s.happened(*CHANGES)),
    Rule("`backward(inputs=[w])` of several results, after others have freed what they saved, raises where `w` is reached "
         "without that.",
         lambda s: AGAIN in s.compiled.error and not s.eager.error and s.eager.name in ("backward to", "gradients", "batched", "directional", "kept gradients")),
    Rule("Hooks of a result, and its retained gradient, miss what second derivatives add.",
         lambda s: s.happened(*SECOND) and s.happened("retain", "hook of a result")
         and s.only(r"outs\[\d+\]\.grad|notes|len\(notes")),
    Rule("A result's memory that is changed as `data` is not seen where backward computes the value again.",
         lambda s: s.happened("data of a result")),
    Rule("Between forward and backward, a change of an input's `data` changes what is computed again of it.",
         lambda s: s.happened("data of an input")),
    Rule("A hook of a result that is a view, which is then changed in place, is called, where eager does not call it.",
         lambda s: s.happened("hook of a result") and s.happened("result changed", "result changed without gradients")
         and s.only("notes|len")),
]  # fmt: skip


def judge(report: Report, source: str, expected: list[Record], found: list[Record]) -> None:
    comparison = Comparison(source, expected, report)
    before: list[str] = []
    for at, (e, f) in enumerate(zip(expected, found, strict=True)):
        if TOO_LATE in e.error or AGAIN in e.error:
            # Eager raises in the middle of a backward, with some gradients given by then. One that was compiled computes
            # all of them first; it does not mind a change of what it computes again, or what others have freed.
            if f.error and TOO_LATE not in f.error and AGAIN not in f.error:
                report.note(at, e, f, [f"raised {f.error!r} where eager raised {e.error!r}"])
            return
        if differences := [*comparison.differences(at, e, f)]:
            report.note(at, e, f, differences)
            step = Step(before, e, f, differences)
            if rule := next((rule for rule in RULES if rule.applies(step)), None):
                report.kind, report.what, report.text = "documented", rule.words, f"{rule.words}\n{report.text}"
            return
        before.append(e.name)


def check(source: str, plain: bool = False, defaults: bool = False) -> Report:
    return check_life(source, plain, defaults, judge)
