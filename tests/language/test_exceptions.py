"""Exceptions: raised, caught, chained, grouped, cleaned up after, and let out of the function."""

import numpy as np
import pytest
import torch

from language.harness import BACKENDS, case, check, names, t


class Failure(Exception):
    """An exception with state."""

    def __init__(self, code, value=None):
        super().__init__(f"failed with {code}")
        self.code = code
        self.value = value


class Worse(Failure):
    pass


class Plain(ValueError):
    pass


def fail_if(condition, x, code=1):
    y = x * 2 + 1
    if condition:
        raise Failure(code, y)
    return y


@case((t(3), 0), (t(3), 1), (t(3), 0))
def try_except_else_finally(x, n):
    trace = []
    try:
        trace.append("try")
        y = x / n if not isinstance(n, int) else x * (6 // n)
    except ZeroDivisionError as error:
        trace.append(str(error))
        y = x.zero_() + 1
    else:
        trace.append("else")
        y = y + 1
    finally:
        trace.append("finally")
        x = x - 1
    return y * x, trace


@case((t(3), True), (t(3), False))
def custom_exception_with_state(x, bad):
    try:
        y = fail_if(bad, x, code=7)
    except Failure as error:
        return error.value - 1, error.code, str(error), error.args, type(error) is Failure
    return y.exp(), None


@case((t(3), 0), (t(3), 1), (t(3), 2), (t(3), 3), (t(3), 4))
def several_handlers(x, n):
    try:
        y = x.sin() + n
        if n == 0:
            raise Failure("a")
        if n == 1:
            raise Worse("b", y)
        if n == 2:
            {}["key"]
        if n == 3:
            [][2]
    except Worse as error:
        y = error.value * 10
    except Failure:
        y = x - 10
    except (KeyError, IndexError) as error:
        return x * 5, type(error).__name__, error.args
    return y + 1


@case((t(3), 1), (t(3), 2))
def exception_escapes(x, n):
    y = x * 3
    x.add_(1)
    if n == 1:
        raise Failure("out", None)
    return y + x


@case((t(3), {"seen": 0}), (t(3, seed=1), {"seen": 4}))
def effects_before_an_escaping_exception(x, state):
    state["seen"] += 1
    x.mul_(2)
    state["last"] = x.sum()
    raise Plain("after the effects")


@case((t(3), 0), (t(3), 1))
def finally_runs_when_it_escapes(x, n):
    holder = [x]
    try:
        holder.append(x.exp())
        if n == 0:
            raise RuntimeError("out")
        return holder
    finally:
        holder.append(x * 2)
        x.sub_(1)


@case((t(3), 2), (t(3), 5))
def return_in_finally_swallows(x, n):
    def inner():
        try:
            if n > 3:
                raise Failure(n)
            return x + 1
        finally:
            if n > 3:
                return x * n

    return inner() - 1


@case((t(3), 0), (t(3), 1))
def re_raise(x, n):
    log = []

    def inner():
        try:
            return fail_if(n == 0, x)
        except Failure as error:
            log.append(error.code)
            raise

    try:
        y = inner()
    except Failure as error:
        log.append("outer")
        y = error.value.cos()
    return y + 1, log


@case((t(3), 0), (t(3), 1))
def raise_from(x, n):
    try:
        try:
            y = fail_if(n == 0, x) * 2
        except Failure as error:
            raise ValueError("translated") from error
    except ValueError as error:
        return x * error.__cause__.code, str(error), error.__cause__ is error.__context__, error.__suppress_context__
    return y


@case((t(3), 0), (t(3), 1))
def raise_from_none(x, n):
    y = x + 1
    try:
        y = fail_if(n == 0, x) * 2
    except Failure:
        raise ValueError("hidden") from None
    return y


@case((t(3),), (t(3, seed=1),))
def context_is_set_implicitly(x):
    y = x * 2
    try:
        try:
            raise KeyError("first")
        except KeyError:
            y = y + 1
            [].pop()
    except IndexError as error:
        return y, repr(error), repr(error.__context__), error.__cause__


@case((t(3), 0), (t(3), 1), (t(3), 2))
def nested_try_blocks(x, n):
    trace = []
    try:
        try:
            x = x + 1
            if n == 1:
                raise Failure("inner")
            if n == 2:
                raise Plain("outer")
            trace.append("body")
        except Failure:
            trace.append("inner handler")
            x = x * 2
        finally:
            trace.append("inner finally")
            x = x - 0.5
    except Plain as error:
        trace.append(f"outer handler {error}")
        x = x.sin()
    finally:
        trace.append("outer finally")
    return x.exp(), trace


@case((t(3), 0), (t(3), 1), (t(3), 2))
def exception_group(x, n):
    caught = []
    try:
        y = x * 2
        if n:
            raise ExceptionGroup("several", [ValueError("v"), TypeError("t"), Failure("f")][: n + 1])
        caught.append("none")
    except* ValueError as group:
        caught.append([str(e) for e in group.exceptions])
        y = x + 10
    except* (TypeError, Failure) as group:
        caught.append(group.message)
        y = y * 3
    return y, caught


@case((t(3), 1), (t(3), 0))
def exception_group_leaves_a_rest(x, n):
    y = x + 1
    try:
        if n:
            raise ExceptionGroup("g", [ValueError("v"), ExceptionGroup("nested", [KeyError("k")])])
    except* ValueError:
        y = y * 2
    return y


@case((t(3),), (t(3, seed=1),))
def error_of_an_operator_is_caught(x):
    y = x * 2
    try:
        y = y @ torch.ones(7, 2)
    except RuntimeError as error:
        y = y + 1
        message = str(error)
    return y.sin(), message


@case((t(3, 4), t(3, 4)), (t(3, 4), t(5)), (t(3, 4), t(4)))
def error_of_an_operator_escapes(x, other):
    y = x.exp() + 1
    z = y * other
    return z.sum(0)


@case((t(3), "missing"), (t(3), "sin"))
def attribute_error(x, name):
    y = x + 1
    try:
        y = getattr(y, name)()
    except AttributeError as error:
        return y * 2, str(error), error.name
    return y


_NUMBER = np.int64(5)


class WithoutGetter:
    class Inner:
        hidden = property(None)


@case((t(3),), (t(3, seed=1),))
def what_errors_tell_of_names(x):
    inner, told = WithoutGetter.Inner(), []

    def unset():
        return later

    for attempt, owner in (
        (lambda: x.missing, x), (lambda: WithoutGetter.missing, WithoutGetter), (lambda: inner.missing, inner),
        (lambda: inner.hidden, inner), (lambda: x.shape.missing, None), (lambda: torch.Size.missing, torch.Size),
        (lambda: _NUMBER.missing, _NUMBER), (lambda: type(_NUMBER).missing, type(_NUMBER)),
        (lambda: not_defined, None), (unset, None),  # noqa: F821
    ):
        try:
            attempt()
        except (AttributeError, NameError) as error:
            told.append((type(error).__name__, str(error), error.name, owner is None or error.obj is owner))
    try:
        inner.hidden = 1
    except AttributeError as error:
        told.append((str(error), error.name, error.obj))
    later = 1
    return x * 2, told


@case((t(3), 0), (t(3), 3), (t(3), "no"))
def type_errors(x, n):
    y = x * 2
    errors = []
    for attempt in (lambda: n + "a", lambda: len(5), lambda: [] < 3, lambda: n(), lambda: x[None, "a"], lambda: int("z")):
        try:
            attempt()
        except (TypeError, ValueError, IndexError) as error:
            errors.append((type(error).__name__, str(error)))
            y = y + 1
    return y, errors


@case((t(3),), (t(3, seed=1),))
def calls_that_do_not_fit(x):
    def two(a, b, *, c=1):
        return a + b * c

    y = x.sin()
    messages = []
    for call in (lambda: two(1), lambda: two(1, 2, 3), lambda: two(1, 2, d=4), lambda: two(1, a=1), lambda: two(c=2)):
        try:
            y = call()
        except TypeError as error:
            messages.append(str(error))
            y = y * 2
    return y, messages, two(x, 1, c=2)


@case((t(3), 3), (t(3), 0))
def exception_from_deep_calls(x, depth):
    def descend(value, n):
        value = value * 1.5
        if n == 0:
            raise Failure(depth, value)
        try:
            return descend(value + 1, n - 1)
        finally:
            trail.append(n)

    trail = []
    try:
        descend(x, depth)
    except Failure as error:
        return error.value + 1, trail


@case((t(3), 4), (t(3), 2))
def exceptions_in_a_loop(x, n):
    failures = []
    for k in range(5):
        try:
            if k == n:
                raise Failure(k, x)
            x = x * 1.1 + k
        except Failure as error:
            failures.append(error.code)
            x = error.value - 100
            if k > 3:
                break
    return x, failures


@case((t(3),), (t(3, seed=1),))
def exception_object_is_kept(x):
    y = x * 2
    try:
        raise Failure("kept", y)
    except Failure as error:
        saved = error
        y.add_(x.sin())
    saved.code = "changed"
    try:
        error
    except NameError as missing:
        text = str(missing)
    return saved, saved.value is y, text


@case((t(3),), (t(3, seed=1),))
def exception_with_notes(x):
    try:
        x = x + 1
        raise Plain("noted")
    except Plain as error:
        error.add_note("while adding")
        return x.exp(), error.__notes__, error


@case((t(3), 2), (t(3), 0))
def stop_iteration_by_hand(x, n):
    numbers = iter(range(n))
    total = x
    while True:
        try:
            k = next(numbers)
        except StopIteration:
            break
        total = total * 2 + k
    return total, next(numbers, "empty")


@case((t(3), 1), (t(3), 2), (t(3), 3))
def exception_class_or_instance(x, n):
    kinds = {1: KeyError, 2: KeyError("text"), 3: KeyError("a", "b")}
    try:
        x = x * n
        raise kinds[n]
    except KeyError as error:
        return x + len(error.args), str(error), repr(error)


@case((t(3), 0), (t(3), 1))
def bare_except(x, n):
    try:
        y = x.cos()
        if n:
            raise SystemExit(3)
        y = y + [1, 2, 3][5]
    except:  # noqa: E722
        y = x.sin() * 2
    return y


@case((t(3),), (t(3, seed=1),))
def raise_in_except_replaces(x):
    y = x.exp() * 2 + x
    try:
        raise Failure(1)
    except Failure:
        raise Worse(2, y)


@case((t(3),), (t(3, seed=1),))
def raise_what_is_no_exception(x):
    y = x - 1
    try:
        raise 5
    except TypeError as error:
        return y * 2, str(error)


@case((t(3), 0), (t(3), 1), (t(3), 2))
def exception_in_handler_and_finally(x, n):
    trace = []
    try:
        try:
            trace.append(1)
            x = x / 2
            raise ValueError("a")
        except ValueError:
            trace.append(2)
            if n == 1:
                raise KeyError("b")
            x = x + 1
        finally:
            trace.append(3)
            if n == 2:
                raise TypeError("c")
    except (KeyError, TypeError) as error:
        trace.append((type(error).__name__, type(error.__context__).__name__))
        x = x * 2
    return x, trace


@case((t(3), 5), (t(3), 0))
def assertion_error_is_caught(x, n):
    y = x.sqrt()
    try:
        assert n, ("no", n)
    except AssertionError as error:
        return y.isnan(), error.args
    return y / n


@case((t(3), [1, 2, 3]), (t(3, seed=1), [4, 5, 6]))
def whole_numbers_in_tensors_where_a_type_error_is_expected(x, values):
    found = []
    for ask in (lambda k: values[k], lambda k: values[:k], lambda k: (1, 2, 3)[k:], lambda k: "abc"[k]):
        for index in (x.argmax(), x.max()):
            try:
                found.append(ask(index))
            except TypeError:
                found.append("refused")
    return found, x * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_exceptions(name, backend):
    check(__file__, name, backend)
