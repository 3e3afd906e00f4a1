"""What capture says of an operator's result is what the result is: shape, dtype, strides, of many random operands.

Sizes are larger here than in PyTorch's database of operators, so that axes are shortened (`capture/inference/lengths.py`).
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import exact
from quickfuse.capture.inference import metadata, probes
from quickfuse.capture.inference.on_device import OnDevice, on_device
from quickfuse.capture.inference.results import SameTensor, View, meta_of
from quickfuse.capture.inference.stand_ins import _like
from quickfuse.capture.symbolic import TensorProxy
from quickfuse.ir.values import TensorMeta

T = torch.Tensor
ROUNDS = 8


class Random:
    """Random operands."""

    def __init__(self, seed: int, device: str) -> None:
        self.pick = random.Random(seed)
        self.device = device

    def size(self, lowest: int = 1, highest: int = 40) -> int:
        return self.pick.choice([1, 2, 3, self.pick.randint(lowest, highest), self.pick.randint(9, highest)])

    def shape(self, ndim: int | None = None) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(self.pick.randint(1, 4) if ndim is None else ndim))

    def ones(self, *shape: int) -> T:
        return torch.ones(shape, device=self.device)

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> T:
        """Of some layout: contiguous, channels last, permuted, with gaps or expanded."""
        made = torch.ones(shape, dtype=dtype, device=self.device)
        kind = self.pick.choice(["plain", "plain", "last", "permuted", "gaps", "expanded"])
        if kind == "last" and len(shape) in (4, 5):
            last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
            return made.contiguous(memory_format=last)
        if kind == "permuted":
            axes = self.pick.sample(range(len(shape)), len(shape))
            back = sorted(range(len(shape)), key=axes.__getitem__)
            return made.permute(axes).contiguous().permute(back)
        if kind == "gaps":
            return torch.stack([made, made], dim=-1)[..., 0]
        if kind == "expanded" and shape:
            return made[:1].expand(shape)
        return made

    def index(self, *shape: int, below: int) -> T:
        numbers = [self.pick.randrange(below) for _ in range(torch.Size(shape).numel())]
        return torch.tensor(numbers, device=self.device).reshape(shape)

    def axis(self, x: T) -> int:
        return self.pick.randrange(-x.dim(), x.dim())

    def flag(self) -> bool:
        return self.pick.random() < 0.5


Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _reductions(r: Random) -> Iterator[Call]:
    x = r.tensor(*r.shape())
    axis = r.axis(x)
    for function in (torch.sum, torch.mean, torch.prod, torch.amax, torch.logsumexp, torch.any, torch.argmax,
                     torch.max, torch.median, torch.cummax):  # fmt: skip
        keep = {} if function is torch.cummax else {"keepdim": r.flag()}
        yield function, (x, axis), keep
    yield torch.linalg.vector_norm, (x,), {"dim": axis}
    if x.shape[axis] > 1:  # PyTorch warns of others
        yield torch.var_mean, (x, axis), {}
        yield torch.std, (x, axis), {"keepdim": True}
    yield T.norm, (x,), {}
    yield torch.sum, (x > 0,), {}


def _along_an_axis(r: Random) -> Iterator[Call]:
    x = r.tensor(*r.shape())
    axis = r.axis(x)
    for function in (F.softmax, F.log_softmax, torch.cumsum, torch.sort, torch.argsort, F.normalize):
        yield function, (x,), {"dim": axis}
    yield torch.topk, (x, r.pick.randint(1, x.shape[axis]), axis), {}
    yield torch.flip, (x, (axis,)), {}
    yield torch.roll, (x, 2, axis), {}
    yield torch.cat, ([x, r.tensor(*x.shape), x], axis), {}
    yield torch.stack, ([x, x, r.tensor(*x.shape)], axis), {}
    yield torch.gather, (x, axis, torch.zeros_like(x, dtype=torch.int64)), {}
    yield torch.index_select, (x, axis, r.index(r.size(), below=x.shape[axis])), {}
    yield torch.diff, (x,), {"dim": axis}
    yield T.masked_fill, (x, r.tensor(*x.shape) > 0, 0.0), {}
    yield torch.repeat_interleave, (x, 3, axis), {}


def _products(r: Random) -> Iterator[Call]:
    n, m, k, b = r.size(), r.size(), r.size(), r.size()
    x, y = r.tensor(n, k), r.tensor(k, m)
    yield torch.mm, (x, y), {}
    yield operator.matmul, (x, y), {}
    yield torch.matmul, (r.tensor(b, n, k), y), {}
    yield torch.matmul, (r.tensor(b, n, k), r.tensor(b, k, m)), {}
    yield torch.matmul, (x, r.tensor(b, k, m)), {}
    yield torch.matmul, (r.tensor(2, b, n, k), r.tensor(k)), {}
    yield torch.bmm, (r.tensor(b, n, k), r.tensor(b, k, m)), {}
    yield torch.addmm, (r.tensor(m), x, y), {}
    yield F.linear, (r.tensor(b, n, k), r.tensor(m, k), r.tensor(m)), {}
    yield F.linear, (x, r.tensor(m, k)), {}
    yield torch.outer, (r.tensor(n), r.tensor(m)), {}
    yield torch.einsum, ("bij,jk->bki", r.tensor(b, n, k), y), {}
    yield F.embedding, (r.index(b, n, below=k), r.tensor(k, m)), {}
    query = r.tensor(2, 3, n, k)
    yield F.scaled_dot_product_attention, (query, r.tensor(2, 3, m, k), r.tensor(2, 3, m, b)), {}
    parts = [part.view(b, n, 2, m).transpose(1, 2) for part in r.tensor(b, n, 6 * m).contiguous().split(2 * m, 2)]
    yield F.scaled_dot_product_attention, tuple(parts), {"is_causal": r.flag()}


def _normalisations(r: Random) -> Iterator[Call]:
    n, c, h, w = r.size(), 4 * r.pick.randint(1, 8), r.size(), r.size()
    x = r.tensor(n, c, h, w)
    statistics = (r.ones(c), r.ones(c))
    if n * h * w > 1:
        yield F.batch_norm, (x, *statistics, r.ones(c), r.ones(c)), {"training": True}
    yield F.batch_norm, (x, *statistics), {"training": False}
    yield F.layer_norm, (x, (w,), r.ones(w), r.ones(w)), {}
    yield F.layer_norm, (x, (h, w)), {}
    yield F.rms_norm, (x, (w,)), {}
    yield F.group_norm, (x, 4, r.ones(c)), {}
    yield F.dropout, (x,), {"training": r.flag()}
    yield F.dropout, (x, 0.0), {}


def _images(r: Random) -> Iterator[Call]:
    n, c, h, w = r.size(), 4 * r.pick.randint(1, 4), r.pick.randint(4, 30), r.pick.randint(4, 30)
    x = r.tensor(n, c, h, w)
    yield F.max_pool2d, (x, 2), {"ceil_mode": r.flag()}
    yield F.max_pool2d, (x, 3, 2, 1), {"return_indices": True}
    yield F.avg_pool2d, (x, 2), {}
    yield F.adaptive_avg_pool2d, (x, (r.pick.randint(1, 9), 1)), {}
    yield F.interpolate, (x,), {"scale_factor": 2}
    yield F.interpolate, (x,), {"size": (h + 3, 5), "mode": "bilinear", "align_corners": False}
    yield F.pad, (x, (1, 2, 0, 3)), {"mode": r.pick.choice(["constant", "reflect", "replicate"])}
    yield F.pixel_shuffle, (x, 2), {}
    yield F.grid_sample, (x, r.tensor(n, 5, 11, 2)), {"align_corners": False}
    yield F.unfold, (x, 3), {}
    yield F.max_pool2d, (x[0], 2), {}


def _convolutions(r: Random) -> Iterator[Call]:
    groups = r.pick.choice([1, 1, 2, 4])
    n, into, out = r.size(), groups * r.pick.randint(1, 6), groups * r.pick.randint(1, 6)
    for axes, function in ((1, F.conv1d), (2, F.conv2d), (3, F.conv3d)):
        sizes = [r.pick.randint(7, 16) for _ in range(axes)]
        kernel = [r.pick.randint(1, 3) for _ in range(axes)]
        x, weight = r.tensor(n, into, *sizes), r.tensor(out, into // groups, *kernel)
        options: dict[str, Any] = {"groups": groups, "stride": r.pick.choice([1, 2, (3,) * axes])}
        options["padding"] = r.pick.choice([0, 1, [2] * axes])
        options["dilation"] = r.pick.choice([1, 1, 2])
        yield function, (x, weight), options
        yield function, (x, weight, r.ones(out)), {"groups": groups, "padding": "same"}
        yield function, (x.double(), weight.double()), {"groups": groups, "padding": "valid"}
        yield function, (x[0], weight), {"groups": groups}


def _losses(r: Random) -> Iterator[Call]:
    n, c = r.size(), r.size()
    x, y = r.tensor(n, c), r.tensor(n, c)
    target = r.index(n, below=c)
    pointwise = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits, F.binary_cross_entropy)
    for reduction in ("none", "mean", "sum"):
        for function in pointwise:
            yield function, (x, y), {"reduction": reduction}
        yield F.cross_entropy, (x, target), {"reduction": reduction}
        yield F.nll_loss, (x, target), {"reduction": reduction}
        for scores, labels in ((x, r.index(n, c, below=c)), (x[0], r.index(c, below=c))):
            yield F.multilabel_margin_loss, (scores, labels), {"reduction": reduction}
            yield F.multi_margin_loss, (scores, labels[..., 0]), {"reduction": reduction}
            yield F.multilabel_soft_margin_loss, (scores, scores), {"reduction": reduction}
        for function in (F.huber_loss, F.soft_margin_loss, F.poisson_nll_loss, F.hinge_embedding_loss):
            yield function, (x[0], y[0]), {"reduction": reduction}
        yield F.cross_entropy, (x[0], target[0]), {"reduction": reduction}
    yield F.cosine_similarity, (x, y), {}
    yield F.one_hot, (target, c), {}


def _indexing(r: Random) -> Iterator[Call]:
    x = r.tensor(*r.shape(3))
    first, second = r.index(5, below=x.shape[0]), r.index(2, 5, below=x.shape[1])
    for index in (first, (first,), (slice(None), second), (first, second), (Ellipsis, first % x.shape[-1]), (first, None),
                  (first, slice(None), r.index(1, below=x.shape[2])), 0, (slice(0, 2), Ellipsis), (None, 0)):  # fmt: skip
        yield operator.getitem, (x, index), {}


def _new_tensors(r: Random) -> Iterator[Call]:
    x = r.tensor(*r.shape())
    for function in (torch.zeros_like, torch.randn_like, torch.empty_like):
        yield function, (x,), {}
        yield function, (x,), {"dtype": torch.float64, "memory_format": torch.contiguous_format}
    yield torch.randint_like, (x, 3), {}
    yield torch.full_like, (x, 2.0), {"dtype": torch.int32}
    yield torch.randn, (r.size(), r.size()), {}
    yield torch.normal, (x, x), {}
    yield torch.eye, (r.size(), r.size()), {}
    yield torch.arange, (r.size(), 50, 0.7), {}
    yield torch.linspace, (0, 1, r.size()), {"dtype": torch.float64}
    yield torch.multinomial, (r.ones(r.size(), 9), 3), {}
    yield T.to, (x, torch.float16), {}
    yield T.clone, (x,), {}
    yield T.contiguous, (x,), {}


def _elementwise(r: Random) -> Iterator[Call]:
    shape = r.shape()
    x, y = r.tensor(*shape), r.tensor(*shape)
    smaller = r.tensor(*[1 if r.flag() else n for n in shape[r.pick.randint(0, len(shape) - 1) :]])
    for function in (torch.add, torch.maximum, torch.pow, torch.eq):
        yield function, (x, y), {}
        yield function, (x, smaller), {}
        yield function, (smaller, x), {}
    for unary in (torch.sin, F.relu, F.gelu, torch.isnan, torch.nan_to_num, F.hardtanh, T.double, T.bool, torch.neg):
        yield unary, (x,), {}
    yield torch.where, (x > 0, y, smaller), {}
    yield torch.lerp, (x, y, 0.5), {}
    yield torch.clamp, (x, 0, 1), {}
    yield operator.iadd, (y.clone(), smaller), {}


FAMILIES = (
    _reductions, _along_an_axis, _products, _normalisations, _images, _convolutions, _losses, _indexing, _new_tensors,
    _elementwise,
)  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.strip("_"))
def test_metadata_of_random_operands(family: Callable[[Random], Iterator[Call]], device: str) -> None:
    wrong = []
    for seed in range(ROUNDS):
        for function, args, kwargs in family(Random(seed, device)):
            wrong += [f"{function} {_text(args)} {kwargs}: {d}" for d in _differences(function, args, kwargs)]
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.strip("_"))
def test_metadata_of_random_operands_too_large_for_a_run(
    family: Callable[[Random], Iterator[Call]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where a run of contiguous operands needs shortened axes: with a limit that these operands are above."""
    monkeypatch.setattr(probes, "_LARGEST", 300)
    test_metadata_of_random_operands(family, "cpu")


