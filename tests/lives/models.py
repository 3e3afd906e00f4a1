"""The models of programs in `lives`: everyday ones that take batches of any size, and those of `training`."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from training import losses, model, more_twists, twists
from training.draft import Draft, Tokens, indented


@dataclass
class Model:
    """The source of a class `Model`, of a function `batch()`, and of the loss of `out` and `target`."""

    lines: list[str]
    batch: list[str]
    loss: str
    #: What follows `model(x)`, such as a view for the loss.
    rows: str = ""
    #: Whether inputs are floating-point numbers, and may require gradients.
    continuous: bool = True
    #: The name of a keyword argument of `batch` besides `n`, if sequences may be of other lengths.
    lengths: bool = False
    features: set[str] = field(default_factory=set)


def _class(init: list[str], forward: list[str]) -> list[str]:
    return [
        "class Model(nn.Module):",
        *indented(["def __init__(self):", "    super().__init__()", *indented(init), "", "def forward(self, x):"]),
        *indented(forward, 2),
    ]


#: Some are so wide that gradients are large tensors, of 64 KB and more, which are kept and let go of in other ways.
WIDTHS = (8, 8, 8, 12, 128, 192)

CLASSES = "return {x}, torch.randint(5, (n,))"


def perceptron(d: Draft) -> Model:
    w = d.pick(*WIDTHS)
    norm = d.pick(f"nn.BatchNorm1d({w})", f"nn.LayerNorm({w})", "nn.Identity()", f"nn.GroupNorm(2, {w})", f"nn.RMSNorm({w})")
    act = d.pick("nn.ReLU()", "nn.GELU()", "nn.Tanh()", "nn.SiLU()", "nn.PReLU()", "nn.ReLU(inplace=True)")
    drop = d.pick("nn.Dropout(0.2)", "nn.Identity()", "nn.AlphaDropout(0.2)")
    init = [f"self.body = nn.Sequential(nn.Linear(6, {w}), {norm}, {act}, {drop}, nn.Linear({w}, {w}), nn.ReLU())",
            f"self.head = nn.Linear({w}, 5)"]  # fmt: skip
    return Model(
        _class(init, ["return self.head(self.body(x))"]), [CLASSES.format(x="torch.randn(n, 6)")],
        d.pick("F.cross_entropy(out, target)", "F.cross_entropy(out, target, label_smoothing=0.1)",
               "F.nll_loss(out.log_softmax(-1), target)"),
    )  # fmt: skip


def regressor(d: Draft) -> Model:
    w = d.pick(*WIDTHS)
    init = [f"self.one = nn.Linear(6, {w})", f"self.two = nn.Linear({w}, 6)", "self.scale = nn.Parameter(torch.ones(()))",
            "self.register_buffer('calls', torch.zeros(()))",
            "self.register_buffer('mean', torch.zeros(6), persistent=False)",
            "self.factor = 0.5"]  # fmt: skip
    forward = ["if self.training:", "    self.calls += 1", "    self.mean.lerp_(x.detach().mean(0), 0.1)",
               "y = self.one(x - self.mean)", "return self.two(torch.tanh(y)) * self.scale + self.factor * x"]  # fmt: skip
    return Model(
        _class(init, forward), ["return torch.randn(n, 6), torch.randn(n, 6)"],
        d.pick("F.mse_loss(out, target)", "F.smooth_l1_loss(out, target)", "(out - target).abs().mean()"),
    )  # fmt: skip


def convolutional(d: Draft) -> Model:
    norm = d.pick("nn.BatchNorm2d(4)", "nn.GroupNorm(2, 4)", "nn.InstanceNorm2d(4, affine=True)")
    init = [f"self.one, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias={d.chance(0.5)}), {norm}",
            f"self.two = nn.Conv2d(4, 6, 3, stride=2{d.pick('', ', groups=2')})", "self.head = nn.Linear(6, 5)"]  # fmt: skip
    forward = ["x = F.relu(self.norm(self.one(x)))", d.pick("x = F.max_pool2d(x, 2)", "x = F.avg_pool2d(x, 2)"),
               "x = F.relu(self.two(x))", "return self.head(x.mean((2, 3)))"]  # fmt: skip
    return Model(
        _class(init, forward), [CLASSES.format(x="torch.randn(n, 3, 8, 8)")], "F.cross_entropy(out, target)",
    )  # fmt: skip


def language(d: Draft) -> Model:
    tied, words = d.chance(0.5), d.pick(11, 11, 1200)
    drop = d.pick(0.0, 0.1)
    layer = f"nn.TransformerEncoderLayer(8, 2, 16, dropout={drop}, batch_first=True, norm_first={d.chance(0.5)})"
    init = [f"self.tokens, self.positions = nn.Embedding({words}, 8), nn.Embedding(10, 8)", f"self.layer = {layer}",
            f"self.head = nn.Linear(8, {words}, bias=False)"] + ["self.head.weight = self.tokens.weight"] * tied  # fmt: skip
    forward = ["x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))", "x = self.layer(x)", "return self.head(x)"]
    return Model(
        _class(init, forward), [f"return torch.randint({words}, (n, t)), torch.randint({words}, (n, t))"],
        "F.cross_entropy(out, target.flatten())", ".flatten(0, 1)", continuous=False, lengths=True,
    )  # fmt: skip


def attention(d: Draft) -> Model:
    init = ["self.qkv, self.out, self.norm = nn.Linear(6, 24), nn.Linear(8, 6), nn.LayerNorm(6)",
            "self.head = nn.Linear(6, 5)"]  # fmt: skip
    forward = ["q, k, v = self.qkv(self.norm(x)).view(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)",
               f"y = F.scaled_dot_product_attention(q, k, v, is_causal={d.chance(0.5)})",
               "x = x + self.out(y.transpose(1, 2).flatten(2))", "return self.head(x.mean(1))"]  # fmt: skip
    return Model(
        _class(init, forward), [CLASSES.format(x="torch.randn(n, t, 6)")], "F.cross_entropy(out, target)", lengths=True
    )


def recurrent(d: Draft) -> Model:
    kind = d.pick("GRU", "LSTM", "GRUCell", "LSTMCell")
    init = [f"self.rnn = nn.{kind}(6, 8{', batch_first=True' * (not kind.endswith('Cell'))})", "self.head = nn.Linear(8, 5)"]
    if kind.endswith("Cell"):
        start = "h = x.new_zeros(x.shape[0], 8)" if kind == "GRUCell" else "h = (x.new_zeros(x.shape[0], 8),) * 2"
        forward = [start, "for step in x.unbind(1):", "    h = self.rnn(step, h)",
                   f"return self.head(h{'[0]' * (kind == 'LSTMCell')})"]  # fmt: skip
    else:
        forward = ["return self.head(self.rnn(x)[0][:, -1])"]
    return Model(
        _class(init, forward), [CLASSES.format(x="torch.randn(n, t, 6)")], "F.cross_entropy(out, target)", lengths=True
    )


def normed(d: Draft) -> Model:
    """Weights that are computed before each call."""
    kind = d.pick("nn.utils.parametrizations.weight_norm", "nn.utils.parametrizations.spectral_norm",
        "nn.utils.spectral_norm",
                  "nn.utils.parametrizations.orthogonal")  # fmt: skip
    init = [f"self.one = {kind}(nn.Linear(6, 6))", "self.two = nn.Linear(6, 5)"]
    return Model(
        _class(init, ["return self.two(F.leaky_relu(self.one(x), 0.1))"]), [CLASSES.format(x="torch.randn(n, 6)")],
        "F.cross_entropy(out, target)",
    )  # fmt: skip


def checkpointed(d: Draft) -> Model:
    init = ["self.one = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.1))",
            "self.two, self.head = nn.Sequential(nn.Linear(6, 6), nn.GELU()), nn.Linear(6, 5)"]  # fmt: skip
    reentrant = d.chance(0.25)
    forward = [f"x = x + torch.utils.checkpoint.checkpoint(self.{m}, x, use_reentrant={reentrant})" for m in ("one", "two")]
    return Model(
        _class(init, [*forward, "return self.head(x)"]), [CLASSES.format(x="torch.randn(n, 6)")],
        "F.cross_entropy(out, target)",
    )  # fmt: skip


def stacked(d: Draft) -> Model:
    """A list of blocks, and settings that are read in each call."""
    norm = d.pick("nn.LayerNorm(6)", "nn.BatchNorm1d(6)", "nn.Identity()")
    init = [f"self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), {norm}, nn.Dropout(0.1)) for _ in range(2))",
            "self.config, self.powers = {'scale': 0.5, 'residual': True}, [1.0, 0.5]",
            "self.act, self.factor, self.head = torch.tanh, 0.5, nn.Linear(6, 5)"]  # fmt: skip
    loop = d.pick("for k, block in enumerate(self.blocks):", "for k, block in zip(range(9), reversed(self.blocks)):")
    forward = [loop, "    y = self.act(block(x)) * self.config['scale'] + self.config.get('shift', 0.0)",
               "    x = x + y if self.config['residual'] else y",
               d.pick("x = sum((x * power for power in self.powers), x)",
                      "x = x * max(self.powers, default=1.0) + len(self.powers)"),
               "return self.head(x) * self.factor"]  # fmt: skip
    return Model(
        _class(init, forward), [CLASSES.format(x="torch.randn(n, 6)")], "F.cross_entropy(out, target)",
    )  # fmt: skip


def with_function(d: Draft) -> Model:
    """A `torch.autograd.Function` of its own."""
    init = ["self.one, self.two, self.factor = nn.Linear(6, 6), nn.Linear(6, 5), 0.5",
            f"self.config = {{'sign': {d.pick(1, -1)}, 'clip': {d.pick(None, 0.1)}}}"]  # fmt: skip
    return Model(
        _class(init, ["return self.two(torch.tanh(Scaled.apply(self.one(x), self.factor, self.config)))"]),
        [CLASSES.format(x="torch.randn(n, 6)")], "F.cross_entropy(out, target)",
    )  # fmt: skip


def bags(d: Draft) -> Model:
    """Embeddings that change their own weights, and sizes that are found in the first call."""
    init = [f"self.items = nn.Embedding(12, 6, padding_idx={d.pick(None, 0)}, max_norm={d.pick(None, 1.0)})",
            f"self.bag = nn.EmbeddingBag(12, 6, mode='{d.pick('sum', 'mean')}')",
            "self.head = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 5))"]  # fmt: skip
    forward = ["return self.head(torch.cat([self.items(x).mean(1), self.bag(x)], 1))"]
    return Model(
        _class(init, forward), [CLASSES.format(x="torch.randint(12, (n, t))")], "F.cross_entropy(out, target)",
        continuous=False, lengths=True,
    )  # fmt: skip


EVERYDAY = {
    perceptron: 4, regressor: 3, convolutional: 2, language: 2, attention: 2, recurrent: 1.5, normed: 1.5, checkpointed: 1,
    stacked: 3, with_function: 1.5, bags: 1,
}  # fmt: skip


def random_model(d: Draft, rng: random.Random) -> Model:
    """A model of `training`, most of which take batches of one size only."""
    draft = Draft(rng)
    shape, inputs, vocabulary = model.model(draft)
    rows = model.rows_of(draft, shape)
    loss = losses.loss(draft, rows.batch, classifying=False)
    model.head(draft, rows, 5, tied=False)
    sizes = f"{rows.batch}, 5"
    target = loss.target.format(n=rows.batch, c=5, shape=sizes)
    call = loss.call.format(n=rows.batch, c=5)
    return Model(
        _class(draft.init, [*draft.forward, "return x"]), [f"return {inputs}, {target}"], call,
        continuous=not vocabulary, features={"random-model"},
    )  # fmt: skip


def twist(made: Model, rng: random.Random) -> None:
    """Put what people write between layers after the model, or in front of it."""
    init = ["self.register_buffer('followed', torch.zeros(()))"]
    more = rng.choices([*more_twists.FORWARD], [*more_twists.FORWARD.values()], k=rng.randint(0, 3))
    for drawn in [*twists.drawn(rng), *more]:
        init += [line[6:] for line in drawn if line.startswith("init: ") and line[6:] not in init]
        twisted = tuple(line for line in drawn if not line.startswith("init: "))
        last = made.lines[-1].strip()
        if not last.startswith("return ") or "def forward(self, x):" not in "\n".join(made.lines):
            return
        lines = [f"x = {last.removeprefix('return ')}", *twisted, "return x"]
        if made.continuous and rng.random() < 0.4:
            at = next(k for k, line in enumerate(made.lines) if "def forward(self, x):" in line)
            made.lines[at + 1 : at + 1] = indented([*twisted], 2)
        else:
            made.lines[-1:] = indented(lines, 2)
    at = next(k for k, line in enumerate(made.lines) if "super().__init__()" in line)
    made.lines[at + 1 : at + 1] = indented(init, 2)
    made.lines[:0] = (twists.CLASSES + more_twists.CLASSES).strip().split("\n") + ["", ""]
    made.features.add("twisted")


def draw(d: Draft, rng: random.Random) -> Model:
    if d.chance(0.2):
        return random_model(d, rng)
    kind = d.weighted(EVERYDAY)
    made = kind(d)
    made.features.add(kind.__name__)
    return made


__all__ = ["Model", "Tokens", "draw"]
