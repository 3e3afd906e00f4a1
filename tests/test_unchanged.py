"""Walks through modules that are skipped while nothing changed: whatever changes has to be noticed."""

from __future__ import annotations

import collections
import gc
import random
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.ir.walk import Step
from quickfuse.launch import unchanged
from quickfuse.launch.unchanged import Unchanged

pytestmark = pytest.mark.skipif(not unchanged.helpers(), reason="no walk is skipped on this interpreter")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.LayerNorm(3)
        self.scale = 2.0
        self.mode = "plain"
        self.shifts = [1.0, 2.0]
        self.sizes = (3, 1)
        self.table = {"gain": torch.ones(3), "twice": False}
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x)) * self.scale + self.offset + self.shifts[1]
        if self.mode != "plain":
            y = -y
        if self.table["twice"]:
            y = y * 2
        if self.training:
            y = y + 1
        return y * self.table["gain"] + UNEVEN * self.sizes[1]


class Model(torch.nn.Module):
    def __init__(self, blocks: int = 5) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(blocks)])
        self.head = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Negated(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x)


def compile_(function: Any) -> Any:
    """The guards are what matters here, not the kernels."""
    return quickfuse.compile(function, backend="eager")


def walks(compiled: Any) -> list[Unchanged]:
    inner = getattr(compiled, "_compiled", compiled)
    return [s.glue.constants["_walk0"] for s in inner.specialisations if "_walk0" in s.glue.constants]


def in_use(compiled: Any) -> bool:
    return any(walk._in_use for walk in walks(compiled))


def warm(compiled: Any, *args: Any) -> None:
    for _ in range(4):
        compiled(*args)
    assert in_use(compiled)


@pytest.fixture
def model() -> Iterator[Model]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield Model()


X = torch.arange(6.0).reshape(2, 3)
UNEVEN = torch.tensor([1.0, -2.0, 3.0])


def linear(model: Model) -> torch.nn.Linear:
    return model.layers[2].linear


def set_attribute(path: str, value: Any) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        *owners, name = path.split(".")
        owner: Any = model
        for part in owners:
            owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
        setattr(owner, name, value)

    return change


def new_dictionary(model: Model) -> None:
    own = dict(linear(model).__dict__)
    own["_parameters"] = {**own["_parameters"], "bias": torch.nn.Parameter(torch.ones(3))}
    linear(model).__dict__ = own


def reorder(model: Model) -> None:
    modules = model.layers._modules
    first = modules.pop("0")
    rest = dict(modules)
    modules.clear()
    modules.update({"1": rest.pop("1"), "0": first, **rest})


