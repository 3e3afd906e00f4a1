"""Calls of a program: as they are, with other batches, and in other surroundings."""

from __future__ import annotations

from lives.life import Life
from training.draft import indented

Call = tuple[str, list[str]]

#: Other batches, as expressions of one.
BATCHES = {
    "shorter({}, 1)": 3.0, "shorter({}, 3)": 2.0, "shorter({}, 0)": 1.5, "longer({})": 2.0, "spread({})": 1.0,
    "transposed({})": 1.0, "expanded({})": 1.0, "shifted({})": 1.0, "converted({}, torch.float32)": 0.7,
    "with_gradients({}, kept)": 1.5, "from_one({})": 0.7, "overlapping({})": 0.7, "shared(model, {})": 1.0,
    "kept_by_gradient(model, {})": 0.7, "of_a_parameter(model, {})": 1.0, "channels_last({})": 0.5, "in_inference({})": 0.5,
    "spoilt({})": 1.0,
    "spoilt({}, float('inf'))": 1.0, "misshapen({})": 1.5, "mislabelled({})": 1.5,
}  # fmt: skip

SURROUNDINGS = {
    "with torch.no_grad():": 1.5, "with torch.inference_mode():": 1.0, "with torch.set_grad_enabled(False):": 0.5,
    "with torch.enable_grad():": 1.0, "with torch.autocast('cpu', dtype=torch.bfloat16):": 0.7,
    "with torch.autograd.detect_anomaly():": 0.7, "with torch.random.fork_rng():": 1.0,
    "with torch.autograd.set_multithreading_enabled(False):": 0.3, "thread": 1.5, "twice": 1.0,
    "with torch.autograd.graph.save_on_cpu():": 0.3, "with torch.device('cpu'):": 0.3,
    "with nn.utils.parametrize.cached():": 0.7, "with torch.profiler.record_function('turn'):": 0.3,
    "with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):": 0.5,
    "with torch.overrides.BaseTorchFunctionMode():": 0.4, "with torch.autograd.forward_ad.dual_level():": 0.3,
    "with torch.autograd.graph.disable_saved_tensors_hooks('none'):": 0.2, "coroutine": 0.5,
}  # fmt: skip


def plain(life: Life) -> Call:
    name = life.d.pick(*life.calls)
    return name, _with_batch(life.calls[name], "batch()")


def other(life: Life) -> Call:
    """With another batch, in other surroundings, or both."""
    d = life.d
    name = d.pick(*life.calls)
    lines, called = life.calls[name], name
    kind = d.weighted({"batch": 5, "surroundings": 3, "both": 1})
    batch = "batch()"
    if kind != "surroundings":
        options = {**BATCHES, "batch(n=8)": 1.0}
        if life.model.lengths and "n=4, t=5" in " ".join(life.setup):
            options |= {"batch(t=3)": 2.0, "batch(t=1)": 1.0, "batch(n=2, t=7)": 1.0}
        drawn = d.weighted(options)
        batch = drawn.format("batch()")
        called += f" of {batch}"
        d.uses(drawn.partition("(")[0])
    lines = _with_batch(lines, batch)
    if kind == "batch":
        return called, lines
    surroundings = d.weighted(SURROUNDINGS)
    d.uses(surroundings)
    called += f", {surroundings.removeprefix('with ').rstrip(':')}"
    if surroundings == "thread":
        return called, ["def work():", *indented(lines), "in_thread(work)"]
    if surroundings == "coroutine":
        return called, ["async def work():", *indented(lines), "asyncio.run(work())"]
    if surroundings == "twice":
        return called, [*lines, *lines]
    return called, [surroundings, *indented(lines)]


def _with_batch(lines: list[str], batch: str) -> list[str]:
    return [line.replace("{batch}", batch) for line in lines]
