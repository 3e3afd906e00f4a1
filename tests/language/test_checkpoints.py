"""`torch.utils.checkpoint` with contexts: policies that say what is kept for backward see what they see in eager."""

import collections
import contextlib
import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from language.harness import BACKENDS, case, check, names, setup, t

LEAVES = [(t(3, 4, grad=True),), (t(3, 4, seed=1, grad=True),), (t(2, 5, seed=2, grad=True),)]
PLAIN = [(t(3, 4),), (t(3, 4, seed=1),), (t(2, 5, seed=2),)]
KEPT = 0


def waves(x):
    return torch.sin(x).exp()


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh())


def keep_products(ctx, op, *args, **kwargs):
    kept = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def keeping_products():
    return create_selective_checkpoint_contexts(keep_products)


@case(*LEAVES, graphs=1)
def a_list_of_operators(x):
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    return checkpoint(waves, x, use_reentrant=False, context_fn=contexts) * 2


@case(*LEAVES, graphs=1)
def a_policy_made_inside(x):
    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.sin.default else CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint(waves, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))


@case(*LEAVES)
def a_policy_that_depends_on_a_tensor(x):
    total = x.sum()

    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if total > 1e9 else CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint(waves, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))


@case(*LEAVES)
def after_a_change_that_a_policy_may_see(x):
    global KEPT
    KEPT = x.shape[0]
    return checkpoint(waves, x, use_reentrant=False, context_fn=keeping_products)


@case(*LEAVES, graphs=1)
def contexts_of_other_kinds(x):
    def contexts():
        return contextlib.nullcontext(), contextlib.nullcontext()

    return checkpoint(waves, x, use_reentrant=False, context_fn=contexts) + 1


@case(*PLAIN, graphs=1)
def without_gradients(x):
    with torch.no_grad():
        return checkpoint(waves, x, use_reentrant=False, context_fn=keeping_products) + 1


@case(*LEAVES)
def reentrant(x):
    return checkpoint(waves, x, use_reentrant=True, context_fn=keeping_products)


@setup(graphs=1)
def a_module_with_a_policy_that_counts():
    model, seen = layers(), []

    def contexts():
        counts = collections.defaultdict(int)

        def policy(ctx, op, *args, **kwargs):
            seen.append((str(op), ctx.is_recompute))
            counts[ctx.is_recompute] += op is torch.ops.aten.addmm.default
            return CheckpointPolicy.MUST_SAVE if counts[ctx.is_recompute] % 2 else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    run = lambda x: checkpoint(model, x, use_reentrant=False, context_fn=contexts) * 2
    return run, [(t(3, 4),), (t(3, 4, grad=True),)]


@setup(steady="later")
def a_whole_step():
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = checkpoint(model, x, use_reentrant=False, context_fn=keeping_products).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, [(t(3, 4),), (t(3, 4, seed=1),)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_checkpoints(name, backend):
    check(__file__, name, backend)
