"""Match statements: every kind of pattern, around tensors."""

from dataclasses import dataclass

import pytest
import torch

from language.harness import BACKENDS, case, check, names, t


@dataclass
class Linear:
    weight: torch.Tensor
    bias: float = 0.0


@dataclass
class Scale:
    factor: float


class Positional:
    __match_args__ = ("left", "right")

    def __init__(self, left, right):
        self.left = left
        self.right = right


class Limits:
    LOW = 1
    HIGH = 10


@case((t(3), "sin"), (t(3), "cos"), (t(3), "exp"), (t(3), "other"))
def literals(x, name):
    match name:
        case "sin":
            y = x.sin() + 1
        case "cos" | "exp":
            y = getattr(x, name)() * 2
        case _:
            y = x - 1
    return y * 2, name


@case((t(3), 1), (t(3), 10), (t(3), -5), (t(3), None), (t(3), True))
def values_singletons_and_guards(x, n):
    match n:
        case None:
            return x * 0
        case True:
            return x + 100
        case Limits.LOW | Limits.HIGH:
            y = x * n
        case int() as k if k < 0:
            y = x - k
        case _:
            y = x
    return y.exp()


@case((t(3), [1]), (t(3), [1, 2]), (t(3), (1, 2, 3)), (t(3), []), (t(3), "ab"))
def sequences(x, values):
    match values:
        case []:
            y = x
        case [a]:
            y = x + a
        case [a, b]:
            y = x * a - b
        case (a, *rest):
            y = x * a + sum(rest)
        case _:
            y = x.tanh()
    return y + 1


@case((t(4, 3),), (t(2, 3, 4),), (t(5),))
def shapes(x):
    match x.shape:
        case (n,):
            return x.sum() * n
        case (n, m):
            return x.sum(1) * n + m
        case (batch, *rest):
            return x.flatten(1).mean(1) * batch, rest


@case((t(3), {"op": "add", "n": 2}), (t(3), {"op": "mul", "n": 3, "extra": 1}), (t(3), {"op": "none"}))
def mappings(x, message):
    match message:
        case {"op": "add", "n": n}:
            y = x + n
        case {"op": "mul", "n": n, **rest}:
            y = x * n + len(rest)
        case {"op": op}:
            y = x - len(op)
    return y.sin()


@case((t(3), 0), (t(3), 1), (t(3), 2))
def classes_by_keyword(x, kind):
    layer = [Linear(x + 1, 2.0), Scale(3.0), Positional(x, 1)][kind]
    match layer:
        case Linear(weight=w, bias=b):
            y = x * w + b
        case Scale(factor=f) if f > 5:
            y = x
        case Scale(factor=f):
            y = x * f
        case _:
            y = x - 1
    return y + 1


@case((t(3), 1), (t(3), 2), (t(3), "s"))
def classes_by_position(x, n):
    match Positional(n, x):
        case Positional(1, value):
            return value + 1
        case Positional(int() | float() as k, value):
            return value * k - 1
        case Positional(str(k), value):
            return value.exp() + len(k)


@case((t(3), 1), (t(3), 1.5), (t(3), "a"), (t(3), [1]), (t(3), b"x"))
def builtin_classes(x, value):
    match value:
        case bool():
            y = x
        case int(n):
            y = x + n
        case float(f):
            y = x * f
        case str(s) | bytes(s):
            y = x - len(s)
        case list():
            y = x / 2
    return y * 3


@case((t(3), ("a", (1, [2, 3]))), (t(3), ("b", (4, [5]))), (t(3), ("c", (6, []))))
def nested_patterns(x, tree):
    match tree:
        case ("a", (n, [first, second])):
            return x * n + first - second
        case (str() as name, (n, [only])):
            return x * n + only * len(name)
        case (_, (n, [])) as whole:
            return x - n, whole


@case((t(3), 3), (t(3), 4))
def tensors_as_subjects(x, n):
    match x:
        case torch.Tensor(shape=(k,)) if k == n:
            y = x + k
        case torch.Tensor():
            y = x * 2
    match (x, n):
        case (torch.Tensor() as v, int(m)):
            y = y + v * m
    return y


@case((t(3), [("add", 1), ("mul", 2), ("neg",)]), (t(3), [("mul", 3), ("push",), ("bad", 1, 2)]))
def interpreter_loop(x, program):
    stack = [x]
    for instruction in program:
        match instruction:
            case ("add", n):
                stack[-1] = stack[-1] + n
            case ("mul", n):
                stack[-1] = stack[-1] * n
            case ("neg",):
                stack[-1] = -stack[-1]
            case ("push",):
                stack.append(stack[-1].sin())
            case other:
                stack.append(stack[0] - len(other))
    return stack


@case((t(3), 5), (t(3), 7))
def no_case_fits(x, n):
    y = x + 1
    match n:
        case 5:
            y = y * 2
    return y, n


@case((t(3),), (t(3, seed=1),))
def names_stay_bound_after_a_failed_match(x):
    captured = None
    match (x, 1):
        case (captured, 2):
            y = x
        case (v, 1):
            y = v * 2 + 1
    return y, captured is x


@case((t(3), "relu"), (t(3), "gelu"), (t(3), "swish"))
def raising_in_the_default(x, activation):
    match activation:
        case "relu":
            return x.relu() + 1
        case "gelu":
            return torch.nn.functional.gelu(x) + 1
        case _:
            raise ValueError(f"unknown activation {activation!r}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_match(name, backend):
    check(__file__, name, backend)
