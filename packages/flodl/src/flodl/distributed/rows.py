"""What ranks tell each other in a meeting: a row of numbers each, in the same collective as the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

__all__ = ["Row", "Table"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One rank's window, or update. Times in milliseconds; those of the collective are of the one before.

    updates: made in it; batches: those that compute_ms was measured over. trainable: parameters that are not frozen.
    left_out: 1 where the rank's weights are not finite, so that they are no part of the average. flags: what it asks for.
    """

    samples: float = 0.0
    updates: float = 0.0
    batches: float = 0.0
    compute_ms: float = 0.0
    collective_ms: float = 0.0
    blocked_ms: float = 0.0
    drift: float = 0.0
    loss_sum: float = 0.0
    loss_weight: float = 0.0
    joins: float = 0.0
    flags: float = 0.0
    trainable: float = 0.0
    left_out: float = 0.0


_WIDTH = len(fields(Row))


class Table:
    """The rows of all ranks at the end of a buffer that is summed: each rank fills its own and leaves the others zero."""

    def __init__(self, ranks: int) -> None:
        self.numel = ranks * _WIDTH

    def write(self, part: Tensor, rank: int, row: Row) -> None:
        """part: (numel,), of the buffer."""
        values = torch.zeros(self.numel, dtype=part.dtype)
        values[rank * _WIDTH : (rank + 1) * _WIDTH] = torch.tensor(astuple(row), dtype=part.dtype)
        part.copy_(values)

    def read(self, part: Tensor) -> list[Row]:
        """The rows by rank."""
        names = [f.name for f in fields(Row)]
        rows: Sequence[Sequence[float]] = part.view(-1, _WIDTH).tolist()
        return [Row(**dict(zip(names, values, strict=True))) for values in rows]
