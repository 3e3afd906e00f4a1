"""Loops of so many turns that a graph of all of them would be too large: each turn gets one. The limits are lower here."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quickfuse
from quickfuse.capture.execution import loops
from whole_programs import Programs, weights

programs = Programs()


@pytest.fixture(autouse=True)
def lower_limits(monkeypatch):
    monkeypatch.setattr(loops, "LARGEST_TRAINING_LOOP", 40)
    monkeypatch.setattr(loops, "LARGEST_LOOP", 60)
    monkeypatch.setattr(loops, "SMALL_TURN", 3)
    monkeypatch.setattr(loops, "FEWEST_TURNS", 8)


def small():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 3))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def data(n, size=3):
    return [(torch.randn(size, 4), torch.randint(0, 3, (size,))) for _ in range(n)]


@programs.add
def all_steps(compiled):
    """A whole training in one function, which prints now and then and stops early."""
    model, optimizer = small()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    inputs, labels = torch.randn(30, 4), torch.randint(0, 3, (30,))

    def train(n, patience):
        total, best, bad = 0.0, float("inf"), 0
        for i in range(n):
            k = torch.randint(0, 30, (6,))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[k]), labels[k])
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
            if i % 4 == 0:
                print(f"step {i}: {loss.item():.2f}, lr {scheduler.get_last_lr()[0]:.5f}")
            if loss.item() < best - 1e-3:
                best, bad = loss.item(), 0
            else:
                bad += 1
                if bad > patience:
                    break
        else:
            print("to the end")
        return total / (i + 1), i

    run = compiled(train)
    runs = [run(n, patience) for n, patience in ((12, 50), (12, 3), (17, 50))]
    return runs, weights(model), optimizer.state_dict()["state"]


@programs.add
def epochs_in_a_called_function(compiled):
    """Loops within loops, in functions that a compiled one calls, with gradients of several batches for a step."""
    model, optimizer = small()
    batches = data(6)

    def epoch(number, history):
        model.train()
        for index, (x, y) in enumerate(batches):
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            if (index + 1) % 2 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad(set_to_none=number % 2 == 0)
            history.append(loss.detach())
        model.eval()
        with torch.no_grad():
            return sum((model(x).argmax(1) == y).sum().item() for x, y in batches)

    def fit(epochs):
        history, right = [], []
        try:
            for number in range(epochs):
                right.append(epoch(number, history))
        finally:
            optimizer.zero_grad()
        return torch.stack(history), right

    run = compiled(fit)
    return run(3), run(2), weights(model)


@programs.add
def steps_in_a_comprehension(compiled):
    model, optimizer = small()
    batches = data(9)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batches_of(n):
        for k in range(n):
            yield batches[k % 9]

    both = compiled(lambda: [step(x, y) for x, y in batches]), compiled(lambda: [step(*b) for b in batches_of(12)])
    return [run() for run in both * 2], weights(model)


@programs.add
def sampling(compiled):
    """A diffusion model's samples, without gradients."""
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4))
    beta = torch.linspace(0.01, 0.2, 24)
    alpha = torch.cumprod(1 - beta, 0)

    @torch.no_grad()
    def sample(x):
        kept = []
        for k in reversed(range(24)):
            noise = torch.randn_like(x) if k > 0 else torch.zeros_like(x)
            x = (x - beta[k] / (1 - alpha[k]).sqrt() * model(x)) / (1 - beta[k]).sqrt() + beta[k].sqrt() * noise
            if k % 5 == 0:
                kept.append(x.clone())
        return x, kept

    run = compiled(sample)
    return [run(torch.randn(2, 4)) for _ in range(3)]


@programs.add
def simulation(compiled):
    """A `while` loop, with state in an object."""

    class World:
        def __init__(self):
            self.x, self.v, self.time = torch.randn(5), torch.zeros(5), 0.0
            self.seen = []

        def run(self, until):
            while self.time < until:
                self.v = self.v - 0.1 * self.x + 0.01 * (self.x.roll(1) - self.x)
                self.x += 0.1 * self.v
                self.time += 0.1
                self.seen.append(self.x.abs().max())
            return self.time

    worlds = [World() for _ in range(3)]
    run = compiled(World.run)
    return [[run(world, until), world.x, world.v, world.seen] for world in worlds for until in (2.0, 5.0)]


@programs.in_each_backend
def test_loop_of_many_turns(name, backend):
    programs.compare(name, backend)


def test_one_graph_for_all_turns():
    model, optimizer = small()
    batches = data(50)

    def train():
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    run = quickfuse.compile(train)
    run()
    assert run.graph_count <= 6
    assert [broken.reason for broken in run.breaks] == ["a loop of many training steps, which get a graph each"]


def test_small_turns_stay_one_graph_for_longer(monkeypatch):
    monkeypatch.setattr(loops, "SMALL_TURN", 100)
    cell = nn.RNNCell(3, 4)

    def unrolled(x):
        h, states = torch.zeros(2, 4), []
        for step in x:
            h = cell(step, h)
            states.append(h * 2 + 1)
        return states

    for most, is_one in ((1_000, True), (60, False)):
        monkeypatch.setattr(loops, "LARGEST_LOOP_OF_SMALL_TURNS", most)
        run = quickfuse.compile(unrolled)
        with torch.no_grad():
            x = torch.randn(60, 2, 3)
            torch.testing.assert_close(run(x), unrolled(x))
        assert (run.graph_count == 1) is is_one


def test_gradients_through_all_turns_stay_one_graph():
    cell = nn.RNNCell(3, 4)

    def unrolled(x):
        h = torch.zeros(2, 4)
        for k in range(20):
            h = cell(x[k], h)
        return h.sum()

    x = torch.randn(20, 2, 3)
    run = quickfuse.compile(unrolled, fullgraph=False)
    run(x).backward()
    found = cell.weight_hh.grad.clone()
    cell.zero_grad()
    unrolled(x).backward()
    torch.testing.assert_close(found, cell.weight_hh.grad)
    assert run.graph_count == 1 and not run.breaks
