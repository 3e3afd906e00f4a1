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
