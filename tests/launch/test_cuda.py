"""Launching on CUDA devices: tables, launch shapes and compilation anywhere; calls by a stand-in for the driver, and on
a real device where there is one."""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kernel_bodies import pointwise_body
from quickfuse.emit.triton import emit
from quickfuse.errors import QuickfuseError, Unsupported
from quickfuse.ir.expr import Const, Expr, Op, cast
from quickfuse.ir.kernel import ArgScalar, KernelBody, KernelCall, Member, Slot, SlotLoad
from quickfuse.ir.loop import HostScalar
from quickfuse.launch import compile_processes, cuda, cuda_driver, gpu_call
from quickfuse.launch.cuda import CudaKernelCall
from quickfuse.launch.cuda_compile import LaunchShape, argument_types, compile_kernel, fits_arguments, warm_up
from quickfuse.launch.cuda_shapes import block_table, choose_shape, needs_wide_index
from quickfuse.launch.triton_compile import load_source

pytest.importorskip("triton")

F32, F64, I64, BOOL = torch.float32, torch.float64, torch.int64, torch.bool


def op(name: str, *args: Expr) -> Op:
    return Op(name, args, args[-1].dtype)


def scaled_add() -> KernelBody:
    """s0 = s0 + a0 * s1 * v where v is a number of the member, and nothing if a1 is False."""
    x, y, v = SlotLoad(0, F32), SlotLoad(1, F32), cast(SlotLoad(2, F64), F32)
    added = op("add", x, op("mul", op("mul", y, cast(ArgScalar(0, F64), F32)), v))
    value = op("where", ArgScalar(1, BOOL), added, x)
    slots = (Slot(F32, (1,), "rw"), Slot(F32, (1,), "r"), Slot(F64, (), "r", by_value=True))
    return pointwise_body("cuda", 1, slots, (F64, BOOL), ((0, value),))


def counters() -> KernelBody:
    """A step counter of each member, plus a0."""
    value = op("add", SlotLoad(0, F32), cast(ArgScalar(0, I64), F32))
    return pointwise_body("cuda", 0, (Slot(F32, (), "rw"),), (I64,), ((0, value),))


def kernel_call(body: KernelBody, sizes: list[tuple[int, ...]]) -> KernelCall:
    members = [
        Member(size, (), (), tuple(() if s.by_value else (1,) * body.ndim for s in body.slots)) for size in sizes
    ]
    scalars = [HostScalar(f"x{k}", "0", dtype) for k, dtype in enumerate(body.scalars)]
    return KernelCall(body, members, scalars, torch.device("cuda", 0), "kernel")


# ---------------------------------------------------------------------------------------------------------------------
# Tables and shapes


def test_block_table() -> None:
    assert block_table([5, 0, 8, 1], 4).tolist() == [[0, 0], [0, 1], [2, 0], [2, 1], [3, 0]]
    assert block_table([], 4).shape == (0, 2)
    assert block_table([3], 4).dtype == np.int32


