"""What going on natively, and single steps, look like to the program: generators, callers, lifetimes, tracebacks."""

from __future__ import annotations

import gc
import inspect
import io
import logging
import sys
import traceback
import warnings
import weakref

import pytest

from drive.frame_harness import FINISH, PERFORM, begin, push_call, run, run_generator
from quickfuse.drive import native, tracebacks
from quickfuse.drive.program import program_of
from quickfuse.drive.step import leave, looks_at_frames, needs_own_frame, perform
from quickfuse.drive.unwind import unwind
from quickfuse.ir.frame import UNBOUND


def position_of(frame, name, value=None, nth=0):
    found = [k for k, i in enumerate(frame.decoded.instructions) if i.name == name and (value is None or i.value == value)]
    return found[nth]


def perform_until(frame, position):
    frames = [frame]
    while frame.position != position:
        assert perform(frames) is None
    return frames


# generators -----------------------------------------------------------------------------------------------------


def counting(n, *more, step=1, **named):
    total = 0
    for k in range(0, n, step):
        got = yield k
        total += got or 0
    return total, more, named


def guarding(log):
    while True:
        try:
            got = yield len(log)
            log.append(got)
        except ValueError as error:
            log.append((str(error), repr(sys.exc_info()[1])))
            yield "handled"
            log.append(repr(sys.exc_info()[1]))
        finally:
            log.append("finally")


def delegating(log):
    try:
        result = yield from guarding(log)
        log.append(result)
    except KeyError as error:
        log.append(repr(error))
        return "key"


def closing_over(n):
    scale = n

    def scaled(k):
        return k * scale

    for k in range(n):
        scale += yield scaled(k)
        yield [scaled(x) for x in range(k)]


def ends_badly():
    yield 1
    yield 2
    raise StopIteration


def consume(generator, script):
    """What a generator does with a script of (method, argument)s."""
    seen = []
    for method, argument in script:
        try:
            if method == "next":
                seen.append(next(generator))
            else:
                values = [value("thrown") if method == "throw" else value for value in argument]
                seen.append(getattr(generator, method)(*values))
        except BaseException as error:
            entries = [(e.name, e.lineno) for e in traceback.extract_tb(error.__traceback__)[1:]]
            seen.append((type(error), str(error), repr(error.__cause__), entries))
    return seen, inspect.getgeneratorstate(generator)


NEXT = ("next", ())
SCRIPTS = [
    [NEXT] * 6,
    [("send", (5,)), NEXT, ("send", (7,)), NEXT, NEXT],
    [NEXT, ("throw", (ValueError,)), NEXT, NEXT],
    [("throw", (ValueError,)), NEXT, ("send", (1,)), NEXT],
    [("throw", (KeyError,)), NEXT],
    [NEXT, ("close", ()), NEXT],
    [("close", ()), NEXT],
]


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
@pytest.mark.parametrize("begun", range(4))
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (counting, (5, "more")), (guarding, ([],)), (delegating, ([],)), (closing_over, (3,)), (ends_badly, ()),
    ],
)  # fmt: skip
def test_generators_go_on_from_any_yield(function, args, begun, script):
    if function is ends_badly and begun > 2:
        return
    sent = [None, 2, 3][:begun]

    def fresh(args):
        return tuple([] if a == [] else a for a in args)

    native_args, driven_args = fresh(args), fresh(args)
    expected = function(*native_args)
    yielded = [expected.send(value) for value in sent]
    frame = begin(function, driven_args)
    assert run_generator(frame, sent) == yielded
    got = native.as_generator(frame)
    assert got.gi_code.co_name == expected.gi_code.co_name and got.__qualname__ == expected.__qualname__
    assert inspect.getgeneratorstate(got) == inspect.getgeneratorstate(expected)
    assert (got.gi_yieldfrom is None) == (expected.gi_yieldfrom is None)
    assert consume(got, script) == consume(expected, script)
    assert driven_args == native_args


