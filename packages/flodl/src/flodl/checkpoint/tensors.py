"""Files of tensors in the safetensors format, and copies of tensors that a thread may write while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["Buffers", "read_tensors", "storable", "write_tensors"]

_STORABLE = {
    getattr(torch, name)
    for name in (
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float8_e4m3fn", "float8_e5m2",
        "float16", "bfloat16", "float32", "float64", "complex64",
    )
    if hasattr(torch, name)
}  # fmt: skip


def storable(tensor: Tensor) -> bool:
    """Whether safetensors can hold it: dense and of a type that the format knows (not complex128, not quantized)."""
    return tensor.layout == torch.strided and tensor.dtype in _STORABLE and not tensor.is_quantized


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """`tensors`: contiguous, on the CPU, none sharing memory. Other threads run meanwhile."""
    save_file(dict(tensors), path, metadata={"format": "pt"})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, in memory of their own (safetensors alone gives unaligned views into the file)."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


class Buffers:
    """Memory for a copy of a set of tensors, used again for the next copy: fresh memory costs 30 times the copying."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Contiguous copies on the CPU. They are valid until the next call."""
        result: dict[str, Tensor] = {}
        devices = set()
        for key, tensor in tensors.items():
            on_gpu = tensor.device.type == "cuda"
            buffer = self._kept.get(key)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu)
            buffer.copy_(tensor, non_blocking=on_gpu)
            if on_gpu:
                devices.add(tensor.device)
            result[key] = buffer
        for device in devices:
            torch.cuda.synchronize(device)
        self._kept = result
        return result
