"""`x.unsqueeze_(0)`, `x.t_()` and their like on tensors that are given to the compiled function."""

import copy

import pytest
import torch

import quickfuse
from differential import check


def target_of_a_loss(w, x):
    x.unsqueeze_(-1)
    loss = ((w * x - x) ** 2).mean()
    loss.backward()
    return loss.detach(), w.grad, x


def with_backward_outside(w, x):
    x.unsqueeze_(0).transpose_(0, 1)
    return (w * x).sum() + (x * x).sum()


def there_and_back(w, x):
    x.t_()
    y = x * 2
    x.transpose_(0, 1)
    return y, x, x.stride(), x.shape


def changed_before_and_after(w, x):
    x.mul_(2)
    x.swapaxes_(0, 1).add_(1)
    x[0] = 5
    return x.sum(), x


def with_views(w, x):
    before = x[0]
    x.unsqueeze_(0)
    after = x[0]
    x.add_(1)
    return before, after, before + 1, x.shape


def squeezed(w, x):
    x.squeeze_()
    x.squeeze_(0)
    return x + 1


def fails(w, x):
    x.unsqueeze_(0)
    x.unsqueeze_(7)


def caught(w, x):
    try:
        x.transpose_(0, 4)
    except IndexError as error:
        return str(error), x * 2


def in_a_list(w, xs):
    for x in xs:
        x.unsqueeze_(0)
    return torch.cat(xs), xs


def given_data(w, x):
    x.unsqueeze_(0)
    x.data = x.data + 1
    return x * 2


def data_and_then(w, x):
    x.data = x.data + 1
    x.unsqueeze_(0)
    return x * 2


def begins_to_require(w, x):
    x.unsqueeze_(0)
    x.requires_grad_()
    (x * 2).sum().backward()
    return x.grad, x


def copied(w, x):
    x.unsqueeze_(0)
    return x.detach(), x.data, x.clone()


FUNCTIONS = [target_of_a_loss, there_and_back, changed_before_and_after, with_views, squeezed, fails, caught, given_data,
             data_and_then, begins_to_require, copied]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("make", [
    lambda: torch.arange(6.0).reshape(2, 3), lambda: torch.arange(9.0).reshape(3, 3), lambda: torch.arange(3.0),
    lambda: torch.arange(12.0).reshape(4, 3).t()[:, 1:3], lambda: torch.arange(3),
    lambda: torch.nn.Parameter(torch.ones(2, 2)),
])  # fmt: skip
def test_agrees_with_eager(function, make):
    calls = [(torch.ones(3, requires_grad=True), make()) for _ in range(3)]
    check(function, *calls)


def test_elements_of_a_list():
    check(in_a_list, *[(None, [torch.ones(2), torch.zeros(2)]) for _ in range(3)])
    x = torch.ones(2)
    check(in_a_list, (None, [x, x]), (None, [torch.ones(2), torch.zeros(2)]))
    check(in_a_list, (None, [torch.ones(2), torch.zeros(2)]), (None, [x, x]))


def test_it_is_one_graph_of_kernels():
    for function in (target_of_a_loss, there_and_back, changed_before_and_after, with_views):
        compiled = quickfuse.compile(function, fullgraph=True)
        compiled(torch.ones(3, requires_grad=True), torch.ones(3, 3))
        assert not compiled.specialisations[0].without_kernels, compiled.specialisations[0].without_kernels


def test_the_count_of_changes_is_that_of_eager():
    w, x = torch.ones(3, 3, requires_grad=True), torch.randn(3, 3)
    twin = copy.deepcopy(x)
    compiled = quickfuse.compile(with_backward_outside)
    for _ in range(3):
        x = twin.clone()
        result = compiled(w, x)
        expected = with_backward_outside(w, twin_ := twin.clone())
        assert x._version == twin_._version and x.shape == twin_.shape
        w.grad = None
        result.backward()
        found, w.grad = w.grad, None
        expected.backward()
        assert torch.equal(found, w.grad)
    x = twin.clone()
    result = compiled(w, x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_the_same_tensor_twice():
    def f(x, y):
        x.unsqueeze_(0)
        return y * 2

    x = torch.ones(2)
    check(f, (x, torch.ones(2)), (x, x), (torch.ones(2), torch.ones(2)))
    compiled = quickfuse.compile(f)
    compiled(torch.ones(2), torch.ones(2))
    assert compiled(x, x).shape == (1, 2)


def test_a_view_of_a_tensor_that_stays():
    compiled = quickfuse.compile(squeezed)
    for _ in range(3):
        base = torch.zeros(3, 1)
        part = base[1:]
        assert torch.equal(compiled(None, part), torch.ones(2))
        part += 1
        assert part._base is base and base.tolist() == [[0], [1], [1]]
