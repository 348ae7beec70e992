"""The plan of cadence: how many batches each rank trains until the next meeting, and which. Pure: numbers in, numbers out."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flodl.distributed.stream import Range, Stream

__all__ = ["Planner", "Report", "Share", "Window"]

_CALIBRATION = 2  # batches of the first window; the first of them is not timed
_FIRST_ANCHOR = 8  # batches of the slowest rank in the first window after that
_REMEMBERED = 3  # windows whose means a rank's estimate is the median of
_GROWING = 3  # windows in a row with growing drift, from which windows do not become longer
_OF_EPOCH = 0.5  # of an epoch's samples are in a window at most, however short that is
_LEAD = 0.5  # of the time by which a rank is ahead in Async is trained away in the next window


@dataclass(frozen=True, kw_only=True)
class Share:
    """A rank's part of a window. ranges: empty where samples have no index."""

    batches: int
    ranges: tuple[Range, ...] = ()


@dataclass(kw_only=True)
class Window:
    """What is trained between two meetings. target_ms: how long it is meant to take; 0 without an estimate."""

    number: int
    target_ms: float
    shares: tuple[Share, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a rank did in a window. The first batch of a run is not among `batches` and `compute_ms`.

    collective_ms: of the collective before, until its outcome was there; blocked_ms: for how long of that it waited.
    drift: norm of (its weights - average) / norm of the average, at the meeting before.
    """

    samples: int
    batches: float
    compute_ms: float
    collective_ms: float = 0.0
    blocked_ms: float = 0.0
    drift: float = 0.0


class Planner:
    """Every rank has one and tells it the same, so all plan alike and nobody has to be asked.

    total_samples: where the stream of all epochs ends; None: not known. cross_epochs: windows may go on into the next epoch.
    overlapped: meetings do not block (Async). The other arguments are settings of `DdpConfig`.
    """

    def __init__(
        self,
        *,
        ranks: int,
        batch_size: int,
        epoch_samples: int | None,
        total_samples: int | None = None,
        anchor: int | None = None,
        max_anchor: int = 64,
        overhead_target: float = 0.05,
        divergence_threshold: float = 0.05,
        max_batch_diff: int | None = None,
        speed_hint: Mapping[int, float] | None = None,
        partition_ratios: Sequence[float] | None = None,
        position: int = 0,
        pool: Sequence[Range] = (),
        cross_epochs: bool = True,
        overlapped: bool = False,
    ) -> None:
        self.ranks, self.batch_size, self.total_samples = ranks, batch_size, total_samples
        self.max_anchor, self.overhead_target = max_anchor, overhead_target
        self.divergence_threshold, self.max_batch_diff = divergence_threshold, max_batch_diff
        self.cross_epochs, self.overlapped = cross_epochs, overlapped
        self.fixed_anchor = anchor
        self.ratios = None if partition_ratios is None else list(partition_ratios)
        self.hints = None if speed_hint is None else [float(speed_hint.get(r, 1.0)) for r in range(ranks)]
        self.stream = Stream(epoch_samples, position, pool)
        self.window_ms = 0.0
        """How long the next window is meant to take; 0: no estimate yet."""
        self.comm_ms = 0.0
        """What a collective takes when nobody has to be waited for."""
        self._means: list[list[float]] = [[] for _ in range(ranks)]
        self._lead = [0.0] * ranks
        self._open: list[Window] = []
        self._number = 0
        self._drift, self._growing = 0.0, 0

    # -- what is left

    @property
    def drained(self) -> bool:
        """Whether nothing is left to plan."""
        return self.stream.epoch_samples is not None and self.stream.left(self.total_samples) <= 0

    @property
    def done(self) -> bool:
        """Whether all was planned and all of it observed."""
        return self.drained and not self._open

    @property
    def position(self) -> int:
        """Up to where the stream was handed out."""
        return self.stream.position

    @property
    def pool(self) -> tuple[Range, ...]:
        """Ranges before `position` that nobody is known to have trained: what came back, and open windows."""
        return tuple(sorted([*self.stream.pool, *self._under_way]))

    @property
    def epochs_done(self) -> int:
        """Epochs all of whose samples are known to be trained."""
        n = self.stream.epoch_samples
        return 0 if n is None else min([self.stream.position, *(a for a, _ in self.pool)]) // n

    @property
    def _under_way(self) -> list[Range]:
        return [r for window in self._open for share in window.shares for r in share.ranges]

    @property
    def ms(self) -> tuple[float | None, ...]:
        """Of a batch on each rank, as far as it is known: the median of its last three windows' means."""
        return tuple(statistics.median(means) if means else None for means in self._means)

    @property
    def anchor(self) -> int:
        """Batches of the slowest rank in the next window."""
        known = [m for m in self.ms if m is not None]
        return max(1, round(self.window_ms / max(known))) if known and self.window_ms else _CALIBRATION

    def end_at(self, total_samples: int | None) -> None:
        """Training was made longer or shorter."""
        self.total_samples = total_samples

    # -- planning

    def plan(self) -> Window:
        """The next window."""
        counts, target = self._counts()
        end = self._end()
        ms = [m or 1.0 for m in self.ms]
        if self.stream.epoch_samples is not None:
            left = self.stream.left(end)
            if sum(counts) * self.batch_size > left:
                counts = _scheduled(math.ceil(left / self.batch_size), self._relative_ms())
                target = max((n * m for n, m in zip(counts, ms, strict=True)), default=0.0) if target else 0.0
        shares = []
        for count in counts:
            ranges = () if self.stream.epoch_samples is None else tuple(self.stream.take(count * self.batch_size, end))
            shares.append(Share(batches=count, ranges=ranges))
        window = Window(number=self._number, target_ms=target, shares=tuple(shares))
        self._number += 1
        self._open.append(window)
        return window

    def _end(self) -> int | None:
        end, n = self.total_samples, self.stream.epoch_samples
        if n is not None and not self.cross_epochs:
            of_epoch = (min([self.stream.position, *(a for a, _ in self.stream.pool)]) // n + 1) * n
            end = of_epoch if end is None else min(end, of_epoch)
        return end

    def _relative_ms(self) -> list[float]:
        """Times of a batch; where nothing was measured, by what was hinted at."""
        if self.ratios:
            return [1.0 / ratio for ratio in self.ratios]
        if all(m is not None for m in self.ms):
            return [m or 1.0 for m in self.ms]
        return [1.0 / hint for hint in self.hints] if self.hints else [1.0] * self.ranks

    def _counts(self) -> tuple[list[int], float]:
        """Batches of each rank, and the milliseconds that they are meant to take."""
        if self.ratios:
            anchor = self.fixed_anchor or _FIRST_ANCHOR
            return [max(1, round(anchor * ratio / min(self.ratios))) for ratio in self.ratios], 0.0
        ms = self.ms
        if any(m is None for m in ms):
            times = self._relative_ms()
            batches = min(_CALIBRATION, self.fixed_anchor or _CALIBRATION)
            return [max(1, round(batches * max(times) / t)) for t in times], 0.0
        times = [m or 1.0 for m in ms]
        target = self.window_ms if self.fixed_anchor is None else self.fixed_anchor * max(times)
        least = min(self._lead)
        extra = [_LEAD * min(lead - least, target) if self.overlapped else 0.0 for lead in self._lead]
        counts = [max(1, int((target + e) / t + 0.5)) for e, t in zip(extra, times, strict=True)]
        if n := self.stream.epoch_samples:
            shrink = _OF_EPOCH * n / (sum(counts) * self.batch_size)
            if shrink < 1:
                counts, target = [max(1, int(count * shrink)) for count in counts], target * shrink
        if self.max_batch_diff is not None:
            counts = [min(n, min(counts) + self.max_batch_diff) for n in counts]
        return counts, target

    # -- learning

    def observe(self, window: Window, reports: Sequence[Report]) -> None:
        """What a meeting told of `window`, by rank. What was not trained of it goes back into the stream."""
        self._open.remove(window)
        for share, report in zip(window.shares, reports, strict=True):
            self.stream.give_back(share.ranges, report.samples)
        for means, report in zip(self._means, reports, strict=True):
            if report.batches > 0 and report.compute_ms > 0:
                means[:] = [*means, report.compute_ms / report.batches][-_REMEMBERED:]
        times = [report.collective_ms for report in reports]
        if all(t > 0 for t in times):
            shared = min(times)  # the last to come waits for nobody
            self.comm_ms = shared if not self.comm_ms else 0.7 * self.comm_ms + 0.3 * shared
            self._lead = [t - shared for t in times]
        self._adapt(reports)

    def _adapt(self, reports: Sequence[Report]) -> None:
        """How long the next window is: what meeting costs is to be `overhead_target` of the time."""
        if any(m is None for m in self.ms):
            return
        slowest = max(m or 0.0 for m in self.ms)
        if not self.window_ms:
            self.window_ms = _FIRST_ANCHOR * slowest
        drift = max(report.drift for report in reports)
        self._growing = self._growing + 1 if drift > self._drift else 0
        self._drift = drift
        lost = statistics.mean(r.blocked_ms / (r.blocked_ms + r.compute_ms or 1.0) for r in reports)
        factor = min(max(lost / self.overhead_target, 0.8), 1.5)
        apart = drift > self.divergence_threshold
        if apart:  # what meeting costs comes second
            factor = min(factor, 0.8)
        elif self._growing >= _GROWING:
            factor = min(factor, 1.0)
        least = slowest if apart else max(slowest, self.comm_ms / self.overhead_target)
        self.window_ms = min(max(self.window_ms * factor, least), self.max_anchor * slowest)

    # -- ranks lost and come

    def reform(self, before: Sequence[int | None]) -> None:
        """before: of each rank now, which one it was; None for a newcomer. What lost ranks had in hand comes back."""
        for window in self._open:
            for rank, share in enumerate(window.shares):
                if rank not in before:
                    self.stream.give_back(share.ranges)
            window.shares = tuple(Share(batches=0) if was is None else window.shares[was] for was in before)
        known = [m for m in self.ms if m is not None]
        median = [statistics.median(known)] if known else []
        self._means = [list(median) if was is None else self._means[was] for was in before]
        for name in ("ratios", "hints"):
            if (values := getattr(self, name)) is not None:
                setattr(self, name, [statistics.median(values) if was is None else values[was] for was in before])
        self._lead = [0.0] * len(before)
        self.ranks = len(before)

    def state(self) -> dict[str, Any]:
        """Plain values; windows must not be open."""
        kept = {name: value for name, value in vars(self).items() if name not in ("stream", "_open")}
        stream = {"epoch_samples": self.stream.epoch_samples, "position": self.position, "pool": [*self.pool]}
        return {**kept, "_means": [list(m) for m in self._means], "_lead": list(self._lead), "stream": stream}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Planner:
        """A planner that goes on from `state()`."""
        planner = cls.__new__(cls)
        vars(planner).update(state)
        planner.stream = Stream(**state["stream"])
        planner._means, planner._lead = [list(m) for m in state["_means"]], list(state["_lead"])
        planner._open = []
        return planner


def _scheduled(batches: int, ms: Sequence[float]) -> list[int]:
    """So many batches, one by one to whoever would finish it first."""
    counts = [0] * len(ms)
    queue = [(time, rank) for rank, time in enumerate(ms)]
    heapq.heapify(queue)
    for _ in range(batches):
        time, rank = heapq.heappop(queue)
        counts[rank] += 1
        heapq.heappush(queue, (time + ms[rank], rank))
    return counts
