"""`with`: classes of the user's, contextlib, and PyTorch's own contexts."""

import contextlib

import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t

LEVEL = 0


class Recorder:
    """Writes down what happens to it; may swallow exceptions."""

    def __init__(self, trace, name="r", swallow=()):
        self.trace = trace
        self.name = name
        self.swallow = swallow

    def __enter__(self):
        self.trace.append(f"enter {self.name}")
        return self

    def __exit__(self, kind, error, traceback):
        self.trace.append((f"exit {self.name}", kind and kind.__name__, str(error), traceback is None))
        return kind is not None and issubclass(kind, self.swallow)


class Scaled:
    """A context whose value is another object."""

    def __init__(self, x, factor):
        self.x = x
        self.factor = factor

    def __enter__(self):
        return self.x * self.factor

    def __exit__(self, *exc):
        self.factor += 1


class Level:
    """Changes a global while it is active."""

    def __enter__(self):
        global LEVEL
        LEVEL += 1
        return LEVEL

    def __exit__(self, *exc):
        global LEVEL
        LEVEL -= 1


@contextlib.contextmanager
def shifted(x, trace):
    trace.append("before")
    y = x + 10
    try:
        yield y
        trace.append("no error")
    except ValueError as error:
        trace.append(f"caught {error}")
    finally:
        trace.append("after")


@contextlib.contextmanager
def grad_mode(enabled):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(enabled)
    try:
        yield
    finally:
        torch.set_grad_enabled(before)


@case((t(3), False), (t(3), True))
def user_class(x, bad):
    trace = []
    with Recorder(trace) as r:
        y = x * 2 + 1
        if bad:
            y = y.sin()
    return y - 1, trace, r.name


@case((t(3), 0), (t(3), 1), (t(3), 2))
def exception_in_with(x, n):
    trace = []
    with Recorder(trace, "outer", (ValueError,)), Recorder(trace, "inner", (KeyError,)):
        x = x + 1
        if n == 1:
            raise ValueError("v")
        if n == 2:
            raise KeyError("k")
        x = x * 2
    return x.exp(), trace


@case((t(3),), (t(3, seed=1),))
def exception_leaves_with(x):
    trace = []
    try:
        with Recorder(trace, "a", (KeyError,)):
            y = x * 3
            raise RuntimeError("not mine")
    except RuntimeError as error:
        return y + 1, trace, str(error)


@case((t(3), 0), (t(3), 1), (t(3), 2))
def leaving_by_break_continue_and_return(x, n):
    trace = []

    def inner(y):
        for k in range(3):
            with Recorder(trace, str(k)):
                if k == n and n < 2:
                    break
                if k == 1:
                    continue
                y = y * 1.5
                if k == 2:
                    return y + 100
        return y - 1

    return inner(x), trace


@case((t(3), 2), (t(3), 0.5))
def value_of_enter(x, factor):
    context = Scaled(x, factor)
    with context as y, Scaled(y, 3) as z:
        z = z + y
    return z, context.factor


@case((t(3),), (t(3, seed=1),))
def target_is_a_tuple_or_item(x):
    holder = {}

    @contextlib.contextmanager
    def pair():
        yield x + 1, x * 2

    with pair() as (a, b), pair() as holder["pair"]:
        y = a * b
    return y, holder


@case((t(3),), (t(3, seed=1),))
def global_while_active(x):
    before = LEVEL
    with Level() as one, Level() as two:
        x = x * LEVEL + one
    return x + LEVEL, before, two


@case((t(3), False), (t(3), True))
def generator_context(x, bad):
    trace = []
    with shifted(x, trace) as y:
        z = y * 2
        if bad:
            raise ValueError("inside")
        z = z + 1
    return z.cos(), trace


@case((t(3),), (t(3, seed=1),), steady="never")
def context_decorator(x):
    trace = []

    class Traced(contextlib.ContextDecorator):
        def __enter__(self):
            trace.append("in")
            return self

        def __exit__(self, *exc):
            trace.append("out")
            return False

    @Traced()
    def work(y):
        return y * 2 + 1

    return work(work(x)), trace


@case((t(3), 2), (t(3), 3))
def exit_stack(x, n):
    trace = []
    with contextlib.ExitStack() as stack:
        for k in range(n):
            stack.enter_context(Recorder(trace, str(k)))
        stack.callback(trace.append, "callback")
        x = x * n + 1
    return x.sin(), trace


@case((t(3), 0), (t(3), 1), (t(3), "a"))
def suppress(x, key):
    table = {1: 2.0}
    with contextlib.suppress(KeyError, IndexError):
        x = x + 1
        x = x * table[key]
        x = x - 5
    return x.exp()


@case((t(3), True), (t(3), False))
def null_context(x, use):
    trace = []
    with Recorder(trace) if use else contextlib.nullcontext(7) as value:
        x = x / 2 + (value if isinstance(value, int) else 0)
    return x * x, trace


@case((t(3, grad=True),), (t(3),), (t(3, seed=1, grad=True),))
def no_grad(x):
    y = x * 2
    with torch.no_grad():
        z = y.exp()
        flag = torch.is_grad_enabled()
    return y, z, (y * z).sum(), flag


@case((t(3, grad=True),), (t(3, seed=1, grad=True),))
def enable_grad_inside_no_grad(x):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
            with torch.set_grad_enabled(False):
                c = b.sin()
        d = b + 1
    return a, b, c, d, b * d


@case((t(3, grad=True), True), (t(3, grad=True), False))
def set_grad_enabled(x, flag):
    with torch.set_grad_enabled(flag):
        y = x.sin() * 2
    return y + 1, y.requires_grad, torch.is_grad_enabled()


