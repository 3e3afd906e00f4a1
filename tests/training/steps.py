"""What a step does around the update: gradients, clipping, accumulation, averages of the parameters."""

from __future__ import annotations

from training.draft import Draft, indented
from training.losses import PENALTIES, Loss


def freezing(d: Draft) -> list[str]:
    """Lines of the setup that freeze some parameters; `trained` is what is left."""
    lines = []
    if d.chance(0.12):
        d.uses("frozen")
        lines.append(d.pick(
            "max(model.parameters(), key=torch.numel).requires_grad_(False)",
            "[p.requires_grad_(False) for p in [*model.parameters()][1::2] if p.ndim > 1]",
        ))  # fmt: skip
    if d.chance(0.05):
        d.uses("evaluating")
        lines.append("model.eval()")
    return [*lines, "trained = [p for p in model.parameters() if p.requires_grad]"]


def forward(d: Draft, loss: Loss, rows: str) -> list[str]:
    """Lines that compute `loss` from `x` and `target`."""
    call = loss.call
    if d.chance(0.12):
        kind = d.pick(*PENALTIES)
        d.uses(f"penalty-{kind}")
        call += " + " + PENALTIES[kind](d)
    out = f"out = model(x){rows if loss.flat else ''}"
    if d.precision == "autocast":
        inside = d.chance(0.5)
        cast = "with torch.autocast(DEVICE, dtype=torch.bfloat16):"
        body = indented([out] + ([f"loss = {call}"] if inside else []))
        return [cast, *body] + ([] if inside else ["out = out.to(dtype)", f"loss = {call}"])
    return [out, f"loss = {call}"]


def gradients(d: Draft, lines: list[str], zeroing: str) -> list[str]:
    """From the forward lines to `p.grad` of all parameters."""
    kind = d.weighted({"backward": 8, "accumulate": 1.5, "grad": 0.7, "twice": 0.5})
    d.uses(f"gradients-{kind}")
    if kind == "accumulate":
        loop = ["for x, target in ((x, target), (x.flip(0), target.flip(0))):", *indented([*lines, "(loss / 2).backward()"])]
        return [zeroing, *loop]
    if kind == "twice":
        again = "(0.5 * out.float().pow(2).mean()).backward()"
        return [zeroing, *lines, "loss.backward(retain_graph=True)", again]
    if kind == "grad":
        assign = ["for p, g in zip(trained, torch.autograd.grad(loss, trained, allow_unused=True)):",
                  "    p.grad = torch.zeros_like(p) if g is None else g"]  # fmt: skip
        return [*lines, *assign]
    return [*lines, zeroing, "loss.backward()"] if d.chance(0.3) else [zeroing, *lines, "loss.backward()"]


CLIPPING: dict[str, list[str]] = {
    "norm": ["torch.nn.utils.clip_grad_norm_(trained, 0.5)"],
    "norm-listed": ["torch.nn.utils.clip_grad_norm_(trained, 0.1, foreach=True)"],
    "norm-largest": ["torch.nn.utils.clip_grad_norm_(trained, 0.05, norm_type=float('inf'))"],
    "value": ["torch.nn.utils.clip_grad_value_(trained, 0.01)"],
    "by-hand": ["total = torch.stack([p.grad.norm() for p in trained]).norm()",
                "factor = (0.3 / (total + 1e-6)).clamp(max=1.0)", "for p in trained:", "    p.grad.mul_(factor)"],
    "each": ["for p in trained:", "    p.grad.div_(p.grad.norm().clamp(min=0.5) * 2)"],
    "values-by-hand": ["for p in trained:", "    p.grad.clamp_(-0.02, 0.02)"],
    "adaptive": ["with torch.no_grad():", "    for p in trained:",
                 "        p.grad.mul_((0.1 * p.norm().clamp(min=1e-3) / (p.grad.norm() + 1e-6)).clamp(max=1.0))"],
    "centred": ["for p in trained:", "    if p.ndim > 1:",
                "        p.grad -= p.grad.mean(dim=tuple(range(1, p.ndim)), keepdim=True)"],
}  # fmt: skip


def clipping(d: Draft) -> list[str]:
    if d.chance(0.6):
        return []
    kind = d.pick(*CLIPPING)
    d.uses(f"clipping-{kind}")
    return CLIPPING[kind]


AVERAGES: dict[str, tuple[str, list[str]]] = {
    "lerp": ("[p.detach().clone() for p in trained]", ["for a, p in zip(average, trained):", "    a.lerp_(p, 0.1)"]),
    "mul-add": ("copy.deepcopy(model)",
                ["for a, p in zip(average.parameters(), model.parameters()):", "    a.mul_(0.9).add_(p, alpha=0.1)"]),
    "listed": ("[p.detach().clone() for p in trained]", ["torch._foreach_lerp_(average, trained, 0.1)"]),
    "state": ("{n: t.clone() for n, t in model.state_dict().items()}",
              ["for n, t in model.state_dict().items():", "    if t.is_floating_point():",
               "        average[n].mul_(0.9).add_(0.1 * t)"]),
    "copied": ("copy.deepcopy(model).requires_grad_(False)",
               ["for a, p in zip(average.parameters(), model.parameters()):", "    a.copy_(0.9 * a + 0.1 * p)",
                "for a, b in zip(average.buffers(), model.buffers()):", "    a.copy_(b)"]),
    "swa": ("torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))",
            ["average.update_parameters(model)"]),
}  # fmt: skip


def averaging(d: Draft) -> list[str]:
    """An exponential moving average of the parameters."""
    if d.chance(0.7):
        return []
    kind = d.pick(*AVERAGES)
    d.uses(f"average-{kind}")
    made_by, lines = AVERAGES[kind]
    d.setup.append(f"average = {made_by}")
    d.watched.append("average")
    return ["with torch.no_grad():", *indented(lines)]


def result(d: Draft) -> str:
    return d.weighted(
        {
            "return loss.detach()": 5,
            "return loss": 2,
            "return loss.detach(), out.detach()": 1,
            "return {'loss': loss.detach()}": 1,
            "return out.detach().argmax(-1), loss.detach()": 0.5,
            "return loss.detach(), [p.grad.norm() for p in trained if p.grad is not None]": 0.5,
        }
    )
