"""Compiled callables as attributes of classes: what an instance finds there is what it finds of the plain ones."""

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import quickfuse


class _Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return x - self.factor

    def step(self, x: Any) -> Any:
        return (x * self.factor).sin() + 1

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * 3 + len(cls.__name__)


def _times(x: Any, y: Any) -> Any:
    return x * y.factor if isinstance(y, _Holder) else x * 2


class _Holder:
    factor = 7.0


@functools.cache
def _cached(holder: Any, number: float = 2.0) -> Any:
    return holder.factor * number


_CALLABLES: dict[str, Any] = {
    "a bound method": _Scaled(2.0).step,
    "a class method": _Scaled.of_class,
    "a partial": functools.partial(torch.add, 1),
    "an object": _Scaled(3.0),
    "a function": lambda self, x: x * self.factor + 1,
    "a native function": torch.sin,
    "a module": torch.nn.Linear(2, 2),
    "compiled twice": quickfuse.compile(_Scaled(4.0).step),
}


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("name", _CALLABLES)
def test_an_instance_finds_what_it_would_find_of_the_plain_one(name: str, within: bool) -> None:
    called, x = _CALLABLES[name], torch.tensor([0.5, 1.5])
    plain = type("Plain", (_Holder,), {"run": called})
    held = type("Held", (_Holder,), {"run": quickfuse.compile(called)})
    use = lambda holder, x: holder.run(x) * 2  # noqa: E731
    use = quickfuse.compile(use) if within else use
    for _ in range(2):
        torch.testing.assert_close(use(held(), x), plain().run(x) * 2)
    if name != "a function":
        torch.testing.assert_close(held.run(x), plain.run(x))
    held.run = quickfuse.compile(_Scaled(9.0).step)  # type: ignore[attr-defined]
    torch.testing.assert_close(use(held(), x), _Scaled(9.0).step(x) * 2)


def test_the_function_of_a_compiled_method_is_compiled_for_other_objects() -> None:
    step = quickfuse.compile(_Scaled(2.0).step)
    other, x = SimpleNamespace(factor=5.0), torch.tensor([0.5, 1.5])
    bound = step.__func__.__get__(other, SimpleNamespace)
    for found in (bound(x), step.__func__(other, x), step.__func__.__get__(None, SimpleNamespace)(other, x)):
        torch.testing.assert_close(found, _Scaled(5.0).step(x))
    assert bound.__self__ is other
    assert bound.__func__.graph_count == 1
    assert step.__func__.__get__(other).__func__ is bound.__func__
