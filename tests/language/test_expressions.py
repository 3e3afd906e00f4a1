"""Every kind of expression and simple statement, around tensors."""

import math

import pytest
import torch
import torch.nn.functional as F

from language.harness import BACKENDS, case, check, names, t

SCALE = 0.5
TABLE = {"a": 1.0, "b": [2.0, 3.0]}


@case((t(3, 4), t(4, 3)), (t(3, 4, seed=1), t(4, 3, seed=2)), (t(2, 5), t(5, 2)), graphs=1)
def arithmetic_operators(x, y):
    a = x + 1 - y.t() * 2
    b = a / 3 // 0.25 % 2
    return a**2, -b, +a, abs(b), x @ y, 2 - a, 1 / (a.abs() + 1), 2.0 ** a, 7 // (a.abs() + 1), 5 % (a.abs() + 1)


@case((t(3, 4, dtype=torch.float64) > 0, torch.arange(12).reshape(3, 4)), (t(3, 4) > 1, torch.arange(12).view(3, 4) - 6))
def bitwise_operators(mask, k):
    return ~mask, mask & (k > 3), mask | (k < 2), mask ^ (k == 5), k << 1, k >> 1, k & 3, k | 8, ~k, 3 ^ k


@case((t(4), 2), (t(4), 2.5), (t(4), True), (t(4), -3))
def numbers_of_several_types(x, n):
    return x * n, n - x, x**2 + n, n // 2, n * n, -n, x.new_full((2,), n)


@case((t(5), 1, 5), (t(5), 5, 1), (t(5), 3, 3))
def chained_comparison(x, low, high):
    if low < high <= 5:
        y = x.clamp(low, high) + 1
    elif low == high != 4:
        y = x * high - low
    else:
        y = x - 1
    return y * 2, low < 2 < high, low <= high == high


@case((t(3), None), (t(3), 0.0), (t(3), 2.0), (t(3), t(3, seed=1)))
def boolean_operators_give_an_operand(x, bias):
    scale = (bias is not None and not isinstance(bias, torch.Tensor) and bias) or 3.0
    shift = bias if isinstance(bias, torch.Tensor) else x * 0.5
    return x * scale + shift, scale, not scale, shift is bias


@case((t(4), True), (t(4), False), (t(4), 1), (t(4), []), graphs=1)
def conditional_expression(x, flag):
    y = x.sin() if flag else x.cos() + 1
    return (y if not flag else y * 2), "yes" if flag else "no"


@case()
def walrus(x):
    if (n := x.shape[0]) > 2 and (m := n * 2) < 100:
        y = x * n + m
    else:
        y = x - n
    values = [last := y * k for k in range(3)]
    return y.sum(), values, last is values[-1]


@case(graphs=1)
def slices_and_indices(x):
    rows = [x[0], x[-1], x[0:2], x[:, 1], x[..., -1], x[None], x[:, None, ::2]]
    numbers = list(range(10))
    return rows, numbers[2:8:3], numbers[::-1], numbers[-3:], "abcdef"[slice(1, 4)], x[1:, 1:].relu() + 1


@case()
def slice_objects(x):
    window = slice(1, None)
    both = (slice(None), slice(0, 3, 2))
    return x[window] + 1, x[both] * 2, window.start, both[1].indices(10), x[window, slice(-2, None)].exp()


@case((t(4, 3),), (t(5, 3),), (t(6, 2),))
def unpacking_a_tensor(x):
    first, second, *rest = x
    (a, *b), c = (first + 1, first * 2, second), rest[0] - second
    return a, b, c, len(rest)


@case((t(3),), (t(4),))
def starred_displays(x):
    parts = (x + 1, x * 2)
    more = [*parts, x.sin(), *[x.cos()]]
    keys = {**{"a": parts[0]}, "b": more[-1], **{"a": x - 1}}
    return (*more, *parts), {*range(3), 2, 7}, keys, [*keys, *"xy"]


@case(graphs=1)
def swap_and_rotate(x):
    a, b, c = x + 1, x * 2, x - 3
    a, b = b, a
    a, b, c = c, a, b
    a, (b, c) = b * 1.5, (c, a + 0.5)
    return a, b, c


@case()
def augmented_assignment_rebinds_or_mutates(x):
    y = x * 1.0
    z = y
    y += 1
    y *= 2
    y -= x
    w = y
    w = w / 4
    numbers = [1]
    alias = numbers
    numbers += [2, 3]
    text = "a"
    text += "b"
    n = 7
    n //= 2
    n **= 3
    n %= 10
    return y, z, w, alias, text, n, y is z