def test_a_generator_suspended_in_a_handler_keeps_the_exception():
    def handling():
        try:
            raise KeyError("mine")
        except KeyError:
            yield 1
            yield repr(sys.exc_info()[1])
            raise

    def drive():
        frame = begin(handling, ())
        run_generator(frame, [None])
        return native.as_generator(frame)

    try:
        raise ValueError("outside")
    except ValueError as outside:
        generator = drive()
        assert next(generator) == "KeyError('mine')"
        assert sys.exc_info()[1] is outside
        with pytest.raises(KeyError):
            next(generator)
        assert sys.exc_info()[1] is outside


def test_generators_with_keyword_arguments_not_begun():
    frame = begin(counting, (4, 1, 2), {"step": 2, "other": 3})
    generator = native.as_generator(frame)
    assert generator.gi_code is counting.__code__
    assert [*generator] == [0, 2]


def test_what_cannot_be_resumed():
    async def coroutine():
        pass

    async def asynchronous():
        yield

    for function in (coroutine, asynchronous):
        for resume in (native.finish, native.as_generator, lambda frame: native.run_loop(frame, 1)):
            with pytest.raises(native.CannotResume):
                resume(begin(function, ()))
    with pytest.raises(native.CannotResume):
        native.finish(begin(counting, (1,)))
    with pytest.raises(native.CannotResume):
        native.as_generator(begin(plain, (1,)))
    broken = begin(plain, (1,))
    broken.stack.append(1)
    with pytest.raises(native.CannotResume):
        native.finish(broken)


def plain(x):
    return x


# loops ----------------------------------------------------------------------------------------------------------


def test_a_loop_runs_natively_up_to_its_end():
    def function(values):
        total = 0
        for value in values:
            if value < 0:
                return "negative"
            unset = value
            total += value
        del unset
        return total

    frame = begin(function, ([1, 2, 3],))
    head = position_of(frame, "FOR_ITER")
    end = frame.decoded.instructions[head].value
    frames = perform_until(frame, head)
    assert native.run_loop(frame, end) is None
    assert (frame.position, frame.stack) == (end, [])
    assert dict(zip(function.__code__.co_varnames, frame.locals, strict=True)) == {
        "values": [1, 2, 3], "total": 6, "value": 3, "unset": 3,
    }  # fmt: skip
    while (returned := perform(frames)) is None:
        pass
    assert returned.value == 6

    frame = begin(function, ([1, -2],))
    perform_until(frame, head)
    assert native.run_loop(frame, end).value == "negative"

    frame = begin(function, ([],))
    perform_until(frame, head)
    native.run_loop(frame, end)
    assert frame.locals[2:] == [UNBOUND, UNBOUND]

    frame = begin(function, (["a"],))
    perform_until(frame, head)
    with pytest.raises(TypeError) as caught:
        native.run_loop(frame, end)
    assert caught.traceback[-1].name == "function"


def test_a_frame_that_stopped_keeps_nothing():
    """Nor where the traceback of what is handled there leads to it: the frame that goes on lets go of the exception."""
    class Object:
        pass

    def function(values):
        kept = Object()
        values.append(weakref.ref(kept))
        try:
            kept.missing()
        except AttributeError as error:
            values.append(str(error))
        return len(values)

    code = function.__code__
    stops = [stop for stop in range(8, len(program_of(code).decoded.instructions)) if native.may_stop_at(code, stop)]
    assert len(stops) > 8
    gc.disable()
    try:
        for stop in stops:
            values = []
            frames = [begin(function, (values,))]
            perform_until(frames[0], 4)
            returned = native.run_loop(frames[0], stop)
            while returned is None:
                returned = perform(frames)
            frames.clear()
            assert values[0]() is None, stop
    finally:
        gc.enable()


def test_it_stops_between_whole_instructions():
    """Wherever it says that it can."""
    def function(values):
        first, second = values
        third = first + second
        return [third + 0 for third in values] + [first, second, third]

    code = function.__code__
    for stop in range(len(program_of(code).decoded.instructions)):
        if native.may_stop_at(code, stop):
            frame = begin(function, ([1, 2],))
            returned = native.run_loop(frame, stop)
            assert (frame.position if returned is None else returned.value) in (stop, [1, 2, 1, 2, 3])


