"""Branches on whole numbers and masks from outside are guards; random numbers are expected where they mostly are."""

import pytest
import torch

import quickfuse
from seeding import seed_torch


def pads(ids, x):
    mask = ids.eq(0)
    if not mask.any():
        return x * 2
    return x.masked_fill(mask, 0.0)


def as_a_number(ids, x):
    some = (ids > 2).flatten().any().item()
    return x + 1 if some else x - 1


def of_two(ids, x):
    if torch.all(ids != 9) and bool((ids != 7).all()):
        x = x.sin()
    return x.cos()


def after_other_changes(ids, x):
    x.add_(1)
    if (ids == 3).any():
        return x * 2
    return x * 3


def changing_it_afterwards(ids, x):
    if (ids == 3).any():
        x = x * 2
    ids.add_(1)
    return x * ids


def with_a_default(ids, x, padding=3):
    return x * 2 if (padding == ids).any() else x


PROGRAMS = [pads, as_a_number, of_two, after_other_changes, changing_it_afterwards, with_a_default]
IDS = [torch.tensor(numbers) for numbers in ([1, 2, 3], [0, 2, 3], [1, 1, 1], [7, 1, 0], [3, 3, 3], [1, 2, 3])]


CASES = [("cpu", torch.int64), ("cpu", torch.int32), pytest.param("cuda", torch.int64, marks=pytest.mark.gpu)]


@pytest.mark.parametrize("function", PROGRAMS)
@pytest.mark.parametrize(("device", "dtype"), CASES)
def test_each_outcome_is_one_graph(function, device, dtype):
    compiled = quickfuse.compile(function)
    for ids in IDS * 2:
        eager, ours = (ids.to(device, dtype, copy=True) for _ in range(2))
        x, y = (torch.arange(3.0, device=device) for _ in range(2))
        torch.testing.assert_close(compiled(ours, x), function(eager, y))
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(x, y)
    assert compiled.graph_count == 2 and not compiled.breaks


def test_a_number_from_outside_is_part_of_the_condition():
    compiled = quickfuse.compile(with_a_default)
    x = torch.arange(3.0)
    for ids in IDS:
        for padding in range(4):
            torch.testing.assert_close(compiled(ids, x, padding), with_a_default(ids, x, padding))
    assert compiled.graph_count == 2 and not compiled.breaks


def test_tensors_that_share_memory():
    def changed_before(ids, other, x):
        other.add_(1)
        return x * 2 if (ids == 3).any() else x * 3

    compiled = quickfuse.compile(changed_before)
    x = torch.arange(3.0)
    for apart in (True, False, True, False):
        ids, wanted = IDS[0].clone(), IDS[0].clone()
        other, as_wanted = (IDS[1].clone(), IDS[1].clone()) if apart else (ids[:2], wanted[:2])
        torch.testing.assert_close(compiled(ids, other, x), changed_before(wanted, as_wanted, x))
        torch.testing.assert_close(ids, wanted)


def test_what_the_graph_changed_before_is_a_break():
    def changed(ids, x):
        ids.add_(1)
        return x * 2 if (ids == 3).any() else x * 3

    compiled = quickfuse.compile(changed)
    for ids in IDS:
        ours, eager = ids.clone(), ids.clone()
        torch.testing.assert_close(compiled(ours, torch.arange(3.0)), changed(eager, torch.arange(3.0)))
        torch.testing.assert_close(ours, eager)
    assert compiled.breaks


def test_floating_point_numbers_are_a_break():
    compiled = quickfuse.compile(lambda x: x * 2 if (x > 1).any() else x)
    compiled(torch.arange(3.0))
    assert [b.reason for b in compiled.breaks] == ["a branch on a tensor's value"]


def test_few_conditions_are_asked():
    def many(ids, x):
        for k in range(8):
            if (ids == k).any():
                x = x * (k + 2)
        return x

    compiled = quickfuse.compile(many)
    for ids in IDS:
        torch.testing.assert_close(compiled(ids, torch.arange(3.0)), many(ids, torch.arange(3.0)))
    assert not compiled.native_reason


def test_an_exported_program_does_not_ask():
    with pytest.raises(quickfuse.errors.GraphBreak, match="a branch on a tensor's value"):
        quickfuse.export(pads, (IDS[0], torch.arange(3.0)))


OTHERS = [torch.rand(3), torch.zeros(3, dtype=torch.uint8), torch.tensor([[1, 2, 0]]), None, 3, [1, 2, 3]]


# random numbers ----------------------------------------------------------------------------------------------------


def skipped(x, share):
    if torch.rand(1) > share:
        x = x + torch.rand(3)
    return x * 2


def kept(x, share):
    x = torch.nn.functional.dropout(x + 1)
    return x * 2 if torch.rand([]).item() < share else x + torch.rand(3)


@pytest.mark.parametrize(("function", "often"), [(skipped, 0.0), (kept, 1.0), (kept, 0.0), (skipped, 1.0)])
def test_a_random_number_within_its_bounds(function, often):
    compiled = quickfuse.compile(function)
    x = torch.arange(3.0)
    for k in range(3):
        seed_torch(k)
        wanted = function(x, often)
        seed_torch(k)
        torch.testing.assert_close(compiled(x, often), wanted)
    assert compiled.graph_count == 1 and not compiled.breaks


@pytest.mark.parametrize("function", [skipped, kept])
def test_a_random_number_that_may_be_either(function):
    compiled = quickfuse.compile(function)
    x = torch.arange(3.0)
    for k in range(20):
        share = (0.0, 0.5, 0.0, 1.0)[k % 4]
        seed_torch(k)
        wanted, after = function(x, share), torch.rand(2)
        seed_torch(k)
        torch.testing.assert_close(compiled(x, share), wanted)
        torch.testing.assert_close(torch.rand(2), after)
    assert compiled.breaks


