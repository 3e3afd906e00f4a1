"""Random programs: Python source around tensors, for comparing a compiled run with a plain one.

`program(random)` needs only `random()`, `choice()` and `choices()` of what it is given: a `random.Random`, or what
hypothesis draws with `st.randoms()`. A source defines `program`, the function to compile, and `arguments(call)`, which
makes fresh arguments for the calls 0, 1 and 2: the second changes numbers, flags and lengths, the third the sign (and
sometimes the shape) of tensors.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from programs import prelude
from programs.functions import Definitions
from programs.load import PATIENCE, Hang, Loaded, load, patience, quietly
from programs.maker import VALUES, Maker
from programs.templates import NoWay

#: A program that takes more lines than this for its calls is thrown away.
LINE_LIMIT = 4000
#: The share of programs that may raise out of the function; half of them do.
RAISING_SHARE = 0.2
CALLS = 3


@dataclass(frozen=True)
class Program:
    """`source` is all there is; `features` says what the generator used."""

    source: str
    features: frozenset[str] = frozenset()

    def load(self) -> Loaded:
        """The program in a module namespace of its own."""
        return load(self.source)


#: Arguments by kind: expressions of `call`, `rows`, `cols`, `sign` and of arguments made before.
ARGUMENTS: dict[str, list[str]] = {
    "mat": ["data(rows, cols, call + {k}, sign)", "data(rows, cols, call + {k}, sign)", "{mat}", "{mat}[:]",
            "data(cols, rows, call + {k}, sign).t()", "data(rows + 1, cols, call, sign)[1:]"],
    "int": ["({a}, {b}, {c})[call]", "{a} + call"],
    "float": ["(0.5, 1.25, -0.75)[call]", "0.5 * call"],
    "bool": ["(True, False, True)[call]", "call == 1"],
    "str": ["('ab', 'abc', '')[call]", "'x-y'[call:]"],
    "vec": ["data(1, cols, call + {k}, sign)[0]", "{mat}[0]"],
    "scal": ["torch.tensor(0.5) * sign", "{mat}[0, 0]"],
    "imat": ["data(rows, cols, call + {k}, sign).long()"],
    "ten": ["data(rows, cols, call, sign).unsqueeze(0)", "torch.zeros(0, cols)"],
    "ints": ["[{a}, {b}, {c}][:3 - call]", "[{a}] * (call + 1)", "[[], [1], [{a}, 2]][call]"],
    "mats": ["[data(rows, cols, i, sign) for i in range((2, 3, 1)[call])]", "[{mat}, data(rows, cols, call, sign), {mat}]",
             "[[], [{mat}], [{mat}[:]]][call]"],
    "intmap": ["{{'a': {a} + call, 'b': {b}}}", "({{'a': 1}}, {{}}, {{'c': {c}}})[call]"],
    "matmap": ["{{'a': {mat}, 'b': data(rows, cols, call, sign)}}", "({{'a': {mat}}}, {{}}, {{'b': {mat}}})[call]"],
    "idmap": ["{{{a}: {mat}, 7: data(rows, cols, call, sign)}}"],
    "intset": ["{{{a}, {b} + call}}", "set(range(call))"],
    "triple": ["({a}, {b} + call, {c})"],
    "couple": ["({mat}, {a} + call)"],
    "pair": ["Pair({mat}, {b} + call)"],
    "settings": ["Settings(0.5 + call, {a})", "Settings(0.25, items=[{a}] * call)"],
    "matqueue": ["collections.deque([{mat}], maxlen=2 + call)", "collections.deque()"],
    "intqueue": ["collections.deque([{a}, {b}, {c}][call:])"],
    "groups": ["collections.defaultdict(list, {{'a': [{a}]}})"],
    "counts": ["collections.defaultdict(int)", "collections.Counter([{a}, {b}])"],
    "point": ["Point({a} + call, {mat})"],
    "box": ["Box({mat}, {a} + call)", "(Box, Crate, Box)[call](data(rows, cols, call, sign))"],
    "matfn": ["torch.tanh", "(torch.sin, torch.cos, torch.sin)[call]", "lambda x: x * {a}"],
    "intfn": ["abs", "lambda n: n + {a}"],
    "intgen": ["iter([{a}, {b}])", "(i * 2 for i in range(3))"],
    "matgen": ["iter([{mat}])", "(data(rows, cols, i, sign) for i in range(2))"],
    "nested": ["[[{a}], [{b}, {c}], []][:3 - call]", "[[{a}]] * 2"],
    "opt": ["(None, {mat}, None)[call]", "({mat}, None, {mat})[call]"],
    "strs": ["['p', 'q'][call - 1:]"],
}  # fmt: skip


def program(random: Any) -> Program:
    """A random program that ends, and mostly without raising."""
    raises = random.random() < RAISING_SHARE
    for attempt in range(50):
        found = _attempt(random, raises)
        if found is not None and ends(found.source, raises or attempt > 30):
            return found
    raise AssertionError("the generator found no program")


def _attempt(random: Any, raises: bool) -> Program | None:
    try:
        body, features = Writer(random, raises).write()
        source = ast.unparse(ast.parse(f"{prelude.needed(body)}\n{body}")) + "\n"
        compile(source, "program", "exec")
    except (NoWay, SyntaxError, ValueError, RecursionError):
        return None
    return Program(source, frozenset(features))


def ends(source: str, may_raise: bool = True, seconds: float = PATIENCE) -> bool:
    """Whether the program ends soon, and without raising where it must not."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != loaded.filename:
            return None
        lines += 1
        if lines > LINE_LIMIT:
            raise TooLong
        return trace

    loaded = load(source)
    before = sys.gettrace()
    try:
        for call in range(CALLS):
            args, kwargs = loaded.arguments(call)
            sys.settrace(trace)
            try:
                with quietly(), patience(seconds):  # Python stops tracing when this raises, also where that is swallowed
                    loaded.function(*args, **kwargs)
            except Exception:
                if not may_raise:
                    return False
            finally:
                sys.settrace(before)
    except (TooLong, Hang):
        return False
    return lines <= LINE_LIMIT


