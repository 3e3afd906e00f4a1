"""Loading IR into the process, calling it, and the driver that spreads work over threads."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from cpu_runner import Data, compiled, member_row, run
from kernel_bodies import pointwise_body
from quickfuse.emit.llvm import emit
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Const, Op
from quickfuse.ir.kernel import ArgScalar, KernelBody, Slot, SlotLoad
from quickfuse.launch import cpu

ADD_IR = "define i64 @add(i64 %x, i64 %y) { %z = add i64 %x, %y ret i64 %z }"
ADD = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def doubling_body(ndim: int = 1) -> KernelBody:
    """x = 2 * x"""
    value = Op("mul", (SlotLoad(0, torch.float32), Const(2.0, torch.float32)), torch.float32)
    strides = (None,) * (ndim - 1) + (1,) * min(ndim, 1)
    return pointwise_body("cpu", ndim, (Slot(torch.float32, strides, "rw"),), (), ((0, value),))


def test_load_gives_the_address_of_a_function() -> None:
    assert ADD(cpu.load(ADD_IR, ["add"])["add"])(40, 2) == 42


def test_functions_of_the_same_name_are_independent() -> None:
    other = cpu.load(ADD_IR.replace("add i64", "sub i64"), ["add"])["add"]
    assert ADD(cpu.load(ADD_IR, ["add"])["add"])(40, 2) == 42
    assert ADD(other)(40, 2) == 38


def test_several_functions() -> None:
    ir = ADD_IR + "\ndefine i64 @one() { ret i64 1 }"
    addresses = cpu.load(ir, ["one", "add"])
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["one"])() == 1 and ADD(addresses["add"])(2, 3) == 5


def test_a_function_that_no_library_has() -> None:
    ir = "declare void @quickfuse_nowhere()\ndefine void @f() { call void @quickfuse_nowhere() ret void }"
    with pytest.raises(Unsupported, match="quickfuse_nowhere"):
        cpu.load(ir, ["f"])
    assert ADD(cpu.load(ADD_IR, ["add"])["add"])(40, 2) == 42


def test_loading_from_many_threads() -> None:
    results: list[int] = []

    def work(k: int) -> None:
        address = cpu.load(ADD_IR.replace("%x, %y", f"%x, {k}"), ["add"])["add"]
        results.append(ADD(address)(100, 0) - 100 - k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0] * 8


@pytest.mark.parametrize("releases_gil", [False, True])
def test_bind(releases_gil: bool) -> None:
    address = cpu.load(emit(doubling_body(), "double"), ["double"])["double"]
    x = torch.arange(100.0)
    rows, starts = torch.tensor([100, x.data_ptr()]), torch.tensor([0, 100])
    arguments = torch.tensor((rows.data_ptr(), starts.data_ptr(), 1, 0, 1))
    cpu.bind(address, releases_gil=releases_gil)(arguments.data_ptr())
    assert torch.equal(x, 2 * torch.arange(100.0))


def test_other_python_threads_run_meanwhile() -> None:
    """A kernel that waits for another Python thread: only possible if it lets go of the lock."""
    ir = """
    define void @wait(ptr %flag) {
    entry:
      br label %spin
    spin:
      %seen = load atomic i64, ptr %flag seq_cst, align 8
      %set = icmp ne i64 %seen, 0
      br i1 %set, label %done, label %spin
    done:
      ret void
    }"""
    flag = torch.zeros(1, dtype=torch.int64)
    wait = cpu.bind(cpu.load(ir, ["wait"])["wait"], releases_gil=True)
    timer = threading.Timer(0.05, lambda: flag.fill_(1))
    timer.start()
    wait(flag.data_ptr())
    timer.join()
    assert flag.item() == 1


# ---------------------------------------------------------------------------------------------------------------------
# The driver


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5, 16])
@pytest.mark.parametrize(
    "sizes",
    [
        [(1,)],
        [(63,), (1,), (64,)],
        [(10_000,), (3,), (0,), (777,)],
        [(k,) for k in range(200)],
        [(1,)] * 50,
        [(k % 7, 3, 5) for k in range(40)],
    ],
)
def test_every_element_is_visited_once(sizes: list[tuple[int, ...]], n_threads: int) -> None:
    members = [Data(size, [torch.ones(size)]) for size in sizes]
    run(doubling_body(len(sizes[0])), members, n_threads=n_threads)
    assert all(bool((m.tensors[0] == 2).all()) for m in members)


def test_threads_are_those_of_pytorch() -> None:
    """The library is one that is in the process already; a kernel runs on as many threads as it is told to."""
    with open("/proc/self/maps") as maps:
        assert cpu.openmp_library() in maps.read()
    # Each member stores the number of the thread that it ran on.
    ir = """
    declare void @quickfuse_launch(ptr, i64, i64, ptr)
    declare i32 @omp_get_thread_num()
    define void @who(ptr %arguments) {
      call void @quickfuse_launch(ptr @who.member, i64 1, i64 1, ptr %arguments)
      ret void
    }
    define internal void @who.member(ptr %row, ptr %scalars, i64 %begin, i64 %end) {
      %thread = call i32 @omp_get_thread_num()
      %wide = sext i32 %thread to i64
      store i64 %wide, ptr %row
      ret void
    }"""
    who = cpu.bind(cpu.load(ir, ["who"])["who"])
    rows, starts = torch.full((9,), -1), torch.arange(10)
    arguments = torch.tensor((rows.data_ptr(), starts.data_ptr(), 9, 0, 3))
    who(arguments.data_ptr())
    assert rows.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    arguments[4] = 1
    who(arguments.data_ptr())
    assert rows.tolist() == [0] * 9


def test_a_body_is_compiled_without_sizes() -> None:
    """One compiled kernel for all sizes, and one table row a member."""
    body = doubling_body()
    kernel = compiled(body)
    for n in (1, 100, 5000):
        x = torch.ones(n)
        row, starts = torch.tensor(member_row(body, Data((n,), [x]))), torch.tensor([0, n])
        kernel(row.data_ptr(), starts.data_ptr(), 1, 0, 1)
        assert bool((x == 2).all())


def test_threads_for() -> None:
    assert cpu.threads_for(1000, 1) == 1
    assert cpu.threads_for(1, 10**9) == 1  # nothing to share
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert cpu.threads_for(1 << 20, 1) == 2
        assert cpu.threads_for(1000, 1000) == 2
        torch.set_num_threads(1)
        assert cpu.threads_for(1 << 20, 1) == 1
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------------------------------
# Quality of the code


def function_assembly(body: KernelBody, function: str) -> str:
    text = cpu.assembly(emit(body, "kernel"))
    return text[text.index(f"{function}:") :].split(".Lfunc_end")[0]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for x86 registers")
def test_the_loop_is_made_of_vectors() -> None:
    """An Adam-like update: no division or root of single numbers, no calls; products and sums fuse only where said."""
    f32, f64 = torch.float32, torch.float64

    def op(name: str, *args: object) -> Op:
        return Op(name, args, f32)  # type: ignore[arg-type]

    p, g, v = (SlotLoad(k, f32) for k in range(3))
    rate = Op("cast", (ArgScalar(0, f64),), f32)
    square = op("fma", op("mul", g, Const(0.001, f32)), g, op("mul", v, Const(0.999, f32)))
    update = op("sub", p, op("mul", rate, op("div", g, op("add", op("sqrt", square), Const(1e-8, f32)))))
    slots = (Slot(f32, (1,), "rw"), Slot(f32, (1,), "r"), Slot(f32, (1,), "rw"))
    body = pointwise_body("cpu", 1, slots, (f64,), ((0, update), (2, square)))
    loop = function_assembly(body, "kernel.unit")
    bits = cpu.host_description()["vector_bits"]
    assert {512: "%zmm", 256: "%ymm", 128: "%xmm"}[bits] in loop
    assert "divss" not in loop and "sqrtss" not in loop and "call" not in loop
    if bits > 128:
        assert "fmadd" in loop and "fnmadd" not in loop


@pytest.mark.skipif(not cpu.host_description()["libmvec"], reason="no libmvec")
def test_functions_run_on_vectors() -> None:
    value = Op("sin", (SlotLoad(0, torch.float32),), torch.float32)
    slots = (Slot(torch.float32, (1,), "r"), Slot(torch.float32, (1,), "w"))
    loop = function_assembly(pointwise_body("cpu", 1, slots, (), ((1, value),)), "kernel.unit")
    assert "_ZGV" in loop and "call" in loop


def test_host_description() -> None:
    host = cpu.host_description()
    assert host["triple"].split("-")[0] == platform.machine()
    assert host["vector_bits"] in (128, 256, 512)
    assert {"llvm", "cpu", "libmvec", "openmp", "threads"} < set(host)


def test_preload() -> None:
    cpu.preload()
    assert ADD(cpu.load(ADD_IR, ["add"])["add"])(40, 2) == 42


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="maps pages by Linux's numbers")
def test_kernels_load_where_free_pages_lie_far_apart() -> None:
    subprocess.run([sys.executable, str(Path(__file__).with_name("far_sections.py"))], check=True)
