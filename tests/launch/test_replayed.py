"""Functions replayed as graphs, with a stand-in for CUDA: a recording that computes nothing when it is made, and writes to
the same addresses each time it runs."""

from __future__ import annotations

import ctypes
import gc
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse import config
from quickfuse.launch.replayed import MOST_RECORDINGS, GraphMemory, Parts, Recorder, Replayed


class FakeRecording:
    bytes = 1000

    def __init__(self) -> None:
        self.ran = 0

    def capture(self, run: Callable[[], list[Any]]) -> list[Any]:
        self.run = run
        cells = [cell.cell_contents for cell in run.__closure__ or ()]
        self.given = given = next(cell for cell in cells if isinstance(cell, list))
        before = [t.detach().clone() for t in given]
        made = run()
        for tensor, contents in zip(given, before, strict=True):  # nothing has happened yet
            with torch.autograd._unsafe_preserve_version_counter(tensor):
                tensor.detach().copy_(contents)
        ours = {t.untyped_storage().data_ptr() for t in given}
        self.places: list[Any] = []
        for result in made:
            new = isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in ours
            self.places.append((result.data_ptr(), result.nbytes) if new else None)
            if new:
                result.fill_(float("nan"))
        return made

    def replay(self, scalars: tuple[Any, ...]) -> None:
        self.ran += 1
        with torch.autograd._unsafe_preserve_version_counter(tuple(self.given)):
            made = self.run()
        for result, place in zip(made, self.places, strict=True):
            if place is not None:
                ctypes.memmove(place[0], result.data_ptr(), place[1])

    def allocate_again(self, address: int, nbytes: int) -> torch.Tensor | None:
        tried = []
        for _ in range(8):
            tried.append(torch.empty(nbytes, dtype=torch.uint8))
            if tried[-1].data_ptr() == address:
                return tried[-1]
        return None


class Device:
    """Makes recordings, and counts them."""

    def __init__(self) -> None:
        self.made: list[FakeRecording] = []
        self.stream = 0
        self.recording = False
        self.recorder = Recorder(self.begin, lambda: (id(self), self.stream), lambda: self.recording)

    def begin(self) -> FakeRecording:
        self.made.append(FakeRecording())
        return self.made[-1]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    # Tensors of the CPU are taken for those of a GPU.
    from quickfuse.launch import replayed

    monkeypatch.setattr(replayed, "on_cpu", lambda tensor: False)
    return Device()


def make(
    device: Device, function: Callable[..., list[Any]], count: int, copied: str = "", changed: str = "", **more: Any
) -> Any:
    """A replayed function of `count` tensors; `copied` and `changed` have the positions of some, as digits."""

    def run(tensors: list[Any]) -> list[Any]:
        return function(*tensors)

    more = {"detach": False, "consumes": False, **more}
    return Replayed(
        "f", Parts(run, lambda tensors: (), run), device.recorder, lambda addresses: None, range(count), count,
        [str(k) in copied for k in range(count)], [str(k) in changed for k in range(count)], **more,
    )  # fmt: skip


def test_the_second_call_records_and_the_others_replay(device: Device) -> None:
    weight = torch.randn(4)
    f = make(device, lambda x, w: [x * w, x + 1], 2, copied="0")
    for call in range(6):
        x = torch.randn(4)
        torch.testing.assert_close(f([x, weight]), [x * weight, x + 1])
        assert len(device.made) == min(call, 1)
    assert device.made[0].ran == 5


def test_results_that_are_kept_never_change(device: Device) -> None:
    f = make(device, lambda x: [x * 2, (x + 1).view(2, 2)], 1, copied="0")
    xs = [torch.randn(4) for _ in range(10)]
    kept = [f([x]) for x in xs]
    for x, (double, more) in zip(xs, kept, strict=True):
        torch.testing.assert_close(double, x * 2)
        torch.testing.assert_close(more, (x + 1).view(2, 2))


def test_views_of_results_that_are_kept_never_change(device: Device) -> None:
    f = make(device, lambda x: [x.repeat(3, 1)], 1, copied="0")
    xs = [torch.randn(4) for _ in range(10)]
    kept = [f([x])[0][1:, 2:] for x in xs]
    for x, view in zip(xs, kept, strict=True):
        torch.testing.assert_close(view, x[2:].repeat(2, 1))


