"""Training code as it is published with papers: whole programs, eager against compiled, and which of them are one graph."""

import copy
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset

from whole_programs import Programs, weights

programs = Programs()
#: The compiled functions of the program that ran last, with the breaks that they are to have.
made = []


def one_graph(compiled, function):
    """Compile a function that is to have no breaks."""
    made.append(compiled(function))
    return made[-1]


def classifier():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def batch(size=6):
    return torch.randn(size, 6), torch.randint(0, 3, (size,))


@programs.add
def stops_where_the_loss_is_not_finite(compiled):
    """A step of gradient accumulation, which ends the process where the loss is no number."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y, last):
        loss = F.cross_entropy(model(x), y)
        value = loss.item()
        if not math.isfinite(value):
            print(f"Loss is {value}, stopping training")
            sys.exit(1)
        loss /= 2
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return value, math.exp(value) if value < 5 else math.inf

    run = compiled(step)
    losses = [run(*batch(), k % 2 == 1) for k in range(4)]
    with pytest.raises(SystemExit, match="1"):
        run(torch.full((6, 6), math.nan), batch()[1], True)
    return losses, weights(model)


@programs.add
def finite_loss_is_one_graph(compiled):
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        value = loss.item()
        if math.isnan(value) or not math.isfinite(value):
            raise FloatingPointError(value)
        loss.backward()
        return value, math.sqrt(value), math.exp(value)

    run = one_graph(compiled, step)
    return [run(*batch()) for _ in range(3)], [p.grad for p in model.parameters()]


@programs.add
def norm_of_all_gradients(compiled):
    """Clipping written by hand, with roots and comparisons of numbers."""
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))

    def step(x, y):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        total = 0
        for p in model.parameters():
            total += p.grad.data.norm(2).item() ** 2
        total = total ** (1.0 / 2)
        scale = min(0.3 / (total + 1e-6), 1.0)
        for p in model.parameters():
            p.data -= 0.1 * p.grad.data * scale
        return total

    run = one_graph(compiled, step)
    return [run(*batch()) for _ in range(3)], weights(model)


@programs.add
def right_answers_of_a_loader(compiled):
    model = classifier().eval()
    loader = DataLoader(TensorDataset(*batch(14)), batch_size=4)
    batches = list(loader)

    def count(data):
        right, loss, seen = 0, 0.0, 0
        with torch.no_grad():
            for x, y in data:
                output = model(x)
                loss += F.cross_entropy(output, y, reduction="sum").item()
                right += output.argmax(1).eq(y).sum().item()
                seen += y.size(0)
        loss /= len(loader.dataset)
        print(f"loss {loss:.3f}, {right}/{seen} right ({100.0 * right / len(loader.dataset):.0f}%)")
        return right, right / seen, len(loader)

    in_one, in_parts = one_graph(compiled, count), compiled(count)
    return [in_one(batches) for _ in range(3)], [in_parts(loader) for _ in range(3)]


@programs.add
def queue_with_a_pointer(compiled):
    """The queue of keys that contrastive learning keeps in buffers."""

    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.size = 8
            self.register_buffer("keys", torch.zeros(3, self.size))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def forward(self, keys):
            count = keys.shape[0]
            pointer = int(self.pointer)
            assert self.size % count == 0
            self.keys[:, pointer : pointer + count] = keys.T
            pointer = (pointer + count) % self.size
            self.pointer[0] = pointer
            return self.keys.sum()

    queue = Queue()
    run = one_graph(compiled, queue.forward)
    return [run(torch.full((2, 3), float(k))) for k in range(9)], weights(queue)


@programs.add
def scheduler_after_some_batches(compiled):
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    batches = [batch() for _ in range(5)]

    def epoch():
        rates = []
        for index, (x, y) in enumerate(batches):
            F.cross_entropy(model(x), y).backward()
            if (index + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                rates.append(scheduler.get_last_lr()[0])
        return rates

    run = one_graph(compiled, epoch)
    return [run() for _ in range(3)], weights(model)


@programs.add
def federated_averaging(compiled):
    """Clients that train copies of a model and hand back its state."""
    model = classifier()

    def local(network, optimizer, x, y):
        losses = []
        for _ in range(2):
            network.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return network.state_dict(), sum(losses) / len(losses)

    run = one_graph(compiled, local)
    losses, seen = [], []
    for _ in range(3):
        states = []
        for _ in range(2):
            network = copy.deepcopy(model)
            state, loss = run(network, torch.optim.SGD(network.parameters(), lr=0.1), *batch())
            seen.append((type(state), list(state), dict(state._metadata)))
            assert state["0.weight"].data_ptr() == network[0].weight.data_ptr()
            states.append(copy.deepcopy(state))
            losses.append(loss)
        model.load_state_dict({k: sum(state[k] for state in states) / 2 for k in states[0]})
    return losses, seen, weights(model)


@programs.add
def adversarial_training_with_variables(compiled):
    """Code from before tensors and variables were one."""
    generator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 6), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1))
    of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-2)
    of_discriminator = torch.optim.RMSprop(discriminator.parameters(), lr=1e-2)

    def step(images, z):
        assert not isinstance(images.data, torch.cuda.FloatTensor)
        real = Variable(images.type(torch.FloatTensor))
        of_discriminator.zero_grad()
        noise = Variable(z, requires_grad=True)
        fake = generator(noise).detach()
        loss = torch.mean(discriminator(fake)) - torch.mean(discriminator(real))
        loss.backward()
        of_discriminator.step()
        for p in discriminator.parameters():
            p.data.clamp_(-0.05, 0.05)
        of_generator.zero_grad()
        found = -torch.mean(discriminator(generator(noise)))
        found.backward()
        of_generator.step()
        return loss.data, found.item(), noise.grad.data.norm().item(), real.requires_grad, noise.is_leaf

    run = one_graph(compiled, step)
    results = [run(torch.randn(5, 6), torch.randn(5, 4)) for _ in range(3)]
    return results, weights(generator), weights(discriminator)


@programs.add
def variables_of_other_things(compiled):
    found = []
    for value, needs_grad in ((3.0, False), (torch.ones(2).long(), True), (None, False), (torch.ones(2), True)):
        run = compiled(lambda x, needs_grad: Variable(x, requires_grad=needs_grad) * 2)
        try:
            found.append(run(value, needs_grad).requires_grad)
        except (TypeError, RuntimeError) as error:
            found.append(str(error))
    return found


@programs.add
def heads_that_learn_one_after_the_other(compiled):
    """Each head is updated while the graph of the other, on the same trunk, is retained."""
    trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    policy, value = nn.Linear(6, 3), nn.Linear(6, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.5) for m in (policy, value, trunk)]

    def losses(x, y):
        hidden = trunk(x)
        return F.cross_entropy(policy(hidden), y), value(hidden).square().mean(), hidden

    losses = one_graph(compiled, losses)
    seen = []
    for step in range(4):
        first, second, hidden = losses(torch.randn(5, 4), torch.randint(3, (5,)))
        for optimizer in optimizers:
            optimizer.zero_grad()
        second.backward(retain_graph=True)
        optimizers[1].step()
        if step % 2:
            hidden.register_hook(lambda g, seen=seen: seen.append(g.sum().item()))
        first.backward()
        optimizers[0].step()
        optimizers[2].step()
        seen += [first.item(), second.item(), [p.grad.clone() for p in trunk.parameters()]]
    return seen, [weights(m) for m in (trunk, policy, value)]


@programs.add
def parameters_that_are_views_of_one_tensor(compiled):
    """As sharded and bucketed training has them: one tensor has all parameters, another one all gradients."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    sizes = [p.numel() for p in model.parameters()]
    flat, bucket = torch.empty(sum(sizes)), torch.zeros(sum(sizes))
    for p, part, grad in zip(model.parameters(), flat.split(sizes), bucket.split(sizes), strict=True):
        part.copy_(p.detach().flatten())
        p.data, p.grad = part.view_as(p), grad.view_as(p)
    whole = nn.Parameter(flat)
    whole.grad = bucket
    optimizer = torch.optim.Adam([whole], lr=0.01)

    def step(x, y):
        bucket.zero_()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        norm = bucket.norm()
        bucket.mul_(torch.clamp(1 / (norm + 1e-6), max=1.0))
        optimizer.step()
        return loss.detach(), norm

    step = one_graph(compiled, step)
    results = []
    for k in range(5):
        if k == 3:
            flat.mul_(0.5)
        results.append([t.item() for t in step(torch.randn(4, 4), torch.randn(4, 2))])
    return results, weights(model), bucket


