"""What modules carry besides weights: hooks, buffers, counters, parametrizations, state dictionaries, patched methods."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import quickfuse
from language.harness import BACKENDS, case, check, names, setup, t


def xs(*shape):
    return [(t(*shape),), (t(*shape, seed=1),), (t(*shape, seed=2, grad=True),)]


class Ema(nn.Module):
    """Buffers that forward changes, in place and by assignment."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("last", None, persistent=False)

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.steps += 1
        self.last = x.detach() * 2
        return x - self.mean


class Positive(nn.Module):
    def forward(self, x):
        return F.softplus(x) + 1


@setup()
def forward_hook():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    seen = []

    def hook(module, args, output):
        seen.append(type(module).__name__)
        return output * 2 + len(args)

    model[0].register_forward_hook(hook)
    model.register_forward_hook(lambda m, a, o: None)

    def run(x):
        return model(x) + 1

    return run, xs(3, 4)


@setup()
def forward_pre_hook():
    layer = nn.Linear(4, 4)
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 0.5 + 1,))
    layer.register_forward_pre_hook(lambda m, args, kwargs: (args, {k: v for k, v in kwargs.items()}), with_kwargs=True)
    return nn.Sequential(layer, nn.Tanh()), xs(3, 4)


@setup(steady="later")
def hook_that_collects_features():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    features = {}
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda m, a, out, name=name: features.__setitem__(name, out.detach()))

    def run(x):
        features.clear()
        y = model(x)
        return y.sum() + features["1"].sum(), dict(features)

    return run, xs(3, 4)


@setup(steady="never")
def hook_is_added_and_removed_between_calls():
    layer = nn.Linear(4, 4)
    handles = []

    def run(x, change):
        y = layer(x) * 2
        if change == "add":
            handles.append(layer.register_forward_hook(lambda m, a, out: out + 100))
        elif change == "remove":
            handles.pop().remove()
        return y, layer(x)

    return run, [(t(3, 4), "keep"), (t(3, 4), "add"), (t(3, 4), "keep"), (t(3, 4), "remove"), (t(3, 4), "keep")]


@setup(steady="never")
def hook_appears_on_the_compiled_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    state = {"handle": None}

    def arguments(add):
        def make():
            if add and state["handle"] is None:
                state["handle"] = model.register_forward_hook(lambda m, a, out: out - 1)
            elif not add and state["handle"] is not None:
                state["handle"].remove()
                state["handle"] = None
            return (t(3, 4),)

        return make

    return model, [arguments(False), arguments(True), arguments(False)]


@setup()
def full_backward_hook():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    shapes = []
    model[0].register_full_backward_hook(lambda m, gin, gout: shapes.append(tuple(gout[0].shape)))

    def run(x):
        y = model(x)
        return y * 2, shapes

    return run, xs(3, 4)


@setup()
def tensor_hook():
    weight = nn.Parameter(t(4, seed=3))
    weight.register_hook(lambda grad: grad * 10)

    def run(x):
        return (x * weight).sin() + 1

    return run, xs(3, 4)


@case((t(3, grad=True),), (t(3, seed=1, grad=True),))
def tensor_hook_is_registered_inside(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 5)
    return (y + 1).exp()


@setup()
def hook_that_raises():
    layer = nn.Linear(4, 4)

    def hook(module, args, output):
        if args[0].shape[0] > 3:
            raise ValueError("too many rows")
        return output.relu()

    layer.register_forward_hook(hook)
    return layer, [(t(3, 4),), (t(5, 4),)]


@setup(steady="later")
def buffers_are_mutated():
    return Ema(), xs(3, 4)


@setup(steady="never")
def python_counter():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            self.calls += 1
            y = self.linear(x) * self.calls
            if self.calls % 2:
                y = y + 100
            return y

    return Counting(), xs(3, 4)


@setup()
def attribute_schedule():
    class Scheduled(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = 1.0

        def forward(self, x):
            self.temperature *= 0.9
            return (x / self.temperature).softmax(-1) + 1

    return Scheduled(), xs(3, 4)


@setup(steady="later")
def lazily_made_parameters():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = None

        def forward(self, x):
            if self.weight is None:
                self.weight = nn.Parameter(torch.ones(x.shape[-1], 2))
                self.register_buffer("shift", torch.full((2,), 0.5))
            return x @ self.weight + self.shift

    return Lazy(), xs(3, 4)


@setup(steady="later")
def lazy_linear():
    return nn.Sequential(nn.LazyLinear(3), nn.ReLU()), [(t(3, 4),), (t(3, 4, seed=1),)]


@setup()
def weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU()), xs(3, 4)


@setup()
def spectral_norm_in_eval():
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.ReLU()).eval(), xs(3, 4)


@setup()
def orthogonal():
    return parametrizations.orthogonal(nn.Linear(4, 4, bias=False)), xs(3, 4)


@setup()
def user_parametrization():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Positive())

    def run(x):
        y = layer(x) * 2
        with parametrize.cached():
            z = layer(x) + layer(y)
        return z, parametrize.is_parametrized(layer)

    return run, xs(3, 4)


@setup()
def state_dict_inside():
    model = nn.Linear(4, 4)

    def run(x):
        state = model.state_dict()
        y = x @ state["weight"].t() + state["bias"]
        return y, list(state), model(x) - y

    return run, xs(3, 4)


