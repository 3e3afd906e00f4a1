"""Scenarios written as people write trainers: objects for batches, loaders, callbacks, modules with states and caches of
their own, heads by name, optimizers of one's own, wrappers, ensembles."""

from __future__ import annotations

from collections.abc import Callable

from lives import classes
from lives.event import event
from lives.life import Life, optimizer, zeroing
from training.draft import indented


def loaders(life: Life) -> None:
    """Whole epochs over what gives batches: lists, generators, iterators, PyTorch's loaders."""
    d = life.d
    update = optimizer(life)
    life.setup += classes.lines(classes.LOADERS)
    loop = d.pick("for x, target in loader:", "for k, (x, target) in enumerate(loader):", "for x, target in iter(loader):",
                  "for number, (x, target) in zip(range(4), loader):")  # fmt: skip
    body = [zeroing(d), *life.forward, "loss.backward()", *update, "total += loss.detach()", "count += len(x)"]
    if d.chance(0.3):
        body += ["if limit is not None and count >= limit:", "    break"]
    start = d.pick("total, count = 0.0, 0", "total, count = torch.zeros(()), 0")
    result = d.pick("return total / count", "return total")
    life.define("epoch", "loader, limit=None", [start, loop, *indented(body), result])
    life.define("step", "stream", ["x, target = next(stream)", zeroing(d), *life.forward, "loss.backward()", *update,
                                   "return loss.detach()"])  # fmt: skip
    life.calls["list"] = ["now = {batch}", "seen(epoch([now, now]))"]
    life.calls["generator"] = ["now = {batch}", "seen(epoch(generated([now, now])))"]
    life.calls["expression"] = ["now = {batch}", "seen(epoch((b for b in [now, now])))"]
    life.calls["loader"] = ["seen(epoch(torch.utils.data.DataLoader(Dataset({batch}), batch_size=2), 2))"]
    life.calls["shuffled"] = [
        "seen(epoch(torch.utils.data.DataLoader(Dataset({batch}), batch_size=3, shuffle=True, drop_last=True)))"
    ]
    life.calls["own"] = ["now = {batch}", "seen(epoch(Batches([now, shorter(now, 2)]), limit=3))"]
    life.calls["iterator"] = ["now = {batch}", "stream = iter([now, now])", "seen(step(stream))", "seen(step(stream))"]


def objects(life: Life) -> None:
    """Batches and outputs that are objects: dataclasses, named tuples, dictionaries, classes with methods."""
    d = life.d
    update = optimizer(life)
    kind, made = d.pick("dataclass", "frozen", "named", "dictionary", "class", "ordered"), "Batch(x, target)"
    life.setup += ["import collections, dataclasses, enum, typing", *classes.lines(classes.BATCHES[kind]),
                   *classes.lines(classes.OUTPUTS)]  # fmt: skip
    life.define("forward", "batch, mode=Mode.PLAIN", [
        "x, target = batch.x, batch.target", *life.forward,
        "if mode is Mode.SQUARED:", "    loss = loss + out.float().pow(2).mean()",
        "hidden = out.detach() if mode == Mode.SQUARED else None",
        "return Output(loss * batch.weight / batch.size, out, hidden=hidden)"])  # fmt: skip
    life.define("step", "batch, mode=Mode.PLAIN", [
        zeroing(d), "made = forward(batch, mode=mode)", d.pick("loss = made[0]", "loss = made.loss"),
        "loss.backward()", *update,
        "return {'loss': loss.detach(), **({} if made.hidden is None else {'hidden': made.hidden})}"])  # fmt: skip
    life.calls["step"] = ["x, target = {batch}", f"seen(step({made}))"]
    life.calls["squared"] = ["x, target = {batch}", f"seen(step({made}, mode=Mode.SQUARED))"]
    life.calls["half"] = ["x, target = {batch}", f"seen(step({made}.half()))"]
    life.calls["forward"] = ["x, target = {batch}", f"made = forward({made})", "made.loss.backward()",
                             "seen((made.loss, made.logits))"]  # fmt: skip


