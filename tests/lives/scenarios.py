"""What a program compiles, and how it calls that: whole steps, parts of them, several models in one loop."""

from __future__ import annotations

from lives import loops, studies, trainers
from lives.life import Life
from lives.life import optimizer as _optimizer
from lives.life import zeroing as _zeroing
from training import steps
from training.draft import Draft, indented


def _clipping(d: Draft) -> list[str]:
    kinds = {
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)": 3,
        "torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)": 1,
        "torch.nn.utils.clip_grad_norm_(trained, 0.1, foreach=True)": 1,
        "norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])": 0.5,
    }
    return [d.weighted(kinds)]


def _averages(life: Life) -> list[str]:
    d = life.d
    kind = d.pick(*steps.AVERAGES)
    made_by, lines = steps.AVERAGES[kind]
    life.setup.append(f"average = {made_by}")
    life.watched.append("average")
    if kind in ("mul-add", "copied", "swa"):
        life.models.append("average")
    return ["with torch.no_grad():", *indented(lines)]


def _evaluation(life: Life) -> None:
    d = life.d
    mode = d.pick("with torch.no_grad():", "with torch.no_grad():", "with torch.inference_mode():")
    life.define("evaluate", "x, target", [mode, *indented([*life.forward, "return loss, out.argmax(-1)"])])
    if d.chance(0.7):
        life.calls["evaluate"] = ["model.eval()", "seen(evaluate(*{batch}))", "model.train()"]
    else:
        life.calls["evaluate"] = ["seen(evaluate(*{batch}))"]


# scenarios ------------------------------------------------------------------------------------------------------


def whole_step(life: Life) -> None:
    d = life.d
    update = _optimizer(life)
    clip = _clipping(d) if d.chance(0.4) else []
    lines = [_zeroing(d), *life.forward, "loss.backward()", *clip, *update]
    if d.chance(0.2):
        lines += _averages(life)
    lines.append(d.pick("return loss.detach()", "return loss", "return loss.detach(), out.detach()", "return loss, out"))
    life.define("step", "x, target", lines)
    life.calls["step"] = ["seen(step(*{batch}))"]
    if d.chance(0.5):
        _evaluation(life)


def model_alone(life: Life) -> None:
    """A compiled module, or its call, with everything else outside."""
    d = life.d
    update = _optimizer(life)
    kind = d.pick("compile(model)", "compile(model)", "compile(model.forward)", "compile(lambda x: model(x))")
    life.setup.append(f"forward = {kind}")
    life.setup += ["def train(x, target):", *indented([
        _zeroing(d), f"out = forward(x){life.model.rows}", f"loss = {life.model.loss}",
        d.pick("loss.backward()", "loss.backward()", "loss.backward(retain_graph=True)"), *update, "return loss, out",
    ])]  # fmt: skip
    life.calls["train"] = ["seen(train(*{batch}))"]
    life.calls["predict"] = ["model.eval()", "with torch.no_grad():", "    seen(forward({batch}[0]))", "model.train()"]
    if kind == "compile(model)":
        life.models.append("forward")


def pieces(life: Life) -> None:
    """Each part of the step compiled by itself, or some of them."""
    d = life.d
    update = _optimizer(life)
    parts = {"clear": ("", [_zeroing(d)]), "losses": ("x, target", [*life.forward, "return loss"]), "clip": ("",
        _clipping(d)),
             "update": ("", update), "averages": ("", _averages(life))}  # fmt: skip
    chosen = [name for name in parts if d.chance(0.6)] or ["update"]
    for name, (parameters, lines) in parts.items():
        if name in chosen:
            life.define(name, parameters, lines)
        else:
            life.setup += [f"def {name}({parameters}):", *indented(lines)]
    life.calls["turn"] = ["clear()", "loss = losses(*{batch})", "loss.backward()", "clip()", "update()", "averages()",
                          "seen(loss)"]  # fmt: skip
    life.calls["backward only"] = ["loss = losses(*{batch})", "loss.backward()", "seen(loss)"]
    life.calls["update only"] = ["update()"]


