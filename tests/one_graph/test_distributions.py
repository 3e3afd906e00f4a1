"""Distributions whose parameters are computed when they are asked for: sampling and checking them is one graph."""

import pytest
import torch
import torch.distributions as D

import quickfuse

KINDS = {
    "bernoulli": lambda x: D.Bernoulli(logits=x), "of probabilities": lambda x: D.Bernoulli(x.sigmoid()),
    "categorical": lambda x: D.Categorical(logits=x), "geometric": lambda x: D.Geometric(x.sigmoid()),
    "one hot": lambda x: D.OneHotCategorical(logits=x),
    "continuous": lambda x: D.ContinuousBernoulli(logits=x), "negative": lambda x: D.NegativeBinomial(3.0, logits=x),
}  # fmt: skip


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    """PyTorch's compiler turns them off for the whole process."""
    monkeypatch.setattr(D.Distribution, "_validate_args", True)


@pytest.mark.parametrize("kind", KINDS)
def test_one_graph(kind):
    def function(x):
        distribution = KINDS[kind](x)
        sample = distribution.sample()
        return sample, distribution.log_prob(sample), distribution.mean

    compiled = quickfuse.compile(function)
    for call in range(4):
        x = torch.randn(3, 4).requires_grad_(call == 3)
        results = []
        for called in (function, compiled):
            torch.manual_seed(call)
            results.append([t.nan_to_num() for t in called(x)])
        torch.testing.assert_close(*results)
        assert [t.requires_grad for t in results[0]] == [t.requires_grad for t in results[1]]
    assert compiled.graph_count == 2 and not compiled.breaks
    with pytest.raises(ValueError, match="invalid values"):
        compiled(torch.full((3, 4), torch.nan))


def test_a_check_that_gives_up_early():
    """That a covariance is symmetric is expected; where it is not, the program gets PyTorch's exception."""

    def function(mean, covariance):
        return D.MultivariateNormal(mean, covariance_matrix=covariance @ torch.eye(2)).log_prob(mean * 2)

    compiled = quickfuse.compile(function)
    spread, skewed = torch.tensor([[2.0, 0.5], [0.5, 1.0]]), torch.tensor([[2.0, 0.5], [0.0, 1.0]])
    for _ in range(3):
        mean = torch.randn(2)
        torch.testing.assert_close(compiled(mean, spread), function(mean, spread))
    assert compiled.graph_count == 1 and not compiled.breaks
    for _ in range(5):
        with pytest.raises(ValueError, match="PositiveDefinite") as raised:
            compiled(mean, skewed)
        with pytest.raises(ValueError, match="PositiveDefinite") as expected:
            function(mean, skewed)
        assert str(raised.value) == str(expected.value)
        torch.testing.assert_close(compiled(mean, spread), function(mean, spread))


DRAWN = {
    "beta": lambda w, x: D.Beta(w.exp(), x.exp()), "dirichlet": lambda w, x: D.Dirichlet((w + x).exp()),
    "binomial": lambda w, x: D.Binomial(5, logits=w + x), "cholesky": lambda w, x: D.LKJCholesky(3, (w + x).exp().sum()),
    "mixture": lambda w, x: D.MixtureSameFamily(D.Categorical(logits=w), D.Gamma(w.exp(), x.exp())),
}  # fmt: skip


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("shape", [(), (4,)], ids=["one", "several"])
def test_draws_with_gradients(kind, shape):
    """What is drawn by a function with gradients of its own that PyTorch has, or has no rule for shapes."""

    def function(w, x):
        distribution = DRAWN[kind](w, x)
        drawn = (distribution.rsample if distribution.has_rsample else distribution.sample)(shape)
        loss = distribution.log_prob(drawn).sum() + (drawn * 2).sum()
        loss.backward()
        return drawn.detach(), loss.detach()

    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    for call in range(3):
        results = []
        for called in (function, compiled):
            torch.manual_seed(call)
            w, x = torch.randn(2, 3, dtype=torch.float64)
            w.requires_grad_()
            results.append([*called(w, x), w.grad, torch.get_rng_state()])
        torch.testing.assert_close(*results)
    assert not compiled.breaks


def test_divergence_of_other_shapes():
    """PyTorch asks for the shape that two are broadcast to."""

    def function(a, b):
        one = D.MultivariateNormal(a, scale_tril=torch.eye(3))
        return D.kl_divergence(one, D.MultivariateNormal(b, scale_tril=2 * torch.eye(3)))

    compiled = quickfuse.compile(function)
    for a, b in ((4, 3), (3,)), ((4, 3), (2, 1, 3)):
        a, b = torch.randn(a), torch.randn(b)
        torch.testing.assert_close(compiled(a, b), function(a, b))
    assert not compiled.breaks
    for called in function, compiled:
        with pytest.raises(RuntimeError, match="must match"):
            called(torch.randn(4, 3), torch.randn(2, 3))
