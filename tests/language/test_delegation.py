"""Exceptions that are thrown into a generator which waits in a `yield from`: the innermost one gets them first."""

import pytest
import torch

from language.harness import BACKENDS, case, check, names, t

EITHER = ((t(3), ValueError), (t(3), KeyError), (t(3), GeneratorExit), (t(3), StopIteration))


def inner(trace):
    try:
        yield 1
        yield 2
    except ValueError as error:
        trace.append(f"inner: {error}")
        yield 10
    finally:
        trace.append("inner ends")
    return 5


def outer(trace):
    """It would catch what `inner` catches, too."""
    try:
        result = yield from inner(trace)
        trace.append(result)
        yield result
    except (ValueError, KeyError) as error:
        trace.append(f"outer: {error}")
        yield 77
    finally:
        trace.append("outer ends")


def swallowing(trace):
    try:
        yield 1
    except (ValueError, KeyError, StopIteration) as error:
        trace.append(type(error.__context__).__name__)
    return 9


def converting(trace):
    try:
        yield 1
    except Exception as error:
        raise LookupError("other") from error


def waiting(function):
    def generator(trace):
        trace.append((yield from function(trace)))
        yield 3

    return generator


def thrown(x, kind, function):
    """Throw into `function`'s generator at its first yield, and note what comes of it."""
    trace = []
    generator = function(trace)
    x = x * next(generator)
    try:
        x = x + generator.throw(kind("thrown"))
        x = x + next(generator, 100)
    except (ValueError, LookupError, GeneratorExit) as error:
        trace.append((type(error).__name__, str(error), type(error.__cause__).__name__))
    except (StopIteration, RuntimeError) as error:
        trace.append(type(error).__name__)
    return x, trace


@case(*EITHER)
def the_inner_one_gets_it_first(x, kind):
    return thrown(x, kind, outer)


@case(*EITHER)
def through_two(x, kind):
    return thrown(x, kind, waiting(outer))


@case(*EITHER)
def the_inner_one_returns(x, kind):
    return thrown(x, kind, waiting(swallowing))


@case(*EITHER)
def the_inner_one_raises_another(x, kind):
    return thrown(x, kind, waiting(converting))


@case(*EITHER)
def an_iterator_without_methods(x, kind):
    return thrown(x, kind, waiting(lambda trace: iter([1, 2])))


class Counting:
    def __init__(self, trace):
        self.trace = trace

    def __iter__(self):
        return self

    def __next__(self):
        return 2

    def throw(self, error):
        self.trace.append("throw")
        return 4

    def close(self):
        self.trace.append("close")


@case(*EITHER)
def an_iterator_with_methods_of_its_own(x, kind):
    return thrown(x, kind, waiting(Counting))


@case((t(3), True), (t(3), False))
def closed_or_dropped(x, close):
    trace = []
    generator = waiting(outer)(trace)
    x = x * next(generator)
    if close:
        generator.close()
    else:
        del generator
    return x, trace


@case((t(3),))
def closing_raises(x):
    def refusing(trace):
        try:
            yield 1
        finally:
            raise LookupError("no")

    def catching(trace):
        try:
            yield from refusing(trace)
        except LookupError as error:
            trace.append((str(error), type(error.__context__).__name__))

    trace = []
    generator = catching(trace)
    x = x * next(generator)
    generator.close()
    return x, trace


@case((t(3),))
def a_loop_that_is_left(x):
    def states(trace):
        with torch.no_grad():
            try:
                yield from inner(trace)
            finally:
                trace.append(torch.is_grad_enabled())

    trace = []
    for k in states(trace):
        x = x * (k + 1)
        break
    return x, trace


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_delegation(name, backend):
    check(__file__, name, backend)
