"""Random functions and classes: signatures, closures, generators, recursion, methods."""

from __future__ import annotations

from dataclasses import dataclass

from programs.maker import Maker
from programs.templates import Helper


@dataclass(frozen=True)
class Signature:
    """Parameters as written, what they are inside, and templates of calls."""

    text: str
    inside: dict[str, str]
    calls: tuple[str, ...]


SIGNATURES = [
    Signature("m, n", {"m": "mat", "n": "int"}, ("(<mat>, <int>)", "(n=<int>, m=<mat>)", "(*<couple>)")),
    Signature("m, n=2", {"m": "mat", "n": "int"}, ("(<mat>)", "(<mat>, <int>)", "(<mat>, n=<int>)")),
    Signature("m, *rest", {"m": "mat", "rest": "row"}, ("(<mat>, <int>, <int>)", "(<mat>, *<ints>)", "(<mat>)")),
    Signature("m, *, n=1, **more", {"m": "mat", "n": "int", "more": "intmap"},
              ("(<mat>, n=<int>)", "(<mat>, **{'n': <int>, 'a': <int>})", "(<mat>, b=<int>)")),
    Signature("m, xs, table=None", {"m": "mat", "xs": "mats", "table": "row"},
              ("(<mat>, <mats>)", "(<mat>, <mats>, <intmap>)", "(<mat>, xs=<mats>, table=None)")),
    Signature("m, ns, flag=False", {"m": "mat", "ns": "ints", "flag": "bool"},
              ("(<mat>, <ints>)", "(<mat>, <ints>, <cond>)", "(<mat>, flag=True, ns=<ints>)")),
    Signature("m, fn, n=1", {"m": "mat", "fn": "matfn", "n": "int"}, ("(<mat>, <matfn>)", "(<mat>, <matfn>, n=<int>)")),
    Signature("m, kept=[]", {"m": "mat", "kept": "ints"}, ("(<mat>)", "(<mat>, <ints>)")),
    Signature("m, n, /, named", {"m": "mat", "n": "int", "named": "matmap"}, ("(<mat>, <int>, <matmap>)",)),
    Signature("m", {"m": "mat"}, ("(<mat>)",)),
]  # fmt: skip

RETURNS = {"mat": 6, "int": 3, "couple": 2, "ints": 1, "str": 1, "cond": 1, "matgen": 2, "intgen": 2}
ITEMS = {"matgen": "mat", "intgen": "int"}

METHODS = """
    def __init__(self, value, count=2):
        self.value = value
        self.count = count
        self.items = [count]
    @property
    def half(self):
        return self.value * 0.5
    @half.setter
    def half(self, value):
        self.value = value * 2
    def clip(n):
        return max(-2, min(n, 2))
    clip = staticmethod(clip)
    @classmethod
    def tally(cls, n):
        cls.total += n
        return cls.total
    def __add__(self, n):
        return type(self)(self.value + n, self.count)
    def __iadd__(self, n):
        self.count += n
        return self
    def __matmul__(self, m):
        return self.value + m
    def __getitem__(self, n):
        return self.items[n % len(self.items)] if self.items else n
    def __setitem__(self, n, v):
        self.items = [*self.items[:2], n, v]
    def __len__(self):
        return len(self.items)
    def __iter__(self):
        yield from self.items[:3]
    def __contains__(self, n):
        return n in self.items
    def __bool__(self):
        return self.count > 1
    def __eq__(self, other):
        return isinstance(other, Box) and self.count == other.count
    def __repr__(self):
        return f'{type(self).__name__}({self.count})'
""".strip("\n").splitlines()

SETTER = """
    @half.setter
    def half(self, value):
        Box.half.fset(self, value + 1)
""".strip("\n").splitlines()


