"""Exported programs beside the originals: values, nesting, numbers, gradients, buffers, and what cannot be exported."""

from __future__ import annotations

import collections
import copy
import random
from typing import Any, List, NamedTuple  # noqa: UP035

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

import quickfuse
from export.programs import check_like_eager, through_file
from quickfuse import errors

x = torch.randn(3, 4)
y = torch.randn(3, 4)


class Pair(NamedTuple):
    first: Any
    second: Any


def same(one: Any, two: Any) -> None:
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(two, one, rtol=0, atol=0)
        return
    if isinstance(one, dict):
        assert list(one) == list(two)
        one, two = [*one.values()], [*two.values()]
    if isinstance(one, (list, tuple)) and type(one) is not torch.Size:
        assert isinstance(two, type(one)) or hasattr(one, "_fields") or type(one).__module__ == "torch.return_types"
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same(a, b)
        return
    assert one == two and type(one) is type(two)


PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "tensor": (lambda x: torch.relu(x) + 1, (x,), {}),
    "tuple": (lambda x, y: (x + y, x - y), (x, y), {}),
    "nested": (lambda x, d: {"a": x + d["t"], "b": [d["t"], None], "c": (1, "text", 2.5, True)}, (x, {"t": y}), {}),
    "keywords": (lambda x, *, scale, bias=None: x * scale if bias is None else x * scale + bias, (x,), {"scale": 2.0}),
    "any number": (lambda *tensors: sum(t.mean() for t in tensors), (x, y, x + 1), {}),
    "any keywords": (lambda **named: named["a"] * named["b"], (), {"a": x, "b": y}),
    "numbers": (lambda x, s: (x * s, s * 2 + 1, s), (x, 3.5), {}),
    "named tuple": (lambda p: Pair(p.first + 1, p.second), (Pair(x, y),), {}),
    "ordered": (lambda d: d["a"] + d["b"], (collections.OrderedDict(a=x, b=y),), {}),
    "torch's own": (lambda x: torch.max(x, 1), (x,), {}),
    "the argument": (lambda x, y: x, (x, y), {}),
    "its container": (lambda d: (d, d["a"] * 2), ({"a": x, "b": 7},), {}),
    "shape": (lambda x: (x.shape, x.dtype, x.sum()), (x,), {}),
    "no arguments": (lambda: torch.arange(4) * 2, (), {}),
    "a number out of a tensor": (lambda x: x.sum().item() * 2, (x,), {}),
    "views": (lambda x: x.t().reshape(-1)[2:8].view(2, 3).unsqueeze(0), (x,), {}),
    "in place": (lambda x: x.clone().add_(1).mul_(2)[0].zero_(), (x,), {}),
    "writes through views": (lambda x: _written(x), (x,), {}),
    "indices": (lambda x: x[[0, 2]][:, torch.tensor([1, 3])], (x,), {}),
    "unused": (lambda x, y: x + 1, (x, y), {}),
    "functional transform": (lambda x: torch.func.grad(lambda z: (z**3).sum())(x), (x,), {}),
    "vmap": (lambda x, y: torch.vmap(torch.dot)(x, y), (x, y), {}),
    "autocast": (lambda x: _autocast(x), (x,), {}),
    "losses": (lambda x: functional.cross_entropy(x, torch.tensor([0, 1, 3])), (x,), {}),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), (x, y), {}),
    "foreach": (lambda x, y: torch._foreach_add([x, y], 1.0), (x, y), {}),
    "complex": (lambda x: torch.fft.rfft(x).abs(), (x,), {}),
    "attention": (lambda x: functional.scaled_dot_product_attention(*x.view(3, 1, 1, 4).unbind(0)), (x,), {}),
    "unbatched convolution": (lambda x: functional.conv1d(x, torch.ones(2, 3, 2), padding="same"), (x,), {}),
    "what a cache has": (lambda x: _annotated(x), (x,), {}),
    "an operator of a library": (lambda x: torch.ops.quickfuse_export_tests.twice(x) + 1, (x,), {}),
    "lists of sizes": (lambda x: functional.conv2d(x.view(1, 3, 2, 2), torch.ones(2, 3, 1, 1), stride=[2, 2]), (x,), {}),
}  # fmt: skip


_LIBRARY = torch.library.Library("quickfuse_export_tests", "DEF")
_LIBRARY.define("twice(Tensor x) -> Tensor")
_LIBRARY.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")


def _annotated(x: torch.Tensor) -> torch.Tensor:
    made = torch.jit.annotate(List[torch.Tensor], [])  # noqa: UP006  `typing` has it in a cache
    made.append(x * 2)
    return made[0]


