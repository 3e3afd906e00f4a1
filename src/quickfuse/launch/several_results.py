"""Several results of one node of autograd's graph, some of which backward does not begin from.

A compiled graph is one node, where eager has many. So autograd frees what the node saved after the first backward from any
of its results, and passes on None for the inputs that those in question do not depend on. In eager, results that have
nothing in common are differentiated one after the other, and nothing that they do not depend on notices.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

#: PyTorch's message.
SECOND_TIME = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors after "
    "calling backward."
)


class Sharing:
    """What the calls of a graph have in common whose differentiable results can be differentiated one after the other.
    `clashing` and `needed_by` are as in `Differentiated`."""

    def __init__(self, clashing: Sequence[frozenset[int]], needed_by: Sequence[frozenset[int]]) -> None:
        self.clashing = clashing
        self.needed_by = needed_by
        self.everything = frozenset(range(len(clashing)))
        self._left: dict[frozenset[int], frozenset[int]] = {}

    def left(self, done: frozenset[int]) -> frozenset[int]:
        """The results from which backward may still begin, where it has begun from these."""
        if done not in self._left:
            self._left[done] = frozenset([k for k, others in enumerate(self.clashing) if not others & done])
        return self._left[done]


class SavedForResults:
    """What such a call saves for backward. A tensor is freed when all results that need it clash with one from which
    backward has begun."""

    def __init__(self, tensors: Sequence[torch.Tensor], sharing: Sharing) -> None:
        self.tensors: Sequence[torch.Tensor | None] = tensors
        self.sharing = sharing
        self.versions = [*map(_version, tensors)]
        self.done: frozenset[int] = frozenset()

    def take(self, absent: frozenset[int]) -> Sequence[Any]:
        """The tensors, for backward from the results that are not in `absent`.

        Raises:
            RuntimeError: if there was one from a result that clashes with these, and did not retain the graph.
        """
        if self.done and not self.sharing.everything - absent <= self.sharing.left(self.done):
            raise RuntimeError(SECOND_TIME)
        return self.tensors

    def let_go(self, absent: frozenset[int]) -> frozenset[int]:
        """Free what nothing needs any more, as backward has begun from the results that are not in `absent`; returns those
        from which it may still begin."""
        sharing = self.sharing
        self.done = self.done | (sharing.everything - absent)
        left = sharing.left(self.done)
        if left:
            needed = zip(self.tensors, sharing.needed_by, strict=True)
            self.tensors = [None if left.isdisjoint(by) else t for t, by in needed]
        else:
            self.tensors = [None] * len(self.tensors)
        return left

    def check(self, taken: Sequence[Any], used: Sequence[int]) -> None:
        """See to it that none of the tensors that backward reads was changed.

        Raises:
            RuntimeError: where one was.
        """
        for k in used:
            tensor, version = taken[k], self.versions[k]
            if tensor._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{tensor.type()} {[*tensor.shape]}] is at version {tensor._version}; expected version {version} "
                    f"instead. {_hint()}"
                )


_version = operator.attrgetter("_version")


@cache
def _hint() -> str:
    """The end of PyTorch's message, which differs between its versions."""
    changed = torch.ones((), requires_grad=True)
    with torch.enable_grad():
        result = changed.sin()
    with torch.no_grad():
        changed.zero_()
    try:
        torch.autograd.grad(result, changed)
    except RuntimeError as error:
        return str(error).partition(" instead. ")[2]
    return ""


#: The attribute of a node that has the hooks of its results, by their numbers, where these outlast the results.
HOOKS = "hooks_of_results"


class _UnlessNothing:
    """A hook of the user's that is not called where there is no gradient, or nobody asks for what is after it."""

    def __init__(self, hook: Callable[[Any], Any], is_asked: Callable[[], bool] | None = None) -> None:
        self.hook = hook
        self.is_asked = is_asked
        self.__name__ = getattr(hook, "__name__", "<unknown>")  # PyTorch's messages have it

    def __call__(self, gradient: Any) -> Any:
        if gradient is None or (self.is_asked is not None and not self.is_asked()):
            return None
        return self.hook(gradient)


class Hooks(OrderedDict[int, Callable[[Any], Any]]):
    """The hooks of a result, which are not called where there is no gradient, or where the backward that runs asks for
    nothing that the result reaches: autograd comes to the node of several results, where eager has a node for each."""

    def __init__(self, is_asked: Callable[[], bool] | None = None) -> None:
        super().__init__()
        self.is_asked = is_asked

    def __setitem__(self, key: int, hook: Callable[[Any], Any]) -> None:
        super().__setitem__(key, hook if type(hook) is _UnlessNothing else _UnlessNothing(hook, self.is_asked))


def watch_hooks(function: type[torch.autograd.Function], is_asked: Callable[[Any, int], bool] | None = None) -> None:
    """Let the results of a function have such hooks, from the first one on that they get. `is_asked(node, k)` says whether a
    backward asks for what the `k`-th result of a node reaches.

    Autograd calls the hooks of a node's results in the order in which these got their first one, so all get room for hooks
    then, in the order in which eager would come to them."""

    def register(node: Any, tensor: torch.Tensor) -> None:
        results = [result for reference in getattr(node, "results", ()) if (result := reference()) is not None]
        if not any(result is tensor for result in results):
            results.append(tensor)
        for each in results:
            if each is not tensor and (each._backward_hooks is not None or each.grad_fn is not node):
                continue
            if type(each._backward_hooks) is not Hooks:
                each._backward_hooks = Hooks(is_asked and partial(is_asked, node, each.output_nr))  # type: ignore[assignment]
            torch._C._FunctionBase._register_hook_dict(node, each)
            if (known := node.__dict__.get(HOOKS)) is not None:
                known[each.output_nr] = each._backward_hooks

    function._backward_cls._register_hook_dict = register  # type: ignore[attr-defined]


class _UnlessUnchanged:
    """A hook of the user's for when a gradient has been added up, which is not called where none has been."""

    def __init__(self, hook: Callable[[Any], Any], gradient: torch.Tensor | None) -> None:
        self.hook = hook
        self.gradient = gradient
        self.version = None if gradient is None else gradient._version

    def __call__(self, tensor: torch.Tensor) -> None:
        gradient = tensor.grad
        if gradient is not self.gradient or (gradient is not None and gradient._version != self.version):
            self.hook(tensor)


def keep_hooks_from_nothing(tensor: torch.Tensor | None) -> None:
    """Let the hooks of a tensor not be called without a gradient in the backward that runs now."""
    if tensor is None:
        return
    if tensor._backward_hooks:
        _wrap_for_now(tensor._backward_hooks, _UnlessNothing)
    if later := getattr(tensor, "_post_accumulate_grad_hooks", None):
        _wrap_for_now(later, lambda hook: _UnlessUnchanged(hook, tensor.grad))


def _wrap_for_now(hooks: Any, wrap: Callable[[Any], Any]) -> None:
    """Have `wrap(hook)` in place of each hook until the backward that runs now has ended."""
    for key, hook in [*hooks.items()]:
        if type(hook) not in _WRAPPERS:
            hooks[key] = wrap(hook)

    def restore() -> None:
        for key, hook in [*hooks.items()]:
            if type(hook) in _WRAPPERS:
                hooks[key] = hook.hook

    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(restore)


_WRAPPERS = (_UnlessNothing, _UnlessUnchanged)
