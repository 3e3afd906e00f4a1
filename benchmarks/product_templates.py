"""Products with what follows them in one kernel of Triton's, beside cuBLAS: `python benchmarks/product_templates.py`.

Needs a GPU of capability 9.0. For each shape the library's product, the same with a kernel after it, and the best of some
thirty forms of a product in Triton (tiles, stages, warps, one tile a program or many) that computes the rest as it stores
its tiles. Microseconds, in a CUDA graph that goes through four sets of operands. WARM=k/n in the environment compiles part
k of n of the forms, for n processes at a time. docs/decisions/042 has what came of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SETS = 4
HALF = torch.bfloat16
#: What follows the product: nothing, GELU with its operand stored too, GELU, its gradient, a sum with a residual.
PLAIN, TRAINED, ACTIVATED, GRADIENT, RESIDUAL = range(5)


@triton.jit
def tanh(x):
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def gelu(x, BY_TANH: tl.constexpr):
    if BY_TANH:
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_gradient(x, BY_TANH: tl.constexpr):
    if BY_TANH:
        t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 0.134145 * x * x)
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def store(value, at, made, second, other, BY_TANH: tl.constexpr, AFTER: tl.constexpr):
    value = value.to(tl.bfloat16)
    wide = value.to(tl.float32)
    if AFTER == 1:
        made.store(at, value)
        second.store(at, gelu(wide, BY_TANH).to(tl.bfloat16))
    else:
        if AFTER == 2:
            wide = gelu(wide, BY_TANH)
        if AFTER == 3:
            wide *= gelu_gradient(other.load(at).to(tl.float32), BY_TANH)
        if AFTER == 4:
            wide += other.load(at).to(tl.float32)
        made.store(at, wide.to(tl.bfloat16))


@triton.jit
def product(
    a, b, bias, made, second, other, M, N, K, BY_TANH: tl.constexpr, AFTER: tl.constexpr, TRANSPOSED: tl.constexpr,
    BIASED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HALVES: tl.constexpr, MANY: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tl.program_id(0)
    for tile in tl.range(first, down * across if MANY else first + 1, PROGRAMS if MANY else 1, flatten=MANY):
        block = tile // (8 * across)
        rows = min(down - block * 8, 8)
        i = block * 8 + (tile % (8 * across)) % rows
        j = (tile % (8 * across)) // rows
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            right = b.load([j * BN, k * BK]).T if TRANSPOSED else b.load([k * BK, j * BN])
            total = tl.dot(a.load([i * BM, k * BK]), right, total)
        if BIASED:
            columns = j * BN + tl.arange(0, BN)
            total += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
        if HALVES:
            left, right = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
            store(left, [i * BM, j * BN], made, second, other, BY_TANH, AFTER)
            store(right, [i * BM, j * BN + BN // 2], made, second, other, BY_TANH, AFTER)
        else:
            store(total, [i * BM, j * BN], made, second, other, BY_TANH, AFTER)


@triton.jit
def pass_after(product, other, made, BY_TANH: tl.constexpr, AFTER: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(product + at).to(tl.float32)
    if AFTER == 1 or AFTER == 2:
        value = gelu(value, BY_TANH)
    if AFTER == 3:
        value *= gelu_gradient(tl.load(other + at).to(tl.float32), BY_TANH)
    if AFTER == 4:
        value += tl.load(other + at).to(tl.float32)
    tl.store(made + at, value.to(tl.bfloat16))


def forms() -> list[tuple[int, ...]]:
    """Rows, columns and depth of a tile, stages, warps, whether a program computes many tiles, and stores them by halves."""
    tiles = [
        (128, 256, 64, 3, 8), (128, 256, 64, 4, 8), (256, 128, 64, 3, 8), (128, 128, 64, 4, 4), (128, 128, 64, 4, 8),
        (128, 128, 64, 3, 8), (64, 256, 64, 4, 4), (128, 64, 64, 4, 4), (128, 128, 128, 3, 8), (64, 128, 64, 5, 4),
        (128, 256, 32, 5, 8),
    ]  # fmt: skip
    return [(*tile, many, halves) for tile in tiles for many in (0, 1) for halves in ((0, 1) if tile[1] >= 256 else (0,))]


def microseconds(call: Callable[[int], object], rounds: int = 5) -> float:
    for k in range(SETS):
        call(k)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for k in range(3 * SETS):
            call(k % SETS)
    graph.replay()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / (3 * SETS) * 1e3)
    return sorted(times)[rounds // 2]


def compare(
    name: str, rows: int, columns: int, depth: int, after: int, by_tanh: bool, transposed: bool, biased: bool
) -> None:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=HALF)

    left = [random(rows, depth) for _ in range(SETS)]
    weight = random(*((columns, depth) if transposed else (depth, columns))) / depth**0.5
    bias = random(columns) if biased else None
    other, made, second = ([random(rows, columns) for _ in range(SETS)] for _ in range(3))
    right = weight.t() if transposed else weight
    programs = torch.cuda.get_device_properties(0).multi_processor_count

    def library(k: int) -> None:
        if bias is None:
            torch.mm(left[k], right, out=made[k])
        else:
            torch.addmm(bias, left[k], right, out=made[k])

    def with_pass(k: int) -> None:
        library(k)
        if after:
            target = second[k] if after == TRAINED else made[k]
            pass_after[(rows * columns // 1024,)](made[k], other[k], target, by_tanh, after, 1024, num_warps=4)

    part, parts = map(int, os.environ.get("WARM", "0/1").split("/"))
    found = []
    with_pass(0)
    expected = (second if after == TRAINED else made)[0].clone()
    for form in forms()[part::parts]:
        bm, bn, bk, stages, warps, many, halves = form
        wide = bn // 2 if halves else bn
        a = [TensorDescriptor.from_tensor(t, [bm, bk]) for t in left]
        b = TensorDescriptor.from_tensor(weight, [bn, bk] if transposed else [bk, bn])
        c, d, e = ([TensorDescriptor.from_tensor(t, [bm, wide]) for t in tensors] for tensors in (made, second, other))
        tiles = -(-rows // bm) * -(-columns // bn)

        def call(k: int, grid: int = min(programs, tiles) if many else tiles) -> None:
            product[(grid,)](
                a[k], b, weight if bias is None else bias, c[k], d[k], e[k], rows, columns, depth, by_tanh, after,  # noqa: B023
                transposed, biased, bm, bn, bk, halves, many, programs, num_warps=warps, num_stages=stages,  # noqa: B023
            )  # fmt: skip

        try:
            call(0)
        except triton.runtime.errors.OutOfResources:
            continue
        torch.testing.assert_close((second if after == TRAINED else made)[0], expected, rtol=2e-2, atol=2e-2)
        if parts == 1:
            found.append((microseconds(call, 3), form))
    if found:
        best, form = min(found)
        plain, both = microseconds(library), microseconds(with_pass)
        print(f"{name:28} {rows}x{columns}x{depth}: {plain:7.1f} {both:7.1f} {best:7.1f}  {form}", flush=True)


def main() -> None:
    print("                                         product, with a kernel after it, in one kernel of Triton's, its form")
    for model, rows, by_tanh in (("GPT-2", 8192, True), ("ViT", 6304, False), ("GPT", 16384, True)):
        compare(f"{model}, product", rows, 3072, 768, PLAIN, by_tanh, True, True)
        compare(f"{model}, GELU and operand", rows, 3072, 768, TRAINED, by_tanh, True, True)
        compare(f"{model}, GELU", rows, 3072, 768, ACTIVATED, by_tanh, True, True)
        compare(f"{model}, gradient of GELU", rows, 3072, 768, GRADIENT, by_tanh, False, False)
        compare(f"{model}, deep, residual", rows, 768, 3072, RESIDUAL, by_tanh, True, True)
        compare(f"{model}, residual", rows, 768, 768, RESIDUAL, by_tanh, True, True)
    compare("4096 wide, GELU", 8192, 16384, 4096, ACTIVATED, False, True, True)
    compare("4096 wide, residual", 8192, 4096, 4096, RESIDUAL, False, True, True)


if __name__ == "__main__":
    main()
