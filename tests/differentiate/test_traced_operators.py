"""Operators that a trace for gradients has to see through: views in place, several operands written to, lazy conjugation,
results that only a run tells about. Against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from differentiate.twins import check, compiled, joined, leaf
from quickfuse.differentiate import shapes


def views_in_place(x):
    y = x.sin()
    y.t_().unsqueeze_(0)
    y.squeeze_(0).transpose_(0, 1)
    y.mul_(2)
    return y, y.cos()


def a_view_in_place_of_a_view(x):
    y = (x * 2)[1:]
    y.unsqueeze_(0)
    y.add_(1)
    return y.sum(), y * x[:2]


def vectors_and_matrices(x):
    return x[0] @ x.t(), x @ x[1], x[0] @ x[1]


def quantiles(x):
    return x.quantile(0.3, dim=0), x.nanquantile(torch.tensor([0.2, 0.9]), dim=1), x.quantile(0.5)


def into_out(x, w):
    with torch.no_grad():
        product = torch.mm(x, w.t(), out=torch.empty(3, 3))
    return product @ x


def views_of_a_hidden_tensor(x):
    y = x * 2
    return y[0], y[1:].t(), x.sin()


def conjugated(x):
    c = torch.complex(x, x.cos())
    return torch.view_as_real(c.conj().resolve_conj()), (c * c.conj()).real, c.conj().imag * 2, c.conj().real + 1, c.mH.abs()


def conjugated_outputs(x):
    c = torch.complex(x, x.cos())
    return c.conj(), c.conj()[0].mul(2).abs()


def spectrum(x):
    c = torch.fft.rfft(x)
    c = c * torch.complex(x, -x)[:, :3]
    return torch.fft.irfft(c, n=4), torch.fft.fft2(x).abs(), torch.fft.ifft(x), torch.polar(x, x * 2).real


def a_complex_filter(x, w):
    return torch.fft.irfft(torch.fft.rfft(x) * w, n=4)


def frames(x):
    spectrum = torch.stft(x.reshape(-1), 4, 2, window=torch.hann_window(4), return_complex=True)
    return spectrum.abs(), x.reshape(-1).unfold(0, 4, 3) * 2


def options_that_are_none(x):
    return torch.div(x, x.exp(), rounding_mode=None), (x * 2).div_(x.exp(), rounding_mode=None), x.sort(stable=None).values


def covariance(x):
    return x.cov(), x.corrcoef()


def margins(x, index):
    return F.multi_margin_loss(x, index), F.multilabel_margin_loss(x[:, :3], index[None].expand(3, 3))


def bags(x, index):
    return F.embedding_bag(index[None], x, mode="sum"), F.embedding_bag(index, x, torch.tensor([0, 2]), mode="mean")


def alignments(x):
    return F.ctc_loss(x.log_softmax(1)[:, None], torch.tensor([[1, 2]]), (3,), (2,))


def noise(x):
    return F.rrelu(x, training=True), torch.bernoulli(x.detach().sigmoid()) * x


def group_norm_as_aten(x):
    return torch.native_group_norm(x, None, None, 3, 4, 1, 2, 1e-5)[0]


def batch_norm_as_aten(x, mean, var):
    return torch._native_batch_norm_legit(x, None, None, mean, var, True, 0.1, 1e-5)[0].sin()


x, index = leaf(3, 4), torch.tensor([2, 0, 1])
PROGRAMS = [
    (views_in_place, x), (a_view_in_place_of_a_view, x), (vectors_and_matrices, x), (quantiles, x),
    (into_out, x, leaf(3, 4, seed=1)),
    (views_of_a_hidden_tensor, x), (conjugated, x), (conjugated_outputs, x), (spectrum, x),
    (a_complex_filter, x, leaf(3, 3, dtype=torch.complex64)), (frames, x), (covariance, x), (options_that_are_none, x),
    (margins, x, index), (bags, x, index),
    (alignments, x), (noise, x), (group_norm_as_aten, x), (batch_norm_as_aten, x, torch.zeros(4), torch.ones(4)),
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_program(program) -> None:
    function, *args = program
    check(function, tuple(args), tuple(args))


@pytest.mark.parametrize("create_graph", [False, True])
def test_changes_of_views_of_a_hidden_tensor(create_graph) -> None:
    found = []
    for run in (views_of_a_hidden_tensor, compiled(views_of_a_hidden_tensor)):
        mine = leaf(3, 4)
        first, second, third = run(mine)
        assert first._base is second._base and first._base is not None
        first.mul_(3)
        second.add_(first[:, None][:4])
        (gradient,) = torch.autograd.grad((second.sin() * third.sum()).sum(), mine, create_graph=create_graph)
        found.append((first, second, gradient))
        if create_graph:
            found[-1] += torch.autograd.grad(gradient.square().sum(), mine)
    torch.testing.assert_close(found[1], found[0])


INTO_OUT = {
    "eye": lambda out: torch.eye(3, out=out), "zeros": lambda out: torch.zeros(3, 3, out=out),
    "full": lambda out: torch.full((3, 3), 2, out=out), "linspace": lambda out: torch.linspace(0, 3, 3, out=out[1]),
    "logspace": lambda out: torch.logspace(0, 1, 3, out=out[:, 1]), "rand": lambda out: torch.rand(3, 3, out=out),
    "randint": lambda out: torch.randint(0, 5, (3, 3), out=out), "randperm": lambda out: torch.randperm(3, out=out[0]),
}  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", INTO_OUT)
def test_new_tensors_into_out(name, dtype, transposed) -> None:
    """As Shampoo makes its matrices in the first step. What is drawn into other memory is drawn in its order."""

    def step(w):
        out = torch.zeros(3, 3, dtype=dtype)
        out = out.t() if transposed else out
        INTO_OUT[name](out)
        (w * out).sum().backward()
        return out

    twin = compiled(step)
    found = []
    for run in (step, twin):
        torch.manual_seed(0)
        w = leaf(3, 3)
        found.append((run(w), w.grad, torch.get_rng_state()))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert joined(twin) or transposed and name.startswith("rand")


def test_conjugated_outputs_share_memory() -> None:
    def function(x):
        c = torch.complex(x, x.cos())
        return c, c.conj()

    twin = compiled(function)
    c, conjugate = twin(leaf(3))
    assert conjugate.is_conj() and conjugate._base is c
    only = compiled(lambda x: torch.complex(x, x).conj())(leaf(3))
    assert only.is_conj() and only.requires_grad


def test_a_change_of_conjugated_memory() -> None:
    def function(x):
        c = torch.complex(x, x.cos())
        d = c.conj()
        c.mul_(2)
        return d.imag

    check(function, (x,), fallback=True)


def test_shapes_that_depend_on_contents_stay_with_pytorch() -> None:
    def function(x, targets):
        return F.ctc_loss(x.log_softmax(-1), targets, torch.tensor([3]), torch.tensor([2])).sin() * x.sum()

    check(function, (leaf(3, 1, 4), torch.tensor([[1, 2]])))


def test_numbers_that_formulas_compute_from() -> None:
    def function(x, w, rate):
        return x.lerp(w, rate), (x * w).clamp(-rate, rate), torch.add(x, w, alpha=rate)

    other = leaf(3, 4, seed=1)
    twin = check(function, *[(x, other, rate) for rate in (0.3, 0.75, 0.0, 1.5)])
    assert len(twin.specialisations) == 1


def test_random_numbers_in_the_order_of_memory() -> None:
    def function(x):
        y = torch.empty(6, 4, 16).transpose(0, 1)
        noise = torch.empty(4, 16, 6).permute(0, 2, 1).uniform_()
        return F.dropout(x.transpose(0, 1) * 1.5, 0.3), F.dropout(x[:, None].expand(3, 5, 4), 0.3), y.bernoulli_(0.4) * noise

    check(function, (leaf(3, 4),))


def test_an_encoder_layer_with_dropout() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    check(lambda x: layer(x), (leaf(4, 6, 16),), atol=1e-4, rtol=1e-4)


def test_values_assigned_through_a_mask() -> None:
    def function(x, token, mask):
        y, z = x * 2, x.cos()
        y[mask] = token
        z[mask[:, 0]] = token[:1]
        y[~mask.any(1)] = token.sum()
        return y.sin(), z

    tokens = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) > 0.5
    check(function, (leaf(4, 6, 3), leaf(3, seed=1), tokens), (leaf(4, 6, 3), leaf(3, seed=1), ~tokens))


def test_different_values_assigned_through_a_mask() -> None:
    def function(x, values, mask):
        y = x * 2
        y[mask] = values
        return y.sin()

    mask = torch.tensor([[True, False, True], [False, True, False]])
    check(function, (leaf(2, 3), leaf(3, seed=1), mask), fallback=True)
    check(function, (leaf(2, 3, 3), leaf(3, 3, seed=1), mask), fallback=True)
    check(function, (leaf(2, 3, 3), leaf(3, seed=1), mask))
    check(function, (leaf(2, 3, 3), leaf(1, 3, seed=1), mask), fallback=True)


SOLVERS = {
    "cholesky": torch.linalg.cholesky, "inv": torch.linalg.inv, "inverse": torch.inverse,
    "solve": lambda a: torch.linalg.solve(a, a), "lu_factor": lambda a: torch.linalg.lu_factor(a)[0],
    "tensorinv": lambda a: torch.linalg.tensorinv(a, ind=1), "matrix_power": lambda a: torch.linalg.matrix_power(a, -2),
}  # fmt: skip


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_what_cannot_be_solved_raises(solver, batch) -> None:
    if batch and solver is SOLVERS["tensorinv"]:
        pytest.skip("takes one matrix")

    def function(a):
        with torch.no_grad():
            calls.add_(1)
        return solver(a * 2) + 1

    calls = torch.zeros(())
    check(lambda a: solver(a * 2) + 1, ((leaf(*batch, 3, 3).detach() * 0.1 + 2 * torch.eye(3)).requires_grad_(),))
    singular = torch.eye(3).repeat(*batch, 1, 1)
    singular[(*[1 for _ in batch], 2, 2)] = 0
    texts = []
    for run in (function, compiled(function)):
        with pytest.raises(RuntimeError) as raised:
            run(singular.clone().requires_grad_())
        texts.append((raised.type, str(raised.value)))
    assert texts[0] == texts[1] and calls == 2


@pytest.mark.parametrize("convolution", [F.conv2d, F.conv_transpose2d])
def test_a_convolution_whose_operands_do_not_fit_raises(convolution) -> None:
    """Where that is seen when gradients are traced: with numbers that are no plain ones."""

    def function(x, w):
        return convolution((x % 3).reshape(-1)[:48].reshape(1, 3, 4, 4).to(torch.complex64), w)

    for weight in (leaf(3, 3, 2, 2, dtype=torch.complex64), leaf(2, 2, 2, 2, dtype=torch.complex64)):
        if weight.shape[0] == 3:
            check(function, (leaf(50), weight), fallback=True)
            continue
        with pytest.raises(RuntimeError, match="to have 2 channels, but got 3 channels instead"):
            compiled(function)(leaf(50), weight)


ACTIVATIONS = {
    "leaky_relu": lambda x, n: F.leaky_relu(x * 2, n, inplace=True), "elu": lambda x, n: F.elu(x * 2, n, inplace=True),
    "celu": lambda x, n: F.celu(x * 2, n, inplace=True), "rrelu": lambda x, n: F.rrelu(x * 2, n, n, inplace=True),
    "not in place": lambda x, n: F.leaky_relu(x * 2, n) + F.elu(x, n),
}  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_slopes_for_which_gradients_of_a_change_in_place_raise(activation, inside) -> None:
    def function(x, n):
        loss = activation(x, n).sum()
        if inside:
            loss.backward()
        return loss

    twin = compiled(function)
    for seed, slope in enumerate([0.1, 0.2, 0.3, -0.2, 0.4, -0.3, -0.0]):
        found = []
        for run in (function, twin):
            x = leaf(3, 4, seed=seed)
            try:
                loss = run(x, slope)
                if not inside:
                    loss.backward()
                found.append((loss.detach(), x.grad))
            except RuntimeError as error:
                found.append((str(error), x.grad))
        assert type(found[0][0]) is type(found[1][0]), (slope, found)
        torch.testing.assert_close(found[1][1], found[0][1])


def test_checks_in_backward():
    """The gradient of `eigvals` solves equations, and raises where they have no solution: that is no part of forward."""
    x = torch.randn(5, 5, requires_grad=True)
    results = []
    for function in (torch.linalg.eigvals, quickfuse.compile(lambda x: torch.linalg.eigvals(x))):
        values = function(x)
        results.append((values, *torch.autograd.grad(values, x, torch.ones_like(values))))
    torch.testing.assert_close(*results)


OVERLAPPING = {
    "rows": lambda y: y[1:].add_(y[:-1]),
    "columns": lambda y: y[:, 1:].mul_(y[:, :-1]),
    "an element": lambda y: y.mul_(y[0, 0]),
    "a copy": lambda y: y[1:].copy_(y[:-1]),
    "the same": lambda y: y[1:].add_(y[1:]),
    "a transposed view": lambda y: y[:2, :2].add_(y[:2, :2].t()),
    "apart": lambda y: y[1:, 0].add_(y[:-1, 1]),
    "one row": lambda y: y[0].sub_(y[2]),
}


@pytest.mark.parametrize("name", OVERLAPPING)
@pytest.mark.parametrize("given", [False, True])
def test_changes_of_what_an_operand_overlaps(name, given):
    """Which eager refuses, or garbles in its own way."""

    def f(x, w):
        y = x if given else x * 2
        OVERLAPPING[name](y)
        return y * 1, w.sin()

    def outcome(called):
        torch.manual_seed(0)
        found = []
        for _ in range(2):
            x = torch.randn(3, 4)
            try:
                found.append([t.tolist() for t in called(x, leaf(3))])
            except RuntimeError as error:
                found.append(str(error))
        return found

    expected, got = outcome(f), outcome(quickfuse.compile(f))
    assert all(a == b if isinstance(a, str) else torch.allclose(*map(torch.tensor, (a[0], b[0])))
               for a, b in zip(expected, got, strict=True))  # fmt: skip


library = torch.library.Library("quickfuse_traced_operators", "DEF")
library.define("triple(Tensor x) -> Tensor")
library.impl("triple", lambda x: 3 * x, "CPU")
library.impl("triple", torch.empty_like, "Meta")
library.define("scaled(Tensor x, float by) -> (Tensor, Tensor)")
library.impl("scaled", lambda x, by: (x * by, x.cos()), "CompositeExplicitAutograd")


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
def test_operators_without_a_formula() -> None:
    """Autograd looks into their kernels, which a graph of formulas does not have."""
    own = torch.ops.quickfuse_traced_operators

    def function(x, y):
        scaled, cosine = own.scaled(own.triple(x.sin()), 2.5)
        return scaled.exp() * cosine, own.triple.default(y) * x.detach()

    check(function, (leaf(3), leaf(3, grad=False)), (leaf(3, seed=1), leaf(3, seed=2)), fallback=True)


def test_a_complex_number_as_a_factor() -> None:
    """It is conjugated for the gradient."""

    def step(x):
        w.grad = None
        z = torch.complex(x @ w, 0.5 * (x @ w))
        y = (z * z.conj() * torch.exp(1j * z.angle()) * (2 - 1j)).real + (z / (1 + 2j)).abs()
        y.square().mean().backward()
        return y.detach()

    found = []
    for function in (step, made := quickfuse.compile(step)):
        torch.manual_seed(0)
        w = torch.randn(4, 3, requires_grad=True)
        for _ in range(2):
            found.append((function(torch.randn(5, 4)), w.grad))
    torch.testing.assert_close(found[:2], found[2:])
    assert not any(s.without_kernels or s.segment.in_parts for s in made.specialisations)


def test_no_operator_is_asked_with_lengths_that_do_not_add_up(monkeypatch):
    """What autograd calls for itself trusts its operands: five lengths of one for four rows overran memory."""
    asked = []

    def run(function, args, kwargs, make):
        if "segment_reduce_backward" in function._schema.name:
            asked.append((len(make(args[2])), int(make(kwargs["lengths"]).sum())))
        return ran(function, args, kwargs, make)

    ran = shapes._run
    monkeypatch.setattr(shapes, "_run", run)
    lengths = torch.tensor([1, 0, 2, 0, 1])

    def step(x):
        total = torch.segment_reduce(x.sin(), "sum", lengths=lengths, axis=0)
        return torch.autograd.grad((total * total).sum(), x)[0]

    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(compiled(step)(x), step(x))
    assert asked and all(total <= rows for rows, total in asked)
