"""Running operators on stand-ins for their operands, to find out what they return.

The usual stand-ins are tensors without data, on PyTorch's `meta` device: its kernels give eager's promotion rules,
strides and errors.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.random_state import move_to, offset_of
from ...ir.values import TensorMeta, numbered, span_of
from ...ir.warning_filters import recorded
from ..symbolic import Symbol, TensorProxy, mapped
from .elementwise import DRAWN
from .on_device import Dispatching, OnDevice, memory_of, on_device
from .results import LazyMeta, OperatorFailed, Result, SameTensor, View, check_plain, map_tensors, meta_of

_META = torch.device("meta")
#: The globals of what warns in Python for an operator.
_SPEAKING = (vars(torch.functional), vars(torch.nn.functional), vars(torch._tensor))
_NO_DATA = re.compile(r"\bmeta\b", re.IGNORECASE)


def outside_inference_mode() -> contextlib.AbstractContextManager[Any]:
    """Tensors made in inference mode do not tell whether they were changed."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


def run_without_data(
    function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool, device: torch.device | None
) -> Result:
    """The result of `function(*args, **kwargs)`, by a run on the `meta` device; `device` is that of the results, None where
    the operator says it, which is given tensors that seem to be on their own. Raises `OperatorFailed` where the operator
    raises, and `Unsupported` where the result depends on the tensors' contents, or PyTorch does not know it without."""
    # Attention has several kernels on a GPU, which PyTorch picks by types and sizes, and their results' layouts differ.
    picks = getattr(function, "__name__", "") == "scaled_dot_product_attention"
    seen = device is None or (picks and device.type == "cuda")
    placed = bool(tensors) and (seen or torch._C._is_any_autocast_enabled())
    operands = StandIns(on_device, device) if placed else StandIns(_without_data, _META)
    surroundings = contextlib.nullcontext() if tensors else _META  # a factory must not make data, nor draw random numbers
    with Dispatching() if placed else contextlib.nullcontext():
        meta_args, meta_kwargs = operands.of(args), operands.of(kwargs)
        if meta_kwargs.get("device") is not None and not placed:
            meta_kwargs["device"] = _META
        try:
            with surroundings:
                returned = call(function, meta_args, meta_kwargs, grad)
                _check_part(function, meta_args, meta_kwargs)
        except Unsupported:
            raise
        except Exception as error:
            if isinstance(error, NotImplementedError) or _NO_DATA.search(str(error)):
                raise Unsupported(*reason_of(function, error)) from error
            raise OperatorFailed(f"{type(error).__name__}: {error}") from error
        return operands.result(returned, tensors, device)


def call(function: Callable[..., Any], args: Any, kwargs: Any, grad: bool) -> Any:
    """Call the operator. A warning belongs to the user's program: what warns every time runs natively. Raises `Unsupported`
    where the operator warns, or draws random numbers that may decide about its results' metadata."""
    before = torch.is_grad_enabled()
    # What PyTorch warns of once a process is used up here: where that is an exception, the operator itself must raise it.
    raises, always = any(action == "error" for action, *_ in warnings.filters), torch.is_warn_always_enabled()
    names = getattr(function, "__globals__", {})
    random_state = torch.get_rng_state()
    # Dropout of tensors that are said to be on a GPU moves its generator on, for autocast: see `on_device.py`.
    offsets = [offset_of(k) for k in range(len(torch.cuda.default_generators))]
    torch._C._set_grad_enabled(grad)
    try:
        again = _with_out_as_it_was(kwargs)
        torch.set_warn_always(always or raises)
        with recorded(*_SPEAKING, names) as caught:
            returned = function(*args, **kwargs)
            once = list(caught)
            if once and not raises:
                caught.clear()
                function(*args, **again)
    finally:
        torch.set_warn_always(always)
        torch._C._set_grad_enabled(before)
        draws = not torch.equal(torch.get_rng_state(), random_state)
        if draws:
            torch.set_rng_state(random_state)
        for k, offset in enumerate(offsets):
            move_to(k, offset)
    if draws and getattr(function, "__name__", "") not in DRAWN:
        raise Unsupported("random numbers drawn to find out a shape")
    if caught:
        raise Unsupported(f"a warning: {str(caught[0].message).splitlines()[0]}")
    for warning in once:  # PyTorch gives these once a process: the program will not see them any more
        _warn(warning, names)
    return returned


def _warn(warning: warnings.WarningMessage, names: dict[str, Any]) -> None:
    """Give a warning of a function with these globals, from where the program gives it: what names us as the caller of the
    function is about the code that is captured."""
    filename, line = warning.filename, warning.lineno
    place = _place.get() if filename.startswith(_PACKAGE) else None
    if place is not None and (found := place()) is not None:
        filename, line, names = found
    elif names.get("__file__") != filename:
        names = {}
    shown = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(warning.message, warning.category, filename, line, names.get("__name__"), shown)


