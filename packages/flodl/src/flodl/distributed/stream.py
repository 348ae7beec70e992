"""The stream of all samples, epoch after epoch: what of it was handed out, and what came back."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Range", "Stream", "chop", "parted"]

Range = tuple[int, int]


class Stream:
    """Position p is sample p % `epoch_samples` of epoch p // `epoch_samples`. Pure integers, the same on every rank.

    `position`: up to where samples were handed out; `pool`: ranges before it that came back untrained, in order.
    """

    def __init__(self, epoch_samples: int | None, position: int = 0, pool: Sequence[Range] = ()) -> None:
        self.epoch_samples = epoch_samples
        self.position = position
        self.pool: list[Range] = list(pool)

    @property
    def epochs_done(self) -> int:
        """Epochs of which no sample is left to hand out."""
        n = self.epoch_samples
        return 0 if n is None else min([self.position, *(a for a, _ in self.pool)]) // n

    @property
    def epoch_end(self) -> int | None:
        """Where the oldest epoch ends of which samples are left."""
        n = self.epoch_samples
        return None if n is None else (self.epochs_done + 1) * n

    def left(self, end: int | None) -> float:
        """Samples that can still be handed out before stream position `end`."""
        ahead = float("inf") if end is None else max(0, end - self.position)
        return ahead + sum(b - a for a, b in self.pool)

    def take(self, samples: int, end: int | None) -> list[Range]:
        """The next `samples` as ranges, what came back first, none of them from stream position `end` on."""
        taken: list[Range] = []
        while samples and self.pool:
            a, b = self.pool[0]
            stop = min(b, a + samples)
            taken.append((a, stop))
            samples -= stop - a
            self.pool[:1] = [(stop, b)] if stop < b else []
        stop = self.position + samples if end is None else min(self.position + samples, end)
        if stop > self.position:
            taken.append((self.position, stop))
            self.position = stop
        return taken

    def give_back(self, ranges: Sequence[Range], trained: int = 0) -> None:
        """Of `ranges` only the first `trained` samples were trained; the others are for whoever comes next."""
        for a, b in ranges:
            done = min(trained, b - a)
            trained -= done
            if a + done < b:
                self.pool.append((a + done, b))
        self.pool.sort()


def chop(ranges: Sequence[Range], size: int) -> list[list[Range]]:
    """The ranges in batches of `size` samples, the last one perhaps smaller. A batch may be of several ranges."""
    total = sum(b - a for a, b in ranges)
    sizes = [size] * (total // size) + ([total % size] if total % size else [])
    return [list(part) for part in parted(ranges, sizes)]


def parted(ranges: Sequence[Range], sizes: Sequence[int]) -> list[tuple[Range, ...]]:
    """The ranges in consecutive parts of so many samples."""
    left, parts = list(ranges), []
    for size in sizes:
        part: list[Range] = []
        while size:
            a, b = left[0]
            end = min(b, a + size)
            part.append((a, end))
            size -= end - a
            left[:1] = [(end, b)] if end < b else []
        parts.append(tuple(part))
    return parts
