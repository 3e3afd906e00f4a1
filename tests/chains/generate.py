"""Random chains of operators: a seed is a program, written out as Python source, in the form of `lives`.

A program is drawn together with its first run in eager mode, so that each statement works on what is there: what raises is
left out, but for one in a while, which ends the chain.
"""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from chains import operators, prelude, scripts, templates, written
from lives.generate import Program
from training.draft import Draft, indented

HEADER = '''"""Chain {seed}: {features}"""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from chains.prelude import *

torch.set_default_dtype(torch.{default})

'''
SHAPES = ((3, 4), (3, 4), (4,), (2, 3, 4), (4, 4), (2, 3, 4, 4), (), (1,), (1, 4), (4, 1), (0, 3), (3, 0), (2, 1, 3), (5, 5),
          (2, 4, 1, 1), (1, 3, 4, 4), (17,), (6, 33), (1, 1), (2, 3, 2, 2, 2))  # fmt: skip
TYPES = {torch.float32: 8, torch.float64: 3, torch.bfloat16: 2, torch.float16: 1, torch.complex64: 1.2, torch.int64: 2,
         torch.int32: 0.7, torch.uint8: 0.7, torch.bool: 1, torch.int16: 0.2, torch.int8: 0.2,
         torch.complex128: 0.3}  # fmt: skip
LAYOUTS = dict(zip(prelude.LAYOUTS, (10, 2, 2, 1.5, 1, 2, 0.7, 0.5, 1), strict=True))
#: In what the calls, or the second half of a chain, are made.
MODES = {
    "": 8, "torch.no_grad()": 1.5, "torch.inference_mode()": 0.8, "torch.autocast('cpu', torch.bfloat16)": 1,
    "deterministic()": 0.6, "torch.enable_grad()": 0.4,
}  # fmt: skip
#: Kinds of statements; in every other program, those of `written` too.
KINDS = {"operator": 6, "view": 2, "computed": 2.5, "change": 2}
WRITTEN = {"operator": 2, "view": 1, "computed": 1, "change": 1, "transform": 1.2, "listed": 1, "complex": 1, "whole": 1,
           "written change": 2.5, "block": 2, "script": 1.5}  # fmt: skip
TEMPLATES = {
    "view": templates.VIEWS, "computed": templates.COMPUTED, "change": templates.CHANGES, "transform": written.TRANSFORMS,
    "listed": written.LISTED, "complex": written.COMPLEX, "whole": written.WHOLE, "written change": written.CHANGES,
    "block": written.BLOCKS, "script": scripts.BLOCKS,
}  # fmt: skip
#: More elements of a result than these are not looked at further.
LARGE = 5000


def program(seed: int) -> Program:
    before = torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _Chain(seed).program()
    finally:
        torch.set_default_dtype(before)