def test_resume_functions_are_made_once():
    def function(values):
        total = 0
        for value in values:
            total += value
        return total

    for k in range(5):
        frame = begin(function, ([k],))
        perform_until(frame, position_of(frame, "FOR_ITER"))
        assert native.finish(frame) == k
    assert len(program_of(function.__code__).resumes) == 1


# who calls ------------------------------------------------------------------------------------------------------


def everywhere(function, *args):
    """The results of a function run in different ways, the first natively."""
    yield function(*args)
    yield run(begin(function, args), lambda step, frames: PERFORM)
    yield run(begin(function, args), lambda step, frames: PERFORM, __file__)
    for steps in range(12):
        yield run(begin(function, args), lambda step, frames, steps=steps: FINISH if step == steps else PERFORM)
        yield run(begin(function, args), lambda step, frames, steps=steps: FINISH if step == steps else PERFORM, __file__)


def warn_here(level):
    warnings.warn("take care", UserWarning, stacklevel=level)
    return level


def warn_from(level):
    result = warn_here(level)
    return result


@pytest.mark.parametrize("level", [1, 2, 3])
def test_warnings_are_given_for_the_users_lines(level):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in everywhere(warn_from, level):
            pass
    places = {(w.filename, w.lineno) for w in caught}
    if level < 3:
        assert len(places) == 1
    assert {filename for filename, _ in places} <= {__file__, inspect.getsourcefile(run)}
    assert len(caught) == 27


def log_here(logger):
    try:
        raise ValueError("logged")
    except ValueError:
        logger.exception("failed")
    logger.warning("fine")


def test_logging_finds_the_users_lines():
    stream = io.StringIO()
    logger = logging.Logger("test")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(filename)s %(funcName)s %(lineno)d %(message)s"))
    logger.addHandler(handler)
    texts = set()
    for _ in everywhere(log_here, logger):
        texts.add(stream.getvalue())
        stream.truncate(0)
        stream.seek(0)
    assert len(texts) == 1


def names_of_callers(depth):
    frame = sys._getframe(1)
    names = []
    for _ in range(depth):
        names.append((frame.f_code.co_name, frame.f_lineno, frame.f_globals["__name__"]))
        frame = frame.f_back
    return names


names_of_callers.__code__ = names_of_callers.__code__.replace(co_filename="elsewhere.py")


def asks(depth):
    return names_of_callers(depth)


def outer_asks(depth):
    return asks(depth=depth)


def test_callees_see_the_users_frames():
    assert len({tuple(names) for names in everywhere(outer_asks, 2)}) == 1


def test_which_calls_need_their_own_frame():
    assert looks_at_frames(locals) and looks_at_frames(vars) and not looks_at_frames(vars, 1)
    assert looks_at_frames(eval, 1) and looks_at_frames(eval, 3) and not looks_at_frames(len, 1)  # for None as well
    frame = begin(lambda: locals(), ())
    frames = [frame]
    perform_until(frame, position_of(frame, "CALL"))
    assert needs_own_frame(frame)
    assert perform(frames) is None and frame.stack == [{}]
    assert not needs_own_frame(frame)


# lifetimes ------------------------------------------------------------------------------------------------------


class Thing:
    pass


def dies_in_callee(thing):
    reference = weakref.ref(thing)
    del thing
    return reference() is None


def passes_temporary():
    return dies_in_callee(Thing())


def drops_early():
    thing = Thing()
    reference = weakref.ref(thing)
    pair = [thing]
    thing = None
    before = reference() is None
    del pair
    return before, reference() is None


@pytest.mark.parametrize("function", [passes_temporary, drops_early])
def test_objects_die_where_they_die_natively(function):
    results = list(everywhere(function))
    assert len({str(result) for result in results}) == 1, results


def test_nothing_is_kept_alive():
    def make():
        def function(n):
            try:
                return n / 0
            except ZeroDivisionError:
                return sum(k for k in range(n))

        for _ in everywhere(function, 3):
            pass
        return weakref.ref(function.__code__)

    # The code object is a constant of make(), so a copy is what may go.
    space = {}
    exec("def function(n):\n    try:\n        return n / 0\n    except ZeroDivisionError:\n        return n", space)
    function = space.pop("function")
    reference = weakref.ref(function)
    for _ in everywhere(function, 3):
        pass
    del function, space
    gc.collect()
    assert reference() is None
    make()


