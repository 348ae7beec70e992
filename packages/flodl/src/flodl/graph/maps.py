"""Maps: a body applied to each element of a value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flodl.errors import StepError
from flodl.graph.samples import in_tensors, rows_of

__all__ = ["Map"]


class Map(nn.Module):
    """The body on each row, or with `slices` on each of that many equal parts of the last dimension.

    A row keeps its dimension: the body gets (1, ...). `batched` gives the body all elements in one call, as a batch;
    that is the same for a body without state that treats the samples of a batch each by itself.
    Named values must have one row per element, or be the same for all.
    """

    def __init__(self, body: nn.Module, *, slices: int = 0, batched: bool = False) -> None:
        super().__init__()
        self.body, self.slices, self.batched = body, slices, batched

    def forward(self, x: Tensor, **named: Any) -> Tensor:
        """x: (rows, ...) -> (rows, ...); with slices (batch, ..., features) -> (batch, ..., slices * what the body gives)"""
        if self.slices:
            return self._slices(x, named)
        if self.batched or not x.shape[0]:  # an empty batch: the body tells what comes out
            return self.body(x, **named)  # type: ignore[no-any-return]
        if not named:
            return torch.cat([self.body(row) for row in torch.split(x, 1)])
        numbers = torch.split(torch.arange(x.shape[0], device=x.device), 1)
        return torch.cat(
            [self.body(row, **rows_of(named, i, x.shape[0])) for row, i in zip(torch.split(x, 1), numbers, strict=True)]
        )

    def _slices(self, x: Tensor, named: dict[str, Any]) -> Tensor:
        n, features = self.slices, x.shape[-1]
        if features % n:
            raise StepError(f"{features} features cannot be cut into {n} equal slices")
        if not self.batched:
            return torch.cat([self.body(part, **named) for part in torch.split(x, features // n, dim=-1)], dim=-1)
        batch = x.shape[0]
        # (batch, ..., n, f) -> (n * batch, ..., f): the slice is the slow index, so that named values repeat as a block
        parts = torch.unflatten(x, -1, (n, features // n)).movedim(-2, 0).flatten(0, 1)

        def repeat(value: Tensor) -> Tensor:
            return value.repeat(n, *[1] * (value.ndim - 1)) if value.shape[:1] == (batch,) else value

        y: Tensor = self.body(parts, **{k: in_tensors(repeat, v) for k, v in named.items()})
        return torch.unflatten(y, 0, (n, batch)).movedim(0, -2).flatten(-2)

    def extra_repr(self) -> str:
        return (f"slices={self.slices}" if self.slices else "each") + (", batched" if self.batched else "")