def _differences(function: Callable[..., Any], args: Any, kwargs: Any) -> Iterator[str]:
    proxies: dict[int, TensorProxy] = {}
    found = metadata.result_of(
        function, _proxies(args, proxies), _proxies(kwargs, proxies), list(proxies.values()), True
    ).structure
    expected = function(*args, **kwargs)
    tensors = _flat(args) + _flat(list(kwargs.values()))
    for e, f in zip(_flat(expected), _flat(found), strict=True):
        if isinstance(f, SameTensor):
            if not any(e is t for t in tensors):
                yield "captured as an operand, is a new tensor"
        elif (f.meta if isinstance(f, View) else f) != meta_of(e):
            yield f"captured as {f}, strides {f.stride}, is {meta_of(e)}, strides {e.stride()}"


def _proxies(value: Any, proxies: dict[int, TensorProxy]) -> Any:
    if isinstance(value, T):
        return proxies.setdefault(id(value), TensorProxy(meta_of(value)))
    if type(value) in (list, tuple):
        return type(value)(_proxies(v, proxies) for v in value)
    return {k: _proxies(v, proxies) for k, v in value.items()} if type(value) is dict else value


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for element in value for leaf in _flat(element)]
    return [value] if isinstance(value, (T, TensorMeta, SameTensor, View)) else []


