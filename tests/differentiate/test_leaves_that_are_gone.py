"""Results with gradients to leaves that the compiled function made and does not hand out."""

import pytest
import torch

import quickfuse


def of_a_number(t, k):
    x = torch.tensor([k, 1.0, 2.0], requires_grad=True)
    return (x * t).sum()


def two_results(t, k):
    x = torch.zeros(3, requires_grad=True)
    return x * t, (x + t).sum()


def changed_as_data(t, k):
    x = torch.zeros(3, requires_grad=True)
    (g,) = torch.autograd.grad(((x - 1) ** 2).sum(), x)
    x.data += k * g
    return (x * 2).sum() * t


def copied(t, k):
    x = t.clone().requires_grad_()
    return (x * k).exp()


def beside_one_that_stays(t, k):
    x = torch.ones(3, requires_grad=True)
    return (x * t).sum(), (t * 2).sum()


@pytest.mark.parametrize("function", [of_a_number, two_results, changed_as_data, copied, beside_one_that_stays])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_agrees_with_eager(function, needs_grad):
    compiled = quickfuse.compile(function)
    for k in (0.1, 0.2, 0.3):
        t = torch.randn(3, requires_grad=needs_grad)
        found, expected = compiled(t, k), function(t, k)
        torch.testing.assert_close(found, expected)
        for results in (found, expected):
            results = results if isinstance(results, tuple) else (results,)
            assert all(r.requires_grad or function is beside_one_that_stays for r in results)
            sum(r.sum() for r in results).backward()
        assert not needs_grad or torch.isfinite(t.grad).all()
    assert not any(s.without_kernels for s in compiled.specialisations)