def test_results_of_later_graphs_are_safe_from_earlier_ones(device: Device) -> None:
    # Here nothing overlaps; but the results of `g` must have moved before `f` is replayed, since with CUDA they may.
    f = make(device, lambda x: [x * 2], 1, copied="0")
    g = make(device, lambda x: [x * 3], 1, copied="0")
    x = torch.randn(8)
    for _ in range(3):
        f([x])
    for _ in range(3):
        g([x])
    kept = g([x])
    at = kept[0].data_ptr()
    f([x])
    assert kept[0].data_ptr() != at
    torch.testing.assert_close(kept[0], x * 3)
    kept = f([x])
    at = kept[0].data_ptr()
    g([x])  # which was recorded when this result had its memory
    assert kept[0].data_ptr() == at


def test_dropped_results_are_written_again_without_a_copy(device: Device) -> None:
    f = make(device, lambda x: [x * 2], 1, copied="0")
    at = set()
    for _ in range(8):
        at.add(f([torch.randn(1000)])[0].data_ptr())
    assert len(at) <= 2  # that of the first call, which was not a replay


def test_changed_inputs_stay_where_they_are(device: Device) -> None:
    f = make(device, lambda x, total: [total.add_(x)], 2, copied="01", changed="1")
    total = torch.zeros(4)
    for k in range(5):
        out = f([torch.ones(4), total])
        assert out[0] is total and total.tolist() == [k + 1.0] * 4
    assert total._version == 5


def test_another_parameter_is_another_recording(device: Device) -> None:
    f = make(device, lambda x, w: [x * w], 2, copied="0")
    first, second = torch.randn(4), torch.randn(4)
    for weight in (first, first, first, second, second, second, first, second):
        x = torch.randn(4)
        torch.testing.assert_close(f([x, weight])[0], x * weight)
    assert len(device.made) == 2


def test_inputs_that_are_always_others_are_copied(device: Device) -> None:
    f = make(device, lambda x: [x * 2], 1)
    kept = [torch.randn(4) for _ in range(12)]
    for x in kept:
        torch.testing.assert_close(f([x])[0], x * 2)
    assert len(device.made) == 2 and device.made[1].ran >= 8


def test_changed_inputs_that_are_always_others_are_given_up(device: Device) -> None:
    f = make(device, lambda x: [x.add_(1)], 1, changed="0")
    kept = [torch.zeros(4) for _ in range(4 * MOST_RECORDINGS)]
    for x in kept:
        assert f([x])[0] is x and x.tolist() == [1.0] * 4
    assert "another one in each call" in f.reason and not f.recordings


