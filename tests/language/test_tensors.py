"""Tensors as Python objects: attributes, methods, shape arithmetic, iteration, indexing, NumPy-like use."""

import math
import types
import warnings

import pytest
import torch
import torch.nn.functional as F

from language.harness import BACKENDS, case, check, names, t


@case((t(3, 4),), (t(4, 3),), (t(2, 3, 4),), (t(5),))
def attributes(x):
    y = x.mT * 2 if x.ndim > 1 else x.exp()
    facts = (
        x.shape, x.ndim, x.dtype, x.device, x.layout, x.requires_grad, x.is_leaf, x.grad, x.grad_fn, x.itemsize, x.nbytes,
        x.is_sparse, x.is_quantized, x.is_cuda,
    )  # fmt: skip
    return y + x.ndim, facts


@case((t(3, 4),), (t(4, 3),), (t(2, 5, seed=2),), graphs=1)
def shape_methods(x):
    n, m = x.size()
    y = x.reshape(m, n) * x.dim()
    return y + 1, x.size(0), x.size(-1), x.numel(), len(x), x.stride(), x.stride(1), x.is_contiguous(), y.element_size()


@case((t(2, 6),), (t(3, 6),), (t(2, 12),))
def shape_arithmetic(x):
    batch, width = x.shape
    heads = 2 if width < 10 else 3
    y = x.view(batch, heads, width // heads).transpose(1, 2)
    pad = (-width) % 8
    z = F.pad(x, (0, pad)) if pad else x
    return y * width**0.5, z.view(batch, -1, 4).sum(-1), math.ceil(width / 4), x.shape[1:] + (1,), x.shape == (batch, width)


@case((t(2, 3, 4),), (t(3, 2, 4),))
def shape_is_a_tuple(x):
    *lead, last = x.shape
    size = torch.Size([*lead, last // 2, 2])
    return x.view(size) + 1, tuple(x.shape), size.numel(), x.shape[::-1], list(x.shape), 4 in x.shape, x.shape.index(4)


@case((t(3, 4),), (t(3, 4, seed=1),))
def chains_of_methods(x):
    y = x.abs().clamp(min=0.1).log().mul(2).add(1).sigmoid().round(decimals=3)
    return y.sum(dim=-1, keepdim=True).expand_as(x).contiguous().t().flatten().unsqueeze(0).squeeze(), y.mean((0, 1))


@case((t(3, 4),), (t(5, 2),))
def reductions(x):
    values, indices = x.max(dim=1)
    result = x.min(0)
    whole = x.sum(), x.argmax(), x.norm(), (x > 0).any(1)
    return values + 1, indices, result.values, result.indices, x.prod(0), x.std(0), whole


@case((t(4, 4),), (t(4, 4, seed=1),))
def sorting_and_selecting(x):
    values, order = x.sort(dim=0, descending=True)
    top = x.topk(2, dim=1)
    rest = x.cumsum(0), x.median(), x.unique(sorted=True).shape[0], x.kthvalue(2)[0]
    return values * 2, order, top.values + 1, top.indices, rest


@case((t(4, 5),), (t(5, 6, seed=1),))
def basic_indexing(x):
    return x[1], x[-1, 2], x[1:3, ::2], x[..., 0], x[:, None], x[None, 0, ..., None], x[:][1:][0] + 1, x[()] * 2, x[0][1]


@case((t(4, 5), torch.tensor([0, 2])), (t(4, 5), torch.tensor([3, 3, 1])))
def index_by_tensors(x, k):
    a, b = x.index_select(1, k), x.gather(0, k[None])
    return x[k] + 1, x[:, k], x[k, k], x[k[0], 1:], x[k][:, [0, 1]], x[[0, 1], [1, 2]], a, b


@case((t(4, 5),), (t(4, 5, seed=1),))
def index_by_masks(x):
    mask = x > 0
    y = x.clone()
    y[mask] = 0.0
    y[~mask] *= 2
    return y, torch.where(mask, x, -x), x.masked_fill(mask, 1.0), mask.sum(), x * mask


@case((t(4, 5),), (t(4, 5, seed=1),), (-t(4, 5).abs(),))
def sizes_that_depend_on_values(x):
    positive = x[x > 0]
    rows = (x > 1).nonzero()
    return positive * 2, rows + 1, positive.shape, torch.masked_select(x, x < 0).sum(), x.unique()


@case((t(4, 5), t(5, seed=3)), (t(4, 5, seed=1), t(5, seed=4)))
def assignment_to_items(x, row):
    y = torch.zeros_like(x)
    y[0] = row
    y[1, 2:] = 3.0
    y[:, 0] += x[:, 1]
    y[torch.tensor([2, 3]), 1] = row[:2]
    y[..., -1] = y[..., 0] * 2
    x[0, 0] = 100.0
    return y, x + 1


@case((t(3, 2),), (t(2, 2),), (t(4, 3),))
def iteration(x):
    total = 0
    for k, row in enumerate(x):
        first, *_ = row
        total = total + first * k
    rows = [row * 2 for row in reversed(list(x))]
    a, b = x.unbind(1)[:2]
    return total, rows, a - b, [v.shape for v in x], len(list(zip(x, x)))


@case((t(6, 4),), (t(9, 4),))
def splitting_and_joining(x):
    parts = x.chunk(3)
    left, right = x.split([1, 3], dim=1)
    sums = torch.stack([left.sum(), right.sum()])
    return torch.cat(parts[::-1]) + 1, sums, torch.hstack((left, right)), [p * 2 for p in parts]


@case((3, 4), (2, 2), (4, 1))
def creation(n, m):
    a = torch.zeros(n, m) + torch.ones((n, 1)) * torch.arange(m)
    b = torch.full((n,), 2.5) + torch.eye(n)[0] - torch.linspace(0, 1, n)
    c = torch.tensor([[1.0, n], [m, 2]]) @ torch.tensor([1.0, 2.0])
    return a, b, c, torch.empty(0).sum(), torch.tensor(n) + 1, torch.arange(0, n, 0.5), a.new_zeros(2), torch.full_like(a, m)


@case((t(3, 4), torch.float64), (t(3, 4), torch.int32), (t(3, 4), torch.bfloat16))
def conversions(x, dtype):
    y = x.to(dtype)
    z = x.double() + x
    return y + 1, y.float() * 2, z, x.type(torch.float16), x.to(y), y.dtype.is_floating_point, x.long() + 1, x.bool()


@case((t(3, dtype=torch.complex64), 2.0), (t(3, dtype=torch.complex64) * 1j, 3.0))
def complex_numbers(z, n):
    w = z * (1 + 2j) + n
    return w.real + 1, w.imag * 2, w.abs(), w.conj() * w, torch.view_as_real(w), w.angle(), torch.complex(w.real, w.imag)


@case((t(3, 4), t(4, 5)), (t(2, 3, 4), t(4, 5)))
def einsum_and_products(x, w):
    y = torch.einsum("...i,ij->...j", x, w) + 1
    return y, torch.tensordot(x, w, 1), x @ w, torch.einsum("...i->...", x), F.linear(x, w.t())


@case((t(3, 1), t(4)), (t(2, 1, 3), t(5, 3)))
def broadcasting(x, y):
    a, b = torch.broadcast_tensors(x, y)
    return x + y, torch.maximum(x, y), a * 2, b.shape, torch.broadcast_shapes(x.shape, y.shape), x.expand(*a.shape) - b


@case((t(3, 4), 0.5), (t(3, 4), 2.0), (t(3, 4), -1.0))
def out_and_inplace_arguments(x, alpha):
    out = torch.empty(3, 4)
    y = torch.add(x, 1.0, alpha=alpha, out=out)
    torch.mul(out, 2, out=out)
    return y is out, out, torch.sin(x, out=torch.empty_like(x)) + 1


@case((t(2, 3),), (t(2, 3, seed=1),))
def constant_tensors_from_lists(x):
    weights = torch.tensor([0.1, 0.2, 0.7])
    table = torch.tensor([[1, 2], [3, 4]])
    mixed = torch.stack([x.sum(), torch.tensor(2.0), torch.as_tensor(3.0)])
    return x * weights, table.float() @ x[:, :2], mixed, torch.tensor(True) & (x > 0), torch.scalar_tensor(2.0) * x


@case((t(4, 4),), (t(4, 4, seed=1),))
def linear_algebra(x):
    spd = x @ x.t() + torch.eye(4)
    chol = torch.linalg.cholesky(spd)
    solved = torch.linalg.solve(spd, x)
    return chol * 2, solved, torch.linalg.inv(spd) + 1, torch.det(spd), torch.trace(spd), spd.diagonal() - 1


@case((t(8),), (t(8, seed=1),))
def special_functions_and_fft(x):
    y = torch.fft.rfft(x).abs() + 1
    return y, torch.special.erf(x) * 2, torch.logsumexp(x, 0), torch.atan2(x, x + 1), torch.lerp(x, -x, 0.3)


@case((t(2, 3),), (t(2, 3, seed=1),))
def tensors_compare_elementwise(x):
    y = (x > 0) & (x < 1) | (x == x.max())
    return y.float() + 1, x.eq(0), torch.equal(x, x.clone()), x.allclose(x + 1e-9), torch.isclose(x, x * 1.1), (x != x).any()


@case((t(3, 4), 0), (t(3, 4), 1), (t(3, 4), -1), (t(3, 4), 2))
def dimension_argument(x, dim):
    return x.softmax(dim) + 1, x.sum(dim, keepdim=True), torch.cat([x, x], dim=dim), x.unsqueeze(dim).shape


@case((t(2, 3, 4, 5),), (t(3, 2, 5, 4),))
def layout_and_memory_format(x):
    y = x.permute(0, 2, 3, 1)
    z = x.contiguous(memory_format=torch.channels_last) + 1
    last = z.is_contiguous(memory_format=torch.channels_last)
    return y * 2, y.is_contiguous(), z, last, y.contiguous().stride(), x.movedim(1, -1)


@case((t(3, 4),), (t(2, 2),))
def functions_of_the_torch_namespace(x):
    functions = [torch.sin, torch.nn.functional.relu, torch.special.expit, torch.Tensor.exp]
    y = torch.add(input=x, other=1), torch.clamp(x, min=-1, max=1)
    return [f(x) * 2 for f in functions], y, torch.numel(x), torch.is_tensor(x)


@case((t(3),), (t(3, seed=1),))
def user_attributes_on_tensors(x):
    y = x * 2
    y.tag = "mine"
    y.scale = 3.0
    z = y * y.scale
    return y, z, y.tag, hasattr(z, "tag"), getattr(z, "scale", None)


@case((t(3, 1, grad=True),), (t(2, 1, seed=1, grad=True),), graphs=1)
def new_of_a_size(x):
    made = x.new(x.shape).fill_(1), x.new(x.shape[:1]).zero_(), x.new(x.sum().shape).fill_(2), x.new((2, 3)), x.new([4, 5])
    return x * 2, [(tuple(y.shape), y.tolist()) for y in made] if not made[0].requires_grad else made


@case(graphs=1)
def checks_of_sizes(x):
    torch._check(x.shape[0] > 1, lambda: f"rows: {x.shape}")
    torch._check_is_size(x.shape[0], max=100)
    torch._check_value(x.dim() == 2)
    largest = torch.sym_max(*x.shape) + torch.sym_min(2, x.shape[0]) + torch.sym_sum([*x.shape])
    return x * torch.sym_int(x.shape[0] / 2) + torch.sym_float(x.shape[1]), largest, torch.sym_not(x.shape[0] > 2)


@case(graphs=1)
def classes_of_bound_methods(x):
    items = [1, 2]
    methods = (x.sin, x.norm, x.__len__, x.split, x.T.__add__, torch.nn.ReLU().forward)
    of_tensors = [type(method).__name__ for method in methods]
    return of_tensors, type(items.append), type(items.__len__), isinstance(x.norm, types.MethodType), x * 2


@case()
def class_of_the_storage(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x.storage_type(), x + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_tensors(name, backend):
    check(__file__, name, backend)