@contextlib.contextmanager
def captured_at(place: _Place) -> Iterator[None]:
    """A `with` block that captures code. `place` tells the file, the line, and the globals of what runs."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


_Place = Callable[[], tuple[str, int, dict[str, Any]] | None]
_place: contextvars.ContextVar[_Place | None] = contextvars.ContextVar("_place", default=None)
_PACKAGE = str(Path(__file__).parents[2]) + os.sep


def _check_part(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raise a `RuntimeError` where what is to take the place of a part has another shape than that: without data, PyTorch
    does not look at it."""
    part_of = _PARTS.get(getattr(function, "__name__", ""))
    if part_of is None or not args:
        return
    others = {name: value for name, value in kwargs.items() if name != "src"}
    source, rest = (kwargs["src"], args[1:]) if "src" in kwargs else (args[1], args[2:])
    part = part_of(args[0], *rest, **others)
    if part.shape != source.shape:
        raise RuntimeError(f"a part of shape {list(part.shape)} and what takes its place, {list(source.shape)}")


_PARTS: dict[str, Callable[..., torch.Tensor]] = {
    "select_scatter": torch.select, "slice_scatter": torch.ops.aten.slice.Tensor, "diagonal_scatter": torch.diagonal,
}  # fmt: skip


def _with_out_as_it_was(kwargs: Any) -> Any:
    """The same keyword arguments for another call, which finds the lengths of `out` that the first one may change."""
    out = kwargs.get("out")
    if out is None:
        return kwargs
    return {**kwargs, "out": out.clone() if isinstance(out, torch.Tensor) else type(out)([t.clone() for t in out])}


