"""Weak references to what is made inside, containers and parameters of classes of the user's, and warnings of trial runs."""

import collections
import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

import quickfuse
from case_registry import case, cases, x0
from one_graph.programs import agrees


class Node:
    pass


class Wide(nn.Parameter):
    scale = 3.0

    def __new__(cls, data, axis=0):
        made = super().__new__(cls, data)
        made.axis = axis
        return made

    def total(self):
        return self.sum(self.axis) * self.scale


@case
def weak_tensor():
    def f(x):
        y = x + 1
        reference = weakref.ref(y)
        return reference() * 2, reference() is y, weakref.ref(y) is reference, reference

    return (lambda x: f(x)[:3],)


@case
def weak_object_in_a_cycle():
    def f(x):
        tree = Node()
        tree.child = Node()
        tree.child.parent, tree.x = weakref.ref(tree), x
        children = [tree.child]
        return children[0].parent().x * 2, children[0].parent() is tree, bool(tree.child.parent)

    return (f,)


@case
def weak_argument():
    return (lambda x: weakref.ref(x)() * 2,)


@case
def weak_inverse():
    class Transform:
        _inverse = None

        @property
        def inverse(self):
            found = None if self._inverse is None else self._inverse()
            if found is None:
                found = Node()
                found.of = self
                self._inverse = weakref.ref(found)
            return found

    outer = Transform()

    def f(x):
        inner = Transform()
        one, two = inner.inverse, outer.inverse
        return x * 2, inner.inverse is one, one.of is inner, outer.inverse is two, two.of is outer

    return (f,)


@case
def exception_with_traceback():
    def f(x):
        try:
            raise ValueError("inner")
        except ValueError as error:
            try:
                raise error.with_traceback(None) from KeyError()
            except ValueError as again:
                return x + 1, again is error, type(again.__cause__).__name__

    return (f,)


@case
def ordered_dictionary_of_the_users():
    def f(x, d):
        d["new"] = x
        d.move_to_end("a")
        d.move_to_end("b", last=False)
        first, last = d.popitem(last=False), d.popitem()
        try:
            d.move_to_end("missing")
        except KeyError as error:
            return x + 1, first, last, list(d.items()), str(error), d
        return None

    return f, lambda: (x0(), collections.OrderedDict(a=1, b=2, c=3, d=x0()))


@case
def ordered_dictionary_that_is_empty():
    def f(x, d):
        try:
            d.popitem(last=False) if isinstance(d, collections.OrderedDict) else d.popitem()
        except KeyError as error:
            return x + 1, str(error)
        return None

    return f, lambda: (x0(), collections.OrderedDict()), lambda: (x0(), {})


@case
def list_of_the_users_repeated():
    def f(x, values, times):
        same = values
        same *= times
        return x + len(values), same is values, values

    return f, *[lambda times=times: (x0(), [1, 2], times) for times in (2, 0, 3, -1, True)]


@case
def changed_set_sorted():
    def f(x, s, k):
        s.add(k)
        return x * len(s), sorted(s), sorted(s, reverse=True)

    return f, lambda: (x0(), {3, 1}, 7), lambda: (x0(), {"a", "z"}, "k")


@case
def parameter_of_a_class():
    weight = Wide(torch.arange(9.0).reshape(3, 3), axis=1)

    def f(x):
        y = x.sum() * weight
        return y.sum(), weight.total(), type(weight) is Wide, isinstance(weight, nn.Parameter), type(y).__name__

    return (f,)


@case
def classes_of_marked_tensors():
    class Tagged(torch.Tensor):
        pass

    buffer, parameter = nn.Buffer(torch.ones(3)), nn.Parameter(torch.ones(3).as_subclass(Tagged))

    def f(x):
        found = [isinstance(t, cls) for t in (x, buffer, parameter, x + 1) for cls in (nn.Buffer, nn.Parameter)]
        return x + buffer.sum(), found

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_is_one_graph(name):
    agrees(__name__, name)


def test_parameters_of_a_class_are_trained():
    def run(compile_):
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)
        layer.weight = Wide(torch.randn(3, 3))
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = layer(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        called = compile_(step)
        return [called(torch.randn(2, 3)) for _ in range(4)], type(layer.weight), layer.weight.detach(), layer.weight.axis

    expected, found = run(lambda f: f), run(quickfuse.compile)
    assert expected[1] is found[1] and expected[3] == found[3]
    torch.testing.assert_close(found[::2], expected[::2])


def drops(x):
    node, kept = Node(), x + 1
    reference, to_tensor = weakref.ref(node), weakref.ref(kept)
    del node
    print("a break", end="", file=None)
    return x * 2, reference() is None, to_tensor() is not None


def gives(x):
    node = Node()
    node.x, result = x + 1, x * 2
    return weakref.ref(node), result, weakref.ref(result)


def test_what_is_dropped_is_gone(capsys):
    compiled = quickfuse.compile(drops)
    for _ in range(3):
        assert compiled(torch.ones(3))[1:] == (True, True)
    compiled = quickfuse.compile(gives)
    for _ in range(3):
        gone, result, to_result = compiled(torch.ones(3))
        gc.collect()
        assert gone() is None and to_result() is result


def test_sets_of_objects_have_an_order_of_their_own():
    """That comes of where the objects lie."""
    for size in range(2, 16):
        layers = {nn.Linear(k + 1, 1) for k in range(size)}

        def features(x, layers):
            return x * 2, [layer.in_features for layer in layers]

        x = torch.ones(1)
        assert quickfuse.compile(features, fullgraph=True)(x, layers)[1] == features(x, layers)[1]


PROGRAM = """
import warnings
import torch, quickfuse

def f(n):
    out = torch.empty(0)
    return torch.sigmoid(torch.zeros(n, 5), out=out)

warnings.simplefilter("error")
quickfuse.compile(f)(3)
"""


@pytest.mark.usefixtures("forked_interpreters")
def test_trial_runs_do_not_warn():
    """PyTorch warns of some things once a process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