def test_wide_index() -> None:
    def member(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Member:
        return Member(sizes, (), (), (strides, ()))

    slots = (Slot(F32, (None, None), "rw"), Slot(F64, (), "r", by_value=True))
    body = pointwise_body("cuda", 2, slots, (), ((0, cast(SlotLoad(1, F64), F32)),))
    near = member((2, 2**30 - 1024), (2**30 - 1024, 1))
    assert not needs_wide_index(body, [near], 1024)
    for sizes, strides in (((2, 2**30), (0, 1)), ((2, 16), (2**31, 1)), ((2, 16), (-(2**31), 1))):
        assert needs_wide_index(body, [near, member(sizes, strides)], 1024)


def test_launch_shapes_shrink_with_the_work() -> None:
    body = scaled_add()
    large = choose_shape(body, [10**8], 132)
    small = choose_shape(body, [10**5], 132)
    assert large.block > small.block >= 32
    assert choose_shape(body, [10] * 10**6, 132).block == small.block
    assert choose_shape(counters(), [1] * 1000, 132).block >= 32
    for shape in (large, small, choose_shape(body, [], 132)):
        assert shape.block % shape.threads == 0 and shape.block & (shape.block - 1) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Compilation


def test_compiled_kernel() -> None:
    body = scaled_add()
    compiled = compile_kernel(emit(body, "k"), body, "k", capability=90, shape=LaunchShape(256, 2))
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.name == "k"
    assert compiled.hidden_params >= 1
    assert compiled.shared_bytes <= cuda_driver.DEFAULT_SHARED_BYTES
    assert list(argument_types(body).items()) == [
        ("rows", "*i64"), ("values", "*i64"), ("blocks", "*i32"), ("a0", "fp64"), ("a1", "i8"),
    ]  # fmt: skip


@pytest.mark.parametrize("operands", [1, 2, 4])
def test_threads_have_as_much_under_way_where_accesses_are_narrow(operands: int) -> None:
    """An unaligned program loads 16 bytes for each thread before it waits, as an aligned one does."""
    slots = (Slot(F32, (1,), "w"), *(Slot(F32, (1,), "r") for _ in range(operands)))
    value: Expr = SlotLoad(1, F32)
    for k in range(1, operands):
        value = op("add", value, SlotLoad(1 + k, F32))
    body = pointwise_body("cuda", 1, slots, (), ((0, value),))
    compiled = compile_kernel(emit(body, "k"), body, "k", capability=90, shape=LaunchShape(1024, 4))
    narrow = re.compile(r"@%p\d+ ld\.global\.b32 ")
    assert max(len(narrow.findall(part)) for part in compiled.ptx.split("st.global")) >= 4


def test_compiled_once() -> None:
    body, source = counters(), emit(counters(), "k")
    first = compile_kernel(source, body, "k", capability=80, shape=LaunchShape(128, 4))
    assert compile_kernel(source, counters(), "k", capability=80, shape=LaunchShape(128, 4)) is first
    assert compile_kernel(source, body, "k", capability=90, shape=LaunchShape(128, 4)) is not first


def test_names_do_not_depend_on_what_was_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [kernel_call(counters(), [()]), kernel_call(scaled_add(), [(5,)])]
    found = []
    for order in (1, -1):
        monkeypatch.setattr(gpu_call, "_names", {})
        found.append({gpu_call.name_of_kernel(call) for call in calls[::order]})
    assert len(found[0]) == 2
    assert found[0] == found[1]


def test_source_can_be_inspected() -> None:
    source = emit(counters(), "count")
    function = load_source(source, "count")
    assert inspect.getsource(function.fn) in source


def test_old_device() -> None:
    body = counters()
    with pytest.raises(Unsupported, match=r"6\.1"):
        compile_kernel(emit(body, "k"), body, "k", capability=61, shape=LaunchShape(128, 4))


def test_warm_up() -> None:
    warm_up()
    server = compile_processes.start()
    assert server is not None
    assert not server.ended


# ---------------------------------------------------------------------------------------------------------------------
# Calls, against a stand-in for the driver whose device memory is host memory


class FakeDriver:
    """The two driver functions of a launch: copies are done, launches are recorded with the values of arguments."""

    def __init__(self, argument_classes: list[type]) -> None:
        self.argument_classes = argument_classes
        self.copies: list[int] = []
        self.launches: list[SimpleNamespace] = []
        self.failures = [0]

    def cuMemcpyHtoDAsync_v2(self, target, source, size, stream) -> int:
        ctypes.memmove(target.value, source.value, size.value)
        self.copies.append(size.value)
        return 0

    def cuLaunchKernel(self, function, x, y, z, tx, ty, tz, shared, stream, params, extra) -> int:
        failure = self.failures.pop() if len(self.failures) > 1 else self.failures[0]
        if failure == 0:
            arguments = [
                kind.from_address(address).value for kind, address in zip(self.argument_classes, params, strict=False)
            ]
            hidden = [ctypes.c_uint64.from_address(p).value for p in params[len(self.argument_classes) :]]
            self.launches.append(
                SimpleNamespace(
                    function=function.value,
                    grid=(x.value, y.value, z.value),
                    block=(tx.value, ty.value, tz.value),
                    stream=stream.value,
                    arguments=arguments,
                    hidden=hidden,
                )
            )
        return failure

    def cuGetErrorName(self, status, text) -> int:
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"CUDA_ERROR_FAKE"
        return 0

    cuGetErrorString = cuGetErrorName


class FakeLibrary(ctypes.CDLL):
    """A library with native functions that do what a `FakeDriver` does."""

    def __init__(self, driver: FakeDriver) -> None:
        pointer = ctypes.c_void_p
        launching = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, *(ctypes.c_uint,) * 7, pointer, ctypes.POINTER(pointer), pointer
        )  # fmt: skip
        copying = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

        def launch(function, x, y, z, tx, ty, tz, shared, stream, params, extra) -> int:
            sizes = [ctypes.c_uint(n) for n in (x, y, z, tx, ty, tz, shared)]
            body = scaled_add()
            compiled = compile_kernel(emit(body, "k"), body, "k", capability=90, shape=LaunchShape(256, 2))
            count = len(driver.argument_classes) + compiled.hidden_params
            return driver.cuLaunchKernel(
                ctypes.c_void_p(function), *sizes, ctypes.c_void_p(stream), [params[k] for k in range(count)], extra
            )

        def copy(target, source, size, stream) -> int:
            return driver.cuMemcpyHtoDAsync_v2(
                ctypes.c_uint64(target), ctypes.c_void_p(source), ctypes.c_size_t(size), ctypes.c_void_p(stream)
            )

        self.cuLaunchKernel = launching(launch)
        self.cuMemcpyHtoDAsync_v2 = copying(copy)
        self.cuGetErrorName = self.cuGetErrorString = driver.cuGetErrorName