def callbacks(life: Life) -> None:
    """A trainer with callbacks, meters, a schedule that freezes, an average that is swapped in, and the best loss so far."""
    d = life.d
    update = [line for line in optimizer(life) if not line.startswith("scheduler")]
    forward = [line.replace("model(", "self.model(") for line in life.forward]
    life.setup += [
        *classes.lines(classes.CALLBACKS),
        "class Trainer:", "    def __init__(self):",
        "        self.model, self.steps, self.smooth, self.best = model, 0, None, float('inf')",
        "        self.meters, self.callbacks = {'loss': Meter()}, [Callback(2), Smoothing()]",
        "        self.average = Average(model)",
        "    @property", "    def size(self):",
        "        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)",
        "    def call(self, name, *args):", "        for callback in self.callbacks:",
        "            getattr(callback, name)(self, *args)",
        "    def step(self, x, target):",
        *indented([zeroing(d), *forward, "for callback in self.callbacks:", "    loss = callback.on_loss(self, loss)",
                   "loss.backward()", *update, "self.steps += 1", "self.average.update()",
                   d.pick("self.meters['loss'].update(loss.item(), len(x))",
                          "self.meters['loss'].update(loss.detach(), len(x))"),
                   "self.call('on_step')",
                   "return {'loss': loss.detach(), 'mean': self.meters['loss'].mean, 'of': self.size}"],
                  2),
        "    @torch.no_grad()", "    def evaluate(self, x, target):", "        self.model.eval()", "        try:",
        *indented([*forward, d.pick("value = loss.item()", "value = float(loss)", "value = loss"),
                   "if value < self.best:", "    self.best = value", "    return 'better', value",
                   "return 'worse', value"], 3),
        "        finally:", "            self.model.train()",
        "    def averaged(self, x, target):", "        with self.average.swapped():",
        "            return self.evaluate(x, target)",
        "trainer = Trainer()", "trainer.step = compile(trainer.step)",
    ]  # fmt: skip
    if d.chance(0.7):
        name = d.pick("evaluate", "averaged")
        life.setup.append(f"trainer.{name} = compile(trainer.{name})")
    life.calls["step"] = ["seen(trainer.step(*{batch}))"]
    life.calls["evaluate"] = ["seen(trainer.evaluate(*{batch}))"]
    life.calls["averaged"] = ["seen(trainer.averaged(*{batch}))"]
    life.events += [
        event("a callback more", "trainer.callbacks.append(Callback(1 + <K>))"),
        event("a callback less", "if trainer.callbacks:", "    trainer.callbacks.pop()"),
        event("callbacks reversed", "trainer.callbacks.reverse()"),
        event("freezing ahead", "trainer.callbacks.append(Freezing(trainer.steps + 1))", share=2),
        event("a meter anew", "trainer.meters = {'loss': Meter()}"),
        event("the average anew", "trainer.average = Average(trainer.model, <F> / 2)"),
        event("the best anew", "trainer.best = float('inf')", share=2),
        event("smooth anew", "trainer.smooth = None"), event("decay", "trainer.average.decay = <F> / 2", share=2),
        event("steps anew", "trainer.steps = 0"),
        event("a method of a callback", "Callback.on_step = lambda self, trainer: notes.append('other')", share=0.5),
    ]  # fmt: skip
    life.watched.append("trainer")


