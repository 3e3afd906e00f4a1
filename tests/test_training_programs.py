"""Trainers as people write them, with what they hang on models: state, weights and printed output equal eager's."""

# ruff: noqa: B905  (programs are written as their authors would)

from __future__ import annotations

import copy
import math
from collections import defaultdict, deque
from dataclasses import asdict, dataclass, field, replace

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from torch.nn.utils import prune

from whole_programs import Programs, weights

PROGRAMS = Programs()
program = PROGRAMS.add


def mlp(*sizes, dropout=0.0):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()] + ([nn.Dropout(dropout)] if dropout else [])
    return nn.Sequential(*layers[: -2 if dropout else -1])


def batches(n, size=4, features=6, classes=3):
    return [(torch.randn(size, features), torch.randint(0, classes, (size,))) for _ in range(n)]


# a trainer with callbacks ----------------------------------------------------------------------------------------


@dataclass
class Config:
    lr: float = 0.1
    momentum: float = 0.9
    accumulate: int = 2
    clip: float | None = 1.0
    ema: float = 0.9
    label_smoothing: float = 0.1
    schedule: str = "cosine"
    tags: list[str] = field(default_factory=lambda: ["base"])

    def __post_init__(self):
        if self.accumulate < 1:
            raise ValueError("accumulate must be positive")


class Callback:
    def on_batch(self, trainer, loss):
        pass

    def on_epoch(self, trainer, epoch, logs):
        pass


class History(Callback):
    def __init__(self):
        self.losses = defaultdict(list)
        self.recent = deque(maxlen=3)

    def on_batch(self, trainer, loss):
        self.recent.append(loss.detach())
        self.losses[trainer.epoch].append(loss.detach())

    def on_epoch(self, trainer, epoch, logs):
        logs["smooth"] = sum(self.recent) / len(self.recent)


class EarlyStopping(Callback):
    def __init__(self, patience=1, delta=1e-4):
        self.best, self.patience, self.waited, self.delta = math.inf, patience, 0, delta

    def on_epoch(self, trainer, epoch, logs):
        value = float(logs["loss"])
        if value < self.best - self.delta:
            self.best, self.waited = value, 0
            trainer.best_state = copy.deepcopy(trainer.model.state_dict())
        else:
            self.waited += 1
            if self.waited > self.patience:
                print(f"stop at epoch {epoch}: {value:.3f}")
                trainer.should_stop = True


class Trainer:
    def __init__(self, model, config, callbacks, compiled):
        self.model, self.config, self.callbacks = model, config, callbacks
        self.optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum)
        self.averaged = copy.deepcopy(model).requires_grad_(False)
        self.step_count, self.epoch, self.should_stop, self.best_state = 0, 0, False, None
        self.train_step = compiled(self.train_step)
        self.evaluate = compiled(self.evaluate)

    @property
    def lr(self):
        return self.optimizer.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value):
        for group in self.optimizer.param_groups:
            group["lr"] = value

    def adjust_lr(self):
        match self.config.schedule:
            case "cosine":
                self.lr = self.config.lr * 0.5 * (1 + math.cos(math.pi * min(self.step_count, 10) / 10))
            case "constant":
                pass

    def train_step(self, x, y):
        loss = F.cross_entropy(self.model(x), y, label_smoothing=self.config.label_smoothing) / self.config.accumulate
        loss.backward()
        self.step_count += 1
        if self.step_count % self.config.accumulate == 0:
            if self.config.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
            self.adjust_lr()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for average, parameter in zip(self.averaged.parameters(), self.model.parameters()):
                    average.mul_(self.config.ema).add_(parameter, alpha=1 - self.config.ema)
        for callback in self.callbacks:
            callback.on_batch(self, loss)
        return loss

    @torch.no_grad()
    def evaluate(self, x, y):
        was_training = self.model.training
        self.model.eval()
        try:
            logits = self.averaged(x)
            return {"loss": F.cross_entropy(logits, y), "accuracy": (logits.argmax(1) == y).float().mean()}
        finally:
            self.model.train(was_training)

    def fit(self, data, valid, epochs):
        for self.epoch in range(epochs):
            for x, y in data:
                self.train_step(x, y)
            logs = self.evaluate(*valid)
            for callback in self.callbacks:
                callback.on_epoch(self, self.epoch, logs)
            if self.should_stop:
                break
        return logs


