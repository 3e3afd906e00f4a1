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
STATEMENTS = ["print(end='')", "{a} = {a}.clone(); {a}.detach().mul_(1.1)"]
RESULTS = ["{a}", "{a}, {b}", "{a}.sum(), {b}.sin().sum()", "[{b}, {a}.sum()]", "dict(first={a}, second={b}.detach())"]
USES = ["backward", "twice", "one by one", "differentiated", "penalty"]


def forward_mode(x: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), tangent.detach())
        return torch.autograd.forward_ad.unpack_dual(dual.sin()).tangent * x


#: What the programs use.
NAMES: dict[str, Any] = {
    "torch": torch, "F": F, "grad": grad, "jacrev": jacrev, "jvp": jvp, "vjp": vjp, "vmap": vmap, "checkpoint": checkpoint,
    "Scaled": Scaled, "Rounded": Rounded, "forward_mode": forward_mode,
}  # fmt: skip


def source(rng: random.Random) -> str:
    """A function of two tensors and a number."""
    names, lines = ["x", "w"], []
    for k in range(rng.randint(3, 7)):
        a, b = rng.choice(names[-3:]), rng.choice(names)
        kind = rng.choices([PLAIN, FEATURES, STATEMENTS], [4, 4, 1])[0]
        line = rng.choice(kind).format(a=a, b=b)
        if kind is not STATEMENTS:
            line = f"t{k} = {line}"
            names.append(f"t{k}")
        lines.append(line)
    lines.append("return " + rng.choice(RESULTS).format(a=names[-1], b=rng.choice(names[2:] or names)))
    return "def f(x, w, k):\n" + "".join(f"    {line}\n" for line in lines)


def outcome(text: str, seed: int, compiled: bool) -> list[Any]:
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
        use, k = rng.choice(USES), rng.choice([0.5, 2.0])
        try:
            result = function(x, w if rng.random() < 0.8 else x, k)
            tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
            found += [t.detach().clone() for t in tensors] + [[t.requires_grad for t in tensors]]
            leaves = [t for t in (x, w, *lin.parameters()) if t.requires_grad]
            _differentiate(use, [t for t in tensors if t.requires_grad], leaves)
        except RuntimeError as error:
            found.append(str(error)[:40])
            continue
        found += [t.detach().clone() for t in (x, w)]
        found += [torch.zeros_like(t) if t.grad is None else t.grad.detach().clone() for t in (x, w, *lin.parameters())]
    return [*found, torch.get_rng_state()]


def _differentiate(use: str, results: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    if not results:
        return
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
    elif use == "differentiated":
        for t, gradient in zip(inputs, torch.autograd.grad(whole, inputs, allow_unused=True), strict=True):
            t.grad = gradient
    else:
        gradients = torch.autograd.grad(whole, inputs, create_graph=True, allow_unused=True)
        squares = [g.square().sum() for g in gradients if g is not None and g.requires_grad]
        if squares:
            torch.stack(squares).sum().backward()


def difference(seed: int) -> str | None:
    """What is not as in eager, with the program."""
    text = source(random.Random(seed))
    expected, found = outcome(text, seed, False), outcome(text, seed, True)
    for number, (wanted, ours) in enumerate(zip(expected, found, strict=False)):
        if not same(wanted, ours, rtol=1e-7, atol=1e-9):
            return f"seed {seed}\n{text}value {number}: eager gives {wanted}, compiled gives {ours}"
    if len(expected) != len(found):
        return f"seed {seed}\n{text}{len(expected)} values in eager, {len(found)} compiled"
    return None


if __name__ == "__main__":
    print_differences(difference, __doc__)
