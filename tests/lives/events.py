"""What happens between calls: to modes, gradients, optimizers, parameters, modules, hooks, objects and the process."""

from __future__ import annotations

from lives import changes
from lives.event import Event
from lives.event import event as _event
from lives.life import Life
from training.draft import Draft

MODES = (
    _event("eval", "<M>.eval()", share=2),
    _event("train", "<M>.train()", share=2),
    _event("one module in eval", "weighted(<M>, <K>).eval()"),
    _event("freeze one", "parameter(<M>, <K>).requires_grad_(False)"),
    _event("freeze all", "<M>.requires_grad_(False)", share=0.4),
    _event("unfreeze all", "<M>.requires_grad_(True)", share=2),
    _event("freeze a module", "weighted(<M>, <K>).requires_grad_(False)"),
    _event("an attribute", "<M>.factor = <F>", share=0.5),
    _event("dropout", "for m in <M>.modules():", "    if isinstance(m, nn.Dropout):", "        m.p = <F> / 2", share=0.5),
    _event("momentum of norms", "for m in <M>.modules():", "    if hasattr(m, 'momentum') and hasattr(m, 'running_mean'):",
           "        m.momentum = None", share=0.4),
)  # fmt: skip

GRADIENTS = (
    _event("zero_grad to none", "<O>.zero_grad()"),
    _event("zero_grad to zeros", "<O>.zero_grad(set_to_none=False)"),
    _event("zero_grad of the model", "<M>.zero_grad(set_to_none=False)"),
    _event("a gradient none", "parameter(<M>, <K>).grad = None"),
    _event("a gradient replaced", "p = parameter(<M>, <K>)", "p.grad = torch.ones_like(p)"),
    _event("a gradient of another layout", "p = parameter(<M>, <K>)",
           "p.grad = torch.ones(p.shape[::-1]).permute(*range(p.ndim)[::-1])"),
    _event("gradients kept", "kept['grads'] = [p.grad for p in <M>.parameters()]"),
    _event("gradients cloned", "for p in <M>.parameters():", "    p.grad = None if p.grad is None else p.grad.clone()",
           quiet=True),
    _event("one gradient for two", "a, b = linear(<M>).bias, linear(<M>, <K>).bias", "if a is not None and b is not None:",
           "    a.grad = torch.full_like(a, 0.5)", "    if b.shape == a.shape:", "        b.grad = a.grad"),
    _event("gradients as views", "ps = [p for p in <M>.parameters() if p.requires_grad]",
           "flat = torch.zeros(sum(p.numel() for p in ps))", "for p, g in zip(ps, flat.split([p.numel() for p in ps])):",
           "    p.grad = g.view_as(p)", "kept['flat'] = flat"),
    _event("gradients scaled", "for p in <M>.parameters():", "    if p.grad is not None:", "        p.grad.mul_(<F>)",
           quiet=True),
    _event("a gradient detached", "p = parameter(<M>, <K>)", "p.grad = None if p.grad is None else p.grad.detach_()"),
    _event("an expanded gradient", "p = parameter(<M>, <K>)", "if not fused(<O>):",
           "    p.grad = torch.ones(()).expand(p.shape)"),
    _event("a gradient that is its parameter", "p = parameter(<M>, <K>)", "p.grad = p.detach()"),
    _event("a gradient that is another's parameter", "a, b = parameter(<M>), parameter(<M>, <K>)",
           "if a.shape == b.shape:", "    a.grad = b.detach()"),
    _event("a gradient that requires one", "p = parameter(<M>, <K>)", "p.grad = torch.ones_like(p, requires_grad=True)",
           share=0.5),
    _event("gradients that overlap", "a, b = parameter(<M>), parameter(<M>, <K>)", "if a is not b:",
           "    flat = torch.linspace(-1, 1, a.numel() + b.numel())", "    a.grad = flat[:a.numel()].view_as(a)",
           "    b.grad = flat[a.numel() // 2:][:b.numel()].view_as(b)"),
    _event("a gradient set", "p = parameter(<M>, <K>)", "if p.grad is not None:",
           "    p.grad.set_(torch.full_like(p, <F>))"),
)  # fmt: skip

