"""Side effects: everything that a function changes is changed as in eager Python, also when it raises half-way."""

import collections

import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t

STEPS = 0
REGISTRY = {"order": []}
CURRENT = None


class Account:
    fee = 1.0

    def __init__(self, balance):
        self.balance = balance
        self.log = []

    def pay(self, amount):
        self.log.append("asked")
        before = self.balance
        self.balance = before - amount - self.fee
        if isinstance(amount, (int, float)) and amount > 5:
            self.log.append("refused")
            raise ValueError(f"{amount} is too much")
        self.log.append("paid")
        return self.balance * 2


def accounts(*amounts):
    return [lambda a=amount: (Account(t(3)), a) for amount in amounts]


@case(*accounts(1.0, 2.0, 10.0, 1.0))
def attribute_before_an_exception(account, amount):
    y = account.pay(amount)
    account.done = True
    return y + 1


@case((t(3), [1, 2, 3], 1), (t(3), [1, 2, 3], 0), (t(3), [], 2))
def list_before_an_exception(x, values, k):
    values.append(x * 2)
    values.insert(0, "start")
    y = x + values[k] if k else x - 1
    values.sort(key=str)
    values.pop()
    return y.exp()


@case((t(3), {"a": 1}, "a"), (t(3), {"a": 1}, "b"), (t(3), {}, "a"), steady="later")
def dict_before_an_exception(x, table, key):
    table["new"] = x + 1
    table["count"] = table.get("count", 0) + 1
    value = table[key]
    del table[key]
    return x * value + 1


@case((t(3), 0), (t(3), 1), (t(3), 2))
def tensor_before_an_exception(x, n):
    x.add_(1)
    x[0] = 5.0
    if n == 1:
        raise KeyError("half-way")
    x.mul_(2)
    if n == 2:
        raise IndexError(n)
    return x.sum()


@case((t(3), 0), (t(3), 1), steady="later")
def global_before_an_exception(x, n):
    global STEPS, CURRENT
    STEPS = n + 1
    CURRENT = x * STEPS
    REGISTRY["order"].append(n)
    if n:
        raise RuntimeError("after the globals")
    STEPS += 10
    return CURRENT + 1


@setup(steady="later")
def cell_before_an_exception():
    count = 0
    last = None

    def run(x, bad):
        nonlocal count, last
        count = count % 3 + 1
        last = x * 2
        if bad:
            raise ValueError("half-way")
        count += 10
        return last + 1

    return run, [(t(3), False), (t(3), True), (t(3), False)]


@case((t(3), 0), (t(3), 1), (t(3), 3), steady="later")
def effects_in_a_loop_until_it_raises(x, n):
    done = []
    for k in range(4):
        done.append(k)
        x.add_(k)
        REGISTRY[k] = n
        if k == n and n:
            raise StopIteration(k, done)
    return x * 2, done


@case((t(3), 1), (t(3), 0), steady="later")
def effects_in_finally_while_raising(x, n):
    try:
        x.mul_(2)
        y = x / n if isinstance(n, float) else x * (1 // n)
        REGISTRY["fine"] = True
    finally:
        x.add_(100)
        REGISTRY["finally"] = REGISTRY.get("finally", 0) + 1
    return y + 1


@case((t(3), []), (t(3), [1]))
def identity_of_results(x, held):
    a = [x, x * 2 + 1]
    b = a
    inner = {"a": a, "held": held}
    held.append(inner)
    return a, b, inner, held, (a, b), inner["a"] is b


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3, seed=3)))
def inputs_come_back_themselves(x, y):
    z = (x - y).exp() * 2
    return [x, y, z], {"x": x, "sum": x + y}, (y,), x if y.shape else y, max((1, x), (0, y), key=lambda p: p[0])[1]


@case(lambda: (lambda v: (v, v))([1, 2]), lambda: ([1, 2], [1, 2]))
def one_list_under_two_names(a, b):
    a.append(torch.ones(2) * len(b))
    b.append(a[-1] + 1)
    return a, b, a is b, len(a) + len(b)


@case(lambda: (lambda d: (d, [d, {"d": d}]))({"n": 1, "x": t(3)}), lambda: ({"n": 1, "x": t(3)}, [{"n": 2, "x": t(3)}, {}]))
def shared_object_inside_arguments(table, tree):
    tree[0]["n"] += 1
    table["x"] = table["x"] * table["n"]
    tree[1]["late"] = tree[0]
    return tree[0]["x"] + 1, tree


@case((t(3),), (t(3, seed=1),), steady="later")
def same_tensor_stored_in_many_places(x):
    y = x * 2
    account = Account(y)
    REGISTRY["y"] = y
    account.log.append(y)
    account.balance.add_(1)
    return y, account, REGISTRY["y"] is account.log[0], {"deep": [y]}


