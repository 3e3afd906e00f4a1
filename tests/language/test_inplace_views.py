"""In-place operators, views, aliases and overlapping memory: what is shared before is shared after."""

import pytest
import torch

from language.harness import BACKENDS, case, check, names, setup, t


@case((t(3, 4),), (t(3, 4, seed=1),), graphs=1)
def view_of_an_argument_is_returned(x):
    return x[1], x.t(), x.view(-1), x[:, ::2], x.unsqueeze(0), x.detach(), x.view(2, 6)[0] + 1


@case((t(3, 4),), (t(3, 4, seed=1),))
def argument_is_returned(x):
    y = x.add_(1)
    z = x.contiguous()
    z.mul_(2).sub_(0.5)
    return x, y, z, x.to(torch.float32), x.float(), y is x, z is x


@case((t(3, 4),), (t(3, 4, seed=1),))
def write_through_a_view(x):
    row = x[1]
    row.mul_(10)
    x.t()[0] += 100
    x.view(-1)[::5] = 0.0
    return row, x.sum()


@case((t(3, 4),), (t(3, 4, seed=1),))
def views_of_intermediates_share(x):
    y = x * 2
    a, b = y[0], y.view(-1)[:4]
    a += 5
    return y, a, b, b.sin()


@case((t(4, 4),), (t(4, 4, seed=1),))
def chain_of_in_place_operators(x):
    y = x.clone()
    y.add_(1).mul_(2).sub_(x).div_(3).clamp_(-1, 1).neg_().exp_()
    y.copy_(y.flip(0))
    y[0].fill_(0.5)
    y.masked_fill_(y > 1, 1.0)
    return y, x


@case(lambda: (t(4), t(4)), lambda: (lambda a: (a, a))(t(4)), lambda: (lambda a: (a, a[:]))(t(4)))
def same_tensor_under_two_names(x, y):
    x.add_(1)
    z = y * 2
    y.mul_(3)
    return x + z, x is y


@case(lambda: (lambda a: (a[:4], a[2:6]))(t(8)), lambda: (lambda a: (a[:4], a[4:]))(t(8)), lambda: (t(4), t(4)))
def overlapping_arguments(x, y):
    x.mul_(2)
    y.add_(1)
    x.sub_(y * 0.5)
    return x * 1.0, y.sum()


@case(lambda: (lambda a: (a, [a, a.view(2, 2)]))(t(4)), lambda: (t(4), [t(4, seed=1), t(2, 2)]))
def aliases_inside_a_list(x, held):
    held[0].add_(1)
    held[1][0] = 7.0
    held.append(x)
    return x * 2, held[1].sum()


@case((t(3),), (t(3, seed=1),))
def augmented_assignment_keeps_identity(x):
    alias = x
    x += 1
    x *= 2
    y = x
    y = y + 1
    y -= x
    return alias is x, y is x, x, y


@case((t(4),), (t(4, seed=1),))
def detach_and_data_share_storage(x):
    y = x.detach()
    y.add_(1)
    x.data.mul_(2)
    z = x.clone()
    z.data = x * 3
    return x, y, z


@case((t(4, 4),), (t(4, 4, seed=1),))
def list_of_views_is_filled(x):
    out = torch.zeros(4, 4)
    for k, row in enumerate(out):
        row.copy_(x[k] * k)
    for column in out.unbind(1):
        column += 1
    return out, x


@case((t(2, 3),), (t(2, 3, seed=1),))
def expanded_tensors(x):
    y = x[:1].expand(4, 3)
    z = y + 1
    try:
        y.add_(1)
    except RuntimeError as error:
        return y, z * 2, "unsupported" in str(error) or "more than one" in str(error)
    return y, z


@case((t(4, 4),), (t(4, 4, seed=1),))
def as_strided_and_unfold(x):
    windows = x.view(-1).unfold(0, 4, 2)
    diagonal = x.as_strided((4,), (5,))
    diagonal.zero_()
    return windows * 2, windows, diagonal, x.diagonal()


@case((t(6),), (t(6, seed=1),))
def swaps_and_shifts(x):
    a = x[:3].clone()
    x[:3] = x[3:]
    x[3:] = a
    x[1:] = x[:-1].clone() + 1
    return x * 2


