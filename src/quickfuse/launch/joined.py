"""A forward and a backward function as one operation of autograd.

`JoinedCall` is what generated code calls; each call is a node of autograd's graph, which keeps what backward needs by
`save_for_backward`: so that the checks, hooks and errors of PyTorch hold.

Backward comes in versions, by the outputs that have a gradient, each compiled when it is first needed. With grad mode on
(`create_graph=True`), the captured graph runs once more, in eager, and eager differentiates it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.gradients import Differentiated
from ..ir.values import TensorMeta


class Half:
    """A compiled graph with the tables of its kernels. `check` verifies the tensors' layout and fetches addresses."""

    def __init__(self, function: Callable[..., Any], check: Any, placer: Any, kernels: int, metas: list[TensorMeta]) -> None:
        self.function = function
        self.check = check
        self.placer = placer
        self.kernels = kernels
        self.metas = metas
        self.lock = threading.RLock()

    def __call__(self, tensors: list[Any], numbers: tuple[Any, ...]) -> list[Any]:
        """Run on tensors that may have other strides than expected."""
        with self.lock:
            if self.check is not None:
                state = self.check(tensors)
                if state < 0:
                    tensors = [_laid_out(t, meta) for t, meta in zip(tensors, self.metas, strict=True)]
                    state = self.check(tensors)
                    assert state >= 0, "a tensor that was brought into a layout has it"
                if state and self.placer is not None:
                    self.placer.place(self.check.addresses)
            return self.function(tensors, *numbers)


def _laid_out(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """A tensor with the strides that were compiled for."""
    if type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_neg() and not tensor.is_conj():
        if tensor.stride() == meta.stride and tensor.device == meta.device and tensor.dtype == meta.dtype:
            return tensor
        tensor = tensor.detach()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device).copy_(tensor)


class JoinedCall:
    """A captured graph that needs gradients, compiled."""

    def __init__(
        self,
        made: Differentiated,
        forward: Half,
        make_backward: Callable[[frozenset[int]], Half],
        run: Callable[..., Any],
        is_number: list[bool],
        keeps: list[bool],
    ) -> None:
        """`run` is the captured graph in eager, `is_number` says which of its inputs are numbers, and `keeps` which of the
        tensors are to be held, not only referred to, by a call's node: they live as long anyway."""
        self.forward_half = forward
        self.make_backward = make_backward
        self.backwards: dict[frozenset[int], Half | str] = {}
        self.run = run
        self.is_number = is_number
        self.keeps = keeps
        self.mutated = frozenset(made.mutated)
        self.outputs = len(made.outputs)
        self.differentiable = made.differentiable
        self.fixed = [k for k in range(self.outputs) if k not in set(made.differentiable)]
        self.draws = made.draws
        self.devices = sorted({i.device.index or 0 for i in made.outputs if i.device.type == "cuda"})
        self.tensor_index = _tensor_positions(is_number)
        self.wanted = [self.tensor_index[k] for k in made.wanted]
        self.number_index = {k: n for n, k in enumerate([k for k, number in enumerate(is_number) if number])}
        self.numbers = [self.number_index[k] for k in made.numbers]
        self.saved = [(self.tensor_index[s.index] if s.of_input else s.index, s.of_input) for s in made.saved]
        self.results = made.results
        self.plain = [r.index for r in made.results] == [*range(self.outputs)] and not any(
            r.of_input or r.path for r in made.results
        )
        self.result_of = {r.index: k for k, r in reversed([*enumerate(made.results)]) if not r.of_input and not r.path}

    def __call__(self, tensors: list[Any], numbers: tuple[Any, ...]) -> Any:
        """The outputs of the captured graph; `tensors` and `numbers` are its inputs, in order."""
        made = _Joined.apply(self, tensors, numbers, *[tensors[k] for k in self.wanted])
        return made if self.plain else self._assembled(tensors, made)

    def _assembled(self, tensors: list[Any], made: tuple[Any, ...]) -> list[Any]:
        outputs = []
        for result in self.results:
            value = tensors[self.tensor_index[result.index]] if result.of_input else made[result.index]
            if result.path:
                with torch.set_grad_enabled(result.with_grad):
                    for step in result.path:
                        value = step(value)
            outputs.append(value)
        return outputs

    def backward_half(self, absent: frozenset[int]) -> Half | None:
        """Backward without gradients for the outputs `absent`; None where only eager can do it."""
        known = self.backwards.get(absent)
        if known is None:
            try:
                known = self.make_backward(absent)
            except Unsupported as unsupported:
                known = unsupported.reason
            self.backwards[absent] = known
        return None if isinstance(known, str) else known

    # in eager ---------------------------------------------------------------------------------------------------

    def in_eager(self, node: Any, gradients: Sequence[Any], create_graph: bool) -> list[Any]:
        """The gradients, by running the captured graph once more, with autograd."""
        tensors = node.inputs()
        known = iter(tensors)
        numbers = iter(node.numbers)
        aliases: dict[int, Any] = {}
        inputs = []
        with torch.enable_grad(), _random_state(node.random_state):
            for position, number in enumerate(self.is_number):
                if number:
                    inputs.append(next(numbers))
                    continue
                tensor = next(known)
                index = self.tensor_index[position]
                if index in self.wanted:  # another input may depend on it: only the way through the graph counts
                    tensor = aliases[index] = tensor.view_as(tensor)
                elif position in self.mutated:
                    tensor = tensor.detach().clone()
                inputs.append(tensor)
            outputs = self.run(*inputs)
            pairs = [(outputs[self.result_of[k]], g) for k, g in zip(self.differentiable, gradients, strict=True) if g is not None]
            found = torch.autograd.grad(
                [o for o, _ in pairs], [aliases[k] for k in self.wanted], [g for _, g in pairs],
                create_graph=create_graph, allow_unused=True,
            )  # fmt: skip
        return list(found)


