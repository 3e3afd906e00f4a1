"""Check and time generated GPU kernels on a real device: `python benchmarks/gpu_kernel_check.py --json result.json`.

1. Every scalar operation against PyTorch's own CUDA function, in units in the last place.
2. A grouped Adam step (float32 and bfloat16) against float64, on ragged, odd and unaligned members.
3. Kernels with two axes, broadcasting and members without axes.
4. The time of the Adam step for several block sizes, by wall clock and by CUDA events, beside the copy bandwidth that
   the same run measures; and the time that the host spends on a launch.

Exits with status 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from quickfuse.emit.triton import emit
from quickfuse.emit.triton_ops import OPERATIONS
from quickfuse.ir.expr import SCALAR_OPS, Const, Expr, Index, Op, cast
from quickfuse.ir.kernel import ArgScalar, KernelBody, KernelCall, Member, Slot, SlotLoad
from quickfuse.ir.loop import HostScalar
from quickfuse.launch.cuda import CudaKernelCall
from quickfuse.launch.cuda_compile import LaunchShape, compile_kernel

F16, BF16, F32, F64, I32, I64, BOOL = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
SHAPES = [LaunchShape(b, w) for b, w in ((256, 2), (512, 2), (512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8))]
#: How far a result may be from PyTorch's own, in units in the last place.
MAX_ULPS = 4

Operands = list[torch.Tensor]
failures: list[str] = []


def op(name: str, *args: Expr) -> Op:
    return Op(name, args, BOOL if name in COMPARISONS else args[-1].dtype)


def flat(dtype: torch.dtype, access: str = "r") -> Slot:
    return Slot(dtype, (1,), access)


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def launch(body: KernelBody, members: Sequence[Operands], shape: LaunchShape | None = None) -> CudaKernelCall:
    """A call over tensors, which the caller keeps alive; operands have the shape of their member's first."""
    described = []
    for operands in members:
        sizes = tuple(operands[0].shape)
        strides = iter(x.stride() for x in operands)
        all_strides = tuple(() if slot.by_value else next(strides) for slot in body.slots)
        described.append(Member(sizes, (), (), all_strides))
    scalars = [HostScalar(f"x{k}", "0", dtype) for k, dtype in enumerate(body.scalars)]
    device = torch.device("cuda", torch.cuda.current_device())
    call = CudaKernelCall(KernelCall(body, described, scalars, device, "kernel"), emit(body, "kernel"), shape=shape)
    words = [body.slot_word(k) for k, slot in enumerate(body.slots) if not slot.by_value]
    for row, operands in zip(call.rows, members, strict=True):
        row[words] = [x.data_ptr() for x in operands]
    call.rows_changed()
    return call


def verify(what: str, correct: bool, detail: str = "") -> None:
    print(f"{'ok  ' if correct else 'FAIL'} {what} {detail}", flush=True)
    if not correct:
        failures.append(f"{what} {detail}")


# ---------------------------------------------------------------------------------------------------------------------
# Operations

REFERENCE: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in SCALAR_OPS if hasattr(torch, name)},
    "add": lambda x, y: x | y if x.dtype == BOOL else x + y,
    "div": torch.true_divide,
    "trunc_div": lambda x, y: whole(x, y, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "fmod": lambda x, y: whole(x, y, torch.fmod),
    "fma": lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype) if x.dtype == F32 else x * y + z,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
}


def whole(x: torch.Tensor, y: torch.Tensor, function: Callable[..., torch.Tensor]) -> torch.Tensor:
    if x.is_floating_point():
        return function(x, y)
    return torch.where(y == 0, 0, function(x, torch.where(y == 0, 1, y)))


