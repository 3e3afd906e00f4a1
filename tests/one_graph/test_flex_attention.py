"""`torch.nn.attention.flex_attention`: one graph with the functions that change scores or say what is seen."""

import functools
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as public
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    noop_mask,
    or_masks,
)  # fmt: skip

import quickfuse

HEADS, LENGTH = 4, 24
SLOPES = torch.tensor([2.0 ** -(k + 1) for k in range(HEADS)])
TABLE = torch.randn(HEADS, 2 * LENGTH, generator=torch.Generator().manual_seed(7))
DOCUMENTS = torch.arange(LENGTH) // 7
LENGTHS = torch.tensor([9, LENGTH])
PAGES = torch.tensor([5, 0])


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i - j).abs() <= 5


def prefix(b, h, i, j):
    return (j < LENGTHS[b]) | (i >= j)


def same_document(b, h, i, j):
    return DOCUMENTS[i] == DOCUMENTS[j]


def padding(b, h, i, j):
    return j < LENGTHS[b]


def paged(b, h, i, j):
    return i + PAGES[b] >= j


def nothing(b, h, i, j):
    return (i > 3) & (i >= j)  # rows that see nothing


def alibi(score, b, h, i, j):
    return score + SLOPES[h] * (j - i)


def relative(score, b, h, i, j):
    return score + TABLE[h, i - j + LENGTH]


def capped(score, b, h, i, j):
    return 20.0 * torch.tanh(score / 20.0)


def by_score(score, b, h, i, j):
    return torch.where(i >= j, score, -float("inf"))


def all_but(score, b, h, i, j):
    return torch.where((j < 3) & (h == 1), -math.inf, capped(alibi(score, b, h, i, j), b, h, i, j))


def no_rows(score, b, h, i, j):
    return score + torch.where(i < 2, -math.inf, 0.0)


def numbers(score, b, h, i, j):
    return score * TABLE[0, 1] + TABLE[2][3] - SLOPES[-1] + (b * 10 + h) * 0.125


def same(score, b, h, i, j):
    return score


def constant(score, b, h, i, j):
    return SLOPES[0]


def of_doubles(score, b, h, i, j):
    return score + SLOPES.double()[h]


SCORES = [None, alibi, relative, capped, by_score, all_but, no_rows, numbers, same, constant, of_doubles]
MASKS = [None, causal, window, prefix, same_document, padding, paged, nothing]


def made(*shape, dtype=torch.float32, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def inputs(dtype=torch.float32, grad=False, keys=HEADS, length=LENGTH, batch=2):
    return [made(batch, heads, length, 8, dtype=dtype, seed=k, grad=grad) for k, heads in enumerate((HEADS, keys, keys))]


def block_mask(mask, length=LENGTH, batch=2, **options):
    return None if mask is None else create_block_mask(mask, batch, None, length, length, device="cpu", **options)


@pytest.fixture
def with_gradients(monkeypatch):
    """PyTorch refuses gradients on the CPU, where its compiler has no kernel of them; its formulas have."""
    monkeypatch.setattr(public, "_validate_device", lambda *_: None)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check(function, *args, times=2, compiled=None, **tolerances):
    """Compare one graph with eager; returns the compiled function."""
    compiled = compiled or quickfuse.compile(function, fullgraph=True)
    for _ in range(times):
        wanted, got = function(*args), compiled(*args)
        torch.testing.assert_close(got, wanted, **tolerances)
        for a, b in zip(*(torch.utils._pytree.tree_leaves(v) for v in (got, wanted)), strict=True):
            if isinstance(a, torch.Tensor):
                assert a.stride() == b.stride()
    return compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("score", SCORES)
def test_scores(score, dtype):
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=score), *inputs(dtype))


@pytest.mark.parametrize("score", [None, alibi])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, score):
    blocks = block_mask(mask)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=blocks), *inputs())


