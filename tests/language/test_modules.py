"""torch.nn modules of every kind, compiled themselves or called by a compiled function."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from language.harness import BACKENDS, Keywords, case, check, names, setup, t


def xs(*shape):
    return [(t(*shape),), (t(*shape, seed=1),), (t(*shape, seed=2, grad=True),)]


class Mlp(nn.Module):
    def __init__(self, width=8, depth=2):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4 if k == 0 else width, width) for k in range(depth)])
        self.head = nn.Linear(width, 2)
        self.scale = 0.5

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x)) * self.scale
        return self.head(x)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)  # its gradient would be noise
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + F.gelu(self.norm(self.conv(x)))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, *, causal=False):
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (dim // self.heads) ** 0.5
        if causal:
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(mask, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, dim)
        return self.out(y)


@setup(graphs=1)
def sequential():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Tanh()), xs(3, 4)


@setup(graphs=1)
def module_list():
    return Mlp(depth=3), xs(3, 4)


@setup()
def sequential_is_indexed_and_sliced():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4), nn.ELU())

    def run(x):
        y = model[0](x) + model[-1](x)
        z = model[1:3](y)
        return z, len(model), [type(m).__name__ for m in model]

    return run, xs(3, 4)


@setup()
def module_dict():
    class Chooser(nn.Module):
        def __init__(self):
            super().__init__()
            self.choices = nn.ModuleDict({"linear": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})
            self.act = nn.ModuleDict([["relu", nn.ReLU()], ["tanh", nn.Tanh()]])

        def forward(self, x, kind, act="relu"):
            y = self.act[act](self.choices[kind](x))
            for name, module in self.choices.items():
                y = y + module(x) * len(name)
            return y, "norm" in self.choices, list(self.choices)

    return Chooser(), [(t(3, 4), "linear"), (t(3, 4), "norm", "tanh"), (t(3, 4), "linear", Keywords(act="tanh"))]


@setup()
def parameter_list_and_dict():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(t(4, seed=k)) for k in range(3)])
            self.table = nn.ParameterDict({"a": nn.Parameter(t(4, seed=5)), "b": nn.Parameter(t(4, seed=6))})

        def forward(self, x):
            for k, weight in enumerate(self.weights):
                x = x * weight + k
            return x + self.table["a"] - self.table["b"], len(self.weights), self.weights[1]

    return Mixed(), xs(3, 4)


@setup()
def shared_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(6, 4)
            self.head = nn.Linear(4, 6, bias=False)
            self.head.weight = self.embed.weight
            self.again = self.head

        def forward(self, k):
            y = self.embed(k)
            return self.head(y) + self.again(y) * 2

    k = torch.arange(5)
    return Tied(), [(k,), (k.flip(0),)]


@setup()
def same_module_called_twice():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer, layer), xs(3, 4)


@setup()
def conv_blocks():
    return nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), Block(3), nn.MaxPool2d(2), nn.Flatten()), xs(2, 2, 8, 8)


@setup()
def batch_norm_train_and_eval():
    norm = nn.BatchNorm1d(4)

    def run(x, training):
        norm.train(training)
        return norm(x) * 2, norm.running_mean.clone(), norm.num_batches_tracked

    return run, [(t(5, 4), True), (t(5, 4, seed=1), False), (t(5, 4, seed=2), True)]


@setup()
def norms():
    return nn.Sequential(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4), nn.Softmax(-1)), xs(3, 4)


@setup()
def dropout_in_eval():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.1)).eval(), xs(3, 4)


@setup()
def dropout_in_training():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU()), xs(3, 4)


@setup(steady="later")
def train_and_eval_switch():
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))

        def forward(self, x, train):
            self.train(train) if train != self.training else None
            y = self.inner(x)
            return (y * 2 if self.training else y - 1).sum(0), self.inner[1].training

    return Switch(), [(t(3, 4), False), (t(3, 4), False), (t(3, 4, seed=1), True)]


@setup()
def lstm():
    model = nn.LSTM(4, 5, num_layers=2, batch_first=True)

    def run(x):
        y, (h, c) = model(x)
        return y * 2, h + c

    return run, xs(2, 3, 4)


@setup()
def gru_cell_loop():
    cell = nn.GRUCell(4, 5)

    def run(x):
        h = x.new_zeros(x.shape[1], 5)
        out = []
        for step in x:
            h = cell(step, h)
            out.append(h)
        return torch.stack(out), h.tanh()

    return run, xs(3, 2, 4)


@setup()
def embedding_and_bag():
    embed, bag = nn.Embedding(10, 4, padding_idx=0), nn.EmbeddingBag(10, 4, mode="sum")

    def run(k):
        return embed(k).mean(1) + bag(k) * 2

    return run, [(torch.arange(6).view(2, 3),), (torch.arange(6).view(2, 3) + 2,)]


@setup()
def multihead_attention():
    model = nn.MultiheadAttention(8, 2, batch_first=True)

    def run(x, need):
        y, weights = model(x, x, x, need_weights=need)
        return y + x, weights

    return run, [(t(2, 3, 8), False), (t(2, 3, 8, seed=1), True)]


@setup()
def attention_by_hand():
    x = t(2, 3, 8)
    return Attention(8, 2), [(x,), (t(2, 3, 8, seed=1), Keywords(causal=True)), (x, Keywords(causal=False))]


@setup()
def transformer_encoder_layer():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True), xs(2, 3, 8)


@setup()
def forward_with_kwargs_and_structures():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, batch, *extra, scale=1.0, return_dict=False, **rest):
            x = self.linear(batch["x"]) * scale + sum(extra)
            if "bias" in rest:
                x = x + rest["bias"]
            return {"out": x, "mask": batch["mask"], "sum": x.sum()} if return_dict else (x, batch["mask"])

    batch = {"x": t(3, 4), "mask": torch.ones(3)}
    other = {"x": t(3, 4, seed=1), "mask": torch.zeros(3)}
    return Model(), [
        (batch,), (other, 1.0, 2.0, Keywords(scale=0.5)), (batch, Keywords(return_dict=True, bias=t(4))),
    ]  # fmt: skip


@setup()
def nested_user_modules():
    class Wrapper(nn.Module):
        def __init__(self, inner, factor):
            super().__init__()
            self.inner = inner
            self.factor = factor

        def forward(self, x):
            return self.inner(x) * self.factor + 1

    return Wrapper(Wrapper(Mlp(), 2.0), 0.5), xs(3, 4)


@setup()
def module_method_other_than_forward():
    model = Mlp()
    model.encode = lambda x: model.layers[0](x).relu()

    def run(x):
        features = model.encode(x)
        return model.head(features), model.layers[0].weight.shape, model.forward(x)

    return run, xs(3, 4)


@setup()
def functional_style():
    weight, bias = nn.Parameter(t(5, 4, seed=3)), nn.Parameter(t(5, seed=4))

    def run(x):
        y = F.linear(x, weight, bias)
        y = F.layer_norm(y, (5,))
        return F.cross_entropy(y, torch.zeros(len(x), dtype=torch.long)), F.mse_loss(y, torch.ones_like(y)), F.softplus(y)

    return run, xs(3, 4)


@setup()
def losses():
    cross, smooth, bce = nn.CrossEntropyLoss(label_smoothing=0.1), nn.SmoothL1Loss(), nn.BCEWithLogitsLoss()

    def run(x, target):
        one_hot = F.one_hot(target, 4).float()
        return cross(x, target) + smooth(x, one_hot) * 2 + bce(x, one_hot)

    return run, [(t(3, 4), torch.tensor([0, 1, 2])), (t(3, 4, seed=1, grad=True), torch.tensor([3, 1, 3]))]


@setup()
def identity_and_containers_of_nothing():
    model = nn.Sequential(nn.Identity(), nn.Sequential(), nn.Flatten(), nn.Unflatten(1, (2, 2)))

    def run(x):
        return model(x) + 1, model(x)[0] * 2

    return run, xs(3, 4)


@setup()
def activation_modules():
    layers = [nn.SiLU(), nn.Mish(), nn.PReLU(), nn.LeakyReLU(0.1), nn.Hardswish(), nn.Softplus(), nn.GLU()]

    def run(x):
        return [layer(x) for layer in layers]

    return run, xs(3, 4)


@case((t(3, 4),), (t(3, 4, seed=1),))
def module_made_inside(x):
    torch.manual_seed(7)
    layer = nn.Linear(4, 2)
    y = layer(x)
    return y.relu() + 1, layer.weight.shape, sum(p.numel() for p in layer.parameters())


@setup()
def residual_network():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
            self.blocks = nn.ModuleList([Block(4) for _ in range(2)])
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            x = self.stem(x)
            features = []
            for block in self.blocks:
                x = block(x)
                features.append(x.mean())
            return self.fc(self.pool(x).flatten(1)), torch.stack(features)

    return Net(), xs(2, 1, 6, 6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_modules(name, backend):
    check(__file__, name, backend)
