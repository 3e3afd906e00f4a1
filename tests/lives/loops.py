"""Scenarios whose steps find something else in each call: settings, schedules, parameters, states, orders to stop."""

from __future__ import annotations

from collections.abc import Callable

from lives.event import event
from lives.life import Life, optimizer, zeroing
from training.draft import indented

FUNCTIONAL = "torch.func.functional_call(model, {params}, (x,))"


def scheduled(life: Life) -> None:
    """A scheduler of any kind that steps in the compiled step, which is given another one now and then."""
    d = life.d
    kind = d.pick("SGD", "Adam", "AdamW", "RMSprop")
    momentum = ", momentum=0.9" * (kind in ("SGD", "RMSprop"))
    life.setup += ["model = Model()", f"optimizer = torch.optim.{kind}(model.parameters(), lr=0.02{momentum})"]
    made = d.pick(
        "@OneCycleLR(optimizer, max_lr=0.05, total_steps=40)", "@CosineAnnealingWarmRestarts(optimizer, T_0=2)",
        "@LambdaLR(optimizer, lambda k: 0.95 ** k)", "@ReduceLROnPlateau(optimizer, patience=0, factor=0.5)",
        "@ChainedScheduler([@LinearLR(optimizer, 0.5, total_iters=3), @ExponentialLR(optimizer, 0.9)])",
        "@SequentialLR(optimizer, [@ConstantLR(optimizer, 0.1, 2), @StepLR(optimizer, 2, 0.5)], milestones=[2])",
        "@CyclicLR(optimizer, base_lr=0.01, max_lr=0.05, step_size_up=2)",
    )  # fmt: skip
    life.setup.append(f"scheduler = {made.replace('@', 'torch.optim.lr_scheduler.')}")
    plateau = "Plateau" in made
    step = d.pick("scheduler.step(loss.item())", "scheduler.step(loss)") if plateau else "scheduler.step()"
    lines = [zeroing(d), *life.forward, "loss.backward()", "optimizer.step()"]
    life.define("step", "x, target", [*lines, step, "return loss.detach()"])
    life.define("without", "x, target", [*lines, "return loss.detach()"])
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["without"] = ["seen(without(*{batch}))"] + ["scheduler.step()"] * (not plateau and d.chance(0.5))
    life.schedulers += [] if plateau else ["scheduler"]
    life.watched += ["optimizer", "scheduler"]


def settings(life: Life) -> None:
    """What a step does is said by a dictionary, which changes."""
    d = life.d
    update = optimizer(life)
    life.setup.append("config = {'clip': 0.5, 'penalty': 0.0, 'noise': False, 'freeze': (), 'weights': [1.0, 0.5],"
                      " 'every': 2, 'calls': 0, 'name': 'plain'}")  # fmt: skip
    update_now = ["if config['calls'] % config['every'] == 0:", *indented([*update, "optimizer.zero_grad()"])]
    life.define("step", "x, target", [
        "config['calls'] += 1", *life.forward,
        "if config['penalty']:", "    loss = loss + config['penalty'] * sum(p.pow(2).sum() for p in model.parameters())",
        "for k, weight in enumerate(config['weights']):", "    loss = loss + weight * (k + 1) * out.float().pow(2).mean()",
        "if config['noise']:", "    loss = loss * (1 + 0.1 * torch.rand(()))",
        "loss.backward()",
        "for name, p in model.named_parameters():",
        "    if any(name.startswith(part) for part in config['freeze']):", "        p.grad = None",
        "if config['clip'] is not None:", "    torch.nn.utils.clip_grad_norm_(model.parameters(), config['clip'])",
        *update_now, d.pick("return loss.detach()", "return {config['name']: loss.detach(), 'calls': config['calls']}"),
    ])  # fmt: skip
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.events += [
        event("clip", "config['clip'] = 0.1 * <F>", share=2), event("no clip", "config['clip'] = None"),
        event("penalty", "config['penalty'] = 0.01 * <F>", share=2), event("no penalty", "config['penalty'] = 0.0"),
        event("noise", "config['noise'] = not config['noise']"),
        event("frozen names", "config['freeze'] = tuple(n for n, _ in [*model.named_parameters()][:<K>])"),
        event("a weight more", "config['weights'].append(<F>)"), event("a weight less",
        "config['weights'] = config['weights'][1:]"),
        event("another weight", "if config['weights']:", "    config['weights'][0] = <F>", share=2),
        event("every", "config['every'] = 1 + <K>"), event("calls", "config['calls'] = 0"),
        event("name", "config['name'] = f'other{<K>}'", share=0.6), event("another config",
        "config = {**config, 'more': 1}"),
    ]  # fmt: skip
    life.watched.append("config")


