"""Programs that were once wrong, as run.py printed them: each defines `program` and `arguments(call)`."""

from __future__ import annotations

import pytest

import quickfuse
from programs.compare import compare, with_eager_backend

PROGRAMS: dict[str, str] = {}

PROGRAMS["a handler that ends in the loop stands behind what follows the loop"] = """
import torch
LOG = []
def program(x, names):
    total = 0
    for name in names:
        try:
            total += len(name)
        except TypeError:
            LOG.append('none')
            continue
        for k in range(3):
            total += k
    for k in range(40):
        LOG.append(str(k))
        if k % 7 == total % 7:
            print(k)
    while total > 3:
        total -= 1
        try:
            LOG.append(names[total])
        except IndexError:
            continue
    return x * total
def arguments(call):
    return ((torch.ones(2), ['a', None, 'abc'] * (call + 1)), {})
"""

PROGRAMS["default values of keywords, made before a break"] = """
import torch
def program(x):
    print(1)
    def inner(m, *, n=1, **more):
        return m * n
    print(2)
    return [inner(x, n=k) for k in range(2)], inner(x)
def arguments(call):
    return ((torch.ones(2),), {})
"""

PROGRAMS["a generator ends where the next one takes its name"] = """
import torch
LOG = []
def counter(limit):
    try:
        for i in range(limit):
            got = yield i
    finally:
        LOG.append('closed')
def program(x):
    for n in range(3):
        if x.sum() > 0:
            x = x + 1
        row = counter(5)
        next(row)
        LOG.append(n)
    for n in range(2):
        try:
            row = counter(4)
            next(row)
        finally:
            LOG.append(n)
    del row
    LOG.append('deleted')
    return x
def arguments(call):
    return ((torch.ones(2) * (-1) ** call,), {})
"""

PROGRAMS["generators end with the frames, loops and expressions that have them"] = """
import torch
LOG = []
def counter(limit):
    try:
        for i in range(limit):
            yield i
    finally:
        LOG.append('closed')
def first(limit):
    for y in counter(limit):
        LOG.append('in')
        if y == 2:
            break
    rest = counter(limit)
    next(rest)
    LOG.append('out')
def fails():
    z = counter(3)
    next(z)
    raise ValueError
def program(x):
    next(counter(3))
    LOG.append(1)
    first(4)
    LOG.append(2)
    x = x * 2
    for y in counter(4):
        x = x + 1
        if y == 2:
            break
    LOG.append(3)
    try:
        fails()
    except ValueError as error:
        LOG.append('handled')
    LOG.append(4)
    pairs = zip(counter(3), counter(3))
    next(pairs)
    if x.sum() > 0:
        x = x + 1
    pairs = None
    LOG.append(5)
    return x
def arguments(call):
    return ((torch.ones(2) * (-1) ** call,), {})
"""

PROGRAMS["contextlib gives an exception its traceback back"] = """
import contextlib
@contextlib.contextmanager
def section(name):
    yield len
def program(x):
    with section('b') as n:
        () = x
def arguments(call):
    return ((2,), {})
"""

PROGRAMS["a traceback from before the exception was raised again"] = """
import torch, traceback
LOG = []
def program(x):
    try:
        raise ValueError('a')
    except ValueError as e:
        x = x + 1
        before = e.__traceback__
        try:
            raise e
        except ValueError as again:
            LOG.append([f.lineno for f in traceback.extract_tb(before)])
            again.__traceback__ = before
            raise
def arguments(call):
    return ((torch.ones(2),), {})
"""

PROGRAMS["a queue of another greatest length"] = """
import collections
def program(x, queue):
    queue.append(x)
    return len(queue)
def arguments(call):
    return ((0, collections.deque(maxlen=(0, 1, None)[call])), {})
"""

PROGRAMS["a method of a generator waits for its argument"] = """
import torch
LOG = []
def counter(limit):
    got = 0
    try:
        for i in range(limit):
            got = yield i + (got or 0)
    finally:
        LOG.append('closed')
def program(x):
    for k in range(6):
        row = counter(5)
        next(row)
        LOG.append(row.send(x.long().sum().item()))
        LOG.append(row.send((x + k).sum().item()))
    return x
def arguments(call):
    return ((torch.ones(2) * (-1) ** call,), {})
"""

PROGRAMS["an element of a list that is changed"] = """
import torch
def program(x, items):
    last = None
    def inner():
        return last
    if x.sum() > 0:
        x = x + 1
    last = items[7]
    items[:] = items[:3]
    return inner, items
def arguments(call):
    x = torch.ones(2) * (-1) ** call
    return ((x, [x + k for k in range(8)]), {})
"""

