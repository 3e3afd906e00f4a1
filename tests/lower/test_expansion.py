"""Operators that are composed of others, taken apart: right, and in kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from quickfuse.ir.loop import Extern

X = torch.Tensor


def leaf(*shape: int, seed: int = 0) -> X:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


x, y, image = leaf(6, 8), leaf(6, 8, seed=1), leaf(2, 3, 10, 12)
mask = x > 0.3
places = torch.arange(20).view(5, 4) % 6
edges = torch.tensor([-1.0, -0.2, 0.0, 0.7, 1.5])

#: What PyTorch composes, and what it has kernels for that are compositions all the same.
FUSED: dict[str, Callable[[], Any]] = {
    "isclose": lambda: (torch.isclose, x, y),
    "kron": lambda: (torch.kron, x, y[:2, :3]),
    "outer": lambda: (torch.outer, x[0], y[1]),
    "diff": lambda: (torch.diff, x),
    "no_diff": lambda: (lambda t: torch.diff(t, 0), x),
    "column_stack": lambda: (lambda a, b: torch.column_stack([a, b]), x, y),
    "pairwise_distance": lambda: (F.pairwise_distance, x, y),
    "cosine_embedding_loss": lambda: (F.cosine_embedding_loss, x, y, torch.ones(6)),
    "triplet_margin_loss": lambda: (F.triplet_margin_loss, x, y, x.flip(0)),
    "multilabel_soft_margin_loss": lambda: (F.multilabel_soft_margin_loss, x, (y > 0).float()),
    "fftshift": lambda: (torch.fft.fftshift, x),
    "trapezoid": lambda: (torch.trapezoid, x, y),
    "elementwise_einsum": lambda: (lambda a, b: torch.einsum("i,j->ij", a, b), x[0], y[0]),
    "binary_cross_entropy": lambda: (F.binary_cross_entropy, x.sigmoid(), y.sigmoid()),
    "nansum": lambda: (lambda t: torch.nansum(t, 1), torch.where(mask, x, float("nan"))),
    "aminmax": lambda: (lambda t: torch.aminmax(t, dim=1), x),
    "channel_shuffle": lambda: (lambda t: F.channel_shuffle(t, 3), image),
    "safe_softmax": lambda: (
        lambda t, m: torch.ops.aten._safe_softmax(t.masked_fill(m, float("-inf")), -1), x, mask | (y[:, :1] > 0),
    ),
    "trace": lambda: (torch.trace, x),
    "embedding_bag": lambda: (lambda w, i: F.embedding_bag(i, w), x, places),
    "embedding_bag_of_weights": lambda: (
        lambda w, i, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s), x, places, y[:5, :4],
    ),
    "block_diag": lambda: (torch.block_diag, x, y[:2]),
    "masked_scatter": lambda: (torch.masked_scatter, x, mask, y),
    "isin": lambda: (torch.isin, x.round(), edges.round()),
    "bucketize": lambda: (torch.bucketize, x, edges),
    "bucketize_right": lambda: (lambda t, e: torch.bucketize(t, e, right=True), x.round(), edges.round()),
    "bucketize_nan": lambda: (torch.bucketize, torch.where(mask, float("nan"), x), edges),
    "searchsorted": lambda: (torch.searchsorted, x.sort(1)[0], y),
    "bicubic": lambda: (lambda t: F.interpolate(t, (7, 31), mode="bicubic"), image),
    "bicubic_aligned": lambda: (
        lambda t: F.interpolate(t, scale_factor=2.3, mode="bicubic", align_corners=True), image,
    ),
    "adaptive_max_pool": lambda: (lambda t: F.adaptive_max_pool2d(t, (5, 4)), image),
    "uneven_adaptive_max_pool": lambda: (lambda t: F.adaptive_max_pool2d(t, (7, 5), return_indices=True), image),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from quickfuse.schedule import launches

    made: list[Any] = []
    plain = launches.Schedule
    monkeypatch.setattr(launches, "Schedule", lambda *args, **kwargs: made.append(plain(*args, **kwargs)) or made[-1])
    function, *args = FUSED[name]()
    twin = quickfuse.compile(lambda *operands: function(*operands), options={"raise_internal_errors": True})
    torch.testing.assert_close(twin(*args), function(*args), equal_nan=True, rtol=1e-5, atol=1e-5)
    assert made and not [step for s in made for step in s.steps if isinstance(step, Extern)]
    assert not [s.without_kernels for s in twin.specialisations if s.without_kernels]


@pytest.mark.parametrize("function, args", [
    (F.binary_cross_entropy, (x, y.sigmoid())),
    (torch.masked_scatter, (x, mask, y[0, :2])),
], ids=["probability", "too few elements"])  # fmt: skip
def test_exceptions_for_contents_are_eagers(function: Any, args: Any) -> None:
    twin = quickfuse.compile(lambda *operands: function(*operands) * 2)
    with pytest.raises(RuntimeError) as expected:
        function(*args)
    with pytest.raises(RuntimeError) as found:
        twin(*args)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("exponent", [3, 140, 300, -140, -300, 2**40, 2.7, 1.5], ids=str)
def test_ldexp(exponent: float, dtype: torch.dtype) -> None:
    """It scales by a power of two that may itself be beyond the range of the type."""
    numbers, exponents = torch.tensor([0.0, 1.0, -3.0]).to(dtype), [torch.tensor(exponent), torch.tensor([exponent] * 3)]
    twin = quickfuse.compile(lambda a, e: torch.ldexp(a + 0, e) * 1)
    for e in exponents:
        torch.testing.assert_close(twin(numbers, e), torch.ldexp(numbers, e), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("function", [torch.logaddexp, torch.sinc, F.silu])
def test_formulas_are_of_real_numbers(function: Callable[..., X]) -> None:
    numbers = torch.complex(x, y)
    args = (numbers, numbers.flip(0)) if function is torch.logaddexp else (numbers,)
    torch.testing.assert_close(quickfuse.compile(lambda *args: function(*args))(*args), function(*args))
    args = tuple([a.clone().requires_grad_() for a in args])
    if function is not F.silu:  # which has no gradient of complex numbers
        torch.testing.assert_close(quickfuse.compile(lambda *args: function(*args))(*args), function(*args))


def test_results_have_memory_of_their_own() -> None:
    function = lambda t: torch.diff(t, 0)  # noqa: E731
    result = quickfuse.compile(function)(x)
    assert result.data_ptr() != x.data_ptr()


def test_products_of_matrices_stay_calls() -> None:
    twin = quickfuse.compile(lambda a, b: torch.einsum("ij,kj->ik", a, b).relu())
    torch.testing.assert_close(twin(x, y), (x @ y.t()).relu())