def micro_batches(life: Life) -> None:
    """Gradients of several batches add up, and the number of them changes."""
    d = life.d
    update = optimizer(life)
    loop = d.pick("for x, target in batches:", "for k, (x, target) in enumerate(batches):")
    share = d.pick("loss / len(batches)", "loss * share")
    life.define("step", "batches, share=0.5", [
        zeroing(d), "total = 0.0", loop, *indented([*life.forward, f"({share}).backward()",
        "total = total + loss.detach()"]),
        *update, "return total"])  # fmt: skip
    for count in (1, 2, 3):
        life.calls[f"step of {count}"] = ["now = {batch}", f"seen(step([now] * {count}))"]
    life.calls["step of shares"] = ["now = {batch}", "for share in (0.5, 0.25, 0.125):", "    seen(step([now], share))"]
    life.calls["step of another length"] = ["now = {batch}", "seen(step([now, shorter(now, 2)], share=0.3))"]


def mixed(life: Life) -> None:
    """Autocast and a scaler that are on or off by an argument, in 32 bits."""
    d = life.d
    life.setup.append("torch.set_default_dtype(torch.float32)")
    update = optimizer(life)
    life.setup.append("scaler = torch.amp.GradScaler('cpu', init_scale=16.0, growth_interval=2)")
    cast = "with torch.autocast('cpu', dtype=torch.bfloat16, enabled=use):"
    inside = [cast, *indented(life.forward)] if d.chance(0.5) else [cast, *indented(life.forward[:1]), "out = out.float()",
                                                                      life.forward[1]]  # fmt: skip
    scaled = ["if scale:", "    scaler.scale(loss).backward()", "    scaler.unscale_(optimizer)",
              "    scaler.step(optimizer)",
              "    scaler.update()", "else:", "    loss.backward()", "    optimizer.step()"]  # fmt: skip
    life.define(
        "step", "x, target, use=True, scale=False", [zeroing(d), *inside, *scaled, *update[1:], "return loss.detach()"]
    )
    life.define("evaluate", "x, target, use=True", ["with torch.no_grad():", *indented([*inside, "return loss"])])
    for use in (True, False):
        life.calls[f"step {use}"] = [f"seen(step(*{{batch}}, {use}))"]
        life.calls[f"scaled {use}"] = [f"seen(step(*{{batch}}, {use}, scale=True))"]
        life.calls[f"evaluate {use}"] = [f"seen(evaluate(*{{batch}}, use={use}))"]
    life.watched += ["optimizer", "scaler"]
    life.events += [event("scaler loaded", "scaler.load_state_dict(scaler.state_dict())", quiet=True),
                    event("another scale", "scaler.update(4.0)"),
                    event("another scaler", "scaler = torch.amp.GradScaler('cpu', init_scale=2.0)"),
                    event("scaler off", "scaler = torch.amp.GradScaler('cpu', enabled=False)")]  # fmt: skip


