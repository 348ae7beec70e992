"""Cadence and Async: ranks train on their own between two meetings, in which their weights are averaged."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

import torch

from flodl.data import Position
from flodl.distributed import Averager, FlatState, Group, OuterStep, Planner, RankLost, Report, Row, Window, chop
from flodl.train.column import Column, Flag

if TYPE_CHECKING:
    from flodl.train.fit import Fit

__all__ = ["Cadence"]

_LATE = 1.1  # times the window's time: a share that takes longer is cut, and its rest given back
_NONE = Flag(0)
_BLOCKING = 2  # meetings of all, whose outcome is awaited, before there are others


@dataclass
class Leg:
    """What this rank has done of one window."""

    window: Window
    began: float
    samples: int = 0
    batches: int = 0
    updates: int = 0
    timed: int = 0
    seconds: float = 0.0
    loss: tuple[float, float] = (0.0, 0.0)
    waited: float = 0.0


class Cadence(Column):
    """Each rank trains as many batches as it can in the time of a window; then weights are averaged by samples.

    `overlapped`: Async, where the average travels while training goes on, and is added when it is there.
    """

    def __init__(self, fit: Fit, group: Group, *, overlapped: bool) -> None:
        super().__init__(fit, group)
        ema = fit.update.rule.ema
        outer = self.settings.outer
        self._flat = FlatState(fit.trainer.model, list(ema.shadow.values()) if ema else ())
        step = OuterStep(**(outer if isinstance(outer, dict) else {})) if outer else None
        self._averager = Averager(self._flat, group, step)
        self._overlapped = overlapped
        self._planner = self._plan_from(0, [])
        self._open: list[Leg] = []  # begun, outcome not known; in Async the first of two may be travelling
        self._leg: Leg | None = None  # under way
        self._meetings = 0  # since the ranks last changed
        self._base = 0  # updates of all ranks, as the newest meeting told
        self._equal_at = 0  # the same, of the newest meeting after which all were equal
        self._in_host = False  # this meeting averages among the ranks of one host
        self._stepped_to = 0
        self._due = False  # something waits for a meeting after which all are equal
        self._decision: tuple[Flag, int, int] | None = None
        self._relayout = False
        self._trainable = self._flat.trainable
        self._told_left_out = False
        self._cut_epoch = False
        self._first = True  # the first batch of a run is not timed

    def _plan_from(self, position: int, pool: list[tuple[int, int]]) -> Planner:
        settings, training = self.settings, self.fit.trainer.config.training
        return Planner(
            ranks=self.size,
            batch_size=training.batch_size * training.accumulate,
            epoch_samples=self.feed.epoch_samples if self.feed else None,
            total_samples=None,
            anchor=None if settings.anchor == "auto" else int(settings.anchor),
            max_anchor=settings.max_anchor,
            overhead_target=settings.overhead_target,
            divergence_threshold=settings.divergence_threshold,
            max_batch_diff=settings.max_batch_diff,
            speed_hint=settings.speeds_by_rank,
            partition_ratios=settings.partition_ratios,
            position=position,
            pool=pool,
            cross_epochs=not training.group_by_length,
            overlapped=self._overlapped,
        )

    # -- how far

    def end_at(self, total_epochs: int | None) -> None:
        """All samples of so many epochs; without a number, of the epoch under way; at most those of `max_steps`."""
        if self.feed is None:
            return
        fit, training = self.fit, self.fit.trainer.config.training
        n, step = self.feed.epoch_samples, training.batch_size * training.accumulate
        limits = [n * total_epochs] if total_epochs is not None else []
        if training.max_steps is not None:
            limits.append(self._planner.position + max(training.max_steps - fit.step, 0) * step)
        if not limits and training.max_time is None:
            limits = [n * (fit.position.epoch + 1)]
        self._base = self._equal_at = self._stepped_to = fit.step
        self._planner.end_at(min(limits) if limits else None)

    def epoch_is_whole(self) -> bool:
        """Whether all samples of the epoch under way were trained, by whomever."""
        return self._planner.epochs_done > self.fit.position.epoch

    def place_in_data(self) -> tuple[int, list[tuple[int, int]]]:
        """Of what all ranks know to be trained."""
        return self._planner.position, list(self._planner.pool)

    def go_on(self, position: int, pool: list[tuple[int, int]]) -> None:
        """Train on from there."""
        self._planner = self._plan_from(position, pool)
        self._base = self._equal_at = self._stepped_to = self.fit.step

    def plan_state(self) -> dict[str, Any]:
        """The planner's and the outer step's."""
        outer = self._averager.outer
        return {"planner": self._planner.state(), "outer": outer and outer.state_dict(), "base": self._base}

    def put_plan(self, state: dict[str, Any]) -> None:
        """Plan on from another rank's."""
        self._planner = Planner.restore(state["planner"])
        self._base = self._equal_at = self._stepped_to = state["base"]
        if self._averager.outer and state["outer"]:
            self._averager.outer.load_state_dict(state["outer"])

    def next_step(self) -> int:
        """Updates are counted over all ranks, and those of one window spread evenly over its time on each."""
        leg = self._leg
        if leg is None:
            return self.fit.step + 1
        leg.updates += 1
        shares = [share.batches for share in leg.window.shares]
        done = math.ceil(sum(shares) * leg.updates / max(shares[self.rank], leg.updates))
        self._stepped_to = max(self._base + done, self.fit.step + 1)
        return self._stepped_to

    # -- training

    def batches(self) -> Iterator[tuple[Any, int]]:
        """This rank's batches of the epoch under way, each with its samples, and the meetings between them."""
        fit = self.fit
        if self._planner.drained and not self.epoch_is_whole():
            self.end_at(None)
        self._cut_epoch = False
        while not (self.epoch_is_whole() or self._cut_epoch or self.stopped):
            leg = self._begin_leg()
            yield from self._train(leg)
            fit.trainer.close_update()
            self._leg = None
            self._meet(leg)

    def enter_epoch(self, epoch: int) -> None:
        """Some of its samples may be trained already."""
        if self.feed:
            at = self._planner.position - epoch * self.feed.epoch_samples
            self.fit.position = Position(epoch=epoch, sample=max(at, 0))

    def leave_epoch(self) -> None:
        """The loop has ended its epoch. If it left its batches before their end, all ranks end the epoch."""
        if self.feed is None:
            self.wind_up(Flag.EPOCH_END)
        elif self._leg:
            leg, self._leg = self._leg, None
            self._meet(leg, Flag.EPOCH_END)
        if self._cut_epoch and self.feed:
            self.go_on((self.fit.position.epoch + 1) * self.feed.epoch_samples, [])
            self.end_at(self.fit.total_epochs)

    def _begin_leg(self) -> Leg:
        self.took_out()
        if self.slowed:
            self.slowed.skip()
        self._leg = leg = Leg(self._planner.plan(), time.perf_counter())
        leg.loss = self.fit.ledger.meter.total("loss")
        return leg

    def _train(self, leg: Leg) -> Iterator[tuple[Any, int]]:
        assert self.feed is not None
        training = self.fit.trainer.config.training
        pieces = chop(leg.window.shares[self.rank].ranges, training.batch_size)
        left = len(pieces)
        with closing(self.feed.batches(pieces)) as batches:  # type: ignore[type-var]
            for batch, samples in batches:
                yield batch, samples
                left -= 1
                update_whole = self.fit.update.batches == 0
                if self._count(leg, samples, counts=update_whole or not left) and left and update_whole:
                    break

    def _count(self, leg: Leg, samples: int, *, counts: bool = True) -> bool:
        """A batch was trained. Returns whether it is time to meet."""
        if self.slowed:
            self.slowed.after_batch()
        if self._open and self._averager.arrived:
            self._settle()
        excluded = self.took_out()
        leg.began += excluded
        now = time.perf_counter()
        leg.samples += samples
        if counts:
            leg.batches += 1
            if self._first:
                self._first = False
                leg.began = now
            else:
                leg.timed += 1
        leg.seconds = now - leg.began
        if self.cut:
            return True
        limit = _LATE * leg.window.target_ms / 1e3
        return bool(limit and leg.timed and leg.seconds * (1 + 0.5 / leg.timed) > limit)

    def after_update(self) -> None:
        """With a loader of the user's own: count, and meet when the share is done."""
        if self.feed is not None:
            return
        fit = self.fit
        leg = self._leg or self._begin_leg()
        late = self._count(leg, fit.trainer.samples_of_update())
        if late or leg.batches >= leg.window.shares[self.rank].batches:
            self._leg = None
            self._meet(leg)

    def wind_up(self, flag: Flag) -> None:
        """Meet the others with nothing to give, until all say `flag`."""
        leg, self._leg = self._leg or self._begin_leg(), None
        while flag not in self._meet(leg, flag):
            leg, self._leg = self._begin_leg(), None

    # -- meeting

    def _meet(self, leg: Leg, extra: Flag = _NONE) -> Flag:
        """Average, exchange what was measured, decide. Returns the flags that all ranks have told."""
        fit = self.fit
        if fit.trainer.device.type == "cuda":
            torch.cuda.synchronize(fit.trainer.device)
            leg.seconds = max(leg.seconds, time.perf_counter() - leg.began)
        fit.drain()
        total = fit.ledger.meter.total("loss")
        leg.loss = (total[0] - leg.loss[0], total[1] - leg.loss[1])
        self._open.append(leg)
        common = Flag(0)
        while self._open:
            try:
                if len(self._open) > 1 or self._averager.travelling:
                    self._land()
                    continue
                flags = self.flags() | extra
                row = self._row(leg, flags)
                blocking = self._blocking()
                self._in_host = not blocking and not self._overlapped
                if self._in_host:
                    self._told(self._averager.average(self._weight(leg), row, in_host=True), equal=False)
                elif blocking:
                    common = self._told(self._averager.average(self._weight(leg), row), equal=True)
                else:
                    self._averager.launch(self._weight(leg), row)
                break
            except RankLost:
                self.recover()
        if self._decision:
            (some, before, joins), self._decision = self._decision, None
            if self._relayout:
                self._lay_out_anew()
            self.decide(some, before)
            self.admit(joins)
        return common

    def _blocking(self) -> bool:
        """Whether all ranks become equal in the meeting that comes; all of them say the same."""
        if (
            self._meetings < _BLOCKING
            or self._due
            or self.feed is None
            or self._planner.drained
            or self.epoch_is_whole()
        ):
            return True
        if self._overlapped:
            return False
        last_of_epoch = self._planner.stream.epochs_done > self.fit.position.epoch
        every = self.settings.hosts_every
        return last_of_epoch or self._meetings % every == 0 or self.group.hosts() == 1

    def _settle(self) -> None:
        """An average has come while training went on."""
        try:
            self._land()
        except RankLost:
            self.recover()
            if self._open:  # the average was lost with the rank: made again, among those that are left
                self.lasting(self._land)

    def _land(self) -> None:
        """The oldest meeting that is open gets its outcome."""
        if self._averager.travelling:
            self._told(self._averager.finish(), equal=False)
        elif self._open:
            leg = self._open[0]
            self._told(self._averager.average(self._weight(leg), self._row(leg, self.flags())), equal=False)

    def _weight(self, leg: Leg) -> float:
        planned = sum(b - a for share in leg.window.shares for a, b in share.ranges)
        return leg.samples / (planned or max(leg.samples, 1) * self.size)

    def _row(self, leg: Leg, flags: Flag) -> Row:
        return Row(
            samples=leg.samples,
            batches=leg.timed,
            compute_ms=1e3 * leg.seconds if leg.timed else 0.0,
            collective_ms=self._averager.collective_ms,
            blocked_ms=self._averager.blocked_ms,
            drift=self._averager.drift,
            trainable=self._flat.trainable,
            loss_sum=leg.loss[0],
            loss_weight=leg.loss[1],
            joins=self.group.joins,
            flags=int(flags),
            updates=leg.updates,
        )

    def _told(self, rows: list[Row], *, equal: bool) -> Flag:
        """A meeting's outcome. equal: no rank has trained since, all have the same weights."""
        fit, leg = self.fit, self._open.pop(0)
        before = self._equal_at
        reports = [
            Report(
                samples=int(row.samples),
                batches=row.batches,
                compute_ms=row.compute_ms,
                collective_ms=row.collective_ms,
                blocked_ms=row.blocked_ms,
                drift=row.drift,
            )
            for row in rows
        ]
        self._planner.observe(leg.window, reports)
        self.observed += 1
        self._meetings += 1
        self._base += int(sum(row.updates for row in rows))
        if equal:
            fit.step = self._equal_at = self._base
        if self.feed:
            at = self._planner.position - fit.position.epoch * self.feed.epoch_samples
            fit.position = Position(epoch=fit.position.epoch, sample=max(at, 0))
        if recorder := fit.run.recorder:
            began = time.time() - (time.perf_counter() - leg.began)
            timeline = self.settings.timeline
            self.marks.window(recorder, rows, self.group.members, step=self._base, began=began, timeline=timeline)
        told = [Flag(int(row.flags)) for row in rows]
        some, common = reduce(or_, told), reduce(and_, told)
        joins = int(max(row.joins for row in rows))
        thawed = len({row.trainable for row in rows}) > 1 or rows[0].trainable != self._trainable
        self._report_left_out(rows)
        if self.feed and some & (Flag.EPOCH_END | Flag.END):
            self._cut_epoch = True
        if equal:
            self._due, self._decision = False, (some, before, joins)
            self._relayout = thawed
        elif some or thawed or self._crosses(before) or joins > self.joins:
            self._due = True
            self._wishes |= some & ~(Flag.EPOCH_END | Flag.END)
        return common

    def _lay_out_anew(self) -> None:
        """Parameters were thawed or frozen, perhaps not yet on each rank: averaged are those that any rank trains."""
        masks = self.lasting(partial(self.group.gather, self._flat.mask()))
        mask = [any(of_ranks) for of_ranks in zip(*masks, strict=True)]
        self._relayout, self._trainable = False, sum(mask)
        if mask != self._flat.averaged:
            self._flat.layout(mask)
            self._averager.reform()
            self._averager.start()

    def _report_left_out(self, rows: list[Row]) -> None:
        left_out = [uid for uid, row in zip(self.group.members, rows, strict=True) if row.left_out]
        if left_out and not self._told_left_out:
            self._told_left_out = True
            named = ", ".join(map(str, left_out))
            text = f"the weights of rank {named} are NaN or infinite: it takes the average of the others"
            self.fit.run.warn(text, self.fit.step)

    def starting(self) -> None:
        """All have the same weights."""
        self._averager.start()

    def _crosses(self, before: int) -> bool:
        training, output = self.fit.trainer.config.training, self.fit.trainer.config.output
        now = self._base
        every = [n for n in (training.evaluate_steps, output.save_steps) if n]
        limit = training.max_steps
        return any(now // n > before // n for n in every) or (limit is not None and now >= limit)

    # -- ranks lost and come

    def let_go(self) -> None:
        """Of the average that travels."""
        self._averager.let_go()

    def changed(self, before: list[int | None]) -> None:
        """The plan and the averages are among those that are there now."""
        self._planner.reform(before)
        self._averager.reform()
        self._meetings = 0

    def catch_up(self, source: int, behind: bool) -> None:
        """What was summed in a meeting is sent to those who did not get it."""
        self.group.broadcast(self._averager.buffer, source)
        if behind:
            if self._in_host:  # that was another host's average, perhaps: this rank's own goes into the next of all
                self._told(self._averager.rows(), equal=False)
                return
            travelled = self._averager.travelling
            self._told(self._averager.apply(), equal=not travelled)