@program
def trainer_with_callbacks(compiled):
    results = []
    for config in (Config(), replace(Config(), clip=None, accumulate=1, schedule="constant", lr=1.5)):
        torch.manual_seed(1)
        history, stopping = History(), EarlyStopping()
        trainer = Trainer(mlp(6, 8, 3), config, [history, stopping], compiled)
        logs = trainer.fit(batches(4), batches(1)[0], 5)
        results.append((logs, dict(history.losses), stopping.best, trainer.lr, trainer.step_count, trainer.epoch))
        results.append((weights(trainer.model), weights(trainer.averaged), trainer.best_state, list(asdict(config))))
    return results


# mixed precision -------------------------------------------------------------------------------------------------


@program
def scaler_on_the_cpu(compiled):
    model = mlp(6, 8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

    @compiled
    def step(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach(), norm

    found = []
    for k, (x, y) in enumerate(batches(5)):
        if k == 2:
            x = x * math.inf
        found.append((step(x, y)[0].float(), scaler.get_scale()))
    return [loss.isfinite() for loss, _ in found], [scale for _, scale in found]


@program
def autocast_around_the_step(compiled):
    model = mlp(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = compiled(lambda x, y: F.cross_entropy(model(x).float(), y))
    losses = []
    for x, y in batches(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = step(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, weights(model)


# custom autograd functions ---------------------------------------------------------------------------------------


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x)
        ctx.levels = levels
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1).to(grad.dtype), None


class GradientReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        ctx.mark_non_differentiable()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.neg() * ctx.weight, None


class ClippedIdentity(torch.autograd.Function):
    @staticmethod
    def forward(x, low, high):
        return x.clamp(low, high), x > high

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.low, ctx.high = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return torch.where(((x < ctx.low) & (grad > 0)) | ((x > ctx.high) & (grad < 0)), 0.0, grad), None, None


@program
def quantised_training_with_custom_functions(compiled):
    features, head, domain = mlp(6, 8), nn.Linear(8, 3), nn.Linear(8, 2)
    optimizer = torch.optim.Adam([*features.parameters(), *head.parameters(), *domain.parameters()], lr=0.02)

    @compiled
    def step(x, y, d, p):
        z = StraightThrough.apply(features(x).tanh(), 4)
        clipped, above = ClippedIdentity.apply(z * 2, -1.0, 1.0)
        weight = 2.0 / (1.0 + math.exp(-10 * p)) - 1
        loss = F.cross_entropy(head(clipped), y) + F.cross_entropy(domain(GradientReversal.apply(z, weight)), d)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), above.sum()

    out = [step(x, y, y % 2, k / 5) for k, (x, y) in enumerate(batches(5))]
    return out, weights(features), weights(head), weights(domain)


# learning-rate finder --------------------------------------------------------------------------------------------


class LearningRateFinder:
    def __init__(self, model, optimizer, compiled):
        self.model, self.optimizer = model, optimizer
        self.saved = (copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()))
        self.history = {"lr": [], "loss": []}
        self.step = compiled(self._step)

    def _step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.history["lr"].append(self.optimizer.param_groups[0]["lr"])
        return loss.item()

    def run(self, x, y, start=1e-4, end=10.0, steps=8, smoothing=0.3):
        scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: (end / start) ** (k / (steps - 1)))
        for group in self.optimizer.param_groups:
            group["lr"] = start
        best = average = None
        for k in range(steps):
            loss = self.step(x, y)
            scheduler.step()
            average = loss if average is None else smoothing * loss + (1 - smoothing) * average
            self.history["loss"].append(average)
            best = average if best is None else min(best, average)
            if average > 4 * best or not math.isfinite(average):
                print("diverged at", k)
                break
        self.model.load_state_dict(self.saved[0])
        self.optimizer.load_state_dict(self.saved[1])
        return self.history["lr"][max(len(self.history["lr"]) // 2, 0)]


@program
def learning_rate_finder(compiled):
    model = mlp(6, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    finder = LearningRateFinder(model, optimizer, compiled)
    x = torch.randn(16, 6)
    found = finder.run(x, x.sum(1, keepdim=True))
    losses = [finder.step(x, x.sum(1, keepdim=True)) for _ in range(3)]
    return found, finder.history, losses, weights(model)


# parametrizations, norms of weights and pruning ------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).mT

    def right_inverse(self, a):
        return a.triu()


@program
def parametrizations(compiled):
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    nn.utils.parametrizations.weight_norm(model[2])
    nn.utils.parametrizations.spectral_norm(model[4])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compiled(step)
    x = torch.randn(4, 5)
    losses = [step(x) for _ in range(4)]
    with parametrize.cached():
        losses.append(step(x))
    model.eval()
    losses += [compiled(model)(x).detach(), torch.tensor(torch.equal(model[0].weight, model[0].weight.mT))]
    parametrize.remove_parametrizations(model[0], "weight")
    losses += [step(x), step(x)]
    return losses, weights(model)


@program
def old_norms_of_weights(compiled):
    model = nn.Sequential(
        nn.utils.weight_norm(nn.Linear(5, 6)), nn.ReLU(), nn.utils.spectral_norm(nn.Linear(6, 3), n_power_iterations=2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    @compiled
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x = torch.randn(4, 5)
    losses = [step(x) for _ in range(3)]
    nn.utils.remove_weight_norm(model[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses += [step(x) for _ in range(2)]
    return losses, weights(model)


@program
def pruning_between_epochs(compiled):
    model = mlp(6, 10, 3)
    step = compiled(lambda x, y: F.cross_entropy(model(x), y))
    data = batches(3)
    losses = []
    for amount in (0.0, 0.3, 0.5):
        if amount:
            prune.l1_unstructured(model[0], "weight", amount=amount)
            prune.ln_structured(model[2], "weight", amount=1, n=2, dim=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in data:
            loss = step(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    for layer in (model[0], model[2]):
        prune.remove(layer, "weight")
    losses.append(step(*data[0]).detach())
    return losses, weights(model), [float((p == 0).float().mean()) for p in model.parameters()]


# hooks registered outside ----------------------------------------------------------------------------------------


@program
def hooks_registered_outside(compiled):
    model = mlp(6, 8, 3)
    seen, norms, handles = {}, [], []

    def remember(name):
        def hook(module, args, output):
            seen[name] = output.detach().mean()

        return hook

    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            handles.append(layer.register_forward_hook(remember(name)))
    handles.append(model[0].register_forward_pre_hook(lambda module, args: (args[0] * 0.5,)))
    handles.append(model[2].register_full_backward_hook(lambda module, gi, go: norms.append(go[0].norm())))
    handles.append(model[0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01)))
    handles.append(model[2].bias.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.sum())))

    @compiled
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.5 * p.grad
                p.grad = None
        return loss.detach()

    out = [step(x, y) for x, y in batches(3)]
    snapshot = dict(seen)
    for handle in handles[::2]:
        handle.remove()
    out += [step(x, y) for x, y in batches(3)]
    return out, snapshot, seen, norms, weights(model)


@program
def one_example_without_a_batch(compiled):
    """The gradient of the 0-dim parameter is a sum that one axis of one element goes over."""
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))
    model.register_parameter("scale", nn.Parameter(torch.ones(())))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=0.01)

    @compiled
    def step(x, y):
        loss = (model(x) * model.scale - y).abs().mean()
        loss.backward()
        optimizer.step()

    for _ in range(3):
        step(torch.randn(6), torch.randn(6))
    return weights(model)


@program
def scheduler_after_a_counter_of_a_class(compiled):
    """The scheduler holds its optimizer by a weak reference: what the counter held before may not be what it leads to."""

    class Steps:
        taken = 0

    model = mlp(6, 8, 3)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    @compiled
    def step(x, y):
        Steps.taken += 1
        loss = F.cross_entropy(model(x), y) / Steps.taken
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    return [step(x, y) for x, y in batches(5)], weights(model), Steps.taken, scheduler.get_last_lr()


@PROGRAMS.in_each_backend
def test_training_program(name, backend):
    PROGRAMS.compare(name, backend)
