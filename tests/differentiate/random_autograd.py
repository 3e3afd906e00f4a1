"""Random functions out of autograd's features, whose gradients are taken outside in several ways, called with other tensors.

    python tests/differentiate/random_autograd.py --count 500 --seed 0     # prints the programs that differ from eager
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.func import grad, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))

import quickfuse
from differential import same
from many_seeds import print_differences
from seeding import seed_torch


class Scaled(torch.autograd.Function):
    """Its gradient is not that of its formula."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0] * ctx.saved_tensors[0] * ctx.k, None


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


PLAIN = [
    "{a} * {b}", "({a} * k).sin()", "{a}.exp() / (1 + {b}.exp())", "lin({a}).tanh()", "{a}.softmax(-1)", "F.gelu({a})",
    "torch.where({a} > 0, {a}, {b})", "{a}.cumsum(0)", "{a}[[2, 0, 1]]", "{a} + {b}.detach()",
    "{a}.detach().requires_grad_()", "torch.cat([{a}, {b}], 1)[:, ::2]", "{a}.norm(dim=1, keepdim=True) * {b}",
    "F.dropout({a}, 0.2)",
]  # fmt: skip
FEATURES = [
    "Scaled.apply({a}, k)", "Rounded.apply({a}) * {b}", "checkpoint(lin, {a}, use_reentrant=False)",
    "grad(lambda z: (z * {b}).sin().sum())({a})",
    "vjp(lambda z: z * {b} + z, {a})[1]({b})[0]", "jvp(lambda z: z.sin() * {b}, ({a},), ({b},))[1]",
    "vmap(lambda z: z.sum() * {b})({a}).sum(0)", "jacrev(lambda z: z.sum(0))({a}).sum((0,))", "forward_mode({a}, {b})",
    "torch.autograd.grad(({a} ** 2).sum() + {b}.sum(), {a}, create_graph=True)[0] if {a}.requires_grad else {a}",
]  # fmt: skip
#: Gradients that are taken within, which what comes after them is computed of.
WITHIN = [
    "{b} * torch.autograd.grad({b}.sin().sum(), {b}, retain_graph=True)[0] if {b}.requires_grad else {a}",
    "{a} + (torch.autograd.grad(({a} * {b}).square().sum(), {b}, retain_graph=True)[0] if {b}.requires_grad else 1)",
    "{a} - 0.1 * torch.autograd.grad({a}.cos().sum(), {a}, create_graph=True)[0] if {a}.requires_grad else {b}",
    "{a} * (torch.autograd.grad({a}.sum() * {a}.sum(), x, retain_graph=True)[0] if reaches({a}, x) else 1)",
    "{a} * (torch.autograd.grad({a}.exp().sum(), w, create_graph=True)[0].tanh() if reaches({a}, w) else 1)",
]  # fmt: skip
STATEMENTS = ["print(end='')", "{a} = {a}.clone(); {a}.detach().mul_(1.1)"]
MORE_USES = ["by each other", "by all", "retained", "hooked"]
RESULTS = ["{a}", "{a}, {b}", "{a}.sum(), {b}.sin().sum()", "[{b}, {a}.sum()]", "dict(first={a}, second={b}.detach())"]
USES = ["backward", "twice", "one by one", "differentiated", "penalty"]


def reaches(result: torch.Tensor, x: torch.Tensor) -> bool:
    both = result.requires_grad and x.requires_grad
    return both and torch.autograd.grad(result.sum(), x, retain_graph=True, allow_unused=True)[0] is not None


def forward_mode(x: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), tangent.detach())
        return torch.autograd.forward_ad.unpack_dual(dual.sin()).tangent * x


#: What the programs use.
NAMES: dict[str, Any] = {
    "torch": torch, "F": F, "grad": grad, "jacrev": jacrev, "jvp": jvp, "vjp": vjp, "vmap": vmap, "checkpoint": checkpoint,
    "Scaled": Scaled, "Rounded": Rounded, "forward_mode": forward_mode, "reaches": reaches,
}  # fmt: skip


def source(rng: random.Random, within: bool = False) -> str:
    """A function of two tensors and a number, which takes gradients `within`."""
    names, lines = ["x", "w"], []
    for k in range(rng.randint(3, 7)):
        a, b = rng.choice(names[-3:]), rng.choice(names)
        kind = rng.choices([PLAIN, FEATURES, STATEMENTS, WITHIN], [4, 4, 1, 2 * within])[0]
        line = rng.choice(kind).format(a=a, b=b)
        if kind is not STATEMENTS:
            line = f"t{k} = {line}"
            names.append(f"t{k}")
        lines.append(line)
    lines.append("return " + rng.choice(RESULTS).format(a=names[-1], b=rng.choice(names[2:] or names)))
    return "def f(x, w, k):\n" + "".join(f"    {line}\n" for line in lines)


