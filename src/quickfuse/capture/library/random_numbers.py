"""Python's `random`, and single numbers of NumPy's: they are drawn before the graph runs, in the program's order, by the
program's own generator.

Only running the code tells what they are, as with numbers in tensors: so each is put into a tensor, which the graph reads. A
generator that the captured code makes of a constant gives the same numbers in each call, and is run while it is captured.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import NoneType
from typing import Any

import numpy
import torch

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.segment import Call, Constant, Recipe
from ..interpreter import Args, Interpreter, Kwargs
from ..objects.containers import iterate
from ..symbolic import ForeignObject, Symbol, contains_symbolic, is_constant, type_of
from ..symbolic.raising import call_handler

_GLOBAL = random.seed.__self__  # type: ignore[attr-defined]

#: Methods that give a float, and whether their arguments may be numbers from outside: for none of these do they raise.
_FLOATS = {"random": True, "uniform": True, "gauss": True, "normalvariate": True, "expovariate": False,
           "lognormvariate": False, "vonmisesvariate": False, "gammavariate": False, "betavariate": False,
           "paretovariate": False, "weibullvariate": False}  # fmt: skip
_INTEGERS = ("randint", "randrange", "getrandbits")
#: What else can be done with a generator that the captured code made.
_OTHERS = ("choice", "choices", "sample", "shuffle", "triangular", "randbytes")


def _call(i: Interpreter, name: str, generator: Any, args: Args, kwargs: Kwargs) -> Any:
    """`generator.name(*args, **kwargs)`."""
    if type(generator) is random.Random and i.is_created(generator):
        return _run(i, name, generator, args, kwargs)
    if type_of(generator) is not random.Random or i.graph.nested or kwargs or name in _OTHERS:
        raise Unsupported(f"random numbers of random.{name}()")
    if name == "seed":
        pass  # of which each is one that Python takes
    elif _FLOATS.get(name):
        args = tuple([_finite(i, a) for a in args])
    else:
        args = tuple([i.outside.concrete(a) for a in args])
    tried = _try(i, name, args)
    if tried is not None and not -(2**62) < tried < 2**62:
        raise Unsupported("a random integer of many digits")
    return _drawn(i, f"random.{name}()", type(tried), _METHODS[name], generator, args)


def _drawn(i: Interpreter, label: str, kind: type, function: Any, generator: Any, operands: tuple[Any, ...]) -> Any:
    """The number of some kind, or None, that `function(generator, *operands)` gives before the graph runs."""
    if not isinstance(generator, ForeignObject):
        i.outside.constant_object(generator, label.rpartition(".")[0])

    def call(recipe: Callable[[Any], Recipe]) -> Call:
        return Call(function, [recipe(generator), *map(recipe, operands)])

    tensor = None if kind is NoneType else torch.zeros((), dtype=torch.int64 if kind is int else torch.float64)
    i.outside.draws.append((tensor, call))
    return None if tensor is None else i.graph.drawn(i.outside.wrap(tensor, i.outside.roots.constant(label, tensor)))


def _finite(i: Interpreter, value: Any) -> Any:
    """A number that a float may be made of; what else there is, is a constant."""
    if type(value) is Symbol and not value.from_tensor:
        return value
    value = i.outside.concrete(value)
    if type(value) not in (int, float) or abs(value) > 2**62:
        raise Unsupported("random numbers of random.uniform() between these")
    return value


def _try(i: Interpreter, name: str, args: tuple[Any, ...]) -> Any:
    """What another generator gives for these arguments: a number of the same kind, or the same exception."""
    plain = tuple([a.hint if type(a) is Symbol else a for a in args])
    if not all(is_constant(a) for a in plain):
        raise Unsupported(f"random numbers of random.{name}()")
    tried = i.native(_METHODS[name], random.Random(0), *plain)
    if name in _INTEGERS and any(type(a) is not int or abs(a) > 2**62 for a in plain):
        raise Unsupported("a random integer of many digits")
    return tried


def _run(i: Interpreter, name: str, generator: random.Random, args: Args, kwargs: Kwargs) -> Any:
    """A call of a generator that the captured code made, which only looks at lengths and puts elements elsewhere."""
    given = [i.outside.contents(i.outside.concrete(a)) for a in args]
    for value in (*given, *kwargs.values()):
        whole = type(value) in (list, tuple) and name in ("choice", "sample", "shuffle")
        if not whole and (contains_symbolic(value) or not is_constant(value)):
            raise Unsupported(f"random numbers of random.{name}()")
    made = i.read(_METHODS[name], generator, *given, **kwargs)
    return i.mark_created(made) if type(made) is list else made


def _make(i: Interpreter, seed: Any = None) -> random.Random:
    """`random.Random(seed)`."""
    seed = i.outside.concrete(seed)
    if seed is None or not is_constant(seed):
        raise Unsupported("a generator of random numbers that begins with no constant")
    return i.mark_created(i.native(random.Random, seed))  # type: ignore[no-any-return]


def _seed(i: Interpreter, generator: Any, a: Any = None, version: Any = 2) -> None:
    whole = type(a) is Symbol and a.kind is a.cls is int and not a.from_tensor
    a = a if whole and not i.is_created(generator) else i.outside.concrete(a)
    if type(a) not in (int, str, Symbol):
        raise Unsupported("seeding random numbers with something else than a constant")
    _call(i, "seed", generator, (a, i.outside.concrete(version)), {})


def _handler(name: str) -> Callable[..., Any]:
    return lambda i, generator, *args, **kwargs: _call(i, name, generator, args, kwargs)


def _global_handler(handler: Callable[..., Any]) -> Callable[..., Any]:
    return lambda i, *args, **kwargs: call_handler(i, handler, "random", (_GLOBAL, *args), kwargs)


def _choose(i: Interpreter, generator: Any, seq: Any) -> Any:
    """`generator.choice(seq)`, of numbers of one kind."""
    if type(generator) is random.Random and i.is_created(generator):
        return _run(i, "choice", generator, (seq,), {})
    refused = Unsupported("random numbers of random.choice()")
    if type_of(generator) is not random.Random or i.graph.nested or type_of(seq) not in (list, tuple, range):
        raise refused
    elements = tuple(iterate(i, seq))
    kinds = {type_of(element) for element in elements}
    if len(kinds) != 1 or not kinds <= {int, float} or len(elements) > _MOST_CHOICES:
        raise refused
    values = [element.hint if type(element) is Symbol else element for element in elements]
    if any(value is None or (type(value) is int and abs(value) > 2**31) for value in values):
        raise refused
    for element in elements:
        if type(element) is Symbol and element.kind is int:
            i.outside.require(NumberExpr("(-0x80000000 <= {} <= 0x80000000)", (element.expr,)), True)
    return _drawn(i, "random.choice()", kinds.pop(), _chosen, generator, elements)


def _chosen(generator: random.Random, *elements: Any) -> Any:
    return generator.choice(elements)


#: The most numbers that one is chosen of: a guard reads each.
_MOST_CHOICES = 64


def _of_numpy(cls: Any, name: str, most: int) -> Callable[..., Any]:
    """`generator.name()` with at most so many numbers, which gives a float, or a whole number: constants where it refuses
    some."""
    method = getattr(cls, name)
    made = numpy.random.RandomState if cls is numpy.random.RandomState else numpy.random.default_rng
    kind = int if name in ("randint", "choice") else float

    def draw(i: Interpreter, generator: Any, *args: Any, **kwargs: Any) -> Any:
        if type_of(generator) is not cls or i.graph.nested or kwargs or len(args) > most:
            raise Unsupported(f"random numbers of numpy.random.{name}()")
        given = tuple([_finite(i, a if name == "uniform" else i.outside.concrete(a)) for a in args])
        if kind is int and not all(type(a) is int for a in given):
            raise Unsupported(f"random numbers of numpy.random.{name}()")
        tried = i.native(method, made(0), *[a.hint if type(a) is Symbol else a for a in given])
        if type(tried) is not kind:
            raise Unsupported(f"random numbers of numpy.random.{name}()")
        return _drawn(i, f"numpy.random.{name}()", kind, method, generator, given)

    return draw


def of_generator(value: random.Random) -> Recipe:
    """How compiled code makes a generator that captured code made."""
    return Call(_with_state, [Constant(value.getstate())])


def _with_state(state: Any) -> random.Random:
    made = random.Random(0)
    made.setstate(state)
    return made


_NAMES = (*_FLOATS, *_INTEGERS, *_OTHERS)
_METHODS: dict[str, Any] = {name: getattr(random.Random, name) for name in (*_NAMES, "seed")}
_RULES = {**{name: _handler(name) for name in _NAMES}, "seed": _seed, "choice": _choose}
_FLOATS_OF_NUMPY = {"uniform": 2, "random": 0, "normal": 2, "standard_normal": 0, "beta": 2, "gamma": 2, "exponential": 1,
                    "lognormal": 2, "laplace": 2}  # fmt: skip

HANDLERS: dict[Any, Callable[..., Any]] = {
    random.Random: _make,
    **{_METHODS[name]: rule for name, rule in _RULES.items()},
    # `random.random` is native: a method that knows its object
    **{getattr(random, name): _global_handler(_RULES[name]) for name in ("random", "getrandbits")},
    **{getattr(numpy.random.RandomState, name): _of_numpy(numpy.random.RandomState, name, most)
       for name, most in (*_FLOATS_OF_NUMPY.items(), ("random_sample", 0), ("rand", 0), ("randn", 0), ("randint", 2),
                          ("choice", 1))},
    **{getattr(numpy.random.Generator, name): _of_numpy(numpy.random.Generator, name, most)
       for name, most in _FLOATS_OF_NUMPY.items()},
}