@pytest.fixture(params=["by ctypes", "natively"])
def fake(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FakeDriver]:
    driver = FakeDriver([ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_double, ctypes.c_int8])
    bound: list[int] = []
    library = driver if request.param == "by ctypes" else FakeLibrary(driver)
    monkeypatch.setattr(cuda_driver, "libcuda", lambda: library)
    monkeypatch.setattr(cuda_driver, "load_function", lambda cubin, name, shared, device: 4242)
    monkeypatch.setattr(cuda_driver, "bind_context", bound.append)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(cuda, "device_table", lambda shape, dtype, device, stream=0: torch.empty(shape, dtype=dtype))
    cuda._load.cache_clear()
    driver.bound = bound  # type: ignore[attr-defined]
    yield driver
    cuda._load.cache_clear()


def int64_at(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


def test_call(fake: FakeDriver) -> None:
    body = scaled_add()
    call = CudaKernelCall(kernel_call(body, [(300,), (5,)]), emit(body, "kernel"), shape=LaunchShape(128, 2))
    assert call.rows.tolist() == [[300, 0, 0], [5, 0, 0]]
    assert call.values.shape == (2, 1)
    call.rows[:, body.slot_word(0)] = [1000, 2000]
    call.values.view(np.float64)[:, body.value_word(2)] = [0.5, -2.0]
    call.rows_changed()
    call.run(0, 1.25, True)
    call.run(0, 2.5, False)
    first, second = fake.launches
    assert (first.function, first.grid, first.block) == (4242, (4, 1, 1), (64, 1, 1))
    rows, values, blocks, factor, flag = first.arguments
    assert int64_at(rows, 6) == [300, 1000, 0, 5, 2000, 0]
    assert np.array(int64_at(values, 2)).view(np.float64).tolist() == [0.5, -2.0]
    assert list((ctypes.c_int32 * 8).from_address(blocks)) == [0, 0, 0, 1, 0, 2, 1, 0]
    assert (factor, flag) == (1.25, 1)
    assert second.arguments == [rows, values, blocks, 2.5, 0]
    assert set(first.hidden) == {0} and len(first.hidden) == call.compiled.hidden_params
    # Rows once, values at every run.
    assert fake.copies == [48, 16, 16]


def test_grid_says_which_program_has_which_block_of_equal_members(fake: FakeDriver) -> None:
    """A program waits for no table then. There is one where members differ, or are too many for a grid."""
    body = scaled_add()
    many = 70_000
    cases = [([300] * 3, (3, 3)), ([300, 257], (3, 2)), ([300, 256], (5, 1)), ([9] * many, (many, 1))]
    for sizes, grid in cases:
        call = kernel_call(body, [(size,) for size in sizes])
        CudaKernelCall(call, emit(body, "kernel"), shape=LaunchShape(128, 2)).run(0, 1.0, True)
        launch = fake.launches[-1]
        assert launch.grid == (*grid, 1)
        assert bool(launch.arguments[2]) == (grid[1] == 1)


def test_rows_are_uploaded_when_they_changed_on_each_stream(fake: FakeDriver) -> None:
    body = scaled_add()
    call = CudaKernelCall(kernel_call(body, [(300,)]), emit(body, "kernel"))
    for stream in (0, 7, 0, 7):
        call.run(stream, 1.0, True)
    assert fake.copies.count(24) == 2
    call.rows[0, 1] = 99
    call.rows_changed()
    call.run(7, 1.0, True)
    assert int64_at(fake.launches[-1].arguments[0], 3) == [300, 99, 0]
    assert int64_at(fake.launches[0].arguments[0], 3) == [300, 0, 0]
    assert [launch.stream for launch in fake.launches] == [None, 7, None, 7, 7]


def test_rows_that_alternate_are_uploaded_once_each(fake: FakeDriver) -> None:
    body = scaled_add()
    call = CudaKernelCall(kernel_call(body, [(300,)]), emit(body, "kernel"))
    for number in range(40):
        place = number % 3 if number < 30 else number
        call.rows[0, 1] = place
        call.rows_changed()
        call.run(0, 1.0, True)
        assert int64_at(fake.launches[-1].arguments[0], 3) == [300, place, 0]
        assert fake.copies.count(24) == (min(number, 2) + 1 if number < 30 else number - 26)
    assert len({launch.arguments[0] for launch in fake.launches}) == 4


def test_what_one_member_needs_is_passed_as_arguments(fake: FakeDriver) -> None:
    """Addresses that change from call to call cost no upload then."""
    words = [ctypes.c_int64] * 3
    fake.argument_classes = [*words, ctypes.c_double, ctypes.c_double, ctypes.c_int8]
    body = scaled_add()
    described = kernel_call(body, [(300,)])
    assert fits_arguments(described, recorded=False)
    source = emit(body, "kernel", in_arguments=True)
    call = CudaKernelCall(described, source, shape=LaunchShape(128, 2), in_arguments=True)
    for number, stream in enumerate((0, 7, 0)):
        call.rows[0, 1:] = [1000 + number, 2000]
        call.rows_changed()
        call.values.view(np.float64)[:] = number
        call.run(stream, 0.5, number == 1)
        assert fake.launches[-1].arguments == [300, 1000 + number, 2000, number, 0.5, number == 1]
        assert fake.launches[-1].grid == (3, 1, 1)
    assert fake.copies == []


def test_which_calls_have_no_tables() -> None:
    body = scaled_add()
    assert not fits_arguments(kernel_call(body, [(3,), (4,)]), recorded=False)
    assert not fits_arguments(kernel_call(body, [(3,)]), recorded=True), "its numbers change from replay to replay"
    slots = tuple(Slot(F32, (1,), "rw" if k == 0 else "r") for k in range(500))
    large = pointwise_body("cuda", 1, slots, (), ((0, SlotLoad(1, F32)),))
    assert not fits_arguments(kernel_call(large, [(3,)]), recorded=False), "a launch takes so many arguments"


def test_large_tables_are_copied_in_pieces_that_the_driver_stages(fake: FakeDriver) -> None:
    body = scaled_add()
    call = CudaKernelCall(kernel_call(body, [(1,)] * 10_000), emit(body, "kernel"))
    call.rows[:, 1] = np.arange(10_000)
    call.run(0, 1.0, True)
    assert sum(fake.copies) == 10_000 * 4 * 8
    assert max(fake.copies) <= cuda_driver.STAGED_COPY_BYTES
    assert int64_at(fake.launches[0].arguments[0], 30_000)[1::3] == list(range(10_000))


def test_members_without_axes(fake: FakeDriver) -> None:
    fake.argument_classes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64]
    body = counters()
    call = CudaKernelCall(kernel_call(body, [()] * 1000), emit(body, "kernel"))
    call.run(0, 3)
    (launch,) = fake.launches
    assert launch.arguments[2:] == [1000, 3]
    assert launch.grid[0] * call.shape.block >= 1000 > (launch.grid[0] - 1) * call.shape.block


