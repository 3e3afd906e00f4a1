"""Definitions that random programs use. Each program begins with those that it names, and with what they name."""

from __future__ import annotations

import re

MODULES = (
    "collections", "contextlib", "dataclasses", "functools", "itertools", "math", "operator", "struct", "sys", "time",
    "torch",
)  # fmt: skip

DEFINITIONS = {
    "LOG": "LOG = []",
    "TABLE": "TABLE = {'n': 1}",
    "COUNT": "COUNT = 2",
    "SCALE": "SCALE = 0.5",
    "BIAS": "BIAS = torch.tensor(0.25)",
    "data": """
def data(rows, cols, seed, sign=1.0):
    values = [((7 * i + 3 * seed) % 11 - 3) / 4 for i in range(rows * cols)]
    return torch.tensor(values).reshape(rows, cols) * sign
""",
    "Oops": """
class Oops(Exception):
    def __init__(self, code, text='oops'):
        super().__init__(text)
        self.code = code
""",
    "Deep": """
class Deep(Oops):
    pass
""",
    "fail": """
def fail(code, kind=Oops):
    raise kind(code)
""",
    "noisy": """
def noisy(value):
    if isinstance(value, torch.Tensor):
        print('noisy', tuple(value.shape), file=None)
    else:
        print('noisy', value, file=None)
    return value
""",
    "note": """
def note(value):
    LOG.append(value)
    return value
""",
    "apply": """
def apply(function, value, *, times=1):
    for _ in range(times):
        value = function(value).clamp(-4, 4)
    return value
""",
    "counter": """
def counter(limit):
    got = 0
    try:
        for i in range(limit):
            got = (yield i + (got or 0))
    finally:
        LOG.append('closed')
""",
    "traced": """
def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        LOG.append(function.__name__)
        return function(*args, **kwargs)
    return wrapper
""",
    "Guard": """
class Guard:
    def __init__(self, swallowed, level):
        self.swallowed = swallowed
        self.level = level

    def __enter__(self):
        LOG.append(('enter', self.level))
        return self.level

    def __exit__(self, kind, error, trace):
        LOG.append(('exit', kind.__name__ if kind else None))
        return kind is not None and issubclass(kind, self.swallowed)
""",
    "section": """
@contextlib.contextmanager
def section(name):
    LOG.append(name)
    try:
        yield len(LOG)
    except KeyError as error:
        LOG.append(('section', str(error)))
    finally:
        LOG.append('end')
""",
    "Pair": "Pair = collections.namedtuple('Pair', 'first second')",
    "Settings": """
@dataclasses.dataclass
class Settings:
    scale: float
    rounds: int = 2
    items: list = dataclasses.field(default_factory=list)
""",
    "Point": """
class Point:
    __slots__ = ('a', 'b')

    def __init__(self, a, b):
        self.a = a
        self.b = b
""",
}


def needed(body: str) -> str:
    """The imports and definitions that `body` uses, directly or through another definition."""
    used: dict[str, str] = {}
    text = body
    while True:
        found = {n: d for n, d in DEFINITIONS.items() if n not in used and re.search(rf"\b{n}\b", text)}
        if not found:
            break
        used |= found
        text = "\n".join(found.values())
    everything = "\n".join([*used.values(), body])
    imports = [f"import {name}" for name in MODULES if re.search(rf"(?<![.\w]){name}\.", everything)]
    ordered = [text for name, text in DEFINITIONS.items() if name in used]
    return "\n".join([*imports, *ordered])