def test_the_rare_random_number():
    """A number that is exactly zero, which one of 16 million is."""
    state = next_zero_state()
    compiled = quickfuse.compile(skipped)
    x = torch.arange(3.0)
    for rare in (False, True, False, True):
        torch.set_rng_state(state) if rare else seed_torch(3)
        wanted = skipped(x, 0.0)
        torch.set_rng_state(state) if rare else seed_torch(3)
        torch.testing.assert_close(compiled(x, 0.0), wanted)


def next_zero_state():
    """A state of the generator in which the next number of `torch.rand(1)` is zero."""
    generator = torch.Generator().manual_seed(0)
    while True:
        before = generator.get_state()
        zeros = (torch.rand(1 << 20, generator=generator) == 0).nonzero()
        if len(zeros):
            break
    generator.set_state(before)
    for _ in range(int(zeros[0])):
        torch.rand(1, generator=generator)
    found = generator.get_state()
    assert torch.rand(1, generator=generator) == 0
    return found


# scans -----------------------------------------------------------------------------------------------------------


def test_an_associative_scan():
    from torch._higher_order_ops import associative_scan

    def scanned(a, b):
        def combine(left, right):
            return left[0] * right[0], right[0] * left[1] + right[1]

        return associative_scan(combine, (a, b), dim=1, combine_mode="generic")[1] * 2

    a, b = torch.rand(2, 5), torch.rand(2, 5)
    compiled = quickfuse.compile(scanned)
    torch.testing.assert_close(compiled(a, b), scanned(a, b))
    assert compiled.graph_count == 1 and not compiled.breaks


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.zeros(40, dtype=torch.bool))
        self.inner = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
        self.table = {"ids": torch.zeros(40, dtype=torch.int64)}

    def forward(self, x):
        for layer in self.inner:
            x = layer(x)
        if self.mask.any():
            x = x * 2
        return x + 1 if (self.table["ids"] == 3).all() else x


def test_a_buffer_that_changes_in_place():
    seed_torch(0)
    model = Masked().requires_grad_(False)
    compiled = quickfuse.compile(model.forward)
    x = torch.rand(2, 2)
    for k in range(12):
        model.mask[k] = k % 3 == 1
        model.mask[: k - 1] = False
        model.table["ids"].fill_(3 if k % 4 == 2 else k)
        torch.testing.assert_close(compiled(x), model(x))
    assert compiled.graph_count <= 4 and not compiled.breaks


@pytest.mark.parametrize("other", OTHERS)
def test_something_else_in_place_of_the_tensor(other):
    compiled = quickfuse.compile(pads)
    x = torch.arange(3.0)
    compiled(IDS[0], x)
    try:
        wanted = pads(other, x)
    except AttributeError:
        with pytest.raises(AttributeError):
            compiled(other, x)
    else:
        torch.testing.assert_close(compiled(other, x), wanted)
    torch.testing.assert_close(compiled(IDS[1], x), pads(IDS[1], x))


def test_a_number_that_no_tensor_holds():
    compiled = quickfuse.compile(with_a_default)
    x = torch.arange(3.0)
    for padding in (3, 1 << 40, 3, 5):
        torch.testing.assert_close(compiled(IDS[0], x, padding), with_a_default(IDS[0], x, padding))


MASK = torch.nn.Transformer.generate_square_subsequent_mask(4)


@pytest.mark.parametrize("size", [4, 3])
def test_mask_that_is_the_usual_one(size):
    """PyTorch's transformers ask whether a mask is the causal one; a part of a buffer may be."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(x, mask):
        return encoder(x, mask=mask[:size, :size]).sum()

    compiled = quickfuse.compile(forward)
    x = torch.randn(2, size, 8)
    for mask in (MASK, MASK.clone(), torch.zeros(4, 4), torch.randn(4, 4), MASK, torch.full((4, 4), torch.nan)):
        torch.testing.assert_close(compiled(x, mask), forward(x, mask), equal_nan=True)
        compiled(x, mask).backward()
    assert compiled.graph_count == 2 and not compiled.breaks


def same_as_numbers(x, t):
    return x * 2 if bool((torch.tensor([1.0, 2.0]) == t).all()) else x + 1


def changed_afterwards(x, t):
    result = x * 2 if (t[:2] == torch.tensor([1.0, 2.0])).all() else x + 1
    t.add_(1)
    return result


def changed_before(x, t):
    t.sub_(1)
    return x * 2 if (t == torch.tensor([1.0, 2.0])).all() else x + 1


@pytest.mark.parametrize("function", [same_as_numbers, changed_afterwards, changed_before])
def test_numbers_that_are_the_same(function):
    compiled = quickfuse.compile(function)
    for numbers in ([1.0, 2.0], [2.0, 3.0], [torch.nan, 2.0], [1.0, 2.0]) * 2:
        for dtype in (torch.float32, torch.float64):
            eager, ours, x = torch.tensor(numbers, dtype=dtype), torch.tensor(numbers, dtype=dtype), torch.arange(3.0)
            torch.testing.assert_close(compiled(x, ours), function(x, eager))
            torch.testing.assert_close(ours, eager, equal_nan=True)
    assert function is changed_before or not [b.reason for b in compiled.breaks]


def test_what_the_log_says():
    quickfuse.set_logs(recompiles=True)
    try:
        compiled = quickfuse.compile(pads)
        compiled(IDS[0], torch.arange(3.0))
        compiled(IDS[1], torch.arange(3.0))
    finally:
        quickfuse.set_logs(recompiles=False)
    assert compiled.graph_count == 2
