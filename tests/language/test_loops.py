"""`for` and `while`: break, continue, else, what is iterated over, and what a loop leaves behind."""

from collections import OrderedDict, deque

import pytest
import torch

from language.harness import BACKENDS, case, check, names, t


@case((t(3), 4), (t(3), 20), (t(3), 0))
def break_and_else(x, n):
    for k in range(10):
        if k == n:
            break
        x = x * 1.1 + k
    else:
        x = x.sin()
    return x - n, k


@case((t(3), 3), (t(3), 6), (t(3), 0), graphs=1)
def while_with_continue(x, n):
    k = 0
    while k < n:
        k += 1
        if k % 2:
            continue
        x = x * 2 + k
    else:
        x = x.cos()
    return x


@case((t(4),), (t(4, seed=1),))
def nested_loops_with_breaks(x):
    found = []
    for i in range(4):
        for j in range(4):
            if i * j == 4:
                found.append((i, j))
                break
            x = x + i * 0.5 - j
        else:
            x = x * 2
            continue
        if i == 3:
            break
        x = x.tanh()
    return x, found


@case((t(5, 3),), (t(5, 3, seed=1),), (t(2, 3),), graphs=1)
def over_the_rows_of_a_tensor(x):
    total = torch.zeros(x.shape[1])
    for row in x:
        total = total * 0.5 + row.exp()
    return total


@case((t(4, 3), t(4, seed=1)), (t(4, 3, seed=2), t(4, seed=3)))
def over_zip_and_enumerate_of_tensors(x, weights):
    total = x.new_zeros(3)
    for k, (row, weight) in enumerate(zip(x, weights, strict=True), start=1):
        total = total + row * weight / k
    return total


@case(({"a": t(3), "b": t(3, seed=1)}, 2), ({"a": t(3), "c": t(3, seed=1), "b": t(3)}, 3), ({}, 1))
def over_a_dictionary(table, n):
    total = 0
    order = []
    for name in table:
        order.append(name)
        total = total + table[name] * n
    for name, value in table.items():
        table[name] = value.relu() - n
    for value in table.values():
        total = total - value
    return total, order, list(table.keys()), sorted(table, reverse=True)


@case((t(3), [1, 2, 3]), (t(3), [4, 5]), (t(3), []))
def over_reversed_and_sorted(x, numbers):
    for k in reversed(numbers):
        x = x * k + 1
    for k, n in enumerate(sorted(numbers, key=lambda v: -v)):
        x = x - k * n
    for k in reversed(range(1, 10, 3)):
        x = x / k
    return x


@case(
    (t(3), {"a": 2.0, "b": 3.0}, deque([1.0, 2.0])),
    (t(3), OrderedDict(b=1.0, a=4.0), deque()),
    (t(3), {}, deque([5.0])),
    graphs=1,
)
def over_reversed_views_and_deques(x, table, queue):
    for value in reversed(table.values()):
        x = x * value + 1
    for name, value in reversed(table.items()):
        x = x - value * len(name)
    for value in reversed(queue):
        x = x * 2 - value
    left = reversed({"p": 1, "q": 2}.values())
    return x, next(left), list(left), list(reversed(deque([x, 1], 2)))


@case((t(3), 1, 10, 3), (t(3), 10, 0, -4), (t(3), 5, 5, 1))
def ranges(x, start, stop, step):
    r = range(start, stop, step)
    for k in r:
        x = x + k * 0.1
    return x * len(r), r, r[1:], list(r), 4 in r, r == range(start, stop, step), (r.start, r.stop, r.step), r[:2]


@case((t(3), range(3)), (t(3), range(0, 6, 2)), (t(3), range(5, 0, -1)))
def range_as_an_argument(x, r):
    for k in r:
        x = x.sin() + k
    return x, len(r), sum(r), r.index(r[-1]), r.count(2), list(reversed(r))


@case((t(3), [1.0, 2.0, 3.0]), (t(3), [1.0, -1.0, 3.0]), (t(3), []))
def loop_variable_survives(x, weights):
    weight = 100.0
    for weight in weights:
        if weight < 0:
            break
        x = x * weight + 1
    return x * weight, weight


