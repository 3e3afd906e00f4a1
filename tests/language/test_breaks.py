"""Steps that only Python can take: values of tensors, output, NumPy, files, random numbers, the clock, C functions."""

import array
import datetime
import functools
import json
import logging
import math
import os
import pickle
import random
import struct
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch

from language.harness import BACKENDS, case, check, names, setup, t

#: To write to a file ends a graph, whatever is written: `None` is the usual one.
print = functools.partial(print, file=None)

logger = logging.getLogger("language.breaks")


@case((t(4).abs(),), (-t(4).abs(),), (t(4, seed=1).abs(),), at_most=3)
def branch_on_a_sum(x):
    y = x * 2 + 1
    if x.sum() > 0:
        z = y.sin() * 3
    else:
        z = y.cos() - 3
    return z.exp() + x


@case((t(4), t(4, seed=1)), (t(4, seed=2), t(4, seed=3)), (-t(4), -t(4).abs()), at_most=3)
def the_tutorials_bar(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


@case((t(3),), (t(3, seed=1),), graphs=2)
def print_in_the_middle(x):
    y = x * 2 + 1
    print("in the middle")
    return y.sin() * x


@case((t(3), 3), (t(3, seed=1), 4))
def print_of_tensors_and_numbers(x, n):
    y = x + n
    print("shape", y.shape, "n =", n, sep=" | ")
    print(y, end="!\n", file=sys.stdout)
    z = y * 2
    print(f"{z.sum().item():.4f}", z.dtype, file=sys.stderr)
    return z.exp()


@case((t(3),), (t(3, seed=1),))
def logging_calls(x):
    y = x.sin()
    logger.warning("norm %.3f of %s", y.norm(), "y")
    z = y + 1
    logger.debug("not shown %s", z)
    logger.error("shape %s", tuple(z.shape))
    return z * 2


@case((t(3), 1), (t(3), 0))
def warnings_are_given(x, n):
    y = x + 1
    if n:
        warnings.warn("this is deprecated", DeprecationWarning)
    z = y * 2
    warnings.warn(f"shape {tuple(z.shape)}")
    return z.cos()


@case((t(3).abs(),), (t(3).abs() * 100,))
def warning_is_caught_as_an_error(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            y = x * 2
            warnings.warn("stop", RuntimeWarning)
            y = y + 1
        except RuntimeWarning as error:
            return y.sin(), str(error)
    return y


@case((t(3).abs(),), (-t(3).abs(),), (t(3, seed=1),))
def item_in_a_condition(x):
    y = x + 1
    n = y.max().item()
    if n > 1.5 and x[0].item() != 0:
        y = y * n
    return y - n, n


@case((t(3).abs(),), (t(3, seed=1).abs(),))
def item_in_arithmetic(x):
    total = x.sum().item()
    y = x / (total + 1)
    k = int(total) % 3
    return y[k] * 2, float(y.mean()) + 1, round(total, 1), f"{total:.3f}"


@case((t(3),), (t(3, seed=1),))
def tolist_and_back(x):
    values = (x * 2).tolist()
    ordered = sorted(values, reverse=True)
    y = torch.tensor(ordered) + x
    return y.sin(), len(values), [round(v, 3) for v in x.tolist()]


@case((t(3, 4),), (t(3, 4, seed=1),))
def numpy_round_trip(x):
    a = (x + 1).numpy()
    b = np.sin(a) * 2 + a.mean()
    y = torch.from_numpy(b) * x
    return y.sum(0), b, np.argmax(a), a.shape


@case((t(3),), (t(3, seed=1),))
def numpy_shares_memory(x):
    y = x * 2
    view = y.numpy()
    view[0] = 42.0
    z = y + 1
    np.add(view, 1, out=view)
    return z, y * 2


@case((t(5).abs(),), (t(5, seed=1).abs(),))
def scipy_function(x):
    y = x + 1
    a = scipy.special.gammaln(y.numpy())
    z = torch.as_tensor(a, dtype=x.dtype) * y
    return z.relu() - 1


@case((t(3), 5), (t(3), 7))
def random_numbers_of_python(x, n):
    k = random.randint(0, n)
    y = x * k
    random.shuffle(order := list(range(3)))
    return y[order] + random.random(), k, random.choice(["a", "b"])


@case((t(3),), (t(3, seed=1),))
def random_numbers_of_torch(x):
    noise = torch.randn(3) * 0.1
    y = x + noise
    mask = torch.rand_like(x) > 0.5
    return y * mask, torch.randint(0, 10, (2,)) + 1, torch.randperm(4), torch.bernoulli(torch.full((3,), 0.5)) * y


@case((t(3),), (t(3, seed=1),), steady="never")
def seeds_and_generators(x):
    torch.manual_seed(3)
    a = torch.rand(3) + x
    generator = torch.Generator().manual_seed(5)
    b = torch.randn(3, generator=generator) * x
    np.random.seed(1)
    return a, b, torch.from_numpy(np.random.rand(3)).float() + b, torch.initial_seed()


@case((t(3),), (t(3, seed=1),))
def the_clock(x):
    start = time.perf_counter()
    y = x.exp() + 1
    elapsed = time.perf_counter() - start
    year = datetime.datetime.now().year
    return y * 2 if 0 <= elapsed < 3600 else y, year > 2000, time.time() > 0


@case((t(3), "text"), (t(3, seed=1), "other"))
def files(x, text):
    y = x * 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.txt"
        path.write_text(text)
        z = y + len(path.read_text())
        with open(path, "a") as file:
            file.write(f" {len(x)}")
        lines = path.read_text().split()
    return z.sin(), lines, path.exists()


@case((t(3),), (t(3, seed=1),))
def save_and_load(x):
    y = x + 1
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"y": y, "n": 2}, file.name)
        loaded = torch.load(file.name)
    again = pickle.loads(pickle.dumps([x, y, x]))
    return loaded["y"] * loaded["n"], again[0] is again[2], again[1] - y