def accumulation(life: Life) -> None:
    d = life.d
    update = _optimizer(life)
    life.define("accumulate", "x, target, share", [*life.forward, "(loss * share).backward()", "return loss.detach()"])
    clip = _clipping(d) if d.chance(0.5) else []
    life.define("update", "", [*clip, *update, _zeroing(d)])
    life.calls["accumulate"] = ["seen(accumulate(*{batch}, 0.5))"]
    life.calls["update"] = ["update()"]
    life.calls["both"] = ["seen(accumulate(*{batch}, 0.25))", "seen(accumulate(*{batch}, 0.25))", "update()"]


def adversarial(life: Life) -> None:
    """A generator and a discriminator, each with an optimizer."""
    d = life.d
    norm = d.pick("nn.utils.spectral_norm", "nn.utils.parametrizations.spectral_norm", "")
    life.setup += [
        f"model = nn.Sequential(nn.Linear(4, 8), {d.pick('nn.BatchNorm1d(8), ', '')}nn.ReLU(), nn.Linear(8, 6))",
        f"critic = nn.Sequential({norm}(nn.Linear(6, 8)), nn.LeakyReLU(0.2), nn.Linear(8, 1))",
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.5, 0.9))",
        "other = torch.optim.Adam(critic.parameters(), lr=0.02, betas=(0.5, 0.9))",
        "def batch(n=4):", "    return torch.randn(n, 6), torch.randn(n, 4)",
    ]  # fmt: skip
    made = d.pick("model(z).detach()", "torch.no_grad()(model)(z)")
    freeze = d.chance(0.5)
    real, fake = "F.softplus(-critic(x)).mean()", "F.softplus(critic(made)).mean()"
    penalty = d.chance(0.3)
    critic = [_zeroing(d, "other"), f"made = {made}", f"loss = {real} + {fake}"]
    if penalty:
        critic += ["mix = (0.3 * x + 0.7 * made).requires_grad_()",
                   "slope, = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)",
                   "loss = loss + (slope.norm(dim=1) - 1).pow(2).mean()"]  # fmt: skip
    life.define("critic_step", "x, z", [*critic, "loss.backward()", "other.step()", "return loss.detach()"])
    life.define("model_step", "x, z", [_zeroing(d), "loss = F.softplus(-critic(model(z))).mean()", "loss.backward()",
                                       "optimizer.step()", "return loss.detach()"])  # fmt: skip
    life.calls["critic"] = ["seen(critic_step(*{batch}))"]
    life.calls["model"] = ["critic.requires_grad_(False)"] * freeze + ["seen(model_step(*{batch}))"]
    life.calls["model"] += ["critic.requires_grad_(True)"] * freeze
    life.models, life.optimizers = ["model", "critic"], ["optimizer", "other"]
    life.watched += ["critic", "optimizer", "other"]


def distillation(life: Life) -> None:
    """A student that learns what a teacher says, which may be an average of it."""
    d = life.d
    update = _optimizer(life)
    made_by, frozen = d.pick("copy.deepcopy(model)", "Model()"), d.pick("", ".eval()", ".requires_grad_(False)")
    life.setup.append(f"teacher = {made_by}{frozen}")
    rows = life.model.rows
    guess = d.pick(f"with torch.no_grad():\n    soft = teacher(x){rows}", f"soft = teacher(x){rows}.detach()",
                   f"with torch.inference_mode():\n    soft = teacher(x){rows}\nsoft = soft.clone()")  # fmt: skip
    losses = d.pick("F.kl_div(out.log_softmax(-1), soft.softmax(-1), reduction='batchmean')", "F.mse_loss(out, soft)")
    lines = [*guess.split("\n"), _zeroing(d), *life.forward, f"loss = 0.5 * loss + 2.0 * {losses}",
             "loss.backward()", *update]
    if d.chance(0.6):
        lines += ["with torch.no_grad():", "    for t, p in zip(teacher.parameters(), model.parameters()):",
                  d.pick("        t.lerp_(p, 0.2)", "        t.mul_(0.9).add_(p.data, alpha=0.1)",
                         "        t.data = 0.9 * t.data + 0.1 * p.data")]  # fmt: skip
    life.define("step", "x, target", [*lines, "return loss.detach(), out"])
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.models.append("teacher")
    life.watched.append("teacher")


