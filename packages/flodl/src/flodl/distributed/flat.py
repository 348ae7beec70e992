"""A model's weights as one vector: one collective instead of one for each tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["FlatState", "comm_dtype", "dense_view"]

_ALIGNED = 64  # bytes: vectorised and compiled kernels take aligned tensors without a copy


class FlatState:
    """Trainable parameters, floating point buffers and `extra` tensors, each a view of one vector for each dtype.

    The tensors stay who they are (optimizers, hooks and compiled code keep them); only their memory moves. Tied ones are
    in it once. Frozen parameters do not change, so they are not in it, until they are thawed: see `layout`.
    """

    def __init__(self, model: nn.Module, extra: Iterable[Tensor] = ()) -> None:
        self._parameters = list({id(p): p for p in model.parameters()}.values())
        buffers = {id(b): b for b in model.buffers() if b.is_floating_point()}
        self._others = [*buffers.values(), *extra]
        self.vectors: list[Tensor] = []
        self.layout(self.mask())

    def mask(self) -> list[bool]:
        """Which parameters are trained now."""
        return [p.requires_grad for p in self._parameters]

    @property
    def trainable(self) -> int:
        """How many of them."""
        return sum(self.mask())

    @torch.no_grad()
    def layout(self, mask: Sequence[bool]) -> None:
        """Put the tensors into new vectors: those parameters that `mask` says, then the rest."""
        self.averaged = list(mask)
        """Which parameters are in the vectors."""
        parameters = [p for p, wanted in zip(self._parameters, mask, strict=True) if wanted]
        groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in [*parameters, *self._others]:
            groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        self.tensors = [t for tensors in groups.values() for t in tensors]
        self.vectors, counted = [], {id(p) for p in parameters}
        self.weights = 0
        """How many of the first vector's numbers are parameters, and no statistics."""
        for (dtype, device), tensors in groups.items():
            step = _ALIGNED // dtype.itemsize
            starts, end = [], 0
            for tensor in tensors:
                starts.append(end)
                end += math.ceil(tensor.numel() / step) * step
                if not self.vectors and id(tensor) in counted:
                    self.weights = end
            vector = torch.zeros(end, dtype=dtype, device=device)
            for tensor, start in zip(tensors, starts, strict=True):
                tensor.data = dense_view(vector, start, tensor).copy_(tensor.data)
            self.vectors.append(vector)
        self.numel = sum(v.numel() for v in self.vectors)

    def write(self, out: Tensor, weight: float) -> bool:
        """out, (numel,): all numbers times `weight`. Returns False, and writes zeros, where one is not finite."""
        at = 0
        for vector in self.vectors:
            part = out[at : at + vector.numel()]
            torch.mul(vector, weight, out=part) if vector.dtype == out.dtype else part.copy_(vector).mul_(weight)
            at += vector.numel()
        if bool(torch.isfinite(out[:at].sum())):
            return True
        out[:at].zero_()
        return False

    @torch.no_grad()
    def read(self, values: Tensor) -> None:
        """Take `values`, (numel,)."""
        at = 0
        for vector in self.vectors:
            vector.copy_(values[at : at + vector.numel()])
            at += vector.numel()

    @torch.no_grad()
    def add(self, values: Tensor) -> None:
        """Add `values`, (numel,)."""
        at = 0
        for vector in self.vectors:
            vector.add_(values[at : at + vector.numel()])
            at += vector.numel()

    def copy(self, dtype: torch.dtype) -> Tensor:
        """All numbers in one new vector."""
        return torch.cat([vector.to(dtype) for vector in self.vectors]) if self.vectors else torch.zeros(0, dtype=dtype)


def dense_view(vector: Tensor, start: int, like: Tensor) -> Tensor:
    """A view of `vector` from `start` on with the shape and, where its memory is dense, the strides of `like`."""
    strides = like.stride() if _dense(like) else torch.empty(like.shape, device="meta").stride()
    return torch.as_strided(vector, like.shape, strides, start)


def _dense(tensor: Tensor) -> bool:
    """Whether the tensor's elements fill its memory without gap or overlap, as in channels_last."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def comm_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """What sums over ranks are made in: float64 where a tensor is, else float32, also for bfloat16 and float16."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
