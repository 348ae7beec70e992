"""From positions in the stream of all samples to batches: what a plan hands out is fetched here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from flodl.data import Loader
from flodl.errors import DataError

__all__ = ["Feed", "rest"]

Range = tuple[int, int]


def rest(ranges: Sequence[Range], samples: int) -> list[Range]:
    """The ranges without their first `samples`."""
    left = []
    for a, b in ranges:
        taken = min(samples, b - a)
        samples -= taken
        if a + taken < b:
            left.append((a + taken, b))
    return left


class Feed:
    """The samples of a loader as one stream: position p is sample p % `epoch_samples` of epoch p // `epoch_samples`."""

    def __init__(self, loader: Loader) -> None:
        samples = loader.samples
        if samples is None:
            loader.given([])  # says why not
        if samples is None or not samples:
            raise DataError("there is no sample to train on")
        self.epoch_samples = samples
        self._loader = loader
        self._orders: dict[int, Tensor] = {}

    def batches(self, pieces: Iterable[Sequence[Range]]) -> Iterator[tuple[Any, int]]:
        """A batch for each piece, which is a list of ranges; with its number of samples."""
        return self._loader.given([self._piece(ranges) for ranges in pieces])

    def left(self, epoch: int, sample: int, pool: Sequence[Range], batch_size: int) -> Iterator[tuple[Any, int]]:
        """Batches of what a training on several devices left: `pool`, then the epoch after `sample` of its samples."""
        pieces = [[r] for a, b in pool for r in ((at, min(at + batch_size, b)) for at in range(a, b, batch_size))]
        yield from self.batches(pieces)
        yield from self._loader.counted(epoch, min(sample, self.epoch_samples))

    def _piece(self, ranges: Sequence[Range]) -> tuple[Tensor, int, int]:
        parts = [
            self._order(a // self.epoch_samples)[a % self.epoch_samples :][: b - a] for a, b in self._within(ranges)
        ]
        epoch, first = divmod(ranges[0][0], self.epoch_samples)
        return (parts[0] if len(parts) == 1 else torch.cat(parts)), epoch, first

    def _within(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """The ranges, cut at the ends of epochs."""
        for a, b in ranges:
            while a < b:
                end = min(b, (a // self.epoch_samples + 1) * self.epoch_samples)
                yield a, end
                a = end

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            for old in [e for e in self._orders if e < epoch - 1]:
                del self._orders[old]
            order = self._loader.order(epoch)
            assert order is not None
            self._orders[epoch] = order.to(self._loader.device) if self._loader.resident else order
        return self._orders[epoch]