@pytest.mark.parametrize(
    "dtype, mask", [(torch.float32, None), (torch.float32, nothing), (torch.float64, causal), (torch.bfloat16, nothing)]
)
@pytest.mark.parametrize("score", [score for score in SCORES if score is not constant])  # which eager refuses
def test_gradients(with_gradients, score, mask, dtype):
    blocks = block_mask(mask)

    def step(q, k, v):
        result, aux = flex_attention(q, k, v, score, blocks, return_aux=AuxRequest(lse=True))
        loss = (result.float() ** 2).sum() + torch.where(aux.lse.isinf(), 0.0, aux.lse).sin().sum()
        return loss, *torch.autograd.grad(loss, [t for t in (q, k, v) if t.requires_grad], allow_unused=True)

    loose = {"atol": 5e-2, "rtol": 5e-2} if dtype is torch.bfloat16 else {"atol": 2e-5, "rtol": 2e-5}
    check(step, *inputs(dtype, grad=True), **loose)


def test_gradients_on_the_cpu_are_refused():
    compiled = quickfuse.compile(flex_attention)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        compiled(*inputs(grad=True))


def test_learned_biases(with_gradients):
    table, slopes = made(HEADS, 2 * LENGTH, grad=True), made(HEADS, seed=3, grad=True)

    def step(q, k, v):
        def learned(score, b, h, i, j):
            return score * (1 + slopes[h]) + table[h, i - j + LENGTH]

        loss = (flex_attention(q, k, v, learned) ** 2).sum()
        return loss, *torch.autograd.grad(loss, [q, table, slopes])

    check(step, *inputs(grad=True), atol=2e-5, rtol=2e-5)


def test_in_checkpoints(with_gradients):
    """Also of other transformed functions: autograd is asked what their gradients flow to."""
    blocks, weights = block_mask(causal), made(LENGTH, 8, seed=5, grad=True)
    functions = [
        lambda x: flex_attention(x, x * 2, x.sin(), alibi, blocks),
        lambda x: torch.vmap(lambda a, k: (a * weights + k).sin())(x[0], torch.arange(HEADS)),
        lambda x: torch.vmap(lambda a: (a.detach() * weights).sin())(x[0]) + x[0],
    ]
    for function in functions:

        def step(x, function=function):
            loss = torch.utils.checkpoint.checkpoint(function, x * 2, use_reentrant=False).pow(2).sum()
            x.grad = weights.grad = None
            loss.backward()
            return loss.detach(), x.grad, weights.grad

        check(step, inputs(grad=True)[0], atol=2e-4, rtol=2e-5)


def test_options(with_gradients):
    q, k, v = inputs(keys=2)
    check(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True, scale=0.3), q, k, v)
    check(lambda q, k, v: flex_attention(q, k, v, alibi, enable_gqa=True, kernel_options={"BLOCK_M": 16}), q, k, v)
    check(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True, return_lse=True), q, k, v)
    check(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest(lse=True)), q, k, v)
    rows = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs()]
    check(lambda q, k, v: flex_attention(q, k, v), *rows)
    check(lambda q, k, v: flex_attention(q, k, v[..., :5]), *rows)
    check(lambda q, k, v: flex_attention(q, k[:1], v[:1], block_mask=block_mask(causal)), *rows)

    def autocast(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flex_attention(q, k, v, relative)

    check(autocast, *inputs())


@pytest.mark.parametrize("mistake", ["heads", "length", "width", "dimensions"])
def test_mistakes(mistake):
    q, k, v = inputs()
    blocks = block_mask(causal) if mistake == "length" else None
    k = {"heads": k[:, :2], "length": k[:, :, :9], "width": k[..., :3], "dimensions": k[0]}[mistake]
    wanted = message(lambda: flex_attention(q, k, v, block_mask=blocks))
    compiled = quickfuse.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks))
    assert message(lambda: compiled(q, k, v)) == wanted


def message(call):
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)) as caught:
        call()
    return type(caught.value), str(caught.value)


def test_a_warning_is_not_given():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quickfuse.compile(flex_attention, fullgraph=True)(*inputs())


# masks that are made inside --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [*MASKS[1:], noop_mask, and_masks(causal, window), or_masks(window, same_document)])
def test_masks_made_inside(mask):
    def attend(q, k, v):
        blocks = create_block_mask(mask, 2, HEADS, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=8)
        return flex_attention(q, k, v, block_mask=blocks), blocks.kv_indices, blocks.q_num_blocks, blocks.full_kv_indices

    check(attend, *inputs())


