"""Classes that a function makes for itself."""

import dataclasses

import pytest
import torch

import quickfuse
from case_registry import case, cases
from one_graph.programs import agrees, x_and


@case
def cls_inside():
    def f(x):
        class C:
            k = 3

            def __init__(self, v):
                self.v = v

            def get(self):
                return self.v * self.k

        return C(x).get()

    return (f,)


@case
def cls_inside_closure():
    def f(x, n):
        class C:
            def run(self, y):
                return y * n

        return C().run(x)

    return f, x_and(2), x_and(3)


@case
def cls_inside_base():
    class B:
        def go(self, y):
            return self.part(y) + 1

    def f(x):
        class D(B):
            def part(self, y):
                return super().__repr__() and y * 2 if False else y * 2

        return D().go(x)

    return (f,)


@case
def cls_inside_exc():
    def f(x):
        class E(Exception):
            pass

        try:
            raise E("a")
        except E as e:
            return x + len(e.args[0])

    return (f,)


@case
def cls_inside_namespace():
    def f(x):
        class Config:
            lr = 0.1
            names = ["a", "b"]
            size = len(names)

        return x * Config.lr * Config.size

    return (f,)


@case
def cls_inside_super():
    class B:
        def __init__(self, k):
            self.k = k

        def go(self, y):
            return y * self.k

    def f(x, n):
        class D(B):
            scale = n

            def __init__(self):
                super().__init__(3)

            @property
            def twice(self):
                return self.k * 2

            @staticmethod
            def plus(y):
                return y + 1

            @classmethod
            def make(cls):
                return cls()

            def __call__(self, y):
                return self.plus(super().go(y)) * self.scale

        d = D.make()
        return d(x) * d.twice, isinstance(d, B), D.__name__, issubclass(D, B)

    return f, x_and(2), x_and(5)


@case
def cls_inside_annot():
    def f(x):
        class P:
            a: int = 1
            b: "str"
            xs = [x, x + 1]

            def __len__(self):
                return 3

            def __add__(self, o):
                return o * self.a

        p = P()
        return p + x, len(p), P.xs[1], P.__annotations__["a"] is int

    return (f,)


@case
def annotations_of_classes():
    def f(x, kind):
        class Base:
            a: int = 1
            int = str
            b: int
            c: kind

        class Child(Base):
            d: Base

        class Plain:
            pass

        found = Base.__annotations__
        found["e"] = 4
        kept = Base.__annotations__ is found, [*Child.__annotations__], Plain.__annotations__
        return x + found["e"], [str(value) for value in found.values()], kept, Child.__annotations__["d"] is Base

    return f, x_and(float), x_and(int)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)


def test_data_class_made_inside():
    """Its decorator is one step, of which no part is compiled for the class of one call."""

    def f(x):
        @dataclasses.dataclass(frozen=True)
        class Result:
            y: torch.Tensor
            n: int = 2

            def total(self):
                return self.y.sum() * self.n

        made = Result(x * 2)
        return made.total(), dataclasses.asdict(made), repr(made.n)

    compiled = quickfuse.compile(f)
    for k in range(6):
        expected, found = f(torch.ones(3) + k), compiled(torch.ones(3) + k)
        assert torch.equal(expected[0], found[0]) and torch.equal(expected[1]["y"], found[1]["y"])
        assert (expected[1]["n"], expected[2]) == (found[1]["n"], found[2])
    assert compiled.graph_count <= 5
