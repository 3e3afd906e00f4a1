"""Draws what programs of `outside` do: calls of what they compile, and what happens to results and inputs in between."""

from __future__ import annotations

from collections.abc import Callable

from outside.functions import Compiled
from training.draft import Draft, indented

INPUTS = ("x1", "x2", "w1", "w2", "leaf")
Lines = list[str]
#: Blocks around calls.
BLOCKS = (
    "torch.no_grad()", "torch.inference_mode()", "torch.enable_grad()", "torch.set_grad_enabled(False)",
    "torch.autograd.set_detect_anomaly(True)", "torch.autograd.graph.saved_tensors_hooks(pack_double, unpack_double)",
    "torch.autograd.graph.save_on_cpu()", "torch.autocast('cpu', torch.bfloat16)",
    "torch.autograd.graph.allow_mutation_on_saved_tensors()",
)  # fmt: skip


def draw(d: Draft, compiled: list[Compiled]) -> Lines:
    """The statements of a program: a call, 3 to 10 more things, and backward from all that is there in the end."""
    lines = _step("call", _called(d, compiled))
    for _ in range(d.rng.randint(3, 10)):
        name = d.weighted(WEIGHTS)
        lines += _step(name, ACTIONS[name](d, compiled))
        d.uses(name)
    return lines + _step("together", ["together(outs)"])


def _step(name: str, lines: Lines) -> Lines:
    return [f"with seen({name!r}):", *indented(lines)]


# calls ----------------------------------------------------------------------------------------------------------


def _inputs(d: Draft, chained: float = 0.2) -> tuple[str, str]:
    """Two inputs of a function, which may be results of others."""
    found = []
    for name in ("x1", "x2"):
        other = d.pick("x1", "x2", "w1", "leaf") if d.chance(0.1) else name
        found.append(f"like(outs, {d.rng.randrange(4)}, {other})" if d.chance(chained) else other)
    return found[0], found[1]


def _call(d: Draft, compiled: list[Compiled], chained: float = 0.2) -> str:
    return d.pick(*compiled).call.format(*_inputs(d, chained))


def _taken(d: Draft, call: str) -> Lines:
    """A call whose results take the place of earlier ones, or come after them."""
    place = "" if d.chance(0.75) else "len(outs)"
    return [f"made = {call}", "seen(shape(made))", f"outs[{place}:] = tensors(made)", "del made"]


def _called(d: Draft, compiled: list[Compiled]) -> Lines:
    return _taken(d, _call(d, compiled))


def _chained(d: Draft, compiled: list[Compiled]) -> Lines:
    return [f"outs.extend(tensors({_call(d, compiled, 0.9)}))"]


def _in_block(d: Draft, compiled: list[Compiled]) -> Lines:
    block = d.pick(*BLOCKS)
    d.uses(block)
    return [f"with {block}:", *indented(_called(d, compiled))]


def _checkpointed(d: Draft, compiled: list[Compiled]) -> Lines:
    one, two = _inputs(d)
    call = d.pick(*compiled).call.format("a", "b")
    return _taken(d, f"checkpoint(lambda a, b: [*tensors({call})], {one}, {two}, use_reentrant={d.chance(0.3)})")


def _in_a_thread(d: Draft, compiled: list[Compiled]) -> Lines:
    return _taken(d, f"in_thread(lambda: {_call(d, compiled)})")


def _around(d: Draft, compiled: list[Compiled]) -> Lines:
    one, two = _inputs(d)
    return [f"outs.append(around(lambda a, b: {d.pick(*compiled).call.format('a', 'b')}, {one}, {two}))"]


def _transformed(d: Draft, compiled: list[Compiled]) -> Lines:
    """A transform of torch.func of a compiled function."""
    one, two = _inputs(d)
    number = f"number(next(tensors({d.pick(*compiled).call.format('v', two)})))"
    first = f"next(tensors({d.pick(*compiled).call.format('v', two)}))"
    return [
        "seen(" + d.pick(
            f"torch.func.grad(lambda v: {number})({one})",
            f"torch.func.vmap(lambda v: {first})(torch.stack([{one}, {two}]))",
            f"torch.func.vmap(lambda v: {first}, randomness='same')(torch.stack([{one}, {two}]))",
            f"torch.func.jvp(lambda v: {first}, ({one},), ({two},))",
            f"torch.func.vjp(lambda v: {number}, {one})[1](torch.ones((), dtype=dtype))",
            f"torch.func.jacrev(lambda v: {first})({one})",
            f"torch.func.hessian(lambda v: {number})({one})",
            f"torch.autograd.functional.vjp(lambda v: {number}, {one})",
            f"torch.autograd.functional.hvp(lambda v: {number}, {one}, {two})",
            f"torch.autograd.functional.jacobian(lambda v: {first}, {one})",
        ) + ")"
    ]  # fmt: skip