def functional(life: Life) -> None:
    """The model called with other parameters than its own."""
    d = life.d
    life.without_checkpoints()
    update = optimizer(life)
    life.setup += ["fast = {n: p.detach().clone().requires_grad_(p.requires_grad) for n, p in model.named_parameters()}"]
    out = f"out = {FUNCTIONAL.format(params='params')}{life.model.rows}"
    life.define("losses", "params, x, target", [out, life.forward[1], "return loss"])
    life.define("inner", "params, x, target, rate", [
        out, life.forward[1], "names = [n for n, p in params.items() if p.requires_grad]",
        "grads = torch.autograd.grad(loss, [params[n] for n in names], allow_unused=True)",
        "return {**params, **{n: params[n] - rate * g for n, g in zip(names, grads) if g is not None}}"])  # fmt: skip
    life.define("mean", "many", ["return {n: sum(p[n] for p in many) / len(many) for n in many[0]}"])
    life.calls["own"] = [zeroing(d), "loss = losses(dict(model.named_parameters()), *{batch})", "loss.backward()", *update,
                         "seen(loss)"]  # fmt: skip
    life.calls["fast"] = ["loss = losses(fast, *{batch})", "loss.backward()", "seen(loss)"]
    life.calls["some"] = [
        "some = dict([*fast.items()][:1])",
        "loss = losses(some, *{batch})",
        "loss.backward()",
        "seen(loss)",
    ]
    life.calls["empty"] = ["seen(losses(dict(), *{batch}))"]
    life.calls["inner"] = ["now = {batch}", "moved = inner(fast, *now, 0.1)", "seen(losses(inner(moved, *now, 0.05), *now))"]
    life.calls["mean"] = [
        "fast = {n: t.detach().requires_grad_() for n, t in mean([fast, dict(model.named_parameters())]).items()}"
    ]
    life.watched += ["fast"]
    life.events += [event("fast weights anew",
                          "fast = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}"),
                    event("fast weights frozen", "fast = {n: p.detach() for n, p in fast.items()}"),
                    event("fast weights are slow", "fast = dict(model.named_parameters())"),
                    event("fast weights reversed", "fast = dict(reversed(fast.items()))")]  # fmt: skip


def raising(life: Life) -> None:
    """A step that the user leaves by exceptions, at one of several places, and maybe cleans up."""
    d = life.d
    update = optimizer(life)
    parts = [[zeroing(d)], life.forward, ["loss.backward()"], update]
    lines = [line for k, part in enumerate(parts)
             for line in [*part, f"if stop == {k}:",
                          f"    raise {d.pick('ValueError', 'Stop', 'KeyError')}(stop)"]]  # fmt: skip
    kind = d.pick("plain", "finally", "except", "with", "value")
    if kind == "finally":
        lines = ["try:", *indented(lines), "finally:", "    counts['done'] += 1", "    model.train()"]
    elif kind == "except":
        lines = ["try:", *indented(lines), "except ValueError as error:",
                 "    counts['failed'] = counts.get('failed', 0) + 1",
                 "    notes.append(str(error))", "    return None"]  # fmt: skip
    elif kind == "with":
        lines = ["with torch.autograd.set_grad_enabled(True), torch.random.fork_rng():", *indented(lines)]
    elif kind == "value":
        lines.insert(
            lines.index("loss.backward()"),
            "if not torch.isfinite(loss) or loss > limit:\n    raise FloatingPointError('loss')",
        )
        lines = [part for line in lines for part in line.split("\n")]
    life.setup.append("counts = {'done': 0}")
    life.define("step", "x, target, stop=None, limit=1e9", [*lines, "return loss.detach()"])
    life.calls["step"] = ["seen(step(*{batch}))"]
    for k in range(len(parts)):
        life.calls[f"step until {k}"] = [f"seen(step(*{{batch}}, stop={k}))"]
    life.calls["step within limits"] = ["seen(step(*{batch}, limit=1.5))"]
    life.watched.append("counts")


def closures(life: Life) -> None:
    """Optimizers that call a closure, in the compiled function or outside of it."""
    d = life.d
    made = d.pick("LBFGS(model.parameters(), lr=0.1, max_iter=2)", "SGD(model.parameters(), lr=0.05, momentum=0.9)",
                  "LBFGS(model.parameters(), max_iter=3, line_search_fn='strong_wolfe')",
                  "Adam(model.parameters(), lr=0.02)")  # fmt: skip
    life.setup += ["model = Model()", f"optimizer = torch.optim.{made}"]
    closure = ["def closure():", *indented([zeroing(d), *life.forward, "loss.backward()", "return loss"])]
    life.define("step", "x, target", [*closure, "return optimizer.step(closure)"])
    life.define("losses", "x, target", [*life.forward, "return loss"])
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["outside"] = ["now = {batch}", "def closure():", "    optimizer.zero_grad()", "    loss = losses(*now)",
                             "    loss.backward()", "    return loss", "seen(optimizer.step(closure))"]  # fmt: skip
    life.watched.append("optimizer")