def _tensor_positions(is_number: list[bool]) -> dict[int, int]:
    """The index of each tensor input among the tensors, by its position among all inputs."""
    positions: dict[int, int] = {}
    for position, number in enumerate(is_number):
        if not number:
            positions[position] = len(positions)
    return positions


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: JoinedCall, tensors: list[Any], numbers: tuple[Any, ...], *wanted: Any) -> Any:
        ctx.random_state = _current_random_state(call.devices) if call.draws else None
        made = call.forward_half.function(tensors, *numbers)
        ctx.call = call
        ctx.numbers = numbers
        ctx.save_for_backward(*[tensors[k] if of_input else made[k] for k, of_input in call.saved])
        ctx.set_materialize_grads(False)
        if call.fixed:
            ctx.mark_non_differentiable(*[made[k] for k in call.fixed])
        kept = [t if keep else weakref.ref(t) for t, keep in zip(tensors, call.keeps, strict=True)]
        versions = [0 if t.is_inference() else t._version for t in tensors]
        ctx.inputs = lambda: _inputs(kept, versions, call)
        return tuple(made[: call.outputs])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call: JoinedCall = ctx.call
        saved = ctx.saved_tensors
        given = [gradients[k] for k in call.differentiable]
        absent = frozenset([k for k, g in enumerate(given) if g is None])
        if len(absent) == len(given):
            return (None, None, None, *[None] * len(call.wanted))
        if not torch.is_grad_enabled():
            half = call.backward_half(absent)
            if half is not None:
                tensors = [*saved, *[g for g in given if g is not None]]
                return (None, None, None, *half(tensors, tuple([ctx.numbers[k] for k in call.numbers])))
        return (None, None, None, *call.in_eager(ctx, given, torch.is_grad_enabled()))


def _inputs(kept: list[Any], versions: list[int], call: JoinedCall) -> list[Any]:
    """A call's inputs.

    Raises:
        RuntimeError: where one is gone, or was changed.
    """
    tensors = [k() if isinstance(k, weakref.ref) else k for k in kept]
    if any(t is None for t in tensors):
        raise RuntimeError(
            "these gradients have to be computed from the inputs of the compiled function, and one of them has been freed. "
            "Keep the inputs until backward() has run, or call the function without compiling it"
        )
    mutated = {call.tensor_index[k] for k in call.mutated}
    for k, (tensor, version) in enumerate(zip(tensors, versions, strict=True)):
        if k not in mutated and not tensor.is_inference() and tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: an input "
                f"of the compiled function, of shape {list(tensor.shape)}"
            )
    return tensors


def _current_random_state(devices: list[int]) -> Any:
    return torch.get_rng_state(), [torch.cuda.get_rng_state(k) for k in devices]


@contextlib.contextmanager
def _random_state(state: Any) -> Iterator[None]:
    """Draw the random numbers again that were drawn from this state."""
    if state is None:
        yield
        return
    devices = list(range(len(state[1])))
    with torch.random.fork_rng(devices=devices):
        torch.set_rng_state(state[0])
        for device, one in zip(devices, state[1], strict=True):
            torch.cuda.set_rng_state(one, device)
        yield
