"""Ways in which a call may differ from the one that a program was exported with: its arguments, the module's state, and what
is around the call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Given:
    """A call that is to be made of `module`, which is the original or an exported one."""

    module: Any
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)


def example(module: Any) -> Given:
    generator = torch.Generator().manual_seed(0)
    return Given(module, [torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)], {"scale": 2.0})


Change = Callable[[Given], Any]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    CHANGES[function.__name__.strip("_").replace("_", " ")] = function
    return function


def of_x(name: str, make: Callable[[torch.Tensor], Any]) -> None:
    """A change of the first argument."""

    def changed(given: Given) -> None:
        given.args[0] = make(given.args[0])

    CHANGES[name] = changed


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Negative(torch.Tensor):
    """A subclass whose sums are negative."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(function, types, args, kwargs)
        return -made if getattr(function, "__name__", "") in ("add", "__add__", "mul", "__mul__") else made


def _with_gaps(x: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(2 * x.shape[0], 2 * x.shape[1], dtype=x.dtype)
    wide[::2, ::2] = x
    return wide[::2, ::2]


of_x("nothing", lambda x: x)
of_x("other values", lambda x: x * 3 - 1)
of_x("not finite", lambda x: x / 0)
of_x("transposed", lambda x: x.t().contiguous().t())
of_x("with gaps", _with_gaps)
of_x("an offset", lambda x: torch.cat([x, x])[2:5])
of_x("expanded", lambda x: x[:1].expand(3, 4))
of_x("double", lambda x: x.double())
of_x("bfloat16", lambda x: x.bfloat16())
of_x("whole numbers", lambda x: x.long())
of_x("complex", lambda x: x.to(torch.complex64))
of_x("conjugate", lambda x: x.to(torch.complex64).conj())
of_x("negated lazily", lambda x: torch._neg_view(x))
of_x("needs gradients", lambda x: x.clone().requires_grad_())
of_x("needs gradients, no leaf", lambda x: x.clone().requires_grad_() * 1)
of_x("a parameter", lambda x: nn.Parameter(x.clone()))
of_x("a frozen parameter", lambda x: nn.Parameter(x.clone(), requires_grad=False))
of_x("without data", lambda x: x.to("meta"))
of_x("another size", lambda x: torch.cat([x, x]))
of_x("one row", lambda x: x[:1])
of_x("no rows", lambda x: x[:0])
of_x("another rank", lambda x: x[None])
of_x("one number in a tensor", lambda x: x[0, 0])
of_x("sparse", lambda x: x.to_sparse())
of_x("a subclass", lambda x: x.as_subclass(Plain))
of_x("a subclass with its own functions", lambda x: x.as_subclass(Negative))
of_x("None", lambda x: None)
of_x("a list", lambda x: x.tolist())
of_x("an array", lambda x: x.numpy())
of_x("quantized", lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8))


def of_scale(name: str, value: Any) -> None:
    def changed(given: Given) -> None:
        given.kwargs["scale"] = value

    CHANGES[name] = changed


of_scale("a smaller number", 0.5)
of_scale("a number that is no finite one", float("nan"))
of_scale("negative zero", -0.0)
of_scale("a whole number", 2)
of_scale("a flag", True)
of_scale("a number of numpy", numpy.float64(2.0))
of_scale("a smaller number of numpy", numpy.float32(2.0))
of_scale("a tensor for a number", torch.tensor(2.0))
of_scale("a string", "2")
of_scale("a complex number", 2j)
of_scale("None for a number", None)


@change
def by_name(given: Given) -> None:
    given.kwargs = {"scale": 2.0, "y": given.args[1], "x": given.args[0]}
    given.args = []


@change
def all_by_position(given: Given) -> None:
    given.args += [given.kwargs.pop("scale"), None]


@change
def without_a_default(given: Given) -> None:
    del given.kwargs["scale"]


@change
def another_argument(given: Given) -> None:
    given.kwargs["more"] = 1


@change
def options(given: Given) -> None:
    given.kwargs["options"] = {"a": 1}


@change
def one_tensor_twice(given: Given) -> None:
    given.args[1] = given.args[0]


@change
def overlapping(given: Given) -> None:
    both = torch.cat(given.args)
    given.args[:] = [both[:3], both[1:4]]


@change
def apart_in_one_memory(given: Given) -> None:
    both = torch.cat(given.args)
    given.args[:] = [both[:3], both[3:]]


@change
def a_view_of_the_other(given: Given) -> None:
    given.args[1] = given.args[0].view(3, 4)