PROGRAMS["a loop over a list that got longer before it began"] = """
import collections
import torch
LOG = []
def program(x, items, queue):
    items.append(x)
    queue.append(x)
    queue.append(1)
    for k, y in enumerate(items):
        print(k)
        x = x + y
        if k == 0:
            items.append(x)
    for y in queue:
        LOG.append(1)
        if x.sum() > 0:
            x = x + 1
        print('queue')
    backwards = reversed(items)
    items.append(5)
    next(backwards)
    if x.sum() > 0:
        x = x * 2
    return x, list(backwards)
def arguments(call):
    x = torch.ones(2) * (-1) ** call
    return ((x, [x] * call, collections.deque([x] * call)), {})
"""

PROGRAMS["a variable that has a value in some calls only"] = """
import time
import torch
LOG = []
def program(x, n):
    for k in range(n):
        pass
    if n == 2:
        z = n
    def inner():
        return z
    try:
        time.monotonic()
        if k:
            LOG.append('more')
    except Exception as error:
        x.zero_()
        LOG.append(str(error))
    try:
        print(1)
        LOG.append(inner())
        LOG.append(z)
    except Exception as error:
        LOG.append(str(error))
    try:
        x = x + 1
        if x.sum() > 0:
            x = x + 2
        print(2)
        LOG.append(k)
    except UnboundLocalError as error:
        LOG.append(str(error))
    return x
def arguments(call):
    return ((torch.ones(2) * (-1) ** call, call), {})
"""

PROGRAMS["a loop's generator ends before the exception that leaves the loop is handled"] = """
import torch
LOG = []
class Guard:
    def __init__(self, swallowed):
        self.swallowed = swallowed
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        LOG.append(('exit', kind.__name__ if kind else None))
        return kind is not None and issubclass(kind, self.swallowed)
def program(x):
    def inner(m):
        with Guard(KeyError):
            yield 4
        yield 1
    with Guard(ValueError):
        for n in inner(x):
            y = (x > 2.0).sum().item()
            if y < 4:
                x = x + y
            LOG.append(int('x'))
    with Guard(ValueError):
        for n in inner(x):
            LOG.append(int('x'))
    return x
def arguments(call):
    return ((torch.ones(2) * (-1) ** call,), {})
"""

PROGRAMS["variables live as long as the tracebacks with their frames"] = """
import torch
LOG = []
ERRORS = []
class Oops(Exception):
    pass
def counter(limit):
    try:
        for i in range(limit):
            yield i
    finally:
        LOG.append('closed')
def captured(x):
    row = counter(4)
    next(row)
    try:
        x = undefined
    except Exception as error:
        kept = error
    LOG.append('captured')
def goes_on(x):
    row = counter(4)
    next(row)
    try:
        if x.sum() > 0:
            raise Oops(1)
        raise Oops(2)
    except Exception as error:
        kept = error
    x = x + 1
    LOG.append(type(kept).__name__)
    other = counter(5)
    next(other)
    if x.sum() > 3:
        x = x + 2
    return x
def noted(x):
    row = counter(4)
    next(row)
    try:
        if x.sum() > 0:
            raise Oops(1)
    except Exception as error:
        ERRORS.append(error)
    return x + 1
def dropped(x):
    row = counter(4)
    next(row)
    try:
        if x.sum() > 0:
            raise Oops(1)
    except Exception as error:
        LOG.append('handled')
    return x + 1
def program(x):
    results = []
    for function in (captured, goes_on, noted, dropped):
        results.append(function(x))
        LOG.append(function.__name__)
    row = counter(4)
    next(row)
    try:
        x = undefined
    except Exception as error:
        kept = error
    return results
def arguments(call):
    return ((torch.ones(2) * (-1) ** call,), {})
"""

PROGRAMS["operators that fail behind changes in place, in try statements"] = """
import torch
LOG = []
def program(x, y, k, z):
    z = z + 1
    LOG.append('a')
    try:
        v = x
        v.sub_(y)
        LOG.append('b')
    except Exception:
        LOG.append('c')
    try:
        v.add_(1)
        LOG.append('d')
        w = z[k] * 2
        LOG.append('e')
    except IndexError as error:
        LOG.append(str(error))
    try:
        v.add_(1)
        v[:, 1:].mul_(v[:, :-1])
        LOG.append('f')
    except RuntimeError as error:
        LOG.append('failed')
    try:
        w = x.sum(0)
        w.sub_(w[-1]).clamp_(-4, 4)
        LOG.append('g')
        w[1:].sub_(w[:-1])
    except RuntimeError as error:
        LOG.append('failed')
    with torch.no_grad():
        v.add_(1)
        try:
            v.add_(y)
        except RuntimeError as error:
            LOG.append('failed')
    return v, z
def arguments(call):
    x = torch.arange(6.0).reshape(2, 3)
    return ((x, x[0] if call != 1 else torch.ones(3), torch.tensor([0, call * 7]), torch.ones(3)), {})
"""


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("compiler", [with_eager_backend, quickfuse.compile], ids=["eager", "quickfuse"])
def test_program(name: str, compiler: object) -> None:
    """It does the same compiled."""
    assert compare(PROGRAMS[name], compiler) is None  # type: ignore[arg-type]
