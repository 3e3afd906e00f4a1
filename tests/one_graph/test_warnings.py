"""Warnings that a program gives are shown after its graph, as often as the filters say, about the same line."""

import logging
import warnings

import pytest
import torch

import quickfuse


def several(x):
    warnings.warn("first")
    for _ in range(2):
        warnings.warn(
            f"second of {x.shape}",
            DeprecationWarning,
        )
    return about_its_caller(x * 2) + 1


def about_its_caller(x):
    warnings.warn("outer", RuntimeWarning, stacklevel=2)
    logging.getLogger(__name__).debug("nothing")
    return x


def seen(function, action, calls=3):
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)
        results = []
        for _ in range(calls):
            try:
                results.append(function(torch.ones(2)).tolist())
            except Warning as error:
                results.append(repr(error))
        return results, [(str(w.message), w.category, w.filename, w.lineno) for w in shown]


@pytest.mark.parametrize("action", ["always", "default", "once", "module", "ignore", "error"])
def test_one_graph(action):
    compiled = quickfuse.compile(several)
    logging.getLogger(__name__)
    assert seen(compiled, action) == seen(several, action)
    assert bool(compiled.breaks) == (action == "error")


def test_other_filters_later():
    compiled = quickfuse.compile(several)
    for action in ("ignore", "always", "error", "default"):
        assert seen(compiled, action, 2) == seen(several, action, 2)


def test_a_way_to_show_of_the_program(monkeypatch):
    compiled, told = quickfuse.compile(several), []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: told.append(str(message)))
    for called in (several, compiled):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            called(torch.ones(2))
    assert len(told) == 8 and told[:4] == told[4:]


def test_around_a_print(capsys):
    def function(x):
        print("before")
        warnings.warn("between")
        print("after")
        return x + 1

    texts = []
    for called in (function, quickfuse.compile(function)):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            called(torch.ones(2))
        texts.append((capsys.readouterr().out, [str(w.message) for w in shown]))
    assert texts[0] == texts[1]


def backward_method(loss, weight):
    loss.backward()


def backward_function(loss, weight):
    torch.autograd.backward(loss)


def called_by_another(loss, weight):
    return backward_function(loss, weight)


def autograd_grad(loss, weight):
    (weight.grad,) = torch.autograd.grad(loss, weight)


@pytest.mark.parametrize("take", [backward_method, backward_function, called_by_another, autograd_grad])
@pytest.mark.parametrize("action", ["always", "default", "error"])
def test_a_hook_of_a_module_whose_input_needs_no_gradients(take, action):
    """PyTorch's own warning is about a caller of `backward`, with frames of PyTorch's between them."""

    def step(layer, x):
        take(layer(x).sum(), layer.weight)
        return layer.weight.grad.sum()

    shown, saved, breaks = [], [], []
    compiled = quickfuse.compile(step)
    for called in (step, compiled):
        torch.manual_seed(0)
        layer = torch.nn.Linear(2, 2)
        layer.register_full_backward_hook(lambda module, inputs, outputs: saved.append(outputs[0].sum()))
        shown.append(seen(lambda x, called=called, layer=layer: called(layer, x), action))
        breaks.append(len(saved))
    assert shown[0] == shown[1]
    assert breaks[1] == 2 * breaks[0]
    assert bool(compiled.breaks) == (action == "error")


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5, 6])
def test_a_hook_of_the_program_that_warns(level):
    def step(x):
        w = x.clone().requires_grad_()
        y = w * 2
        y.register_hook(lambda gradient: warnings.warn("in a hook", stacklevel=level))
        backward_method(y.sum(), w)
        return w.grad

    assert seen(quickfuse.compile(step), "always") == seen(step, "always")


def twice_with_a_block_between(x):
    warnings.warn("first")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("nobody sees it")
    warnings.warn("second")
    return x + 1


def block_first(x):
    with warnings.catch_warnings():
        x = x * 2
    warnings.warn("shown in each call")
    return x


def block_around_a_break(x):
    warnings.warn("before")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quickfuse.graph_break()
        x = x * 2
    return x


def the_same_line(x):
    for _ in range(3):
        warnings.warn("the line")
        with warnings.catch_warnings():
            pass
    return x + 1


@pytest.mark.parametrize("function", [twice_with_a_block_between, block_first, block_around_a_break, the_same_line])
@pytest.mark.parametrize("action", ["default", "module", "once", "always"])
def test_what_a_block_of_filters_lets_be_shown_again(function, action):
    """Entering and leaving one, Python forgets what was shown of each line."""
    compiled = quickfuse.compile(function)
    assert seen(compiled, action) == seen(function, action)
    assert bool(compiled.breaks) == (function is block_around_a_break)