def _written(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(3, 4)
    made[1] = x[0]
    made[:, 2] += x[:, 1]
    made.diagonal().fill_(5)
    return made


def _autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.t()


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_eagers(name: str, tmp_path: Any) -> None:
    function, args, kwargs = PROGRAMS[name]
    exported = quickfuse.export(function, args, kwargs)
    for one in (exported, through_file(exported, tmp_path)):
        module = one.module()
        for _ in range(2):
            same(function(*copy.deepcopy(args), **kwargs), module(*copy.deepcopy(args), **kwargs))


def test_other_values_of_the_inputs() -> None:
    module = quickfuse.export(lambda x, s: x * s + s, (x, 2.0)).module()
    same(module(y, 0.25), y * 0.25 + 0.25)
    with torch.no_grad():
        same(module(y, -3.0), y * -3.0 - 3.0)


class Everything(nn.Module):
    """Parameters, shared ones, buffers of both kinds, constants, a mode, randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.unused = nn.Linear(1, 1)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("offset", torch.ones(4), persistent=False)
        self.constant = torch.full((4,), 0.5)
        self.scale = 1.25

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(functional.relu(self.two(self.one(x)), inplace=True))
        self.average = self.average * 0.9 + x.detach().mean(0) * 0.1
        return self.norm(x) * self.scale + self.average + self.offset + self.constant


@pytest.mark.parametrize("training", [True, False])
def test_a_module_with_everything(training: bool, tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Everything().train(training)
    exported = quickfuse.export(model, (x,))
    check_like_eager(model, exported, (x,), 3)
    check_like_eager(model, through_file(exported, tmp_path), (x,), 3)
    signature = exported.graph_signature
    assert "average" in signature.changed_buffers
    assert ("norm.running_mean" in signature.changed_buffers) == training
    assert signature.constants == ["constant"]
    assert signature.user_inputs == ["x"] and signature.user_outputs == ["result"]
    assert not next(spec for spec in signature.inputs if spec.target == "offset").persistent
    assert exported.program.aliases == {"two.weight": "one.weight"}


def test_the_original_is_left_alone() -> None:
    model = Everything()
    before = copy.deepcopy(model.state_dict())
    quickfuse.export(model, (x,)).module()(x)
    same(before, model.state_dict())


def test_nodes_have_the_users_lines() -> None:
    exported = quickfuse.export(lambda x: torch.tanh(x) * 2, (x,))
    lines = [n.meta["location"] for n in exported.graph.nodes if n.op == "call_function"]
    assert all(line.startswith(__file__) for line in lines)
    text = exported.print_readable(print_output=False)
    assert "torch.ops.aten.tanh.default(x)" in text and "torch.tanh(x) * 2" in text


def test_the_graph_is_functional() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    exported = quickfuse.export(program, (x.clone(),))
    new, doubled = None, None
    given = x.clone()
    doubled, new = exported.graph_module(given)
    same(given, x)
    same(new, x + 1)
    same(doubled, (x + 1) * 2)
    exported.module()(given)
    same(given, x + 1)


def _memory(values: Any, inputs: list[torch.Tensor]) -> list[int]:
    """Which results lie in the memory of which input or earlier result."""
    known = [t.untyped_storage().data_ptr() for t in inputs]
    found = []
    for value in values:
        place = value.untyped_storage().data_ptr()
        if place not in known:
            known.append(place)
        found.append(known.index(place))
    return found


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: (torch.zeros(3, 4).copy_(y), x),
        lambda x, y: (x.detach(), y.view(-1), x),
        lambda x, y: (z := torch.zeros(3, 4).copy_(y), z.view(-1), y.contiguous()),
        lambda x, y: (torch.zeros(3, 4).copy_(z := x + y), z, z.t()),
    ],
)
def test_results_share_the_memory_that_they_did(program: Any) -> None:
    module = quickfuse.export(program, (x, y)).module()
    assert _memory(module(x, y), [x, y]) == _memory(program(x, y), [x, y])


# gradients ------------------------------------------------------------------------------------------------------


def gradients(function: Any, *values: torch.Tensor) -> list[torch.Tensor]:
    leaves = [v.clone().requires_grad_() for v in values]
    return list(torch.autograd.grad(function(*leaves).sum(), leaves, allow_unused=True, materialize_grads=True))


def _partly_detached(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        target = (x * y).sigmoid()
    return (x - target) ** 2 + y.detach() * x + y * 0.5


def _no_grad_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        rows = x.view(4, 3)[1:].clone()
        rows[0] = 7
    return rows.sum() * y + x.detach().view(-1)[0] * x


def _buffer_inside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kept = torch.zeros(3, 4)
    with torch.no_grad():
        kept.copy_(x)
    return kept * y


@torch.no_grad()
def _no_grad_function(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def _copied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of another type, into another layout, to several rows, and to a part with gaps."""
    wide, turned, rows = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(4, 3).t(), torch.zeros(3, 4)
    wide.copy_(x)
    turned.copy_(y * 2)
    rows.copy_(x[0])
    turned[:, ::2].copy_(x[:, 1:3])
    return wide * 2 + turned * x + rows * y


def _through_views(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 2
    z.view(-1).mul_(y.sum())
    z.t().unsqueeze(0).add_(x.t())
    pooled = functional.adaptive_avg_pool2d(z.view(1, 1, 3, 4), 1) * 1
    pooled.flatten(1).mul_(y[0, 0])
    return z * y + pooled.view(1, 1)


@pytest.mark.parametrize(
    "function",
    [
        _partly_detached, _no_grad_view, _buffer_inside, _copied, _through_views,
        lambda x, y: _no_grad_function(x) * y + torch.where(x > 0, x, y),
    ],
)  # fmt: skip
def test_gradients_flow_where_they_did(function: Any, tmp_path: Any) -> None:
    exported = quickfuse.export(function, (x, y))
    same(gradients(function, x, y), gradients(through_file(exported, tmp_path).module(), x, y))


def test_tensors_that_modules_keep_as_attributes(tmp_path: Any) -> None:
    """Norms of weights by hooks set the weight before each call: it is a buffer, but for the `state_dict`."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.utils.spectral_norm(nn.Linear(4, 4)))
        made(x)
        return made

    original, exported = make(), through_file(quickfuse.export(make(), (x,)), tmp_path)
    module = exported.module()
    for _ in range(2):
        wanted, got = original(x), module(x)
        assert torch.equal(got, wanted)
        wanted.sum().backward()
        got.sum().backward()
    assert [*module.state_dict()] == [*original.state_dict()]
    for name, parameter in original.named_parameters():
        torch.testing.assert_close(module.get_parameter(name).grad, parameter.grad)
    for name, buffer in original.named_buffers():
        assert torch.equal(module.get_buffer(name), buffer)
    assert torch.equal(module.get_submodule("0").weight, original[0].weight)
    torch.testing.assert_close(exported.to_torch().module()(x), make()(x))


def test_a_buffer_that_grows_is_refused() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = torch.cat([self.seen, x[0]])
            return x

    with pytest.raises(errors.ExportError, match=r"seen is float32\[2\], and the program replaces it by float32\[6\]"):
        quickfuse.export(Growing(), (x,))


def test_bags_of_embeddings_are_differentiable(tmp_path: Any) -> None:
    model, args = nn.EmbeddingBag(5, 4), (torch.tensor([1, 2, 3]), torch.tensor([0, 2]))
    check_like_eager(model, through_file(quickfuse.export(model, args), tmp_path), args, 2)


def test_long_chains_of_operators() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2000):
            x = x * 1.001
        made = torch.zeros(3, 4)
        made.copy_(x)
        return made.view(-1).mul_(2)

    module = quickfuse.export(program, (x,)).module()
    same(gradients(program, x), gradients(module, x))


def test_gradients_of_inputs_that_are_changed() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(x + 1)
        return x.sum()

    module = quickfuse.export(program, (x.clone(),)).module()
    same(gradients(lambda z: program(z * 1), x), gradients(lambda z: module(z * 1), x))


def test_a_parameter_changed_outside_of_autograd_is_refused() -> None:
    class Clipped(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.clamp_(-1, 1)
            return super().forward(x)

    with pytest.raises(errors.GraphBreak, match="after it was changed outside of autograd"):
        quickfuse.export(Clipped(4, 4), (x,))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 100


def test_functions_with_gradients_of_their_own() -> None:
    program = lambda x: Doubled.apply(x)  # noqa: E731
    with pytest.raises(errors.GraphBreak, match="gradients of its own"):
        quickfuse.export(program, (x.clone().requires_grad_(),))
    module = quickfuse.export(program, (x,)).module()
    same(module(y), y * 2)
    with pytest.raises(errors.ExportedCallError, match="x.requires_grad is False in the exported program, got True"):
        module(y.clone().requires_grad_())


# what cannot be exported -----------------------------------------------------------------------------------------


def test_a_break_is_an_error_with_the_users_line() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(errors.GraphBreak, match="a branch on a tensor's value") as caught:
        quickfuse.export(program, (x,))
    assert caught.value.source_line == "if x.sum() > 0:"
    assert "torch.where" in caught.value.hint


@pytest.mark.parametrize(
    "program, message",
    [
        (lambda x: print(x), "print"),
        (lambda x: (t for t in (x,)), "generator"),
        (lambda x: object(), "object"),
        (lambda x: {1, 2}, "set"),
        (lambda x: {x: 1}, "dict|keys"),
    ],
)
def test_results_and_calls_that_no_graph_has(program: Any, message: str) -> None:
    with pytest.raises((errors.GraphBreak, errors.ExportError), match=message):
        quickfuse.export(program, (x,))


@pytest.mark.parametrize(
    "function, args, kwargs, message",
    [
        (nn.Linear(4, 4), (), None, r"the example does not fit forward\(input: .*missing a required argument: 'input'"),
        (nn.Linear(4, 4), (x, x), None, "too many positional arguments"),
        (nn.Linear(4, 4), (x,), {"other": x}, "unexpected keyword argument 'other'"),
        (nn.Linear(4, 4), x, None, "args is a tuple of the arguments, not a Tensor"),
        (nn.Linear(4, 4), (x,), [x], "kwargs is a dictionary of arguments by name, not a list"),
        (nn.Linear, (4, 4), None, "needs an object of the class Linear, not the class"),
        (3, (x,), None, "needs a callable, not an int"),
    ],
)
def test_examples_that_do_not_fit(function: Any, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        quickfuse.export(function, args, kwargs)


def test_native_functions_are_programs() -> None:
    same(quickfuse.export(torch.add, (x, y)).module()(x, y), x + y)


def test_arguments_that_no_graph_takes() -> None:
    with pytest.raises(errors.ExportError, match="x is a object: an exported program takes tensors"):
        quickfuse.export(lambda x: 1, (object(),))
    with pytest.raises(TypeError, match="args is a tuple"):
        quickfuse.export(lambda x: x, x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a callable"):
        quickfuse.export(3, (x,))  # type: ignore[arg-type]
    with pytest.raises(errors.ExportError, match="dynamic_shapes"):
        quickfuse.export(lambda x: x, (x,), dynamic_shapes={"x": {0: "batch"}})
    with pytest.raises(TypeError, match="module\\(\\) makes a module"):
        quickfuse.export(lambda x: x, (x,))(x)


def test_compiled_functions_and_modules_are_exported_like_their_originals() -> None:
    model = nn.Linear(4, 4)
    for one in (quickfuse.compile(model), model, model.forward):
        same(quickfuse.export(one, (x,)).module()(y), model(y))
    compiled = quickfuse.compile(lambda x: x.exp())
    same(quickfuse.export(compiled, (x,)).module()(y), y.exp())


def test_an_exported_module_is_exported_again(tmp_path: Any) -> None:
    model = Everything().eval()
    once = quickfuse.export(model, (x,))
    twice = quickfuse.export(once.module(), (x,))
    check_like_eager(model, twice, (x,))
    assert twice.graph_signature.parameters == once.graph_signature.parameters


def test_the_tutorials_export() -> None:
    """Its `bar` breaks, and is an error here as there; without the branch it is one graph."""

    def bar(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    def whole(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a / (torch.abs(a) + 1) * torch.where(b.sum() < 0, b * -1, b)

    a, b = torch.randn(10), torch.randn(10)
    with pytest.raises(errors.GraphBreak) as caught:
        quickfuse.export(bar, (a, b))
    assert caught.value.source_line == "if b.sum() < 0:"
    module = quickfuse.export(whole, (a, b)).module()
    for sign in (1, -1):
        same(module(a, b * sign), bar(a, b * sign))


def _cond(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


def _while_loop(x: torch.Tensor) -> Any:
    return torch._higher_order_ops.while_loop(lambda x: x.sum() < 9, lambda x: (x.abs() + 1,), (x,))


def _count(x: torch.Tensor) -> Any:
    def body(k: torch.Tensor, x: torch.Tensor) -> Any:
        return k + 1, x * 2

    return torch._higher_order_ops.while_loop(lambda k, x: k < 3, body, (torch.tensor(0), x))


def _scan(x: torch.Tensor) -> Any:
    return torch._higher_order_ops.scan(lambda total, v: (total + v, total * 1), torch.zeros(4), x)


def _attend(x: torch.Tensor) -> Any:
    q = x.view(1, 1, *x.shape)
    return flex_attention(q, q, q, lambda score, b, h, i, j: score + (i - j) * 0.5)


@pytest.mark.parametrize("program", [_cond, _while_loop])
def test_operators_that_decide_by_contents_are_refused(program: Any) -> None:
    with pytest.raises(errors.GraphBreak) as caught:
        quickfuse.export(program, (x,))
    assert "a branch on a tensor's value" in caught.value.reason and "torch.where" in caught.value.hint


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("program", [_count, _scan, _attend])
def test_operators_that_take_functions(program: Any) -> None:
    same(quickfuse.export(program, (x,)).module()(x), program(x))


def test_pythons_random_numbers_are_refused() -> None:
    with pytest.raises(errors.ExportError, match="Python's random numbers"):
        quickfuse.export(lambda x: x * random.random(), (torch.ones(2),))