def _with_other_parameters(d: Draft, compiled: list[Compiled]) -> Lines:
    modules = [c for c in compiled if c.module]
    if not modules:
        return _called(d, compiled)
    one, two = _inputs(d)
    function = d.pick(*modules)
    target = function.module if d.chance(0.5) or ".forward" in function.lines[-1] else function.name
    return _taken(d, f"torch.func.functional_call({target}, {{'w1': {d.pick('w1', 'w1 * 2', 'w2')}}}, ({one}, {two}))")


def _checked(d: Draft, compiled: list[Compiled]) -> Lines:
    """PyTorch's own check of gradients, or of gradients of gradients."""
    call = d.pick(*compiled).call.format("v", "x2.detach()")
    check = d.pick("gradcheck", "gradcheck", "gradgradcheck")
    return [
        "start = (x1.detach() * 0.3 + 0.1).requires_grad_()",
        "if dtype is torch.float64:",  # in others, rounding decides
        f"    function = lambda v: next(tensors({call}))",
        f"    seen(torch.autograd.{check}(function, (start,), raise_exception=False, fast_mode=True))",
    ]


# gradients ------------------------------------------------------------------------------------------------------


def _out(d: Draft) -> str:
    return f"at(outs, {d.rng.randrange(4)})"


def _retain(d: Draft) -> str:
    return f"retain_graph={d.chance(0.6)}"


def _backward(d: Draft, compiled: list[Compiled]) -> Lines:
    call = f"backward({_out(d)}, {_retain(d)})"
    anomalies = "torch.autograd.set_detect_anomaly(True)"
    block = d.weighted({"": 8, anomalies: 1, "torch.no_grad()": 1, "torch.inference_mode()": 0.3})
    return [f"with {block}:", f"    {call}"] if block else [call]


def _backward_to(d: Draft, compiled: list[Compiled]) -> Lines:
    v = d.pick(*INPUTS)
    return [f"if {v}.is_leaf and {v}.requires_grad:", f"    backward({_out(d)}, inputs=[{v}], {_retain(d)})"]


def _graph_backward(d: Draft, compiled: list[Compiled]) -> Lines:
    """Gradients that have gradients, then none."""
    return [f"backward({_out(d)}, create_graph=True)"]


def _gradients(d: Draft, compiled: list[Compiled]) -> Lines:
    wanted = ", ".join(d.rng.sample(INPUTS, d.rng.randint(1, 4)))
    return [f"seen(gradients({_out(d)}, [{wanted}], {_retain(d)}))"]


def _gradients_of_results(d: Draft, compiled: list[Compiled]) -> Lines:
    return [f"seen(gradients({_out(d)}, [o for o in [{_out(d)}] if o is not None], retain_graph=True))"]


def _kept_gradients(d: Draft, compiled: list[Compiled]) -> Lines:
    """Gradients with a graph of their own, as further results."""
    return [f"outs.extend(g for g in gradients({_out(d)}, [{d.pick(*INPUTS)}], create_graph=True) or () if g is not None)"]


def _together(d: Draft, compiled: list[Compiled]) -> Lines:
    return [f"together(outs, {_retain(d)})"]


# everything else ------------------------------------------------------------------------------------------------