def test_dense_masks():
    def masks(x):
        return create_mask(causal, 2, HEADS, LENGTH, LENGTH, "cpu"), create_mask(by_score, None, None, 9, 5, "cpu")

    check(masks, torch.ones(2))


def test_combined_inside():
    def attend(q, k, v, width):
        near = and_masks(causal, lambda b, h, i, j: i - j <= width)
        return flex_attention(q, k, v, block_mask=create_block_mask(near, None, None, LENGTH, LENGTH, device="cpu"))

    compiled = check(attend, *inputs(), 3)
    for width in (5, 7, 1):
        check(attend, *inputs(), width, compiled=compiled, times=1)


def test_a_mask_made_inside_leaves():
    compiled = quickfuse.compile(lambda n: create_block_mask(causal, None, None, n * 8, n * 8, device="cpu", BLOCK_SIZE=8))
    for n in (3, 3, 4, 5):
        blocks, wanted = compiled(n), block_mask(causal, 8 * n, None, BLOCK_SIZE=8)
        assert type(blocks) is BlockMask
        assert blocks.shape == wanted.shape
        assert blocks.mask_mod is causal
        torch.testing.assert_close(blocks.to_dense(), wanted.to_dense())


# what changes between calls --------------------------------------------------------------------------------------


def test_captured_tensors_that_change():
    table = TABLE.clone()

    def attend(q, k, v):
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + table[h, i - j + LENGTH])

    compiled = check(attend, *inputs())
    table.mul_(-2)
    check(attend, *inputs(), compiled=compiled)
    table = made(HEADS, 3 * LENGTH)
    check(attend, *inputs(), compiled=compiled)


def test_functions_that_change():
    def attend(q, k, v, score, blocks):
        return flex_attention(q, k, v, score, blocks)

    compiled = quickfuse.compile(attend, fullgraph=True)
    for score in SCORES[:4]:
        for mask in MASKS[:4]:
            check(attend, *inputs(), score, block_mask(mask), compiled=compiled, times=1)

    def of_slope(slope):
        return lambda score, b, h, i, j: score + (i - j) * slope

    for slope in (0.5, 0.25, -3.0):
        torch._dynamo.reset()  # eager's own compiler refuses a number that has changed
        check(attend, *inputs(), of_slope(slope), None, compiled=compiled, times=1)
        check(attend, *inputs(), functools.partial(lambda x, *a: alibi(*a) * x, slope), None, compiled=compiled, times=1)


def test_masks_that_change():
    def attend(q, k, v, documents):
        def mask(b, h, i, j):
            return (documents[i] == documents[j]) & (i >= j)

        blocks = create_block_mask(mask, None, None, q.shape[2], q.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=blocks)

    compiled = quickfuse.compile(attend, fullgraph=True)
    for length in (24, 24, 31, 40, 17):
        check(attend, *inputs(length=length), torch.arange(length) // 5, compiled=compiled, times=1)
        check(attend, *inputs(length=length), torch.arange(length) // 9, compiled=compiled, times=1)


def test_sizes_that_change():
    compiled = quickfuse.compile(flex_attention)
    for length in (24, 31, 40, 17, 17):
        for batch in (2, 3):
            q, k, v = inputs(length=length, batch=batch)
            torch.testing.assert_close(compiled(q, k, v, alibi), flex_attention(q, k, v, alibi))


# whole training steps --------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32)
        self.bias = nn.Parameter(torch.zeros(HEADS, 2 * LENGTH))

    def forward(self, x, blocks):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, 8)).permute(2, 0, 3, 1, 4)

        def score(score, b, h, i, j):
            return score + self.bias[h, i - j + LENGTH]

        return self.out(flex_attention(q, k, v, score, blocks).transpose(1, 2).flatten(2))


def trained(wrap):
    torch.manual_seed(1)
    model = Attention()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, blocks):
        optimizer.zero_grad()
        loss = (model(x, blocks) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    step = wrap(step)
    losses = [step(made(2, LENGTH, 32, seed=k), block_mask(mask)) for k, mask in enumerate([causal, causal, window, None])]
    return losses, [p.detach() for p in model.parameters()]


def test_training_steps(with_gradients):
    wanted, got = trained(lambda step: step), trained(functools.partial(quickfuse.compile, fullgraph=True))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
