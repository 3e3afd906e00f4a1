"""The random numbers of GPUs that kernels draw: whether they are those of PyTorch's kernels, and which come next."""

from __future__ import annotations

import threading

import torch

from .. import logs
from ..ir.philox import Stream, uniform, vector_width, words
from ..ir.segment import RunNatively

#: What is known of devices, by their numbers.
_streams: dict[int, Stream | None] = {}
_lock = threading.RLock()


def stream_of(device: torch.device) -> Stream | None:
    """How dropout draws on a GPU; None where PyTorch draws other numbers than our kernels would, which is tried once."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with _lock:
        if index not in _streams:
            if torch.cuda.is_current_stream_capturing():  # the trial would be recorded
                return None
            _streams[index] = _tried(index)
        return _streams[index]


def _tried(index: int) -> Stream | None:
    try:
        stream = _stream(index)
        if _draws_alike(stream, torch.device("cuda", index)):
            return stream
        reason = "it draws other numbers here than kernels would"
    except (AttributeError, RuntimeError) as error:  # of a PyTorch without what is asked for, or of CUDA
        reason = f"how it draws could not be tried: {error}"
    logs.log.warning("dropout stays a call of PyTorch's: %s", reason)
    return None


def _stream(index: int) -> Stream:
    """What PyTorch's kernel does on a device: as many blocks of 256 threads as it can run at a time."""
    properties = torch.cuda.get_device_properties(index)
    blocks = properties.multi_processor_count * (properties.max_threads_per_multi_processor // 256)
    return Stream(256 * blocks, lambda advance, numbers: _Reserve(index, advance, numbers))


class _Reserve:
    """Reserves numbers of a device's generator for a dropout: see `philox.Reserve`."""

    def __init__(self, index: int, advance: int, numbers: tuple[int, ...]) -> None:
        self.device = index
        self.generator = torch.cuda.default_generators[index]
        self.advance = advance
        self.numbers = numbers
        self.__name__ = f"reserve {advance}"
        self.said = False

    def __call__(self, *aligned: torch.Tensor) -> tuple[int, ...]:
        """
        Raises:
            RunNatively: where PyTorch would draw other numbers for a tensor, as it begins at another address, and where the
                program records a CUDA graph, which asks for the offset in each replay.
        """
        for tensor in aligned:
            if tensor.data_ptr() % 16:
                if not self.said:
                    self.said = True
                    logs.log.warning("dropout of a tensor that begins at no multiple of 16 bytes runs natively")
                raise RunNatively
        generator = self.generator
        with _lock:
            try:
                offset = generator.get_offset()
            except RuntimeError:  # while a stream is captured
                raise RunNatively from None
            generator.set_offset(offset + self.advance)
            return generator.initial_seed(), offset, *self.numbers


#: So many elements are compared.
_COMPARED = 4096
#: (elements for each of the most threads, and how many more; type): vectors of 1, 2, 4 and 8, one turn and several.
_TRIED = (
    (0, 1001, torch.float32), (0, 1002, torch.float16), (0, 4096, torch.float32), (5, 16, torch.float32),
    (9, 16, torch.bfloat16), (5, 2, torch.float64), (5, 1, torch.bfloat16),
)  # fmt: skip


def _draws_alike(stream: Stream, device: torch.device) -> bool:
    """Whether PyTorch draws the numbers that are expected, and leaves its generator as expected."""
    generator = torch.cuda.default_generators[device.index]
    state = generator.get_state()
    try:
        with torch.no_grad(), torch.cuda.device(device):
            return all(_as_expected(stream, device, generator, *tried) for tried in _TRIED)
    finally:
        generator.set_state(state)


def _as_expected(
    stream: Stream, device: torch.device, generator: torch.Generator, times: int, more: int, dtype: torch.dtype
) -> bool:
    count = times * stream.most_threads + more
    seed, offset, p = 0x1234567890ABCDE, (1 << 34) - 8, 0.3
    generator.manual_seed(seed)
    generator.set_offset(offset)
    x = torch.ones(count, dtype=dtype, device=device)
    out, mask = torch.native_dropout(x, p, True)
    if generator.get_offset() != offset + stream.advance(count):
        return False
    width = vector_width(count, 0, dtype)
    elements = torch.arange(0, count, count // _COMPARED | 1, device=device)  # of each turn, and of each place in a vector
    numbers = uniform(words(seed, offset, elements, stream.threads(count), width))
    keep = torch.full((), 1 - p, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=device)
    expected = numbers.to(keep.dtype) < keep
    scaled = (expected.to(keep.dtype) * (1 / keep.double()).to(keep.dtype)).to(dtype)
    return bool(torch.equal(mask[elements], expected)) and bool(torch.equal(out[elements], scaled))

