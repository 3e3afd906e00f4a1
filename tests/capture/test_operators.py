"""Every operator of PyTorch's database is captured as one call, and gives what it gives in eager.

`operators_report.py` beside this file runs all samples, dtypes and layouts; here are a few of each.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from quickfuse.capture import capture
from quickfuse.errors import GraphBreak

T = torch.Tensor

#: Operators whose first sample runs natively, with the beginning of the reason.
NATIVE = {
    "as_strided": "the place of a tensor in its storage",
    "as_strided.partial_views": "the place of a tensor in its storage",
    "allclose": "allclose() answers in Python",
    "argwhere": "the number of elements",
    "bincount": "the number of elements",
    "equal": "equal() answers in Python",
    "item": "item() of a complex tensor",
    "linalg.lstsq": "the shapes that linalg_lstsq() returns",
    "linalg.lstsq.grad_oriented": "the shapes that linalg_lstsq() returns",
    "masked_select": "the number of elements",
    "nn.functional.dropout2d": "a warning: dropout2d: Received a 3D input",
    "nn.functional.kl_div": "a warning: reduction: 'mean'",
    "nn.functional.upsample_bilinear": "a warning: `nn.functional.upsample_bilinear` is deprecated",
    "nn.functional.upsample_nearest": "a warning: `nn.functional.upsample_nearest` is deprecated",
    "nonzero": "the number of elements",
    "std.unbiased": "a warning: std(): degrees of freedom",
    "std_mean.unbiased": "a warning: std_mean(): degrees of freedom",
    "tensor_split": "tensor_split() takes sizes from",
    "to_sparse": "PyTorch has no shape rule for to_sparse()",
    "unique": "the number of elements",
    "unique_consecutive": "the number of elements",
    "var.unbiased": "a warning: var(): degrees of freedom",
    "var_mean.unbiased": "a warning: var_mean(): degrees of freedom",
}
#: Operators on other than plain strided tensors, attributes, and test programs that do more than call their operator.
OTHERS = frozenset(
    "H mH sparse.sampled_addmm sparse.mm.reduce svd_lowrank pca_lowrank nn.functional.linear_cross_entropy.chunked "
    "nn.functional.linear_cross_entropy.chunked_none".split()
)


def _check(initial: str, dtype: torch.dtype, samples: int, forms: tuple[str, ...], variant: str) -> None:
    from operator_cases import OPERATORS, cases, run

    wrong = []
    for name in OPERATORS:
        if name[0] != initial or dtype not in OPERATORS[name].supported_dtypes("cpu"):
            continue
        for case in cases(name, dtype, samples, forms, variant):
            outcome = run(case)
            wrong += [f"{case.label}: {error}\n    {case.source}" for error in outcome.errors]
            expected = NATIVE.get(name)
            if outcome.eager_raises or name in OTHERS or (expected and any(r.startswith(expected) for r in outcome.reasons)):
                continue
            wrong += [f"{case.label}: runs natively: {reason}" for reason in outcome.reasons]
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("initial", "abcdefghijklmnopqrstuvwxz_")
def test_first_sample_of_every_operator(initial: str) -> None:
    _check(initial, torch.float32, 1, ("function", "method", "in place", "numbers"), "plain")


@pytest.mark.parametrize("variant", ["gradients", "gaps", "reversed", "channels last"])
@pytest.mark.parametrize("initial", "bcn")
def test_gradients_and_layouts(variant: str, initial: str) -> None:
    _check(initial, torch.float32, 1, ("function",), variant)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool, torch.bfloat16], ids=str)
@pytest.mark.parametrize("initial", "abi")
def test_other_types(dtype: torch.dtype, initial: str) -> None:
    _check(initial, dtype, 1, ("function",), "plain")


# what operators return and do -----------------------------------------------------------------------------------

GENERATOR = torch.Generator()
X = torch.arange(12.0).reshape(4, 3) / 7 - 0.5
W = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
C = torch.complex(torch.eye(3), torch.ones(3, 3))
I = torch.tensor([0, 2])  # noqa: E741


def _assigned_parts(w: T) -> Any:
    made = torch.zeros(4, 3)
    made[0] = w[0]
    part = made[1]
    part += w[1]
    return made, part, made.requires_grad, part.requires_grad


def _beside_a_detached_alias(w: T) -> Any:
    made = torch.zeros(4, 3)
    alias = made.detach()
    made.mul_(w)
    return made, alias, alias.requires_grad


def _transposed_in_place(x: T) -> Any:
    x.t_()
    return x.shape, x.sum(0), x.unsqueeze_(0).shape, x


CAPTURED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "structs": (lambda x: (x.sort(), x.max(1), x.topk(2).values + 1, torch.linalg.svd(x), x.max(dim=0)[1]), (X,)),
    "structs of gradients": (lambda w: (w.max(1), w.sort(0).values * 2, w.max(0)[0].requires_grad), (W,)),
    "structs as operands": (lambda x: (torch.stack(x.max(0)), torch.cat(x.min(1)), torch._foreach_add(x.max(0), 1)), (X,)),
    "struct is a tuple": (lambda x: (isinstance(x.max(0), tuple), len(x.max(0)), [a * 2 for a in x.max(0)]), (X,)),
    "sizes": (lambda x: (x.size(), x.shape, x.size(0), x.stride(), x.dim(), x.numel(), x.is_contiguous(), len(x)), (X,)),
    "where and what": (lambda x: (x.get_device(), x.type(), x.is_complex(), x.element_size(), x.is_floating_point()), (X,)),
    "conversions": (
        lambda x: (x.type(torch.float64), x.type("torch.LongTensor"), x.type(torch.IntTensor), x.to(torch.float16)), (X,)
    ),
    "moves that are none": (
        lambda x: (x.cpu(), x.to("cpu"), x.to(x), x.to("cpu", torch.int32), x.to(torch.device("cpu"), copy=True)), (X,)
    ),
    "moves by the names of arguments": (
        lambda x, y: (x.to(tensor=y), x.to(y, copy=True), x.to(device="cpu", dtype=torch.int64), x.type(dtype=y.dtype)),
        (X, torch.ones(2, dtype=torch.float64)),
    ),
    "memory format": (
        lambda x: (x.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last) + 1),
        (torch.ones(2, 3, 4, 5),),
    ),
    "Python's types": (lambda n: (torch.zeros(n, dtype=float), torch.ones(n, dtype=int), torch.zeros(n, dtype=bool)), (3,)),
    "sizes from outside": (lambda n, m: (torch.full((n,), m).shape, torch.zeros(n, m).shape, torch.arange(n) * m), (2, 3)),
    "data from outside": (lambda n, m: (torch.tensor([n, m]), torch.tensor([[1.0, n], [m, 2]]), torch.as_tensor(n)), (2, 3)),
    "random numbers": (
        lambda x: (torch.rand(3), torch.randn(2, 2), F.dropout(x), torch.rand_like(x), torch.randint(0, 5, (3,)),
                   torch.randperm(4), x.clone().uniform_(), torch.normal(0.0, 1.0, (2,)), torch.normal(x, 1.0)), (X,),
    ),
    "generators": (
        lambda x: (torch.rand(3, generator=GENERATOR), x.clone().normal_(generator=GENERATOR),
                   torch.multinomial(x.exp(), 2, generator=GENERATOR)), (X,),
    ),
    "leaves": (lambda x: (torch.zeros(2, requires_grad=True) * 2, (x * 1).requires_grad_() * x), (X,)),
    "out": (lambda x: (torch.add(x, 1, out=x), torch.add(x, 1, out=torch.empty(0))), (X,)),
    "several outs": (
        lambda x: torch.sort(x, out=(torch.empty(4, 3), torch.empty(4, 3, dtype=torch.int64))), (X,)
    ),
    "shapes changed in place": (_transposed_in_place, (X,)),
    "parts that begin to need gradients": (_assigned_parts, (W,)),
    "a detached alias does not": (_beside_a_detached_alias, (W,)),
    "results changed in place": (lambda w: ((w * 1).relu_(), F.relu(w * 2, inplace=True)), (W,)),
    "lazy conjugates": (lambda c: (c.conj(), c.conj().is_conj(), c.conj() @ c, c.conj().resolve_conj(), c.adjoint()), (C,)),
    "indices": (lambda x, i: (x[i], x[:, i], x[i, 0], x[[0, 1]], x[None, i], x[..., 0], x[-1], x[1:3, ::2]), (X, I)),
    "masks that keep the shape": (lambda x: (x.masked_fill_(x > 0, 0), torch.where(x < 0, x, 1.0)), (X,)),
    "not a tensor": (lambda x: (x == None, x != None, x == "a"), (X,)),  # noqa: E711
    "unbound methods": (lambda x: (torch.Tensor.add(x, 1), torch.Tensor.__getitem__(x, 0), torch.Tensor.view(x, -1)), (X,)),
    "overloads": (lambda x: (torch.ops.aten.add(x, 1), torch.ops.aten.mul.Tensor(x, x), torch.ops.aten.relu_(x)), (X,)),
    "statistics": (lambda x, m, v: (F.batch_norm(x, m, v, training=True), m, v), (X, torch.zeros(3), torch.ones(3))),
    "renormalised rows": (lambda i, w: F.embedding(i, w, max_norm=0.1), (I, X)),
    "lists": (lambda x: (x.split([1, 3]), x.unbind(), torch.broadcast_tensors(x, x[0]), torch.atleast_2d(x[0], x)), (X,)),
    "foreach": (lambda x, y: (torch._foreach_add([x, y], 1), torch._foreach_mul_([x, y], x.sum())), (X, X + 1)),
    "types": (lambda x: (torch.result_type(x, 1), torch.promote_types(torch.int, torch.float), torch.numel(x)), (X,)),
    "infinities": (lambda x: x.clamp(min=float("-inf")).nan_to_num(posinf=float("inf")), (X,)),
    "attention": (
        lambda x: F.multi_head_attention_forward(x[:, None], x[:, None], x[:, None], 3, 1, torch.ones(9, 3), torch.zeros(9),
                                                 None, None, False, 0.0, torch.ones(3, 3), torch.zeros(3)), (X,),
    ),
    "a distance of the user's": (
        lambda x: F.triplet_margin_with_distance_loss(x, x + 1, x * 2, distance_function=lambda a, b: (a - b).abs().sum(1)),
        (X,),
    ),
}  # fmt: skip

NATIVELY: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str, str]] = {
    "x[mask]": (lambda x: x[x > 0].sum(), (X,), "a mask selects", "torch.where"),
    "nonzero": (lambda x: x.nonzero(), (X,), "nonzero() returns depends", "nonzero_static"),
    "where": (lambda x: torch.where(x > 0), (X,), "where() returns depends", "all three arguments"),
    "equal": (lambda x: torch.equal(x, x), (X,), "answers in Python", "(a == b).all()"),
    "one_hot": (lambda i, x: F.one_hot((i * x).long()), (I, torch.tensor(2.0)), "one_hot() returns depends", "num_classes"),
    "repeat_interleave": (
        lambda i, x: i.repeat_interleave((i * x).long()), (I, torch.tensor(2.0)),
        "repeat_interleave() returns depends", "output_size",
    ),
    "storage_offset": (lambda x: x[1:].storage_offset(), (X,), "the place of a tensor in its storage", ""),
    "data_ptr": (lambda x: x.data_ptr() > 0, (X,), "a tensor's address", ""),
    "tolist": (lambda x: x.tolist(), (X,), "contents as Python objects", "torch.unbind"),
    "a warning": (lambda x: F.softmax(x), (X,), "a warning: Implicit dimension choice", ""),
    "mH of one number": (lambda x: x.sum().mH, (X,), "the tensor attribute mH", ""),
    "out is resized": (lambda x: torch.add(x, 1, out=torch.empty(2)), (X,), "an `out` argument is resized", "the shape"),
    "sparse": (lambda x: x.to_sparse().to_dense(), (X,), "no shape rule for to_sparse", ""),
    "quantised": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), (X,), "quantised", ""),
    "from outside": (lambda x, w: x.mul_(w), (X, W), "a tensor from outside that begins", ""),
    "part from outside": (lambda x, w: x[0].mul_(w[0]), (X, W), "a tensor from outside that begins", ""),
}

#: Programs that raise, with why they are no graph.
RAISING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "no such dtype": (lambda x: x.type("torch.FooTensor"), (X,), "an operator that raises"),
    "no such device": (lambda n: torch.zeros(n, device="foo"), (2,), "an operator that raises"),
    "foreach of no scalar": (lambda x: torch._foreach_mul_([x], x), (X,), "an operator that raises"),
    "leaf": (lambda w: w.mul_(2), (W,), "a leaf Variable"),
}
if not torch.cuda.is_available():
    RAISING["cuda"] = (lambda x: x.cuda(), (X,), "an operator that raises")


def _differences(function: Callable[..., Any], args: tuple[Any, ...], backend: str = "eager", **options: Any) -> list[str]:
    """How eager and the captured graph differ in what they do with copies of the arguments."""
    from comparing import differences, outcome_of, sharing
    from operator_cases import Outcome, _Checking

    theirs, mine = copy.deepcopy(list(args)), copy.deepcopy(list(args))
    GENERATOR.manual_seed(1)
    expected = outcome_of(function, theirs)
    state = GENERATOR.get_state()
    compiled: Any = quickfuse.compile(function, backend=backend, **options)
    outcome = Outcome()
    if backend == "eager":
        compiled.settings.backend = _Checking(outcome)
    GENERATOR.manual_seed(1)
    found = outcome_of(compiled, mine)
    wrong = [*outcome.errors, *differences(theirs, mine, "arguments", True, 1e-5)]
    if expected[0] == "raised" or found[0] == "raised":
        wrong += [] if expected == found else [f"eager {expected}, captured {found}"]
    else:
        wrong += differences(expected[1], found[1], "result", True, 1e-5)
        if sharing(expected[1], theirs) != sharing(found[1], mine):
            wrong.append("the results share memory in another way")
    if not torch.equal(state, GENERATOR.get_state()):
        wrong.append("another number of random numbers was drawn")
    return wrong


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("name", CAPTURED)
def test_captured(name: str, backend: str) -> None:
    function, args = CAPTURED[name]
    wrong = _differences(function, args, backend, fullgraph=True)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", NATIVELY)
def test_natively(name: str) -> None:
    function, args, reason, hint = NATIVELY[name]
    wrong = _differences(function, args)
    assert not wrong, "\n".join(wrong)
    with pytest.raises(GraphBreak) as raised, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quickfuse.compile(function, backend="eager", fullgraph=True)(*copy.deepcopy(args))
    assert reason in str(raised.value) and hint in str(raised.value)


@pytest.mark.parametrize("name", RAISING)
def test_raising(name: str) -> None:
    """The exception is eager's, also where the whole function is to be one graph; capture says why there is none."""
    function, args, reason = RAISING[name]
    for fullgraph in (False, True):
        wrong = _differences(function, args, fullgraph=fullgraph)
        assert not wrong, "\n".join(wrong)
    pause = capture(function, copy.deepcopy(args), {}).pause
    assert pause is not None and reason in pause.reason