def first_row(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return x * module.weight[0]


def hooked(register: str, hook: Any) -> Callable[[Model], None]:
    return lambda model: getattr(linear(model), register)(hook) and None


CHANGES: dict[str, Callable[[Model], Any]] = {
    "parameter": lambda m: setattr(linear(m), "weight", torch.nn.Parameter(torch.eye(3))),
    "parameter in its dictionary": lambda m: linear(m)._parameters.update(bias=torch.nn.Parameter(torch.ones(3))),
    "data": lambda m: setattr(linear(m).weight, "data", torch.eye(3)),
    "data, double": lambda m: setattr(linear(m).weight, "data", linear(m).weight.data.clone().t()),
    "in place": lambda m: linear(m).weight.mul_(3),
    "no bias": lambda m: setattr(linear(m), "bias", None),
    "buffer": lambda m: setattr(m.layers[1], "offset", torch.ones(3)),
    "buffer in its dictionary": lambda m: m.layers[1]._buffers.update(offset=torch.ones(3)),
    "forward hook": hooked("register_forward_hook", lambda module, args, result: result * UNEVEN),
    "forward pre-hook": hooked("register_forward_pre_hook", lambda module, args: (args[0] * UNEVEN,)),
    "module": lambda m: m.layers.__setitem__(1, Block()),
    "inner module": lambda m: setattr(m.layers[1], "linear", Negated(3, 3)),
    "another module": lambda m: m.layers.append(Block()),
    "a module less": lambda m: m.layers.__delitem__(0),
    "order of modules": reorder,
    "class of a module": lambda m: setattr(linear(m), "__class__", Negated),
    "forward of an instance": lambda m: setattr(linear(m), "forward", types.MethodType(first_row, linear(m))),
    "dictionary of an instance": new_dictionary,
    "number": set_attribute("layers.3.scale", 5.0),
    "kind of number": set_attribute("layers.3.scale", 5),
    "string": set_attribute("layers.3.mode", "negated"),
    "list": lambda m: m.layers[0].shifts.__setitem__(1, 7.0),
    "list, longer": lambda m: m.layers[0].shifts.insert(0, 7.0),
    "another list": set_attribute("layers.0.shifts", [0.0, 9.0]),
    "tuple": set_attribute("layers.4.sizes", (3, 3)),
    "dictionary of tensors": lambda m: m.layers[2].table.update(gain=torch.full((3,), 2.0)),
    "flag in a dictionary": lambda m: m.layers[2].table.update(twice=True),
    "mode": lambda m: m.eval(),
    "mode of one": lambda m: m.layers[4].eval(),
    "requires_grad": lambda m: m.head.weight.requires_grad_(not m.head.weight.requires_grad),
    "state": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "assigned state": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True),
    "deleted attribute": lambda m: delattr(m.layers[0], "mode") or setattr(m.layers[0], "mode", "other"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_noticed(model: Model, name: str) -> None:
    compiled = compile_(model)
    warm(compiled, X)
    before = model(X)
    CHANGES[name](model)
    for _ in range(4):
        assert torch.allclose(compiled(X), model(X), atol=1e-6)
    if name not in ("order of modules", "requires_grad", "kind of number", "mode of one"):
        assert not torch.allclose(model(X), before) or name == "data, double"


def test_random_changes() -> None:
    """Any number of changes, one after the other, with and without a warm walk between them."""
    choice = random.Random(3)
    names = [name for name in CHANGES if name not in ("another module", "a module less")]
    with torch.no_grad():
        model = Model()
        compiled = compile_(model)
        for _ in range(8):
            for _ in range(choice.randrange(4)):
                assert torch.allclose(compiled(X), model(X), atol=1e-5)
            CHANGES[choice.choice(names)](model)
            assert torch.allclose(compiled(X), model(X), atol=1e-4)


def test_patched_class(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_(model)
    warm(compiled, X)
    monkeypatch.setattr(Block, "forward", lambda self, x: self.linear(x) * 3)
    for _ in range(4):
        assert torch.equal(compiled(X), model(X))
    monkeypatch.undo()
    for _ in range(4):
        assert torch.allclose(compiled(X), model(X))


class Scaled(Block):
    """Overrides nothing: a patch of its own hides what `Block` defines."""


@pytest.mark.parametrize("owner", [Block, Scaled])
@pytest.mark.parametrize(
    "name,value",
    [
        ("scale", property(lambda self: 5.0)),
        ("mode", property(lambda self: "negated")),
        ("offset", property(lambda self: torch.ones(3))),
        ("linear", property(lambda self: torch.zeros_like)),
        ("scale", 7.0),  # which the instance's own hides
        ("forward", lambda self, x: x + self.scale),
    ],
    ids=["scale", "mode", "offset", "linear", "hidden", "forward"],
)
def test_class_attribute_with_the_name_of_an_instance_s(
    model: Model, owner: type, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for layer in model.layers:
        layer.__class__ = Scaled
    compiled = compile_(model)
    warm(compiled, X)
    monkeypatch.setattr(owner, name, value, raising=False)
    for _ in range(4):
        assert torch.allclose(compiled(X), model(X))
    monkeypatch.undo()
    for _ in range(4):
        assert torch.allclose(compiled(X), model(X))


def test_changes_of_a_class_are_seen() -> None:
    class Base:
        pass

    class Derived(Base):
        pass

    for cls, other in ((Derived, Base), (Derived, Derived), (Base, Base)):
        walk = known([Step("class", -1, cls, opened=True)], [], [])
        assert look(walk, []) == []
        other.name = 1  # type: ignore[attr-defined]
        assert look(walk, []) is None
        walk = known([Step("class", -1, cls, opened=True), Step("member", 0, "__module__")], [], [1])
        assert look(walk, []) == [__name__]
        del other.name  # type: ignore[attr-defined]
        assert look(walk, []) is None


def test_global_hooks(model: Model) -> None:
    compiled = compile_(model)
    warm(compiled, X)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, result: result * 2)
    assert torch.allclose(compiled(X), model(X))
    handle.remove()
    assert torch.allclose(compiled(X), model(X))


def test_other_types(model: Model) -> None:
    compiled = compile_(model)
    warm(compiled, X)
    model.double()
    for layer in model.layers:
        layer.table["gain"] = layer.table["gain"].double()
    assert torch.allclose(compiled(X.double()), model(X.double()))


def test_models_take_turns() -> None:
    with torch.no_grad():
        models = [Model() for _ in range(3)]
        compiled = compile_(lambda model, x: model(x))
        for _ in range(12):
            for model in models:
                assert torch.allclose(compiled(model, X), model(X))
        assert compiled.graph_count == 1
        for _ in range(40):
            assert torch.allclose(compiled(models[0], X), models[0](X))
        assert in_use(compiled)


def test_models_that_come_and_go() -> None:
    """A model at the address of one that is gone, with its dictionaries at addresses of others, is not the same."""
    compiled = compile_(lambda model, x: model(x))
    with torch.no_grad():
        for _ in range(4):
            model = Model(4)
            for _ in range(3):
                assert torch.allclose(compiled(model, X), model(X))
            del model
            gc.collect()


def test_code_that_changes_what_it_walks_through() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(4)])
            self.calls = 0
            self.last: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.last = self.inner(x) * self.calls
            return self.last

    with torch.no_grad():
        model = Counting()
        compiled = compile_(model)
        for k in range(6):
            assert torch.allclose(compiled(X), model.inner(X) * (k + 1))
            assert model.calls == k + 1 and model.last is not None
        assert in_use(compiled)


def test_optimizer_state() -> None:
    """State that is loaded, replaced or removed."""
    results = []
    for make in (compile_, lambda f: f):
        torch.manual_seed(1)
        parameters = [torch.nn.Parameter(torch.randn(4)) for _ in range(6)]
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        step = make(optimizer.step)
        for k in range(14):
            for p in parameters:
                p.grad = torch.full_like(p, 0.1 * k)
            if k == 5:
                optimizer.load_state_dict(optimizer.state_dict())
            if k == 7:
                optimizer.state[parameters[2]]["exp_avg"] = torch.ones(4)
            if k == 9:
                del optimizer.state[parameters[1]]
            if k == 11:
                optimizer.param_groups[0]["lr"] = 0.01
            if k == 12:
                optimizer.param_groups[0]["params"].reverse()
            step()
        results.append(parameters)
    for ours, eager in zip(*results, strict=True):
        assert torch.allclose(ours, eager, atol=1e-6)


def test_calls_and_changes_from_several_threads(model: Model) -> None:
    compiled = compile_(model)
    block = model.layers[2]
    small, large = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.full((3,), 50.0))
    allowed = []
    for bias in (small, large):
        block.linear.bias = bias
        allowed.append(model(X))
    stop = threading.Event()

    def toggle() -> None:
        while not stop.is_set():
            block.linear.bias = small
            time.sleep(1e-4)  # or it would keep Python's lock from the others
            block.linear.bias = large
            time.sleep(1e-4)

    wrong = []

    def call() -> None:
        with torch.no_grad():
            for _ in range(100):
                found = compiled(X)
                if not any(torch.allclose(found, expected) for expected in allowed):
                    wrong.append(found)

    warm(compiled, X)
    threads = [threading.Thread(target=call) for _ in range(3)]
    changer = threading.Thread(target=toggle)
    changer.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    changer.join()
    assert not wrong