class StandIns:
    """The tensors that an operator runs on, one for each proxy, and what they were before."""

    def __init__(self, make: Callable[[TensorMeta], torch.Tensor], device: torch.device | None) -> None:
        """`device` is that of the tensors, None where each is on its own."""
        self._make = make
        self._device = device
        self._made: dict[int, torch.Tensor] = {}
        self._before: dict[int, tuple[int, TensorMeta]] = {}

    def of(self, value: Any) -> Any:
        """Operands as the operator takes them."""
        return mapped(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        kind = type(value)
        if kind is TensorProxy:
            return self._tensor(value)
        if kind is Symbol:
            return value.hint if value.hint is not None else value.kind(1)
        if kind is torch.device:
            return self._device or value
        return None if kind is torch.Generator else value

    def _tensor(self, proxy: TensorProxy) -> torch.Tensor:
        made = self._made.get(id(proxy))
        if made is None:
            meta = proxy.meta
            made = self._made[id(proxy)] = _like(self._make(meta), meta, meta.requires_grad and is_leaf(proxy))
            self._before[id(proxy)] = (made._version, meta_of(made, meta.device))
        return made

    def made_for(self, proxy: TensorProxy) -> torch.Tensor | None:
        return self._made.get(id(proxy))

    def is_written(self, proxy: TensorProxy) -> bool:
        return self._made[id(proxy)]._version != self._before[id(proxy)][0]

    def result(self, returned: Any, tensors: list[TensorProxy], device: torch.device | None) -> Result:
        """What the operator returned, on `device`, and what it did to its operands."""
        indices: dict[int, int] = {}
        memory: dict[int, int] = {}
        written, changed = [], []
        for index, proxy in enumerate(tensors):
            operand = self._made[id(proxy)]
            if id(operand) in indices:
                continue
            indices[id(operand)] = index
            memory.setdefault(memory_of(operand), index)
            if self.is_written(proxy):
                written.append(index)
            after = meta_of(operand, proxy.meta.device)
            if after != self._before[id(proxy)][1]:
                changed.append((index, after))
        leaves: list[bool] = []

        def describe(value: torch.Tensor) -> Any:
            if id(value) in indices:
                return SameTensor(indices[id(value)])
            check_plain(value.inner if isinstance(value, OnDevice) else value)
            placed = self._device is not None and value.device.type != self._device.type
            if placed and (tensors or value.device != device):
                raise Unsupported(f"a result on the device {value.device}")
            leaves.append(value.is_leaf and value.requires_grad)
            base = memory.get(memory_of(value))
            meta = meta_of(value, device or numbered(value.device))
            return meta if base is None else View(meta, base, value._is_view())

        structure = map_tensors(describe, returned)
        return Result(structure, tuple(written), tuple(changed), any(leaves))


def _like(made: torch.Tensor, meta: TensorMeta, leaf: bool) -> torch.Tensor:
    """A tensor with the properties of `meta` that autograd and lazy views give."""
    if meta.requires_grad:
        if not (meta.dtype.is_floating_point or meta.dtype.is_complex):  # a view that a number with gradients was written to
            raise Unsupported("whole numbers that require gradients")
        made = made.requires_grad_() if leaf else _computed(made.requires_grad_())
    if isinstance(meta, LazyMeta):
        made = made.conj() if meta.conj else made
        made = torch._neg_view(made) if meta.neg else made
    return made


def stand_in_for(meta: TensorMeta, leaf: bool, placed: bool = False) -> torch.Tensor:
    """A tensor without data that autograd takes for one with this metadata; `placed`: and autocast for one on its device."""
    return _like(on_device(meta) if placed else _without_data(meta), meta, leaf)


def laid_out(made: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """An operator's result with the strides that it has on its device, where those on `meta` are others."""
    return _LaidOut.apply(made, stride)  # type: ignore[no-any-return, no-untyped-call]


def is_leaf(proxy: TensorProxy) -> bool:
    """Whether a tensor that requires gradients is a leaf of autograd's graph. Raises `Unsupported` where autograd does not
    say: of a view made under `no_grad` whose base was changed with gradients since."""
    if proxy.real is not None:
        try:
            return proxy.real.is_leaf
        except RuntimeError as error:
            raise Unsupported(f"a tensor of which autograd says: {str(error).partition('.')[0]}") from error
    return proxy.node is not None and proxy.node.meta.get("leaf", False)


def is_view_without_gradients(proxy: TensorProxy) -> bool:
    """Whether a tensor requires gradients because what it is a view of does, and gets none: a view made under `no_grad`."""
    if proxy.real is not None:
        return proxy.real.requires_grad and proxy.real.is_leaf and proxy.real._is_view()
    if proxy.node is None or proxy.node.meta.get("asked"):  # by `requires_grad_()`
        return False
    return is_leaf(proxy) and proxy.node.meta.get("view_of", (None, False))[1]


def _without_data(meta: TensorMeta) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=_META)


def _computed(leaf: torch.Tensor) -> torch.Tensor:
    """The same tensor as an operator's result: it may be changed in place."""
    with torch.enable_grad():
        return _Computed.apply(leaf)  # type: ignore[no-any-return, no-untyped-call]


class _Computed(torch.autograd.Function):
    """An operator whose result looks like its operand. The first call of one of PyTorch's own on this device would import
    its compiler, which takes up to a second. The contents are the operand's too: where an operator on a GPU refuses what
    memory happens to hold, the process cannot use that GPU any more."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        made = leaf.new_empty_strided(leaf.shape, leaf.stride())
        if leaf.device != _META and type(leaf) is not OnDevice and leaf.numel():
            whole(made).copy_(whole(leaf))
        return made


class _LaidOut(torch.autograd.Function):
    """Gradients pass it as they are."""

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
        return torch.empty_strided(made.shape, stride, dtype=made.dtype, device=made.device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that the elements of a new tensor lie in, as one axis."""
    return tensor.as_strided((span_of(tensor.shape, tensor.stride()),), (1,))


# operators whose results depend on the contents of tensors, so that only running them tells what they return -------


_SHAPE = "the number of elements that {} returns depends on a tensor's values"
_PYTHON = "{} answers in Python from a tensor's values"
_MASK_HINT = "torch.where(mask, x, other) keeps the shape"
_SIZES = "{} takes sizes from a tensor's values"

#: Name of the operator -> reason, hint.
DATA_DEPENDENT: dict[str, tuple[str, str]] = {name: why for names, why in {
    "nonzero argwhere": (_SHAPE, "torch.nonzero_static(x, size=n) returns a fixed number"),
    "where": (_SHAPE, "give torch.where all three arguments"),
    "masked_select": (_SHAPE, _MASK_HINT),
    "getitem __getitem__ index": ("the number of elements that a mask selects depends on its values", _MASK_HINT),
    "unique unique_consecutive unique_dim": (_SHAPE, ""),
    "bincount": (_SHAPE, "give minlength=: numbers less than that are expected then"),
    "repeat_interleave": (_SHAPE, "give output_size="),
    "one_hot": (_SHAPE, "give num_classes="),
    "tensor_split narrow tensordot": (_SIZES, "give the sizes as Python integers"),
    "ctc_loss": (_SIZES, "give the lengths as tuples of integers"),
    "equal": (_PYTHON, "(a == b).all() stays a tensor"),
    "allclose": (_PYTHON, "torch.isclose(a, b).all() stays a tensor"),
    "is_nonzero": (_PYTHON, "x != 0 stays a tensor"),
    "item": (_PYTHON, "the 0-dim tensor can be used as it is"),
    "tensor as_tensor": ("{} copies the values of tensors through Python", "torch.stack keeps them in tensors"),
    "linalg_lstsq": ("the shapes that {} returns depend on a matrix's rank", "torch.linalg.pinv(a) @ b has a fixed one"),
}.items() for name in names.split()}  # fmt: skip


def is_of_values(reason: str) -> bool:
    """Whether a reason says that a tensor's values decide."""
    return reason.endswith(("a tensor's values", "depends on its values"))


def reason_of(function: Callable[..., Any], error: Exception) -> tuple[str, str]:
    """Why `function` could not run without data, and what to write instead."""
    name = str(getattr(function, "__name__", function))
    reason, hint = DATA_DEPENDENT.get(name, ("", ""))
    if not reason:
        if isinstance(error, NotImplementedError) and "item" not in str(error):
            reason = "PyTorch has no shape rule for {}"
        else:
            reason = "{} depends on a tensor's values"
    return reason.format(f"{name}()"), hint