def outcome(text: str, seed: int, compiled: bool, uses: list[str]) -> list[Any]:
    """What the calls return, and the gradients; None where there are none is as good as zeros."""
    rng = random.Random(seed)
    seed_torch(seed)
    lin = torch.nn.Linear(4, 4, dtype=torch.float64)
    space = {**NAMES, "lin": lin}
    exec(text, space)
    function = quickfuse.compile(space["f"], options={"raise_internal_errors": True}) if compiled else space["f"]
    found: list[Any] = []
    for _ in range(3):
        needing = rng.choice([(True, False), (True, True), (True, True), (False, True)])
        x, w = [torch.randn(3, 4, dtype=torch.float64).requires_grad_(needs) for needs in needing]
        use, k = rng.choice(uses), rng.choice([0.5, 2.0])
        try:
            result = function(x, w if rng.random() < 0.8 else x, k)
            tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
            found += [t.detach().clone() for t in tensors] + [[t.requires_grad for t in tensors]]
            leaves = [t for t in (x, w, *lin.parameters()) if t.requires_grad]
            found.append(_differentiate(use, [t for t in tensors if t.requires_grad], leaves))
        except RuntimeError as error:
            found.append(str(error)[:40])
            continue
        found += [t.detach().clone() for t in (x, w)]
        found += [torch.zeros_like(t) if t.grad is None else t.grad.detach().clone() for t in (x, w, *lin.parameters())]
    return [*found, torch.get_rng_state()]


def _differentiate(use: str, results: list[torch.Tensor], inputs: list[torch.Tensor]) -> Any:
    if not results:
        return None
    whole = sum((t * (k + 1.5)).sum() for k, t in enumerate(results))
    assert isinstance(whole, torch.Tensor)
    if use == "backward":
        whole.backward()
    elif use == "twice":
        whole.backward(retain_graph=True)
        whole.backward()
    elif use == "one by one":
        results[-1].sum().backward(retain_graph=True)
        results[0].sum().backward()
    elif use in ("by each other", "by all"):
        others = [t for t in results[:-1] if t is not results[-1] and not t.is_leaf]
        wanted = [*others, *inputs] if use == "by all" else others
        gradients = torch.autograd.grad(results[-1].sum(), wanted, allow_unused=True) if wanted else ()
        return [None if g is None else g.clone(memory_format=torch.contiguous_format) for g in gradients]
    elif use == "retained":
        for t in results:
            t.retain_grad()
        whole.backward()
        return [t.grad for t in results if not t.is_leaf]
    elif use == "hooked":
        notes: list[Any] = []
        for k, t in enumerate(results):
            t.register_hook(lambda gradient, k=k: notes.append((k, gradient.detach().clone())) or 0.5 * gradient)
        whole.backward()
        return sorted(notes, key=lambda note: note[0])
    elif use == "differentiated":
        for t, gradient in zip(inputs, torch.autograd.grad(whole, inputs, allow_unused=True), strict=True):
            t.grad = gradient
    else:
        gradients = torch.autograd.grad(whole, inputs, create_graph=True, allow_unused=True)
        squares = [g.square().sum() for g in gradients if g is not None and g.requires_grad]
        if squares:
            torch.stack(squares).sum().backward()
    return None


def difference(seed: int) -> str | None:
    """What is not as in eager, with the program. Those of odd seeds from 1000 on take gradients within, with more uses."""
    within = seed >= 1000 and seed % 2 == 1
    text = source(random.Random(seed), within)
    uses = USES + MORE_USES if within else USES
    expected, found = outcome(text, seed, False, uses), outcome(text, seed, True, uses)
    for number, (wanted, ours) in enumerate(zip(expected, found, strict=False)):
        if not same(wanted, ours, rtol=1e-7, atol=1e-9):
            return f"seed {seed}\n{text}value {number}: eager gives {wanted}, compiled gives {ours}"
    if len(expected) != len(found):
        return f"seed {seed}\n{text}{len(expected)} values in eager, {len(found)} compiled"
    return None


if __name__ == "__main__":
    print_differences(difference, __doc__)
