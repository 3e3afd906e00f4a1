"""Parts of tensors from outside at an index that changes from call to call."""

import copy

import pytest
import torch

import quickfuse
from differential import check

DATA = torch.arange(92.0).reshape(23, 4) / 92


def specialisations(compiled):
    return len(compiled.specialisations)


def test_slices_of_a_loop_over_a_corpus_are_compiled_for_the_first_the_others_and_the_last():
    w = torch.randn(4, 4, requires_grad=True)

    @quickfuse.compile(fullgraph=True)
    def step(i, length=5):
        loss = (DATA[i : i + length] @ w).tanh().sum()
        loss.backward()
        return loss.detach()

    for _ in range(2):
        for i in range(0, 23, 5):
            w.grad = None
            found = step(i)
            gradient, w.grad = w.grad, None
            expected = (DATA[i : i + 5] @ w).tanh().sum()
            expected.backward()
            torch.testing.assert_close([found, gradient], [expected.detach(), w.grad])
    assert specialisations(step) == 3


def batch_of_text(source, i):
    length = min(5, len(source) - 1 - i)
    return source[i : i + length] * 2, source[i + 1 : i + 1 + length].reshape(-1) + 1


def rows(x, i):
    return x[i] * 2 + x[i - 1] - x[-i]


def tuples(x, i):
    return x[1:, i : i + 2] * x[..., i, None][1:], x[i, i] + x[i, 2:], x[::2, i + 1].sin()


def the_same_twice(x, i):
    one, two = x[i], x[i]
    return one is two, one is one, one + two, one.data_ptr == two.data_ptr


def assigned(x, i):
    x[i : i + 2] = 3.0
    return x * 2


def changed(x, i):
    part = x[i : i + 2]
    part.mul_(2)
    return part + 1


def changed_and_read(x, i):
    part = x[i : i + 2]
    part.add_(1)
    return x * 2, part * 3


def changed_before(x, i):
    x.add_(1)
    return x[i] * 2


def read_and_changed(x, i):
    part = x[i]
    x.mul_(3)
    return part * 2, x.sum()


def overlapping(x, i):
    one, two = x[i : i + 3], x[i + 1 : i + 4]
    one.add_(1)
    two.mul_(2)
    return one * two


def returned(x, i):
    return x[i], x[i : i + 2].t()


def reshaped_before(x, i):
    x.unsqueeze_(0)
    return x[0, i] * 2


def given_other_data(x, i):
    x.data = x.data * 2 + 1
    return x[i] * 2


def requires(x, i):
    x.requires_grad_()
    return (x[i] * 2).sum()


def without_gradients(x, i):
    with torch.no_grad():
        part = x[i] + 0
    with torch.inference_mode():
        return part * 2, (x[i] * 3).clone()


def steps(x, i):
    return x[i :: i + 1] + 1, x[: -i - 1] * 2, x[::-i] if i == 9 else x[0]


@pytest.mark.parametrize("function", [
    batch_of_text, rows, tuples, the_same_twice, assigned, changed, changed_and_read, changed_before, read_and_changed,
    overlapping, returned, reshaped_before, given_other_data, requires, without_gradients, steps,
])  # fmt: skip
def test_agrees_with_eager(function):
    indices = (0, 1, 2, 1, 1, 5, 9, 0, 40, 3, -1, 2)
    check(function, *[(torch.arange(42.0).reshape(14, 3) / 10, i) for i in indices])
    check(function, *[(torch.arange(42).reshape(3, 14).t(), i) for i in (0, 1, 2, 1, 1)])


def test_a_part_that_is_returned_is_a_view():
    data = torch.zeros(6, 2)
    compiled = quickfuse.compile(lambda i: data[i : i + 2], fullgraph=True)
    for i in range(4):
        part = compiled(i)
        part += i + 1
        assert part._base is data
    assert data[:, 0].tolist() == [1, 3, 5, 7, 4, 0]
    w = torch.ones(2, requires_grad=True)
    compiled(3).mul_(w)
    assert data.requires_grad


def test_the_tensor_may_be_another_one_or_begin_to_require_gradients():
    compiled = quickfuse.compile(lambda x, i: x[i] * 2)
    for k in range(8):
        x = torch.randn(10, 4)
        assert torch.equal(compiled(x, k), x[k] * 2)
    x.requires_grad_()
    for k in range(3):
        compiled(x, k).sum().backward()
    assert x.grad.sum(1).tolist() == [8, 8, 8, *[0] * 7]
    for other in (torch.randn(10), torch.randn(10, 3), [1, 2, 3], torch.nn.Parameter(torch.ones(3, 4))):
        found = compiled(other, 2)
        assert found == other[2] * 2 if isinstance(other, list) else torch.equal(found, other[2] * 2)


def test_after_a_break():
    data, seen = torch.randn(30, 4), []

    def epoch(length):
        total = torch.zeros(4)
        for i in range(0, 30, length):
            total = total + data[i : i + length].sin().sum(0)
            print(end="", file=Sink(seen))
        return total

    compiled = quickfuse.compile(epoch)
    for _ in range(3):
        assert torch.allclose(compiled(5), epoch(5))


class Sink:
    def __init__(self, seen):
        self.write = seen.append


def test_several_tensors_and_modules_with_buffers():
    class Positions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(50, 4))
            self.at = 0

        def forward(self, x):
            self.at += 3
            return x + self.table[self.at : self.at + 4]

    module = Positions()
    twin = copy.deepcopy(module)
    compiled = quickfuse.compile(module, fullgraph=True)
    for _ in range(8):
        x = torch.randn(4, 4)
        assert torch.equal(compiled(x), twin(x))
    assert specialisations(compiled._compiled) <= 2


def test_a_part_that_grows_ends_the_graph_and_has_a_symbol_for_its_size_after_that():
    data, compiled = torch.randn(40, 3), quickfuse.compile(lambda i: (data[:i] * 2 + 1).softmax(0))
    with torch.no_grad():
        for i in range(1, 40):
            torch.testing.assert_close(compiled(i), (data[:i] * 2 + 1).softmax(0))
    assert specialisations(compiled) <= 9
