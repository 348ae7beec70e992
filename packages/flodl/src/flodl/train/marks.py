"""What meetings of several ranks leave in the run's record: metrics and times of each rank, changed shares."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flodl.distributed import Row
from flodl.monitor import Recorder

__all__ = ["Marks"]

_LOOK_SECONDS = 0.2  # of meetings that are closer together only some are recorded


class Marks:
    """Of one training. Ranks go by the number that they started with, so that a curve stays one when others are lost."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}  # when each rank's newest share was done
        self._shares: list[float] = []
        self._anchor = 0
        self._at = 0.0
        self._gathered: list[list[float]] = []

    def window(
        self, recorder: Recorder, rows: Sequence[Row], uids: Sequence[int], *, step: int, began: float, timeline: bool
    ) -> None:
        """A meeting's outcome: one row for each rank; `began`: when the window did, seconds since 1970."""
        shared = (
            min((row.collective_ms for row in rows if row.collective_ms), default=0.0) / 1e3
        )  # the last to come waits for nobody
        for rank, (row, uid) in enumerate(zip(rows, uids, strict=True)):
            seconds = row.compute_ms / 1e3
            if rank and row.loss_weight:
                recorder.metric("loss", row.loss_sum / row.loss_weight, step=step, rank=uid)
            if seconds:
                recorder.metric("samples_per_s", row.samples / seconds, step=step, rank=uid)
                recorder.metric("drift", row.drift, step=step, rank=uid)
            if not timeline:
                continue
            if rank and seconds and row.updates:
                count = int(row.updates)
                recorder.event(
                    "steps", start=began, seconds=seconds, step=step, rank=uid, first=step - count + 1,
                    data_us=[0] * count, compute_us=[round(1e6 * seconds / count)] * count,
                )  # fmt: skip
            if (done := self._until.get(uid)) is not None and row.collective_ms:
                waited = max(row.collective_ms / 1e3 - shared, 0.0)
                recorder.event("wait", start=done, seconds=waited, step=step, rank=uid)
                recorder.event("sync", start=done + waited, seconds=shared, step=step, rank=uid)
            self._until[uid] = began + seconds
        self.shares(recorder, [row.samples for row in rows], uids, step)
        anchor = int(min((row.updates for row in rows if row.updates), default=0))
        if anchor and abs(anchor - self._anchor) > 0.2 * self._anchor:
            self._anchor = anchor
            recorder.event("anchor", step=step, anchor=anchor)

    def update(self, recorder: Recorder, rows: Sequence[Row], uids: Sequence[int], *, step: int) -> None:
        """An update that all ranks made together."""
        self._gathered = self._gathered or [[0.0, 0.0] for _ in rows]
        if len(self._gathered) == len(rows):
            for sums, row in zip(self._gathered, rows, strict=True):
                sums[0] += row.samples
                sums[1] += row.compute_ms / 1e3
        if time.monotonic() - self._at < _LOOK_SECONDS:
            return
        self._at = time.monotonic()
        gathered, self._gathered = self._gathered, []
        if len(gathered) == len(rows):
            for (samples, seconds), uid in zip(gathered, uids, strict=True):
                if seconds:
                    recorder.metric("samples_per_s", samples / seconds, step=step, rank=uid)
            self.shares(recorder, [samples for samples, _ in gathered], uids, step)

    def shares(self, recorder: Recorder, samples: Sequence[float], uids: Sequence[int], step: int) -> None:
        """Each rank's part of the samples, where it has changed."""
        total = sum(samples)
        if not total:
            return
        now = [n / total for n in samples]
        if len(now) != len(self._shares) or any(abs(a - b) > 0.05 for a, b in zip(now, self._shares, strict=True)):
            self._shares = now
            for share, uid in zip(now, uids, strict=True):
                recorder.event("share", step=step, rank=uid, share=share)
