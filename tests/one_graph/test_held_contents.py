"""Sizes that come in small tensors of whole numbers: guards hold what shapes depend on, and nothing else."""

import random

import pytest
import torch

import quickfuse
from case_registry import case, cases, x0
from one_graph.programs import agrees


def grid(*rows):
    return torch.tensor(rows)


def x_with(*rows):
    return lambda: (x0(), grid(*rows))


@case
def positions_of_images():
    def f(x, sizes):
        found = []
        for t, h, w in sizes.tolist():
            rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            merged = rows.reshape(h // 2, 2, w // 2, 2).transpose(1, 2).flatten()
            found.append(torch.stack([merged, columns.flatten()], -1).repeat(t, 1))
        return torch.cat(found), x * len(found)

    return f, x_with((1, 2, 4), (2, 4, 2)), x_with((1, 4, 4)), x_with((1, 2, 4), (2, 4, 2))


@case
def lengths_of_sequences():
    def f(x, sizes):
        lengths = torch.repeat_interleave(sizes[:, 1] * sizes[:, 2], sizes[:, 0])
        ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0), value=0)
        parts = torch.arange(12).float().split((ends[1:] - ends[:-1]).tolist())
        return [p.sum() for p in parts], ends, x.repeat_interleave(sizes[0], 1), x.repeat_interleave(sizes[:1, 1])

    return f, x_with((1, 2, 4), (1, 2, 2)), x_with((2, 1, 6), (0, 1, 1))


@case
def windows_of_images():
    def f(x, sizes):
        found, ends, first = [], [0], 0
        for t, h, w in sizes.tolist():
            index = torch.nn.functional.pad(torch.arange(t * h * w).reshape(t, h, w), (0, 1, 0, 1), "constant", -100)
            lengths = (index != -100).sum(2).reshape(-1)
            index = index.reshape(-1)
            found.append(index[index != -100] + first)
            ends.extend((lengths.cumsum(0) * 2 + ends[-1]).tolist())
            first += t * h * w
        return torch.cat(found), torch.unique_consecutive(torch.tensor(ends)), x + first

    return f, x_with((1, 2, 3), (2, 1, 2)), x_with((1, 1, 1))


@case
def each_row():
    def f(x, sizes):
        total = 0
        for h, w in sizes:
            total = total + x[: int(h), : int(w) - 1].sum() + torch.arange(h * w).sum() + torch.ones(h.item() * 2).sum()
        return total, torch.zeros(sizes[0, 0], 2)

    return f, x_with((1, 2), (2, 3)), x_with((2, 2))


@case
def masks_and_indices():
    def f(x, sizes):
        wide = sizes > 1
        return (
            torch.ones(2, len(wide), 2)[:, wide], wide.nonzero(), torch.where(wide), sizes[wide], torch.unique(sizes),
            torch.nn.functional.one_hot(sizes), torch.bincount(sizes),
        )  # fmt: skip

    return f, lambda: (x0(), torch.tensor([1, 2, 1])), lambda: (x0(), torch.tensor([3, 2]))


@case
def gradients_pass():
    def f(x, sizes):
        x = x.detach().requires_grad_()
        y = x[:, : len(sizes)][:, sizes > 1].exp() + x.repeat_interleave(sizes, 0)[:1, :1]
        y.sum().backward()
        return x.grad

    return f, lambda: (x0(), torch.tensor([1, 2])), lambda: (x0(), torch.tensor([2, 2]))


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)


def test_numbers_that_are_only_computed_with_are_not_held():
    compiled = quickfuse.compile(lambda x, n: sum(x * k for k in n.tolist()), fullgraph=True)
    for numbers in ([1, 2], [3, 4], [0, 7], [5, 5], [8, 1], [9, 2]):
        torch.testing.assert_close(compiled(x0(), torch.tensor(numbers)), x0() * sum(numbers))
    assert compiled.graph_count == 1


def test_numbers_that_keep_changing_are_left_to_python():
    compiled = quickfuse.compile(lambda x, n: x.repeat_interleave(n, 0).exp() + 1)
    for k in range(12):
        counts = torch.tensor([k, 1])
        torch.testing.assert_close(compiled(x0(), counts), x0().repeat_interleave(counts, 0).exp() + 1)
    assert any("repeat_interleave" in b.reason for b in compiled.breaks)
    assert sum(not s.segment.resumes and not s.segment.pause for s in compiled.specialisations) <= 4


def changed_before(x, n):
    n.add_(1)
    return x.repeat_interleave(n, 0)


def changed_through_a_view(x, n):
    n[1:].add_(1)
    return x.repeat_interleave(n, 0), n.tolist()


def changed_afterwards(x, n):
    y = x.repeat_interleave(n, 0)
    n.add_(1)
    return y, n.tolist()


@pytest.mark.parametrize("function", [changed_before, changed_through_a_view, changed_afterwards])
def test_changed_numbers(function):
    compiled = quickfuse.compile(function)
    ours, eager = torch.tensor([1, 2]), torch.tensor([1, 2])
    for _ in range(3):
        torch.testing.assert_close(compiled(x0(), ours), function(x0(), eager))
        torch.testing.assert_close(ours, eager)