OPTIMIZERS = (
    _event("learning rate", "for group in <O>.param_groups:", "    group['lr'] = group['lr'] * <F>", share=3, quiet=True),
    _event("weight decay", "for group in <O>.param_groups:", "    if group.get('weight_decay'):",
           "        group['weight_decay'] *= <F>", quiet=True),
    _event("weight decay at all", "for group in <O>.param_groups:", "    group['weight_decay'] = 0.03"),
    _event("betas", "for group in <O>.param_groups:", "    if 'betas' in group:", "        group['betas'] = (0.85, 0.97)",
           "    elif group.get('momentum'):", "        group['momentum'] = 0.7", quiet=True),
    _event("learning rate as a tensor", "for group in <O>.param_groups:", "    if not group.get('foreach'):",
           "        group['lr'] = torch.tensor(float(group['lr']))", share=0.6),
    _event("maximize", "<O>.param_groups[0]['maximize'] = not <O>.param_groups[0].get('maximize', False)", share=0.5),
    _event("foreach", "for group in <O>.param_groups:",
           "    if 'foreach' in group and not isinstance(group['lr'], torch.Tensor):",
           "        group['foreach'] = not group['foreach']"),
    _event("add_param_group", "extra = nn.Parameter(torch.ones(3))", "extra.grad = torch.ones(3)",
           "<O>.add_param_group({'params': [extra], 'lr': 0.02})", "kept['extra'] = extra"),
    _event("optimizer state loaded", "<O>.load_state_dict(<O>.state_dict())"),
    _event("optimizer state copied", "<O>.load_state_dict(copy.deepcopy(<O>.state_dict()))", quiet=True),
    _event("optimizer state saved", "saved['<O>'] = copy.deepcopy(<O>.state_dict())"),
    _event("optimizer state restored", "if '<O>' in saved:", "    <O>.load_state_dict(saved['<O>'])"),
    _event("optimizer state dropped", "<O>.state.clear()"),
    _event("optimizer state of one dropped", "p = <O>.param_groups[0]['params'][0]", "<O>.state.pop(p, None)"),
    _event("new optimizer", "<O> = torch.optim.AdamW(<M>.parameters(), lr=0.01)"),
    _event("scheduler", "<S>.step()", share=3),
    _event("new scheduler", "schedule = torch.optim.lr_scheduler.ExponentialLR(<O>, 0.9)", "schedule.step()"),
    _event("plateau", "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(<O>, patience=0, factor=<F> / 2)",
           "plateau.step(1.0)", "plateau.step(2.0)"),
    _event("an update outside", "<O>.step()"),
    _event("groups reversed", "<O>.param_groups.reverse()"),
    _event("parameters reversed", "<O>.param_groups[0]['params'].reverse()"),
    _event("a group emptied", "ps = <O>.param_groups[-1]['params']", "while ps:", "    <O>.state.pop(ps.pop(), None)",
           share=0.5),
    _event("a parameter left out", "ps = <O>.param_groups[0]['params']", "if ps:", "    <O>.state.pop(ps.pop(), None)"),
    _event("a parameter twice", "<O>.param_groups[0]['params'].append(parameter(<M>, <K>))", share=0.6),
    _event("a parameter to another group", "ps = <O>.param_groups[0]['params']", "if ps:",
           "    <O>.add_param_group({'params': [ps.pop()], 'lr': 0.03})"),
    _event("optimizer state cloned", "for state in <O>.state.values():", "    for k, v in state.items():",
           "        state[k] = v.clone() if isinstance(v, torch.Tensor) else v", quiet=True),
    _event("optimizer state in float", "for state in <O>.state.values():", "    for k, v in state.items():",
           "        state[k] = v.float() if isinstance(v, torch.Tensor) else v", share=0.6),
    _event("optimizer state of one memory", "for state in <O>.state.values():",
           "    for k, v in state.items():", "        if isinstance(v, torch.Tensor) and v.ndim:",
           "            state[k] = kept.setdefault(('state', v.shape), v)", share=0.6),
    _event("optimizer state that is a parameter", "for p, state in <O>.state.items():",
           "    for k, v in state.items():", "        if isinstance(v, torch.Tensor) and v.shape == p.shape:",
           "            state[k] = p.detach()", "            break", share=0.4),
    _event("a step counter shared", "for state in <O>.state.values():",
           "    if isinstance(state.get('step'), torch.Tensor):",
           "        state['step'] = kept.setdefault('step', state['step'])", share=0.6),
)  # fmt: skip

