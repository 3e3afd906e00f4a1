"""PyTorch's masks for attention: tensors of a class that says in Python what attention does with them."""

import pytest
import torch
from torch.nn.attention.bias import CausalBias, CausalVariant, causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention

import quickfuse


def operands(keys, **options):
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 8, **options) for n in (4, keys, keys)]


@pytest.mark.parametrize("keys", [4, 6])
@pytest.mark.parametrize("mask_of", [causal_upper_left, causal_lower_right])
def test_made_inside(mask_of, keys):
    def f(q, k, v):
        return scaled_dot_product_attention(q * 2, k, v, attn_mask=mask_of(4, k.shape[2])).sin()

    compiled = quickfuse.compile(f, fullgraph=True)
    for gradients in (False, True):
        given, others = [operands(keys, requires_grad=gradients) for _ in range(2)]
        wanted, found = f(*given), compiled(*others)
        torch.testing.assert_close(found, wanted)
        if gradients:
            wanted.sum().backward()
            found.sum().backward()
            for one, other in zip(given, others, strict=True):
                torch.testing.assert_close(other.grad, one.grad)


@pytest.mark.parametrize("variant", CausalVariant)
def test_from_outside(variant):
    def f(mask, q, k, v):
        return scaled_dot_product_attention(q, k, v, mask, scale=0.5) + mask.seq_len_q

    given, compiled = operands(6), quickfuse.compile(f, fullgraph=True)
    mask = CausalBias(variant, 4, 6)
    torch.testing.assert_close(compiled(mask, *given), f(mask, *given))


def test_that_outlives_the_graph():
    def f(x):
        return causal_lower_right(2, 3), x * 2

    found, x = quickfuse.compile(f)(torch.ones(3))
    assert type(found) is CausalBias and (found.variant, found.seq_len_q) == (CausalVariant.LOWER_RIGHT, 2)
    assert found._materialize().equal(causal_lower_right(2, 3)._materialize()) and x.tolist() == [2.0] * 3


def test_a_mask_together_with_is_causal_is_refused():
    def f(q, k, v):
        return scaled_dot_product_attention(q, k, v, causal_upper_left(4, 6), is_causal=True)

    with pytest.raises(ValueError, match="should not be used with causal"):
        quickfuse.compile(f)(*operands(6))


class Named(torch.Tensor):
    """What the user's own class does: sizes, attributes, and a text of its own."""

    def __init__(self, *sizes):
        super().__init__()
        self.label = "named"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.add:
            return torch.mul(*args[:1], 3)
        return super().__torch_function__(func, types, args, kwargs)

    def __repr__(self):
        return "a named one"


def test_the_users_own_class():
    def f(x):
        made = Named(2, 3)
        return torch.add(x, made), made.label, made

    def text(x, made):
        return x * 2, str(made), f"{made}", repr(made)

    compiled, x = quickfuse.compile(f, fullgraph=True), torch.ones(3)
    found = compiled(x)
    assert str(found) == str(f(x)) and type(found[2]) is Named and found[2].shape == (2, 3)
    named = Named(2, 3)
    assert str(quickfuse.compile(text)(x, named)) == str(text(x, named))