@case((t(3), {"a": 1}), (t(3), {"b": [1, 2]}))
def c_functions(x, table):
    text = json.dumps(table, sort_keys=True)
    y = x * len(text)
    packed = struct.pack("<if", len(text), 1.5)
    z = y + struct.unpack("<if", packed)[1]
    return z, json.loads(text), os.path.join("a", "b"), math.nextafter(1, 2), array.array("d", [1.0, 2.0]).tolist()


@case((t(4).abs(),), (-t(4).abs(),))
def assert_on_a_value(x):
    y = x + 1
    assert (x >= 0).all(), "negative"
    return y.log() * 2


@case((t(4),), (torch.zeros(4),), (-t(4).abs(),))
def truth_of_a_tensor(x):
    y = x * 2
    z = y + 1 if x.sum() else y - 1
    if not (x > 0).any():
        z = z * 10
    w = (x.sum() > 0) and z
    return z, w if isinstance(w, torch.Tensor) else None, bool(x[0] == 0)


@case((t(3),), (t(3, seed=1),))
def truth_of_several_elements_raises(x):
    y = x * 2
    if y > 0:
        y = y + 1
    return y


@case((t(4),), (t(4, seed=1),), (t(4, seed=5),))
def chain_of_conditions(x):
    s = x.sum()
    if s > 1:
        y = x * 2
    elif s > 0:
        y = x * 3 + 1
    elif s > -1:
        y = x.sin()
    else:
        y = x.cos() * 2
    return y + s


@case((torch.tensor(3), t(5)), (torch.tensor(2), t(5)), (torch.tensor(0), t(5)))
def tensor_as_an_index_and_a_bound(k, x):
    y = x * 2
    picked = y[: int(k)]
    values = ["a", "b", "c", "d"]
    total = x[0]
    for j in range(k):
        total = total + j * x[j]
    return picked + 1, values[k], total, k.item() + 1


@case((t(4),), (t(4, seed=1),))
def environment_and_modules(x):
    os.environ["LANGUAGE_TEST"] = str(len(x))
    y = x * int(os.environ["LANGUAGE_TEST"])
    found = "torch" in sys.modules
    del os.environ["LANGUAGE_TEST"]
    return y + 1, found, os.environ.get("LANGUAGE_TEST"), sys.getrecursionlimit() > 10


@case((t(4),), (t(4, seed=1),))
def import_inside(x):
    import colorsys
    from fractions import Fraction

    y = x * colorsys.rgb_to_hsv(0.1, 0.2, 0.3)[1]
    half = Fraction(1, 2) + Fraction(1, 3)
    return y + float(half), str(half)


@case((t(4), 4), (t(4), 0), steady="later")
def exception_of_a_c_function(x, n):
    y = x + 1
    try:
        z = y * math.log(n)
    except ValueError as error:
        z = y - 1
        print("caught", error)
    return z.sin()


@setup()
def unknown_callable_object():
    compiled_pattern = __import__("re").compile(r"(\d+)")

    def run(x, text):
        y = x.exp()
        match = compiled_pattern.search(text)
        if match:
            y = y * int(match.group(1))
        return y + 1, compiled_pattern.sub("#", text)

    return run, [(t(3), "a1b"), (t(3), "none"), (t(3), "x22")]


@case((t(3),), (t(3, seed=1),))
def standard_input_and_exit_codes(x):
    y = x * 2
    sys.stdout.write("written\n")
    sys.stdout.flush()
    z = y + 1
    try:
        sys.exit(3)
    except SystemExit as error:
        return z.sin(), error.code


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_breaks(name, backend):
    check(__file__, name, backend)