PARAMETERS = (
    _event("state loaded",
           "<M>.load_state_dict({n: t * <F> if t.is_floating_point() else t for n, t in <M>.state_dict().items()})",
           quiet=True, share=2),
    _event("state assigned", "<M>.load_state_dict({n: t.clone() for n, t in <M>.state_dict().items()}, assign=True)"),
    _event("state saved", "saved['<M>'] = copy.deepcopy(<M>.state_dict())"),
    _event("state restored", "if '<M>' in saved:", "    <M>.load_state_dict(saved['<M>'])"),
    _event("a new parameter", "m = weighted(<M>, <K>)", "m.weight = nn.Parameter(m.weight.detach() * <F>)"),
    _event("a new parameter, optimized", "m = weighted(<M>, <K>)", "m.weight = nn.Parameter(m.weight.detach() * <F>)",
           "<O>.add_param_group({'params': [m.weight]})"),
    _event("data assigned", "p = parameter(<M>, <K>)", "p.data = p.data * <F>", share=2),
    _event("data of another layout", "p = parameter(<M>, <K>)",
           "p.data = p.data.permute(*range(p.ndim)[::-1]).contiguous().permute(*range(p.ndim)[::-1])"),
    _event("data copied", "p = parameter(<M>, <K>)", "p.data.copy_(p.data.flip(0) if p.ndim else p.data * 2)", quiet=True),
    _event("changed in place", "with torch.no_grad():", "    for p in <M>.parameters():", "        p.mul_(<F>)",
           quiet=True, share=2),
    _event("data as views", "ps = [*<M>.parameters()]", "flat = torch.cat([p.detach().flatten() for p in ps])",
           "for p, v in zip(ps, flat.split([p.numel() for p in ps])):", "    p.data = v.view_as(p)",
           "kept['weights'] = flat"),
    _event("weights tied", "a, b = linear(<M>), linear(<M>, <K>)", "if a.weight.shape == b.weight.shape:",
           "    b.weight = a.weight"),
    _event("weights of one memory", "a, b = linear(<M>), linear(<M>, <K>)", "if a.weight.shape == b.weight.shape:",
           "    b.weight.data = a.weight.data"),
    _event("weights that overlap", "a, b = linear(<M>).weight, linear(<M>, <K>).weight", "if a is not b:",
           "    flat = torch.linspace(-0.5, 0.5, a.numel() + b.numel())", "    a.data = flat[:a.numel()].view_as(a)",
           "    b.data = flat[a.numel() // 2:][:b.numel()].view_as(b)"),
    _event("a transposed weight", "a, b = linear(<M>).weight, linear(<M>, <K>).weight",
           "if a.shape == b.shape and a.shape[0] == a.shape[1]:", "    b.data = a.data.t()"),
    _event("a parameter set", "p = parameter(<M>, <K>)", "with torch.no_grad():", "    p.set_(p.detach() * <F>)"),
    _event("an expanded parameter", "p = parameter(<M>, <K>)", "if not fused(<O>):",
           "    p.data = torch.full((), <F>).expand(p.shape)", share=0.5),
    _event("a parameter in a list's place", "m = weighted(<M>, <K>)", "old = m._parameters.pop('weight')",
           "m.register_parameter('weight', old)", share=0.5),
    _event("a buffer of one memory", "m, name = buffer(<M>, <K>)", "other, at = buffer(<M>)",
           "if m._buffers[name].shape == other._buffers[at].shape:", "    m._buffers[name] = other._buffers[at]"),
    _event("a buffer that is a parameter", "m, name = buffer(<M>, <K>)", "for p in <M>.parameters():",
           "    if p.shape == m._buffers[name].shape:", "        m._buffers[name] = p.detach()"),
    _event("weights untied", "m = linear(<M>, <K>)", "m.weight = nn.Parameter(m.weight.detach().clone())"),
    _event("bias removed", "linear(<M>, <K>).bias = None"),
    _event("bias added", "m = linear(<M>, <K>)", "if m.bias is None:",
           "    m.bias = nn.Parameter(torch.zeros(m.out_features))"),
    _event("a buffer re-registered", "m, name = buffer(<M>, <K>)", "m.register_buffer(name, m._buffers[name].clone())"),
    _event("a buffer in place", "m, name = buffer(<M>, <K>)", "m._buffers[name].zero_()", quiet=True),
    _event("a parameter by vector", "vector = nn.utils.parameters_to_vector(<M>.parameters())",
           "nn.utils.vector_to_parameters(vector.detach() * <F>, <M>.parameters())"),
    _event("initialised", "for m in <M>.modules():", "    if isinstance(m, nn.Linear) and 'weight' in m._parameters:",
           "        nn.init.xavier_uniform_(m.weight)"),
    _event("reset", "m = weighted(<M>, <K>)", "m.reset_parameters()"),
    _event("swapped", "torch.__future__.set_swap_module_params_on_conversion(True)", "<M>.double()",
           "torch.__future__.set_swap_module_params_on_conversion(False)", share=0.4),
)  # fmt: skip

