"""Tensors that are no plain strided memory, and results that are left out."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse


def _attention(**options: Any) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    x = torch.randn(2, 5, 16)
    return nn.MultiheadAttention(16, 4, batch_first=True).eval(), (x, x, x), options


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("mask", [None, torch.ones(5, 5).triu(1).bool(), torch.randn(5, 5)], ids=["none", "bool", "float"])
@pytest.mark.parametrize("grad", [False, True])
def test_attention_in_evaluation(need_weights: bool, average: bool, mask: Any, grad: bool) -> None:
    """Its fast path returns no weights unless asked, whatever PyTorch's shape rule for it says."""
    model, args, options = _attention(need_weights=need_weights, average_attn_weights=average, attn_mask=mask)
    with torch.set_grad_enabled(grad):
        expected, found = model(*args, **options), quickfuse.compile(model)(*args, **options)
    assert [type(part) for part in found] == [type(part) for part in expected]
    torch.testing.assert_close(found, expected)
    assert [t is not None and t.stride() for t in found] == [t is not None and t.stride() for t in expected]


def test_attention_of_long_sequences() -> None:
    model, x = nn.MultiheadAttention(64, 2, batch_first=True).eval(), torch.randn(64, 1025, 64)
    with torch.no_grad():
        assert quickfuse.compile(model)(x, x, x, need_weights=False)[1] is None