def stateful(life: Life) -> None:
    """Modules that change their own buffers and attributes: caches that grow, codebooks, pointers into queues, states."""
    d = life.d
    used = d.pick("self.used.mul_(0.9).add_(hot.sum(0), alpha=0.1)", "self.used = 0.9 * self.used + 0.1 * hot.sum(0)",
                  "self.used.data = 0.9 * self.used + 0.1 * hot.sum(0)")  # fmt: skip
    codes = d.pick("self.codes.lerp_(hot.t() @ flat / (hot.sum(0)[:, None] + 1), 0.1)",
                   "self.codes.copy_(0.9 * self.codes + 0.1 * hot.t() @ flat / (hot.sum(0)[:, None] + 1))",
                   "self.codes[0] += 0.01 * flat.mean(0)")  # fmt: skip
    at = d.pick("at = int(self.at)", "at = self.at.item()", "at = int(self.at[0])")
    life.setup += classes.lines(classes.STATEFUL, used=used, codes=codes, at=at)
    parts = [name for name in ("rotary", "codebook", "queue", "memory") if d.chance(0.6)] or ["memory"]
    made = {"rotary": "Rotary(6)", "codebook": "Codebook(5, 6)", "queue": "Queue(10, 6)", "memory": "Memory(6)"}
    forward = ["x, extra = self.inner(x), 0.0"]
    forward += ["x = self.rotary(x)"] * ("rotary" in parts)
    forward += ["x, extra = self.codebook(x)"] * ("codebook" in parts) + ["x = x.mean(1)"]
    forward += ["x = self.memory(x)"] * ("memory" in parts)
    forward += ["self.queue.push(x.detach())", "x = x - 0.1 * self.queue.rows.mean(0)"] * ("queue" in parts)
    life.setup += ["class Model(nn.Module):", "    def __init__(self):", "        super().__init__()",
                   *[f"        self.{name} = {made[name]}" for name in parts],
                   "        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 5)",
                   "    def forward(self, x):", *indented([*forward, "return self.head(x), extra"], 2),
                   "model = Model()",
                   f"optimizer = torch.optim.{d.pick('SGD', 'Adam', 'AdamW')}(model.parameters(), lr=0.02)",
                   "def batch(n=4, t=5):", "    return torch.randn(n, t, 6), torch.randint(5, (n,))"]  # fmt: skip
    life.model.lengths = True
    life.define("losses", "x, target", ["out, extra = model(x)", "return F.cross_entropy(out, target) + extra"])
    life.define("step", "x, target", [zeroing(d), "out, extra = model(x)", "loss = F.cross_entropy(out, target) + extra",
                                      "loss.backward()", "optimizer.step()", "return loss.detach()"])  # fmt: skip
    life.define("evaluate", "x", [d.pick("with torch.no_grad():", "with torch.inference_mode():"),
                                  "    return model(x)[0].argmax(-1)"])  # fmt: skip
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["outside"] = [zeroing(d), "loss = losses(*{batch})", "loss.backward()", "optimizer.step()", "seen(loss)"]
    life.calls["evaluate"] = ["model.eval()", "seen(evaluate({batch}[0]))", "model.train()"]
    life.events += [
        event("memory forgotten", "if hasattr(model, 'memory'):", "    model.memory.reset()", share=2),
        event("angles forgotten", "if hasattr(model, 'rotary'):", "    model.rotary.cos = None"),
        event("angles as buffers", "if hasattr(model, 'rotary') and isinstance(model.rotary.cos, torch.Tensor):",
              "    cos = model.rotary.__dict__.pop('cos', None)", "    if cos is not None:",
              "        model.rotary.register_buffer('cos', cos, persistent=False)"),
        event("queue anew", "if hasattr(model, 'queue'):", "    model.queue.at.zero_()"),
        event("queue replaced", "if hasattr(model, 'queue'):", "    model.queue.rows = torch.ones(10, 6)"),
        event("codes replaced", "if hasattr(model, 'codebook'):",
              "    model.codebook.codes = model.codebook.codes.clone() * <F>"),
        event("codes more", "if hasattr(model, 'codebook'):",
              "    model.codebook.codes = torch.cat([model.codebook.codes, torch.zeros(1, 6)])",
              "    model.codebook.used = torch.cat([model.codebook.used, torch.zeros(1)])"),
    ]  # fmt: skip
    life.watched.append("optimizer")


