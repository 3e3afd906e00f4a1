"""`torch._foreach_*`: the rule of the scalar operator, applied to each member of the lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from quickfuse.errors import Unsupported

from .context import Context
from .rules import Evaluator, NoRule, into
from .symbolic import Tensor
from .views import element_view

#: Names of the arguments that follow the first list, in order, of the operators that have more than one of them.
_OPERANDS: dict[str, tuple[frozenset[str], ...]] = {
    name: (frozenset({"tensor1"}), frozenset({"tensor2"}), frozenset({"value", "scalars"}))
    for name in ("addcmul", "addcdiv")
}
_OPERANDS["lerp"] = (frozenset({"tensors1"}), frozenset({"weight", "weights", "scalars"}))
_BINARY = (frozenset({"other", "scalar", "scalars", "exponent", "src"}),)


def foreach(name: str, evaluate: Evaluator, in_place: bool) -> Callable[..., Any]:
    """The handler of `torch._foreach_<name>`, or of its in-place form."""
    operands = _OPERANDS.get(name, _BINARY)
    numbers_at = len(operands) if name in ("addcmul", "addcdiv") else -1

    def handle(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], metas: Any) -> Any:
        args, options = _by_position(operands, args, kwargs)
        lists = [v for v in args if isinstance(v, (list, tuple))]
        if not lists or len(set(map(len, lists))) != 1:
            raise NoRule
        count = len(lists[0])
        columns = [
            v if isinstance(v, (list, tuple)) else _numbers(v) if k == numbers_at and _is_vector(v) else repeat(v, count)
            for k, v in enumerate(args)
        ]
        if in_place:
            for members in zip(*columns, strict=True):
                into(ctx, evaluate, members[0], members, options)
            return args[0]
        if not isinstance(metas, (list, tuple)) or len(metas) != count:
            raise NoRule
        return [
            ctx.fresh(meta, evaluate(ctx, members, options, meta))
            for meta, members in zip(metas, zip(*columns, strict=True), strict=True)
        ]

    return handle


def _by_position(
    operands: tuple[frozenset[str], ...], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with those given by name in their places, and the options that remain."""
    options = {name: value for name, value in kwargs.items() if name != "non_blocking"}
    bound = list(args)
    if "self" in options:
        bound.insert(0, options.pop("self"))
    for names in operands[len(bound) - 1 :]:
        name = next((n for n in names if n in options), None)
        if name is None:
            break
        bound.append(options.pop(name))
    return bound, options


def _is_vector(value: Any) -> bool:
    return type(value) is Tensor and len(value.meta.shape) == 1


def _numbers(vector: Tensor) -> list[Tensor]:
    """The elements of a 1-d tensor that is given as a list of numbers."""
    if vector.meta.device.type != "cpu":
        raise Unsupported("numbers in a tensor on a GPU")
    return vector.members() or [element_view(vector, k) for k in range(vector.meta.shape[0])]