def test_nothing_to_do(fake: FakeDriver) -> None:
    body = scaled_add()
    for sizes in ([], [(0,), (0,)]):
        CudaKernelCall(kernel_call(body, sizes), emit(body, "kernel")).run(0, 1.0, True)
    assert fake.launches == []


def test_wrong_number_of_scalars(fake: FakeDriver) -> None:
    body = scaled_add()
    call = CudaKernelCall(kernel_call(body, [(3,)]), emit(body, "kernel"))
    with pytest.raises(ValueError):
        call.run(0, 1.0)


def test_driver_errors(fake: FakeDriver) -> None:
    body = scaled_add()
    call = CudaKernelCall(kernel_call(body, [(3,)]), emit(body, "kernel"))
    fake.failures = [700]
    with pytest.raises(QuickfuseError, match=r"cuLaunchKernel failed with CUDA_ERROR_FAKE \(700\)"):
        call.run(0, 1.0, True)


def test_a_thread_without_a_context_gets_one(fake: FakeDriver) -> None:
    body = scaled_add()
    call = CudaKernelCall(kernel_call(body, [(3,)]), emit(body, "kernel"))
    call.run(0, 1.0, True)
    fake.bound.clear()  # type: ignore[attr-defined]
    fake.failures = [0, cuda_driver.CUDA_ERROR_INVALID_CONTEXT]
    call.run(0, 1.0, True)
    assert fake.bound == [0]  # type: ignore[attr-defined]
    assert len(fake.launches) == 2


