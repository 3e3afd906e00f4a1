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


def test_sums_of_floats() -> None:
    """From 3.12 on they make up for rounding errors, of numbers from outside and out of tensors as well."""
    program = """
        weights = [0.1, 0.2, 0.3]
        def f(x, a, b, c):
            weights[0] = a
            d = x.double()
            items = [(d[k] * 10.0 ** (k * 15)).item() / 3 for k in range(3)]
            sums = [sum([a, b, c]), sum((a, b, c), 0.1), sum([1, a, b, c]), sum([a, 1, b]), sum(weights), sum([0.1] * 10)]
            sums += [sum(items), sum([a, *items, 2, b], 3), sum([a, b, c, 1j]), sum([0.1j] * 7 + [a, 0.2j]), len(sums)]
            return sums, d * sum([a, b, c]), d * sum(items), d + sum([1, *items, 2, a]), sum([a, b, c, x, 0.1, 0.2])
    """
    for numbers in ((0.1, 0.2, 1e16), (1e100, 3.3, -1e100), (0.1, 0.7, -0.3), (float("inf"), 1.0, 2.5)):
        check(program, X, *numbers)


def test_a_sum_of_strings_is_refused() -> None:
    check("""
        def f(x):
            try:
                return sum(["a", "b"], "")
            except TypeError:
                return x + 1
    """, X)  # fmt: skip


def test_class_patterns_that_python_refuses() -> None:
    program = """
        class Twice:
            __match_args__ = ("a", "a")
            a = 1
        class Listed:
            __match_args__ = ["a"]
            a = 1
        class Numbered:
            __match_args__ = ("a", 3)
            a = 1
        class Number:
            __match_args__ = 5
        def f(x):
            found = []
            for k, value in enumerate([Twice(), Twice(), Listed(), Numbered(), Number(), 3, Twice()]):
                try:
                    match k, value:
                        case 0, Twice(a, b): found.append((a, b))
                        case 1, Twice(b, a=a): found.append((a, b))
                        case 2, Listed(a): found.append(a)
                        case 3, Numbered(a, b): found.append((a, b))
                        case 4, Number(a): found.append(a)
                        case 5, int(a, b): found.append((a, b))
                        case 6, Twice(a): found.append(a)
                except TypeError as error:
                    found.append(str(error))
            return x * 2, found
    """
    eager, ours = run(program, X)
    assert ours[1] == eager[1]


def test_partial_functions_of_partial_functions() -> None:
    program = """
        import functools
        def g(*args, **options):
            return args[0] * len(args), sorted(options)
        h, noted = functools.partial(g, 1), functools.partial(g, 2)
        noted.note = 5
        def f(x, n):
            p, q = functools.partial(h, n, z=3), functools.partial(noted, n)
            return h(x), p.args, p.func is g, q.args, q.func is noted, noted.note
    """
    eager, ours = run(program, X, 2)
    assert ours == eager


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs Python 3.14")
def test_partial_functions_with_placeholders_that_are_made_inside() -> None:
    program = """
        import functools
        def g(a, b, c=3, *rest):
            return a * 100 + b * 10 + c + sum(rest)
        h = functools.partial(g, functools.Placeholder, 2)
        def f(x, n):
            p = functools.partial(h, n)
            q = functools.partial(g, functools.Placeholder, n, functools.Placeholder, 4)
            try:
                functools.partial(g, functools.Placeholder)
            except TypeError as error:
                return q(x, n) + functools.partial(q, x)(n) + h(x), p(), p.args, str(error)
    """
    eager, ours = run(program, X, 2)
    torch.testing.assert_close(ours[0], eager[0], rtol=0, atol=0)
    assert ours[1:] == eager[1:]


def test_what_closed_generators_return() -> None:
    """From 3.13 on, `close()` gives it."""
    program = """
        def f(x):
            def inner():
                try:
                    yield x
                except GeneratorExit:
                    return 7
            def outer():
                yield from inner()
                return 8
            found = []
            for make in inner, outer:
                generator = make()
                y = next(generator)
                found += [generator.close(), generator.close(), make().close()]
            return y * 2, found
    """
    eager, ours = run(program, X)
    assert ours[1] == eager[1]


def test_unpacking_more_than_expected() -> None:
    """What an iterator gives is taken one by one: one element too many says so."""
    program = """
        import itertools
        def f(x):
            said, done = [], []
            def generator():
                yield 1
                yield x
                done.append(1)
                yield 2
                done.append(2)
                yield 3
            left = iter([1, 2, 3, 4, 5])
            for make in (
                lambda: itertools.count(), generator, lambda: left, lambda: (1, 2, 3), lambda: [x, x, x],
                lambda: {1: 2, 3: 4, 5: 6}, lambda: range(3), lambda: "abc", lambda: map(abs, [1, 2, 3]), lambda: [1],
            ):
                try:
                    a, b = make()
                except ValueError as error:
                    said.append(str(error))
            return x * 2, said, done, list(left)
    """
    eager, ours = run(program, X)
    assert ours[1:] == eager[1:]


def test_super_in_a_function_that_no_class_has() -> None:
    program = """
        def f(x):
            try:
                super().nothing
            except RuntimeError as error:
                return x * 2, str(error)
    """
    eager, ours = run(program, X)
    assert ours[1] == eager[1]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs Python 3.14")
def test_annotations_that_are_asked_for_inside() -> None:
    program = """
        import annotationlib
        class Noted:
            k: Missing
            j: int = 2
        def f(x):
            try:
                Noted.__annotate__(1)
            except NameError as error:
                names = sorted(annotationlib.get_annotations(Noted, format=annotationlib.Format.FORWARDREF))
                return x * 2, str(error), names
    """
    eager, ours = run(program, X)
    assert ours[1:] == eager[1:]


def test_gradients_beside_a_sum_of_floats() -> None:
    program = """
        def f(x, a, b, c):
            w = x.double().requires_grad_()
            return torch.autograd.grad((w * sum([a, b, c])).square().sum(), w)[0]
    """
    check(program, X, 0.1, 0.2, 0.3)
    exported = quickfuse.export(lambda x, a, b, c: x.double() * sum([a, b, c]), (X, 0.1, 0.2, 0.3))
    torch.testing.assert_close(exported.module()(X, 0.1, 0.7, -0.3), X.double() * sum([0.1, 0.7, -0.3]), rtol=0, atol=0)
