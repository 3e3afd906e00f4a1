"""Operators that fail in a `try` statement, after changes in place."""

import pytest
import torch

import quickfuse


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)
        self.table = torch.nn.Embedding(3, 2)
        self.seen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)

    def forward(self, x, index):
        x = self.norm(x)
        y = x.exp()
        try:
            try:
                self.seen.add_(1)
                y = y + self.table(index) * x
                x = torch.linalg.inv(y)
            finally:
                self.seen.mul_(3)
            y = y[index - 1]
        except (IndexError, RuntimeError) as error:
            y = y * 3 + self.seen
            x = x + len(str(error))
        self.seen.sub_(1)
        return y + x, torch.rand(2)


def dividing(x, index):
    index.add_(1)
    try:
        y = 12 // index
        index.mul_(2)
        y = y + 24 // (index - 4)
    except (RuntimeError, ZeroDivisionError):
        y = index + 0.5
    return x * y


X = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
INDICES = [[0, 2], [1, 1], [0, 3], [2, 0], [-4, 1], [5, 5], [1, 2]]


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("grad", [False, True])
def test_module(backend, grad):
    torch.manual_seed(0)
    ours, eager = Counting(), Counting()
    eager.load_state_dict(ours.state_dict())
    compiled = quickfuse.compile(ours, backend=backend)
    for k, index in enumerate(INDICES):
        results = []
        for module, state in ((compiled, ours), (eager, eager)):
            torch.manual_seed(k)
            state.zero_grad()
            with torch.set_grad_enabled(grad):
                y, drawn = module(X, torch.tensor(index))
            if grad:
                y.square().mean().backward()
            gradients = [p.grad for p in state.parameters() if p.grad is not None]
            results.append((y, drawn, gradients, dict(state.named_buffers()), state.seen.clone()))
        torch.testing.assert_close(*results)
        assert k or backend == "eager" or compiled._compiled.graph_count == 1


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_divisions(backend):
    compiled = quickfuse.compile(dividing, backend=backend)
    for values in ([1, 2], [-1, 2], [1, 1], [0, 0], [3, 1], [-1, -1]):
        a, b = torch.tensor(values), torch.tensor(values)
        torch.testing.assert_close(compiled(X, a), dividing(X, b))
        assert a.tolist() == b.tolist()


@pytest.mark.parametrize("backend", ["eager", "quickfuse", lambda module, inputs: module.forward])
def test_inference_mode_and_other_backends(backend):
    torch.manual_seed(0)
    ours, eager = Counting(), Counting()
    eager.load_state_dict(ours.state_dict())
    compiled = quickfuse.compile(ours, backend=backend)
    for index in INDICES:
        with torch.inference_mode():
            torch.testing.assert_close(compiled(X, torch.tensor(index))[0], eager(X, torch.tensor(index))[0])
            torch.testing.assert_close(ours.state_dict(), eager.state_dict())


def test_failure_of_ours(monkeypatch, caplog):
    """Where the compiler cannot go on by its own fault, it says so, and the operator's exception is raised."""

    def fail(*_):
        raise ValueError("our own")

    def function(x, index):
        x.mul_(2)
        return x[index]

    compiled = quickfuse.compile(function, backend=lambda module, inputs: module.forward)
    compiled(X.clone(), torch.tensor([0]))
    monkeypatch.setattr(quickfuse.pipeline.interrupted, "_suspended", fail)
    with pytest.raises(quickfuse.errors.InternalError):
        compiled(X.clone(), torch.tensor([2]))
    monkeypatch.setattr(quickfuse.config, "raise_internal_errors", False)
    with pytest.raises(IndexError), caplog.at_level("WARNING", "quickfuse"):
        compiled(X.clone(), torch.tensor([2]))
    assert "internal error while going on after an operator that failed (ValueError: our own)" in caplog.text


REFUSED = {
    "std": lambda x: x.std(),
    "var": lambda x: torch.var_mean(x, 0)[0],
    "bernoulli": lambda x: x.bernoulli(),
    "bernoulli of a tensor": lambda x: torch.empty(3).bernoulli_(x.float()),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "fft": lambda x: torch.fft.fft(x.half()).real.float(),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 3)] * 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_operands_that_an_operator_refuses(name, dtype):
    def change(x, y):
        y.copy_(y * 2)
        try:
            result = REFUSED[name](x)
        except (RuntimeError, NotImplementedError) as error:
            return type(error).__name__
        return result

    compiled = quickfuse.compile(change, options={"raise_internal_errors": True})
    for value in (1, 3):
        x = torch.full((3,), value).to(dtype)
        results = []
        for function in (change, compiled):
            torch.manual_seed(value)
            y = torch.ones(3)
            results.append((function(x, y), y, torch.rand(2)))
        if type(results[0][0]) is str:
            assert results[0][0] == results[1][0]
            results = [result[1:] for result in results]
        torch.testing.assert_close(*results)


def test_a_part_of_a_graph_between_calls():
    """What fails is inside a compiled part; before it the step has let go of its gradients."""

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 5)

        def forward(self, x):
            return self.head(torch.utils.checkpoint.checkpoint(self.one, x, use_reentrant=False))

    def run(compile_function):
        torch.manual_seed(0)
        model, teacher = Layers(), Layers().requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x, target):
            with torch.no_grad():
                soft = teacher(x)
            optimizer.zero_grad()
            out = model(x)
            loss = torch.nn.functional.cross_entropy(out, target) + torch.nn.functional.mse_loss(out, soft)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for t, p in zip(teacher.parameters(), model.parameters(), strict=True):
                    t.data = 0.9 * t.data + 0.1 * p.data
            return loss.detach()

        step = compile_function(step)
        for k in range(4):
            x, target = torch.randn(4, 6), torch.randint(5, (4,)) if k % 2 == 0 else torch.full((4,), 77)
            try:
                yield step(x, target)
            except IndexError as error:
                yield torch.tensor(list(str(error).encode()))
            yield [torch.zeros(0) if p.grad is None else p.grad.clone() for p in model.parameters()]
            yield [p.detach().clone() for p in (*model.parameters(), *teacher.parameters())]

    for mine, theirs in zip([*run(quickfuse.compile)], [*run(lambda function: function)], strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_loss_that_refuses_negative_variances(reduction):
    def loss(x, target, variance):
        return torch.nn.functional.gaussian_nll_loss(x, target, variance, full=True, reduction=reduction)

    compiled = quickfuse.compile(loss)
    for shape in ((3, 4), (3,), (3, 1)):
        operands = [torch.randn(3, 4, requires_grad=True), torch.randn(3, 4), torch.rand(shape, requires_grad=True)]
        made, wanted = compiled(*operands), loss(*operands)
        torch.testing.assert_close(made, wanted)
        wrt = operands[::2]
        torch.testing.assert_close(
            torch.autograd.grad(made.sum(), wrt), torch.autograd.grad(wanted.sum(), wrt)
        )
        with pytest.raises(ValueError, match="negative"):
            compiled(*operands[:2], -operands[2])
    assert compiled.graph_count == 3 and not compiled.breaks