def policy(life: Life) -> None:
    """Two heads on one trunk, several losses, and a second optimizer."""
    d = life.d
    life.setup += [
        "trunk = nn.Sequential(nn.Linear(6, 8), nn.Tanh())",
        "model = nn.ModuleDict(dict(trunk=trunk, pi=nn.Linear(8, 3), v=nn.Linear(8, 1)))",
        "log_alpha = torch.zeros(1, requires_grad=True)",
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.01)",
        "other = torch.optim.SGD([log_alpha], lr=0.1)",
        "def batch(n=5):", "    return torch.randn(n, 6), torch.randint(3, (n,)), torch.randn(n)",
    ]  # fmt: skip
    clip = _clipping(d) if d.chance(0.5) else []
    retain = d.chance(0.4)
    common = ["h = model['trunk'](x)", "logp = F.log_softmax(model['pi'](h), -1)", "value = model['v'](h).squeeze(-1)"]
    parts = ["gain = (target - value).detach()", "actor = -(logp.gather(1, action[:, None])[:, 0] * gain).mean()",
             "critic = F.smooth_l1_loss(value, target)", "entropy = -(logp.exp() * logp).sum(-1).mean()"]  # fmt: skip
    back = (["(actor - log_alpha.exp().detach() * entropy).sum().backward(retain_graph=True)", "critic.backward()"] if retain
            else ["(actor + 0.5 * critic - 0.01 * entropy).backward()"])  # fmt: skip
    life.define("step", "x, action, target", [
        _zeroing(d), *common, *parts, *back, *clip, "optimizer.step()", "other.zero_grad()",
        "(log_alpha * (entropy.detach() - 0.5)).sum().backward()", "other.step()", "return actor.detach(), critic, entropy",
    ])  # fmt: skip
    sample = d.pick("torch.distributions.Categorical(logits=logp).sample()", "torch.multinomial(logp.exp(), 1)[:, 0]",
                    "logp.argmax(-1)")  # fmt: skip
    life.define("act", "x", [*common, f"return {sample}, value"])
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["act"] = ["with torch.no_grad():", "    seen(act({batch}[0]))"]
    life.watched += ["log_alpha", "optimizer", "other"]
    life.optimizers.append("other")


def meta_learning(life: Life) -> None:
    """An inner step on copies of the parameters, differentiated through."""
    d = life.d
    life.without_checkpoints()
    update = _optimizer(life)
    inner = ["params = dict(model.named_parameters())",
             f"out = torch.func.functional_call(model, params, (x,)){life.model.rows}", f"loss = {life.model.loss}",
             f"grads = torch.autograd.grad(loss, list(params.values()), create_graph={d.chance(0.7)}, allow_unused=True)",
             "params = {n: p if g is None else p - 0.1 * g for (n, p), g in zip(params.items(), grads)}",
             f"out = torch.func.functional_call(model, params, (x,)){life.model.rows}",
             f"loss = {life.model.loss}"]  # fmt: skip
    if d.chance(0.5):
        life.define("step", "x, target", [_zeroing(d), *inner, "loss.backward()", *update, "return loss.detach()"])
        life.calls["step"] = ["seen(step(*{batch}))"]
    else:
        life.define("adapted", "x, target", [*inner, "return loss"])
        life.calls["outer"] = [_zeroing(d), "loss = adapted(*{batch})", "loss.backward()", *update, "seen(loss)"]