@setup()
def object_graph_with_cycles():
    class Node:
        def __init__(self, value):
            self.value = value
            self.other = None

    a, b = Node(t(3)), Node(t(3, seed=1))
    a.other, b.other = b, a

    def run(x):
        a.value, b.value = b.value + x, a.value * 0.5
        a.other.other.value.add_(1)
        return a.value - b.value, a.other.other is a

    return run, [(t(3),), (t(3, seed=1),)]


@setup(steady="later")
def order_of_effects_on_one_list():
    events = []

    class Traced:
        def __setattr__(self, name, value):
            events.append(("set", name))
            object.__setattr__(self, name, value)

    item = Traced()

    def run(x):
        events.clear()
        item.a = x + 1
        events.append("between")
        item.b = item.a * 2
        events.extend(["after", len(events)])
        return item.b - 1, list(events)

    return run, [(t(3),), (t(3, seed=1),)]


@case((t(3), [3, 1, 2]), (t(3), [9, 8]))
def containers_are_replaced_and_refilled(x, values):
    original = values
    values = sorted(values)
    original[:] = [x * v for v in values]
    original += [x]
    values = values + ["rebound"]
    return original, values, original[0] + 1


@case(lambda: (t(3), collections.deque([1, 2], maxlen=3)), lambda: (t(3), collections.deque([], maxlen=2)))
def deque_argument_is_changed(x, queue):
    queue.append(x + 1)
    queue.append("last")
    first = queue.popleft()
    return x * len(queue), first


@case(lambda: (t(3), {1, 2}), lambda: (t(3), set()))
def set_argument_is_changed(x, seen):
    for k in range(3):
        if k not in seen:
            seen.add(k)
            x = x + k
    seen.discard(1)
    return x.sin()


@setup(steady="never")
def memoisation_in_an_outside_dict():
    cache = {}

    def run(x, n):
        if n not in cache:
            cache[n] = x.exp() * n
        return cache[n] + x

    return run, [(t(3), 1), (t(3, seed=1), 2), (t(3, seed=2), 1)]


@setup(steady="never")
def running_statistics_in_python():
    stats = {"n": 0, "mean": None, "history": []}

    def run(x):
        stats["n"] += 1
        mean = x.mean()
        stats["mean"] = mean if stats["mean"] is None else stats["mean"] + (mean - stats["mean"]) / stats["n"]
        stats["history"].append(stats["n"])
        return x - stats["mean"]

    return run, [(t(3),), (t(3, seed=1),), (t(3, seed=2),)]


@setup(steady="later")
def attributes_are_created_changed_and_deleted():
    account = Account(1.0)

    def run(x):
        account.temporary = x + 1
        y = account.temporary * 2
        del account.temporary
        account.kept = y
        account.__dict__["direct"] = account.kept
        return y, hasattr(account, "temporary"), account.direct is account.kept

    return run, [(t(3),), (t(3, seed=1),)]


@setup()
def class_attribute_is_written():
    class Shared:
        total = torch.zeros(3)
        count = 0

    def run(x):
        Shared.total = Shared.total * 0.5 + x
        Shared.count = (Shared.count + 1) % 2
        instance = Shared()
        instance.count += 5
        return Shared.total + 1, instance.count

    return run, [(t(3),), (t(3, seed=1),)]


@setup(steady="never")
def module_attribute_is_patched_and_restored():
    def run(x):
        original = torch.relu
        torch.relu = lambda v: original(v) + 1
        try:
            y = torch.relu(x * 2)
        finally:
            torch.relu = original
        return y - torch.relu(x)

    return run, [(t(3),), (t(3, seed=1),)]


@case((t(3), 0), (t(3), 2))
def effects_inside_a_comprehension(x, n):
    log = []
    values = [log.append(k) or x * k for k in range(3)]
    table = {k: log.pop() for k in range(n)}
    return values, log, table, values[-1] + 1


@case((t(3), 1), (t(3), 2))
def default_dict_of_lists_and_effect_order(x, n):
    log = []

    def note(value, text):
        log.append(text)
        return value

    y = note(x, "left") * note(n, "right") + note({"k": x}, "dict")[note("k", "key")]
    note([0, 0], "target")[note(1, "index")] = note(y, "value")
    return y, log


@case((t(3), [t(3, seed=1), t(3, seed=2)]), (t(3), [t(3, seed=3)]))
def foreach_mutation_of_a_list_of_tensors(x, tensors):
    torch._foreach_add_(tensors, 1.0)
    for k, tensor in enumerate(tensors):
        tensor.mul_(k + 1)
        tensors[k] = tensor + x
    return torch._foreach_norm(tensors), tensors


@case(lambda: (t(3), Account(2.0)), lambda: (t(3), Account(7)))
def exception_is_stored_with_its_effects(x, account):
    try:
        y = account.pay(6) + x
    except ValueError as error:
        account.error = error
        y = x * account.balance
    try:
        z = y + account.pay(1)
    finally:
        account.finished = x
    return z, account


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_effects(name, backend):
    check(__file__, name, backend)