class _Chain:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.d = Draft(random.Random(seed))
        self.default = self.d.weighted({"float32": 10, "float64": 1})
        self.grads = self.d.chance(0.5)
        #: Whether it has statements of `written`, too: half of the programs do.
        self.written = seed % 2 == 0
        self.inputs: dict[str, str] = {}  # how each is made
        self.body: list[str] = []
        self.namespace: dict[str, Any] = {**vars(prelude), "torch": torch, "F": torch.nn.functional,
                                          "checkpoint": checkpoint}  # fmt: skip
        #: Tensors by how they are written, and the names of results that are returned.
        self.values: dict[str, torch.Tensor] = {}
        self.results: list[str] = []

    def program(self) -> Program:
        d = self.d
        torch.set_default_dtype(getattr(torch, self.default))
        for _ in range(d.weighted({1: 3, 2: 4, 3: 1})):
            self._draw_input(d.pick(*SHAPES))
        inside, mode = self._modes()
        length = d.rng.randint(3, 12)
        with context_of(mode):
            self._statements(length if not inside else length // 2)
            if inside:
                d.uses(inside)
                start = len(self.body)
                with context_of(inside):
                    self._statements(length - length // 2)
                self.body[start:] = [f"with {inside}:", *indented(self.body[start:] or ["pass"])]
        if self.grads and d.chance(0.25):
            d.uses("backward inside")
            self.body.append(f"backward([{', '.join(self.results)}])")
        return self._written(mode)

    def _modes(self) -> tuple[str, str]:
        """The mode within the chain, and the one around its calls."""
        mode = self.d.weighted(MODES)
        return (mode, "") if self.d.chance(0.4) else ("", mode)

    def _written(self, mode: str) -> Program:
        d = self.d
        shown = [r for r in self.results if d.chance(0.6)] or self.results[-1:]
        names = ", ".join(self.inputs)
        lines = [f"def chain({names}):", *indented([*self.body, f"return [{', '.join(shown)}]"]), "", ""]
        lines += ["def life(compile, seen, reset):"]
        dynamic = d.chance(0.1)
        mode_of_compile = d.weighted({"": 8, ", mode='reduce-overhead'": 1})
        made = f"chain{', dynamic=True' * dynamic}{mode_of_compile}"
        setup = [
            f"step = {'compile(chain)' if made == 'chain' else f'compile({made})'}",
            "held, texts = {}, []",
            "seen.watch(lambda: held)",
        ]
        grown = d.chance(0.35) and self._grown()
        for call in range(3):
            makers = self.inputs
            if grown and call == 2:
                d.uses("other sizes")
                makers = grown
            inner = [f"{name} = {text.format(call=call)}" for name, text in makers.items()]
            around = ", ".join(["warned(texts)", *([mode] * bool(mode))])
            inner += [
                f"held.update(inputs=[{names}], results=None, same=None, texts=texts)",
                f"with {around}:",
                f"    found = step({names})",
            ]
            inner += [f"held.update(results=found, same=same(found, [{names}]))"]
            if self.grads and "backward inside" not in d.features and d.chance(0.8):
                inner.append("backward(found)")
            setup += [f"with seen('call {call}', call=True):", *indented(inner)]
        lines += indented(setup)
        d.uses(mode or "no mode")
        if self.written:
            d.uses("written")
        header = HEADER.format(seed=self.seed, features=", ".join(sorted(d.features)), default=self.default)
        return Program(self.seed, header + "\n" + "\n".join(lines) + "\n", frozenset(d.features))

    # inputs -----------------------------------------------------------------------------------------------------

    def _draw_input(self, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> str:
        d, name = self.d, "abcdefghijklmnopqrst"[len(self.inputs) % 20]
        dtype = dtype or d.weighted(TYPES)
        if self.inputs and d.chance(0.12):
            base = d.rng.choice([*self.inputs])
            text = d.pick(base, f"{base}.view(-1)", f"{base}[..., :1]", f"{base}[1:]", f"{base}.mT", f"{base}.detach()")
            d.uses("inputs share memory")
        else:
            layout = d.weighted(LAYOUTS)
            d.uses(layout)
            grad = self.grads and (dtype.is_floating_point or dtype.is_complex) and d.chance(0.7)
            text = f"drawn({shape}, {dtype}, {len(self.inputs) + 1}{{call}}, {layout!r}{', True' * grad})"
        return name if self._add_input(name, text) else self._draw_input(shape, dtype)

    def _add_input(self, name: str, text: str) -> bool:
        try:
            value = eval(text.format(call=0), self.namespace)
        except Exception:
            return False
        self.inputs[name] = text
        self.namespace[name] = self.values[name] = value
        return True

    def _grown(self) -> dict[str, str] | None:
        """The inputs with another size of the axes that are equally long."""
        sizes = sorted({int(n) for text in self.inputs.values() for n in re.findall(r"\d+", text.partition(", torch")[0])})
        if not sizes:
            return None
        size = self.d.rng.choice(sizes)
        other = size + self.d.pick(1, 1, 2, -1 if size > 1 else 1)

        def changed(text: str) -> str:
            shape, comma, rest = text.partition(", torch")
            return re.sub(rf"\b{size}\b", str(other), shape) + comma + rest if comma else text

        return {name: changed(text) for name, text in self.inputs.items()}

    # statements -------------------------------------------------------------------------------------------------

    def _statements(self, count: int) -> None:
        added = tries = 0
        while added < count and tries < 12 * count:
            tries += 1
            kind = self.d.weighted(WRITTEN if self.written else KINDS)
            text = self._operator() if kind == "operator" else self._template(kind)
            if text is None:
                continue
            ended = self._run(text, kind in ("change", "written change"))
            added += ended is not None
            if ended == "raised":
                return

    def _operator(self) -> str | None:
        call = operators.sample(self.d.rng)
        if call is None:
            return None
        whole = call.operator.partition(".")[0] in operators.TO_WHOLE
        texts = [self._operand(t, first=k == 0, whole=whole) for k, t in enumerate(call.tensors)]
        out = self._value()
        self._feature = call.operator
        try:
            return call.text.format(*texts, out=out)
        except (IndexError, KeyError):
            return None

    def _operand(self, wanted: torch.Tensor, first: bool, whole: bool) -> str:
        """A value that is there, made to fit, or a new input like the sample's tensor."""
        d, shape = self.d, tuple(wanted.shape)
        kinds = _kind(wanted)
        if d.chance(0.85 if first else 0.5) and (kinds != "whole" or first):
            alike = [t for t, v in self.values.items() if _kind(v) == kinds and v.numel() <= LARGE]
            exact = [t for t in alike if self.values[t].shape == shape and self.values[t].dtype == wanted.dtype]
            if exact and d.chance(0.7) and not whole:
                return d.rng.choice(exact)
            names = alike if alike and d.chance(0.9) else [t for t, v in self.values.items() if v.numel() <= LARGE]
            if names:
                name = d.rng.choice(names[-5:])
                value = self.values[name]
                if value.shape == shape and value.dtype == wanted.dtype:
                    return f"tidy({name})" if whole else name
                dtype = "" if kinds == _kind(value) and d.chance(0.25) else f", {wanted.dtype}"
                return f"tidy(fit({name}, {shape}{dtype}))" if whole else f"fit({name}, {shape}{dtype})"
        most = 8 if kinds in ("point", "complex") else 100
        if 0 < wanted.numel() <= most:
            return operators.literal(wanted)
        return self._draw_input(shape, wanted.dtype)

    def _value(self, test: Any = None) -> str | None:
        names = [t for t, v in self.values.items() if v.numel() <= LARGE and (test is None or test(v))]
        if not names:
            return None
        return self.d.rng.choice(names[-4:] if self.d.chance(0.7) else names)

    def _template(self, kind: str) -> str | None:
        template = self.d.rng.choice(TEMPLATES[kind])
        self._feature = kind
        operands = {"n": self.d.rng.choice(templates.NUMBERS), "r": self._value(), "i": self._value(),
                    "v": f"v{len(self.results)}"}  # fmt: skip
        for letter, axes in dict.fromkeys(re.findall(r"\{([xyfcbw])(\d?)\}", template)):
            found = self._value(lambda v, fits=_TESTS[letter], axes=int(axes or 0): fits(v) and v.dim() >= axes)
            if found is None:
                return None
            operands[letter + axes] = found
        return re.sub(r"\{(\w+)\}", lambda m: str(operands[m[1]]), template).replace("{{", "{").replace("}}", "}")

    def _run(self, text: str, is_statement: bool) -> str | None:
        """Run a statement in eager mode and keep it: "kept", or "raised" where it ends the chain."""
        d = self.d
        name = f"v{len(self.results)}"
        is_block = self._feature in ("block", "script")
        assigns = is_block or not (is_statement and re.match(r"for |[^=(]*(?<![=!<>])[-+*]?=(?!=)", text))
        line = f"{name} = {text}" if assigns and not is_block else text
        if self._is_undefined(text):
            return None
        try:
            exec(line, self.namespace)
        except Exception:
            if d.chance(0.012):
                d.uses("raises")
                self.body.extend(line.split("\n"))
                return "raised"
            return None
        d.uses(self._feature)
        self.body.extend(line.split("\n"))
        if assigns:
            value = self.namespace[name]
            self.results.append(name)
            if isinstance(value, torch.Tensor):
                self.values[name] = value
            elif isinstance(value, (list, tuple)):
                self.values.update({f"{name}[{k}]": v for k, v in enumerate(value) if isinstance(v, torch.Tensor)})
        self.values = {t: v for t, v in self.values.items() if v.layout is torch.strided and not v.is_quantized}
        self.values = {t: eval(t, self.namespace) for t in self.values}
        return "kept"

    def _is_undefined(self, text: str) -> bool:
        """Whether eager's own result may be any: what reads elements more often than once writes to where it reads them
        (`torch.matmul(x, x, out=x)`). Gradients of `kron` are, in eager those of what its operands hold later, and the usual
        driver of `lstsq` takes an order of columns from memory that nobody wrote."""
        if self.grads and re.search(r"\bkron\(", text):
            return True
        if _GELSY_READS_ANYTHING and re.search(r"\blstsq\(", text) and not re.search("driver='gel(s|sd|ss)'", text):
            return True
        found = re.search(r"\bout=\(?([a-t]\b|v\d+(?:\[\d+\])?)", text)
        if found is None or re.match(rf"torch\.({_ONE_BY_ONE})\(", text):
            return False
        if found[1] not in self.values:
            return False
        out = eval(found[1], self.namespace)
        read = [self.namespace.get(name) for name in re.findall(r"\b(?:[a-t]|v\d+)\b", text[: found.start()])]
        return isinstance(out, torch.Tensor) and _place(out) in map(_place, [*prelude.tensors(read)]) and _place(out) != 0


_GELSY_READS_ANYTHING = torch.__version__ < (2, 12)
#: Functions of templates, each of whose results is made of the operands' elements at the same place.
_ONE_BY_ONE = "add|mul|where|abs"

_TESTS: dict[str, Any] = {
    "x": lambda v: True, "y": lambda v: True, "f": lambda v: v.is_floating_point(), "c": lambda v: v.is_complex(),
    "b": lambda v: v.dtype is torch.bool, "w": lambda v: _kind(v) == "whole",
}  # fmt: skip


def _place(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr() if value.layout is torch.strided else 0


def _kind(value: torch.Tensor) -> str:
    if value.dtype is torch.bool:
        return "truth"
    return "complex" if value.is_complex() else "point" if value.is_floating_point() else "whole"


def context_of(mode: str) -> contextlib.AbstractContextManager[Any]:
    """The context that the text of a mode makes."""
    return eval(mode, {**vars(prelude), "torch": torch}) if mode else contextlib.nullcontext()
