"""Exceptions as CPython's own tests look at them: raised again elsewhere, chained in circles, refused by classes in C."""

from __future__ import annotations

import contextvars

import pytest
import torch

import quickfuse
from language.harness import BACKENDS, case, check, names, t

CASE = ((t(3),), (t(3, seed=1),))


def raise_again():
    raise


@case(*CASE, steady="never")
def raised_again_by_a_called_function(x):
    try:
        try:
            raise ValueError("v")
        except ValueError:
            raise_again()
    except ValueError as error:
        return x * 2, str(error)


@case(*CASE, steady="never")
def raised_again_by_a_generator(x):
    def generator():
        yield 1
        raise

    try:
        raise KeyError("k")
    except KeyError:
        values = generator()
        next(values)
        try:
            next(values)
        except Exception as error:
            return x * 2, type(error).__name__, str(error)


@case(*CASE, steady="never")
def nothing_to_raise_again(x):
    try:
        raise_again()
    except RuntimeError as error:
        return x * 2, str(error)


@case(*CASE, steady="never")
def contexts_in_a_circle(x):
    one, other = KeyError("a"), KeyError("b")
    one.__context__ = other
    other.__context__ = one
    try:
        try:
            raise one
        except KeyError:
            raise ValueError("v")
    except ValueError as error:
        return x * 2, str(error.__context__)


@case(*CASE, steady="never")
def contexts_when_one_is_raised_again(x):
    first, second = KeyError("first"), ValueError("second")
    try:
        try:
            raise first
        except KeyError:
            raise second
    except ValueError:
        try:
            raise first
        except KeyError as error:
            return x * 2, str(error.__context__), str(second.__context__)


@case(*CASE, steady="never")
def line_of_a_traceback(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        return x * 2, error.__traceback__.tb_lineno - error.__traceback__.tb_frame.f_code.co_firstlineno


@case(*CASE, steady="never")
def attribute_that_a_class_in_c_refuses(x):
    variable = contextvars.ContextVar("a")
    found = []
    for name in ("name", "default"):
        try:
            setattr(variable, name, 1)
        except AttributeError as error:
            found.append(str(error))
    try:
        variable.name = "b"
    except AttributeError:
        found.append("refused")
    return x * 2, found


@case(*CASE, steady="never")
def result_of_init(x):
    class Number:
        def __init__(self):
            return 3

    try:
        Number()
    except TypeError as error:
        return x * 2, str(error)


@case(*CASE, steady="never")
def arguments_of_super(x):
    class Base:
        pass

    class Derived(Base):
        def of_three(self):
            return super(Derived, self, 1)

        def of_another(self):
            return super(Derived, 3)

        def of_no_class(self):
            return super(1, self)

    found = []
    for method in (Derived.of_three, Derived.of_another, Derived.of_no_class):
        try:
            method(Derived())
        except TypeError as error:
            found.append(str(error))
    return x * 2, found


class Bound:
    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __call__(self):
        return self.wrapped()


class Wrapper:
    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __get__(self, instance, owner):
        return Bound(self.wrapped.__get__(instance, owner))


@case(*CASE, steady="never")
def class_methods_of_descriptors(x):
    class Meals:
        @Wrapper
        @classmethod
        def inner(cls):
            return "spam"

        @classmethod
        @Wrapper
        def outer(cls):
            return "eggs"

    found = [Meals.inner()]
    try:
        found.append(Meals.outer())
    except TypeError as error:
        found.append(str(error))
    return x * 2, found


@case(*CASE, steady="never")
def annotations_are_not_inherited(x):
    class Base:
        size: int

    class Derived(Base):
        pass

    return x * 2, Base.__annotations__, Derived.__annotations__


@case(*CASE, steady="never")
def iterator_that_has_ended(x):
    class Numbers:
        end = 3

        def __getitem__(self, index):
            if index >= self.end:
                raise IndexError
            return index

    numbers = Numbers()
    iterator = iter(numbers)
    first = list(iterator)
    numbers.end = 6
    return x * 2, first, list(iterator)


@case(*CASE, steady="never")
def powers_of_derived_numbers(x):
    class Number(int):
        def __repr__(self):
            return f"Number({int(self)})"

        def __pow__(self, other, modulus=None):
            return Number(pow(int(self), int(other), None if modulus is None else int(modulus)))

        def __divmod__(self, other):
            return Number(int(self) // int(other)), 0

    two, three = Number(2), Number(3)
    return x * 2, repr(pow(two, three)), repr(pow(two, three, Number(5))), repr(divmod(three, two)), pow(2, 3, 5)


class Shown(int):
    def __repr__(self):
        return f"Shown({int(self)})"


@case((t(3), (Shown(1), 0), {Shown(2): [Shown(3)]}), (t(3, seed=1), (Shown(1), 2), {Shown(2): [4]}), steady="never")
def text_of_what_is_in_containers(x, pair, entries):
    return x * 2, repr(pair), str(entries), f"{pair}", "%s" % [pair]


class Announcing:
    def __init__(self, hint):
        self.hint = hint
        self.asked = 0

    def __iter__(self):
        return iter([1, 2])

    def __length_hint__(self):
        self.asked += 1
        if self.hint is None:
            raise TypeError("no hint")
        return self.hint


@case(*CASE, steady="never")
def mistakes_of_which_python_says_more(x):
    attempts = (
        lambda: list.append({}, 1),
        lambda: dict.get([], 1),
        lambda: {[]: 1},
        lambda: {1}.add({}),
        lambda: {}.setdefault([], 1),
        lambda: len(3),
        lambda: len(iter([1])),
        lambda: len(object()),
        lambda: len(x.item),
    )
    said = []
    for attempt in attempts:
        try:
            attempt()
        except TypeError as error:
            said.append(str(error))
    for hint in (2, None, NotImplemented, -1, 1.5):
        given = Announcing(hint)
        try:
            said.append((list(given), [*given], [0] + list(given), given.asked))
        except (TypeError, ValueError) as error:
            said.append((str(error), given.asked))
    return x * 2, said


def takes_two(x, y, /, *, scale=1.0):
    return x * y * scale


class Layer:
    def forward(self, x, lengths=None, *, mode):
        return x + 1


@case(*CASE)
def calls_that_do_not_fit(x):
    said = []
    attempts = (
        lambda: takes_two(x, x, lengths=None),
        lambda: takes_two(x, x, x),
        lambda: takes_two(x, y=x),
        lambda: takes_two(x, x, scale=1, y=3),
        lambda: Layer().forward(x, 1, lengths=2, mode="a"),
        lambda: Layer().forward(x, other=2, mode="a"),
        lambda: (lambda *a, k, **b: x)(1, 2, z=3),
    )
    for attempt in attempts:
        try:
            x = attempt()
        except TypeError as error:
            said.append(str(error))
            x = x * 2
    return x, said


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_as_python(name, backend):
    check(__file__, name, backend)


def test_calls_that_do_not_fit_are_one_graph():
    layers = [torch.nn.Linear(3, 3), torch.nn.ReLU()]

    def program(x):
        for layer in layers:
            try:
                x = layer(x, lengths=None)
            except TypeError:
                x = layer(x)
        return x

    compiled = quickfuse.compile(program, fullgraph=True)
    for seed in range(3):
        x = t(2, 3, seed=seed)
        torch.testing.assert_close(compiled(x), program(x))