def test_changed_through_shared_memory():
    def f(x, n, other):
        other.add_(1)
        return x.repeat_interleave(n, 0)

    compiled = quickfuse.compile(f)
    numbers = torch.tensor([1, 2])
    torch.testing.assert_close(compiled(x0(), numbers, torch.zeros(2)), x0().repeat_interleave(numbers, 0))
    torch.testing.assert_close(compiled(x0(), numbers, numbers[:1]), x0().repeat_interleave(torch.tensor([2, 2]), 0))


def test_results_are_new_in_each_call():
    compiled = quickfuse.compile(lambda x, n: ((n > 1).nonzero(), x + 1), fullgraph=True)
    numbers = torch.tensor([1, 2])
    compiled(x0(), numbers)[0].add_(5)
    assert compiled(x0(), numbers)[0].tolist() == [[1]]


def test_other_kinds_of_arguments_are_no_surprise():
    compiled = quickfuse.compile(lambda x, n: x.repeat_interleave(n, 0))
    for counts in (torch.tensor([1, 2]), 2, torch.tensor([2]), torch.tensor(2), torch.tensor([1, 2], dtype=torch.int32)):
        torch.testing.assert_close(compiled(x0(), counts), x0().repeat_interleave(counts, 0))
    with pytest.raises(RuntimeError):
        compiled(x0(), torch.tensor([1, 2, 3]))


def padded(x, n):
    return torch.nn.functional.pad(x, (n, n + 1)) + 1


def resized(x, n):
    return torch.nn.functional.interpolate(x[None, None], size=(n, n * 2)).reshape(-1) + 1


def repeated(x, n):
    return x.repeat(n, 1) + 1


def rolled(x, n):
    return x.roll(n, 1) + x.narrow(0, n - 1, 1).sum(n - 1)


@pytest.mark.parametrize("function", [padded, resized, repeated, rolled])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("computed", [False, True])
def test_tensors_as_sizes(function, grad, computed):
    """What is in a tensor that an operator takes for a number decides about shapes, be it known or not."""

    def f(x, n):
        return function(x, (n.double() * 1.0).exp().log().round().long() if computed else n)

    compiled = quickfuse.compile(f)
    for size in (1, 2, 1):
        x = x0().requires_grad_(grad)
        torch.testing.assert_close(compiled(x, torch.tensor(size)), f(x, torch.tensor(size)))


class Convolution(torch.nn.Module):
    """Its sizes are buffers."""

    def __init__(self):
        super().__init__()
        self.stride = torch.nn.Buffer(torch.tensor(2))
        self.size = torch.nn.Buffer(torch.tensor(3))
        self.total = torch.nn.Buffer(torch.tensor(3) - torch.tensor(2))

    def forward(self, x):
        length = x.shape[-1]
        frames = torch.ceil((length - self.size + self.total) / self.stride + 1).to(torch.int64) - 1
        right = self.total // 2
        left, right = self.total - right, right + frames * self.stride + self.size - self.total - length
        if length <= max(left, right):
            x = torch.nn.functional.pad(x, (0, max(left, right) - length + 1))
        return torch.nn.functional.pad(x, (left, right), "constant") * 2


def test_buffers_decide():
    ours, eager = Convolution(), Convolution()
    compiled = quickfuse.compile(ours, fullgraph=True)
    for size in (3, 5):
        for module in (ours, eager):
            module.size.fill_(size)
        for length in (2, 5, 9):
            x = torch.arange(2.0 * length).view(1, 2, length)
            torch.testing.assert_close(compiled(x), eager(x))


@pytest.mark.parametrize("use", [
    lambda x, n: x.repeat_interleave(torch.tensor(n), 0),
    lambda x, n: x.repeat(n, 1),
    lambda x, n: torch.nn.functional.pad(x, (n, torch.as_tensor(n))),
    lambda x, n: x[:, : n % 2] * n,
    lambda x, n: x * 2 if torch.tensor(n) > 2 else x,
])  # fmt: skip
def test_random_numbers_are_not_held(use):
    def f(x):
        return use(x, random.randint(1, 4))

    compiled = quickfuse.compile(f)
    for seed in range(6):
        random.seed(seed)
        wanted = f(x0())
        random.seed(seed)
        torch.testing.assert_close(compiled(x0()), wanted)


def test_export_refuses():
    with pytest.raises(quickfuse.errors.ExportError, match="the numbers in a tensor"):
        quickfuse.export(lambda x, n: x.repeat_interleave(n, 0), (x0(), torch.tensor([1, 2])))


@pytest.mark.parametrize("values", [[1, 0, 2], [[1, 0], [0, 3]], [[[1, 1], [0, 2]]], [0, 0], [[0, 0]]])
def test_columns_lie_in_one_memory(values):
    def function(x):
        return torch.nonzero(x, as_tuple=True), (x > 0).nonzero(), torch.where(x > 0)

    def looked_at(run):
        columns, rows, others = run(torch.tensor(values))
        found = (*columns, rows, *others)
        return [(t.tolist(), t.stride(), t.storage_offset(), t._is_view() or not len(t)) for t in found]

    compiled = quickfuse.compile(function, fullgraph=True)
    for _ in range(2):
        assert looked_at(compiled) == looked_at(function)