@setup()
def load_state_dict_between_calls():
    model = nn.Linear(4, 4)
    states = [{"weight": t(4, 4, seed=k), "bias": t(4, seed=k + 10)} for k in range(3)]

    def run(x, k):
        before = model(x)
        model.load_state_dict(states[k])
        return before, model(x) * 2

    return run, [(t(3, 4), 0), (t(3, 4), 1), (t(3, 4), 2)]


@setup()
def parameters_are_updated_by_hand():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

    def run(x):
        loss = model(x).pow(2).mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads):
                p.sub_(g, alpha=0.1)
        return loss.detach()

    return run, [(t(3, 4),), (t(3, 4, seed=1),)]


@setup()
def parameter_is_replaced():
    model = nn.Linear(4, 4)

    def run(x, fresh):
        if fresh:
            model.weight = nn.Parameter(x.detach().t() @ x.detach())
        return model(x) + 1, model.weight.shape

    return run, [(t(3, 4), False), (t(3, 4), True), (t(3, 4), False)]


@setup()
def requires_grad_is_switched():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def run(x, freeze):
        model[0].requires_grad_(not freeze)
        return model(x) * 2, [p.requires_grad for p in model.parameters()]

    return run, [(t(3, 4), False), (t(3, 4), True), (t(3, 4), False)]


@setup(steady="never")
def copies_of_modules():
    model = nn.Linear(4, 4)

    def run(x):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin.bias.add_(1.0)
        return model(x) - twin(x), twin.weight is model.weight

    return run, xs(3, 4)


@setup()
def walking_over_the_module_tree():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))

    def run(x):
        total = x.sum() * 0
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                total = total + module.weight.abs().sum() * len(name)
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                total = total + p.sum()
        return model(x) + total, [n for n, _ in model.named_children()], sum(p.numel() for p in model.parameters())

    return run, xs(3, 4)


@setup()
def forward_is_patched():
    model = nn.Linear(4, 4)
    original = model.forward
    model.forward = lambda x: original(x).relu() + 1
    return model, xs(3, 4)


@setup(steady="never")
def forward_is_patched_between_calls():
    class Plain(nn.Module):
        def forward(self, x):
            return x * 2 + 1

    model = Plain()

    def arguments(factor):
        def make():
            Plain.forward = lambda self, x: x * factor - 1
            return (t(3, 4),)

        return make

    return model, [arguments(2.0), arguments(3.0), arguments(4.0)]


@setup()
def add_module_and_get_submodule():
    model = nn.Sequential()
    for k in range(3):
        model.add_module(f"layer{k}", nn.Linear(4, 4))
    model.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))

    def run(x):
        y = model.get_submodule("layer1")(x) * model.get_parameter("scale")
        return model(y), getattr(model, "layer2").bias + 1

    return run, xs(3, 4)


@setup()
def missing_attribute_of_a_module():
    model = nn.Linear(4, 4)

    def run(x):
        y = model(x)
        return y + model.no_such_thing

    return run, xs(3, 4)


@setup(steady="later")
def zero_grad_and_step():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run(x, target):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return run, [(t(3, 4), t(3, 1)), (t(3, 4, seed=1), t(3, 1, seed=2))]


class Counted(torch.nn.Module):
    """Notes its calls before it uses its parts, which PyTorch looks up through `__dict__`."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.seen = None
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)

    def forward(self, x):
        self.calls += 1
        x = self.first(x)
        self.seen = x.detach()
        self.calls += 10
        return self.second(x).relu(), self.__dict__["calls"]


@setup(at_most=2)
def counter_in_a_module():
    torch.manual_seed(0)
    model = torch.nn.Sequential(Counted())
    return model[0], [(t(2, 3),), (t(2, 3, seed=1),)]


@setup(steady="later")
def attributes_through_the_dictionary():
    class Plain:
        __slots__ = ("__dict__", "slot")

        def __init__(self):
            self.a, self.slot = 1, 2

    plain = Plain()

    def run(x, way):
        plain.a = x + 1
        plain.slot = x + 2
        found = [sorted(plain.__dict__), plain.__dict__["a"]]
        plain.new = way
        found += [vars(plain)["new"], len(plain.__dict__), {**plain.__dict__}["a"]]
        if way == 1:
            plain.__dict__["other"] = x * 2
            plain.other = x * 3
            found.append(plain.__dict__["other"])
        elif way == 2:
            plain.__dict__["a"] = x * 4
        elif way == 3:
            del plain.new
            found.append("new" in plain.__dict__)
        elif way == 4:
            plain.__dict__.update(a=x * 5, more=x)
            found += [plain.more, plain.a]
        elif way == 5:
            del plain.__dict__["new"]
            found.append(hasattr(plain, "new"))
        found += [plain.a, plain.slot, list(vars(plain))]
        return found

    return run, [(t(3), way) for way in range(6)]


@setup()
def train_and_eval_inside():
    model = torch.nn.Sequential(Counted(), torch.nn.Dropout(0.5))

    def run(x):
        was_training = model.training
        model.eval()
        y = model[0](x)[0]
        model.train(was_training)
        model[0].mode = "after"
        return y, [module.training for module in model.modules()], model[0].second(x)

    return run, [(t(2, 3),), (t(2, 3, seed=1),)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", names(globals()))
def test_module_state(name, backend):
    check(__file__, name, backend)


def test_sizes_of_lazy_modules_are_found_in_one_step():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))
    compiled = quickfuse.compile(lambda x: model(x))
    for _ in range(2):
        compiled(t(3, 5))
    assert {"_infer_parameters" in pause.reason for pause in compiled.breaks} == {True}
    torch.testing.assert_close(compiled(t(3, 5)), model(t(3, 5)))