def several_tasks(life: Life) -> None:
    """Heads by name, losses with learned weights, experts, and parameters in lists and dictionaries."""
    d = life.d
    route = d.pick("self.heads[task](h)", "getattr(self, f'head_{task}')(h)", "dict(self.heads.items())[task](h)")
    experts = d.pick("sum(g * e(h) for g, e in zip(self.gates, self.experts))",
                     "torch.stack([e(h) * g for e, g in zip(self.experts, self.gates)]).sum(0)",
                     "sum(w * e(h) for w, e in zip(torch.stack([1.5 * g for g in self.gates]).softmax(0), self.experts))")
    life.setup += [
        *classes.lines(classes.TASKS, experts=experts, head=route),
        "model, tasks = Model(), ['a', 'b']",
        f"optimizer = torch.optim.{d.pick('SGD', 'Adam', 'AdamW')}(model.parameters(), lr=0.02)",
        "def batch(n=4):", "    return torch.randn(n, 6), torch.randint(5, (n,))",
    ]  # fmt: skip
    life.define("step", "x, target, tasks", [
        zeroing(d), "found = model.losses(x, target, tasks)", d.pick("loss = sum(found.values())",
        "loss = torch.stack(list(found.values())).mean()"),
        "loss.backward()", "optimizer.step()",
        "return {name: value.detach() for name, value in found.items()}"])  # fmt: skip
    life.define("one", "x, target, task", [
        zeroing(d), "loss = F.cross_entropy(model(x, task=task), target)", "loss.backward()", "optimizer.step()",
        "return task, loss.detach()"])  # fmt: skip
    life.calls["step"] = ["seen(step(*{batch}, tasks))"]
    life.calls["all"] = ["seen(step(*{batch}, model.heads.keys()))"]
    for task in ("a", "b"):
        life.calls[f"task {task}"] = [f"seen(one(*{{batch}}, '{task}'))"]
    life.calls["round"] = ["for task in tasks:", "    seen(one(*{batch}, task))"]
    life.events += [
        event("a task more", "model.heads['c'] = nn.Linear(8, 5)", "model.head_c = model.heads['c']",
              "model.logs['c'] = nn.Parameter(torch.zeros(()))", "tasks = [*dict.fromkeys([*tasks, 'c'])]"),
        event("a task less", "tasks = tasks[:1]"), event("tasks reversed", "tasks = tasks[::-1]"),
        event("a head replaced", "model.heads['a'] = model.head_a = nn.Linear(8, 5)"),
        event("a head of both", "model.heads['b'] = model.head_b = model.heads['a']"),
        event("an expert more", "model.experts.append(nn.Linear(8, 8))",
              "model.gates.append(nn.Parameter(torch.full((), <F>)))"),
        event("an expert less", "if len(model.experts) > 1:", "    model.experts = model.experts[:-1]"),
        event("a gate in place", "with torch.no_grad():", "    model.gates[0].fill_(<F>)", quiet=True),
        event("a gate replaced", "model.gates[0] = nn.Parameter(torch.full((), <F>))"),
        event("a gate without gradients", "model.gates[-1].requires_grad_(False)"),
    ]  # fmt: skip
    life.watched += ["optimizer", "tasks"]


def own_optimizers(life: Life) -> None:
    """Optimizers that people write: subclasses of PyTorch's, wrappers around one, updates with states by name."""
    d = life.d
    life.setup += [
        "model = Model()",
        *classes.lines(classes.OPTIMIZERS),
    ]  # fmt: skip
    made = d.pick(
        "Lion(model.parameters(), weight_decay=0.01)", "Clipped(model.parameters(), lr=0.05, momentum=0.9)",
        "Centered(model.parameters(), lr=0.02)", "Lookahead(torch.optim.SGD(model.parameters(), lr=0.05))",
        "Lookahead(Lion(model.parameters()))", "Accumulating(torch.optim.Adam(model.parameters(), lr=0.02))",
        "Accumulating(Centered(model.parameters(), lr=0.02), 3)",
        "Lion([{'params': [p]} for p in model.parameters()])",
    )  # fmt: skip
    life.setup += [f"optimizer = {made}", "trained = [*model.parameters()]"]
    life.define("step", "x, target", [zeroing(d), *life.forward, "loss.backward()", "optimizer.step()",
        "return loss.detach()"])
    life.define("update", "", ["optimizer.step()"])
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["outside"] = ["optimizer.zero_grad()", "x, target = {batch}", *life.forward, "loss.backward()", "update()",
                             "seen(loss)"]  # fmt: skip
    life.events += [event("every", "optimizer.every = 1 + <K>"), event("alpha", "optimizer.alpha = <F> / 2"),
                    event("a method replaced", "type(optimizer).zero_grad = lambda self, **_: "
                          "[setattr(p, 'grad', None) for g in self.param_groups for p in g['params']]",
                          share=0.5)]  # fmt: skip
    life.watched.append("optimizer")


