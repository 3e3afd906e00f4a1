"""The statements that launch a schedule's kernels and call PyTorch's operators between them."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import numpy
import torch

from ..ir.arguments import leaves
from ..ir.guard import added
from ..ir.kernel import KernelCall, Schedule, is_launched
from ..ir.launching import Launch, Placement
from ..ir.loop import Buffer, Draw, Extern, GeneratorInput, Handed, HostScalar, Number, View, buffers_in
from ..ir.products import storing_form
from ..ir.random_state import move_to, offset_of
from ..signals import let_through
from .glue import PLACED, UNFIT, Body

#: What generated code notes before its first kernel that stores to an input.
_CHANGED = "_changed = True"


class KernelBodyWriter:
    """Writes the body that launches a schedule's kernels.

    `calls` are the launchers' objects, one for each kernel call of the schedule, in order; `placer` rewrites their
    tables when addresses changed, and tells whether inputs overlap, in which case the statement `eager` runs instead.
    `inputs` are the expressions of the graph's inputs, `names` the variables that get its outputs.
    """

    #: Exceptions that the caller of the generated code handles.
    passed_on = "()"
    #: Whether PyTorch's operators may record what they do, which nobody needs: not where guards say that grad mode is off.
    records = True
    #: Whether no result may be a view: autograd refuses to change results of one node in place that are.
    hides_views = False
    #: The inputs that may require gradients though they did not in capture, as they are used in `torch.no_grad()` only.
    unknown: Collection[Buffer | None] = ()
    #: What runs in place of the kernels where inputs that they change overlap others.
    unfit = ""

    def __init__(
        self, schedule: Schedule, calls: list[Launch], placer: Placement, inputs: list[str], names: list[str], eager: str,
        changes_inputs: bool = False,
    ) -> None:  # fmt: skip
        self.schedule = schedule
        self.calls = calls
        self.placer = placer
        self.names = names
        self.eager = eager
        self.changes_inputs = changes_inputs
        self.lines: list[str] = []
        self.statements: list[str] = []  # all but the choice between the kernels and eager
        self.constants: dict[str, Any] = {
            "_placer": placer, "math": math, "_added": added, "_np": numpy, "_empty": torch.empty_strided,
            "_threads": torch.get_num_threads, "_calls": calls,  # they own the memory that the kernels read
        }  # fmt: skip
        self._used = [step.buffers for step in schedule.steps]
        self._calls_of: dict[Buffer, list[int]] = {}
        launched = [used for step, used in zip(schedule.steps, self._used, strict=True) if is_launched(step)]
        for index, buffers in enumerate(launched):
            for buffer in buffers:
                self._calls_of.setdefault(buffer, []).append(index)
        self._variables: dict[Buffer, str] = {}
        self._functions: dict[int, str] = {}
        self._residents: dict[Any, str] = {}  # tensors in memory that is there already, and views of them
        for buffer, expression in zip(schedule.program.inputs, inputs, strict=True):
            if buffer is not None:
                self._variables[buffer] = expression

    def write(self) -> Body:
        scalars = self.schedule.program.host_scalars
        numbers = [str(scalar) for scalar in scalars if scalar.name != scalar.code]
        numbers += [f"if not {-(1 << 63)} <= {name} <= {(1 << 63) - 1}: return _MISS" for name in self._integers()]
        call = 0
        dying = self._dying()
        self._read = self._buffers_read()
        self._handed_out = set(buffers_in(self.schedule.program.outputs))
        stored = [b for step in self.schedule.launched if isinstance(step, Extern) for b in step.outputs]
        made = ({*self.schedule.temps, *self._outputs()} - self._returned_by_calls()).union(stored)
        last_flag = self._last_flag()
        before: list[str] = []
        changed = False
        self._open_streams()
        self._open_arena()
        for number, step in enumerate(self.schedule.steps):
            for buffer in self._used[number]:
                if buffer in made:  # a call of PyTorch may be the first use of a tensor without elements
                    self._allocate(buffer)
            if isinstance(step, KernelCall):
                if self._restarts and step.changed_inputs and not changed:
                    self.lines.append(_CHANGED)
                    changed = True
                self._launch(step, call)
                call += 1
            elif is_launched(step):
                self._launch_product(call)
                call += 1
            else:
                self._extern(step)
            if number == last_flag:
                before, self.lines = self.lines, []
            self._release(dying.get(number, ()))
        self._finish()
        if last_flag >= 0:
            self.lines = [*before, *self._unless_flagged()]
        if self._forgets:
            self._forget_history()
        self._handle_failures()
        self.statements = [*self.lines]
        return Body(self._choose(), self.names, self.constants, numbers)

    def _finish(self) -> None:
        """Assign the outputs."""
        for buffer in self._outputs():
            self._allocate(buffer)
        outputs = self.schedule.program.outputs
        results = [self._result(output) for output in outputs]
        views = [output.buffer for output in outputs if isinstance(output, View)]
        if views and self._forgets and not any(buffer in self.unknown for buffer in views):
            self.lines.append("_set_grad_mode(_grad)")  # a view that is made without it takes nothing with gradients later
        self.lines += [f"{name} = {result}" for name, result in zip(self.names, results, strict=True)]
        self._count_changes()

    def _count_changes(self) -> None:
        """Let the outputs tell how often they were changed in place, as eager would have done it."""
        versions = self.schedule.program.versions
        if versions:
            self.constants["_set_versions"] = torch._C._autograd._unsafe_set_version_counter
            counts = ", ".join([str(count) for _, count in versions])
            self.lines.append(f"_set_versions(({', '.join([self.names[k] for k, _ in versions])},), ({counts},))")

    def _handle_failures(self) -> None:
        """Where a call fails the program runs natively, with the same random numbers, unless an input has changed. None has
        where PyTorch's operator refuses its operands; but memory may run out at any time."""
        handler = ["    raise"]
        before = []
        if self._restarts:
            before = ["_changed = False"]
            handler = [f"    if _changed or isinstance(_error1, {self.passed_on}): raise"]
            self.constants["_let_through1"] = let_through
            handler += ["    _let_through1(_error1)", *self._taken_back(), "    raise _RunNatively from _error1"]
        elif not self._random_states:
            return
        before += [note for note, _ in self._random_states]
        handler = [*self._drawing_again(), *handler]
        self.constants["_Exception"] = Exception
        inner = [f"    {line}" for line in self.lines]
        self.lines = [*before, "try:", *inner, "except _Exception as _error1:", *handler]

    @functools.cached_property
    def _restarts(self) -> bool:
        """Whether the program runs natively from its beginning where a call of PyTorch fails."""
        return self.changes_inputs and any(isinstance(step, Extern) and step.may_fail for step in self.schedule.steps)

    @functools.cached_property
    def drawing_devices(self) -> list[int]:
        """The GPUs whose generators of random numbers kernels and calls draw from."""
        devices: set[int] = set()
        for step in self.schedule.steps:
            if isinstance(step, Draw):
                devices.add(step.target.device)  # type: ignore[attr-defined]
            elif isinstance(step, Extern) and step.draws and not _given_generators(step):
                devices.update(b.meta.device.index or 0 for b in step.buffers if b.meta.device.type == "cuda")
        return sorted(devices)

    @functools.cached_property
    def _random_states(self) -> list[tuple[str, str]]:
        """For each generator of random numbers that calls draw from, what notes its state and what brings it back."""
        names: dict[str, None] = {}
        for step in self.schedule.steps:
            if isinstance(step, Extern) and step.draws and not isinstance(step, Draw):
                names.update(dict.fromkeys(_given_generators(step) or ["_generator0"]))
        if "_generator0" in names:
            self.constants["_generator0"] = torch.default_generator
        found = [(f"_random{k} = {name}.get_state()", f"{name}.set_state(_random{k})") for k, name in enumerate(names)]
        for k in self.drawing_devices:
            self.constants[f"_offset{k}"], self.constants[f"_move{k}"] = partial(offset_of, k), partial(move_to, k)
            found.append((f"_began{k} = _offset{k}()", f"_move{k}(_began{k})"))
        return found

    def _drawing_again(self) -> list[str]:
        """The statements by which generators of random numbers have their states again."""
        return [f"    {again}" for _, again in self._random_states]

    @functools.cached_property
    def _forgets(self) -> bool:
        """Whether PyTorch's operators would record what they do, and must not."""
        if not self.records:
            return False
        steps = zip(self.schedule.steps, self._used, strict=True)
        calls = [buffer for step, used in steps if not is_launched(step) for buffer in used]
        return any(buffer.meta.requires_grad or buffer in self.unknown for buffer in calls)

    def _forget_history(self) -> None:
        """Let PyTorch's operators record nothing: gradients are computed by graphs of their own, if at all."""
        self.constants["_grad_mode"], self.constants["_set_grad_mode"] = torch.is_grad_enabled, torch._C._set_grad_enabled
        inner = [f"    {line}" for line in self.lines]
        self.lines = ["_grad = _grad_mode()", "try:", "    _set_grad_mode(False)", *inner, "finally: _set_grad_mode(_grad)"]

    def _last_flag(self) -> int:
        """The last step that may set the program's flag; -1 if there is none. Kernels on a GPU fail of themselves."""
        flags = [number for number, step in enumerate(self.schedule.steps) if isinstance(step, KernelCall)
                 and step.device.type == "cpu" and any(slot.access == "flag" for slot in step.body.slots)]  # fmt: skip
        return max(flags, default=-1)

    def _unless_flagged(self) -> list[str]:
        """The lines written last, or else the graph in eager mode: it raises the exception that the flag stands for."""
        flag = self.schedule.program.flag
        assert flag is not None
        self.constants["_flag"] = (ctypes.c_int64 * 1).from_address(self.placer.cell_address(flag))
        rest = [f"    {line}" for line in self.lines or ["pass"]]
        # eager may change some before it fails
        eager = [*self._taken_back(), "    raise _RunNatively"] if self.changes_inputs else [f"    {self.eager}"]
        return ["if _flag[0]:", "    _flag[0] = 0", *self._drawing_again(), *eager, "else:", *rest]

    def _taken_back(self) -> list[str]:
        """The statement that nothing was changed after all, where it was noted before that it will be."""
        return ["    _placer.take_back_changes(_tensors)"] if self.placer.written else []

    def _buffers_read(self) -> set[Buffer]:
        """The buffers that a step reads, or that are returned."""
        found = set(buffers_in(self.schedule.program.outputs))
        for step, used in zip(self.schedule.steps, self._used, strict=True):
            found.update(step.reads if isinstance(step, Extern) else used)
        return found

    def _dying(self) -> dict[int, list[Buffer]]:
        """The temporaries that no step after step k uses: their memory is free for those that follow."""
        last = {buffer: number for number, used in enumerate(self._used) for buffer in used}
        for buffer in buffers_in(self.schedule.program.outputs):
            last.pop(buffer, None)
        dying: dict[int, list[Buffer]] = {}
        for buffer, number in last.items():
            if buffer.kind == "temp":
                dying.setdefault(number, []).append(buffer)
        return dying

    def _release(self, buffers: Iterable[Buffer]) -> None:
        names = [self._variables[buffer] for buffer in buffers if buffer in self._variables]
        if names:
            self.lines.append(f"del {', '.join(names)}")

    def _integers(self) -> list[str]:
        """Scalars that kernels get as 64-bit integers."""
        calls = [step for step in self.schedule.steps if isinstance(step, KernelCall)]
        pairs = [pair for call in calls for pair in zip(call.scalars, call.body.scalars, strict=True)]
        return list(dict.fromkeys(scalar.name for scalar, dtype in pairs if not dtype.is_floating_point))

    def _choose(self) -> list[str]:
        """Launch, unless inputs that the kernels write to overlap others."""
        if not self.placer.is_needed:
            return self.lines
        place = [f"if _state: {PLACED}"]
        if not self.placer.written:
            return [*place, *self.lines]
        self.constants["_unversioned"] = self.placer.note_changes
        rest = [f"    {line}" for line in self.lines or ["pass"]]
        return [*place, f"if {UNFIT}:", f"    {self.unfit}", "else:", *rest]

    def _returned_by_calls(self) -> set[Buffer]:
        calls = [step for step in self.schedule.steps if isinstance(step, Extern) and not is_launched(step)]
        return {buffer for step in calls for buffer in step.outputs}

    def _outputs(self) -> list[Buffer]:
        externs = self._returned_by_calls()
        returned = dict.fromkeys(buffers_in(self.schedule.program.outputs))
        return [buffer for buffer in returned if buffer.kind == "output" and buffer not in externs]

    def _allocate(self, buffer: Buffer) -> None:
        if buffer in self._variables or self.placer.is_resident(buffer):
            return
        name = f"_b{len(self._variables)}"
        self._variables[buffer] = name
        make, meta = f"_new{len(self.constants)}", buffer.meta
        self.constants[make] = self.placer.maker(meta)
        self.lines.append(f"{name} = {make}()  # {meta}")
        self._write_address(buffer)

    def _write_address(self, buffer: Buffer) -> None:
        """Put the address of a buffer made in this call into every table that refers to it."""
        targets: dict[int, list[str]] = {}
        changed: dict[str, None] = {}
        address = f"{self._variables[buffer]}.data_ptr()"
        for index in self._calls_of.get(buffer, ()):
            call = self.calls[index]
            for word, offset in call.words_of(buffer):
                self.constants[f"_k{index}_words"] = call.words
                targets.setdefault(offset, []).append(f"_k{index}_words[{word}]")
                if call.device_type == "cuda" and call.uploads:
                    self.constants[f"_k{index}_changed"] = call.rows_changed
                    changed[f"_k{index}_changed()"] = None
        indent = ""
        if changed:  # to upload a table takes longer than to see that there is nothing to upload
            self.constants["_made_at"] = self.placer.made_at
            number = self.placer.made_number(buffer)
            self.lines.append(f"if (_at0 := {address}) != _made_at[{number}]:")
            self.lines.append(f"    _made_at[{number}] = _at0")
            address, indent = "_at0", "    "
        for offset, words in targets.items():
            extra = f" + {offset}" if offset else ""
            self.lines.append(f"{indent}{' = '.join(words)} = {address}{extra}")
        self.lines += [indent + line for line in changed]

    def _open_streams(self) -> None:
        """Ask once for the stream that all launches on a GPU go to."""
        for step, call in zip(self.schedule.launched, self.calls, strict=True):
            if call.device_type != "cuda":
                continue
            line = f"{_stream_of(step)} = _stream({step.device.index or 0})"
            if line not in self.lines:
                self.constants["_stream"] = call.current_stream
                self.lines.append(line)

    def _open_arena(self) -> None:
        """Make the memory of temporaries on a GPU that only kernels use."""
        arena = self.placer.arena
        if arena.size:
            self.constants["_arena"], self.constants["_new_arena"] = arena, arena.new
            self.lines += [
                "_arena0 = _new_arena()",
                "if (_at0 := _arena0.data_ptr()) != _arena.base: _placer.move_arena(_at0)",
            ]

    def _launch(self, step: KernelCall, index: int) -> None:
        call = self.calls[index]
        self.constants[f"_k{index}"] = call.launch
        if call.device_type == "cuda":
            if call.gathers:
                self.constants[f"_k{index}_gather"] = call.gather
                self.lines.append(f"_k{index}_gather()")
            names = [s.name for s in step.scalars]
            self.lines.append(f"_k{index}({', '.join([_stream_of(step), *names])})")
            return
        for k, (scalar, dtype) in enumerate(zip(step.scalars, step.body.scalars, strict=True)):
            view = "floats" if dtype.is_floating_point else "integers"
            if scalar.value is not None:
                getattr(call, view)[k] = scalar.value
                continue
            self.constants[f"_k{index}_{view}"] = getattr(call, view)
            self.lines.append(f"_k{index}_{view}[{k}] = {scalar.name}")
        if call.parallel:
            self.constants[f"_k{index}_arguments"] = call.arguments
            self.lines.append(f"_k{index}_arguments[4] = _threads()")
        self.lines.append(f"_k{index}()")

    def _launch_product(self, index: int) -> None:
        self.constants[f"_k{index}"] = self.calls[index].launch
        self.lines.append(f"_k{index}()")

    def _draw(self, step: Draw) -> None:
        """Reserve random numbers: where they begin is written where kernels take it."""
        names = []
        for buffer in step.outputs:
            names.append(f"_cell{len(self.constants)}")
            self.constants[names[-1]] = (ctypes.c_int64 * 1)()
            if self.placer.is_resident(buffer):  # what nobody reads has no cell
                self.constants[names[-1]] = (ctypes.c_int64 * 1).from_address(self.placer.cell_address(buffer))
        call = f"{self._function(step.target)}({', '.join(map(self._argument, step.args))})"
        self.lines.append(f"{', '.join(f'{name}[0]' for name in names)} = {call}")

    def _extern(self, step: Extern) -> None:
        if isinstance(step, Draw):
            self._draw(step)
            return
        arguments = [self._argument(a) for a in step.args]
        arguments += [f"{k}={self._argument(v)}" for k, v in step.kwargs.items()]
        if len(step.outputs) == 1 and self.placer.is_resident(step.outputs[0]):
            form = self._function(storing_form(step))
            self.lines.append(f"{form}({', '.join(arguments)}, out={self._argument(step.outputs[0])})")
            return
        target = self._function(step.target)
        names = []
        for buffer in step.outputs:
            names.append(f"_b{len(self._variables)}")
            self._variables[buffer] = names[-1]
        unpack = f"{', '.join(names)}, = " if len(names) > 1 else f"{names[0]} = "
        self.lines.append(f"{unpack}{target}({', '.join(arguments)})")
        for buffer, name in zip(step.outputs, names, strict=True):
            if (step.is_new or self.hides_views) and buffer in self._handed_out:  # a call may return a view of what it made
                self.lines.append(f"if {name}._is_view(): {name} = {name}.detach()")
            if buffer not in self._read or type(buffer) is Handed:  # which PyTorch may leave out, or which no kernel reads
                continue
            stride = buffer.meta.stride
            self.lines.append(f"if {name}.stride() != {stride}: {name} = _empty({buffer.meta.shape}, {stride}, "
                              f"dtype={name}.dtype, device={name}.device).copy_({name})")  # fmt: skip
            self._write_address(buffer)

    def _function(self, function: Callable[..., Any] | None) -> str:
        """The name of a function of PyTorch's: one for all its calls."""
        name = self._functions.setdefault(id(function), f"_f{len(self.constants)}")
        self.constants[name] = function
        return name

    def _argument(self, value: Any) -> str:
        if isinstance(value, Buffer):
            return self._variables.get(value) or self._resident(value, value)
        if isinstance(value, HostScalar):
            return value.name
        if isinstance(value, Number):
            return f"{self._variables[value.buffer]}.item()"
        if isinstance(value, View):
            return self._view(value)
        if isinstance(value, (list, tuple)) and not _is_constant(value):
            inner = ", ".join(self._argument(v) for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if value else "()"
        if type(value) is slice and any(type(bound) is HostScalar for bound in (value.start, value.stop, value.step)):
            self.constants["_slice"] = slice
            return f"_slice({', '.join(map(self._argument, (value.start, value.stop, value.step)))})"
        name = f"_a{len(self.constants)}"
        self.constants[name] = value
        return name

    def _view(self, view: View) -> str:
        base = self._variables.get(view.buffer)
        if base is None:
            return self._resident(view.buffer, (view.buffer, view.shape, view.stride, view.offset))
        meta = view.buffer.meta
        if view.offset == 0 and (view.shape, view.stride) == (meta.shape[::-1], meta.stride[::-1]) and meta.ndim == 2:
            return f"{base}.mT"
        return f"{base}.as_strided({view.shape}, {view.stride}, {base}.storage_offset() + {view.offset})"

    def _resident(self, buffer: Buffer, key: Any) -> str:
        """The name of a tensor in memory that is there already, or of a view of it: made once."""
        known = self._residents.get(key)
        if known is None:
            known = self._residents[key] = f"_r{len(self._residents)}"
            tensor = self.placer.resident_tensor(buffer)
            if key is not buffer:
                _, shape, stride, offset = key
                tensor = tensor.as_strided(shape, stride, tensor.storage_offset() + offset)
            self.constants[known] = tensor
        return known

    def _result(self, output: Any) -> str:
        """An output of the graph. What shares memory with an input is a tensor object of its own, without a history."""
        if isinstance(output, Buffer) and output.kind == "input":
            return f"{self._variables[output]}.detach()"
        if isinstance(output, View) and output.buffer.meta.requires_grad:
            base = self._variables[output.buffer]
            return f"{base}.detach().as_strided({output.shape}, {output.stride}, {base}.storage_offset() + {output.offset})"
        return self._argument(output)


def _given_generators(step: Extern) -> list[str]:
    """The program's own generators that a call draws from."""
    return [leaf.name for leaf in leaves((step.args, step.kwargs)) if type(leaf) is GeneratorInput]


def _stream_of(step: KernelCall) -> str:
    """The variable with the handle of the stream that a kernel runs on."""
    return f"_stream{step.device.index or 0}"


def _is_constant(value: Any) -> bool:
    """Whether a tuple holds plain numbers only, so that every call may get the same object."""
    return type(value) is tuple and all(type(v) in (int, float, bool) for v in value)
