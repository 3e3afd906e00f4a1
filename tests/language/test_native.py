"""Code that has to run in plain Python: coroutines, generators handed out, exec and eval, locals(), frames, threads."""

import asyncio
import contextvars
import inspect
import sys
import threading
import traceback

import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t

VARIABLE = contextvars.ContextVar("VARIABLE", default=1.0)


def run_to_the_end(coroutine):
    return asyncio.run(coroutine)


def drive(generator):
    """Values of a generator, with a `send` in between, and what it returned."""
    values = [next(generator)]
    while True:
        try:
            values.append(generator.send(len(values)))
        except StopIteration as stop:
            return values, stop.value


@case((t(3), 3), (t(3, seed=1), 2), then=list)
def generator_function(x, n):
    y = x * 2
    for k in range(n):
        y = y + k
        yield y.sin()


@case((t(3),), (t(3, seed=1),), then=drive)
def generator_that_is_sent_values(x):
    received = yield x + 1
    y = x * received
    received = yield y
    yield y - received
    return y.sum()


@case((t(3),), (t(3, seed=1),), then=list)
def generator_expression_is_returned(x):
    y = x + 1
    return (y * k + 0.5 for k in range(3))


@case((t(3),), (t(3, seed=1),), then=lambda pair: (list(pair[0]), pair[1]))
def generator_of_an_inner_function_is_returned(x):
    state = {"n": 0}
    y = x * 2

    def produce():
        for k in range(3):
            state["n"] += 1
            yield y + k

    produced = produce()
    return produced, next(produced) * 2


@case((t(3),), (t(3, seed=1),), then=lambda pair: [f(t(3)) for f in pair])
def functions_handed_out(x):
    y = x * 2
    total = 0

    def add(v):
        nonlocal total
        total += 1
        return v + y * total

    return add, lambda v: add(v) - y


@case((t(3),), (t(3, seed=1),), then=lambda it: [next(it), *it])
def iterators_handed_out(x):
    values = [x + 1, x * 2, x - 3]
    return map(torch.sin, iter(values))


@case((t(3), 2), (t(3, seed=1), 3), then=run_to_the_end)
async def coroutine_function(x, n):
    y = x * n
    await asyncio.sleep(0)
    z = y.sin() + 1
    return z * 2


@case((t(3),), (t(3, seed=1),))
def asyncio_inside(x):
    async def work(v, k):
        w = v * k
        await asyncio.sleep(0)
        return w + 1

    async def both():
        return await asyncio.gather(work(x, 2), work(x, 3))

    a, b = asyncio.run(both())
    return a * b + x


@case((t(3),), (t(3, seed=1),), then=run_to_the_end)
async def async_for_and_with(x):
    trace = []

    class Context:
        async def __aenter__(self):
            trace.append("enter")
            return 2.0

        async def __aexit__(self, *exc):
            trace.append("exit")

    async def produce():
        for k in range(3):
            await asyncio.sleep(0)
            yield x * k

    total = x * 0
    async with Context() as factor:
        async for value in produce():
            total = total + value * factor
    return total, [v + 1 async for v in produce()], trace


@setup()
def compiled_function_called_from_coroutines():
    def run(x):
        async def one(k):
            await asyncio.sleep(0)
            return x * k + 1

        async def main():
            return [await one(k) for k in range(3)]

        results = asyncio.run(main())
        return sum(results) * 2

    return run, [(t(3),), (t(3, seed=1),)]


@case((t(3), "x * 2 + n"), (t(3), "x.sin() - n"), (t(3), "nonsense("))
def eval_of_text(x, text):
    n = 3
    y = x + 1
    try:
        z = eval(text)
    except SyntaxError as error:
        return y * 2, type(error).__name__
    return z + y, eval("n + 1"), eval("n + 1", None, None), eval("y.shape", {"y": y})


@case((t(3),), (t(3, seed=1),), steady="never")
def exec_of_text(x):
    space = {"x": x, "torch": torch}
    exec("y = x * 2\ndef double(v):\n    return v * 2 + y\n", space)
    z = space["double"](x) + space["y"]
    exec("w = 5")
    return z - 1, sorted(k for k in space if not k.startswith("__")), "w" in locals()


@case((t(3), 4), (t(3, seed=1), 5))
def locals_and_globals(x, n):
    y = x * n
    found = sorted(locals())
    z = y + len(found)
    scale = locals()["n"]
    return z * scale, found, sorted(locals()), "VARIABLE" in globals(), vars()["y"] is y


@case((t(3),), (t(3, seed=1),))
def frames(x):
    def caller_name():
        return sys._getframe(1).f_code.co_name

    y = x + 1
    frame = sys._getframe()
    z = y * len(frame.f_locals)
    return z, caller_name(), frame.f_code.co_name, "y" in frame.f_locals, inspect.currentframe().f_lineno - frame.f_lineno


@case((t(3),), (t(3, seed=1),))
def inspection_of_the_stack(x):
    y = x.exp()

    def inner():
        return [f.name for f in traceback.extract_stack() if f.name in ("inner", "inspection_of_the_stack")]

    where = inner()
    return y * len(where), where, inspect.stack()[0].function


@case((t(3),), (t(3, seed=1),))
def exception_information(x):
    try:
        y = x * 2
        raise ValueError("seen")
    except ValueError as error:
        kind, value, tb = sys.exc_info()
        text = traceback.format_exception_only(kind, value)
        names_seen = [f.name for f in traceback.extract_tb(tb)]
        return y + 1, value is error, text, names_seen, tb.tb_frame.f_code.co_name


@case((t(3),), (t(3, seed=1),))
def threads(x):
    results = {}

    def work(k):
        results[k] = (x * k).sin() + 1

    workers = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with threading.Lock():
        total = results[0] + results[1]
    return total * 2


@case((t(3),), (t(3, seed=1),))
def context_variables(x):
    token = VARIABLE.set(3.0)
    y = x * VARIABLE.get()
    VARIABLE.reset(token)
    context = contextvars.copy_context()
    return y + VARIABLE.get(), context.run(lambda: VARIABLE.get() * x)


@case((t(3),), (t(3, seed=1),))
def compile_and_code_objects(x):
    code = compile("lambda v: v * 3 + 1", "<made>", "eval")
    f = eval(code)
    y = f(x)
    return y.sin(), code.co_name, f.__code__.co_argcount, f.__name__


@setup()
def trace_function_sees_the_same_calls():
    seen = []

    def helper(x):
        return x + 1

    def run(x):
        def tracer(frame, event, arg):
            if event == "call" and frame.f_code.co_name == "helper":
                seen.append(event)

        sys.setprofile(tracer)
        try:
            y = helper(x) * 2
        finally:
            sys.setprofile(None)
        return y - 1, len(seen) > 0

    return run, [(t(3),), (t(3, seed=1),)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_native(name, backend):
    check(__file__, name, backend)