MODULES = (
    _event("a module replaced", "m = linear(<M>, <K>)", "where, name = parent(<M>, m)",
           "setattr(where, name, nn.Linear(m.in_features, m.out_features, bias=m.bias is not None))"),
    _event("a module wrapped", "m = linear(<M>, <K>)", "where, name = parent(<M>, m)",
           "setattr(where, name, nn.Sequential(m, nn.Tanh()))"),
    _event("a module copied", "m = linear(<M>, <K>)", "where, name = parent(<M>, m)",
           "setattr(where, name, copy.deepcopy(m))"),
    _event("a module named differently", "<M>.extra = nn.Linear(2, 2)"),
    _event("a module twice", "m, other = linear(<M>), linear(<M>, <K>)", "where, name = parent(<M>, other)",
           "if m.weight.shape == other.weight.shape:", "    setattr(where, name, m)"),
    _event("forward replaced", "m = linear(<M>, <K>)", "m.forward = lambda x, m=m: F.linear(x, m.weight) * <F>"),
    _event("forward given back", "linear(<M>, <K>).__dict__.pop('forward', None)"),
    _event("weight norm", "nn.utils.parametrizations.weight_norm(linear(<M>, <K>))"),
    _event("spectral norm", "nn.utils.parametrizations.spectral_norm(linear(<M>, <K>))"),
    _event("old weight norm", "nn.utils.weight_norm(linear(<M>, <K>))"),
    _event("old spectral norm", "nn.utils.spectral_norm(linear(<M>, <K>))"),
    _event("a parametrization", "nn.utils.parametrize.register_parametrization(linear(<M>, <K>), 'weight', Doubled())"),
    _event("parametrizations removed", "for m in <M>.modules():",
           "    if nn.utils.parametrize.is_parametrized(m, 'weight'):",
           "        nn.utils.parametrize.remove_parametrizations(m, 'weight')", share=2),
    _event("old norms removed", "for m in <M>.modules():",
           "    for remove in (nn.utils.remove_weight_norm, nn.utils.remove_spectral_norm):",
           "        try:", "            remove(m)", "        except ValueError:", "            pass", share=1.5),
    _event("pruned", "nn.utils.prune.l1_unstructured(linear(<M>, <K>), 'weight', 0.4)"),
    _event("pruned at random", "nn.utils.prune.random_unstructured(linear(<M>, <K>), 'weight', 3)"),
    _event("pruning made permanent", "for m in <M>.modules():",
           "    if nn.utils.prune.is_pruned(m) and hasattr(m, 'weight_mask'):",
           "        nn.utils.prune.remove(m, 'weight')", share=1.5),
)  # fmt: skip