@case((t(2, 3),), (t(2, 3, seed=1),))
def resize_and_set(x):
    y = x.clone()
    y.resize_(3, 2)
    y.t_()
    y.squeeze_().unsqueeze_(0)
    return y + 1, y.shape, y.stride()


@case((t(3, grad=True),), (t(3, seed=1, grad=True),))
def in_place_on_what_needs_gradients(x):
    y = x * 2
    y.mul_(3)
    y[0] = 1.0
    y += x
    return y.exp()


@case((t(3, grad=True),), (t(3, seed=1),))
def in_place_on_a_leaf(x):
    y = x * 2
    x.add_(1)
    return y + x


@case((t(4), 1), (t(4), 2), (t(4), 0))
def conditional_mutation(x, n):
    if n:
        x.mul_(n)
    if n > 1:
        x[0] = n
    return x + 1, x


@setup()
def global_buffer_is_written():
    buffer = torch.zeros(2, 4)

    def run(x, k):
        buffer[k] = x
        buffer.mul_(0.5)
        return buffer.sum(0) + 1, buffer

    return run, [(t(4), 0), (t(4, seed=1), 1), (t(4), 0)]


@setup(steady="later")
def key_value_cache():
    cache = {"k": torch.zeros(8, 4), "n": 0}

    def run(x):
        n = cache["n"]
        cache["k"][n : n + len(x)] = x
        cache["n"] = (n + len(x)) % 6
        return cache["k"][: n + len(x)].sum(0) * 2

    return run, [(t(2, 4),), (t(2, 4, seed=1),), (t(2, 4, seed=2),)]


@case((t(3),), (t(3, seed=1),))
def mutation_after_capture_of_a_closure(x):
    y = x * 2

    def later():
        return y + 1

    y.add_(10)
    a = later()
    y = x
    return a, later()


@case((t(3), t(3, seed=1)), (t(3, seed=2), t(3, seed=3)))
def swap_between_arguments(x, y):
    saved = x.clone()
    x.copy_(y)
    y.copy_(saved)
    return x - y, saved


@case((t(3, 3),), (t(3, 3, seed=1),))
def masked_and_scattered_writes(x):
    y = torch.zeros(3, 3)
    y.scatter_(1, torch.tensor([[0], [1], [2]]), x[:, :1])
    y.index_add_(0, torch.tensor([0, 2]), x[:2])
    y.index_fill_(1, torch.tensor([1]), -1.0)
    y[y < 0] = 0.25
    return y, x.put_(torch.tensor([0]), torch.tensor([9.0]))


@case((t(4, 4),), (t(4, 4, seed=1),))
def view_with_other_dtype(x):
    bits = x.view(torch.int32)
    y = (bits & 0x7FFFFFFF).view(torch.float32)
    return y + 1, bits, x.view(torch.uint8).shape


@case((t(3),), (t(3, seed=1),))
def version_counters(x):
    before = x._version
    x.add_(1)
    y = x * 2
    y.mul_(2)
    y[0] = 1
    return x._version - before, y._version, y


def whole(*values):
    return torch.tensor(values)


@case((whole(2, 1, 0), 0), (t(4), 1), (t(4), 2), (t(2, 2), 3), (t(4), 4), (t(4), 5))
def scatters_of_what_they_change(x, kind):
    """Eager refuses such operands, whether they are the same elements or others."""
    rows = torch.tensor([1, 0])
    if kind == 0:
        return x.index_fill_(0, x, 5)
    if kind == 1:
        return x.scatter_add_(0, rows, x)
    if kind == 2:
        return x[1:].index_copy_(0, rows, x[:2])
    if kind == 3:
        return x.index_add_(0, rows, x[:2])
    if kind == 4:
        return x[2:].index_add_(0, rows, x[:2])
    return x.index_put_((rows,), x[:2])


@case((t(2, 2), 1), (t(2, 2), 2), (t(2, 2), 3), (t(8), 3), steady="later")
def elements_behind_a_tensors_last_one(x, step):
    y = x * 2
    return (y if step == 2 else x).as_strided((2, 2), (1, step)) + 1


@case((t(4), whole(0, 1)), (t(4), whole(0, 9)), (t(4), whole(2, 1)))
def failure_after_a_change_of_data(x, index):
    x.data.mul_(2)
    x.put_(index, x.flatten()[:2])
    return x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_inplace_views(name, backend):
    check(__file__, name, backend)