class TooLong(BaseException):
    """Takes too many lines; nothing that a program catches."""


class Writer:
    """Writes one program."""

    def __init__(self, random: Any, raises: bool) -> None:
        self.random = random
        self.maker = Maker(random)
        self.definitions = Definitions(self.maker)
        self.raises = raises
        self.globals: list[str] = []

    def write(self) -> tuple[str, list[str]]:
        maker = self.maker
        lines: list[str] = []
        if maker.chance(0.4):
            maker.budget = 8
            lines += self.definitions.classes()
        for k in range(self.random.choice([0, 1, 1, 2, 3])):
            maker.budget = 6
            lines += self.definitions.helper(f"helper{k}")
        parameters = self._parameters()
        lines += self._main(parameters)
        lines += self._arguments(parameters)
        return "\n".join(lines), maker.features

    def _parameters(self) -> dict[str, str]:
        maker = self.maker
        kinds = ["mat", *[maker.value_kind() for _ in range(self.random.choice([1, 2, 3, 4, 5]))]]
        if "methods" in maker.scope.flags and maker.chance(0.6):
            kinds.append("box")
        return {maker.name(kind): kind for kind in kinds}

    def _main(self, parameters: dict[str, str]) -> list[str]:
        maker = self.maker
        scope = maker.scope
        scope.visible |= parameters
        scope.own |= set(parameters)
        scope.flags.add("function")
        scope.returns = "mat"
        names = list(parameters)
        lines = [f"def program({', '.join(names)}):"]
        if maker.chance(0.3):
            scope.flags.add("global")
            lines.append("    global COUNT, SCALE")
        if self.raises:
            scope.flags.add("protected")
        maker.budget = self.random.choice([8, 14, 20, 26])
        while maker.budget > 0:
            if maker.chance(0.1):
                maker.budget -= 2
                lines += self.definitions.closure("    ")
            else:
                lines += maker.statement(3, "    ")
        return [*lines, f"    return {self._result()}"]

    def _result(self) -> str:
        """Variables of the function, the younger ones more often, so that what it did can be seen."""
        maker = self.maker
        names = [n for n, kind in maker.scope.visible.items() if kind not in ("exc", "row")][-12:]
        chosen = sorted({self.random.choice(names) for _ in range(self.random.choice([1, 3, 5, 8]))})
        return ", ".join([*chosen, maker.expression(self.maker.value_kind(), 2)])

    def _arguments(self, parameters: dict[str, str]) -> list[str]:
        shape = self.random.choice(["(2, 2, 2)", "(2, 2, 3)", "(3, 2, 3)"])
        lines = ["def arguments(call):", f"    rows, cols = {shape}[call], 3", "    sign = (1.0, 1.0, -1.0)[call]"]
        mats: list[str] = []
        for k, (name, kind) in enumerate(parameters.items()):
            options = [o for o in ARGUMENTS[kind] if mats or "{mat}" not in o]
            text = self.random.choice(options).format(
                k=k, mat=self.random.choice(mats or [""]), **{v: self.random.choice([0, 1, 2, 3, 5, -1]) for v in "abc"}
            )
            lines.append(f"    {name} = {text}")
            if kind == "mat":
                mats.append(name)
        names = list(parameters)
        by_name = self.random.choice([0, 0, 0, 1, 2]) if len(names) > 2 else 0
        positional, keywords = names[: len(names) - by_name], names[len(names) - by_name :]
        pairs = ", ".join(f"'{n}': {n}" for n in keywords)
        return [*lines, f"    return ({', '.join(positional)},), {{{pairs}}}"]


assert set(VALUES) <= set(ARGUMENTS)