def now_and_then(life: Life) -> None:
    """Second-order gradients in some of the calls."""
    d = life.d
    update = optimizer(life)
    slopes = ["slopes = torch.autograd.grad(loss, trained, create_graph=True, allow_unused=True)",
              "loss = loss + 0.1 * sum(s.pow(2).sum() for s in slopes if s is not None)"]  # fmt: skip
    life.setup.append("state = {'calls': 0, 'every': 3}")
    life.define("step", "x, target", [
        zeroing(d), *life.forward, "state['calls'] += 1", "if state['calls'] % state['every'] == 0:", *indented(slopes),
        "loss.backward()", *update, "return loss.detach()"])  # fmt: skip
    life.define("curved", "x, target, curved", [
        zeroing(d), *life.forward, "loss.backward(create_graph=curved)", "if curved:",
        "    kept['slope'] = sum(p.grad.pow(2).sum() for p in trained if p.grad is not None).detach()",
        "for p in trained:", "    p.grad = None if p.grad is None else p.grad.detach()", *update,
        "return loss.detach()"])  # fmt: skip
    life.define("losses", "x, target", [*life.forward, "return loss"])
    life.calls["step"] = ["seen(step(*{batch}))"]
    for curved in (True, False):
        life.calls[f"curved {curved}"] = [f"seen(curved(*{{batch}}, {curved}))"]
    life.calls["outside"] = [zeroing(d), "loss = losses(*{batch})", *slopes, "loss.backward()", *update, "seen(loss)"]
    life.events.append(event("every so often", "state['every'] = 1 + <K>", share=3))
    life.watched.append("state")


def carried(life: Life) -> None:
    """A state that goes from call to call, now and then anew."""
    d = life.d
    kind = d.pick("GRU", "LSTM", "RNN")
    life.setup += [
        "class Carrying(nn.Module):", "    def __init__(self):", "        super().__init__()",
        f"        self.rnn, self.head = nn.{kind}(6, 8, batch_first=True), nn.Linear(8, 5)",
        "    def forward(self, x, state=None):", "        y, state = self.rnn(x, state)",
        "        return self.head(y[:, -1]), state",
        "model, state, average = Carrying(), None, torch.zeros(5)",
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.01)",
        "def batch(n=4, t=5):", "    return torch.randn(n, t, 6), torch.randint(5, (n,))",
    ]  # fmt: skip
    life.model.lengths = True
    detached = d.pick("tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()",
                      "torch.utils._pytree.tree_map(torch.Tensor.detach, state)")  # fmt: skip
    life.define("step", "x, target, state", [
        zeroing(d), "out, state = model(x, state)", "loss = F.cross_entropy(out, target)", "loss.backward()",
        "optimizer.step()",
        "average.lerp_(out.detach().mean(0), 0.1)", f"return loss.detach(), {detached}"])  # fmt: skip
    life.define("follow", "x, state", ["out, state = model(x, state)", "return out, state"])
    life.calls["step"] = ["loss, state = step(*{batch}, state)", "seen(loss)"]
    life.calls["step anew"] = ["loss, state = step(*{batch}, None)", "seen(loss)"]
    life.calls["follow"] = ["with torch.no_grad():", "    out, state = follow({batch}[0], state)", "seen(out)"]
    life.events += [event("no state", "state = None", share=3),
                    event("state in place", "for s in state if isinstance(state, tuple) else (state,):",
                          "    if s is not None:",
                          "        s.mul_(<F>)")]  # fmt: skip
    life.watched += ["optimizer", "state", "average"]