@case((t(2, 3), {"w": 1.0}), (t(2, 3, seed=1), {"w": 2.0}), (t(2, 3), {"w": 2.0, "v": 1}))
def augmented_items_and_attributes(x, table):
    table["w"] += 1.5
    holder = [x.clone(), x.clone()]
    holder[0] *= table["w"]
    holder[1][0] -= 2.0
    holder[1][:, 1] /= 4
    return holder, table["w"]


@case((t(3), [1, 2, 3]), (t(3), [4, 5]))
def delete_statements(x, values):
    y = x + 1
    z = y * 2
    del y
    table = {"a": x, "b": z}
    del table["a"], values[0]
    try:
        y
    except NameError as error:
        table["error"] = str(error)
    return table, values


@case((t(3), 2), (t(3), 0), (t(3), 2))
def assert_statement(x, n):
    y = x * n + 1
    assert n > 0, f"n is {n}"
    return y.exp()


@case((t(3), 2), (t(3), 3), (t(3), 2.5))
def assert_on_shape_without_message(x, n):
    y = (x + n).tanh()
    assert x.shape[0] > n
    return y - n


@case(graphs=1)
def lambda_expressions(x):
    double = lambda v: v * 2
    pick = lambda *args, key=None: args[key or 0]
    return double(x) + 1, pick(x + 1, double(x), key=1), (lambda: x - 1)()


@case((t(3, 4),), (t(3, 4, seed=4),))
def nested_calls_as_arguments(x):
    return F.relu(torch.add(x.mul(2).sin(), torch.sum(x, dim=0, keepdim=True), alpha=math.sqrt(4.0))).clamp(max=len(x))


@case((t(3), 3), (t(3), 4), (t(3), -1), steady="later")
def number_expressions(x, n):
    a = (n << 2) ^ 5 | 1
    b = divmod(n, 4), n // 2, -n % 3, ~n, round(n / 3, 2), abs(n) ** 0.5, int(n / 2), float(n), bool(n), complex(n, 1)
    return x * a + n / 2, b


@case()
def constants_and_globals(x):
    y = x * SCALE + TABLE["a"]
    for weight in TABLE["b"]:
        y = y * weight
    return y, 1_000, 0x1F, 1e-3, 3j, b"ab", ..., None, y.new_tensor([1.0, 2.0]) + 1


@case((t(3), "a"), (t(3), "b"), (t(3), "c"))
def is_and_in(x, key):
    kinds = ("a", "b")
    if key in kinds:
        x = x + kinds.index(key)
    if key not in {"b": 1}:
        x = x * 2
    return x, key is None, x is x, key in "abc", "z" not in kinds, x.sin() is x


@case((t(3, 4), 1), (t(3, 4), 0), (t(3, 4), -1))
def multiple_targets(x, axis):
    a = b = x.sum(axis)
    c = [None, None]
    c[0], d = e = (a + 1, b * 2)
    a += 1
    return a is b, a, b, c, d, e[0] is c[0]


@case((t(4, 4),))
def matrix_products(x):
    y = x @ x.T
    y @= x
    vector = x[0] @ x
    return y, vector @ vector, torch.matmul(x, x) - y, x.mv(vector)


@case((torch.arange(6), 3), (torch.arange(6), 2), (t(6), 0.5))
def integer_and_float_promotion(k, n):
    return k + n, k / 2, k * 0.5, k // 2, k**2, (k + True).dtype, k > n, k.float() / n, torch.result_type(k, n)


@case((t(2, 3, 4),), (t(3, 2, 4),))
def conditional_inside_containers(x):
    n = x.shape[0]
    return [x + 1 if k % n else x - 1 for k in range(4)], {("odd" if k % 2 else "even"): x * k for k in range(3)}, (
        x.sum(0) if n > 2 else x.mean(0),
    )


@case((t(3), (1, 2)), (t(3), (3, 4)), (t(3), (1, (2, 5))))
def nested_unpacking_of_arguments(x, pair):
    match_first, rest = pair
    try:
        inner, _ = rest
    except TypeError as error:
        return x * match_first + rest, str(error)
    return x * inner, match_first


@case((t(3), 3), (t(3), 5))
def type_annotations_and_pass(x: torch.Tensor, n: int) -> torch.Tensor:
    total: torch.Tensor = x * 0
    unused: "Missing"  # noqa: F821
    for _ in range(n):
        pass
    if n > 3:
        ...
    total = total + x.sin() * n
    return total


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_expressions(name, backend):
    check(__file__, name, backend)
