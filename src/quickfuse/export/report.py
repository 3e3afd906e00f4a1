"""For the command line: what to export, example arguments from text, and what is in an exported program."""

from __future__ import annotations

import ast
import collections
import importlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import ExportError
from .exported import Exported
from .operators import name_of

_TENSOR = re.compile(r"([a-z]\w*)\[([\d,\s]*)\]")


def callable_named(path: str) -> Any:
    """What `package.module:name` or `module:owner.name` leads to. `module:name()` is what a call of it gives, and so is the
    name of a class of modules.

    Raises:
        ValueError: where it leads to nothing that can be called.
    """
    module_name, _, names = path.partition(":")
    if not names:
        raise ValueError(f"{path!r} is not MODULE:CALLABLE, such as torchvision.models:resnet18")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
        for name in names.removesuffix("()").split("."):
            found = getattr(found, name)
        if names.endswith("()") or (isinstance(found, type) and issubclass(found, torch.nn.Module)):
            found = found()
    except Exception as error:  # whatever the user's module raises
        raise ValueError(f"{path!r} leads nowhere: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise ValueError(f"{path!r} is a {type(found).__name__}, which cannot be called")
    return found


def example(text: str) -> Any:
    """An argument from text: `float32[4, 3, 128, 128]` is a tensor (random, or zeros of whole numbers), anything else a
    Python literal. `name=...` is left to the caller.

    Raises:
        ValueError: for other text.
    """
    matched = _TENSOR.fullmatch(text.strip())
    if matched is None:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise ValueError(f"{text!r} is neither a tensor, such as float32[4,3,128,128], nor a Python literal") from None
    dtype = getattr(torch, matched[1], None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{matched[1]!r} is no dtype of PyTorch")
    shape = [int(size) for size in matched[2].split(",") if size.strip()]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.zeros(shape, dtype=dtype)


def examples(texts: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position and by name, from texts such as `float32[4]` and `scale=2.0`."""
    args, kwargs = [], {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name.strip().isidentifier():
            kwargs[name.strip()] = example(value)
        else:
            args.append(example(text))
    return tuple(args), kwargs


def lines(exported: Exported, all_assumptions: bool = False) -> Iterator[str]:
    """What is in an exported program, for readers."""
    program = exported.program
    made = ", ".join(f"{name} {version}" for name, version in program.made_with.items())
    yield f"{program.name}{program.arguments.described()}, made with {made}"
    yield ""
    signature = program.signature
    kinds = {"arguments": "input", "parameters": "parameter", "buffers": "buffer", "constants": "constant"}
    for title, kind in kinds.items():
        specs = [spec for spec in signature.inputs if spec.kind == kind]
        if specs:
            yield f"{title}: {len(specs)}"
            yield from (f"  {spec.target}: {spec.meta}" for spec in specs)
    for title, found in (
        ("returns", signature.user_outputs), ("changes parameters", signature.changed_parameters),
        ("changes buffers", signature.changed_buffers), ("changes arguments", signature.changed_inputs),
        ("sets gradients of", signature.gradients),
    ):  # fmt: skip
        if found:
            yield f"{title}: {', '.join(found)}"
    yield ""
    counts = collections.Counter(_short(node.target) for node in program.graph.nodes if node.op == "call_function")
    del counts["list::item"]
    yield f"operators: {sum(counts.values())}"
    yield from (f"  {count:>5} {name}" for name, count in counts.most_common())
    yield ""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in program.state.values()}
    numbers = sum(t.numel() for t in program.state.values() if isinstance(t, torch.nn.Parameter))
    yield f"size: {numbers:,} numbers in parameters, {sum(storages.values()) / 2**20:.1f} MiB of tensors"
    checked = [a for a in program.assumptions if a.checked]
    others = [a for a in program.assumptions if not a.checked]
    yield f"checked in each call: {len(checked)}"
    yield from (f"  {assumption}" for assumption in checked)
    yield f"specialised on: {len(others)}"
    shown = others if all_assumptions else others[:20]
    yield from (f"  {assumption}" for assumption in shown)
    if len(shown) < len(others):
        yield f"  ... and {len(others) - len(shown)} more (--all shows them)"


def _short(target: Any) -> str:
    try:
        return name_of(target)
    except ExportError:
        return str(target)
