"""Built-in functions and the types that are called."""

import pytest
import torch

from language.harness import BACKENDS, case, check, names, t


class Sized:
    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, k):
        return self.values[k]

    def __reversed__(self):
        return iter(["reversed", *self.values])

    def __index__(self):
        return len(self.values)

    def __round__(self, digits=0):
        return ("rounded", digits)

    def __format__(self, spec):
        return f"<{spec}>"


@case((t(3), [3, 1, 2]), (t(3), [5, 4]), (t(3), [1.5, 0.5]))
def min_max_sum_sorted(x, values):
    y = x * min(values) + max(values) - sum(values, 10)
    z = max(values, key=lambda v: -v) + min(x.shape[0], 2) * x
    return y, z, sorted(values), sorted(values, reverse=True), min([], default=None), max("b", "a"), sum([[1], [2]], [])


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3, seed=3)))
def sum_of_tensors(x, y):
    return sum([x, y, x * y]), sum((v.mean() for v in (x, y)), start=1.0), sum({"a": x, "b": y}.values())


@case((t(3), [True, False]), (t(3), [1, 2]), (t(3), []))
def any_and_all(x, flags):
    if any(flags):
        x = x + 1
    if all(flags):
        x = x * 2
    return x.exp(), any(v > 1 for v in flags), all(isinstance(v, int) for v in flags)


@case((t(3), 7.6), (t(3), -2.5), (t(3), 3.0))
def conversions_of_numbers(x, f):
    n = int(f)
    return x * n + round(f), round(f, 1), float(n), str(f), bool(n), abs(f), divmod(f, 2), pow(2, n), complex(1, n), hash(1)


@case((t(3), "12"), (t(3), "0x1f"), (t(3), "nope"))
def conversions_of_text(x, text):
    try:
        n = int(text, 0)
    except ValueError as error:
        return x - 1, str(error)
    y = (x * n).sin() + n
    return y * x, hex(n), bin(n), oct(n), chr(n + 60), ord("a"), repr(text), ascii("é"), format(n, "05d")


@case((t(3), [1, 2, 3]), (t(3), [4]))
def constructors_of_containers(x, values):
    pairs = list(zip("abc", values))
    made = tuple(values), set(values), frozenset(values), dict(pairs), dict(pairs, z=0), dict(a=1), list("ab"), bytes(3)
    y = (x + len(made)).exp() * x
    return y, made, list(), dict(), tuple(), set(), str(), int(), float(), list(range(3)), bytearray(b"a")


@case((t(3), [1, 2, 3]), (t(3), []))
def enumerate_zip_map_filter(x, values):
    out = [x * k + v for k, v in enumerate(values, 2)]
    mapped = list(map(lambda a, b: x + a * b, values, reversed(values)))
    kept = list(filter(None, [0, 1, "", "a", values]))
    indices = list(zip(range(2), "ab", values))
    return out, mapped, kept, indices, list(enumerate("ab"))


@case((t(3), [x for x in range(3)]), (t(3), [9]))
def iter_and_next(x, values):
    iterator = iter(values)
    first = next(iterator)
    rest = [x + v for v in iterator]
    try:
        next(iterator)
    except StopIteration as stop:
        rest.append(x * 2)
        end = stop.args
    return x * first, rest, next(iterator, "default"), end, iter(iterator) is iterator


@case((t(3),), (t(3, seed=1),))
def length_and_index_protocols(x):
    sized = Sized([x, x + 1])
    y = sized[0] * len(sized) + x[1]
    more = [v * 2 for v in sized]
    return y, list(reversed(sized)), more, [10, 20, 30][sized], round(sized, 2), f"{sized:abc}", bool(sized)


@case((t(3), 1), (t(3), "s"), (t(3), None), (t(3), [1]))
def isinstance_and_type(x, value):
    if isinstance(value, (int, float)):
        x = x + value
    elif isinstance(value, str | list):
        x = x * len(value)
    kind = type(value)
    return x.sin(), kind, kind is int, issubclass(kind, (int, str)), isinstance(x, torch.Tensor), callable(value)


@case((t(3),), (t(3, seed=1),), steady="never")
def identity_of_objects(x):
    a, b = [x], [x]
    same = id(a) == id(a)
    table = {id(a): "a", id(b): "b"}
    y = (x + len(table)).tanh() - b[0]
    return y, same, id(a) == id(b), table[id(b)], a is b, a[0] is b[0]


@case((t(3), [3, 1, 2]), (t(3), ["b", "a"]))
def sorting_in_place(x, values):
    ordered = sorted(values, key=str)
    values.sort(reverse=True)
    tensors = [x * 2, x, x + 1]
    tensors.sort(key=lambda v: v.shape)
    order = sorted(range(3), key=lambda k: [2, 0, 1][k])
    return ordered, [tensors[k] - 1 for k in order], values


@case((t(3), slice(1, 3)), (t(3), slice(None, None, 2)))
def slice_builtin(x, s):
    a = slice(2)
    return x[s] + 1, x[a] * 2, s.start, s.indices(3), a == slice(None, 2, None), [1, 2, 3][s]


@case((t(3), 2), (t(3), 3))
def unusual_numbers(x, n):
    big = 10**20 + n
    y = (x * (big % 7)).cos() + x / n
    return y, big, -7 // n, -7 % n, 7.5 // n, 0.1 + 0.2, n**-1, n == 2.0, True + n, 1e308 * 10, -0.0


@case((t(3), 2), (t(3), 0))
def division_by_zero(x, n):
    y = (x / n if n else x * 0) + x.sin()
    try:
        z = y + 1 / n
    except ZeroDivisionError as error:
        return y, str(error)
    return z


@case((t(3), "value"), (t(3), "missing"), steady="never")
def getattr_setattr_vars_dir(x, name):
    class Box:
        pass

    box = Box()
    box.value = x * 2
    setattr(box, "other", x + 1)
    found = getattr(box, name, None)
    exists = hasattr(box, name)
    delattr(box, "other")
    listed = [n for n in dir(box) if not n.startswith("_")]
    return found, exists, vars(box), listed


@case((t(3),), (t(3, seed=1),), steady="never")
def object_and_super_basics(x):
    class Base:
        def run(self, v):
            return v + 1

    class Child(Base):
        def run(self, v):
            return super().run(v) * 2

    child = Child()
    return child.run(x), Base.run(child, x), isinstance(child, Base), issubclass(Child, Base), object() is not None


@case((t(3), [1, [2, [3]]]), (t(3), []))
def printing_nothing_of_tensors(x, values):
    text = repr(values) + str(len(values)) + str((1, "a", None, 2.5)) + repr({"k": [1]})
    y = x * len(text)
    return y.sigmoid() - x, text


@case(lambda: (t(3), memoryview(b"abc")), lambda: (t(3), memoryview(b"ab")))
def memory_views(x, view):
    y = (x + len(view)) * view[0]
    return y.log(), view[0], bytes(view), view.tolist()


@case((t(3), 1), (t(3), 3))
def keyword_arguments_of_builtins(x, n):
    ordered = sorted([3, 1, 2], key=lambda v: (v - n) ** 2)
    text = " ".join(map(str, ordered))
    return x * int("10", base=n + 2), text, dict(zip("ab", [1, 2]), c=n), round(2.675, ndigits=n), sum([1.0], start=x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_builtins(name, backend):
    check(__file__, name, backend)
