"""Run a program on arguments and compare what comes out with what eager gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# running --------------------------------------------------------------------------------------------------------


def copy_argument(value: Any) -> Any:
    """A tensor with the same layout, in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout != torch.strided or value.is_conj() or value.is_neg() or value.is_quantized:
        return value.detach().clone().requires_grad_(value.requires_grad)
    storage = value.detach().untyped_storage().clone()
    made = torch.empty(0, dtype=value.dtype, device=value.device).set_(
        storage, value.storage_offset(), value.shape, value.stride()
    )
    return made.requires_grad_(value.requires_grad)


def seed_all(number: int) -> None:
    """`torch.manual_seed` without what it notes for GPUs, which takes a millisecond below a deep stack."""
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.manual_seed(number)


def random_states() -> torch.Tensor:
    """The states of the generators of all devices."""
    return torch.cat([torch.get_rng_state(), *torch.cuda.get_rng_state_all()])


def outcome_of(function: Callable[..., Any], arguments: list[Any]) -> tuple[Any, ...]:
    """("returned", value) or ("raised", type, text)."""
    seed_all(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "returned", function(*arguments)
        except Exception as error:
            return "raised", type(error), str(error).partition("\n\nWhile executing")[0]  # what torch.fx adds


# comparing ------------------------------------------------------------------------------------------------------


def differences(
    expected: Any,
    found: Any,
    where: str,
    with_values: bool = True,
    tolerance: float | None = 1e-6,
    with_strides: bool = True,
) -> Iterator[str]:
    """How `found` is not `expected`. Without a `tolerance`, numbers may differ as much as PyTorch's own tests allow."""
    if type(expected) is not type(found):
        yield f"{where}: a {type(found)} where eager has a {type(expected)}"
    elif isinstance(expected, torch.Tensor):
        yield from _tensor_differences(expected, found, where, with_values, tolerance, with_strides)
    elif isinstance(expected, (list, tuple)):
        if len(expected) != len(found):
            yield f"{where}: {len(found)} elements where eager has {len(expected)}"
            return
        for k, (e, f) in enumerate(zip(expected, found, strict=True)):
            yield from differences(e, f, f"{where}[{k}]", with_values, tolerance, with_strides)
    elif isinstance(expected, dict):
        yield from differences(list(expected.items()), list(found.items()), where, with_values, tolerance, with_strides)
    elif not (expected == found or (expected != expected and found != found)):
        yield f"{where}: {found!r} where eager has {expected!r}"


def _tensor_differences(
    expected: torch.Tensor, found: torch.Tensor, where: str, with_values: bool, tolerance: float | None, with_strides: bool
) -> Iterator[str]:
    for name in ("dtype", "shape", "layout", "device", "requires_grad"):
        e, f = getattr(expected, name), getattr(found, name)
        if e != f:
            yield f"{where}.{name}: {f} where eager has {e}"
            return
    if expected.layout == torch.strided and not expected.is_quantized:
        same_place = expected.stride() == found.stride() and expected.storage_offset() == found.storage_offset()
        if with_strides and not same_place:
            yield f"{where}: strides {found.stride()} where eager has {expected.stride()}"
        if expected.is_conj() != found.is_conj() or expected.is_neg() != found.is_neg():
            yield f"{where}: other conj or neg bits"
    if with_values and expected.device.type != "meta":
        try:
            atol = None if tolerance is None else 0 if tolerance < 1e-5 else 1e-5
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=atol, equal_nan=True)
        except AssertionError as error:
            yield f"{where}: {str(error).splitlines()[0]}"


#: What PyTorch says of numbers that are another result.
NOT_CLOSE = "are not close"


def _are_near(expected: torch.Tensor, found: torch.Tensor) -> bool:
    """Whether two tensors differ by a few rounding errors of the largest element."""
    if not expected.is_floating_point():
        return torch.equal(expected, found)
    bound = 32 * torch.finfo(expected.dtype).eps * expected.abs().nan_to_num(0, 0, 0).max() if expected.numel() else 0
    return torch.allclose(expected, found, rtol=0, atol=float(bound), equal_nan=True)