def _hook_module(d: Draft, compiled: list[Compiled]) -> Lines:
    modules = [c.module for c in compiled if c.module]
    if not modules:
        return [f"retain({_out(d)})"]
    kind = d.pick("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
    name = d.name("hook")
    return [f"handles.append(hook_module({d.pick(*modules)}, {kind!r}, notes, {name!r}))"]


def _replace_parameter(d: Draft, compiled: list[Compiled]) -> Lines:
    modules = [c.module for c in compiled if c.module]
    if not modules:
        return [f"{(v := d.pick('x1', 'x2', 'w1'))} = {v}.detach().clone().requires_grad_({d.chance(0.7)})"]
    net = d.pick(*modules)
    return d.pick(
        [f"{net}.w1 = nn.Parameter({net}.w1.detach() * 0.9)"], [f"{net}.w1, {net}.w2 = {net}.w2, {net}.w1"],
        [f"{net}.w1 = {net}.w2"], [f"torch.utils.swap_tensors({net}.w1, nn.Parameter({net}.w1.detach() * 0.9))"],
        [f"{net}.eval()"], [f"{net}.train()"], [f"{net}.zero_grad()"], [f"{net}.requires_grad_({d.chance(0.5)})"],
        [f"{net}.load_state_dict({{k: v * 1.1 for k, v in {net}.state_dict().items()}})"],
    )  # fmt: skip


def _weak_references(d: Draft, compiled: list[Compiled]) -> Lines:
    """Whether a result ends where nothing in the program has it any more."""
    index = d.rng.randrange(4)
    return [f"ended = weakref.ref(like(outs, {index}, leaf))", f"kept(at(outs, {index}), outs, {index}, 'none')",
            "gc.collect()", "seen([ended() is None])"]  # fmt: skip


Action = Callable[[Draft, list[Compiled]], Lines]


def _plain(*options: str) -> Action:
    """One of some lines, in which `{o}` and `{p}` are results, `{v}` an input, `{b}` a truth value, `{name}` a new name."""

    def action(d: Draft, compiled: list[Compiled]) -> Lines:
        index = d.rng.randrange(4)
        line = d.pick(*options)
        name = d.name("hook") if "{name" in line else ""
        return [line.format(o=f"at(outs, {index})", i=index, p=_out(d), v=d.pick(*INPUTS), b=d.chance(0.5), name=name)]

    return action


#: What may happen: how often, and how it is drawn.
_ALL: dict[str, tuple[float, Action]] = {
    "call": (4, _called), "chained": (2.5, _chained), "in a block": (2, _in_block), "checkpointed": (1, _checkpointed),
    "in a thread": (0.7, _in_a_thread), "around": (0.7, _around), "transformed": (1, _transformed),
    "other parameters": (0.7, _with_other_parameters), "checked": (0.3, _checked),
    "backward": (7, _backward), "backward to": (1.2, _backward_to), "backward with graph": (0.4, _graph_backward),
    "gradients": (3, _gradients), "gradients of results": (1, _gradients_of_results), "kept gradients": (1, _kept_gradients),
    "together": (2, _together), "penalty": (1.5, _plain("seen(penalty({o}, [x1, w1, leaf], {b}))")),
    "batched": (1, _plain("seen(batched({o}, {v}))")), "directional": (0.7, _plain("seen(directional({o}, {v}))")),
    "backward in a thread": (1, _plain("in_thread(lambda: backward({o}, retain_graph={b}))")),
    "hook of a result": (1.5, _plain("handles.append(hook({o}, notes, {name!r}, 2.0))")),
    "hook of an input": (1.5, _plain("handles.append(hook({v}, notes, {name!r}, 0.5))")),
    "hook when added": (1, _plain("handles.append(hook_when_added({v}, notes, {name!r}))")),
    "hook of a module": (1, _hook_module),
    "hooks removed": (0.5, _plain("while handles: (handle := handles.pop()) and handle.remove()")),
    "retain": (1.2, _plain("retain({o})")),
    "result changed": (2.5, _plain("change({o}, lambda o: o.mul_(1.5))", "change({o}, lambda o: o.copy_({v}))",
                                   "change({o}, lambda o: (o[0] if o.dim() else o).add_(1))",
                                   "change({o}, lambda o: o.view(-1)[:2].mul_(2))")),
    "result changed without gradients": (1, _plain("with torch.no_grad(): change({o}, lambda o: o.add_(0.5))")),
    "input changed": (1.5, _plain("with torch.no_grad(): {v}.mul_(0.9)")),
    "data of an input": (0.8, _plain("change_data({v}, 'data')", "change_data({v}, 'set_')", "change_data({v}, 'resize_')")),
    "data of a result": (0.3, _plain("change({o}, lambda o: o.data.fill_(1))")),
    "detached in place": (0.6, _plain("change({o}, lambda o: o.detach_())")),
    "optimizer": (1.5, _plain("optimizers[0].step()", "optimizers[1].step()")),
    "zeroed": (1, _plain("optimizers[0].zero_grad(set_to_none={b})", "{v}.grad = None if {v}.is_leaf else {v}.grad")),
    "frozen": (1, _plain("switch({v}, False)")), "unfrozen": (1, _plain("switch({v}, True)")),
    "gradient changed": (0.8, _plain("add_to_gradient({v})")),
    "let go": (1.2, _plain("kept({o}, outs, {i}, 'none')", "kept({o}, outs, {i}, 'detached')")),
    "used": (2, _plain("outs.append(used({o}, {p}))")),
    "gain": (0.7, _plain("gain['k'] *= 0.9", "gain.update(k=1.5)")),
    "copied": (0.6, _plain("seen(copied({o}, 'deepcopy'))", "seen(copied({o}, 'pickle'))", "seen(copied({o}, 'facts'))")),
    "parameter": (1, _replace_parameter), "weak references": (0.5, _weak_references),
}  # fmt: skip
WEIGHTS = {name: weight for name, (weight, _) in _ALL.items()}
ACTIONS = {name: action for name, (_, action) in _ALL.items()}
