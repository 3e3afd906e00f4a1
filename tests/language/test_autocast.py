"""`torch.autocast`: as a context, a decorator, nested, switched off, around and inside of the compiled function."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from language.harness import BACKENDS, case, check, names, setup, t


def leaf(*shape, seed=0):
    return t(*shape, seed=seed, grad=True)


def types(*tensors):
    return [x.dtype for x in tensors]


@case((t(3, 4), t(4, 3)), (t(3, 4, seed=1), t(4, 3, seed=2)), graphs=1)
def block(x, w):
    before = torch.mm(x, w)
    with torch.autocast("cpu"):
        y = torch.mm(x, w)
        z = y + x.sum()
        s = F.softmax(y, -1)
    return before, y, z, s, torch.mm(x, w), types(y, z, s)


@case((t(3, 4), t(4, 3)), (t(3, 4, seed=1), t(4, 3, seed=2)), graphs=1)
def block_with_a_type(x, w):
    with torch.autocast("cpu", dtype=torch.float16):
        y = torch.mm(x, w)
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16, cache_enabled=False):
        z = F.linear(x, w.t())
    return y, z, y.dtype is torch.float16


@case((t(3, 4), t(4, 3), True), (t(3, 4), t(4, 3), False), graphs=1)
def switched_by_an_argument(x, w, mixed):
    with torch.autocast("cpu", enabled=mixed):
        y = x @ w
        if torch.is_autocast_enabled("cpu"):
            y = y * 2
    return y, torch.is_autocast_enabled("cpu")


@case((t(3, 4), t(4, 3)), (t(2, 4), t(4, 2)), graphs=1)
def nested(x, w):
    with torch.autocast("cpu"):
        a = x @ w
        with torch.autocast("cpu", enabled=False):
            b = x @ w
            with torch.autocast("cpu", dtype=torch.float16):
                c = x @ w
            d = x @ w
        e = x @ w
    return a, b, c, d, e, x @ w


@case((leaf(3, 4), leaf(4, 3)), (leaf(3, 4, seed=1), leaf(4, 3, seed=1)), graphs=1)
def with_gradients(x, w):
    with torch.autocast("cpu"):
        y = (x @ w).relu() @ w.t()
        loss = F.mse_loss(y.float(), x.detach())
    return loss, y


@case((t(3, 4), leaf(4, 3)), (t(3, 4, seed=1), leaf(4, 3, seed=1)), graphs=1)
def with_grad_modes_inside(x, w):
    with torch.autocast("cpu"), torch.no_grad():
        y = x @ w
        with torch.enable_grad():
            z = y @ w.t()
    return y, z, y.requires_grad, z.requires_grad


@torch.autocast("cpu")
def decorated_function(x, w):
    return x @ w, x.exp()


@case((t(3, 4), t(4, 3)), (t(3, 4, seed=1), t(4, 3, seed=2)), graphs=1)
def decorated(x, w):
    a, b = decorated_function(x, w)
    return a, b, x @ w


@setup()
def decorated_itself():
    run = torch.autocast("cpu", dtype=torch.float16)(lambda x, w: x @ w + 1)
    return run, [(t(3, 4), t(4, 3)), (t(3, 4, seed=1), t(4, 3, seed=1))]


@case((t(3, 4), t(4, 3)), (t(3, 4, seed=1), t(4, 3, seed=2)))
def break_inside(x, w):
    with torch.autocast("cpu"):
        y = x @ w
        print(y.dtype)
        if y.float().sum() > 0:
            y = y @ w.t().bfloat16()
        z = x @ w
    return y, z, x @ w


@case((t(3, 4), t(4, 3), 0), (t(3, 4), t(4, 3), 1), (t(3, 4), t(4, 3), 2))
def exception_inside(x, w, n):
    try:
        with torch.autocast("cpu"):
            y = x @ w
            if n == 1:
                raise ValueError("n")
            if n == 2:
                y = y @ w @ w
    except (ValueError, RuntimeError) as error:
        y = str(error)[:20]
    return y, x @ w, torch.is_autocast_enabled("cpu")


@case((t(3, 4), t(4, 3)), (t(3, 4, seed=1), t(4, 3, seed=2)), graphs=1)
def without_operators_inside(x, w):
    with torch.autocast("cpu"):
        mixed = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return x @ w, mixed


@case((t(3, 4), t(4, 3)), (t(3, 4, seed=1), t(4, 3, seed=2)))
def left_switched_on(x, w):
    torch.set_autocast_enabled("cpu", True)
    try:
        y = x @ w
        print("on", torch.is_autocast_enabled("cpu"))
        z = x @ w
    finally:
        torch.set_autocast_enabled("cpu", False)
    return y, z, x @ w


@case((t(3, 4), t(4, 3)), (t(3, 4, seed=1), t(4, 3, seed=2)))
def type_that_is_not_supported(x, w):
    with torch.autocast("cpu", dtype=torch.float64):
        y = x @ w
    return y


@setup()
def operators_of_many_kinds():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3),
    )  # fmt: skip

    def run(x, y):
        with torch.autocast("cpu"), torch.no_grad():
            logits = model(x)
            loss = F.cross_entropy(logits, y) + torch.cat([logits, logits.float()]).pow(2).mean()
            parts = torch.stack([logits[0], logits[1].float()]), torch.einsum("ij,kj->ik", logits, logits)
        return loss, logits, parts

    target = torch.tensor([0, 2])
    return run, [(t(2, 2, 4, 4), target), (t(2, 2, 4, 4, seed=1), target)]


@setup()
def attention_and_recurrence():
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    cell = torch.nn.LSTMCell(8, 4)

    def run(x):
        with torch.autocast("cpu"):
            y, weights = attention(x, x, x)
            h, c = cell(y[:, 0])
            z = F.scaled_dot_product_attention(y, y, y)
        return y, weights, h, c, z

    return run, [(t(2, 3, 8),), (t(2, 3, 8, seed=1),)]


class Square(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g @ x.t() + x.t() @ g


@case((leaf(3, 3),), (leaf(3, 3, seed=1),))
def custom_function_that_knows_of_it(x):
    with torch.autocast("cpu"):
        y = Square.apply(x * 2)
    return y, y.float() + 1


class Wide(torch.autograd.Function):
    """Leaves autocast for its own operators, forward and backward."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        return g * 2


class WithBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ x.t()).float()

    @staticmethod
    def backward(ctx, g):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return (g @ g.t()).float()


@case((leaf(3, 3),), (leaf(3, 3, seed=1),))
def custom_function_that_leaves_it(x):
    with torch.autocast("cpu", torch.bfloat16):
        return Wide.apply(x @ x.t())


@case((leaf(3, 3),), (leaf(3, 3, seed=1),))
def gradients_through_a_custom_function_that_leaves_it(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = Wide.apply(x @ x.t()).sum()
    return torch.autograd.grad(y, x)[0] + 1


@case((leaf(3, 3),), (leaf(3, 3, seed=1),))
def custom_function_with_blocks(x):
    y = WithBlocks.apply(x)
    with torch.autocast("cpu", enabled=False):
        z = WithBlocks.apply(x * 2)
    with torch.autocast("cpu", torch.bfloat16):
        return y, z, WithBlocks.apply(x @ x)


@case((leaf(3, 3),), (leaf(3, 3, seed=1),))
def gradients_through_a_custom_function_with_blocks(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = WithBlocks.apply(x @ x.t()).sum() + WithBlocks.apply(x).sum()
    return torch.autograd.grad(y, x)[0] + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_autocast(name, backend):
    check(__file__, name, backend)


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_around_the_compiled_function(backend):
    def run(x, w):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = x @ w
        return y, z, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    compiled = quickfuse.compile(run, backend=backend, fullgraph=True)
    x, w = t(3, 4), t(4, 3)
    contexts = [{}, {"enabled": False}, {"dtype": torch.float16}, {"cache_enabled": False}]
    for _ in range(2):
        for options in contexts:
            with torch.autocast("cpu", **options):
                expected, found = run(x, w), compiled(x, w)
            assert expected[2:] == found[2:]
            for a, b in zip(expected[:2], found[:2], strict=True):
                assert a.dtype is b.dtype
                torch.testing.assert_close(a, b)
        assert compiled(x, w)[0].dtype is torch.float32
    assert compiled.graph_count == 4


def test_weights_are_converted_anew_after_a_step():
    linear = torch.nn.Linear(4, 3)

    @quickfuse.compile(backend="eager")
    def run(x):
        with torch.autocast("cpu"):
            return linear(x) + linear(x)

    x = t(2, 4)
    for _ in range(3):
        with torch.autocast("cpu"):
            expected = linear(x) + linear(x)
        assert torch.equal(run(x), expected)
        with torch.no_grad():
            linear.weight.add_(1)


def _index_and_drop(x):
    y = F.dropout(x * 2, 0.25)
    y[:, 1] -= 4.0
    y[torch.tensor([0, 2])] /= 2
    return y @ x.mT


def _changed_layouts(x):
    y, z, w = x.clone().t_(), x.clone().resize_(2, 2), x.clone().unsqueeze_(0)
    return y.shape, y @ x, z.shape, w.shape, w + 1


def _step(x, weight):
    """Autocast goes on with its converted copy of a weight that has changed."""
    loss = F.linear(x, weight).square().mean()
    (grad,) = torch.autograd.grad(loss, weight)
    with torch.no_grad():
        weight -= 0.1 * grad
    return loss.detach()


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("run", [_index_and_drop, _changed_layouts, _step], ids=lambda run: run.__name__)
def test_left_on_around_the_call(run, backend):
    compiled = quickfuse.compile(run, backend=backend)
    results = []
    for function in (run, compiled):
        weight = torch.ones(2, 4, requires_grad=True)
        more = (weight,) if run is _step else ()
        with torch.autocast("cpu", torch.bfloat16):
            torch.manual_seed(3)
            results.append([function(t(3, 4), *more) for _ in range(3)])
        results[-1].append(weight.detach())
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert not any("raises" in pause.reason for pause in compiled.breaks)


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def test_leaving_a_block_after_a_break_in_it() -> None:
    """The graph that leaves it takes gradients, for which capture runs it. Blocks that seem nested keep old weights."""
    linear = torch.nn.Linear(4, 4)

    @quickfuse.compile
    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = linear(x).detach()
            print(end="")
            y = linear(y)
        loss = (y.float() * x).sum()
        loss.backward()
        return loss.detach()

    for _ in range(3):
        step(t(2, 4))
        assert _nesting() == 0


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.no_such_attribute if x.ndim == 1 else x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("shape", [(3, 4), (4,)], ids=["returns", "raises"])
def test_left_as_it_was_around_a_custom_function(shape, backend) -> None:
    """Finding out what its backward does, or that its forward raises, is no reason to stay in the block."""
    weight = leaf(4, 4)

    @quickfuse.compile(backend=backend)
    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            loss = _Doubled.apply(x @ weight).sum()
        loss.backward()
        return loss.detach()

    for _ in range(3):
        with contextlib.suppress(AttributeError):
            step(t(*shape))
        assert not torch.is_autocast_enabled("cpu")
        assert _nesting() == 0


@pytest.mark.filterwarnings("ignore")
def test_by_its_older_name() -> None:
    """`torch.cuda.amp.autocast`, which does nothing here without a GPU: as a decorator and as a context."""
    older = torch.cuda.amp.autocast

    @older()
    def decorated(x):
        return torch.mm(x, x).sin()

    def program(x):
        with older(enabled=False):
            y = torch.mm(x, x).cos()
        return decorated(x) + y

    compiled = quickfuse.compile(program)
    for seed in range(3):
        torch.testing.assert_close(compiled(t(3, 3, seed=seed)), program(t(3, 3, seed=seed)))
    assert compiled.graph_count == 1 and not compiled.breaks


@pytest.mark.usefixtures("forked_interpreters")
def test_capture_imports_no_compiler(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\nfrom quickfuse.capture import capture\n"
        "linear = torch.nn.Linear(4, 4)\n"
        "def run(x):\n    with torch.autocast('cpu', torch.bfloat16):\n        return linear(x).softmax(-1)\n"
        "capture(run, (torch.randn(3, 4),), {})\n"
        "print([name for name in ('torch.distributed.tensor', 'torch._dynamo', 'sympy') if name in sys.modules])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(quickfuse.__file__).resolve().parents[1])}
    found = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
