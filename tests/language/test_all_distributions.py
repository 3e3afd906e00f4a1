"""Each of PyTorch's distributions and transforms: made inside, drawn from, and asked."""

import pytest
import torch
import torch.distributions as D
from torch.distributions import transforms as T

from language.harness import case, check, names, t

POSITIVE, PART, SIMPLEX = t(3, 4).exp(), t(3, 4).sigmoid() * 0.8 + 0.1, t(3, 4).softmax(-1)
MATRIX, HALF = torch.eye(3) * 2 + 0.1, torch.tensor(0.5)

DISTRIBUTIONS = {
    "bernoulli": (lambda p: D.Bernoulli(p), PART),
    "beta": (lambda p: D.Beta(p, p + 1), POSITIVE),
    "binomial": (lambda p: D.Binomial(5, p), PART),
    "categorical": (lambda p: D.Categorical(logits=p), t(3, 4)),
    "cauchy": (lambda p: D.Cauchy(p, p + 1), POSITIVE),
    "chi2": (lambda p: D.Chi2(p), POSITIVE),
    "continuous_bernoulli": (lambda p: D.ContinuousBernoulli(p), PART / 3),
    "dirichlet": (lambda p: D.Dirichlet(p), POSITIVE),
    "exponential": (lambda p: D.Exponential(p), POSITIVE),
    "fisher_snedecor": (lambda p: D.FisherSnedecor(p, p + 3), POSITIVE),
    "gamma": (lambda p: D.Gamma(p, p), POSITIVE),
    "geometric": (lambda p: D.Geometric(p), PART),
    "gumbel": (lambda p: D.Gumbel(p, p), POSITIVE),
    "half_cauchy": (lambda p: D.HalfCauchy(p), POSITIVE),
    "half_normal": (lambda p: D.HalfNormal(p), POSITIVE),
    "independent": (lambda p: D.Independent(D.Normal(p, p), 1), POSITIVE),
    "inverse_gamma": (lambda p: D.InverseGamma(p + 2, p), POSITIVE),
    "kumaraswamy": (lambda p: D.Kumaraswamy(p, p), POSITIVE),
    "laplace": (lambda p: D.Laplace(p, p), POSITIVE),
    "log_normal": (lambda p: D.LogNormal(p, p), POSITIVE),
    "logistic_normal": (lambda p: D.LogisticNormal(p, p), POSITIVE),
    "low_rank": (lambda p: D.LowRankMultivariateNormal(p[:, 0], p[:, 1:2], p[:, 2]), POSITIVE),
    "mixture": (lambda p: D.MixtureSameFamily(D.Categorical(p), D.Normal(p, p)), POSITIVE),
    "multinomial": (lambda p: D.Multinomial(5, p), SIMPLEX),
    "multivariate_normal": (lambda p: D.MultivariateNormal(torch.zeros(3), scale_tril=p.tril()), MATRIX),
    "negative_binomial": (lambda p: D.NegativeBinomial(5, p), PART),
    "normal": (lambda p: D.Normal(p, p), POSITIVE),
    "one_hot": (lambda p: D.OneHotCategorical(p), SIMPLEX),
    "straight_through": (lambda p: D.OneHotCategoricalStraightThrough(p), SIMPLEX),
    "pareto": (lambda p: D.Pareto(p, p + 3), POSITIVE),
    "poisson": (lambda p: D.Poisson(p), POSITIVE),
    "relaxed_bernoulli": (lambda p: D.RelaxedBernoulli(HALF, p), PART),
    "relaxed_one_hot": (lambda p: D.RelaxedOneHotCategorical(HALF, p), SIMPLEX),
    "student": (lambda p: D.StudentT(p + 3), POSITIVE),
    "uniform": (lambda p: D.Uniform(p, p + 1), POSITIVE),
    "weibull": (lambda p: D.Weibull(p, p), POSITIVE),
}  # fmt: skip

TRANSFORMS = {
    "abs": T.AbsTransform, "affine": lambda: T.AffineTransform(1.0, 2.0), "exp": T.ExpTransform,
    "softplus": T.SoftplusTransform,
    "compose": lambda: T.ComposeTransform([T.ExpTransform(), T.AffineTransform(0.0, 2.0)]), "sigmoid": T.SigmoidTransform,
    "independent": lambda: T.IndependentTransform(T.ExpTransform(), 1), "softmax": T.SoftmaxTransform,
    "reshape": lambda: T.ReshapeTransform((4,), (2, 2)), "stick_breaking": T.StickBreakingTransform, "tanh": T.TanhTransform,
    "cat": lambda: T.CatTransform([T.ExpTransform(), T.SigmoidTransform()], dim=1, lengths=[2, 2]),
    "stack": lambda: T.StackTransform([T.ExpTransform()] * 4, dim=1), "cached": lambda: T.ExpTransform(cache_size=1),
}  # fmt: skip


def _asked(distribution, *questions):
    answers = []
    for question in questions:
        try:
            answers.append(question(distribution))
        except NotImplementedError:
            answers.append("not implemented")
    return answers


def _register(name, make, parameters):
    def program(p):
        made = make(p)
        drawn = made.rsample() if made.has_rsample else made.sample()
        asked = _asked(made, lambda d: d.mean, lambda d: d.variance, lambda d: d.entropy(), lambda d: d.cdf(drawn.detach()))
        return drawn, made.log_prob(drawn.detach()), asked, made.batch_shape, made.event_shape

    program.__name__ = name
    steps = ((parameters,), (parameters * 0.99,), (parameters.clone().requires_grad_(),))
    case(*(steps if name != "multinomial" else steps[:2]))(program)


def _register_transform(name, make):
    outside = make()

    def program(x):
        inside = make()
        y = inside(x)
        jacobians = _asked(inside, lambda part: part.log_abs_det_jacobian(x, y), lambda part: part.sign)
        return y, inside.inv(y), jacobians, inside.codomain.check(y), outside(x), outside.inv(outside(x)), inside.bijective

    program.__name__ = f"transform_{name}"
    case((t(3, 4),), (t(3, 4, seed=1),), (t(3, 4, grad=True),), steady="later")(program)


for _name, _of in DISTRIBUTIONS.items():
    _register(_name, *_of)
for _name, _make in TRANSFORMS.items():
    _register_transform(_name, _make)


@pytest.mark.parametrize("name", names(globals()))
def test_all_distributions(name):
    check(__file__, name, "quickfuse")
