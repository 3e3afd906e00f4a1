"""Compares a program of `outside` that was compiled with its twin in eager PyTorch, after each thing that it does.

What the documents say that compiled code does otherwise is a rule here, in words. A program in which one applies is judged
up to there: it is "documented" where the two differ, and right where they agree but have nothing in common from there on.
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
#: What eager raises in the middle of a backward, with some gradients given by then.
LATE = (TOO_LATE, AGAIN, "saved tensor that has been detached in-place")


@dataclass(frozen=True)
class Step:
    """A step of a program, and those before it, in eager and compiled."""

    before: Sequence[str]
    eager: Record
    compiled: Record
    differences: Sequence[str]
    source: str

    def happened(self, *names: str) -> bool:
        return any(name in names for name in (*self.before, self.eager.name))

    def only(self, pattern: str) -> bool:
        """Whether all that differs has a name of such a form."""
        return all(re.match(pattern, text) for text in self.differences)


@dataclass(frozen=True)
class Rule:
    words: str
    applies: Callable[[Step], bool]


CHANGES = ("input changed", "optimizer", "result changed", "result changed without gradients", "data of an input",
           "parameter", "in a block", "detached in place", "chained", "call")  # fmt: skip
SECOND = ("penalty", "kept gradients", "directional", "backward with graph", "checked")
ASKED = ("backward to", "gradients", "gradients of results", "batched", "directional", "kept gradients", "penalty")
RULES = [
    Rule("Backward raises for what was changed since, though this result's gradients do not need it in eager: an input "
         "that eager saves for another result may be read again for this one.",
         lambda s: TOO_LATE in s.compiled.error and not s.eager.error and s.happened(*CHANGES)),
    Rule("Asked for the gradients of some inputs, a result raises after others have freed what they saved, where these "
         "inputs are reached without that; and it frees also what other inputs need.",
         lambda s: AGAIN in s.compiled.error and not s.eager.error and s.happened(*ASKED)),
    Rule("A result that retains its gradient gets one also where it does not lead to what is asked for.",
         lambda s: s.happened("retain", "hook of a module") and s.eager.name in ASKED
         and s.only(r"outs\[\d+\]\.grad|only in one.*outs")),
    Rule("Hooks of a result, and its retained gradient, miss what second derivatives add.",
         lambda s: s.happened(*SECOND) and s.happened("retain", "hook of a result")
         and s.only(r"outs\[\d+\]\.grad|notes|len\(notes|only in one.*notes")),
    Rule("So gradients differ where such a hook changes them.",
         lambda s: s.eager.name in SECOND and s.happened("hook of a result")
         and s.only(r"\w+(\[\d+\])?\.grad|notes|len\(notes") and any(text.startswith("notes") for text in s.differences)),
    Rule("A result's memory that is changed as `data` is not seen where backward computes the value again.",
         lambda s: s.happened("data of a result")),
    Rule("Between forward and backward, a change of an input's `data` changes what is computed again of it.",
         lambda s: s.happened("data of an input") or ".data.mul_" in s.source),
    Rule("A hook of a result that is a view, which is then changed in place, is called, where eager does not call it.",
         lambda s: s.happened("hook of a result") and s.happened("result changed", "result changed without gradients")
         and s.only("notes|len|only in one.*notes")),
    Rule("A result that needs gradients and is a view of what nobody has is no view, and one made under `no_grad` does not "
         "know of that: eager refuses `detach_()` of the first, and changes of the second that need gradients.",
         lambda s: not s.compiled.error
         and bool(re.search("Can't detach views in-place|A view was created in no_grad", s.eager.error))),
    Rule("Gradients that are views in eager, of one complex number or expanded, may have memory of their own.",
         lambda s: s.only(r".*\[\[3, 1\]\] where eager has \[\[(6, 2|0, 0)\]\]")),
    Rule("A graph refers to other inputs than eager saves, on which depends whether they can be swapped while a "
         "result is alive.",
         lambda s: s.eager.name == "parameter"
         and bool(re.search("Cannot swap|use_count", s.compiled.error + s.eager.error))),
    Rule("A result ends before the graph that it was computed in, where eager has saved it.",
         lambda s: s.eager.name == "weak references" and s.only(r"result\[0\]\[0\]: True where eager has False")),
    Rule("A result lives as long as one that was computed from it, where that graph is compiled in parts.",
         lambda s: s.eager.name == "weak references" and s.only(r"result\[0\]\[0\]: False where eager has True")),
    Rule("An operator that PyTorch's `meta` device takes and the CPU does not, or that would save an inference tensor, does "
         "not raise, where nothing uses it and something needs gradients.",
         lambda s: bool(re.search("BFloat16|Inference tensors cannot be saved", s.eager.error)) and not s.compiled.error),
]  # fmt: skip


def judge(report: Report, source: str, expected: list[Record], found: list[Record]) -> None:
    comparison = Comparison(source, expected, report, units=32)  # norms of three elements, differentiated twice
    before: list[str] = []
    for at, (e, f) in enumerate(zip(expected, found, strict=True)):
        if any(late in e.error for late in LATE):
            # One that was compiled computes all gradients before it gives any, and does not mind a change of what it
            # computes again: from here on the two have nothing in common.
            if f.error and not any(late in f.error for late in LATE):
                report.note(at, e, f, [f"raised {f.error!r} where eager raised {e.error!r}"])
            return
        if differences := [*comparison.differences(at, e, f)]:
            report.note(at, e, f, differences)
            step = Step(before, e, f, differences, source)
            if rule := next((rule for rule in RULES if rule.applies(step)), None):
                report.kind, report.what, report.text = "documented", rule.words, f"{rule.words}\n{report.text}"
            return
        before.append(e.name)


def check(source: str, plain: bool = False, defaults: bool = False, mode: str | None = None) -> Report:
    return check_life(source, plain, defaults, mode, judge)