def wrapped(life: Life) -> None:
    """Models in wrappers that pass attributes on, a compiled part in two models, and copies of what is compiled."""
    d = life.d
    life.setup += [
        *classes.lines(classes.WRAPPERS),
        f"part = nn.Sequential(nn.Linear(6, 8), {d.pick('nn.Tanh()', 'nn.BatchNorm1d(8)', 'nn.LayerNorm(8)')})",
        f"trunk = {d.pick('compile(part)', 'Called(part)', 'part', 'compile(part)')}",
        f"model = {d.pick('Net(trunk)', 'Wrapper(Net(trunk))')}",
        f"rival = Net({d.pick('trunk', 'part', 'copy.deepcopy(trunk)')})",
        "optimizer = torch.optim.AdamW(dict.fromkeys([*model.parameters(), *rival.parameters()]), lr=0.02)",
        "def batch(n=4):", "    return torch.randn(n, 6), torch.randint(5, (n,))",
    ]  # fmt: skip
    life.define("step", "net, x, target", [zeroing(d), "loss = F.cross_entropy(net(x), target)", "loss.backward()",
                                           "optimizer.step()", "return loss.detach()"])  # fmt: skip
    life.define("both", "x, target", [
        zeroing(d), "loss = F.cross_entropy(model(x), target) + F.cross_entropy(rival(x, scale=0.5), target)",
        "loss.backward()", "optimizer.step()", "return loss.detach(), model.temperature"])  # fmt: skip
    life.setup.append(f"forward = compile({d.pick('model', 'rival', 'model.forward', 'lambda x: model(x)')})")
    life.calls["step"] = ["seen(step(model, *{batch}))"]
    life.calls["rival"] = ["seen(step(rival, *{batch}))"]
    life.calls["both"] = ["seen(both(*{batch}))"]
    life.calls["forward"] = ["x, target = {batch}", "F.cross_entropy(forward(x), target).backward()"]
    life.calls["plain"] = ["seen(plain_step(model, *{batch}))"]
    life.calls["predict"] = ["model.eval()", "with torch.no_grad():", "    seen(forward({batch}[0]))", "model.train()"]
    life.events += [
        event("temperature", "model.temperature = <F>", share=2), event("temperature of the class", "Net.temperature = <F>"),
        event("another trunk", "model.trunk = rival.trunk"), event("trunk of one's own",
              "rival.trunk = copy.deepcopy(part)"),
        event("trunk compiled", "rival.trunk = compile(part)"), event("unwrapped",
              "model = getattr(model, 'module', model)"),
        event("wrapped again", "model = Wrapper(model)"), event("copied", "rival = copy.deepcopy(model)"),
        event("copied flat", "rival = copy.copy(rival)"),
        event("forward compiled", "rival.forward = compile(rival.forward)"),
        event("submodules compiled", "for name, child in [*rival.named_children()]:",
              "    if isinstance(child, nn.Linear):", "        setattr(rival, name, compile(child))"),
        event("another trunk's weights", "rival.trunk.load_state_dict(model.trunk.state_dict())", quiet=True),
    ]  # fmt: skip
    life.models, life.watched = ["model", "rival"], ["rival", "optimizer"]