@case((t(3), [1, 2, 3, 4]), (t(3), [2, 2, 1]))
def list_grows_while_iterated(x, work):
    seen = []
    for n in work:
        seen.append(n)
        x = x + n
        if n % 2 == 0 and len(work) < 8:
            work.append(n // 2)
    return x.exp(), seen


@case((t(3), {"a": 1, "b": 2}), (t(3), {"a": 3}))
def dictionary_grows_while_iterated(x, table):
    y = x
    for key in table:
        y = y * 2 + table[key]
        table[key + "!"] = 1
    return y


@case((t(6),), (t(6, seed=1),), graphs=1)
def unrolled_recurrence(x):
    values = [x, x * 2]
    while len(values) < 8:
        values.append(values[-1] * 0.5 + values[-2].sin())
    return torch.stack(values[-3:])


@case((t(3), iter([1, 2, 3, 4, 5])), (t(3), iter([7])), steady="never")
def iterator_argument_is_consumed(x, numbers):
    for n in numbers:
        x = x + n
        if n == 3:
            break
    return x * 2, list(numbers)


@case((t(3), 3), (t(3), 1), (t(3), 5))
def iter_with_sentinel(x, n):
    count = [0]

    def step():
        count[0] += 1
        return count[0]

    for k in iter(step, n):
        x = x * 2 + k
    return x, count


@case((t(3), [[1, 2], [3, 4]]), (t(3), [[1, 2], [3]]))
def unpacking_targets(x, rows):
    for a, *rest in rows:
        x = x * a + len(rest)
    holder = [None]
    for holder[0] in rows[0]:
        x = x + holder[0]
    return x, holder


@case((t(4, 4), 2), (t(4, 4), 3), (t(4, 4), 0))
def power_iteration(x, n):
    v = torch.ones(4)
    for _ in range(n):
        v = x @ v
        v = v / (v.norm() + 1e-6)
    return v, x @ v


@case((t(3, 4), t(4, 4, seed=1), t(4, seed=2)), (t(5, 4), t(4, 4, seed=1), t(4, seed=2)))
def recurrent_network(x, w, b):
    h = torch.zeros(4)
    outputs = []
    for step in x.unbind(0):
        h = torch.tanh(step + h @ w + b)
        outputs.append(h)
    return torch.stack(outputs), h


@case((t(5), True), (t(5), False))
def infinite_loop_with_break(x, early):
    k = 0
    while True:
        x = x * 0.9
        k += 1
        if early and k == 2:
            x = x + 10
            break
        if k > 4:
            break
    return x, k


@case((t(3), 4), (t(3), 2))
def return_from_nested_loop(x, n):
    for i in range(5):
        for j in range(5):
            x = x + 1
            if i + j == n:
                return x * i + j
    return x


@case((t(3), 5), (t(3), 2))
def try_inside_loop(x, n):
    log = []
    for k in range(n):
        try:
            if k == 1:
                continue
            if k == 3:
                break
            x = x * 2 + k
        finally:
            log.append(k)
            x = x - 0.5
    return x, log


@case((t(2, 3), ["a", "b", "c"]), (t(2, 3), ["d"]))
def zip_of_several(x, keys):
    result = {}
    for key, column, k in zip(keys, x.t(), range(10)):
        result[key] = column * k + 1
    return result


@case((t(3, 3),), (t(3, 3, seed=1),))
def while_over_a_worklist(x):
    work = [("add", 1), ("mul", 2), ("both", 3)]
    trace = []
    while work:
        op, n = work.pop()
        trace.append(op)
        if op == "both":
            work.extend([("mul", n), ("add", n)])
        elif op == "mul":
            x = x * n
        else:
            x = x + n
    return x, trace


@case((t(4), (1, 2)), (t(4), (3, 4, 5)), (t(4), ()))
def for_over_tuple_and_string(x, numbers):
    for n in numbers:
        x = x + n
    for letter in "add":
        x = x * (2 if letter == "d" else 3)
    return x


@case((t(3), 3), (t(3), 4), (t(3), 7))
def loop_bound_from_shape_and_argument(x, n):
    total = x.new_zeros(())
    for i in range(x.size(0)):
        for j in range(n):
            total = total + x[i] * j
    return total


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_loops(name, backend):
    check(__file__, name, backend)
