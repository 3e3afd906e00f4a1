"""The functions that the driver's tests run, each with a maker of its arguments."""

# ruff: noqa
# The functions are written as their instructions need it.

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any

SUBJECTS: list[tuple[FunctionType, Callable[[], tuple[Any, ...]]]] = []

counter = 0
deleted_again = 1


def subject(*makers: Callable[[], tuple[Any, ...]]) -> Callable[[FunctionType], FunctionType]:
    def register(function: FunctionType) -> FunctionType:
        for maker in makers or (tuple,):
            SUBJECTS.append((function, maker))
        return function

    return register


class Recorder:
    """A context manager that prints, and swallows exceptions if asked."""

    def __init__(self, name: str, swallow: bool = False, fail: str = "") -> None:
        self.name, self.swallow, self.fail = name, swallow, fail

    def __repr__(self) -> str:
        return f"Recorder({self.name})"

    def __enter__(self) -> Recorder:
        print("enter", self.name)
        if self.fail == "enter":
            raise OSError("cannot enter")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        print("exit", self.name, kind and kind.__name__, error, sys.exc_info()[1])
        if self.fail == "exit":
            raise OSError("cannot leave")
        return self.swallow


class Strange:
    """Protocols that print or fail."""

    def __init__(self, value: Any = 1, fails: str = "") -> None:
        self.value, self.fails = value, fails

    def _do(self, what: str) -> None:
        print(what, self.value)
        if what == self.fails:
            raise ArithmeticError(what)

    def __repr__(self) -> str:
        return f"Strange({self.value})"

    def __bool__(self) -> bool:
        self._do("bool")
        return bool(self.value)

    def __eq__(self, other: object) -> Any:
        self._do("eq")
        return self.value == getattr(other, "value", other)

    def __lt__(self, other: Any) -> Any:
        self._do("lt")
        return self.value < getattr(other, "value", other)

    def __hash__(self) -> int:
        self._do("hash")
        return hash(self.value)

    def __add__(self, other: Any) -> Strange:
        self._do("add")
        return Strange(self.value + getattr(other, "value", other))

    def __iadd__(self, other: Any) -> Strange:
        self._do("iadd")
        self.value += getattr(other, "value", other)
        return self

    def __iter__(self) -> Any:
        self._do("iter")
        return iter(range(self.value))

    def __getitem__(self, key: Any) -> Any:
        self._do("getitem")
        return (self.value, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do("setitem")
        self.value = (key, value)

    def __delitem__(self, key: Any) -> None:
        self._do("delitem")

    def __contains__(self, item: Any) -> bool:
        self._do("contains")
        return item == self.value

    def __format__(self, spec: str) -> str:
        self._do("format")
        return f"<{self.value}|{spec}>"


def helper(value: Any, *, factor: int = 2) -> Any:
    if value == 13:
        raise ValueError(f"unlucky {value}")
    return value * factor


def deeper(value: Any) -> Any:
    try:
        return helper(value)
    finally:
        print("finally", value)


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x = x
        self.y = y

    def __repr__(self) -> str:
        return f"Point({self.x}, {self.y})"

    def moved(self, by: Any) -> Point:
        return type(self)(self.x + by, self.y + by)


class Point3(Point):
    def __init__(self, x: Any, y: Any, z: Any = 0) -> None:
        super().__init__(x, y)
        self.z = z

    @subject(lambda: (Point3(1, 2, 3), 4))
    def moved(self, by: Any) -> Point:
        base = super().moved(by)
        base.z = self.z + by
        return base

    @subject(lambda: (Point3(1, 2, 3),))
    def described(self) -> Any:
        found = super
        return found(Point3, self).__repr__(), super().__repr__(), __class__.__name__

    @subject(lambda: (Point3(1, 2, 3),))
    def bound_later(self) -> Any:
        found = super(Point3)
        found.__init__()
        return found.__self__ is self, found.__thisclass__


class BadInit:
    def __init__(self) -> None:
        return 3  # type: ignore[return-value]


@subject(lambda: (3, 4), lambda: ("a", 2), lambda: ("a", "b"), lambda: (1, None))
def arithmetic(a: Any, b: Any) -> Any:
    c = a * b + -2 if isinstance(a, int) else a + b * 2
    d = c
    d += c
    return (a, b, c, d, c == d, c != d, not c, a is b, a is not b, [a] * 2)


@subject(lambda: (12, 5))
def integers(a: int, b: int) -> Any:
    r = [a // b, a % b, a**b, a << b, a >> 1, a & b, a | b, a ^ b, a / b, ~a, +a, -a]
    a -= 1
    a *= 2
    a //= 3
    a **= 2
    a %= 50
    a <<= 2
    a |= 3
    a ^= 5
    a &= 0xFF
    a >>= 1
    b /= 2
    return r, a, b


@subject(lambda: (5,), lambda: (15,), lambda: (-3,))
def chained(x: int) -> Any:
    if 0 < x < 10:
        return "small"
    elif 10 <= x <= 20 != x:
        return "middle"
    return "other", 0 < x > 3


@subject(lambda: (Strange(0), Strange(2)), lambda: (Strange(1), Strange(0)), lambda: (Strange(1, "bool"), Strange(2)))
def truths(a: Any, b: Any) -> Any:
    out = [a and b, a or b, not a]
    if a and not b:
        out.append("first")
    while b:
        out.append("loop")
        b = None
    return out, (1 if a else 2), a and a.value or "nothing"


@subject(lambda: (Strange(1), 2), lambda: (Strange(1, "add"), 2), lambda: (Strange(1, "iadd"), 2))
@subject(lambda: (Strange(1, "lt"), 2))
def operators(a: Any, b: Any) -> Any:
    c = a + b
    c += 1
    return c, a < b < 5, a == b, b in a, a[1], a[1:2], a[1:2:3], a[...]


@subject(lambda: (Strange(1),), lambda: (Strange(1, "setitem"),), lambda: (Strange(1, "delitem"),))
def items(a: Any) -> Any:
    a[1] = 2
    del a[1]
    a[1:2] = 3
    a["x", 1:2:3] = a.value
    del a[:]
    return a


@subject(lambda: ([5, 3, 8, 13],), lambda: ([],), lambda: (None,), lambda: (Strange(3),), lambda: (Strange(3, "iter"),))
def for_loop(values: Any) -> Any:
    total = 0
    for value in values:
        if value == 3:
            continue
        if value == 8:
            break
        total += helper(value)
    else:
        total = -1
    return total


@subject(lambda: (7,))
def while_loop(n: int) -> Any:
    seen = []
    while n > 1:
        seen.append(n)
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        if len(seen) > 8:
            break
    else:
        seen.append("end")
    return seen


@subject(lambda: (3,))
def nested_loops(n: int) -> Any:
    result = []
    for i in range(n):
        for j in range(i):
            if j == 1:
                break
            result.append((i, j))
        else:
            result.append(i)
    return result


@subject(lambda: (4,), lambda: (13,))
def calls(value: Any) -> Any:
    a = helper(value)
    b = helper(value, factor=3)
    c = helper(*[value], **{"factor": 5})
    d = deeper(a)
    return a, b, c, d, max(1, value, key=lambda v: -v), "{}-{x}".format(1, x=2)


@subject(lambda: (1,))
def bad_calls(value: Any) -> Any:
    out = []
    for attempt in (
        lambda: helper(),
        lambda: helper(1, 2),
        lambda: helper(1, unknown=2),
        lambda: value(),
        lambda: helper(*value),
        lambda: helper(**value),
        lambda: helper(1, **{"factor": 1}, **{"factor": 2}),
        lambda: helper(**{1: 2}),
        lambda: len(1, 2),
    ):
        try:
            attempt()
        except TypeError as error:
            out.append(str(error))
    try:
        helper(1, 2, 3)
    except TypeError as error:
        out.append(str(error))
    try:
        helper(*value)
    except TypeError as error:
        out.append(str(error))
    try:
        helper(1, **value)
    except TypeError as error:
        out.append(str(error))
    try:
        helper(1, **{"factor": 1}, **{"factor": 2})
    except TypeError as error:
        out.append(str(error))
    try:
        helper(*[1], *value)
    except TypeError as error:
        out.append(str(error))
    return out


@subject(lambda: ((1, 2),), lambda: ((1, 2, 3),), lambda: ((1,),), lambda: (5,), lambda: ("ab",), lambda: (Strange(2),))
def unpacking(pair: Any) -> Any:
    a, b = pair
    return b, a


@subject(lambda: ([1, 2, 3, 4],), lambda: ([1, 2],), lambda: ([1],), lambda: (None,))
def starred_unpacking(values: Any) -> Any:
    first, *middle, last = values
    *most, _ = values
    return first, middle, last, most, [*values, *most], {*values}, (*values, 1), {**{"a": 1}, "b": 2}


@subject(lambda: (1, 2, 3), lambda: (1,))
def star_args(*args: Any, **kwargs: Any) -> Any:
    head, *rest = args
    return head, rest, kwargs, len(args)


@subject(lambda: (0,), lambda: (1,), lambda: (2,), lambda: (3,))
def nested_try(which: int) -> Any:
    log = []
    try:
        try:
            log.append("start")
            if which == 1:
                raise KeyError("one")
            if which == 2:
                {}["two"]
            if which == 3:
                raise IndexError("three") from ValueError("cause")
        except KeyError as error:
            log.append(repr(error))
            if which == 2:
                raise RuntimeError("again")
        else:
            log.append("else")
        finally:
            log.append("finally")
    except RuntimeError as error:
        log.append((repr(error), repr(error.__context__)))
        return log
    finally:
        print(log)
    return log, "end"


@subject(lambda: (0,), lambda: (1,), lambda: (2,))
def raising_in_handlers(which: int) -> Any:
    try:
        deeper(13)
    except ValueError as error:
        if which == 0:
            raise
        if which == 1:
            raise TypeError("new") from error
        raise KeyError("implicit")


@subject(lambda: (13,), lambda: (1,))
def bare_raise_through_call(value: Any) -> Any:
    def reraise() -> None:
        raise

    try:
        helper(value)
        reraise()
    except ValueError:
        try:
            reraise()
        except ValueError as again:
            print(sys.exc_info()[1] is again)
            reraise()


@subject()
def exc_info() -> Any:
    out: list[Any] = [sys.exc_info()[1]]
    try:
        raise ValueError("a")
    except ValueError:
        out.append(repr(sys.exc_info()[1]))
        try:
            raise KeyError("b")
        except KeyError as inner:
            out.append((repr(sys.exc_info()[1]), repr(inner.__context__)))
        out.append(repr(sys.exc_info()[1]))
        for i in range(2):
            out.append((i, repr(sys.exc_info()[1])))
    out.append(sys.exc_info()[1])
    return out


@subject()
def printed_traceback() -> None:
    try:
        deeper(13)
    except ValueError:
        print(traceback.format_exc())
        try:
            [][1]
        except IndexError:
            traceback.print_exc()


@subject()
def unbound_after_handler() -> Any:
    try:
        raise ValueError("x")
    except ValueError as error:
        print(error)
    return error


@subject(lambda: (True,), lambda: (False,))
def unbound(flag: bool) -> Any:
    if flag:
        x = 1
    try:
        return x
    except UnboundLocalError as error:
        y = str(error)
        del y
    del y


@subject(lambda: (False,), lambda: (True,))
def unbound_cell(flag: bool) -> Any:
    def inner() -> Any:
        return x

    if flag:
        x = 1
        del x
    try:
        return inner()
    except NameError as error:
        print(error)
    del x


@subject()
def unknown_global() -> Any:
    try:
        return no_such_name
    except NameError as error:
        print(error, error.name)
        return no_such_name_either


@subject(lambda: ([1, 2],), lambda: (None,))
def attributes(a: Any) -> Any:
    out = [a.__class__.__name__, a.__doc__ is None]
    a.append(3)
    p = Point(1, 2)
    p.x += 5
    p.new = a
    del p.y
    try:
        return p.y
    except AttributeError as error:
        out.append((str(error), error.name, error.obj))
    a.missing


@subject(lambda: ([1, 2],), lambda: ([0],))
def attribute_errors(a: Any) -> Any:
    for action in range(3):
        try:
            if action == 0:
                a.thing = 1
            elif action == 1:
                del a.thing
            else:
                a.thing()
        except AttributeError as error:
            print(error)
    return a[5]


@subject(lambda: (False,), lambda: (True,))
def with_blocks(swallow: bool) -> Any:
    with Recorder("outer", swallow) as a, Recorder("inner") as b:
        print(a, b)
        helper(13)
    return "after"


@subject(lambda: ("enter",), lambda: ("exit",), lambda: ("",))
def with_failures(fail: str) -> Any:
    for k in range(2):
        with Recorder("loop", swallow=True, fail=fail if k else ""):
            if k == 0:
                continue
            with Recorder("inner"):
                return k
    return "end"


@subject(lambda: (1,), lambda: (Recorder,))
def with_nothing(value: Any) -> Any:
    with value:
        pass


@subject(lambda: (2,))
def closures(n: int) -> Any:
    total = 0

    def add(k: int) -> int:
        nonlocal total
        total += k + n
        return total

    add(1)
    n += 10
    adders = [lambda k=k: k + total for k in range(3)]
    return add(2), total, [f() for f in adders], add.__closure__[1].cell_contents


def make_counter() -> Any:
    count = 0

    def increment(by: int = 1) -> int:
        nonlocal count
        count += by
        return count

    return increment


shared_counter = make_counter()


@subject(lambda: (1,))
def counts(n: int) -> Any:
    increment = make_counter()
    return [increment(k) for k in range(n + 3)], increment.__defaults__


def make_free(a: Any) -> Any:
    b = [a]

    def uses_free(c: Any) -> Any:
        nonlocal a
        d = a
        a = c

        def inner() -> Any:
            return a, b, c, d

        result = inner(), [a + x for x in range(c)], a
        a = d  # as it was: this function runs many times
        return result

    return uses_free


SUBJECTS.append((make_free(5), lambda: (3,)))


@subject(lambda: (5,), lambda: ("abc",))
def comprehensions(n: Any) -> Any:
    r = range(n) if isinstance(n, int) else n
    return (
        [x for x in r if x],
        {x: str(x) for x in r},
        {x for x in r},
        list(x for x in r),
        [(x, y) for x in r for y in r if x is not y],
        [[y for y in range(2)] for x in r],
        [lambda: x for x in r][0](),
    )


@subject(lambda: ([1, 2, 13, 4],))
def failing_comprehension(values: Any) -> Any:
    x = "kept"
    try:
        return [helper(x) for x in values]
    except ValueError as error:
        return str(error), x


@subject(lambda: ([1, 2, 13],))
def raising_comprehension(values: Any) -> Any:
    return sum(len([helper(x) for x in values]) for _ in (1,)), len(values)


@subject(lambda: (10,))
def walrus(n: int) -> Any:
    if (half := n // 2) > 3 and (quarter := half // 2):
        return half, quarter, [y := 1, y**2], [last := k for k in range(3)], last
    return half


@subject(lambda: (3,))
def generators(n: int) -> Any:
    def squares(k: int) -> Any:
        for i in range(k):
            yield i * i
        return "done"

    def outer() -> Any:
        result = yield from squares(n)
        yield result

    g = squares(n)
    first = next(g)
    return first, list(g), list(outer()), sum(x for x in squares(n)), dict(zip("ab", squares(2), strict=False))


@subject(lambda: (3.14159,), lambda: ("text",), lambda: (Strange(3),), lambda: (Strange(3, "format"),))
def strings(x: Any) -> Any:
    width = 10
    return f"{x}", f"{x!r:>{width}}|{x!s}|{x!a}", f"{width=}", "%s and %r" % (x, x), f"a{x}b" + "c", f"{x:5}"


@subject(lambda: (3,), lambda: ("x",))
def global_names(n: Any) -> Any:
    global counter, deleted_again
    counter = n
    counter += 1
    deleted_again = 1
    del deleted_again
    try:
        del deleted_again
    except NameError as error:
        print(error)
    return counter


@subject()
def imports() -> Any:
    import os.path
    import collections.abc as abc_module
    from os import path as p, sep
    from math import pi as number

    try:
        from math import nothing_like_this  # noqa: F401
    except ImportError as error:
        print(error)
    try:
        import no_such_module  # noqa: F401
    except ImportError as error:
        print(error, error.name)
    return os.path is p, abc_module.__name__, sep, number


@subject()
def relative_import() -> None:
    from . import no_such_thing_here  # noqa: F401


@subject(lambda: (2,), lambda: (13,))
def class_body(n: Any) -> Any:
    base = Point

    class Local(base):
        factor = n
        doubled = [n * k for k in range(2)]
        value: int = helper(n)

        def moved(self, by: Any) -> Any:
            return super().moved(by * self.factor), __class__.__name__

    class Meta(type):
        def __new__(meta, name: str, bases: Any, space: Any, extra: int = 0) -> Any:
            space["extra"] = extra
            return super().__new__(meta, name, bases, space)

    class WithMeta(metaclass=Meta, extra=n):
        pass

    return Local(1, 2).moved(3), Local.doubled, WithMeta.extra, Local.__qualname__, Local.__annotations__


@subject(lambda: (2,), lambda: (0,))
def assertions(n: int) -> Any:
    assert n, f"no {n}"
    assert n < 2
    return n


@subject(
    lambda: (0,), lambda: ("text",), lambda: ([1, 2],), lambda: ([1, 2, 3, 4],), lambda: ({"a": 1, "b": [5]},),
    lambda: (Point(0, 3),), lambda: (Point(2, 3),), lambda: ((),), lambda: (None,), lambda: (3.5,),
    lambda: ({"k": 0, "z": 1},),
)  # fmt: skip
def matching(value: Any) -> Any:
    match value:
        case 0 | 1:
            return "bit"
        case str() as text if text:
            return text
        case []:
            return "empty"
        case [a, b]:
            return a + b
        case [first, *rest]:
            return first, rest
        case {"a": int(n), "b": [m]}:
            return n, m
        case {"k": k, **others}:
            return k, others
        case Point(0, y=yy):
            return "axis", yy
        case Point(x=xx, y=yy):
            return xx, yy
        case float(f):
            return f
        case _:
            return "nothing"


@subject(lambda: (Point(1, 2),))
def bad_match(value: Any) -> Any:
    match value:
        case Point(1, 2, 3):
            return 1
    return 2


@subject(lambda: (0,), lambda: (1,), lambda: (2,), lambda: (3,))
def exception_groups(which: int) -> Any:
    log = []
    try:
        if which == 0:
            raise ExceptionGroup("g", [ValueError("a"), TypeError("b")])
        if which == 1:
            raise ExceptionGroup("g", [ValueError("a"), KeyError("c")])
        if which == 2:
            raise ValueError("naked")
    except* ValueError as group:
        log.append((repr(group), repr(sys.exc_info()[1])))
    except* TypeError as group:
        log.append(repr(group))
        raise RuntimeError("from a star handler")
    return log


@subject(lambda: ([4, 1],))
def deletes(values: Any) -> Any:
    x = 5
    del x
    d = {"a": 1, "b": 2}
    del d["a"]
    del values[0]
    try:
        del d["zz"]
    except KeyError as error:
        print(repr(error))
    x = d
    return x, values


@subject(lambda: (list(range(10)),))
def slices(values: Any) -> Any:
    values[1:3] = ["x"]
    values[0] += 5
    values[-2:] += [1]
    del values[4:6]
    i = slice(1, 3)
    return values[:2], values[2:], values[::2], values[i], values[-1:], values[1:-1:1]


@subject(lambda: (1,))
def functions_with_defaults(n: int) -> Any:
    def f(a: int, /, b: int = n, *args: int, c: int = n + 1, **kw: int) -> Any:
        return a, b, args, c, kw

    g = lambda x, y=n: (x, y)  # noqa: E731
    return f(1), f(1, 2, 3, c=4, d=5), g(0), f.__annotations__, f.__kwdefaults__, f.__qualname__


@subject(lambda: ([1, 2, 0, 4],))
def finally_in_loop(values: Any) -> Any:
    out = []
    for v in values:
        try:
            if v == 2:
                continue
            out.append(10 // v)
        except ZeroDivisionError:
            out.append("zero")
            break
        finally:
            out.append("f")
            for k in range(2):
                out.append(k)
    return out


@subject(lambda: (1,), lambda: (0,))
def return_in_finally(n: int) -> Any:
    try:
        1 / n
    finally:
        return "swallowed"


@subject(lambda: (1,), lambda: (0,))
def return_through_handlers(n: int) -> Any:
    try:
        try:
            1 / n
            return "fine"
        except ZeroDivisionError:
            for k in range(5):
                if k == 2:
                    return k, repr(sys.exc_info()[1])
    finally:
        print("finally", sys.exc_info()[1])


@subject()
def loop_in_handler() -> Any:
    total = []
    try:
        raise ValueError("first")
    except ValueError as error:
        for k in range(3):
            try:
                if k == 1:
                    raise KeyError(k)
            except KeyError as inner:
                total.append((repr(inner), repr(inner.__context__), repr(sys.exc_info()[1])))
                for j in range(2):
                    total.append((j, repr(sys.exc_info()[1])))
            total.append((k, repr(sys.exc_info()[1]), str(error)))
    return total, sys.exc_info()


@subject()
def custom_errors() -> Any:
    class Mine(Exception):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.add_note("a note")

    try:
        raise Mine
    except TypeError as error:
        print(error)
    try:
        raise 5  # type: ignore[misc]
    except TypeError as error:
        print(error, repr(error.__context__))
    try:
        raise Mine("m") from 5  # type: ignore[misc]
    except TypeError as error:
        print(error)
    try:
        raise KeyError("k") from None
    except KeyError as error:
        print(error.__suppress_context__)
    try:
        helper(13)
    except 5:  # type: ignore[misc]
        pass


@subject()
def no_active_exception() -> None:
    print("before")
    raise


@subject()
def bad_init() -> Any:
    try:
        return BadInit()
    except TypeError as error:
        print(error)
    return BadInit()


@subject(lambda: (Strange(1, "hash"),), lambda: (Strange(1),), lambda: ([],))
def hashing(value: Any) -> Any:
    a = {value: 1}
    b = {value, 2}
    c = {"k": value, "l": 2}
    d = {k: value for k in "ab"}
    return a, b, c, d, {x for x in (value, 3)}, value in a


@subject(lambda: (1,), lambda: ("ab",))
def bad_displays(value: Any) -> Any:
    for k in range(4):
        try:
            if k == 0:
                print([*value])
            elif k == 1:
                print({*value})
            elif k == 2:
                print({**value})
            else:
                print((*value, 1))
        except TypeError as error:
            print(error)
    return value


@subject(lambda: ([3, 1],), lambda: (None,))
def loop_exits(values: Any) -> Any:
    x = y = None
    for x in values:
        while True:
            y = x
            break
    else:
        del y
    return x


@subject(lambda: (5,))
def recursion(n: int) -> Any:
    def factorial(k: int) -> int:
        return 1 if k < 2 else k * factorial(k - 1)

    return factorial(n)


@subject(lambda: (3,), lambda: (0,))
def deep_error(n: int) -> Any:
    def down(k: int) -> Any:
        if k == 0:
            return 1 // k
        return down(k - 1) + 1

    try:
        return down(n)
    except ZeroDivisionError as error:
        error.add_note(f"from {n}")
        raise


@subject(lambda: ("x",))
def in_expressions(x: str) -> Any:
    return [x, (x, {x: [helper(x, factor=len(x) + k) for k in range(2)]}, f"{x}{x!r}{helper(x)}"), x if x else -1][1]


@subject()
def contextlib_use() -> Any:
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.callback(print, "callback")
        {}["missing"]
    with contextlib.suppress(KeyError):
        helper(13)


@subject(lambda: (1, 2, 3))
def many_locals(a: int, b: int, c: int) -> Any:
    d, e, f = c, b, a
    g = h = i = d
    (j, k), *rest = (a, b), c, d
    for a in rest:
        g += a
    return locals() if a > 100 else (a, b, c, d, e, f, g, h, i, j, k)


@subject(lambda: (1,))
def own_frame(a: int) -> Any:
    b = 2

    def inner() -> int:
        return a

    def uses() -> Any:
        z = b
        return sorted(locals()), eval("z + b")

    return sorted(k for k in locals() if k != "self"), eval("a + b"), dir()[:1], vars()["a"], uses(), inner()


@subject()
def empty() -> None:
    pass


@subject(lambda: (0,), lambda: (1,), lambda: (2,))
def exit_codes(n: int) -> Any:
    try:
        if n == 1:
            raise SystemExit(4)
        if n == 2:
            raise KeyboardInterrupt
    except Exception:
        return "not this"
    finally:
        print("cleanup")
    return n
