"""The ranks that train one model together, as each of them sees it: what all policies have in common."""

from __future__ import annotations

import math
import platform
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import IntFlag
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from flodl import checkpoint
from flodl.data import Position
from flodl.distributed import Group, RankLost, Slowed, check_equal
from flodl.errors import TrainingError
from flodl.graph.structure import structural_hash
from flodl.train.evaluate import Planned, evaluate
from flodl.train.feed import Feed
from flodl.train.ledger import Ledger
from flodl.train.marks import Marks
from flodl.train.metrics import Meter, merged

if TYPE_CHECKING:
    from flodl.train.fit import Fit
    from flodl.train.update import Update

__all__ = ["Column", "Flag"]

_T = TypeVar("_T")


class Flag(IntFlag):
    """What a rank tells the others in a meeting."""

    STOP = 1
    """Training is to end."""
    INTERRUPT = 2
    TERMINATE = 4
    """It got this signal."""
    SAVE = 8
    """A checkpoint is due."""
    EVALUATE = 16
    """A callback asked for an evaluation."""
    EPOCH_END = 32
    """Its own loader has no batch left in this epoch."""
    END = 64
    """It trains no more."""


class Column(ABC):
    """One trainer's part in a training of several ranks.

    Every rank runs the same program. Between two meetings each trains its share of the data; a meeting is one collective,
    and what it tells is the same for all, so that all decide alike and nobody has to be asked.
    """

    lockstep = False
    """Whether gradients are averaged before each update, instead of weights after some."""

    def __init__(self, fit: Fit, group: Group) -> None:
        self.fit, self.group = fit, group
        self.settings = fit.trainer.config.ddp
        self.feed = Feed(fit.loader) if fit.loader else None
        self.observed = 0
        """Meetings that this rank knows the outcome of."""
        self.others: list[dict[str, Any]] | None = None
        """What each rank has besides what all have, at the newest exchange: for a checkpoint."""
        self.started = False
        self.finished = False
        self.stopped = False
        """All have agreed to train no further. (`fit.stopping` may be this rank's own wish.)"""
        self.joins = group.joins
        speeds = self.settings.simulate_speed
        speed = speeds[self.place] if speeds and self.place < len(speeds) else 1.0
        self.slowed = Slowed(speed) if speed < 1 else None
        self.marks = Marks()
        self._wishes = Flag(0)
        self._excluded = 0.0
        self._kept_rng: dict[str, Any] | None = None

    @property
    def rank(self) -> int:
        """Among those that train now."""
        return self.group.rank

    @property
    def size(self) -> int:
        """How many train now."""
        return self.group.size

    @property
    def place(self) -> int:
        """Of this rank when all started; it stays when others are lost."""
        return self.group.uid

    # -- what a policy does

    @abstractmethod
    def batches(self) -> Iterator[tuple[Any, int]]:
        """This rank's batches of the epoch under way, each with its samples, and the meetings between them."""

    @abstractmethod
    def next_step(self) -> int:
        """The number of the update that was just made."""

    @abstractmethod
    def end_at(self, total_epochs: int | None) -> None:
        """How long training will be."""

    @abstractmethod
    def epoch_is_whole(self) -> bool:
        """Whether all samples of the epoch under way were trained, by whomever."""

    @abstractmethod
    def place_in_data(self) -> tuple[int, list[tuple[int, int]]]:
        """The stream's position up to which samples were handed out and trained, and the ranges before it that were not."""

    @abstractmethod
    def go_on(self, position: int, pool: list[tuple[int, int]]) -> None:
        """Train on from there."""

    @abstractmethod
    def plan_state(self) -> dict[str, Any]:
        """What a newcomer must know of the plan, in plain values."""

    @abstractmethod
    def put_plan(self, state: dict[str, Any]) -> None:
        """Plan on from `plan_state()` of another rank."""

    @abstractmethod
    def changed(self, before: list[int | None]) -> None:
        """Ranks were lost or came. before: of each rank now, which one it was."""

    @abstractmethod
    def catch_up(self, source: int, behind: bool) -> None:
        """A meeting failed when some had its outcome already: those who have not get it from `source`."""

    def enter_epoch(self, epoch: int) -> None:  # noqa: B027
        """Another epoch has begun."""

    @abstractmethod
    def leave_epoch(self) -> None:
        """The loop has ended its epoch, perhaps before its batches did."""

    @abstractmethod
    def wind_up(self, flag: Flag) -> None:
        """This rank has no batch left in a loop of its own; the others may: go on meeting them until all say `flag`."""

    def starting(self) -> None:  # noqa: B027
        """All have the same weights, and nothing was trained yet."""

    def let_go(self) -> None:  # noqa: B027
        """Of a collective under way, if there is one."""

    def before_update(self, update: Update) -> None:  # noqa: B027
        """The gradients of an update are there."""

    def after_update(self) -> None:  # noqa: B027
        """An update was made."""

    # -- beginning

    def begin(self, total_epochs: int | None) -> None:
        """Before the first update: all have the same model, data and settings, or say what differs."""
        self.stopped = False
        if self.group.used_by not in (None, self):
            raise TrainingError(
                "another trainer of this program trains on these devices, and the meetings of two would cross: close it "
                "first, or use fl.Ddp, which leaves meeting to you"
            )
        self.group.used_by = self
        if not self.started:
            self.started = True
            if not self.group.joined:
                self._compare()
                if self.fit.keeper.resumed is None:
                    self._scale_rates()
            self.share_state()
            if self._kept_rng is not None:
                checkpoint.set_rng_state(self._kept_rng)
            elif self.rank > 0:
                self._own_randomness()
            self.starting()
        self.end_at(total_epochs)

    def share_state(self, source: int = 0, *, newcomers: tuple[int, ...] | None = None) -> None:
        """Everybody (or only the `newcomers`) goes on from where `source` is: weights, optimizer, plan and all else."""
        from flodl.train.saving import put_state, training_state

        fit, mine = self.fit, self.rank == source
        receives = not mine and (newcomers is None or self.rank in newcomers)
        state = None
        if mine:
            position = (fit.position.epoch, fit.position.sample)
            optimizer = fit.trainer.optimizer.state_dict()
            training = {**training_state(fit), "ledger": Ledger().state()}
            training.pop("window", None)  # of an update under way, which stays this rank's
            state = {
                "training": training, "optimizer": optimizer, "position": position, "plan": self.plan_state(),
                "observed": self.observed, "joins": self.joins, "history": fit.history,
                "folder": fit.run.folder and str(fit.run.folder) if self.started else None,
            }  # fmt: skip
        state = self.group.broadcast_object(state, source)
        for tensor in _tensors(fit.trainer.model):
            self.group.broadcast(tensor if receives or mine else tensor.clone(), source)
        if receives:
            own_rng = checkpoint.rng_state()
            fit.trainer.optimizer.load_state_dict(state["optimizer"])
            put_state(fit, state["training"])
            fit.position = Position(epoch=state["position"][0], sample=state["position"][1])
            fit.history[:] = state["history"]
            fit.folder_of_run = state["folder"]
            self.put_plan(state["plan"])
            self.observed, self.joins = state["observed"], state["joins"]
            checkpoint.set_rng_state(own_rng)

    def _compare(self) -> None:
        fit = self.fit
        training, ddp = fit.trainer.config.training, self.settings
        facts = {
            "the model's structure": structural_hash(fit.trainer.model)[:16],
            "the optimizer": type(fit.trainer.optimizer).__name__,
            "torch": torch.__version__,
            "Python": platform.python_version(),
            "policy": ddp.policy,
            "batch_size": str(training.batch_size),
            "accumulate": str(training.accumulate),
            "seed": str(training.seed),
        }
        if fit.loader:
            identity = fit.loader.identity()
            facts["samples in the dataset"] = str(identity["samples"])
            facts["the dataset's content"] = str(identity["fingerprint"])
        check_equal(self.group, facts)

    def _scale_rates(self) -> None:
        scale, n = self.settings.lr_scale, self.size
        factor = {"none": 1.0, "sqrt": math.sqrt(n), "linear": float(n)}.get(scale, scale)  # type: ignore[arg-type]
        if factor != 1.0:
            for group in self.fit.trainer.optimizer.param_groups:
                for name in ("lr", "initial_lr"):
                    if name in group:
                        group[name] = group[name] * factor
            self.fit.notes.append(
                f"learning rates are {factor:g} times those given, for {n} devices (lr_scale {scale})"
            )

    def _own_randomness(self) -> None:
        """Dropout must not draw the same numbers on every rank. Rank 0 draws what one device alone would."""
        seed = (torch.initial_seed() + 0x9E3779B97F4A7C15 * (self.place + 1) + self.fit.step) % 2**63
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)

    # -- wishes and decisions

    def wish(self, flag: Flag) -> None:
        """Tell the others in the next meeting."""
        self._wishes |= flag

    def flags(self) -> Flag:
        """What this rank has to tell now."""
        flags, fit = self._wishes, self.fit
        if fit.stopping:
            flags |= Flag.STOP
        if fit.interruption.signal == signal.SIGINT:
            flags |= Flag.INTERRUPT
        elif fit.interruption.signal:
            flags |= Flag.TERMINATE
        return flags

    @property
    def cut(self) -> bool:
        """Whether this rank wants to meet now, with its share half done."""
        return bool(self.fit.stopping or self.fit.interruption.signal)

    def decide(self, flags: Flag, before: int) -> None:
        """After a meeting in which all became equal: what was asked for, and what is due since step `before`."""
        fit = self.fit
        training, output = fit.trainer.config.training, fit.trainer.config.output
        self._wishes = Flag(0)
        if Flag.EVALUATE in flags or self._crossed(training.evaluate_steps, before):
            fit.evaluations.run()
            fit.keeper.save_if_best()
        if Flag.SAVE in flags or self._crossed(output.save_steps, before):
            self.exchange()
            if fit.keeper.wanted:
                fit.keeper.save(periodic=True)
        if training.max_steps is not None and fit.step >= training.max_steps:
            fit.reach(f"max_steps is {training.max_steps}")
            self.stopped = True
        if flags & (Flag.INTERRUPT | Flag.TERMINATE):
            fit.interruption.signal = signal.SIGINT if Flag.INTERRUPT in flags else signal.SIGTERM
            self.exchange()
            self.finished = True
            fit.interrupted()
        if Flag.STOP in flags or (Flag.END in flags and self.feed):
            fit.stopping = self.stopped = True

    def _crossed(self, every: int | None, before: int) -> bool:
        return every is not None and self.fit.step // every > before // every

    # -- what is gathered

    def exchange(self) -> list[dict[str, Any]]:
        """Every rank's own part of the training's state, by rank."""
        meter = self.fit.ledger.meter
        mine = {"meter": meter.state(), "rng": checkpoint.rng_state(), "stop": self.fit.stopping}
        self.others = self.lasting(partial(self.group.gather, mine))
        return self.others

    def merge_epoch(self) -> None:
        """The epoch's means are those of all ranks; so is the wish to stop."""
        fit, meter = self.fit, self.fit.ledger.meter
        everybody = self.exchange()
        meter.load(merged([own["meter"] for own in everybody]))
        if any(own["stop"] for own in everybody):
            fit.stopping = self.stopped = True
        for buffer in fit.trainer.model.buffers():
            if not buffer.is_floating_point():  # a counter has no mean: each rank's own until here
                self.lasting(partial(self.group.broadcast, buffer, 0))

    def evaluate(self, planned: Planned, stop: Callable[[], bool]) -> Meter | None:
        """Each rank evaluates every so many batches; the sums are those of all. None if one of them was cut off."""
        while True:
            ranks = self.group.generation
            meter = evaluate(self.fit.trainer.model, planned, stop, part=self.rank, of=self.size)
            mine = None if meter is None else meter.state()
            states = self.lasting(partial(self.group.gather, mine))
            if self.group.generation != ranks:  # one was lost, with its part
                continue
            if meter is None or any(state is None for state in states):
                return None
            meter.load(merged(states))
            return meter

    def state(self) -> dict[str, Any]:
        """For a checkpoint, in plain values and tensors."""
        position, pool = self.place_in_data()
        return {"position": position, "pool": [list(r) for r in pool], "ranks": self.size, "others": self.others or []}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()` of a training on any number of ranks."""
        self.go_on(state["position"], [(a, b) for a, b in state["pool"]])
        others = state["others"]
        if len(others) == self.size:
            self.others = others
            self.fit.ledger.meter.load(others[self.rank]["meter"])
            self._kept_rng = others[self.rank]["rng"]
        elif others:
            self.fit.ledger.meter.load(merged([own["meter"] for own in others]))

    # -- losing and gaining ranks

    def lasting(self, collective: Callable[[], _T]) -> _T:
        """The result of a collective that is made again when a rank is lost in it."""
        while True:
            try:
                return collective()
            except RankLost:
                self.recover()

    def recover(self) -> None:
        """A rank is lost: those that are left form anew and agree on which meetings took place."""
        group, started = self.group, time.time()
        while True:
            try:
                self.let_go()
                before = group.reform()
                counts = group.gather(self.observed)
                newest = max(counts)
                if min(counts) < newest:
                    self.catch_up(counts.index(newest), self.observed < newest)
                break
            except RankLost:
                continue
        self.changed(before)
        self.others = None
        if self.rank == 0:
            self.fit.lead()
        lost = group.lost
        devices = "1 device" if self.size == 1 else f"{self.size} devices"
        self.fit.run.warn(f"rank {', '.join(map(str, lost))} is lost: training goes on with {devices}", self.fit.step)
        self.fit.span("reform", started)

    def admit(self, joins: int) -> None:
        """`joins` ranks have asked to come in by now: all members know it since the same meeting."""
        if joins <= self.joins:
            return
        started, count = time.time(), joins - self.joins
        self.joins = joins
        before = self.group.admit(count)
        self.changed(before)
        self.others = None
        newcomers = tuple(rank for rank, was in enumerate(before) if was is None)
        self.share_state(newcomers=newcomers)
        if newcomers:
            self.fit.run.say(f"{len(newcomers)} joined: training goes on with {self.size} devices")
        self.fit.span("join", started)

    # -- the end

    def finish(self) -> None:
        """This rank trains no more: it stays in the meetings of the others until all say so."""
        if self.started and not self.finished:
            self.finished = True
            if self.feed is None:
                self.wind_up(Flag.END)

    def rest(self) -> None:
        """It does not train for now: another trainer may."""
        if self.group.used_by is self:
            self.group.used_by = None

    def exclude(self, seconds: float) -> None:
        """So much of the time since the last batch was no batch's."""
        self._excluded += seconds

    def took_out(self) -> float:
        """What was excluded since the last call, in seconds."""
        seconds, self._excluded = self._excluded, 0.0
        return seconds


def _tensors(model: torch.nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once."""
    found = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return [t.detach() for t in found.values()]
