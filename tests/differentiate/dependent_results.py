"""Functions of which some results are computed from others, and what is done with the results."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def chain(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    return t, (t * b).cos()


def three_in_a_row(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    u = (t * b).tanh()
    return t, u, (u * a).sum()


def past_one(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    u = (t * b).tanh()
    return t, u, (u * t).sum(), u + w


def diamond(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).exp()
    left, right = t.sin(), t * b
    return t, left, right, left * right


def diamond_inside(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).exp()
    return t, t.sin() * (t * b) * w


def loss_last(a: Any, b: Any, w: Any) -> Any:
    scores = a @ w.t()
    return scores, F.cross_entropy(scores, torch.zeros(2, dtype=torch.long)) + b.sum()


def loss_first(a: Any, b: Any, w: Any) -> Any:
    scores, loss = loss_last(a, b, w)
    return loss, scores


def linear(a: Any, b: Any, w: Any) -> Any:
    t = a + w
    return t, t + b


def with_another(a: Any, b: Any, w: Any) -> Any:
    t, other = (a * w).sin(), b.cos()
    return t, other, (t * other).sum()


def two_in_a_row_and_another(a: Any, b: Any, w: Any) -> Any:
    t = b.cos()
    u = (t * w).sin()
    return a * b, t, u


def shared_but_apart(a: Any, b: Any, w: Any) -> Any:
    hidden = (a * w).tanh()
    return hidden.sin(), hidden.cos() * b


def hidden_states(a: Any, b: Any, w: Any) -> Any:
    states = [a]
    for _ in range(4):
        states.append((states[-1] * w).tanh() + b)
    return *states[1:], states[-1].sum()


def of_a_view(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    v = t[0]
    return t, v, v.exp() * b[0]


def of_a_view_and_all(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    v = t.view(-1)
    return t, v, v.exp() * t.reshape(-1) * b.view(-1)


def of_a_view_alone(a: Any, b: Any, w: Any) -> Any:
    v = (a * w).sin().t()
    return v, v @ b


def of_views_of_what_is_hidden(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    return t[0], t[1], t[0].exp() * t[1]


def through_views_of_what_is_hidden(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    one, other = t[0], t[1]
    return one, other, one.exp() * other * b[0]


def a_view_of_a_view(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    v = (t * b).exp()[0]
    return t, v, v.view(-1, 1)


def changed_before(a: Any, b: Any, w: Any) -> Any:
    t = a * w
    t.mul_(b)
    return t, t.sin()


def changed_after(a: Any, b: Any, w: Any) -> Any:
    t = a * w
    y = t * 2
    t.mul_(b)
    return t, y


def changed_in_between(a: Any, b: Any, w: Any) -> Any:
    t = a * w
    y = t * 2
    u = t.mul_(b)
    return t, y, t.sin() + u, u.exp() * y


def changed_through_a_view(a: Any, b: Any, w: Any) -> Any:
    t = a * w
    v = t[0]
    v.mul_(2)
    return t, v, t * b, v * b[0]


def changed_under_a_view(a: Any, b: Any, w: Any) -> Any:
    t = a * w
    v = t[0]
    t.mul_(b)
    return t, v.sin()


def changed_without_gradients(a: Any, b: Any, w: Any) -> Any:
    t = a * w
    y = t * 2
    with torch.no_grad():
        t.mul_(3)
    return t, y, t + b


def squeezed(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).unsqueeze(0) * 2
    t.squeeze_(0)
    return t, t.sin() * b


def same_tensor(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    return t, t, t * b


def integers(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    k = t.argmax(1)
    return t, k, t.gather(1, k[:, None])


def parts(a: Any, b: Any, w: Any) -> Any:
    p, q = (a * w).unbind(0)
    return p, q, p.exp()


def parts_of_parts(a: Any, b: Any, w: Any) -> Any:
    p, q = (a * w).split(1)
    r, s = q.chunk(2, 1)
    return p, q, r, r * 2, (p * q).sum()


def without_gradients(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    with torch.no_grad():
        s = t * 2
    return t, s, t * s * b


def detached(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    return t, t.detach() * b


def infinite(a: Any, b: Any, w: Any) -> Any:
    t = (a * 0).sqrt()
    return t, t * b, (t * b).sum() + w.sum()


def not_finite_between(a: Any, b: Any, w: Any) -> Any:
    t = a * 0
    return t, t.sqrt() * 0 + b


def of_an_input(a: Any, b: Any, w: Any) -> Any:
    v = a[0]
    return v, v * w[0] * a.sum()


def given_back(a: Any, b: Any, w: Any) -> Any:
    t = a.sin()
    return a, t, t * w


def dropped_out(a: Any, b: Any, w: Any) -> Any:
    t = F.dropout(a * w, 0.5)
    return t, F.dropout(t * b, 0.5)


def pulled(a: Any, b: Any, w: Any) -> Any:
    """Takes a gradient within, which is a constant to all that follows."""
    t = (a * w).sin()
    (pull,) = torch.autograd.grad((t * b).square().sum(), t, retain_graph=True)
    return t, t * pull * b


def pulled_to_an_input(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    u = t.exp() * b
    (pull,) = torch.autograd.grad(u.sum(), w, retain_graph=True)
    return t, u, u * pull + t


def pulled_elsewhere(a: Any, b: Any, w: Any) -> Any:
    """Takes a gradient that has nothing to do with what the results are computed of."""
    (pull,) = torch.autograd.grad(b.cos().sum(), b)
    t = a * w
    return t, t.sin() * pull


def penalised(a: Any, b: Any, w: Any) -> Any:
    """Takes a gradient that has gradients."""
    t = (a * w).sin()
    loss = 0.1 * (t * b.tanh()).square().sum()
    (slope,) = torch.autograd.grad(loss, t, create_graph=True)
    return t, loss + slope.square().sum()


def penalised_by_an_input(a: Any, b: Any, w: Any) -> Any:
    t = (a * w).sin()
    u = t.tanh() * b
    (slope,) = torch.autograd.grad(u.sum(), w, create_graph=True)
    return t, u, (u * slope).sum()


FUNCTIONS = [chain, three_in_a_row, past_one, diamond, diamond_inside, loss_last, loss_first, linear, with_another,
             two_in_a_row_and_another, shared_but_apart, hidden_states, of_a_view, of_a_view_and_all, of_a_view_alone,
             of_views_of_what_is_hidden, through_views_of_what_is_hidden, a_view_of_a_view, changed_before, changed_after,
             changed_in_between, changed_through_a_view, changed_under_a_view, changed_without_gradients, squeezed,
             same_tensor, integers, parts, parts_of_parts, without_gradients, detached, infinite, not_finite_between,
             of_an_input, given_back, dropped_out, pulled, pulled_to_an_input, pulled_elsewhere, penalised]  # fmt: skip


def _with_history(results: Any) -> list[Any]:
    return [r for r in results if r.requires_grad and not r.is_leaf]


def by_first(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    return torch.autograd.grad(last.sum(), first)


def by_last(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    return torch.autograd.grad(first.sum(), last)


def by_all(results: Any, leaves: Any) -> Any:
    *others, last = _with_history(results)
    return torch.autograd.grad(last.sum(), [*others, *leaves], allow_unused=True)


def each_by_each(results: Any, leaves: Any) -> Any:
    found = []
    for one in _with_history(results):
        for other in _with_history(results):
            found += torch.autograd.grad(one.sum(), other, allow_unused=True, retain_graph=True)
        found += torch.autograd.grad(one.sum(), leaves, allow_unused=True, retain_graph=True)
    return found


def some_by_some(results: Any, leaves: Any) -> Any:
    *others, last = _with_history(results)
    roots = [r.sin() for r in others] + [last]
    weights = [torch.full_like(r, k + 1) for k, r in enumerate(roots)]
    return torch.autograd.grad(roots, [*others, leaves[0]], weights, allow_unused=True)


def by_leaves(results: Any, leaves: Any) -> Any:
    return torch.autograd.grad(_with_history(results)[-1].sum(), leaves, allow_unused=True)


def last(results: Any, leaves: Any) -> Any:
    _with_history(results)[-1].sum().backward()


def all_at_once(results: Any, leaves: Any) -> Any:
    torch.autograd.backward([r.sin().sum() for r in _with_history(results)])


def retained(results: Any, leaves: Any) -> Any:
    for result in _with_history(results):
        result.retain_grad()
    _with_history(results)[-1].sum().backward()
    return [r.grad for r in _with_history(results)]


def all_retained(results: Any, leaves: Any) -> Any:
    for result in _with_history(results):
        result.retain_grad()
    all_at_once(results, leaves)
    return [r.grad for r in _with_history(results)]


def first_retained_each(results: Any, leaves: Any) -> Any:
    first = _with_history(results)[0]
    first.retain_grad()
    for result in _with_history(results):
        result.sum().backward(retain_graph=True)
    return first.grad


def for_first_as_input(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    last.sum().backward(inputs=[first, leaves[0]])
    return first.grad


def hooked(results: Any, leaves: Any) -> Any:
    seen: dict[int, Any] = {}
    for k, result in enumerate(_with_history(results)):

        def hook(gradient: Any, k: int = k) -> Any:
            if gradient is not None:  # some nodes of eager's have several results
                seen[k] = gradient
                return gradient * (k + 2)

        result.register_hook(hook)
    _with_history(results)[-1].sum().backward()
    return sorted(seen), [seen[k] for k in sorted(seen)]


def hooked_and_gone(results: list[Any], leaves: Any) -> Any:
    seen = []
    first, *_, last = _with_history(results)
    first.register_hook(lambda gradient: seen.append(gradient) or gradient * 3)
    del first
    results.clear()
    last.sum().backward()
    return seen


def unhooked(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    first.register_hook(lambda gradient: gradient * 3).remove()
    last.sum().backward()


def hooked_and_captured(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    first.register_hook(lambda gradient: None if gradient is None else gradient * 3)
    return torch.autograd.grad(last.sum(), [first, *leaves], allow_unused=True)


def twice(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    found = torch.autograd.grad(last.sin().sum(), [first, *leaves], create_graph=True, allow_unused=True)
    torch.autograd.backward([g.square().sum() for g in found if g is not None and g.requires_grad])
    return found


def twice_by_first(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    (found,) = torch.autograd.grad(last.sin().sum(), first, create_graph=True, allow_unused=True)
    if found is None or not found.requires_grad:
        return None
    return torch.autograd.grad(found.exp().sum(), [first, *leaves], allow_unused=True)


def twice_and_gone(results: list[Any], leaves: Any) -> Any:
    seen = []
    first, *_, last = _with_history(results)
    handle = first.register_hook(lambda gradient: seen.append(gradient))
    del first
    results.clear()
    last.sin().sum().backward(create_graph=True)
    handle.remove()
    found = [leaf.grad for leaf in leaves]
    for one in leaves:
        one.grad = None
    torch.autograd.backward([g.square().sum() for g in [*found, *seen] if g is not None and g.requires_grad])
    return seen


def batched(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    weights = torch.eye(last.numel()).view(-1, *last.shape)
    return torch.autograd.grad(last, [first, leaves[0]], weights, is_grads_batched=True, allow_unused=True)


def same_twice(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    found = [torch.autograd.grad(last.sum(), first, allow_unused=True)]
    return found, torch.autograd.grad(last.sum(), first, allow_unused=True)


def then_first(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    found = torch.autograd.grad(last.sum(), first)
    first.backward(found)


def then_last(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    torch.autograd.grad(last.sum(), first)
    last.sum().backward()


def last_then_first(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    last.sum().backward()
    first.sum().backward()


def changed_outside(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    value = first.sum() * 2
    first.detach().add_(1)
    first.retain_grad()
    (value + last.sum()).backward()
    return first.grad


def replaced_outside(results: Any, leaves: Any) -> Any:
    first, *_, last = _with_history(results)
    first.register_hook(lambda gradient: None if gradient is None else gradient * 2)
    first.mul_(2)
    first.register_hook(lambda gradient: None if gradient is None else gradient * 3)
    first.retain_grad()
    torch.autograd.backward([first.sum(), last.sum()])
    return first.grad


USES = [by_first, by_last, by_all, each_by_each, some_by_some, by_leaves, last, all_at_once, retained, all_retained,
        first_retained_each, for_first_as_input, hooked, hooked_and_gone, unhooked, hooked_and_captured, twice,
        twice_by_first, twice_and_gone, batched, same_twice, then_first, then_last, last_then_first, changed_outside,
        replaced_outside]  # fmt: skip