def penalised(life: Life) -> None:
    """A penalty on the gradient of the output by the input."""
    d = life.d
    update = _optimizer(life)
    lines = ["x = x.detach().requires_grad_()", *life.forward,
             "slope, = torch.autograd.grad(out.sum(), x, create_graph=True)",
             "loss = loss + 0.1 * slope.pow(2).sum()"]  # fmt: skip
    if not life.model.continuous:
        lines = [*life.forward, "slopes = torch.autograd.grad(loss, trained, create_graph=True, allow_unused=True)",
                 "loss = loss + 0.1 * sum(s.pow(2).sum() for s in slopes if s is not None)"]  # fmt: skip
    if d.chance(0.5):
        life.define("step", "x, target", [_zeroing(d), *lines, "loss.backward()", *update, "return loss.detach()"])
        life.calls["step"] = ["seen(step(*{batch}))"]
    else:
        life.define("losses", "x, target", [*lines, "return loss"])
        life.calls["train"] = [_zeroing(d), "loss = losses(*{batch})", "loss.backward()", *update, "seen(loss)"]


def second_order(life: Life) -> None:
    """LBFGS, with a closure that is compiled."""
    d = life.d
    options = d.pick("", ", history_size=2")
    life.setup += ["model = Model()", f"optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3{options})"]
    life.watched.append("optimizer")
    life.define("closure", "x, target", [_zeroing(d), *life.forward, "loss.backward()", "return loss"])
    life.calls["closure"] = ["now = {batch}", "seen(optimizer.step(lambda: closure(*now)))"]
    life.define("evaluate", "x, target", life.forward + ["return loss"])
    life.calls["evaluate"] = ["seen(evaluate(*{batch}))"]


def scaled(life: Life) -> None:
    """Loss scaling, with updates that are left out where gradients overflow."""
    d = life.d
    update = _optimizer(life)
    life.setup.append("scaler = torch.amp.GradScaler('cpu', init_scale=8.0, growth_interval=2)")
    life.watched.append("scaler")
    clip = ["scaler.unscale_(optimizer)", *_clipping(d)] if d.chance(0.5) else []
    after = ["scaler.step(optimizer)", "scaler.update()", *update[1:]]
    first = [_zeroing(d), *life.forward, "scaler.scale(loss).backward()"]
    kind = d.pick("whole", "losses", "backward")
    if kind == "whole":
        life.define("step", "x, target", [*first, *clip, *after, "return loss.detach()"])
        life.calls["step"] = ["seen(step(*{batch}))"]
    elif kind == "losses":
        life.define("losses", "x, target", [*life.forward, "return loss"])
        life.calls["train"] = [_zeroing(d), "loss = losses(*{batch})", "scaler.scale(loss).backward()", *clip, *after,
                               "seen(loss)"]  # fmt: skip
    else:
        life.define("backward", "x, target", [*first, "return loss.detach()"])
        life.calls["train"] = ["seen(backward(*{batch}))", *clip, *after]


def passed_around(life: Life) -> None:
    """One compiled function that is given a model and an optimizer, and two of each."""
    d = life.d
    update = _optimizer(life)
    life.setup += [d.pick("rival = copy.deepcopy(model)", "rival = Model()"),
                   f"rival_optimizer = torch.optim.{d.pick('SGD', 'Adam')}(rival.parameters(), lr=0.05)"]  # fmt: skip
    lines = [_zeroing(d), *life.forward, "loss.backward()", update[0], "return loss.detach(), out"]
    life.define("step", "model, optimizer, x, target", lines)
    life.setup.append("second = compile(plain_step)")
    life.calls["step"] = ["seen(step(model, optimizer, *{batch}))"]
    life.calls["rival"] = ["seen(step(rival, rival_optimizer, *{batch}))"]
    life.calls["second"] = ["seen(second(rival, rival_optimizer, *{batch}))"]
    life.models.append("rival")
    life.optimizers.append("rival_optimizer")
    life.watched += ["rival", "rival_optimizer"]