def samples(dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    """Operands: all pairings of special values, then random ones of many magnitudes."""
    generator = torch.Generator().manual_seed(0)
    if dtype == BOOL:
        special = torch.tensor([False, True])
        random = torch.randint(0, 2, (count, 1000), generator=generator).bool()
    elif dtype.is_floating_point:
        finite = [0.0, -0.0, 1, -1, 0.5, 2, 3, -7.5, 1e-30, 1e-40, 88, 1e10]
        special = torch.tensor([*finite, math.inf, -math.inf, math.nan])
        size = torch.rand((count, 100_000), generator=generator, dtype=F64) * 12 - 8
        random = torch.exp2(size) * torch.where(torch.rand(size.shape, generator=generator) < 0.3, -1, 1)
    else:
        info = torch.iinfo(dtype)
        # The most negative number by -1 is left out: PyTorch does not define it.
        special = torch.tensor([0, 1, 2, -2, 3, -3, 7, 31, 32, 63, 64, 100, info.max, info.min + 1])
        random = torch.randint(-50, 50, (count, 1000), generator=generator)
    pairings = torch.tensor(list(itertools.product(special.tolist(), repeat=count))).T
    return [torch.cat([a.to(dtype), b.to(dtype)]).cuda() for a, b in zip(pairings, random, strict=True)]


def ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """The distance of two float tensors in units in the last place; infinite where only one is NaN."""
    bits = {2: torch.int16, 4: I32, 8: I64}[want.itemsize]

    def ordered(x: torch.Tensor) -> torch.Tensor:
        raw = x.contiguous().view(bits).to(I64)
        return torch.where(raw < 0, torch.iinfo(bits).min - raw, raw)

    distance = (ordered(got) - ordered(want)).abs().double()
    distance[got.isnan() & want.isnan()] = 0
    distance[got.isnan() != want.isnan()] = math.inf
    return distance


def check_operations(dtype: torch.dtype) -> dict[str, float]:
    """The largest distance from PyTorch, for each operation (0 or infinity for integers)."""
    column = 2 if dtype == BOOL else 0 if dtype.is_floating_point else 1
    names = [name for name, templates in OPERATIONS.items() if templates[column] and name != "where"]
    if dtype == F64:
        names.remove("fma")  # nothing here computes it more precisely
    found = {}
    for count in (1, 2, 3):
        chosen = [name for name in names if SCALAR_OPS[name][0] == count]
        if not chosen:
            continue
        data = samples(dtype, count)
        values = [op(name, *(SlotLoad(k, dtype) for k in range(count))) for name in chosen]
        slots = [flat(dtype)] * count + [flat(value.dtype, "w") for value in values]
        body = KernelBody("cuda", 1, tuple(slots), (), tuple(enumerate(values, start=count)))
        results = [torch.empty(data[0].shape, dtype=value.dtype, device="cuda") for value in values]
        launch(body, [[*data, *results]]).run(stream())
        for name, got in zip(chosen, results, strict=True):
            try:
                want = REFERENCE[name](*data)
            except RuntimeError as error:
                print(f"     {name} of {dtype} is not checked: {str(error).splitlines()[0]}")
                continue
            if got.dtype.is_floating_point:
                distance = ulps(got, want)
                if name in ("maximum", "minimum", "fmax", "fmin", "fma"):
                    distance[(got == 0) & (want == 0)] = 0
                worst = int(distance.argmax())
                found[name] = distance[worst].item()
                detail = f"{found[name]:g} ulp at {[x[worst].item() for x in data]}: {got[worst]} for {want[worst]}"
            else:
                wrong = (got != want).nonzero()
                found[name] = math.inf if len(wrong) else 0.0
                detail = f"at {[x[wrong[0]].item() for x in data]}" if len(wrong) else ""
            verify(f"{name} of {dtype}", found[name] <= MAX_ULPS, detail if found[name] else "")
    return found


def check_conversions() -> None:
    types = (BOOL, torch.uint8, torch.int8, torch.int16, I32, I64, F16, BF16, F32, F64)
    for source in types:
        data = samples(source if source not in (F16, BF16) else F32, 1)[0].to(source)
        if source.is_floating_point:
            data = data[data.double().abs() < 100]
        stores, slots, results, targets = [], [flat(source)], [], [t for t in types if t != source]
        for target in targets:
            x = data.abs() if target == torch.uint8 and source.is_floating_point else data
            results.append((torch.empty(len(data), dtype=target, device="cuda"), x.to(target)))
            value: Expr = SlotLoad(0, source)
            if x is not data:
                value = cast(op("abs", cast(value, F64)), source)
            stores.append((len(slots), cast(value, target)))
            slots.append(flat(target, "w"))
        body = KernelBody("cuda", 1, tuple(slots), (), tuple(stores))
        launch(body, [[data, *(got for got, _ in results)]]).run(stream())
        wrong = [t for t, (got, want) in zip(targets, results, strict=True) if not torch.equal(got, want)]
        verify(f"conversions of {source}", not wrong, str(wrong) if wrong else "")


# ---------------------------------------------------------------------------------------------------------------------
# Adam


def adam_body(dtype: torch.dtype, by_value: bool = True) -> KernelBody:
    """param, grad, exp_avg, exp_avg_sq; beta1, beta2, eps; step size and bias correction of each member (or of all)."""
    p, g, m, v = (cast(SlotLoad(k, dtype), F32) for k in range(4))
    beta2, eps = (cast(ArgScalar(k, F64), F32) for k in (1, 2))
    step_size, correction = (cast(SlotLoad(4 + k, F64) if by_value else ArgScalar(3 + k, F64), F32) for k in range(2))
    rest1, rest2 = (cast(op("sub", Const(1.0, F64), ArgScalar(k, F64)), F32) for k in range(2))
    m = op("fma", op("sub", g, m), rest1, m)
    v = op("fma", op("mul", g, g), rest2, op("mul", v, beta2))
    p = op("sub", p, op("div", op("mul", m, step_size), op("add", op("div", op("sqrt", v), correction), eps)))
    numbers = (Slot(F64, (), "r", by_value=True),) * 2 if by_value else ()
    slots = (flat(dtype, "rw"), flat(dtype), flat(dtype, "rw"), flat(dtype, "rw"), *numbers)
    stores = tuple((k, cast(x, dtype)) for k, x in ((0, p), (2, m), (3, v)))
    return KernelBody("cuda", 1, slots, (F64,) * (3 if by_value else 5), stores)


BETA1, BETA2, EPS, STEP_SIZE, CORRECTION = 0.9, 0.999, 1e-8, 1e-2, 0.5


def adam_reference(tensors: Operands, step_size: float) -> Operands:
    p, g, m, v = (x.double() for x in tensors)
    m = m + (g - m) * (1 - BETA1)
    v = v * BETA2 + g * g * (1 - BETA2)
    return [p - step_size * m / (v.sqrt() / CORRECTION + EPS), m, v]


def operands(size: int, dtype: torch.dtype, offset: int = 0) -> Operands:
    return [torch.rand(size + offset, device="cuda").to(dtype)[offset:] for _ in range(4)]


def gpt2_sizes() -> list[int]:
    """The 148 parameters of GPT-2 with 124 million elements."""
    d = 768
    block = [d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d]
    return [50257 * d, 1024 * d, *block * 12, d, d]


def check_adam(what: str, members: list[Operands], shape: LaunchShape | None = None) -> None:
    dtype = members[0][0].dtype
    call = launch(adam_body(dtype), members, shape)
    numbers = call.values.view(np.float64)
    numbers[:, 0] = STEP_SIZE * (1 + np.arange(len(members)) % 7)
    numbers[:, 1] = CORRECTION
    worst = 0.0
    wants = [adam_reference(m, s) for m, s in zip(members, numbers[:, 0].tolist(), strict=True)]
    call.run(stream(), BETA1, BETA2, EPS)
    for (p, _, m, v), want in zip(members, wants, strict=True):
        for got, exact in zip((p, m, v), want, strict=True):
            if got.numel():
                worst = max(worst, ((got.double() - exact).abs() / (exact.abs() + 0.1)).max().item())
    limit = 4e-6 if dtype == F32 else 2**-8
    verify(f"Adam {what} {dtype}", worst <= limit, f"largest relative error {worst:.1e}")


def check_all_adam() -> None:
    odd = [1, 2, 3, 15, 17, 255, 1023, 1024, 1025, 4097, 0, 100_003]
    for dtype in (F32, BF16):
        check_adam("10 x 1024^2", [operands(1024**2, dtype) for _ in range(10)])
        check_adam("1000 x 64^2", [operands(64**2, dtype) for _ in range(1000)])
        for shape in (None, LaunchShape(256, 2), LaunchShape(2048, 8)):
            check_adam(f"odd sizes {shape}", [operands(size, dtype) for size in odd], shape)
            views = [operands(size, dtype, offset=k % 5) for k, size in enumerate(odd)]
            check_adam(f"unaligned views {shape}", views, shape)
        check_adam("GPT-2 124M", [operands(size, dtype) for size in gpt2_sizes()])


# ---------------------------------------------------------------------------------------------------------------------
# Other kernels


def check_layouts() -> None:
    x, row, column, turned = (SlotLoad(k, F32) for k in (1, 2, 3, 4))
    value = op("add", op("fma", x, row, op("mul", column, turned)), cast(op("sub", Index(0), Index(1)), F32))
    slots = (Slot(F32, (None, 1), "w"), Slot(F32, (None, 1), "r"), Slot(F32, (0, 1), "r"), Slot(F32, (None, 0), "r"),
             Slot(F32, (1, None), "r"))  # fmt: skip
    body = KernelBody("cuda", 2, slots, (), ((0, value),))
    members, wants = [], []
    for rows, columns, offset in ((512, 1024, 0), (33, 65, 0), (512, 1024, 1), (1, 1, 0), (100, 48, 0)):
        data = [torch.rand(rows * columns + offset, device="cuda")[offset:].view(rows, columns)]
        data += [torch.rand(columns, device="cuda").expand(rows, columns)]
        data += [torch.rand(rows, 1, device="cuda").expand(rows, columns)]
        data += [torch.rand(columns, rows, device="cuda").t()]
        out = torch.empty(rows, columns, device="cuda")
        members.append([out, *data])
        i = torch.arange(rows, device="cuda").view(-1, 1) - torch.arange(columns, device="cuda")
        wants.append(data[0] * data[1] + data[2] * data[3] + i)
    launch(body, members).run(stream())
    close = all(torch.allclose(m[0], want, rtol=1e-5, atol=1e-5) for m, want in zip(members, wants, strict=True))
    verify("two axes, broadcast and transposed", close)

    count = KernelBody("cuda", 0, (Slot(F32, (), "rw"), Slot(I64, (), "r", by_value=True)), (),
                       ((0, op("add", SlotLoad(0, F32), cast(SlotLoad(1, I64), F32))),))  # fmt: skip
    steps = [torch.tensor(float(k), device="cuda") for k in range(1000)]
    call = launch(count, [[step] for step in steps])
    call.values[:, 0] = np.arange(1000)
    call.run(stream())
    verify("1000 step counters", bool(torch.stack(steps).eq(2 * torch.arange(1000, device="cuda")).all()))


# ---------------------------------------------------------------------------------------------------------------------
# Time


def copy_bandwidth() -> float:
    """Bytes read and written per second by PyTorch's copy of 1 GiB."""
    source = torch.rand(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / measure(lambda: target.copy_(source), 20)["events"]


def measure(function: Callable[[], object], repeats: int, batches: int = 15) -> dict[str, float]:
    """Median seconds for a call within a batch: by wall clock, by CUDA events, and until the host is done."""
    for _ in range(3):
        function()
    walls, events, hosts = [], [], []
    for _ in range(batches):
        torch.cuda.synchronize()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start = time.perf_counter()
        first.record()
        for _ in range(repeats):
            function()
        last.record()
        hosts.append((time.perf_counter() - start) / repeats)
        torch.cuda.synchronize()
        walls.append((time.perf_counter() - start) / repeats)
        events.append(first.elapsed_time(last) / 1e3 / repeats)
    return {name: statistics.median(times) for name, times in (("wall", walls), ("events", events), ("host", hosts))}


def workloads() -> list[tuple[str, torch.dtype, Callable[[], list[Operands]]]]:
    return [
        ("10 x 1024^2", F32, lambda: [operands(1024**2, F32) for _ in range(10)]),
        ("GPT-2 124M", F32, lambda: [operands(size, F32) for size in gpt2_sizes()]),
        ("GPT-2 124M", BF16, lambda: [operands(size, BF16) for size in gpt2_sizes()]),
        ("1000 x 64^2", F32, lambda: [operands(64**2, F32) for _ in range(1000)]),
        ("200 x 64^2", F32, lambda: [operands(64**2, F32) for _ in range(200)]),
        ("1000 x 10", F32, lambda: [operands(10, F32) for _ in range(1000)]),
        ("64 M elements, unaligned", F32, lambda: [operands(2**26, F32, offset=1)]),
    ]


def time_adam(bandwidth: float) -> list[dict[str, object]]:
    rows = []
    for what, dtype, make in workloads():
        members = make()
        moved = 7 * sum(m[0].nbytes for m in members)
        choices: list[tuple[bool, LaunchShape | None]] = [(True, None), (False, None), *((False, s) for s in SHAPES)]
        for by_value, shape in choices:
            call = launch(adam_body(dtype, by_value), members, shape)
            if by_value:
                call.values.view(np.float64)[:] = STEP_SIZE, CORRECTION
            scalars = (BETA1, BETA2, EPS) if by_value else (BETA1, BETA2, EPS, STEP_SIZE, CORRECTION)
            handle = stream()
            repeats = max(5, min(200, int(0.01 / (moved / bandwidth + 5e-6))))
            times = measure(lambda c=call, h=handle, s=scalars: c.run(h, *s), repeats)  # type: ignore[misc]
            share = moved / times["wall"] / bandwidth
            chosen = " (chosen)" if shape is None else ""
            numbers = "by value" if by_value else "scalars"
            print(
                f"{what:26} {str(dtype)[6:]:9} {call.shape.block:5} x {call.shape.num_warps} warps {numbers:9}"
                f" wall {times['wall'] * 1e6:8.1f} us  events {times['events'] * 1e6:8.1f} us"
                f"  host {times['host'] * 1e6:6.1f} us  {moved / times['wall'] / 1e9:7.0f} GB/s {share:5.0%}{chosen}",
                flush=True,
            )
            rows.append(
                {"work": what, "dtype": str(dtype), "block": call.shape.block, "warps": call.shape.num_warps,
                 "chosen": shape is None, "by_value": by_value, "bytes": moved, "share_of_copy": share,
                 **{f"{name}_us": seconds * 1e6 for name, seconds in times.items()}}
            )  # fmt: skip
        del members
    return rows


def time_host() -> dict[str, float]:
    """Microseconds that the host spends on `run`, for one tiny member, with and without values to upload."""
    found = {}
    for by_value in (True, False):
        members = [operands(64, F32)]  # a call knows addresses only: the tensors must stay alive here
        call = launch(adam_body(F32, by_value), members)
        scalars = (BETA1, BETA2, EPS) if by_value else (BETA1, BETA2, EPS, STEP_SIZE, CORRECTION)
        handle = stream()
        times = measure(lambda c=call, s=scalars, h=handle: c.run(h, *s), 200)  # type: ignore[misc]
        found["with values" if by_value else "without values"] = times["host"] * 1e6
    print("host us per run:", {name: round(us, 2) for name, us in found.items()}, flush=True)
    return found


def time_graphs() -> dict[str, float | str]:
    """Microseconds for a replay of the Adam step in a CUDA graph, and whether replays see new numbers by value."""
    found: dict[str, float | str] = {}
    for by_value in (False, True):
        what = "1000 x 64^2 " + ("by value" if by_value else "scalars")
        members = [operands(64**2, F32) for _ in range(1000)]
        call = launch(adam_body(F32, by_value), members)
        numbers = call.values.view(np.float64)
        if by_value:
            numbers[:] = STEP_SIZE, CORRECTION
        scalars = (BETA1, BETA2, EPS) if by_value else (BETA1, BETA2, EPS, STEP_SIZE, CORRECTION)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call.run(side.cuda_stream, *scalars)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=side):
                call.run(side.cuda_stream, *scalars)
        except Exception as error:
            found[what] = f"cannot be captured: {error}"
            print(f"CUDA graph, {what}: {found[what]}", flush=True)
            continue
        found[what] = measure(graph.replay, 100)["wall"] * 1e6
        if by_value:
            before = members[0][0].clone()
            numbers[:, 0] = 0.0
            graph.replay()
            found["replays see new numbers"] = str(torch.equal(before, members[0][0]))
    print("CUDA graph replay, us:", found, flush=True)
    return found


def time_compilation() -> dict[str, float]:
    """Seconds for the first and a second, different kernel in this process (Triton's disk cache may hold them)."""
    capability = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    found = {}
    for what, body in (("first", adam_body(F32)), ("second", adam_body(BF16))):
        start = time.perf_counter()
        # A name of its own keeps it out of a cache that an earlier run filled.
        name = f"kernel_{time.time_ns()}"
        compile_kernel(emit(body, name), body, name, capability=capability, shape=LaunchShape(1024, 4))
        found[what] = time.perf_counter() - start
    print("seconds to compile:", {name: round(s, 2) for name, s in found.items()}, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    import triton

    torch.manual_seed(0)
    began = time.perf_counter()
    torch.cuda.init()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    print(about, flush=True)
    compilation = time_compilation()
    accuracy = {str(dtype): check_operations(dtype) for dtype in (F32, F64, I32, I64, torch.int8, torch.uint8, BOOL)}
    check_conversions()
    check_all_adam()
    check_layouts()
    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    result = {
        **about, "compile_seconds": compilation, "operations_ulp": accuracy, "copy_bytes_per_second": bandwidth,
        "host_us": time_host(), "adam": time_adam(bandwidth), "graph_us": time_graphs(),
        "failures": failures,
        "seconds": time.perf_counter() - began,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, default=str) + "\n")
    print(f"{len(failures)} failures in {result['seconds']:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
