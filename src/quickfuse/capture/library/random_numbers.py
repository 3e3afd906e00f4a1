"""Python's `random`, and single numbers of NumPy's: they are drawn before the graph runs, in the program's order, by the
program's own generator.

Only running the code tells what they are, as with numbers in tensors: so each is put into a tensor, which the graph reads. A
generator that the captured code makes of a constant gives the same numbers in each call, and is run while it is captured.

PyTorch's generators, and NumPy's, are seeded before the graph runs, too, so nothing in the graph may come before it that
draws. What stands for a generator of PyTorch's made inside belongs to the compiled code, and begins anew in each call.
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


# seeding PyTorch's generators and NumPy's, and generators of PyTorch's that the captured code makes -------------------


#: What `torch.Generator()` begins with.
_FIRST_SEED = torch.Generator().initial_seed()


def _make_of_torch(i: Interpreter, device: Any = "cpu") -> ForeignObject:
    """`torch.Generator()`, on the CPU."""
    device = i.outside.concrete(device)
    if torch.device(device).type != "cpu":
        raise Unsupported("making a Generator for another device")
    _check_nothing_drawn(i, "making a Generator")
    made = torch.Generator()
    stand_in = i.outside.constant_object(made, "torch.Generator()")
    i.outside.generators_made[stand_in.source] = i.performed
    _seed_before(i, torch.Generator.manual_seed, made, _FIRST_SEED)
    return stand_in  # type: ignore[return-value]


def _seed_made_or_given(i: Interpreter, generator: Any, seed: Any) -> Any:
    """`generator.manual_seed(seed)`."""
    if type(generator) is not ForeignObject or generator.real.device.type != "cpu":
        raise Unsupported("the method manual_seed of a Generator")
    _check_nothing_drawn(i, "seeding a Generator")
    made = generator.source in i.outside.generators_made
    _seed_before(i, torch.Generator.manual_seed, generator.real if made else generator, _whole(i, seed))
    return generator


def _seed_torch(i: Interpreter, seed: Any) -> Any:
    """`torch.manual_seed(seed)`, which gives the generator of the CPU."""
    _check_nothing_drawn(i, "torch.manual_seed()")
    _seed_before(i, _seed_all, torch.default_generator, _whole(i, seed))
    return i.outside.constant_object(torch.default_generator, "torch.default_generator")


def _seed_numpy(i: Interpreter, seed: Any) -> None:
    """`numpy.random.seed(seed)`."""
    _seed_before(i, _seed_of_numpy, numpy.random.mtrand._rand, _whole(i, seed, 0, (1 << 32) - 1))


def _check_nothing_drawn(i: Interpreter, what: str) -> None:
    """Only what comes first can be done before the graph."""
    if i.graph.nested or any(node.op.startswith("call") for node in i.graph.root.nodes):
        raise Unsupported(f"{what} after operators")


def _whole(i: Interpreter, seed: Any, lowest: int = -(1 << 63), largest: int = (1 << 64) - 1) -> Any:
    """A seed that no generator refuses."""
    symbolic = type(seed) is Symbol and not seed.from_tensor and seed.cls is seed.kind
    value = seed.hint if symbolic else i.outside.concrete(seed)
    if type(value) is not int or not lowest <= value <= largest:
        raise Unsupported(f"a seed that is a {type_of(seed).__name__} or out of range")
    if not symbolic:
        return value
    i.outside.require(NumberExpr("({1} <= {0} <= {2})", (seed.expr, lowest, largest)), True)
    return seed


def _seed_before(i: Interpreter, function: Callable[..., None], generator: Any, seed: Any) -> None:
    def call(recipe: Callable[[Any], Recipe]) -> Call:
        of = recipe(generator) if type(generator) is ForeignObject else Constant(generator)
        return Call(function, [of, recipe(seed)])

    i.outside.draws.append((None, call))


def _seed_all(generator: torch.Generator, seed: int) -> None:
    torch.manual_seed(seed)


def _seed_of_numpy(generator: Any, seed: int) -> None:
    numpy.random.seed(seed)


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
    torch.Generator: _make_of_torch, torch.Generator.manual_seed: _seed_made_or_given, torch.manual_seed: _seed_torch,
    numpy.random.seed: _seed_numpy,
}
