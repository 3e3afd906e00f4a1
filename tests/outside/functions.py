"""Draws what programs of `outside` compile: functions and modules with several results, of two inputs and two parameters.

All values are 3 by 3, and so are most results, so that any of them can be the input of any function.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from training.draft import Draft, indented

#: How a value is computed of one other.
OF_ONE = (
    "torch.tanh({})", "{}.sin()", "{}.exp().clamp(max=5)", "torch.sigmoid({})", "{} * 2", "{}.square()", "torch.relu({})",
    "{} + 1", "{}.t()", "{}.view(-1).view(3, 3)", "{}[[2, 0, 1]]", "{}.cumsum(0)", "torch.softmax({}, 1)", "{}.clone()",
    "{}.abs()", "-{}", "{}.detach()", "{}.contiguous()", "{}.expand(3, 3)", "{}.transpose(0, 1)",
    "torch.where({0} > 0, {0}, {0} * .1)", "F.layer_norm({}, (3,))", "F.dropout({}, 0.3)",
    "torch.linalg.matrix_norm({}) * torch.eye(3)", "torch.maximum({}, torch.zeros(()))", "F.silu({})", "Tripled.apply({})",
    "{}.sort(1).values", "{}.sum(0, keepdim=True).expand(3, 3)", "torch.cat([{0}[:1], {0}[1:]])", "F.linear({}, w1, w2[0])",
    "checkpoint(torch.sin, {}, use_reentrant=False)", "checkpoint(lambda v: (v * w1).cos(), {}, use_reentrant=False)",
    "{0}.view_as({0})", "{0}.double().to({0}.dtype)", "torch.stack([{0}, {0} * 2]).sum(0)", "{}.unbind()[0].expand(3, 3)",
    "torch.cummax({}, 1).values", "{0} / {0}.norm(dim=1, keepdim=True).clamp(min=.1)", "{0}.masked_fill({0} > 1, 0.5)",
    "F.gelu({})", "F.batch_norm({}, None, None, training=True)", "{}.roll(1, 0)", "{}.flip(0)", "{}.triu()",
    "torch.func.vmap(lambda row: row.sin() * row.sum())({})", "torch.func.grad(lambda v: v.sin().sum())({})",
)  # fmt: skip
#: Of two.
OF_TWO = (
    "{} @ {}", "{} * {}", "{} * {}", "{} + {}", "{} - {}", "torch.where({} > 0.1, {}, 0.5)", "torch.lerp({}, {}, 0.3)",
    "{} / ({}.square() + 1)", "F.mse_loss({}, {}) * torch.ones(3, 3)", "torch.addmm({}, {}, w1)",
    "torch.outer({}[0], {}[1])", "torch.maximum({}, {})", "torch.atan2({}, {} + 3)",
    "F.scaled_dot_product_attention({0}[None], {1}[None], {0}[None])[0]", "torch.einsum('ij,kj->ik', {}, {})",
)  # fmt: skip
#: Through complex numbers.
COMPLEX = (
    "torch.complex({0}, {1}).abs()", "(torch.complex({0}, {1}) * 1j).real",
    "torch.view_as_real(torch.complex({0}, {1}).exp())[..., 1]",
    "torch.fft.fft({0}).imag + {1}", "torch.complex({0}, {1}).conj().imag", "torch.polar({0}, {1}).real",
)  # fmt: skip
#: Changes of a value that the function has made.
IN_PLACE = ("{}.mul_(2)", "{}.add_(1)", "{}[0] = 1.5", "{}.tanh_()", "{}[:, 1].mul_(0.5)", "{}.relu_()", "{}.t().add_(w2)")
#: What scripts write between operators, with `{v}` for a value and `{new}` for the one that is made: updates of buffers
#: without gradients, hooks that look at what changes, gradients taken within, masks, parameters made inside.
SCRIPTED = (
    "with torch.no_grad():\n    buf.copy_(torch.where({v}[0, :2] > 0, {v}[1, :2], buf))\n{new} = {v} * buf.mean()",
    "with torch.no_grad():\n    buf[buf > 0.5] = 0.0\n    buf += {v}[0, 0]\n{new} = {v} + buf[0]",
    "with torch.no_grad():\n    peak = {v}.abs().amax().clamp(min=1)\n{new} = {v} / peak",
    "{new} = {v} * 1\nif {new}.requires_grad:\n    {new}.register_hook(lambda grad: grad * gain['k'])",
    "{new} = {v} * 1\nif {new}.requires_grad:\n    {new}.register_hook(lambda grad: grad.clamp(-1, 1))",
    "{new} = {v}.sin()\nif {new}.requires_grad:\n    {new}.retain_grad()",
    "{new} = {v} * 2\nif {v}.requires_grad:\n"
    "    (pull,) = torch.autograd.grad({new}.square().sum(), {v}, retain_graph=True)\n"
    "    {new} = {new} - 0.1 * pull.detach()",
    "{new} = {v} * 2\nif {v}.requires_grad:\n"
    "    (pull,) = torch.autograd.grad({new}.square().sum(), {v}, create_graph=True)\n    {new} = {new} - 0.1 * pull",
    "{new} = {v} + 0 * (w1.sum() + w2.sum())", "{new} = torch.where(torch.arange(3) < 2, {v}, torch.zeros_like({v}))",
    "mask = torch.arange(3)[None] < torch.arange(1, 4)[:, None]\n{new} = {v}.masked_fill(~mask, float('-inf')).softmax(-1)",
    "mask = torch.arange(3)[None] < torch.arange(1, 4)[:, None]\n{new} = torch.zeros_like({v})\n{new}[mask] = {v}[mask] * 2",
    "gate = nn.Parameter({v}.detach() * 0.5)\n{new} = {v} * gate", "{new} = {v}.detach() + ({v} - {v}.detach()) * gain['k']",
    "here = {v}.detach().requires_grad_()\n(slope,) = torch.autograd.grad((here * here.sin()).sum(), here)\n"
    "{new} = {v} + slope",
    "{new} = sum({{'one': {v}, 'two': {v}.cos()}}.values())", "rows, means = zip(*[(row, row.mean()) for row in {v}])\n"
    "{new} = torch.stack([row - mean for row, mean in zip(rows, means)])",
    "{new} = {v}.clone()\nfor row in {new}:\n    row.mul_(0.5)", "{new} = {v} * gain['k']\ngain['calls'] += 1",
    "{new} = torch.func.functional_call(layer, {{'weight': {v}}}, ({v},))",
    "{new} = F.linear({v}, layer.weight * gain['k'])",
)  # fmt: skip
#: What a module may have beside its two parameters.
LAYERS = {"norm": "nn.BatchNorm1d(3)", "layer": "nn.Linear(3, 3)", "dropout": "nn.Dropout(0.3)", "act": "nn.Tanh()"}
#: What makes no memory of its own, so that nothing is changed in place there.
VIEWS = ("view", ".t()", "expand", "detach", "transpose", "contiguous", "[", "real", "imag", "double", "F.dropout")


@dataclass
class Compiled:
    """Something that a program compiles under a name: its definition, and how it is called with two inputs."""

    name: str
    lines: list[str]
    call: str
    #: The name of the module, if it is one: its parameters are `w1` and `w2` themselves.
    module: str = ""
    layers: list[str] = field(default_factory=list)


def draw(d: Draft, name: str, earlier: list[Compiled]) -> Compiled:
    """One function or module, which may call one that was compiled before, or be the module of another call."""
    if earlier and d.chance(0.15):
        d.uses("compiled twice")
        first = d.pick(*earlier)
        plain = first.module or f"plain_{first.name}"
        call = first.call.replace(first.name, name, 1)
        return Compiled(name, [f"{name} = compile({plain})"], call, first.module, first.layers)
    layers = [key for key in LAYERS if d.chance(0.4)] if d.chance(0.35) else None
    body = _body(d, layers or [], earlier)
    if layers is None:
        lines = [f"def plain_{name}(x1, x2, w1, w2, buf):", *indented(body), f"{name} = compile(plain_{name})"]
        return Compiled(name, lines, f"{name}({{}}, {{}}, w1, w2, buf)")
    d.uses("module")
    made = [f"self.{key} = {LAYERS[key]}.to(dtype)" for key in layers]
    lines = [
        f"class Net{name}(nn.Module):", "    def __init__(self):", "        super().__init__()",
        "        self.w1, self.w2 = as_parameter(w1), as_parameter(w2)", "        self.register_buffer('buf', buf)",
        *indented(made, 2), "    def forward(self, x1, x2):", "        w1, w2, buf = self.w1, self.w2, self.buf",
        *indented(body, 2), f"net_{name} = Net{name}()", f"{name} = compile({d.pick(f'net_{name}', f'net_{name}.forward')})",
    ]  # fmt: skip
    return Compiled(name, lines, f"{name}({{}}, {{}})", f"net_{name}", layers)


def _body(d: Draft, layers: list[str], earlier: list[Compiled]) -> list[str]:
    lines: list[str] = []
    values, fresh = ["x1", "x2", "w1", "w2"], []
    for k in range(d.rng.randint(2, 7)):
        one = d.pick(*(values[-4:] if d.chance(0.6) else values))
        kind = d.weighted({"one": 5, "two": 3.5, "complex": 0.3, "layer": 1.5 * bool(layers), "in place": 0.9, "inner": 0.3})
        if kind == "in place" and fresh:
            lines.append(d.pick(*IN_PLACE).format(d.pick(*fresh)))
            continue
        if kind == "one":
            text = d.pick(*OF_ONE).format(one)
        elif kind == "layer":
            text = f"self.{d.pick(*layers)}({one})"
        elif kind == "inner" and earlier:
            d.uses("compiled inside")
            text = f"first({d.pick(*earlier).call.format(one, d.pick(*values))}, {one})"
            text = text.replace("w1, w2, buf", "w1, w2, buf * 1")
        elif kind == "complex":
            d.uses("complex")
            text = d.pick(*COMPLEX).format(one, d.pick(*values))
        else:
            text = d.pick(*OF_TWO).format(one, d.pick(*values))
        value = f"v{k}"
        block = d.weighted(
            {"": 90, "torch.no_grad()": 5, "torch.enable_grad()": 1.5, "torch.autograd.set_detect_anomaly(True)": 0.5}
        )
        lines += [f"with {block}:", f"    {value} = {text}"] if block else [f"{value} = {text}"]
        values.append(value)
        if not any(view in text for view in VIEWS) and not block:
            fresh.append(value)
    values += _scripted(d, lines, values)
    if d.chance(0.12):
        lines.append("buf.add_(1)")
    if d.chance(0.04):
        lines.append(d.pick("x1.data.mul_(1.1)", "x2.data.mul_(1.1)"))
    if d.chance(0.1):
        d.uses("break")
        tops = [k for k, line in enumerate(lines) if not line.startswith(" ")]
        lines.insert(d.pick(*tops, len(lines)), "print(end='')")
    return [*lines, *_returned(d, [v for v in values if v.startswith("v")])]


def _scripted(d: Draft, lines: list[str], values: list[str]) -> list[str]:
    """Adds one or two of `SCRIPTED` in a third of the bodies; by numbers of their own, so that the rest is what it was."""
    rng = random.Random("\n".join(lines))
    made: list[str] = []
    for k in range(rng.choice([0, 0, 0, 0, 1, 2])):
        d.uses("scripted")
        new = f"v{len(values) + k}"
        lines += rng.choice(SCRIPTED).format(v=rng.choice([*values[-3:], *made]), new=new).split("\n")
        made.append(new)
    return made


def _returned(d: Draft, made: list[str]) -> list[str]:
    results = d.rng.sample(made, d.rng.randint(1, min(4, len(made))))
    if d.chance(0.5) and made[-1] not in results:
        results.append(made[-1])
    results = [r + d.pick("", "", "", ".sum()", ".mean()", ".square().sum()", "[0]") for r in results]
    if d.chance(0.2):
        results.append(
            d.pick(
                "x1",
                "w1",
                "x1[1:]",
                results[0],
                "w1.t()",
                f"{made[0]}.argmax()",
                f"{made[0]}.detach()",
                "w2 * 1j",
                "x2.view(-1)",
            )
        )
    form = d.weighted({"list": 4, "tuple": 3, "dict": 1, "dataclass": 0.5, "named": 0.7, "nested": 0.7, "one": 0.7})
    d.uses(form)
    listed = ", ".join(results)
    if form == "tuple":
        return [f"return ({listed},)"]
    if form == "dict":
        return ["return {" + ", ".join(f"'r{k}': {r}" for k, r in enumerate(results)) + "}"]
    if form == "dataclass":
        return [f"return Results({results[0]}, [{', '.join(results[1:])}])"]
    if form == "named":
        return [f"return Pair({results[0]}, {results[-1]})"]
    if form == "nested":
        return [f"return [{results[0]}, ({', '.join(results[1:])},)]" if len(results) > 1 else f"return [[{listed}]]"]
    return [f"return {results[0]}"] if form == "one" else [f"return [{listed}]"]
