"""Loops whose body breaks: with 3, 10 and 60 iterations; the number of compiled graphs must not grow with them."""

import random

import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t

COUNTS = ((t(3), 3), (t(3), 10), (t(3), 60))


@case(*COUNTS, bounded=True)
def for_range_with_print(x, n):
    for k in range(n):
        x = x * 0.9 + 0.1
        print(k % 10, end="")
        x = x.sin()
    return x + 1


@case(*COUNTS, bounded=True)
def while_counter_with_print(x, n):
    k = 0
    while k < n:
        x = x * 0.9 + 0.1
        print("step")
        k += 1
    return x * 2


@case(*COUNTS, bounded=True)
def loop_index_is_used_in_tensors(x, n):
    total = x * 0
    for k in range(n):
        total = total * 0.5 + x * k
        print(k)
    return total - 1


@case((t(3), 3.0), (t(3), 10.0), (t(3), 60.0), bounded=True)
def while_on_a_tensor_value(x, limit):
    y = x * 0
    while y.sum() < limit:
        y = y + x.abs() / x.abs().sum()
        y = y + 0.01
    return y.exp().log()


# A few iterations on a tensor made of a constant are one graph; of many, no more than of some.
@case(*COUNTS, (t(3), 100), bounded=True)
def collatz_on_a_tensor(x, n):
    k = torch.tensor(27)
    steps = 0
    while k > 1 and steps < n:
        if k % 2 == 0:
            k = k // 2
        else:
            k = k * 3 + 1
        steps += 1
    return x * k + 1, steps


@case(*COUNTS, bounded=True)
def newton_until_converged(x, n):
    y = torch.ones(3)
    target = x.abs() + 1
    for step in range(n):
        new = 0.5 * (y + target / y)
        if (new - y).abs().max() < 1e-5:
            print("converged after", step)
            break
        y = new
    else:
        print("not converged")
    return y * y - target


@case(*COUNTS, bounded=True)
def branch_in_every_iteration(x, n):
    sign = 0
    for _ in range(n):
        if x.sum() > 0:
            x = x * 0.5 - 1
            sign += 1
        else:
            x = x * 0.5 + 1
            sign -= 1
    return x + sign


@case((t(3), 3), (t(3), 60), (t(3), 120), bounded=True)  # the longer ones take the same branches
def continue_and_break_by_value(x, n):
    kept = []
    for k in range(n):
        y = x.cos() * k
        if y[0] < 0:
            continue
        x = x + 0.1
        if k == 40 and y[1] < 1e6:
            break
        kept.append(round(float(y[0]), 2))
    return x * 2, kept


@case(*COUNTS, bounded=True)
def list_grows_with_breaks(x, n):
    history = []
    for _ in range(n):
        x = x.sin() + 0.5
        history.append(x.mean().item())
        x = x * 1.01
    return torch.stack([x, x + 1]), len(history), max(history)


@case(*COUNTS, bounded=True)
def break_in_a_function_that_is_called(x, n):
    def step(v):
        w = v * 0.9
        if w.sum() > 1:
            w = w - 0.5
        return w + 0.1

    for _ in range(n):
        x = step(x)
    return x + 1


@case(*COUNTS, bounded=True)
def nested_loops_with_breaks(x, n):
    for i in range(n):
        for j in range(2):
            x = x * 0.9 + j
            print(".", end="")
        x = x - 0.5
        print(i)
    return x * 2


@case(*COUNTS, bounded=True)
def try_in_the_body(x, n):
    failures = 0
    for k in range(n):
        try:
            x = x * 0.9 + 0.1
            if k % 3 == 2:
                raise ValueError(k)
            print("fine")
        except ValueError:
            failures += 1
            print("failed")
            x = x.sin()
    return x + failures


@case(*COUNTS, bounded=True)
def with_in_the_body(x, n):
    for _ in range(n):
        with torch.no_grad():
            x = x * 0.9
            print(torch.is_grad_enabled(), end=" ")
            x = x + 0.1
    return x * 2


@case(lambda: (t(3), [1.0] * 3), lambda: (t(3), [1.5] * 10), lambda: (t(3), [0.5, 2.0] * 30), bounded=True)
def over_a_list(x, weights):
    for k, weight in enumerate(weights):
        x = x * weight * 0.5 + 1
        print(k, weight)
        x = x.tanh()
    return x


@case((t(3, 3),), (t(10, 3),), (t(60, 3),), bounded=True)
def over_the_rows_of_a_tensor(x):
    total = x.new_zeros(3)
    for row in x:
        if row.sum() > 0:
            total = total + row
        else:
            total = total * 0.9
    return total + 1


@case(*COUNTS, bounded=True)
def generator_with_breaks(x, n):
    def produce():
        v = x
        for k in range(n):
            v = v * 0.9 + 0.1
            print("make", k)
            yield v

    total = x * 0
    for v in produce():
        total = total + v
    return total


@case(*COUNTS, bounded=True)
def random_steps(x, n):
    for _ in range(n):
        if random.random() < 0.5:
            x = x + 0.1
        else:
            x = x * 0.9
    return x - 1


@case(*COUNTS, bounded=True)
def dictionary_of_counts(x, n):
    counts = {}
    for k in range(n):
        key = "up" if x[k % 3] > 0 else "down"
        counts[key] = counts.get(key, 0) + 1
        x = x * -0.95 + 0.01
    return x + 1, counts


@setup(bounded=True, steady="later")
def training_loop_with_logging():
    model = torch.nn.Linear(3, 1)

    def run(x, n):
        losses = []
        for step in range(n):
            loss = (model(x) ** 2).mean()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), grads):
                    p -= 0.01 * g
            if step % 5 == 0:
                print(f"step {step} loss {loss.item():.3f}")
            losses.append(loss.detach())
        return torch.stack(losses[-2:]).sum()

    return run, [(t(2, 3), 3), (t(2, 3), 60), (t(2, 3), 90)]


@setup(bounded=True)
def greedy_decoding():
    table = t(7, 7, seed=4)

    def run(start, limit):
        tokens = [start]
        state = table[start]
        while len(tokens) < limit:
            token = int(state.argmax())
            tokens.append(token)
            if token == 99:
                break
            state = (state * 0.5 + table[token]).roll(1)
        return tokens, state + 1

    return run, [(1, 3), (1, 10), (1, 60)]


@case((t(3), 3), (t(3), 60), (t(3), 90), bounded=True, steady="later")
def comprehension_with_breaks(x, n):
    values = [(x * k).sum().item() for k in range(n)]
    big = [v for v in values if v > 0]
    return x * len(big) + max(values), len(values)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_break_loops(name, backend):
    check(__file__, name, backend)