def test_a_failed_recording_says_why_and_runs(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def function(x: torch.Tensor) -> list[Any]:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("operation not permitted when stream is capturing")
        return [x * 2]

    f = make(device, function, 1, copied="0")
    for _ in range(4):
        x = torch.randn(4)
        torch.testing.assert_close(f([x])[0], x * 2)
    assert f.reason == "RuntimeError: operation not permitted when stream is capturing" and f.reason in caplog.text


def test_a_signal_while_recording_is_no_failure_of_cuda(device: Device) -> None:
    class TooLong(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise TooLong

    calls = []

    def function(x: torch.Tensor) -> list[Any]:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGUSR1)
        return [x * 2]

    f = make(device, function, 1, copied="0")
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        f([torch.zeros(4)])
        with pytest.raises(TooLong):
            f([torch.zeros(4)])
    finally:
        signal.signal(signal.SIGUSR1, before)
    for _ in range(3):
        x = torch.randn(4)
        torch.testing.assert_close(f([x])[0], x * 2)
    assert not f.reason and device.made[-1].ran == 3


def test_streams_have_recordings_of_their_own(device: Device) -> None:
    f = make(device, lambda x: [x * 2], 1, copied="0")
    for stream in (0, 0, 1, 0, 1):
        device.stream = stream
        x = torch.randn(4)
        torch.testing.assert_close(f([x])[0], x * 2)
    assert len(device.made) == 2


def test_a_program_that_records_itself_is_left_alone(device: Device) -> None:
    f = make(device, lambda x: [x * 2], 1, copied="0")
    device.recording = True
    for _ in range(3):
        f([torch.ones(2)])
    assert not device.made


def test_replaced_gradients_need_not_move(device: Device) -> None:
    weight = torch.nn.Parameter(torch.randn(4))
    f = make(device, lambda x, w: [x * w.detach()], 2, copied="0", regrades=True)
    places = set()
    for _ in range(6):
        x = torch.randn(4)
        weight.grad = None
        weight.grad = f([x, weight])[0]
        torch.testing.assert_close(weight.grad, x * weight.detach())
        places.add(weight.grad.data_ptr())
    assert len(places) <= 2


def test_results_in_the_memory_of_inputs(device: Device) -> None:
    f = make(device, lambda x, y: [x, y[1:], None, 7], 2, copied="01", detach=True)
    for _ in range(4):
        x, y = torch.randn(3), torch.randn(5)
        out = f([x, y])
        assert out[0] is not x or device.made == []
        assert out[0].data_ptr() == x.data_ptr() and out[1].data_ptr() == y.data_ptr() + 4
        torch.testing.assert_close(out[:2], [x, y[1:]])
        assert out[2:] == [None, 7]


def test_views_of_inputs_in_another_type(device: Device) -> None:
    def views(x: Any, y: Any, z: Any) -> list[Any]:
        return [x.view(torch.uint8), torch.view_as_real(y)[1:, :, 1], z.view(torch.complex64), y[1].conj(), y.T.conj().imag]

    f = make(device, views, 3, copied="012", detach=True)
    for call in range(4):
        x = torch.tensor([[True, False], [False, call == 2]]).expand(3, 2, 2)
        y, z = torch.randn(6, 3, dtype=torch.complex64)[2:, ::2], torch.randn(2, 8)[:, 2:6]
        for one, two in zip(f([x, y, z]), views(x, y, z), strict=True):
            assert (one.dtype, one.is_conj(), one.is_neg()) == (two.dtype, two.is_conj(), two.is_neg())
            assert (one.stride(), one.data_ptr()) == (two.stride(), two.data_ptr())
            torch.testing.assert_close(one, two)


def test_results_that_are_kept_stay_conjugated(device: Device) -> None:
    f = make(device, lambda x: [(x * 2).conj(), torch._neg_view(x * 3)], 1, copied="0")
    xs = [torch.randn(4, dtype=torch.complex64) for _ in range(8)]
    kept = [f([x]) for x in xs]
    for x, (double, negative) in zip(xs, kept, strict=True):
        torch.testing.assert_close(double, (x * 2).conj())
        torch.testing.assert_close(negative, x * -3)


def test_memory_is_counted_and_bounded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = GraphMemory.held
    f = make(device, lambda x: [x * 2], 1, copied="0")
    for _ in range(3):
        f([torch.ones(2)])
    assert GraphMemory.held == before + 1000
    monkeypatch.setattr(config, "cuda_graph_bytes", before + 1000)
    g = make(device, lambda x: [x * 2], 1, copied="0")
    for _ in range(3):
        assert g([torch.ones(2)])[0].tolist() == [2.0, 2.0]
    assert "config.cuda_graph_bytes" in g.reason
    del f
    device.made.clear()
    gc.collect()
    assert GraphMemory.held == before


def test_a_list_that_is_used_up_is_emptied(device: Device) -> None:
    f = make(device, lambda x: [x * 2], 1, copied="0", consumes=True)
    for _ in range(3):
        tensors = [torch.ones(2)]
        f(tensors)
    assert tensors == []


def test_explain_says_what_graphs_hold(device: Device) -> None:
    f = make(device, lambda x: [x * 2], 1, copied="0")
    for _ in range(3):
        f([torch.ones(2)])
    explanation = quickfuse.explain(lambda x: x + 1)(torch.ones(2))
    assert explanation.cuda_graphs >= 1 and "The process has" in str(explanation)
