"""Functions of tensors: gradients of outputs of all kinds, with respect to inputs of all kinds, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from differentiate.twins import check, compiled, leaf
from quickfuse.bench import operators


def arithmetic(x, w):
    return ((x * w + 1).sin() / (w.exp() + 2)).sum(-1)


def two_outputs(x, w):
    return (x * w).relu(), (x + w).tanh()


def not_all_inputs(x, w, plain):
    return x * plain, plain * 2, w.detach() * x


def an_integer_output(x):
    return (x * 2).sum(), x.argmax(), (x > 0)


def detached_inside(x):
    y = x.sin()
    return y.detach() * x, y


def no_grad_inside(x):
    with torch.no_grad():
        scale = x.abs().max() + 1
    y = x / scale
    with torch.no_grad():
        z = y * 2
    return y, z


def in_place_on_intermediates(x):
    y = x * 2
    y.add_(1)
    y.relu_()
    z = y.clone()
    z[:, 0] = 1.5
    z[:, 1].mul_(x[:, 1])
    z[0] += x[1]
    return z.sum(), y


def in_place_through_views(x):
    y = torch.zeros(3, 4)
    y.t()[1].copy_(x[0, :3])
    y.view(-1)[5:7] = x.sum()
    y.unsqueeze(0)[0, 2].add_(x[1])
    a, b = y.detach().split(2, 1)
    a.mul_(2)
    y.detach().unbind(0)[2].sub_(1)
    y.diagonal().add_(x[2, :3])
    return y * 1


def copies(x, w):
    y = torch.empty_like(x)
    y.copy_(w)
    z = torch.empty(2, 3, 4)
    z.copy_(x)
    return y, z, torch.zeros(3, 4).copy_(x.t().t())


def same_output_twice(x):
    y = x.sin()
    return y, y, x


def view_of_an_output(x):
    y = x.sin()
    return y, y.view(-1), y.t(), y[0]


def view_of_an_input(x, w):
    return x.view(-1), x[1:] , w.t(), (x * w).sum()


def views_only_of_a_hidden_tensor(x):
    a, b = (x * 2).chunk(2, 1)
    return a, b


def transposed_output(x):
    return (x * 2).t()


def slice_of_a_hidden_tensor(x):
    return (x * 2)[:, 1:3]


def sum_of_all(x):
    return x.sum()


def passes_the_gradient_on(x, w):
    return x + w, x.view(-1) + 1


def reductions(x):
    return x.mean(0), x.std(1), x.softmax(-1), x.logsumexp(0), x.amax(1), x.var(), x.norm()


def matrix_products(x, w):
    return x @ w.t(), F.linear(x, w), torch.bmm(x[None], w.t()[None]), x.t().mv(w[:, 0])


def indexing(x, index):
    return x[index], x.gather(1, index[:, None] % 4), x.index_select(0, index), F.embedding(index, x)


def where_and_masks(x, w):
    return torch.where(x > 0, x, w), x.masked_fill(w > 0, 0.0), x.clamp(-0.5, 0.5)


def cat_and_stack(x, w):
    return torch.cat([x, w, x], 1).sin(), torch.stack([x, w]), F.pad(x, (1, 2))


def losses(x, w, index):
    return (
        F.mse_loss(x, w), F.cross_entropy(x, index), F.smooth_l1_loss(x, w.detach()),
        F.binary_cross_entropy_with_logits(x, w.sigmoid()), F.kl_div(x.log_softmax(1), w.softmax(1), reduction="batchmean"),
    )  # fmt: skip


def conversions(x):
    return x.double().sin(), x.bfloat16() * 2, x.to(torch.float64) + x


def constants(x):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.ones(4) * torch.arange(4) + torch.tensor(2.0)


def gelu_and_friends(x):
    return F.gelu(x), F.silu(x), F.softplus(x), F.elu(x), F.leaky_relu(x), F.hardswish(x), F.logsigmoid(x)


def normalised(x, w):
    return F.layer_norm(x, (4,), w[0], w[1]), F.rms_norm(x, (4,), w[0]), F.normalize(x), F.group_norm(x, 2)


def no_gradient_for_an_output(x):
    return x.sin(), torch.ones(3) * 2


def expanded(x):
    return x.unsqueeze(0).expand(5, 3, 4) * 2, x.repeat(2, 1), x.flip(0), x.roll(1, 0)


x, w = leaf(3, 4), leaf(3, 4, seed=1)
index = torch.tensor([2, 0, 1])
plain = leaf(3, 4, seed=2, grad=False)
PROGRAMS = [
    (arithmetic, x, w), (two_outputs, x, w), (not_all_inputs, x, w, plain), (an_integer_output, x), (detached_inside, x),
    (no_grad_inside, x), (in_place_on_intermediates, x), (in_place_through_views, x), (copies, x, w),
    (same_output_twice, x), (view_of_an_output, x), (view_of_an_input, x, w), (views_only_of_a_hidden_tensor, x),
    (transposed_output, x), (slice_of_a_hidden_tensor, x), (sum_of_all, x), (passes_the_gradient_on, x, w), (reductions, x),
    (matrix_products, x, w), (indexing, x, index), (where_and_masks, x, w), (cat_and_stack, x, w), (losses, x, w, index),
    (conversions, x), (constants, x), (gelu_and_friends, x), (normalised, x, w), (no_gradient_for_an_output, x),
    (expanded, x),
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_program(program) -> None:
    function, *args = program
    fresh = [leaf(*a.shape, seed=7 + k, grad=a.requires_grad) if a.is_floating_point() else a for k, a in enumerate(args)]
    check(function, tuple(args), tuple(fresh))


@pytest.mark.parametrize("name", operators.OPERATORS)
def test_measured_operators_are_kernels_forward_and_backward(name, caplog) -> None:
    operator = operators.OPERATORS[name]
    args = operator.operands(operator.shapes[0])
    leaves = [a.requires_grad_() for a in args if a.is_floating_point()]
    with caplog.at_level("INFO", logger="quickfuse"):
        result = compiled(operator.function)(*args)
        assert "Joined" in type(result.grad_fn).__name__
        torch.testing.assert_close(
            torch.autograd.grad(result.sum(), leaves), torch.autograd.grad(operator.function(*args).sum(), leaves),
            rtol=1e-4, atol=1e-4,
        )  # fmt: skip
    assert "operator by operator" not in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_maximum_of_what_a_norm_gave(dtype: torch.dtype) -> None:
    """Where the maximum was is found by comparing for equality: its operand must not be computed again otherwise."""
    x = torch.randn(4, 6, 4, 8, dtype=dtype)
    w = torch.rand(6, dtype=dtype)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        largest = F.instance_norm(x, weight=w).amax((2, 3))
        return largest.square().sum() + F.batch_norm(x, None, None, w, training=True).amin()

    gradients = []
    for function in (loss, quickfuse.compile(loss)):
        inputs = [t.clone().requires_grad_() for t in (x, w)]
        function(*inputs).backward()
        gradients.append([t.grad for t in inputs])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_random_numbers_that_nothing_uses_are_drawn() -> None:
    """What is drawn after them is what eager draws."""

    def unused(x: torch.Tensor) -> torch.Tensor:
        F.dropout(x, 0.5)
        return F.dropout(x * 2, 0.5)

    x = torch.randn(4, 4, requires_grad=True)
    results = []
    for function in (unused, quickfuse.compile(unused)):
        torch.manual_seed(0)
        results.append((function(x), torch.rand(3)))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(
    "mask",
    [
        torch.tensor([False, False, True]).expand(3, 3), torch.tensor([False, True, False, False, True]).unfold(0, 3, 1),
        torch.tensor([[False, True, True, False]] * 3)[:, 1:2].expand(3, 3), torch.ones(1, dtype=torch.bool).expand(3, 3),
    ],
    ids=["a row", "windows", "a column", "one element"],
)  # fmt: skip
def test_a_copy_of_elements_that_share_memory(mask: torch.Tensor) -> None:
    """Forward keeps a copy of a mask that eager does not keep."""

    def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        number = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(mask, 0.5)
        return (x * number).sin() * number.exp()

    check(masked, (leaf(2, 3, 3), mask))