def remembered(life: Life) -> None:
    """Lists, queues and caches that calls fill: keys of attention, examples, embeddings of other batches."""
    d = life.d
    life.setup += [
        "import collections", "model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))",
        "slow = copy.deepcopy(model).requires_grad_(False)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
        "queue, place = F.normalize(torch.randn(4, 16), dim=0), {'at': 0}",
        "cache, recent = [], collections.deque(maxlen=3)",
        "def batch(n=4):", "    return torch.randn(n, 6), torch.randn(n, 6)",
    ]  # fmt: skip
    life.define("step", "x, target", [
        zeroing(d), "q, k = F.normalize(model(x), dim=1), F.normalize(slow(target), dim=1)",
        "logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.clone()], 1) / 0.2",
        "loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))", "loss.backward()", "optimizer.step()",
        "with torch.no_grad():", "    for s, p in zip(slow.parameters(), model.parameters()):",
        "        s.mul_(0.9).add_(p, alpha=0.1)",
        "    at = place['at']", "    queue[:, at:at + len(k)] = k.t()[:, :16 - at]", "    place['at'] = (at + len(k)) % 16",
        "recent.append(loss.detach())", "return torch.stack(list(recent)).mean()"])  # fmt: skip
    life.define("decode", "x", [
        "with torch.no_grad():", "    cache.append(model(x))", "    keys = torch.stack(cache, 1)",
        "    weights = torch.softmax((keys @ keys[:, -1:].transpose(1, 2)).squeeze(-1), 1)",
        "    return (weights[..., None] * keys).sum(1)"])  # fmt: skip
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["decode"] = ["seen(decode({batch}[0]))"]
    life.events += [event("cache cleared", "cache.clear()", share=3), event("cache shortened", "del cache[:-1]"),
                    event("queue begins", "place['at'] = 0"), event("recent cleared", "recent.clear()"),
                    event("queue anew", "queue = F.normalize(torch.randn(4, 16), dim=0)")]  # fmt: skip
    life.models, life.watched = ["model", "slow"], ["slow", "optimizer", "queue", "place", "cache"]


def annealed(life: Life) -> None:
    """Numbers, flags and optional tensors as arguments, other ones in each call, and numbers drawn in Python."""
    d = life.d
    update = optimizer(life)
    life.setup.append("import random as chance")
    life.define("step", "x, target, beta=0.0, mask=None, names=(), *, mode='plain', skip=0.0", [
        zeroing(d), *life.forward, "if mask is not None:", "    out = out * mask",
        "    loss = loss + out.float().pow(2).mean()",
        "if chance.random() < skip:", "    loss = loss * 0.5", "elif mode == 'plain':", "    loss = loss * (1 - beta)",
        "else:", "    loss = loss + beta * out.float().abs().mean()",
        "loss.backward()", *update, "return {'loss': loss.detach(), **{name: beta for name in names}}"])  # fmt: skip
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["annealed"] = ["beta = 0.9 * beta + 0.05", "seen(step(*{batch}, beta))"]
    life.calls["masked"] = ["seen(step(*{batch}, beta, mask=torch.tensor(0.5)))"]
    life.calls["named"] = ["seen(step(*{batch}, 0.25, None, ('a', 'b')))"]
    life.calls["other mode"] = ["seen(step(*{batch}, beta, mode='other'))"]
    life.calls["skipping"] = ["seen(step(*{batch}, skip=0.5))"]
    life.setup.append("beta = 0.1")
    life.events += [event("beta", "beta = <F>"), event("beta one", "beta = 1"), event("beta as a tensor",
    "beta = torch.tensor(0.3)"),
                    event("python seed", "chance.seed(<K>)", quiet=True)]  # fmt: skip