@programs.add
def critics_that_are_frozen_for_the_actor(compiled):
    """Soft actor-critic."""

    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.mean, self.log_std = nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, state):
            h = F.relu(self.body(state))
            d = torch.distributions.Normal(self.mean(h), self.log_std(h).clamp(-5, 2).exp())
            u = d.rsample()
            a = torch.tanh(u)
            return a, (d.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1)

    actor = Actor()
    critics = nn.ModuleList([nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(2)])
    targets = copy.deepcopy(critics).requires_grad_(False)
    of_actor, of_critics = (torch.optim.Adam(m.parameters(), lr=3e-3) for m in (actor, critics))

    def q(nets, state, action):
        return [net(torch.cat([state, action], 1)).squeeze(1) for net in nets]

    def update(state, action, reward, after, step):
        with torch.no_grad():
            a, logp = actor(after)
            y = reward + 0.99 * (torch.min(*q(targets, after, a)) - 0.2 * logp)
        loss = sum(F.mse_loss(value, y) for value in q(critics, state, action))
        of_critics.zero_grad()
        loss.backward()
        of_critics.step()
        for p in critics.parameters():
            p.requires_grad = False
        a, logp = actor(state)
        of_actor.zero_grad()
        (0.2 * logp - torch.min(*q(critics, state, a))).mean().backward()
        of_actor.step()
        for p in critics.parameters():
            p.requires_grad = True
        if step % 2 == 0:
            with torch.no_grad():
                for p, t in zip(critics.parameters(), targets.parameters(), strict=True):
                    t.data.mul_(0.9).add_(p.data, alpha=0.1)
        return loss.item()

    update = compiled(update)  # other backends than our own have breaks at the checks of the distribution
    losses = [update(torch.randn(6, 3), torch.rand(6, 2), torch.randn(6), torch.randn(6, 3), k) for k in range(3)]
    return losses, weights(actor), weights(critics), weights(targets)


@programs.add
def targets_of_single_numbers(compiled):
    """An actor and a critic, whose returns are put into tensors one by one; a result that is put into one may change."""
    critic = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

    def step(states, rewards):
        returns, total = [], 0
        for reward in rewards[::-1]:
            total = reward + 0.99 * total
            returns.insert(0, total)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        values = [critic(state) for state in states]
        losses = [F.smooth_l1_loss(value, torch.tensor([target])) for value, target in zip(values, returns, strict=True)]
        loss = torch.stack(losses).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count = (returns > 0).sum()
        ends = torch.tensor([returns[0], returns[-1]])
        ends.add_(1)
        return loss.detach(), torch.tensor([count, count + 1]), ends, returns, torch.tensor([ends[0]]).requires_grad

    run = one_graph(compiled, step)
    return [run(torch.randn(5, 4), [1.0, 0.5 * k, -1.0, 2.0, 0.1]) for k in range(3)], weights(critic)


@programs.in_each_backend
def test_published_program(name, backend):
    made.clear()
    programs.compare(name, backend)
    assert not [broken.reason for function in made for broken in getattr(function, "breaks", ())]