def _text(value: Any) -> str:
    if isinstance(value, T):
        return f"{tuple(value.shape)}@{value.stride()}"
    return f"({', '.join(map(_text, value))})" if type(value) in (list, tuple) else repr(value)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(lambda x: x.argmax(), torch.bool), (lambda x: x.argmin(0), torch.bool), (lambda x: x.trace(), torch.bool),
     (lambda x: F.max_pool1d(x, 2), torch.bool), (lambda x: F.pad(x[None], (1, 1), "reflect"), torch.bool),
     (lambda x: F.prelu(x, x[0, :1]), torch.bool), (lambda x: x.nansum(), torch.complex64),
     (lambda x: F.avg_pool3d(x[None, None], 1), torch.float16), (lambda x: F.avg_pool2d(x[None], 1), torch.int32)],
)  # fmt: skip
def test_types_that_an_operator_refuses(function: Callable[[T], Any], dtype: torch.dtype) -> None:
    """PyTorch's rules for tensors without data do not refuse them."""
    exact.check(function, torch.ones(3, 3).to(dtype))


def test_stand_ins_that_were_computed_hold_what_they_stand_for() -> None:
    """Memory as it was found may be what an operator refuses, and on a GPU that is the end of the process's work there."""
    meta = TensorMeta(torch.float32, (3, 4), (1, 3), torch.device("cpu"), requires_grad=True)
    garbage = torch.full((3, 4), torch.nan).t()  # what the allocator is likely to hand out next
    del garbage
    made = _like(torch.ones(4, 3).t(), meta, leaf=False)
    assert made.grad_fn is not None and made.stride() == (1, 3) and bool((made == 1).all())


@pytest.mark.gpu
def test_stand_ins_on_a_device_stay_without_data() -> None:
    meta = TensorMeta(torch.float32, (), (), torch.device("cuda", 0), requires_grad=True)
    made = _like(on_device(meta), meta, leaf=False)
    assert type(made) is OnDevice and made.grad_fn is not None
