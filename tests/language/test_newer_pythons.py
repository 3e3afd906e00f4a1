"""What only newer versions of Python have. Programs that older ones cannot read are strings."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import pytest
import torch

import quickfuse

X = torch.randn(3, generator=torch.Generator().manual_seed(5))


def run(program: str, *args: Any) -> tuple[Any, Any]:
    """What the function `f` of a program gives in eager and compiled, the second time."""
    space: dict[str, Any] = {"torch": torch, "__name__": "program"}
    exec(compile(textwrap.dedent(program), "<program>", "exec", dont_inherit=True), space)
    eager = space["f"](*args)
    compiled = quickfuse.compile(space["f"], options={"raise_internal_errors": True})
    compiled(*args)
    return eager, compiled(*args)


def check(program: str, *args: Any) -> None:
    eager, ours = run(program, *args)
    torch.testing.assert_close(ours, eager, rtol=0, atol=0)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs Python 3.14")
def test_template_strings() -> None:
    program = """
        def f(x, n):
            y = x * n
            t = t"{y.sum().item()!r:>{n}} and {n}"
            return y + 1, [i.value for i in t.interpolations], t.interpolations[0].format_spec
    """
    eager, ours = run(program, X, 3)
    torch.testing.assert_close(ours[0], eager[0], rtol=0, atol=0)
    assert ours[1:] == eager[1:]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs Python 3.14")
def test_deferred_annotations_of_a_function_that_is_made_inside() -> None:
    program = """
        def f(x):
            def inner(a: torch.Tensor, b: Later = 3) -> Never:
                return a + b
            Later = int
            names = sorted(inner.__annotate__.__code__.co_names)
            return inner(x), inner.__defaults__, len(names)
    """
    eager, ours = run(program, X)
    torch.testing.assert_close(ours[0], eager[0], rtol=0, atol=0)
    assert ours[1:] == eager[1:]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs Python 3.14")
def test_partial_with_placeholders() -> None:
    check("""
        import functools
        shifted = functools.partial(torch.sub, functools.Placeholder, 2.0)
        def f(x):
            return shifted(x) * 3
    """, X)  # fmt: skip


def test_with_whose_exit_is_no_method() -> None:
    check("""
        log = []
        class Manager:
            __enter__ = staticmethod(lambda: log.append("enter") or 2)
            __exit__ = staticmethod(lambda *error: log.append("exit") or True)
        def f(x):
            with Manager() as n:
                x = x * n
                print(end="")
                for i in range(3):
                    x = x + i
                x.no_such_attribute
            return x, len(log) % 2
    """, X)  # fmt: skip


def test_a_comparison_of_tensors_in_a_try() -> None:
    """The condition is made a Boolean within the `try`, also where that is part of the comparison."""
    check("""
        def f(x):
            try:
                if x > 0:
                    return x
            except RuntimeError:
                return x + 1
            return x - 1
    """, X)  # fmt: skip


def test_a_condition_on_a_tensor() -> None:
    program = """
        def f(x):
            n = 0
            while x.sum() < 20:
                x, n = x * x + 1, n + 1
                if not (x > 3).any():
                    x = x + 0.5
            return x, n
    """
    check(program, X)


def test_keywords_defaults_and_cells() -> None:
    check("""
        def f(x, *args, **options):
            k = 2
            def inner(a, b=x, *, c=3, **rest) -> "Tensor":
                nonlocal k
                k += 1
                return a * b + c * k + sum(rest.values())
            return inner(x, c=4, d=5), inner(*[x], **{"b": x + 1}), k, f"{k!r:>4}{k:{k}}"
    """.replace(', f"{k!r:>4}{k:{k}}"', ', len(f"{k!r:>4}{k:{k}}")'), X)  # fmt: skip


def test_arguments_from_a_global() -> None:
    """In 3.14 the NULL for "no keyword arguments" comes with the load of the global. `print` makes it the end of a graph."""
    check("""
        PAIR, ONE, NAMED = (2, 3), ("",), {"end": ""}
        def added(a, b, c=1):
            return a * 10 + b + c
        def f(x):
            y = x * added(*PAIR)
            print(*ONE, end="")
            print(*ONE, **NAMED)
            def nested():
                return added(*PAIR) + y
            return nested() + added(*PAIR, **{"c": 4}), max(*PAIR), max(*PAIR, *PAIR)
    """, X)  # fmt: skip


def test_annotations_whose_names_are_missing_when_a_recompilation_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    space: dict[str, Any] = {"torch": torch, "__name__": "program"}
    later = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    program = f"{later}def f(x: Missing, n: Other = 2) -> Never:\n    return x * 2 if n > 3 else x + n"
    exec(compile(program, "<program>", "exec", dont_inherit=True), space)
    compiled = quickfuse.compile(space["f"], options={"raise_internal_errors": True})
    quickfuse.set_logs(recompiles=True)
    try:
        for n in (1, 5, 2):
            torch.testing.assert_close(compiled(X, n), space["f"](X, n), rtol=0, atol=0)
    finally:
        quickfuse.set_logs(recompiles=False)