def is_as_accurate(
    program: Callable[..., Any], arguments: list[Any], expected: Any, found: Any, changes: bool = True
) -> bool:
    """Whether what was found is as near to the result in float64 as what eager gives, measured by the largest element.

    So are sums in another order whose terms cancel, where no tolerance for single elements fits. With `changes` the
    arguments are compared as well. A formula that loses many digits loses more or fewer by chance: there eager's loss is
    the largest one of these arguments and of some that differ in the last digit.
    """
    exact_ones = _in_float64(program, arguments, changes)
    if exact_ones is None:
        return False
    if exact_ones is _OTHER_NUMBERS:
        return all(_are_near(e, f) for e, f in zip(leaves(expected), leaves(found), strict=True))
    neighbours: list[list[float]] = []
    for k, (e, f, exact) in enumerate(zip(leaves(expected), leaves(found), leaves(exact_ones), strict=True)):
        if not _is_rounded(e, exact):
            if not torch.equal(e, f):
                return False
            continue
        lost = e.isnan() & exact.isfinite()  # a fault of eager, such as in remainders by the least divisors in bfloat16
        if lost.any() and not torch.allclose(f[lost].double(), exact[lost], rtol=torch.finfo(e.dtype).eps):
            return False
        e = torch.where(lost, f, e)
        finite = exact.isfinite() & e.isfinite()
        if not torch.equal(*(t[~finite].nan_to_num(nan=0.5, posinf=1, neginf=-1) for t in (e, f))):
            return False
        theirs, mine = _error(e, exact, finite), _error(f, exact, finite)
        unit = torch.finfo(e.dtype).eps * float(exact[finite].abs().max()) if finite.any() else 0.0
        if mine <= theirs or (theirs <= 32 * unit and mine <= 2 * theirs + 4 * unit):
            continue
        if theirs > 32 * unit:
            neighbours = neighbours or [_errors_nearby(program, arguments, seed, changes) for seed in range(8)]
            if mine <= max((errors[k] for errors in neighbours if errors), default=0.0):
                continue
        return False
    return True


#: Instead of results in float64: the program draws other random numbers there.
_OTHER_NUMBERS = object()


def _in_float64(program: Callable[..., Any], arguments: list[Any], changes: bool) -> Any:
    wide = [_widened(a) for a in arguments]
    with _WideTypes():
        outcome = outcome_of(program, wide)
    after = random_states()
    seed_all(0)
    if outcome[0] == "raised":
        return None
    if not torch.equal(after, random_states()):
        return _OTHER_NUMBERS
    return (outcome[1], wide) if changes else outcome[1]


class _WideTypes(TorchFunctionMode):
    """Within it, float64 stands for the types that an operator is asked for by name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(self._wide, args), **{name: self._wide(value) for name, value in (kwargs or {}).items()})

    @staticmethod
    def _wide(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in _ROUNDED else value


def _errors_nearby(program: Callable[..., Any], arguments: list[Any], seed: int, changes: bool) -> list[float]:
    """How far eager is from float64 for arguments that differ in the last digit, by result; nothing where it raises."""
    generator = torch.Generator().manual_seed(seed)
    near = [_with_other_last_digits(copy_argument(a), generator) for a in arguments]
    exact_ones = _in_float64(program, near, changes)
    outcome = outcome_of(program, near)
    if exact_ones is None or outcome[0] == "raised":
        return []
    found = (outcome[1], near) if changes else outcome[1]
    pairs = zip(leaves(found), leaves(exact_ones), strict=True)
    return [_error(e, exact) if _is_rounded(e, exact) else 0.0 for e, exact in pairs]


def _with_other_last_digits(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _ROUNDED:
        signs = torch.randint(-1, 2, value.shape, generator=generator).to(value.dtype)
        with torch.no_grad():
            value.mul_(1 + signs * torch.finfo(value.dtype).eps)
    return value


_ROUNDED = (torch.float32, torch.bfloat16, torch.float16)


def _is_rounded(result: torch.Tensor, exact: torch.Tensor) -> bool:
    return result.dtype in _ROUNDED and exact.dtype == torch.float64


def _error(result: torch.Tensor, exact: torch.Tensor, finite: torch.Tensor | None = None) -> float:
    """The largest one, of the elements that are `finite`; infinite, or no number, where only the result isn't."""
    finite = exact.isfinite() & result.isfinite() if finite is None else finite
    return float((result.double() - exact)[finite].abs().max()) if finite.any() else 0.0


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _ROUNDED:
        return value.detach().double().requires_grad_(value.requires_grad)
    return copy_argument(value)


def leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from leaves(element)


def sharing(result: Any, arguments: list[Any]) -> list[tuple[int | None, int | None]]:
    """For each tensor of a result: the first earlier tensor that it is, and the first whose memory it shares."""
    seen = list(leaves(arguments))
    found = []
    for leaf in leaves(result):
        same = next((k for k, t in enumerate(seen) if t is leaf), None)
        shared = next((k for k, t in enumerate(seen) if _address(t) is not None and _address(t) == _address(leaf)), None)
        found.append((same, shared))
        seen.append(leaf)
    return found


def _address(tensor: torch.Tensor) -> int | None:
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    return int(tensor.untyped_storage().data_ptr()) or None