def perturbed(life: Life) -> None:
    """Steps in two parts: gradients elsewhere (SAM), slow weights (lookahead), or gradients that are made to agree."""
    d = life.d
    update = optimizer(life)
    kind = d.pick("sam", "lookahead", "surgery", "anchored")
    life.setup += ["slow = [p.detach().clone() for p in trained]", "state = {'calls': 0}"]
    first = [zeroing(d), *life.forward, "loss.backward()"]
    if kind == "sam":
        lines = [*first, "with torch.no_grad():",
                 "    norm = torch.stack([p.grad.norm() for p in trained if p.grad is not None]).norm()",
                 "    moves = [None if p.grad is None else p.grad * (0.05 / (norm + 1e-9)) for p in trained]",
                 "    for p, e in zip(trained, moves):", "        if e is not None:", "            p.add_(e)", *first,
                 "with torch.no_grad():", "    for p, e in zip(trained, moves):", "        if e is not None:",
                 "            p.sub_(e)",
                 *update]  # fmt: skip
    elif kind == "lookahead":
        lines = [*first, *update, "state['calls'] += 1", "if state['calls'] % 2 == 0:", "    with torch.no_grad():",
                 "        for s, p in zip(slow, trained):", "            s.lerp_(p, 0.5)",
                 "            p.copy_(s)"]  # fmt: skip
    elif kind == "surgery":
        lines = [*life.forward, "one = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)",
                 "two = torch.autograd.grad(out.float().pow(2).mean(), trained, allow_unused=True)",
                 "for p, a, b in zip(trained, one, two):", "    if a is None or b is None:",
                 "        p.grad = a if b is None else b",
                 "        continue", "    dot = (a * b).sum()",
                 "    p.grad = a + b - torch.where(dot < 0, dot / (b.pow(2).sum() + 1e-9), 0.0) * b", *update]  # fmt: skip
    else:
        lines = [zeroing(d), *life.forward, "loss = loss + 0.05 * sum((p - s).pow(2).sum() for p, s in zip(trained, slow))",
                 "loss.backward()", *update]  # fmt: skip
    life.define("step", "x, target", [*lines, "return loss.detach()"])
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.events.append(event("slow weights anew", "slow = [p.detach().clone() for p in trained]"))
    life.events.append(event("all trained anew", "trained = [p for p in model.parameters() if p.requires_grad]",
                             "slow = [p.detach().clone() for p in trained]", share=2))  # fmt: skip
    life.watched += ["slow", "state"]


def several_parts(life: Life) -> None:
    """Compiled functions that share parameters and call each other."""
    d = life.d
    life.setup += [
        "encoder, model = nn.Sequential(nn.Linear(6, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 6))",
        "optimizer = torch.optim.AdamW([*encoder.parameters(), *model.parameters()], lr=0.02)",
        "best, record = copy.deepcopy(model), {'loss': float('inf')}",
        "def batch(n=4):", "    return torch.randn(n, 6), torch.randn(n, 6)",
    ]  # fmt: skip
    tied = d.pick("F.linear(encode(x), encoder[0].weight.t())", "model(encode(x))")
    life.define("encode", "x", ["return encoder(x)"])
    life.define("decode", "x", [f"return {tied}"])
    life.define("losses", "x, target", ["return F.mse_loss(decode(x), target) + 0.1 * encode(target).abs().mean()"])
    life.define("step", "x, target", [zeroing(d), "loss = losses(x, target)", "loss.backward()", "optimizer.step()",
                                      "return loss.detach()"])  # fmt: skip
    life.define(
        "judge", "net, x, target", ["with torch.inference_mode():", "    return F.mse_loss(net(encoder(x)), target)"]
    )
    life.calls["encode"] = ["seen(encode({batch}[0]))"]
    life.calls["losses"] = ["loss = losses(*{batch})", "loss.backward()", "seen(loss)"]
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["judge"] = ["now = {batch}", "loss = judge(model, *now)", "if float(loss) < record['loss']:",
                           "    best, record['loss'] = copy.deepcopy(model), float(loss)",
                           "seen((loss, judge(best, *now)))"]  # fmt: skip
    life.models, life.watched = ["model", "encoder", "best"], ["encoder", "best", "optimizer"]
    life.events.append(event("the best again", "model.load_state_dict(best.state_dict())"))


SCENARIOS: dict[Callable[[Life], None], float] = {
    scheduled: 2, settings: 2, micro_batches: 1.5, mixed: 1.5, functional: 2, raising: 2.5, closures: 1.5, now_and_then: 1.5,
    carried: 1.5, remembered: 1.5, annealed: 2, perturbed: 2, several_parts: 1.5,
}  # fmt: skip
