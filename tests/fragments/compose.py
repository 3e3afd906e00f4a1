"""Programs of a few fragments, drawn from a seed: plain or in a nested function, `try`, `with` or loop, with breaks between.

Each program runs five times in eager mode and compiled, with other numbers and with a tensor that requires gradients in
between; what it returns, raises, prints and adds to its log is compared, and so are the gradients.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Any

import torch

import quickfuse
import turns
from seeding import seed_torch

Fragment = tuple[str, str]

_HEAD = "import asyncio, contextlib, contextvars, dataclasses, enum, functools, inspect, signal, sys, time\n"\
    "import typing, weakref, torch\n"
_BREAKS = ("print('at', k)", "if x.sum() > 0.3: x = x + 0.25", "x = x.cos()", "time.time()")
_AROUND = (
    "{}", "{}", "try:\n    {}\nfinally:\n    log.append('finally')", "with contextlib.nullcontext():\n    {}",
    "def nested@():\n    nonlocal x\n    {}\nnested@()", "for turn@ in range(2):\n    {}",
)  # fmt: skip


def program(draw: random.Random, fragments: Sequence[Fragment]) -> str:
    """The source of a program, which defines `f(x, k, log)`."""
    definitions, body = [], []
    for number in range(draw.choice((1, 2, 3))):
        defined, statements = draw.choice(fragments)
        around = draw.choice(_AROUND)
        if "nonlocal" in around and "global" in statements:
            around = "{}"
        if draw.random() < 0.5:
            body.append(draw.choice(_BREAKS))
        space = " " * (len(around.partition("{}")[0].rpartition("\n")[2]))
        whole = around.replace("{}", indent(statements.strip("\n"), space).lstrip(" "))
        definitions.append(_numbered(defined, number))
        body.append(_numbered(whole, number))
    return _HEAD + "\n".join(definitions) + "\ndef f(x, k, log):\n" + indent("\n".join(body), "    ") + "\n    return x\n"


def _numbered(text: str, number: int) -> str:
    """With the number in place of each `@` that ends a name: others begin decorators."""
    return re.sub(r"(?<=\w)@", str(number), text)


def difference(source: str) -> str | None:
    """The first call of which something else is seen when the program is compiled, and what; None if there is none."""
    quickfuse.reset()
    eager, ours = _calls(source, lambda function: function), _calls(source, quickfuse.compile)
    for call, (wanted, got) in enumerate(zip(eager, ours, strict=True)):
        if not _same(wanted, got):
            return f"call {call}: {got} instead of {wanted}, of\n{source}"
    return None


def _calls(source: str, compile_: Callable[[Any], Any]) -> list[Any]:
    module = types.ModuleType("fragments_program")
    sys.modules[module.__name__] = module  # dataclasses look for it
    try:
        exec(compile(source, "<fragments>", "exec"), vars(module))
        function = compile_(vars(module)["f"])
        return [_call(function, k, call) for call, k in enumerate((0, 1, 2, 1, 0) * turns.CALLS_EACH)]
    finally:
        del sys.modules[module.__name__]


def _call(function: Callable[..., Any], k: int, call: int) -> Any:
    seed_torch(call)
    x = torch.randn(3, 4, dtype=torch.float64).requires_grad_(call % 2 == 1)
    log: list[Any] = []
    with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(x, k, log)
            if result.requires_grad:
                result.sum().backward()
        except Exception as error:
            result = type(error).__name__, str(error)
    random_state = torch.rand(1, dtype=torch.float64)
    return result, x.grad, log, printed.getvalue(), torch.is_grad_enabled(), random_state


def _same(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor):
        if (wanted.shape, wanted.dtype, wanted.requires_grad) != (got.shape, got.dtype, got.requires_grad):
            return False
        if wanted.layout != torch.strided or wanted.is_quantized:
            return wanted.layout == got.layout and _same(_plain(wanted), _plain(got))
        return torch.allclose(_plain(wanted), _plain(got), rtol=1e-4, atol=1e-9, equal_nan=True)
    if isinstance(wanted, (list, tuple)):
        return type(wanted) is type(got) and len(wanted) == len(got) and all(map(_same, wanted, got))
    if isinstance(wanted, float):
        return wanted == got or abs(wanted - got) < 1e-6 * abs(wanted) or (wanted != wanted and got != got)
    if isinstance(wanted, (int, str, bool, type(None))):
        return type(wanted) is type(got) and bool(wanted == got)
    return re.sub("0x[0-9a-f]+", "", repr(wanted)) == re.sub("0x[0-9a-f]+", "", repr(got))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a tensor that `allclose` takes."""
    tensor = tensor.detach()
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return torch.view_as_real(tensor.resolve_conj()).clone() if tensor.is_complex() else tensor.double()