# --- the mechanism alone ---


def known(steps: list[Step], roots: list[Any], results: list[int]) -> Unchanged:
    """A walk that is in use."""
    walk = Unchanged(steps, results)
    for _ in range(2):
        walk.finish(walk.begin(roots))
    return walk


def look(walk: Unchanged, roots: list[Any]) -> Any:
    return walk.scan(roots)


def test_numbers_in_lists_are_kept() -> None:
    """An equal address does not make an equal number."""
    values = [float(k) for k in range(1, 6)]
    roots = [{"values": values}]
    steps = [Step("root", -1, 0, opened=True), Step("item", 0, "values", opened=True), Step("item", 1, 3, typed=True)]
    walk = known(steps, roots, [2])
    assert look(walk, roots) == [4.0]
    for k in range(200):
        values[3] = k + 0.5
        assert look(walk, roots) is None
        values[3] = values[2] * 2
        assert look(walk, roots) is None


def test_order_of_an_ordered_dictionary() -> None:
    table = collections.OrderedDict(a=1, b=2, c=3)
    walk = known([Step("root", -1, 0, opened=True, ordered=True)], [table], [])
    assert look(walk, [table]) == []
    table.move_to_end("a")
    assert look(walk, [table]) is None


def test_another_root_and_another_number_of_roots() -> None:
    first, second = {"a": 1}, {"a": 1}
    walk = known([Step("root", -1, 0, opened=True)], [first], [])
    assert look(walk, [first]) == []
    assert look(walk, [second]) is None
    assert look(walk, []) is None
    assert look(walk, [first, first]) is None