@change
def a_view_of_a_buffer(given: Given) -> None:
    given.args[0] = given.module.average.expand(3, 4)


@change
def a_part_of_a_parameter(given: Given) -> None:
    given.args[1] = given.module.weight[:3]


@change
def memory_of_a_parameter(given: Given) -> None:
    given.args[0] = given.module.weight.detach()[:3]


# the module's state ---------------------------------------------------------------------------------------------


def of_module(name: str, function: Callable[[Any], Any]) -> None:
    CHANGES[name] = lambda given: function(given.module)


def _in_place_of(module: Any) -> None:
    with torch.no_grad():
        module.weight.mul_(2)
        module.average.add_(1)


of_module("changed contents", _in_place_of)
of_module("evaluation", lambda m: m.eval())
of_module("training", lambda m: m.train())
of_module("evaluation by hand", lambda m: setattr(m, "training", False))
of_module("double precision", lambda m: m.double())
of_module("low precision", lambda m: m.bfloat16())
of_module("frozen", lambda m: m.requires_grad_(False))
of_module("a frozen weight", lambda m: m.weight.requires_grad_(False))
of_module("a buffer that needs gradients", lambda m: m.average.requires_grad_())
of_module("another weight", lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach() * 2)))
of_module("other data of a weight", lambda m: setattr(m.weight, "data", m.weight.data * 2))
of_module("a transposed weight", lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach().t().contiguous().t())))
of_module("a buffer with gaps", lambda m: setattr(m, "average", _with_gaps(m.average[None])[0]))
of_module("a smaller weight", lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach()[:1])))
of_module("a wider buffer", lambda m: setattr(m, "average", torch.ones(3, 4)))
of_module("no buffer", lambda m: setattr(m, "average", None))
of_module("a deleted buffer", lambda m: delattr(m, "average"))
of_module("a buffer in a parameter's memory", lambda m: setattr(m, "average", m.weight.detach()[0]))
of_module("loaded", lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}))
of_module("loaded by assignment", lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True))
of_module("on no device", lambda m: m.to("meta"))
of_module("a hook on a weight", lambda m: m.weight.requires_grad and m.weight.register_hook(lambda g: g * 3))
of_module(
    "a hook after a gradient",
    lambda m: m.weight.requires_grad and m.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3)),
)
of_module("a hook on the call", lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] * 2, *args[1:])))


def _with_gradients(module: Any) -> None:
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)


of_module("gradients that are there", _with_gradients)


#: Changes that a step is not tried with: the original's optimizer would go on with the tensors that were there before, and
#: its state is in the state_dict of the exported module alone.
NOT_FOR_STEPS = frozenset({
    "another weight", "a transposed weight", "a smaller weight", "loaded", "loaded by assignment", "double precision",
    "on no device",
})  # fmt: skip


# what is around the call ----------------------------------------------------------------------------------------


class Doubling(TorchFunctionMode):
    """Sums are twice as large, and matrix products."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        twice = getattr(function, "__name__", "") in ("add", "__add__", "mul", "__mul__", "matmul", "__matmul__", "linear")
        return made + made if twice and isinstance(made, torch.Tensor) else made


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def _setting(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def _dual(given: Given) -> Any:
    stack = contextlib.ExitStack()
    stack.enter_context(forward_ad.dual_level())
    given.args[0] = forward_ad.make_dual(given.args[0], torch.ones_like(given.args[0]))
    return stack


SURROUNDINGS: dict[str, Callable[[Given], Any]] = {
    "no grad": lambda given: torch.no_grad(),
    "inference mode": lambda given: torch.inference_mode(),
    "autocast": lambda given: torch.autocast("cpu", torch.bfloat16),
    "autocast for another device": lambda given: torch.autocast("cuda", torch.bfloat16, enabled=torch.cuda.is_available()),
    "another default dtype": lambda given: _setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "the same default device": lambda given: torch.device("cpu"),
    "another default device": lambda given: torch.device("meta"),
    "deterministic": lambda given: _setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "anomalies": lambda given: torch.autograd.detect_anomaly(check_nan=False),
    "a function mode": lambda given: Doubling(),
    "a dispatch mode": lambda given: Counting(),
    "saved tensor hooks": lambda given: torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t),
    "forward derivatives": _dual,
    "one thread": lambda given: _setting(torch.get_num_threads, torch.set_num_threads, 1),
    "no oneDNN": lambda given: torch.backends.mkldnn.flags(enabled=False),
}  # fmt: skip