@case((t(3, grad=True), False), (t(3, grad=True), True))
def grad_mode_left_changed(x, enabled):
    y = x * 2
    torch.set_grad_enabled(enabled)
    z = x * 3
    return y, z + 1


@case((t(3, grad=True),), (t(3, seed=1, grad=True),))
def grad_mode_in_generator_context(x):
    with grad_mode(False):
        y = x.exp() + 1
    with grad_mode(True):
        z = x.exp() + y
    return y, z


@case((t(3, grad=True),), (t(3, seed=1),))
def inference_mode(x):
    with torch.inference_mode():
        y = x.cos() * 2
        mode = torch.is_inference_mode_enabled()
    return y.is_inference(), mode, x * 2 + 1


@case((t(3, grad=True),), (t(3, seed=1, grad=True),))
def no_grad_decorator(x):
    @torch.no_grad()
    def detached(v):
        return v.sigmoid() * 2

    y = detached(x)
    return y, (x * y).sum()


@case((t(4, 4), t(4, 4, seed=1)), (t(4, 4, seed=2), t(4, 4, seed=3)))
def autocast(x, w):
    y = x + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = y @ w
        kind = z.dtype
        with torch.autocast("cpu", enabled=False):
            v = z.float() @ w
    return z.float() + v, kind, v.dtype, torch.is_autocast_enabled("cpu")


@case((t(3), 1), (t(3), 0))
def exception_under_no_grad_restores(x, n):
    x = x.clone().requires_grad_()
    try:
        with torch.no_grad():
            y = x * 2
            if n:
                raise KeyError(n)
            y = y + 1
    except KeyError:
        y = x * 5
    return y, torch.is_grad_enabled()


@case((t(3), 1.5), (t(3), 2.5))
def enter_and_exit_called_by_hand(x, f):
    context = Scaled(x, f)
    y = context.__enter__() + 1
    context.__exit__(None, None, None)
    manager = torch.no_grad()
    manager.__enter__()
    z = y * context.factor
    manager.__exit__(None, None, None)
    return y, z, torch.is_grad_enabled()


@setup()
def context_object_from_outside():
    trace = []
    recorder = Recorder(trace, "outside")

    def run(x):
        with recorder:
            y = x * 2 + 1
        return y.tanh()

    return run, [(t(3),), (t(3, seed=1),)]


@case((t(3), 0), (t(3), 1))
def try_finally_around_with(x, n):
    trace = []
    try:
        with shifted(x, trace) as y:
            try:
                z = y.sin()
                if n:
                    raise ValueError("deep")
            finally:
                trace.append("inner finally")
                z = y + 1
    finally:
        trace.append("outer finally")
    return z * 2, trace


@case((t(3), 5), (t(3), 3))
def with_inside_a_loop(x, n):
    for k in range(n):
        with torch.no_grad() if k % 2 else torch.enable_grad():
            x = x * 1.1 + k
        with Level() as level:
            x = x + level
    return x


@case((t(3),), (t(3, seed=1),))
def closing_a_generator(x):
    trace = []

    def produce():
        try:
            yield x + 1
            yield x + 2
        finally:
            trace.append("closed")

    with contextlib.closing(produce()) as values:
        y = next(values) * 3
    return y, trace


@case((t(3),), (t(3, seed=1),), steady="never")
def class_without_exit(x):
    class Half:
        def __enter__(self):
            return 1

    y = x + 1
    try:
        with Half():
            y = y * 2
    except (TypeError, AttributeError) as error:
        return y - 1, type(error).__name__, str(error)
    return y


@case((t(3), 1.5), (t(3), 3.5))
def default_dtype_inside(x, n):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        y = torch.ones(3) * n
    finally:
        torch.set_default_dtype(before)
    return y + x, torch.ones(2) + 1


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))


@setup(graphs=1)
def inference_mode_for_all():
    model = layers()

    def run(x):
        with torch.inference_mode():
            y = model(x)
            return y, y.softmax(-1) * 2, torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    return run, [(t(2, 3),), (t(2, 3, seed=1),)]


@setup(graphs=1)
def inference_mode_for_a_part():
    model = layers()

    def run(x):
        a = x * 2
        with torch.inference_mode():
            y = model(a)
            with torch.inference_mode(False):
                b = a + 1
            z = y * 2
        return y, a, b, z, torch.is_inference_mode_enabled(), torch.is_grad_enabled(), model(a)

    return run, [(t(2, 3),), (t(2, 3, seed=1),)]


@setup()
def inference_mode_around_a_break():
    model = layers()

    @torch.inference_mode()
    def run(x):
        y = model(x)
        print("break")
        return y, model(y @ y.t() @ x)

    return run, [(t(2, 3),), (t(2, 3, seed=1),)]


@case((t(2, 3, grad=True),), (t(2, 3, seed=1, grad=True),))
def inference_tensors_outside_of_it(x):
    with torch.inference_mode():
        y = x * 2
    try:
        z = (x * y).sum()
    except RuntimeError as error:
        z = str(error)[:20]
    try:
        y.add_(1)
    except RuntimeError as error:
        return z, str(error)[:20]
    return z, y


class Replacing:
    """Prints, which is a break, and leaves by another exception."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        print("leaving", kind)
        raise KeyError("instead") from error


@contextlib.contextmanager
def replacing():
    try:
        yield
    except ValueError:
        print("leaving")
        raise KeyError("instead")


@case((t(3), Replacing), (t(3, seed=1), replacing))
def exit_that_raises_behind_a_break(x, manager):
    try:
        with manager():
            x = x + 1
            raise ValueError("first")
    except KeyError as error:
        return x * 2, str(error), type(error.__context__).__name__, type(error.__cause__).__name__


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_with(name, backend):
    check(__file__, name, backend)