HOOKS = (
    _event("forward hook", "hooks.append(weighted(<M>, <K>).register_forward_hook(lambda m, args, out: out * <F>))"),
    _event("forward hook that notes", "hooks.append(<M>.register_forward_hook(lambda m, args, out: kept.update(out=out)))"),
    _event("forward hook that counts", "hooks.append(<M>.register_forward_hook(lambda *_: notes.append(len(notes))))"),
    _event("forward pre-hook", "hooks.append(<M>.register_forward_pre_hook(lambda m, args: (args[0] + 0, *args[1:])))"),
    _event("full backward hook", "hooks.append(weighted(<M>, <K>).register_full_backward_hook("
           "lambda m, given, out: notes.append(float(out[0].sum()))))"),
    _event("full backward hook that scales", "hooks.append(weighted(<M>, <K>).register_full_backward_hook("
           "lambda m, given, out: tuple(None if g is None else g * <F> for g in given)))"),
    _event("backward pre-hook", "hooks.append(weighted(<M>, <K>).register_full_backward_pre_hook("
           "lambda m, out: tuple(None if g is None else g * <F> for g in out)))"),
    _event("tensor hook", "hooks.append(parameter(<M>, <K>).register_hook(lambda g: g * <F>))", share=2),
    _event("tensor hook that notes",
           "hooks.append(parameter(<M>, <K>).register_hook(lambda g: notes.append(float(g.sum()))))"),
    _event("tensor hook that replaces", "p = parameter(<M>, <K>)", "given = torch.full_like(p, <F>)",
           "hooks.append(p.register_hook(lambda g, given=given: given))"),
    _event("tensor hook that expands", "hooks.append(parameter(<M>, <K>).register_hook(lambda g: g.sum().expand(g.shape)))"),
    _event("tensor hook that returns the parameter", "p = parameter(<M>, <K>)",
           "hooks.append(p.register_hook(lambda g, p=p: p.data))"),
    _event("tensor hook in place", "hooks.append(parameter(<M>, <K>).register_hook(lambda g: (g.mul_(<F>), None)[1]))",
           share=0.4),
    _event("tensor hook that changes another gradient", "p, q = parameter(<M>, <K>), parameter(<M>)",
           "hooks.append(p.register_hook(lambda g, q=q: setattr(q, 'grad', None)))"),
    _event("gradients replaced after accumulation", "p = parameter(<M>, <K>)",
           "hooks.append(p.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', p.grad.clone() * <F>)))"),
    _event("after accumulation", "hooks.append(parameter(<M>, <K>).register_post_accumulate_grad_hook("
           "lambda p: notes.append(float(p.grad.sum()))))"),
    _event("update after accumulation", "def update_now(p):", "    with torch.no_grad():", "        p.sub_(0.1 * p.grad)",
           "    p.grad = None",
           "hooks.append(parameter(<M>, <K>).register_post_accumulate_grad_hook(update_now))"),
    _event("optimizer pre-hook", "hooks.append(<O>.register_step_pre_hook(lambda o, args, kwargs: notes.append('pre')))"),
    _event("optimizer post-hook",
           "hooks.append(<O>.register_step_post_hook(lambda o, args, kwargs: notes.append(len(o.state))))"),
    _event("state hook", "hooks.append(<M>.register_state_dict_post_hook(lambda *args: None) or Handle())", share=0.3),
    _event("global forward hook",
           "hooks.append(nn.modules.module.register_module_forward_hook("
           "lambda m, args, out: notes.append(type(m).__name__)))",
           share=0.5),
    _event("global optimizer hook",
           "hooks.append(register_optimizer_step_post_hook(lambda *_: notes.append('any')))", share=0.5),
    _event("hooks removed", "while hooks:", "    hooks.pop().remove()", share=6),
    _event("a hook removed", "if hooks:", "    hooks.pop(0).remove()", share=2),
    _event("a hook that raises",
           "hooks.append(weighted(<M>, <K>).register_forward_hook(Failing(RuntimeError('hook'), <K>)))"),
    _event("a hook that stops", "hooks.append(weighted(<M>, <K>).register_forward_hook(Failing(Stop('hook'), <K>)))"),
    _event("a tensor hook that raises", "hooks.append(parameter(<M>, <K>).register_hook(Failing(RuntimeError('grad'))))"),
    _event("a tensor hook that stops", "hooks.append(parameter(<M>, <K>).register_hook(Failing(Stop('grad'))))"),
    _event("an optimizer hook that raises", "hooks.append(<O>.register_step_pre_hook(Failing(ValueError('step'))))"),
)  # fmt: skip