# ---------------------------------------------------------------------------------------------------------------------
# A real device


class _OnDevice:
    """A call over real tensors: `tensors[m]` are the operands of member m, in slot order without numbers."""

    def __init__(self, body: KernelBody, tensors: list[list[torch.Tensor]]) -> None:
        sizes = [tuple(operands[0].shape) for operands in tensors]
        self.call = CudaKernelCall(kernel_call(body, sizes), emit(body, "kernel"))
        words = [body.slot_word(k) for k, slot in enumerate(body.slots) if not slot.by_value]
        for row, operands in zip(self.call.rows, tensors, strict=True):
            row[words] = [x.data_ptr() for x in operands]
        self.call.rows_changed()


class TestOnDevice:
    pytestmark = pytest.mark.gpu

    def test_grouped(self) -> None:
        body = scaled_add()
        tensors = [[torch.rand(n, device="cuda") for _ in range(2)] for n in (5000, 1, 0, 1024, 4097)]
        tensors.append([torch.rand(3000, device="cuda")[1:] for _ in range(2)])
        expected = [x + y * 0.5 * (m + 1) for m, (x, y) in enumerate(tensors)]
        launch = _OnDevice(body, tensors)
        launch.call.values.view(np.float64)[:, 0] = np.arange(1, 7)
        launch.call.run(torch.cuda.current_stream().cuda_stream, 0.5, True)
        launch.call.run(torch.cuda.current_stream().cuda_stream, 0.5, False)
        torch.testing.assert_close([x for x, _ in tensors], expected)

    def test_counters(self) -> None:
        tensors = [[torch.tensor(float(m), device="cuda")] for m in range(1000)]
        launch = _OnDevice(counters(), tensors)
        for _ in range(3):
            launch.call.run(torch.cuda.current_stream().cuda_stream, 2)
        assert [x.item() for (x,) in tensors] == [m + 6.0 for m in range(1000)]

    def test_two_streams(self) -> None:
        tensors = [[torch.zeros(100_000, device="cuda"), torch.ones(100_000, device="cuda")]]
        launch = _OnDevice(scaled_add(), tensors)
        launch.call.values.view(np.float64)[:] = 1.0
        side = torch.cuda.Stream()
        for _ in range(10):
            launch.call.run(torch.cuda.current_stream().cuda_stream, 1.0, True)
            side.wait_stream(torch.cuda.current_stream())
            launch.call.run(side.cuda_stream, 1.0, True)
            torch.cuda.current_stream().wait_stream(side)
        assert tensors[0][0].eq(20).all()

    def test_values_may_be_overwritten_at_once(self) -> None:
        tensors = [[torch.zeros(1_000_000, device="cuda"), torch.ones(1_000_000, device="cuda")]]
        launch = _OnDevice(scaled_add(), tensors)
        for k in range(100):
            launch.call.values.view(np.float64)[:] = k
            launch.call.run(torch.cuda.current_stream().cuda_stream, 1.0, True)
        assert tensors[0][0].eq(sum(range(100))).all()

    def test_a_new_thread(self) -> None:
        import threading

        tensors = [[torch.zeros(1000, device="cuda"), torch.ones(1000, device="cuda")]]
        launch = _OnDevice(scaled_add(), tensors)
        launch.call.values.view(np.float64)[:] = 1.0
        thread = threading.Thread(target=launch.call.run, args=(0, 1.0, True))
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert tensors[0][0].eq(1).all()

    def test_constant_fill(self) -> None:
        body = pointwise_body("cuda", 1, (Slot(F32, (1,), "w"),), (), ((0, Const(2.5, F32)),))
        x = torch.zeros(777, device="cuda")
        _OnDevice(body, [[x]]).call.run(torch.cuda.current_stream().cuda_stream)
        assert x.eq(2.5).all()
