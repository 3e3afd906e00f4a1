"""Operators and numbers that fail when they run: the exception is Python's, and what came before has happened."""

import traceback

import pytest
import torch

import quickfuse
from language.harness import BACKENDS, case, check, names, setup, t


def number(value):
    return torch.tensor(value, dtype=torch.float64)


ZERO_OR_NOT = ((t(3), number(2.0)), (t(3), number(0.0)), (t(3), number(-0.0)), (t(3), number(float("nan"))))


# numbers that come out of tensors --------------------------------------------------------------------------------


@case(*ZERO_OR_NOT)
def quotient_of_numbers(x, y):
    return x * (1 / y.item())


@case(*ZERO_OR_NOT)
def whole_quotient_and_remainder(x, y):
    number = y.item()
    return x * (3.5 // number) + 7 % number


@case(*ZERO_OR_NOT)
def quotient_in_place(x, y):
    share = 2.0
    share /= y.item()
    return x + share


@case((t(3), number(3.0), 2.0), (t(3), number(3.0), 0.0), (t(3), number(0.0), 4.0))
def quotient_by_a_number_from_outside(x, y, n):
    return x * (y.item() / n)


@case(*ZERO_OR_NOT)
def quotient_that_nobody_uses(x, y):
    1 / y.item()
    return x + 1


@case((t(3), number(2.0)), (t(3), number(1e200)), (t(3), number(float("inf"))), (t(3), number(-3.0)))
def square_that_overflows(x, y):
    return x * y.item() ** 2


@case((t(3), number(2.0)), (t(3), number(1000.0)), (t(3), number(-1000.0)))
def power_of_a_constant(x, y):
    return x * 10.0 ** y.item()


@case((t(3), number(4.0)), (t(3), number(-4.0)), (t(3), number(0.0)))
def root_that_may_be_complex(x, y):
    root = y.item() ** 0.5
    return x + root.imag if isinstance(root, complex) else x * root


@case((t(3), number(4.0), 2.0), (t(3), number(0.5), -2.0), (t(3), number(-1.0), 0.0), steady="later")
def power_of_a_number_from_outside(x, y, base):
    power = base ** y.item()
    return x + power.real if isinstance(power, complex) else x * power


@case(*ZERO_OR_NOT)
def quotient_behind_a_change_in_place(x, y):
    x.add_(1)
    return x.mul_(1 / y.item())


@case(*ZERO_OR_NOT)
def handled_behind_a_change_in_place(x, y):
    x.add_(1)
    try:
        return x.mul_(1 / y.item())
    except ZeroDivisionError as error:
        return x - 100, str(error)


@case((t(3, grad=True), number(2.0)), (t(3, grad=True), number(0.0)))
def quotient_with_gradients(x, y):
    return (x * (1 / y.item())).sum()


# effects before a failure ----------------------------------------------------------------------------------------

HISTORY = []


@case(*ZERO_OR_NOT)
def list_and_change_in_place_before(x, y):
    HISTORY.append("before")
    x.add_(1)
    HISTORY.extend(["more", y.shape])
    z = x * (1 / y.item())
    HISTORY.append("after")
    return z


@case((t(4, 3), torch.tensor([1, 3])), (t(4, 3), torch.tensor([1, 4])), (t(4, 3), torch.tensor([-4, 0])))
def index_out_of_range(x, k):
    HISTORY.append("before")
    x.mul_(2)
    y = x[k]
    HISTORY.append("after")
    x.mul_(3)
    return y


@case((t(4, 3), torch.tensor([1, 3])), (t(4, 3), torch.tensor([1, 4])), (t(4, 3), torch.tensor([-4, 0])))
def index_out_of_range_in_a_call(x, k):
    x.mul_(2)
    HISTORY.append("before")
    y = torch.gather(x, 0, k[:, None])
    HISTORY.append("after")
    return y.add_(1)


@case((t(3, 3), t(3, 3).mT), (torch.eye(3), torch.zeros(3, 3)), (torch.zeros(3, 3), torch.eye(3)))
def linear_algebra_that_fails(x, y):
    x.add_(0.5)
    HISTORY.append("first")
    x = torch.linalg.inv(x)
    HISTORY.append("second")
    y.add_(0.0)
    y = torch.linalg.inv(y)
    HISTORY.append("third")
    return x @ y


@setup()
def attributes_before():
    class Model:
        def __init__(self):
            self.steps = 0
            self.last = None
            self.weight = torch.ones(4, 3)

    model = Model()

    def step(k, fails):
        model.steps += 1
        model.weight.mul_(0.5)
        model.last = model.weight.sum()
        if fails:
            model.weight.add_(1)
        y = model.weight[k]
        model.steps += 10
        return y.sum() + model.last

    inside, outside = torch.tensor([1, 3]), torch.tensor([1, 40])
    return step, [(inside, False), (outside, False), (inside, True), (outside, True)]


@case((t(4, 3), torch.tensor([1, 3])), (t(4, 3), torch.tensor([1, 4])))
def failure_in_a_called_function(x, k):
    def pick(x, k):
        HISTORY.append("inner")
        return x.index_select(0, k)

    x.mul_(2)
    y = pick(x, k)
    HISTORY.append("outer")
    return y


@case((t(4, 3), torch.tensor([1, 3])), (t(4, 3), torch.tensor([1, 4])))
def failure_after_a_break(x, k):
    print("here")
    x.mul_(2)
    HISTORY.append("before")
    y = x.index_select(0, k)
    HISTORY.append("after")
    return y


@case((t(4, 3, grad=True), torch.tensor([1, 3])), (t(4, 3, grad=True), torch.tensor([1, 4])))
def failure_with_gradients(x, k):
    buffer = torch.zeros(4, 3)
    buffer.add_(1)
    HISTORY.append(buffer)
    y = torch.nn.functional.nll_loss(x.log_softmax(1), k.repeat(2))
    HISTORY.append("after")
    return y


@case((t(4, 3), torch.tensor([1, 3])), (t(4, 3), torch.tensor([1, 4])))
def context_manager_around_a_failure(x, k):
    with Noting() as noting:
        x.mul_(2)
        y = x.index_select(0, k)
        noting.log.append("after")
    return y, noting.log


class Noting:
    def __init__(self):
        self.log = []

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(kind)
        HISTORY.append(len(self.log))
        return False


@setup()
def failure_in_a_module():
    class Table(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("uses", torch.zeros(5))
            self.weight = torch.nn.Parameter(t(5, 3))
            self.calls = 0
            self.last = None

        def forward(self, k):
            self.calls += 1
            self.uses += 1
            self.last = self.uses * 2
            y = torch.nn.functional.embedding(k, self.weight)
            self.calls += 10
            return y.sin()

    table = Table()
    return table, [(torch.tensor([0, 4]),), (torch.tensor([0, 5]),), (torch.tensor([2]),)]


@setup(steady="later")
def failure_in_a_training_step():
    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(6)])
    for number, parameter in enumerate(model.parameters()):
        with torch.no_grad():
            parameter.copy_(t(*parameter.shape, seed=number))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []

    def step(x, k):
        losses.append("begin")
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), k)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss.item(), [p.detach().clone() for p in model.parameters()]

    good, bad = torch.tensor([0, 2]), torch.tensor([0, 3])
    return step, [(t(2, 3), good), (t(2, 3, seed=1), bad), (t(2, 3, seed=2), good), (t(2, 3), bad)]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_failures(name, backend):
    check(__file__, name, backend)


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_failure_behind_a_call_that_stays_one(backend):
    """The graph is in pieces, each of which changes something."""

    def run(uses, w, k):
        uses += 1
        y = Doubled.apply(w.sin() * 2)
        z = torch.nn.functional.embedding(k, y * 3).sin()
        uses += 1
        return z.cos() + uses.sum()

    compiled = quickfuse.compile(run, backend=backend)
    uses, w = torch.zeros(5), t(5, 3, grad=True)
    torch.testing.assert_close(compiled(uses, w, torch.tensor([0, 4])), run(torch.zeros(5), w, torch.tensor([0, 4])))
    with pytest.raises(IndexError, match="out of range") as caught:
        compiled(uses, w, torch.tensor([0, 5]))
    assert caught.value.__context__ is None
    assert torch.equal(uses, torch.full((5,), 3.0))


class Refusing(torch.autograd.Function):
    """Gradients that are refused when they come, or have another shape."""

    @staticmethod
    def forward(ctx, x, kind):
        ctx.kind = kind
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if ctx.kind == 1 and g.abs().sum() > 0:
            raise ArithmeticError("positive")
        return (g[:1] if ctx.kind == 2 else g * 2), None


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_backward_that_fails_after_changes(backend):
    """It does not run a second time, in which autograd would say something else; the traceback has the program's line."""

    def run(model, x, kind):
        loss = Refusing.apply(model(x), kind).pow(2).mean()
        loss.backward()
        return loss.detach()

    found = []
    for function in (run, quickfuse.compile(run, backend=backend)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).double()
        for kind in (0, 2, 2, 1, 1, 0):
            try:
                raised = f"{function(model, torch.randn(4, 4, dtype=torch.float64), kind):.6f}"
            except (ArithmeticError, RuntimeError) as error:
                names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
                raised = f"{type(error).__name__}: {error}, {'run' in names}"
            grads = [None if p.grad is None else f"{p.grad.abs().sum():.6f}" for p in model.parameters()]
            found.append((raised, [f"{b.sum():.6f}" for b in model.buffers()], grads))
    assert found[:6] == found[6:]