def ensembles(life: Life) -> None:
    """Several models by one function: stacked parameters, vmap, a list of them, votes."""
    d = life.d
    life.setup += [
        "def made():", f"    return nn.Sequential(nn.Linear(6, 8), nn.{d.pick('Tanh', 'ReLU', 'GELU')}(), nn.Linear(8, 5))",
        "models = [made() for _ in range(3)]", "model, base = models[0], copy.deepcopy(models[0])",
        "params, buffers = torch.func.stack_module_state(models)",
        "optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.05, momentum=0.9)",
        "together = torch.optim.Adam(params.values(), lr=0.02)",
        "def one(p, x):", "    return torch.func.functional_call(base, p, (x,))",
        "def batch(n=4):", "    return torch.randn(n, 6), torch.randint(5, (n,))",
    ]  # fmt: skip
    randomness = d.pick("", ", randomness='different'")
    life.define("stacked", "x, target", [
        "together.zero_grad()", f"outs = torch.vmap(one, in_dims=(0, None){randomness})(params, x)",
        "loss = F.cross_entropy(outs.flatten(0, 1), target.repeat(len(outs)))", "loss.backward()", "together.step()",
        "return loss.detach()"])  # fmt: skip
    life.define("listed", "x, target", [
        zeroing(d), "outs = [m(x) for m in models]", "loss = sum(F.cross_entropy(o, target) for o in outs)",
        "loss.backward()",
        "optimizer.step()", d.pick("return torch.stack(outs).mean(0).argmax(-1)",
        "return torch.stack(outs).var(0).mean()")])  # fmt: skip
    life.define("slopes", "x, target", [
        "def loss(p, x, t):", "    return F.cross_entropy(one(p, x[None]), t[None])",
        "own = {n: p[0].detach() for n, p in params.items()}",
        "found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(own, x, target)",
        "return {n: g.flatten(1).norm(dim=1) for n, g in found.items()}"])  # fmt: skip
    for name in ("stacked", "listed", "slopes"):
        life.calls[name] = [f"seen({name}(*{{batch}}))"]
    life.events += [
        event("a model more", "models.append(made())"), event("a model less", "if len(models) > 1:", "    models.pop()"),
        event("models reversed", "models.reverse()"),
        event("stacked again", "params, buffers = torch.func.stack_module_state(models)",
              "together = torch.optim.Adam(params.values(), lr=0.02)"),
        event("one of them given back", "with torch.no_grad():", "    for n, p in model.named_parameters():",
              "        p.copy_(params[n][0])", quiet=True),
    ]  # fmt: skip
    life.optimizers = ["optimizer", "together"]
    life.watched += ["models", "params", "optimizer", "together"]


def late(life: Life) -> None:
    """Modules whose shapes come with the first batch, or that begin on the meta device and are given weights."""
    d = life.d
    norm = d.pick("(nn.LazyBatchNorm1d() if lazy else nn.BatchNorm1d(8))", "nn.LayerNorm(8)", "nn.Identity()")
    life.setup += [
        "def make(lazy=True):", "    first = nn.LazyLinear(8) if lazy else nn.Linear(6, 8)",
        f"    return nn.Sequential(first, {norm}, nn.Tanh(), nn.Linear(8, 5))",
        "model = make()",
        "def batch(n=4):", "    return torch.randn(n, 6), torch.randint(5, (n,))",
        f"{d.pick('model(batch()[0])', 'pass')}",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)",
    ]  # fmt: skip
    life.define("losses", "x, target", ["return F.cross_entropy(model(x), target)"])
    life.define("step", "x, target", [zeroing(d), "loss = F.cross_entropy(model(x), target)", "loss.backward()",
                                      "optimizer.step()", "return loss.detach()"])  # fmt: skip
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["losses"] = ["loss = losses(*{batch})", "loss.backward()", "seen(loss)"]
    life.events += [
        event("made anew", "model = make()"),
        event("made anew, optimized", "model = make()", "model(batch()[0])",
              "optimizer = torch.optim.Adam(model.parameters(), lr=0.02)"),
        event("weights assigned to meta", "state = {n: t.detach().clone() for n, t in model.state_dict().items()}",
              "with torch.device('meta'):", "    fresh = make(lazy=False)",
              "fresh.load_state_dict(state, assign=True)", "model = fresh", share=3),
        event("parameters trained again", "for p in model.parameters():", "    p.requires_grad_(True)"),
        event("emptied", "model.zero_grad()", "model.to_empty(device='cpu')", "with torch.no_grad():",
              "    for t in model.state_dict().values():",
              "        t.fill_(1)"),
        event("assigned, with gradients",
              "model.load_state_dict({n: nn.Parameter(t.clone()) if t.is_floating_point() else t "
              "for n, t in model.state_dict().items()}, assign=True)"),
    ]  # fmt: skip
    life.watched.append("optimizer")


SCENARIOS: dict[Callable[[Life], None], float] = {
    loaders: 2, objects: 2, callbacks: 3, stateful: 3, several_tasks: 2, own_optimizers: 2, wrapped: 2, ensembles: 1,
    late: 1,
}  # fmt: skip