class Definitions:
    """Writes functions and classes with the help of a maker, whose scope it changes."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker

    def function(self, head: str, inside: dict[str, str], returns: str, size: int, indent: str = "") -> list[str]:
        """A function with a random body; `head` is what stands between `def` and the colon."""
        maker = self.maker
        outside = maker.scope
        scope = maker.scope = outside.copy()
        scope.visible |= inside
        scope.own = set(inside)
        scope.flags -= {"loop", "protected", "yields", "global"}
        inner = indent + "    "
        lines = [f"{indent}def {head}:"]
        if indent and (names := self._rebound(outside.own, outside.visible)):
            lines.append(f"{inner}nonlocal {', '.join(names)}")
            scope.own |= set(names)
        if maker.chance(0.25):
            scope.flags.add("global")
            lines.append(f"{inner}global COUNT, SCALE")
        if returns in ITEMS:
            scope.flags.add("yields")
            scope.yields = ITEMS[returns]
            lines += self._generator(size, inner)
        else:
            scope.flags.add("function")
            scope.returns = returns
            lines += maker.block(size, 2, inner)
            lines.append(f"{inner}return {maker.expression(returns, 2)}")
        maker.scope = outside
        return lines

    def _generator(self, size: int, indent: str) -> list[str]:
        maker = self.maker
        lines = [f"{indent}yield {maker.atom('item')}"] if maker.chance(0.5) else []
        if maker.chance(0.7):
            n = maker.name("int")
            loop = [f"{indent}for {n} in range({maker.expression('small', 1)}):"]
            maker.scope.visible[n] = "int"
            maker.scope.flags.add("loop")
            loop += maker.block(max(1, size - 2), 1, indent + "    ")
            maker.scope.flags.discard("loop")
            lines += [*loop, f"{indent}    yield {maker.expression('item', 2)}"]
        else:
            lines += maker.block(size, 2, indent)
            lines.append(f"{indent}yield {maker.expression('item', 1)}")
        return lines

    def _rebound(self, own: set[str], visible: dict[str, str]) -> list[str]:
        """Variables of the enclosing function that a closure binds again."""
        maker = self.maker
        names = [n for n, kind in visible.items() if n in own and kind in ("int", "mat", "str", "float")]
        if not names or maker.chance(0.4):
            return []
        maker.features.append("nonlocal")
        return sorted({maker.random.choice(names) for _ in range(2)})

    def helper(self, name: str, indent: str = "") -> list[str]:
        """A function of a random signature; it can be called from now on."""
        maker = self.maker
        signature = maker.random.choice(SIGNATURES)
        returns = str(maker.weighted(RETURNS))
        recursive = not indent and returns == "mat" and maker.chance(0.3)
        text, calls = signature.text, signature.calls
        inside = dict(signature.inside)
        if recursive:
            text, calls, inside = "m, depth", ("(<mat>, <small>)",), {"m": "mat", "depth": "row"}
        lines = self.function(f"{name}({text})", inside, returns, maker.random.choice([1, 2, 3, 4]), indent)
        if recursive:
            maker.features.append("recursion")
            lines.insert(1, f"{indent}    if depth <= 0:\n{indent}        return m")
            lines[-1] = f"{indent}    return {name}(m * 0.5, min(depth, 3) - 1) + {lines[-1].split('return ', 1)[1]}"
            if "global" in lines[2]:
                lines[1:3] = [lines[2], lines[1]]
        elif not indent and maker.chance(0.2):
            maker.features.append("decorator")
            lines.insert(0, "@traced")
        if returns in ITEMS:
            maker.features.append("generator-function")
        feature = "call-closure" if indent else "call-helper"
        maker.scope.helpers.append(Helper(name, returns, [name + call for call in calls], feature))
        return lines

    def closure(self, indent: str) -> list[str]:
        """A nested function: callable by name, or a value of kind `matfn` or `intfn`."""
        maker = self.maker
        maker.features.append("closure")
        if maker.chance(0.5):
            return self.helper(f"inner{maker.name('any')}", indent)
        kind, item = maker.random.choice([("matfn", "mat"), ("intfn", "int")])
        name, parameter = maker.name(kind), maker.name(item)
        default = "" if maker.chance(0.7) else f"={maker.atom(item)}"
        size = maker.random.choice([1, 2, 3])
        lines = self.function(f"{name}({parameter}{default})", {parameter: item}, item, size, indent)
        maker.scope.visible[name] = kind
        return lines

    def classes(self) -> list[str]:
        """`Box`, and `Crate` derived from it. Their random bodies call no methods, so that nothing recurses."""
        maker = self.maker
        maker.scope.flags.add("classes")
        inside = {"self": "box", "m": "mat"}
        lines = ["class Box:", "    limit = 3", "    total = 0", *METHODS]
        lines += self.function("scale(self, m)", dict(inside), "mat", 2, "    ")
        lines += self.function("bump(self, n)", {"self": "box", "n": "int"} | self._value(), "int", 2, "    ")
        lines += ["class Crate(Box):", f"    limit = {maker.random.choice([1, 4])}"]
        if maker.chance(0.5):
            lines += ["    def __init__(self, value, count=1):", "        super().__init__(value.tanh(), count)",
                      f"        self.extra = {maker.random.choice(['count', '7', 'len(self.items)'])}"]  # fmt: skip
        if maker.chance(0.6):
            lines += self.function("scale(self, m)", dict(inside), "mat", 2, "    ")
            lines[-1] = f"        return super().scale(m) + {lines[-1].split('return ', 1)[1]}"
            maker.features.append("super")
        if maker.chance(0.5):
            lines += ["    @property", "    def half(self):", "        return super().half + 1", *SETTER]
        lines += self.function("__call__(self, m)", dict(inside), "mat", 2, "    ")
        at = lines.index("class Crate(Box):")
        lines[at:at] = self.function("__call__(self, m)", dict(inside), "mat", 1, "    ")
        maker.scope.flags |= {"methods"}
        return lines

    def _value(self) -> dict[str, str]:
        return {"self.value": "mat"}