def method(life: Life) -> None:
    """A trainer object whose methods are compiled."""
    d = life.d
    update = [line.replace("optimizer.", "self.optimizer.").replace("scheduler.", "self.scheduler.")
              for line in _optimizer(life)]  # fmt: skip
    forward = [line.replace("model(", "self.model(") for line in life.forward]
    if "trained" in " ".join(update):
        update = ["self.optimizer.step()"]
    body = ["self.optimizer.zero_grad()", *forward, "loss.backward()", *update, "self.steps += 1",
            "self.total = self.total + loss.detach()", "self.losses.append(loss.detach())",
            d.pick("return loss.detach()", "return self.total / self.steps")]  # fmt: skip
    life.setup += ["class Trainer:", *indented([
        "def __init__(self):",
        "    self.model, self.optimizer, self.steps, self.total, self.losses = model, optimizer, 0, torch.zeros(()), []",
        *["    self.scheduler = scheduler"] * bool(life.schedulers), *["@compile"] * (decorated := d.chance(0.4)),
        "def step(self, x, target):", *indented(body),
    ]), "trainer = Trainer()"]  # fmt: skip
    if not decorated:
        life.setup.append("trainer.step = compile(trainer.step)")
    life.setup.append("model = trainer.model")
    life.calls["step"] = ["seen(trainer.step(*{batch}))"]
    life.watched.append("trainer")


def nested(life: Life) -> None:
    """A compiled model in a compiled step, which is called by itself as well."""
    d = life.d
    update = _optimizer(life)
    inner = d.pick("model", "lambda x: model(x)", "model.forward")
    life.setup.append(f"inner = compile({inner})")
    lines = [_zeroing(d), f"out = inner(x){life.model.rows}", f"loss = {life.model.loss}", "loss.backward()", *update]
    life.define("step", "x, target", [*lines, "return loss.detach(), out"])
    life.calls["step"] = ["seen(step(*{batch}))"]
    life.calls["inner"] = ["seen(inner({batch}[0]))"]
    life.calls["plain"] = ["seen(plain_step(*{batch}))"]
    life.calls["uncompiled model"] = ["seen(model({batch}[0]))"]


def one_for_two(life: Life) -> None:
    """Two models with one trunk, each with an optimizer of all its parameters."""
    d = life.d
    trunk = f"nn.Sequential(nn.Linear(6, 8), {d.pick('nn.BatchNorm1d(8)', 'nn.LayerNorm(8)', 'nn.Tanh()')})"
    kind = d.pick("SGD", "Adam", "AdamW", "RMSprop")
    momentum = ", momentum=0.9" * (kind == "SGD")
    life.setup += [
        f"trunk = {trunk}", "model = nn.Sequential(trunk, nn.ReLU(), nn.Linear(8, 5))",
        "rival = nn.Sequential(trunk, nn.Tanh(), nn.Linear(8, 5))",
        f"optimizer = torch.optim.{kind}(model.parameters(), lr=0.01{momentum})",
        "other = torch.optim.Adam(rival.parameters(), lr=0.02)",
        "def batch(n=4):", "    return torch.randn(n, 6), torch.randint(5, (n,))",
    ]  # fmt: skip
    for name, net, by in (("step", "model", "optimizer"), ("rival_step", "rival", "other")):
        life.define(name, "x, target", [_zeroing(d, by), f"loss = F.cross_entropy({net}(x), target)", "loss.backward()",
                                        f"{by}.step()", "return loss.detach()"])  # fmt: skip
    life.define("both", "x, target", [
        _zeroing(d), _zeroing(d, "other"),
        "(F.cross_entropy(model(x), target) + F.cross_entropy(rival(x), target)).backward()",
        "optimizer.step()", "other.step()"])  # fmt: skip
    for name in ("step", "rival_step", "both"):
        life.calls[name] = [f"seen({name}(*{{batch}}))"]
    life.models, life.optimizers = ["model", "rival"], ["optimizer", "other"]
    life.watched += ["rival", "optimizer", "other"]