def test_nested_tensors() -> None:
    """An encoder in evaluation makes nested tensors of sequences with padding, and goes through its layers with them."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    compiled = quickfuse.compile(model)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x, src_key_padding_mask=padding), model(x, src_key_padding_mask=padding))


def test_a_nested_tensor_as_an_argument() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    compiled = quickfuse.compile(lambda t, x: (t * 2, x.sin() + 1))
    found = compiled(nested, torch.zeros(2))
    assert [t.tolist() for t in found[0].unbind()] == [[2, 2], [2, 2, 2]]
    assert found[1].tolist() == [1, 1]


@pytest.mark.parametrize("layer", [nn.Embedding(10, 4, sparse=True), nn.EmbeddingBag(10, 4, sparse=True, mode="sum")])
@pytest.mark.parametrize("kind", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_steps_with_sparse_gradients(layer: nn.Module, kind: Any) -> None:
    def step(model: nn.Module, optimizer: Any, indices: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(indices).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    models = [copy.deepcopy(layer) for _ in range(2)]
    optimizers = [kind(model.parameters(), lr=0.1) for model in models]
    steps = (step, quickfuse.compile(step))
    for _ in range(3):
        losses = [s(m, o, torch.tensor([[1, 2, 2]])) for s, m, o in zip(steps, models, optimizers, strict=True)]
        torch.testing.assert_close(losses[1], losses[0])
        torch.testing.assert_close(models[1].weight, models[0].weight)
        assert models[1].weight.grad.layout == models[0].weight.grad.layout == torch.sparse_coo


@pytest.mark.parametrize("sparse", [
    lambda t, k: F.embedding(k, t, sparse=True), lambda t, k: F.embedding_bag(k[:, None], t, sparse=True, mode="sum"),
    lambda t, k: torch.gather(t, 0, k[:, None].expand(3, 4), sparse_grad=True),
    lambda t, k: t.gather(0, k[:, None].expand(3, 4), sparse_grad=True),
    lambda t, k: F.embedding(k, t, sparse=True) + F.embedding(k + 1, t, sparse=True),
])  # fmt: skip
def test_what_stands_around_a_sparse_gradient_is_compiled(sparse: Any, caplog: pytest.LogCaptureFixture) -> None:
    def loss(table: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scaled = torch.sigmoid(w * 2) + w
        return (torch.tanh(sparse(table, (k * 2) % 5) * scaled) + 1).square().sum()

    torch.manual_seed(0)
    compiled, k = quickfuse.compile(loss), torch.tensor([0, 1, 2])
    table, w = torch.randn(10, 4), torch.randn(3, 4)
    quickfuse.set_logs(graph_breaks=True)
    try:
        for _ in range(3):
            found = []
            for run in (loss, compiled):
                leaves = [t.clone().requires_grad_() for t in (table, w)]
                result = run(*leaves, k)
                result.backward()
                found.append([result.detach(), *[leaf.grad.to_dense() for leaf in leaves]])
                assert leaves[0].grad.layout is torch.sparse_coo
            torch.testing.assert_close(found[1], found[0])
    finally:
        quickfuse.set_logs(graph_breaks=False)
    assert "operator by operator" not in caplog.text and all(s.kernels for s in compiled.specialisations)


def _gather(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.gather(x, 0, k[:, None], sparse_grad=True).sum()


def _embed(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return F.embedding(k, x, sparse=True).sum()


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("loss", [_gather, _embed])
def test_sparse_gradients_of_operators(loss: Any, inside: bool) -> None:
    k = torch.tensor([0, 1, 1])
    gradients = []
    for compile_it in (lambda f: f, quickfuse.compile):
        x = torch.arange(3.0)[:, None].requires_grad_()
        if inside:
            compile_it(lambda x, k: loss(x, k).backward())(x, k)
        else:
            compile_it(loss)(x, k).backward()
        gradients.append(x.grad)
    assert gradients[1].layout == gradients[0].layout
    assert torch.equal(gradients[1].to_dense(), gradients[0].to_dense())


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """No report of an internal error either, where these are not raised."""
    monkeypatch.setattr(quickfuse.config, "raise_internal_errors", False)
    monkeypatch.setattr(logging.getLogger("quickfuse"), "propagate", True)
    test_nested_tensors()
    test_attention_in_evaluation(False, True, None, False)
    test_sparse_gradients_of_operators(_gather, True)
    assert not [record for record in caplog.records if "internal error" in record.getMessage()]


@pytest.mark.parametrize("function", [
    lambda c: c.conj().imag * 2, lambda c: c.real + c.conj().imag[0], lambda c: torch.cat([c.conj().imag, c.imag]),
    lambda c: c.conj().imag.t().sum(0), lambda c: torch._neg_view(c.real).exp(), lambda c: (c.conj().imag, c.imag + 1),
])  # fmt: skip
@pytest.mark.parametrize("grad", [False, True])
def test_negated_views(function: Any, grad: bool) -> None:
    """The imaginary part of conjugated numbers is a view that eager negates when it reads it."""
    c = torch.complex(torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)).requires_grad_(grad)
    torch.testing.assert_close(quickfuse.compile(function)(c), function(c))


def test_names_of_bound_methods() -> None:
    def function(x: torch.Tensor, values: list[int]) -> Any:
        try:
            return x + 1, x.sin.__name__, x.sin.__qualname__, values.append.__name__, values.append.__self__ is values
        finally:
            values.append(1)

    for argument in (torch.ones(2), nn.Parameter(torch.ones(2))):
        assert quickfuse.compile(function)(argument, [])[1:] == function(argument, [])[1:]


def test_sparse_tensors_under_autocast() -> None:
    """Stand-ins of results say nothing about the memory of a sparse one."""

    def made(x: torch.Tensor) -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.tensor([1.0]), (2, 2)).to_dense() + x

    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        compiled = quickfuse.compile(made, options={"raise_internal_errors": True})
        torch.testing.assert_close(compiled(x), made(x))


def test_whole_numbers_with_gradients() -> None:
    """PyTorch makes them where a number with gradients is written to a view."""

    def function(x: torch.Tensor, number: torch.Tensor) -> Any:
        row = x.int()[0]
        row.fill_(number)
        return row.resolve_conj(), torch.triu(row[None])

    x, number = torch.ones(2, 3), torch.tensor(3.0, requires_grad=True)
    for run in (function, quickfuse.compile(function)):
        with pytest.raises(RuntimeError, match="Autograd not support dtype"):
            run(x, number)
