"""The mean of all ranks' gradients, weighted by samples: what one big batch would have given."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from flodl.distributed.flat import comm_dtype, dense_view
from flodl.distributed.group import Group
from flodl.distributed.rows import Row, Table

__all__ = ["GradientMean"]

_SPARSE = 2.0**16  # stands for a gradient that is sparse, as those of embeddings are: rows of numbers


class GradientMean:
    """One sum over ranks of [gradients * w | buffers * w | 1 for each gradient that there is | w | table].

    A gradient that no rank has stays None; where only some have one, the others count as zero. Sparse gradients are
    summed dense and given back sparse. `buffers` (running statistics) become the mean over the ranks. A rank with weight
    0 counts for nothing, whatever its gradients are.
    """

    def __init__(self, parameters: Sequence[Tensor], group: Group, buffers: Sequence[Tensor] = ()) -> None:
        self._parameters, self._buffers = list({id(p): p for p in parameters}.values()), list(buffers)
        self._group = group
        self.collective_ms = 0.0
        """The newest collective's."""
        self.total = 0.0
        """The sum of all ranks' weights in it."""
        self._dtype = comm_dtype([*self._parameters, *self._buffers])
        self._starts: list[int] = []
        end = 0
        for tensor in [*self._parameters, *self._buffers]:
            self._starts.append(end)
            end += tensor.numel()
        self._numel, self._present = end, len(self._parameters)
        self.reform()

    def reform(self) -> None:
        """The ranks have changed."""
        tensors = [*self._parameters, *self._buffers]
        device = tensors[0].device if tensors else torch.device("cpu")
        self._table = Table(self._group.size)
        self.buffer = torch.zeros(self._numel + self._present + 1 + self._table.numel, dtype=self._dtype, device=device)
        """The newest outcome, as it was summed: a rank that has missed it can be sent it, also when this one is already in the
        next."""
        self._sum = torch.zeros_like(self.buffer)  # what is being summed
        self._means = torch.zeros(self._numel, dtype=self._dtype, device=device)
        self._places, self._other_places = (
            [dense_view(buffer, s, t) for s, t in zip(self._starts, tensors, strict=True)]
            for buffer in (self._sum, self.buffer)
        )
        self._results = [dense_view(self._means, s, t) for s, t in zip(self._starts, tensors, strict=True)]

    def reduce(self, weight: float | Tensor, row: Row, *, summed: bool = False) -> list[Row]:
        """Make each `p.grad` the mean over ranks. Returns all ranks' rows. Raises RankLost, with gradients as they were.

        weight: of this rank's batch. summed: gradients are multiplied with it already.
        """
        self._fill(float(weight), row, summed)
        started = time.perf_counter()
        self._group.all_reduce(self._sum)
        self.buffer, self._sum = self._sum, self.buffer
        self._places, self._other_places = self._other_places, self._places
        self.collective_ms = 1e3 * (time.perf_counter() - started)
        return self.apply()

    @torch.no_grad()
    def _fill(self, weight: float, row: Row, summed: bool) -> None:
        k, n, buffer = len(self._parameters), self._numel, self._sum
        grads = [p.grad for p in self._parameters] if weight else [None] * k
        there = [(place, g) for place, g in zip(self._places[:k], grads, strict=True) if g is not None]
        if len(there) < k:
            buffer[:n].zero_()
        if there:
            dense = [g.to_dense() if g.is_sparse else g for _, g in there]
            torch._foreach_copy_([place for place, _ in there], dense)
            if not summed:
                end = self._starts[k] if len(self._starts) > k else n
                buffer[:end].mul_(weight)
        for place, statistic in zip(self._places[k:], self._buffers, strict=True):
            place.copy_(statistic).mul_(weight) if weight else place.zero_()
        there_is = [0.0 if g is None else _SPARSE if g.is_sparse else 1.0 for g in grads]
        buffer[n : n + k] = torch.tensor(there_is, dtype=self._dtype)
        buffer[n + k] = weight
        self._table.write(buffer[n + k + 1 :], self._group.rank, row)

    @torch.no_grad()
    def apply(self) -> list[Row]:
        """Take the outcome in `buffer`."""
        k, n, buffer = len(self._parameters), self._numel, self.buffer
        tail = buffer[n:].cpu()
        rows = self._table.read(tail[k + 1 :])
        self.total = float(tail[k])
        if not self.total:
            for p in self._parameters:
                p.grad = None
            return rows
        torch.div(buffer[:n], self.total, out=self._means)
        for p, mean, present in zip(self._parameters, self._results[:k], tail[:k].tolist(), strict=True):
            if not present:
                p.grad = None
                continue
            gradient = mean.to(p.dtype)
            if present >= _SPARSE:
                gradient = gradient.to_sparse(1)
            p.grad = gradient
        for statistic, mean in zip(self._buffers, self._results[k:], strict=True):
            statistic.copy_(mean)
        return rows