def repeated(life: Life) -> None:
    """A module that is used twice in a call, then once, and by itself; or recursively, through what is compiled."""
    d = life.d
    middle = d.pick("nn.BatchNorm1d(6)", "nn.Dropout(0.1)", "nn.Identity()")
    life.setup += [
        f"model = nn.Sequential(nn.Linear(6, 6), {middle}, nn.Tanh())",
        f"optimizer = torch.optim.{d.pick('SGD', 'Adam')}(model.parameters(), lr=0.01)",
        "def batch(n=4):", "    return torch.randn(n, 6), torch.randn(n, 6)",
    ]  # fmt: skip
    if d.chance(0.5):
        life.define("apply", "x, times", ["return x if times == 0 else apply(model(x), times - 1)"])
    else:
        life.define("apply", "x, times", ["for _ in range(times):", "    x = model(x)", "return x"])
    life.define("step", "x, target, times", [
        _zeroing(d), "loss = F.mse_loss(apply(x, times), target)", "loss.backward()", "optimizer.step()",
        "return loss.detach()"])  # fmt: skip
    for times in (1, 2, 3):
        life.calls[f"step {times}"] = [f"seen(step(*{{batch}}, {times}))"]
    life.calls["apply"] = ["now = {batch}", "out = apply(now[0], 2)", "F.mse_loss(out, now[1]).backward()", "seen(out)"]
    life.watched.append("optimizer")


def during_backward(life: Life) -> None:
    """What is compiled is called by hooks while other gradients are on their way."""
    d = life.d
    update = _optimizer(life)
    life.define("losses", "x, target", [*life.forward, "return loss"])
    life.define("scale", "g", [d.pick("return g * 0.5", "return g / (g.norm() + 1)", "return g.clamp(-0.01, 0.01)",
                                      "return None")])  # fmt: skip
    life.define("update_one", "p", ["with torch.no_grad():", "    p.add_(p.grad, alpha=-0.05)", "p.grad = None"])
    hook = d.pick("register_hook(lambda g: scale(g))", "register_hook(scale)",
                  "register_post_accumulate_grad_hook(update_one)")  # fmt: skip
    life.setup += [f"for p in [*trained][:{d.pick(1, 2, 100)}]:", f"    hooks.append(p.{hook})"]
    life.define("step", "x, target", [_zeroing(d), *life.forward, "loss.backward()", *update, "return loss.detach()"])
    life.calls["train"] = [_zeroing(d), "loss = losses(*{batch})", "loss.backward()", *update, "seen(loss)"]
    life.calls["step"] = ["seen(step(*{batch}))"]
    if "update_one" not in hook:  # or all raises: eager after some of the gradients, a graph before them
        life.calls["in between"] = [
            "now = {batch}", "loss = losses(*now)", "with torch.no_grad():", "    seen(losses(*now))",
            "losses(*now).backward()", "loss.backward()", "seen(loss)"]  # fmt: skip


SCENARIOS = {
    whole_step: 6, model_alone: 6, pieces: 4, accumulation: 3, adversarial: 2, distillation: 2, policy: 1.5,
        meta_learning: 1,
    penalised: 1, second_order: 1, scaled: 1.5, passed_around: 2, method: 2,
    nested: 2, one_for_two: 1.5, repeated: 1, during_backward: 1.5, **loops.SCENARIOS, **trainers.SCENARIOS,
    **studies.SCENARIOS,
}  # fmt: skip


def draw(life: Life) -> None:
    kind = life.d.weighted(SCENARIOS)
    life.d.uses(kind.__name__)
    kind(life)
    life.watched = ["model", *dict.fromkeys(life.watched)]