def test_capture_draws_no_random_numbers() -> None:
    compiled = quickfuse.compile(lambda x: torch.normal(0.0, 1.0, (2,)) + torch.randn(2) + F.dropout(x), backend="eager")
    torch.manual_seed(0)
    before = torch.get_rng_state()
    capture(compiled.function, (torch.ones(2),), {})
    assert torch.equal(torch.get_rng_state(), before)


def test_whether_out_has_a_type_that_fits_is_found_out_without_drawing() -> None:
    compiled = quickfuse.compile(lambda mean, std, out: torch.normal(mean, std, out=out), backend="eager")
    for _ in range(2):
        torch.manual_seed(0)
        expected = torch.normal(2.7, torch.ones(3), out=torch.zeros(3))
        torch.manual_seed(0)
        assert torch.equal(compiled(2.7, torch.ones(3), torch.zeros(3)), expected)


def test_another_generator_is_another_graph() -> None:
    compiled: Any = quickfuse.compile(lambda g: torch.rand(3, generator=g), backend="eager")
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        expected = torch.rand(3, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(compiled(generator), expected)
        assert not torch.equal(compiled(generator), expected), "the generator goes on"


def test_warning_about_the_length_of_out_is_given_once_for_each_call() -> None:
    compiled = quickfuse.compile(lambda x, y: torch.sum(x, 0, out=y))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert compiled(torch.ones(2, 3), torch.empty(2)).shape == (3,)
    assert [str(warning.message)[:9] for warning in caught] == ["An output"] * 3


def test_warning_that_comes_once_is_given() -> None:
    def program(x: T) -> Any:
        return torch.meshgrid(x, x)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_warn_always(True)
        try:
            quickfuse.compile(program, backend="eager")(torch.ones(2))
        finally:
            torch.set_warn_always(False)
    assert any("meshgrid" in str(w.message) for w in caught)


@pytest.mark.usefixtures("forked_interpreters")
def test_common_operators_import_no_compiler() -> None:
    """The first rule of PyTorch's for tensors without data that is written in Python imports half of its compiler."""
    program = (
        "import sys, torch, quickfuse\n"
        "import torch.nn.functional as F\n"
        "def f(x, w, i):\n"
        "    h = F.layer_norm(F.conv2d(x, w, padding=1), (8,)).relu()\n"
        "    h = F.max_pool2d(F.batch_norm(h, None, None, training=True), 2).flatten(1)\n"
        "    h = torch.cat([h, h], 1) @ torch.randn(h.shape[1] * 2, 8)\n"
        "    return F.cross_entropy(F.dropout(h), i), h.softmax(-1).sum(0), h.max(1).values, F.embedding(i, h), h[i]\n"
        "quickfuse.compile(f, backend='eager', fullgraph=True)"
        "(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.tensor([0, 1]))\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("forked_interpreters")
def test_kernels_in_python_do_not_import_the_compiler() -> None:
    """A tensor on a GPU times a number, as within attention: the rule for its shape is a Python function of PyTorch's."""
    program = (
        "import sys, torch\n"
        "from quickfuse.capture.inference import on_device\n"
        "from quickfuse.ir.meta_kernels import light_meta_kernels\n"
        "from quickfuse.ir.values import TensorMeta\n"
        "x = on_device.on_device(TensorMeta(torch.bfloat16, (2, 4), (4, 1), torch.device('cuda')))\n"
        "with light_meta_kernels(), on_device.Dispatching():\n"
        "    y = torch.ops.aten.mul.Scalar(x, 0.5)\n"
        "assert y.dtype is torch.bfloat16 and y.device.type == 'cuda'\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
