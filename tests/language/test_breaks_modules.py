"""Breaks in modules and training code: forward, hooks, parametrizations, losses, optimizer steps, schedules."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from language.harness import BACKENDS, Keywords, case, check, names, setup, t


@setup()
def break_in_a_submodule():
    class Loud(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.linear = nn.Linear(size, size)
            self.calls = 0

        def forward(self, x):
            y = self.linear(x)
            print("forward")
            self.calls += 1
            return y.relu() + 1

    model = nn.Sequential(Loud(4), nn.Sequential(nn.Tanh(), Loud(4)), nn.Linear(4, 2))
    return model, [(t(2, 4),), (t(2, 4, seed=1),)]


@setup()
def branch_in_a_module_with_gradients():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.left, self.right = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            g = self.gate(x).sigmoid()
            y = self.left(x) * g if g.mean() > 0.5 else self.right(x) * (1 - g)
            return y.sum(-1) * 2

    return Gated(), [(t(3, 4),), (t(3, 4, seed=1),), (-t(3, 4),)]


@setup()
def break_in_a_hook():
    layer = nn.Linear(4, 4)

    def hook(module, args, output):
        if output.abs().max() > 1e6:
            print("overflow")
        print("hook", tuple(output.shape))
        return output * 2

    layer.register_forward_hook(hook)

    def run(x):
        y = layer(x + 1)
        return layer(y) - 1

    return run, [(t(2, 4),), (t(2, 4, seed=1),)]


@setup()
def mixture_of_experts():
    experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
    router = nn.Linear(4, 3)

    def run(x):
        choice = router(x).argmax(-1)
        y = torch.zeros_like(x)
        for k, expert in enumerate(experts):
            rows = (choice == k).nonzero().squeeze(-1)
            if rows.numel() == 0:
                continue
            y[rows] = expert(x[rows]) * 2
        return y + x

    return run, [(t(5, 4),), (t(5, 4, seed=1),), (t(6, 4, seed=2),)]


@setup()
def early_exit():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
            self.exits = 0

        def forward(self, x, limit=0.1):
            for k, layer in enumerate(self.layers):
                new = torch.tanh(layer(x))
                if (new - x).abs().mean() < limit:
                    self.exits += 1
                    return new, k
                x = new
            return x, -1

    return Deep(), [(t(2, 4),), (t(2, 4), Keywords(limit=100.0)), (t(2, 4, seed=1), 0.5)]


@setup()
def check_for_bad_values():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

    def run(x):
        y = model(x)
        if torch.isnan(y).any():
            raise FloatingPointError(f"{int(torch.isnan(y).sum())} values are not numbers")
        if not torch.isfinite(y).all():
            y = y.clamp(-1e3, 1e3)
        return y.mean() * 2

    bad = t(2, 4)
    bad[0, 0] = math.nan
    return run, [(t(2, 4),), (bad,), (t(2, 4, seed=1),)]


@setup()
def loss_is_logged_every_step():
    model = nn.Linear(4, 2)
    history = []

    def run(x, target):
        logits = model(x)
        loss = F.cross_entropy(logits, target)
        history.append(loss.item())
        accuracy = (logits.argmax(-1) == target).float().mean()
        print(f"loss {loss.item():.4f} accuracy {accuracy:.2f}")
        return loss * 1.0 + logits.pow(2).mean() * 0.01

    return run, [(t(3, 4), torch.tensor([0, 1, 1])), (t(3, 4, seed=1), torch.tensor([1, 1, 0]))]


@setup(steady="later")
def training_step_with_prints():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def run(x, target):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if norm > 0.5:
            print("clipped")
        optimizer.step()
        return loss.detach(), norm

    return run, [(t(3, 4), t(3, 1)), (t(3, 4, seed=1), t(3, 1, seed=2))]


@setup(steady="later")
def gradient_scaling_by_hand():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"scale": 4.0, "skipped": 0}

    def run(x):
        optimizer.zero_grad(set_to_none=True)
        (model(x).pow(2).mean() * state["scale"]).backward()
        grads = [p.grad for p in model.parameters()]
        if all(torch.isfinite(g).all() for g in grads):
            for g in grads:
                g.div_(state["scale"])
            optimizer.step()
        else:
            state["skipped"] += 1
            state["scale"] /= 2
        return sum(g.sum() for g in grads), state["scale"]

    overflow = torch.full((2, 4), 1e30)
    return run, [(t(2, 4),), (overflow,), (t(2, 4, seed=1),)]


@setup(steady="later")
def exponential_average_with_warmup():
    model = nn.Linear(4, 4)
    shadow = copy.deepcopy(model)
    state = {"step": 0}

    def run(x):
        state["step"] += 1
        decay = min(0.99, (1 + state["step"]) / (10 + state["step"]))
        with torch.no_grad():
            for a, b in zip(shadow.parameters(), model.parameters()):
                a.mul_(decay).add_(b, alpha=1 - decay)
        if state["step"] % 2 == 0:
            print("even step")
        return shadow(x) - model(x)

    return run, [(t(2, 4),), (t(2, 4, seed=1),)]


@setup()
def parametrization_that_prints():
    class Loud(nn.Module):
        def forward(self, w):
            print("weight", tuple(w.shape))
            return w * 2

    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", Loud())

    def run(x):
        return layer(x + 1).relu() * 2

    return run, [(t(2, 4),), (t(2, 4, seed=1),)]


@setup()
def dropout_schedule():
    dropout = nn.Dropout(0.1)

    def run(x, step):
        dropout.p = min(0.5, 0.1 * step)
        y = dropout(x * 2)
        if step > 2:
            print("p is", dropout.p)
        return y + F.dropout(x, dropout.p, training=dropout.training)

    return run, [(t(3, 4), 1), (t(3, 4), 4), (t(3, 4), 9)]


@setup()
def sampling_from_a_model():
    head = nn.Linear(4, 6)

    def run(x, temperature):
        logits = head(x) / temperature
        probabilities = logits.softmax(-1)
        token = torch.multinomial(probabilities, 1)
        if token[0].item() == 0:
            return logits * 0, token
        return probabilities.log() + 1, token

    return run, [(t(2, 4), 1.0), (t(2, 4, seed=1), 0.5)]


@setup()
def padding_by_the_longest():
    embed = nn.Embedding(10, 4)

    def run(sequences):
        longest = max(len(s) for s in sequences)
        rows = [F.pad(torch.tensor(s), (0, longest - len(s)), value=0) for s in sequences]
        batch = torch.stack(rows)
        mask = batch != 0
        y = embed(batch) * mask.unsqueeze(-1)
        return y.sum(1) / mask.sum(1, keepdim=True), mask

    return run, [([[1, 2, 3], [4]],), ([[5], [6, 7]],)]


@case((t(6, 2),), (t(6, 2, seed=1),))
def k_means(points):
    centers = points[:2].clone()
    for _ in range(5):
        distance = torch.cdist(points, centers)
        nearest = distance.argmin(1)
        new = torch.stack([points[nearest == k].mean(0) if (nearest == k).any() else centers[k] for k in range(2)])
        if torch.allclose(new, centers):
            break
        centers = new
    return centers * 2, nearest


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_breaks_modules(name, backend):
    check(__file__, name, backend)
