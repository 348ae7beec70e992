"""Batches from a worker process: tensors in anonymous shared memory, the rest pickled.

The memory is a `memfd` whose descriptor travels through the pipe. It has no name, so nothing is left in /dev/shm or /tmp
however a process ends; it is mapped once in the receiver and freed with the last tensor that looks at it.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

__all__ = ["receive", "send"]

_SHARED = hasattr(os, "memfd_create")  # Linux; elsewhere the bytes go through the pipe
_IN_PIPE = 1 << 15  # bytes of tensors below which a map costs more than a copy
_ALIGNED = 64


def send(pipe: Connection, value: Any) -> None:
    """Send any picklable value with its CPU tensors."""
    packer = _Packer()
    message = packer.pack(value)
    if _SHARED and packer.size > _IN_PIPE:
        descriptor = os.memfd_create("flodl-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, packer.size)
            for at, tensor in packer.tensors:
                _write(descriptor, memoryview(_bytes_of(tensor)), at)
            pipe.send_bytes(message)  # not before the rest is sure
            reduction.send_handle(pipe, descriptor, os.getppid())
        finally:
            os.close(descriptor)
    else:
        room = bytearray(packer.size)
        for at, tensor in packer.tensors:
            data = memoryview(_bytes_of(tensor))
            room[at : at + len(data)] = data
        pipe.send_bytes(message)
        pipe.send_bytes(room)


def receive(pipe: Connection) -> Any:
    """What the other end sent; raises EOFError when that has ended."""
    message = pipe.recv_bytes()
    size = int.from_bytes(message[:8], "little")
    room: Any
    if _SHARED and size > _IN_PIPE:
        descriptor = reduction.recv_handle(pipe)
        try:
            room = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        finally:
            os.close(descriptor)
    else:
        room = bytearray(pipe.recv_bytes())
    return _Unpacker(io.BytesIO(message[8:]), room).load()


class _Packer(pickle.Pickler):
    """Pickles all but the tensors, which get a place in a common block of memory. Finds them in any kind of object."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        super().__init__(self._out, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[tuple[int, Tensor]] = []
        self.size = 0
        self._places: dict[int, Any] = {}
        self._kept: list[Any] = []  # an id is valid only as long as its object lives

    def pack(self, value: Any) -> bytes:
        self.dump(value)
        return self.size.to_bytes(8, "little") + self._out.getvalue()

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not Tensor or obj.layout != torch.strided or obj.device.type != "cpu" or obj.is_quantized:
            return None
        if (place := self._places.get(id(obj))) is None:
            tensor = obj.detach().resolve_conj().resolve_neg().contiguous()
            place = self._places[id(obj)] = (self.size, tensor.dtype, tuple(tensor.shape))
            self._kept.append(obj)
            if tensor.numel():
                self.tensors.append((self.size, tensor))
                self.size += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        return place


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, room: Any) -> None:
        super().__init__(file)
        self._room = room
        self._found: dict[int, Tensor] = {}

    def persistent_load(self, place: Any) -> Tensor:
        at, dtype, shape = place
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        if at not in self._found:
            self._found[at] = torch.frombuffer(self._room, dtype=dtype, count=count, offset=at).view(shape)
        return self._found[at]


def _bytes_of(tensor: Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()


def _write(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written