# exceptions -----------------------------------------------------------------------------------------------------


def fails(x):
    return 1 / x


def calls_fails(x):
    y = x
    return fails(y) + 1


def test_tracebacks_have_entries_for_suspended_frames():
    frames = [begin(calls_fails, (0,))]
    while not push_call(frames, __file__):
        perform(frames)
    error = ValueError("from a segment")
    perform(frames)
    for frame in reversed(frames):
        error.__traceback__ = tracebacks.entry(frame, frame.position - 1, error.__traceback__)
    entries = traceback.extract_tb(error.__traceback__)
    first = calls_fails.__code__.co_firstlineno
    assert [(e.name, e.lineno) for e in entries] == [("calls_fails", first + 2), ("fails", fails.__code__.co_firstlineno)]
    found = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert found == [{"x": 0, "y": 0}, {"x": 0}]


def test_an_exception_of_a_native_callee_goes_to_the_callers_handler():
    def handles(x):
        try:
            return fails(x)
        except ZeroDivisionError as error:
            return [e.name for e in traceback.extract_tb(error.__traceback__)]

    frames = [begin(handles, (0,))]
    while not push_call(frames, __file__):
        perform(frames)
    top = frames[-1]
    try:
        native.finish(top, frames[:-1])
    except ZeroDivisionError as error:
        assert frames.pop() is top
        error.__traceback__ = error.__traceback__.tb_next
        assert unwind(frames, error)
    while (returned := perform(frames)) is None:
        pass
    assert returned.value == ["handles", "fails"]


def test_an_unhandled_exception_is_the_same_object_with_the_users_frames():
    error = KeyError("mine")

    def raises():
        raise error

    def outer():
        raises()

    with pytest.raises(KeyError) as caught:
        run(begin(outer, ()), lambda step, frames: PERFORM, __file__)
    assert caught.value is error
    names = [entry.name for entry in caught.traceback]
    assert names[-2:] == ["outer", "raises"] and "perform" not in names


def test_leaving_an_init_that_returned_something():
    frames = [begin(calls_fails, (0,))]
    while not push_call(frames, __file__):
        perform(frames)
    frames[-1].replacement = Thing()
    with pytest.raises(TypeError, match="should return None"):
        leave(frames, 3)
    assert not frames


def test_recursion_errors_and_interrupts():
    def recurses(n):
        return recurses(n + 1)

    def interrupted():
        try:
            raise KeyboardInterrupt
        except Exception:
            return "wrong"

    with pytest.raises(RecursionError):
        run(begin(recurses, (0,)), lambda step, frames: PERFORM)
    with pytest.raises(KeyboardInterrupt):
        run(begin(interrupted, ()), lambda step, frames: PERFORM)


def _chosen(x, m, c, y):
    t = x[m] if c else y
    return t, c


def _beside_a_choice(x, m, c, y):
    t = max(x[m], 1 if c else 2)
    return t, c


def _unpacked(x, m, c, y):
    a, b = x[m]
    return a, b


def _tested(x, m, c, y):
    if x[m]:
        return c
    return y


def _gone_through(x, m, c, y):
    for t in x[m]:
        c = t
    return c


def _returned(x, m, c, y):
    return x[m]


@pytest.mark.parametrize(("function", "ends"), [
    (_chosen, True), (_beside_a_choice, True), (_unpacked, True),
    (_tested, False), (_gone_through, False), (_returned, False),
])  # fmt: skip
def test_where_a_value_on_the_stack_is_used_up(function, ends):
    program = program_of(function.__code__)
    names = [instruction.name for instruction in program.decoded.instructions]
    after = 1 + next(k for k, name in enumerate(names) if name in ("BINARY_SUBSCR", "BINARY_OP"))
    place = len(program.kinds(after)) - 1
    end = native.end_of_use(function.__code__, after, place)
    assert (end is not None) is ends
    if ends:
        assert end > after and len(program.kinds(end)) <= place