OBJECTS = (
    _event("model copied", "<M> = copy.deepcopy(<M>)"),
    _event("model copied, optimizer renewed", "<M> = copy.deepcopy(<M>)",
           "<O> = torch.optim.SGD(<M>.parameters(), lr=0.05, momentum=0.9)"),
    _event("model pickled", "stream = io.BytesIO()", "torch.save(<M>, stream)", "stream.seek(0)",
           "<M> = torch.load(stream, weights_only=False)"),
    _event("state pickled", "stream = io.BytesIO()", "torch.save(<M>.state_dict(), stream)", "stream.seek(0)",
           "<M>.load_state_dict(torch.load(stream))"),
    _event("both copied", "<M>, <O> = copy.deepcopy((<M>, <O>))"),
    _event("double", "<M>.double()", "torch.set_default_dtype(torch.float64)"),
    _event("float", "<M>.float()", "torch.set_default_dtype(torch.float32)", share=0.7),
    _event("float, optimizer too", "<M>.float()", "<O>.load_state_dict(<O>.state_dict())",
           "torch.set_default_dtype(torch.float32)",
           share=0.7),
    _event("bfloat16", "<M>.bfloat16()", share=0.3),
    _event("half", "<M>.half()", share=0.2),
    _event("channels last", "<M>.to(memory_format=torch.channels_last)"),
    _event("swa", "average = torch.optim.swa_utils.AveragedModel(<M>)", "average.update_parameters(<M>)",
           "kept['average'] = [*average.parameters()]", share=0.6),
    _event("shared memory", "<M>.share_memory()", share=0.5),
    _event("garbage", "gc.collect()", share=0.5, quiet=True),
)  # fmt: skip

PROCESS = (
    _event("seed", "torch.manual_seed(7)", quiet=True, share=2),
    _event("generator saved", "saved['rng'] = torch.get_rng_state()", quiet=True),
    _event("generator restored", "torch.set_rng_state(saved.get('rng', torch.get_rng_state()))", quiet=True),
    _event("numbers drawn", "torch.randn(3)", quiet=True),
    _event("deterministic", "torch.use_deterministic_algorithms(True)", share=0.6),
    _event("not deterministic", "torch.use_deterministic_algorithms(False)", share=0.6),
    _event("default type", "torch.set_default_dtype(torch.float32)", share=0.1),
    _event("default type back", "torch.set_default_dtype(torch.float64)", share=0.6),
    _event("threads", "torch.set_num_threads(2)", share=0.5),
    _event("one thread", "torch.set_num_threads(1)", share=0.5),
    _event("gradients off", "torch.set_grad_enabled(False)", share=0.15),
    _event("gradients on", "torch.set_grad_enabled(True)", share=0.8),
    _event("reset", "reset()", share=0.8),
    _event("anomaly mode", "torch.autograd.set_detect_anomaly(True)", share=0.4),
    _event("anomaly mode off", "torch.autograd.set_detect_anomaly(False)", share=0.4),
)  # fmt: skip

KINDS = {
    MODES: 3, GRADIENTS: 2, OPTIMIZERS: 4, PARAMETERS: 4, MODULES: 3, HOOKS: 4, OBJECTS: 2, PROCESS: 2, **changes.KINDS,
}  # fmt: skip


def draw(life: Life, quiet: bool = False) -> tuple[Event, list[str]]:
    """An event that this program can have, and its lines; `quiet`: one that compiles nothing anew."""
    d = life.d
    while True:
        kind = tuple(life.events) if life.events and d.chance(0.4) else d.weighted(KINDS)
        event = d.weighted({e: e.share for e in kind if e.quiet or not quiet} or {_event("none"): 1.0})
        lines = event.of(life)
        if lines != [""] and lines:
            return event, lines


def compiled_again(d: Draft, life: Life) -> list[str]:
    """Now and then a function is compiled once more under the same name."""
    if not life.functions:
        return []
    name = d.pick(*life.functions)
    return [f"{name} = compile({life.functions[name]})"]


__all__ = ["Event", "compiled_again", "draw"]
