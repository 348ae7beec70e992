"""The average of all ranks' weights, by samples: blocking, or on its way while training goes on."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from torch import Tensor

from flodl.distributed.flat import FlatState, comm_dtype
from flodl.distributed.group import Group, Pending
from flodl.distributed.outer import OuterStep
from flodl.distributed.rows import Row, Table

__all__ = ["Averager"]

_NOTHING = 1e-12  # the weight of a rank that trained nothing: none beside others, an equal one if nobody did


class Averager:
    """One sum over ranks of [weights * w | w | table]; the weights themselves are never summed in place.

    So a collective that fails has changed nothing, and `buffer` holds the outcome of the newest one that did not: a rank that
    has missed that can be sent it, also when this one is already in the next.
    A rank with weights that are not finite is left out, and takes the others' average.
    """

    def __init__(self, flat: FlatState, group: Group, outer: OuterStep | None = None) -> None:
        self.flat, self.outer = flat, outer
        self.collective_ms = 0.0
        """From the newest collective's beginning until its outcome was there."""
        self.blocked_ms = 0.0
        """For how long of that training waited."""
        self.drift = 0.0
        """Norm of (these weights - the newest average) / norm of the average."""
        self._group = group
        self._dtype = comm_dtype(flat.tensors)
        self._pending: Pending | None = None
        self._before: Tensor | None = None  # the weights that travel
        self._launched = 0.0
        self.reform()

    def reform(self) -> None:
        """The ranks or the layout have changed; what travelled is lost."""
        self._pending = self._before = None
        self._table = Table(self._group.size)
        device = self.flat.vectors[0].device if self.flat.vectors else torch.device("cpu")
        self.buffer = torch.zeros(self.flat.numel + 1 + self._table.numel, dtype=self._dtype, device=device)
        """(numbers + 1 + table,): the newest outcome, as it was summed."""
        self._sum = torch.zeros_like(self.buffer)  # what is being summed

    def let_go(self) -> None:
        """Of what is under way: a rank is lost, and its outcome can only come from another one."""
        self._pending = None

    def start(self) -> None:
        """All ranks have the same weights now."""
        if self.outer:
            self.outer.start(self.flat.copy(self._dtype)[: self.flat.weights])

    @property
    def travelling(self) -> bool:
        """Whether an average is on its way."""
        return self._before is not None

    @property
    def arrived(self) -> bool:
        """Whether it is there, or lost."""
        return self._pending is not None and self._pending.is_done()

    def average(self, weight: float, row: Row, *, in_host: bool = False) -> list[Row]:
        """Average now. Returns all ranks' rows. Raises RankLost, with the weights as they were.

        in_host: the weights of this machine's ranks only. The rows are those of all, which then know when to go on.
        """
        self._fill(weight, row)
        started = time.perf_counter()
        if in_host:
            n = self.flat.numel + 1
            self._group.all_reduce(self._sum[:n], in_host=True)
            self._group.all_reduce(self._sum[n:])
        else:
            self._group.all_reduce(self._sum)
        self._swap()
        self.collective_ms = self.blocked_ms = 1e3 * (time.perf_counter() - started)
        return self.apply(outer=not in_host)

    def launch(self, weight: float, row: Row) -> None:
        """Begin to average the weights as they are now, while training goes on."""
        self._fill(weight, row)
        self._before = self.flat.copy(self._dtype)
        self._launched = time.perf_counter()
        self._pending = self._group.all_reduce_async(self._sum)

    def finish(self) -> list[Row]:
        """Wait for what was launched, and add what the average differs from the weights that were sent."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        started = time.perf_counter()
        ended = pending.wait()
        self.blocked_ms = 1e3 * (time.perf_counter() - started)
        self.collective_ms = 1e3 * (ended - self._launched)
        self._swap()
        return self.apply()

    @torch.no_grad()
    def apply(self, *, outer: bool = True) -> list[Row]:
        """Take the outcome in `buffer`. outer: with the outer step, which is for the average of all ranks."""
        n, before = self.flat.numel, self._before
        self._before = None
        rows = self.rows()
        total = self.buffer[n]
        if not total:  # nobody has finite weights
            return rows
        average = self.buffer[:n] / total
        own = self.flat.copy(self._dtype) if before is None else before
        self.drift = float((own - average).norm() / average.norm().clamp(min=1e-30))
        if self.outer and outer:
            k = self.flat.weights
            average[:k] = self.outer(average[:k])
        if before is None or not bool(torch.isfinite(own.sum())):
            self.flat.read(average)
        else:
            self.flat.add(average - own)
        return rows

    def rows(self) -> list[Row]:
        """What each rank has told in the outcome in `buffer`."""
        return self._table.read(self.buffer[self.flat.numel + 1 :].cpu())

    def _fill(self, weight: float, row: Row) -> None:
        n, weight = self.flat.numel, max(weight, _NOTHING)
        if not self.flat.write(self._sum, weight):
            weight, row = 0.0, dataclasses.replace(row, left_out=1.0)
        self._sum[n] = weight
        self._table.write(self._sum[n + 1 :], self._group.rank, row)

    def _swap(self) -> None:
        self.buffer, self._sum = self._sum, self.buffer

    def state_dict(self) -> dict[str, Any] | None:
        """Of the outer step."""
        return self.outer.state_dict() if self.outer else None
