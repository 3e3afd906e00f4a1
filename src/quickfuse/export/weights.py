"""The tensors of an exported program in a safetensors file: memory once, however many tensors share it."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ExportFileError
from ..ir.values import TensorMeta, contiguous_stride, span_of

#: What safetensors stores as it is; other tensors are stored as bytes.
_STORED = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
})  # fmt: skip


def packed(state: dict[str, torch.Tensor]) -> tuple[bytes, dict[str, Any]]:
    """The file, and for each tensor where it lies: the name of a tensor in the file, and the layout of a view of it."""
    from safetensors import torch as safetensors  # here, so that importing quickfuse does not take its time

    memories: dict[int, list[str]] = {}
    for name, tensor in state.items():
        memories.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    files: dict[str, torch.Tensor] = {}
    places: dict[str, Any] = {}
    for names in memories.values():
        tensors = [state[name].detach() for name in names]
        starts = [t.storage_offset() * t.itemsize for t in tensors]
        ends = [start + span_of(t.shape, t.stride()) * t.itemsize for start, t in zip(starts, tensors, strict=True)]
        first, last = min(starts), max(ends)
        kinds = {t.dtype for t in tensors}
        stored = tensors[0].dtype if len(kinds) == 1 and kinds <= _STORED else torch.uint8
        begin = first - first % stored.itemsize
        flat = torch.empty(0, dtype=torch.uint8, device=tensors[0].device)
        flat.set_(tensors[0].untyped_storage(), begin, (last - begin,), (1,))  # type: ignore[call-overload]
        flat = flat.cpu().clone().view(stored)
        whole = tensors[0]
        if flat.numel() == whole.numel() and whole.is_contiguous() and stored == whole.dtype:
            flat = flat.reshape(whole.shape)
        files[names[0]] = flat
        for name, tensor, start in zip(names, tensors, starts, strict=True):
            places[name] = {
                "data": names[0], "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape),
                "stride": list(tensor.stride()), "offset": (start - begin) // tensor.itemsize, "device": str(tensor.device),
                "parameter": isinstance(state[name], torch.nn.Parameter), "requires_grad": state[name].requires_grad,
            }  # fmt: skip
    return safetensors.save(files), places


def unpacked(data: bytes, places: dict[str, tuple[str, TensorMeta, int, bool]]) -> dict[str, torch.Tensor]:
    """The tensors at `places`: (name in the file, metadata, offset in elements, whether it is a parameter).

    Raises:
        ExportFileError: for a file that does not hold them.
    """
    from safetensors import SafetensorError
    from safetensors import torch as safetensors

    try:
        files = safetensors.load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, OverflowError) as error:
        raise ExportFileError(f"the weights cannot be read: {error}") from None
    memories: dict[tuple[str, str], torch.Tensor] = {}
    made: dict[str, torch.Tensor] = {}
    for name, (key, meta, offset, parameter) in places.items():
        flat = files.get(key)
        if flat is None:
            raise ExportFileError(f"the weights have no tensor {key!r:.80}, which {name!r:.80} is a part of")
        memory = memories.get((key, str(meta.device)))
        if memory is None:
            try:
                memory = memories[key, str(meta.device)] = flat.reshape(-1).to(meta.device)
            except (RuntimeError, AssertionError) as error:
                where = f"{name!r:.80} is on {meta.device}, which this machine does not have"
                raise ExportFileError(f"{where}: {error}") from None
        made[name] = _viewed(name, memory, meta, offset, parameter)
    return made


def _viewed(name: str, memory: torch.Tensor, meta: TensorMeta, offset: int, parameter: bool) -> torch.Tensor:
    if memory.dtype not in (meta.dtype, torch.uint8):
        raise ExportFileError(f"{name!r:.80} is {meta.dtype}, and its memory {memory.dtype}")
    end = offset * meta.dtype.itemsize + meta.span_bytes
    if offset < 0 or any(step < 0 for step in meta.stride) or end > memory.numel() * memory.itemsize:
        raise ExportFileError(f"{name!r:.80} lies outside of its memory")
    stride = contiguous_stride(meta.shape) if meta.numel == 0 else meta.stride
    tensor = torch.empty(0, dtype=meta.dtype, device=meta.device)
    tensor.set_(memory.untyped_storage(), offset, meta.shape, stride)  # type: ignore[call-overload]
    if parameter:
        return torch.nn.Parameter(tensor, meta.requires_grad)
    return tensor.requires_grad_(meta.requires_grad)
