"""Sync: every update is made of all ranks' gradients, and each rank's part of a batch fits its speed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flodl.data import Position
from flodl.distributed import GradientMean, Group, Range, RankLost, Row, Split, Stream, parted
from flodl.train.column import Column, Flag

if TYPE_CHECKING:
    from flodl.train.fit import Fit
    from flodl.train.update import Update

__all__ = ["Lockstep"]


class Lockstep(Column):
    """A global batch is `batch_size` times the number of ranks, shared in proportion to speed; an update, one collective."""

    lockstep = True

    def __init__(self, fit: Fit, group: Group) -> None:
        super().__init__(fit, group)
        optimizer = fit.trainer.optimizer
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        self._mean = GradientMean(parameters, group, buffers=_float_buffers(fit))
        training, settings = fit.trainer.config.training, self.settings
        self._batch = training.batch_size * training.accumulate
        self._split = Split(
            ranks=self.size,
            speed_hint=settings.speeds_by_rank,
            partition_ratios=settings.partition_ratios,
        )
        self._stream = Stream(self.feed.epoch_samples if self.feed else None)
        self._parts: list[tuple[Range, ...]] = []  # of each rank, in the update under way
        self._done = 0  # samples of this rank's part that it trained
        self._began = time.perf_counter()
        self._compute_ms = 0.0
        self._rows: list[Row] = []
        self._extra = Flag(0)
        self._common = Flag(0)  # what all have told
        self._cut_epoch = False

    # -- how far

    def end_at(self, total_epochs: int | None) -> None:
        """Updates do not cross the end of an epoch, so that there is nothing to plan ahead."""

    def next_step(self) -> int:
        """Updates are the same on all ranks."""
        return self.fit.step + 1

    def epoch_is_whole(self) -> bool:
        """Whether all samples of the epoch under way were trained, by whomever."""
        return self._stream.epochs_done > self.fit.position.epoch

    def place_in_data(self) -> tuple[int, list[Range]]:
        """Of what was trained; an update under way has trained nothing yet."""
        under_way = [r for part in self._parts for r in part]
        return self._stream.position, sorted([*self._stream.pool, *under_way])

    def go_on(self, position: int, pool: list[Range]) -> None:
        """Train on from there."""
        self._stream.position, self._stream.pool = position, list(pool)

    def plan_state(self) -> dict[str, Any]:
        """The stream's place and the sizes."""
        position, pool = self.place_in_data()
        return {"position": position, "pool": pool, "split": self._split.state()}

    def put_plan(self, state: dict[str, Any]) -> None:
        """Plan on from another rank's."""
        self.go_on(state["position"], [(a, b) for a, b in state["pool"]])
        self._split.load(state["split"])

    # -- training

    def batches(self) -> Iterator[tuple[Any, int]]:
        """This rank's part of each global batch of the epoch under way."""
        assert self.feed is not None
        fit, accumulate = self.fit, self.fit.trainer.config.training.accumulate
        self._cut_epoch = False
        while not (self.epoch_is_whole() or self._cut_epoch or self.stopped):
            step = fit.step
            ranges = self._stream.take(self._batch * self.size, self._stream.epoch_end)
            sizes = self._split.sizes(sum(b - a for a, b in ranges))
            self._parts = parted(ranges, sizes)
            self._done, self._began = 0, time.perf_counter()
            self.took_out()
            if self.slowed:
                self.slowed.skip()
            with closing(self.feed.batches(_pieces(self._parts[self.rank], accumulate))) as batches:  # type: ignore[type-var]
                for batch, samples in batches:
                    self._done += samples
                    yield batch, samples
            if fit.step == step:  # no batch, fewer than an update has, or a loop that took no step
                fit.trainer.close_update(alone=False)

    def leave_epoch(self) -> None:
        """The loop has ended its epoch. If it left its batches before their end, all ranks end the epoch."""
        fit = self.fit
        if self.feed is None:
            self.wind_up(Flag.EPOCH_END)
            return
        if self._parts:  # the loop left in the middle of an update
            self._extra = Flag.EPOCH_END
            fit.trainer.close_update(alone=False)
            self._extra = Flag(0)
        if self._cut_epoch:
            self.go_on((fit.position.epoch + 1) * self.feed.epoch_samples, [])

    def wind_up(self, flag: Flag) -> None:
        """Make the updates of the others, with no gradient of its own, until all say `flag`."""
        self._extra, self._common = flag, Flag(0)
        while flag not in self._common:
            self.fit.trainer.close_update(alone=False)
        self._extra = Flag(0)

    def before_update(self, update: Update) -> None:
        """Average the gradients; the update is then the same on all ranks."""
        if self.slowed:
            self.slowed.after_batch()
        self._compute_ms = 1e3 * (time.perf_counter() - self._began - self.took_out())
        summed = not update.single
        update.release()
        while True:
            try:
                weight: float | Tensor = update.weight if update.batches else 0.0
                self._rows = self._mean.reduce(weight, self._row(), summed=summed)
                break
            except RankLost:
                self.recover()
                if self._rows:  # it had taken place, and the outcome came from another rank
                    break
        update.weight = 1.0 if self._mean.total else 0.0

    def after_update(self) -> None:
        """The outcome is observed once the update is made."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        parts, self._parts = self._parts, []
        fit, before = self.fit, self.fit.step - 1
        self.observed += 1
        for part, row in zip(parts, rows, strict=False):
            self._stream.give_back(part, int(row.samples))
        self._split.observe([row.compute_ms for row in rows], [int(row.samples) for row in rows])
        if self.feed:
            at = self._stream.position - fit.position.epoch * self.feed.epoch_samples
            fit.position = Position(epoch=fit.position.epoch, sample=max(at, 0))
        told = [Flag(int(row.flags)) for row in rows]
        some, self._common = reduce(or_, told), reduce(and_, told)
        if self.feed and some & (Flag.EPOCH_END | Flag.END):
            self._cut_epoch = True
        if recorder := fit.run.recorder:
            self.marks.update(recorder, rows, self.group.members, step=fit.step)
        self.decide(some, before)
        self.admit(int(max(row.joins for row in rows)))
        self._began = time.perf_counter()
        self.took_out()

    def _row(self) -> Row:
        return Row(
            samples=self._done if self.feed else self.fit.trainer.samples_of_update(),
            batches=1,
            compute_ms=self._compute_ms,
            collective_ms=self._mean.collective_ms,
            joins=self.group.joins,
            flags=int(self.flags() | self._extra),
            updates=1,
        )

    # -- ranks lost and come

    def changed(self, before: list[int | None]) -> None:
        """What a lost rank had in hand comes back; sizes are among those that are there now."""
        parts, self._parts = self._parts, []
        for rank, part in enumerate(parts):
            if rank not in before:
                self._stream.give_back(part)
        if parts:
            self._parts = [() if was is None else parts[was] for was in before]
        self._split.reform(before)
        self._mean.reform()

    def catch_up(self, source: int, behind: bool) -> None:
        """What was summed for an update is sent to those who did not get it."""
        self.group.broadcast(self._mean.buffer, source)
        if behind:
            self._rows = self._mean.apply()


def _pieces(part: tuple[Range, ...], count: int) -> list[list[Range]]:
    """A part in `count` batches of nearly the same size, fewer where it has fewer samples."""
    total = sum(b - a for a, b in part)
    sizes = [total // count + (n < total % count) for n in range(count)]
    return [list(ranges) for ranges in parted(part, [size for size in sizes if size])]


def _float_buffers(fit: Fit) -> list[Tensor]:
    return [b for b in fit.trainer.model.buffers() if b.is_floating_point()]