def test_changes_between_begin_and_finish() -> None:
    table = {"a": [1]}
    walk = Unchanged([Step("root", -1, 0, opened=True), Step("item", 0, "a", opened=True)], [1])
    walk.finish(walk.begin([table]))
    note = walk.begin([table])
    assert note is not None
    table["a"].append(2)
    walk.finish(note)
    assert look(walk, [table]) is None


def test_what_is_of_no_use_is_made_less_and_less_often() -> None:
    table = {"a": 0}
    walk = Unchanged([Step("root", -1, 0, opened=True)], [])
    made = 0
    for k in range(1000):
        if look(walk, [table]) is None:
            note = walk.begin([table])
            made += note is not None
            walk.finish(note)
        table["a"] = k + 1000
    assert made < 15


def test_nothing_is_kept_alive() -> None:
    class Thing:
        pass

    thing = Thing()
    table = {"thing": thing, "list": [thing, (thing,)]}
    steps = [Step("root", -1, 0, opened=True), Step("item", 0, "list", opened=True), Step("item", 1, 1, opened=True)]
    walk = known(steps, [table], [2])
    assert look(walk, [table]) == [(thing,)]
    assert len(gc.get_referrers(thing)) == 3  # the dictionary, the list and the tuple
    del table
    assert walk._in_use


def test_each_layer_has_its_own_list() -> None:
    """Where layers are called one by one, by the same code, no layer's walk takes the place of another's."""

    @quickfuse.disable
    def spoken() -> None:
        pass

    class Speaking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Block() for _ in range(4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                spoken()
                x = layer(x)
            return x

    model = Speaking()
    compiled = compile_(model)
    x = torch.randn(2, 3)
    for _ in range(8):
        compiled(x)
    assert max(len(walk._in_use) for walk in walks(compiled)) >= 3
    for layer in model.layers:
        layer.mode = "negated"
        torch.testing.assert_close(compiled(x), model(x))
        layer.mode = "plain"
        torch.testing.assert_close(compiled(x), model(x))


def test_a_walk_that_is_never_finished_is_not_begun_for_ever() -> None:
    table = {"key": object()}
    walk = Unchanged([Step("root", -1, 0, opened=True), Step("item", 0, "key")], [1])
    assert sum(walk.begin([table]) is not None for _ in range(1000)) < 12


def test_there_are_not_too_many_lists() -> None:
    """Roots that are new each time are found out."""
    walk = Unchanged([Step("root", -1, 0, opened=True), Step("item", 0, "key")], [1])
    made = 0
    for _ in range(2000):
        roots = [{"key": object()}]
        if walk.scan(roots) is None:
            note = walk.begin(roots)
            made += note is not None
            walk.finish(note)
        assert walk.scan(roots) in (None, [roots[0]["key"]])
    assert made < 80 and len(walk._in_use) <= 32
