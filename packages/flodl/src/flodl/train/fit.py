"""A training in time: how far it is, what is due after each update and epoch, and how it ends."""

from __future__ import annotations

import atexit
import copy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch

from flodl import checkpoint
from flodl.data import Loader, Position
from flodl.distributed import Group
from flodl.errors import ConfigError, StoreError, TrainingError, nearest
from flodl.graph.state import StateCell
from flodl.train.average import update_batch_norm
from flodl.train.callbacks import Callbacks, Control, FitState, Moment
from flodl.train.column import Column, Flag
from flodl.train.config import RunConfig, without_output
from flodl.train.determinism import Deterministic
from flodl.train.device import summary
from flodl.train.evaluations import Evaluations
from flodl.train.feed import rest
from flodl.train.keeper import Keeper
from flodl.train.ledger import Ledger
from flodl.train.metrics import Weight
from flodl.train.nonfinite import NonFinite
from flodl.train.ranks import column_of
from flodl.train.run import Run
from flodl.train.signals import Interruption, leave
from flodl.train.update import Update, rates

if TYPE_CHECKING:
    from flodl.train.trainer import Trainer

__all__ = ["Fit"]

_DRAIN_SECONDS = 0.2  # how often metrics are read from the device and handed to the recorder


class Fit:
    """The course of one trainer's training. The trainer tells it of batches and updates; it decides what follows."""

    def __init__(self, trainer: Trainer, loader: Loader | None, update: Update, callbacks: Callbacks) -> None:
        self.trainer = trainer
        self.config: RunConfig = trainer.config
        self.loader = loader
        self.update = update
        self.callbacks = callbacks
        self.step = 0
        """Updates made."""
        self._epoch = self._sample = 0
        self.untrained = 0
        """Samples of the batch under way."""
        self.ledger = Ledger()
        self.history: list[dict[str, float]] = []
        self.interruption = Interruption()
        self.nonfinite = NonFinite(self.config.training.nan_policy, trainer.model)
        self.evaluations = Evaluations(self)
        self.total_epochs: int | None = None
        self.exhausted = False
        """No batch is left in this epoch."""
        self.column: Column | None = None
        """The ranks that train together; None on one device."""
        self.pool: list[tuple[int, int]] = []
        """Ranges of the data's stream before `position` that a training on several devices has left."""
        self.lead_as: RunConfig | None = None
        """The configuration of the first rank, where this is another one: it has no output of its own."""
        self.folder_of_run: str | None = None
        self.begun = self.closed = False
        self.stopping = False
        self.over = False
        """Saved and ended, by a signal or by policy."""
        self._run: Run | None = None
        self._cells = [m for m in trainer.model.modules() if isinstance(m, StateCell)]
        self._loader_note: str | None = None
        self.notes: list[str] = []
        """What is to be said when the run is opened."""
        self._deterministic = Deterministic()
        self.keeper = Keeper(self)
        self._reached = False  # the end that was asked for, not a stop
        self._busy = False  # with what follows an update, or ends an epoch
        self._save_asked = False
        self._drain_at = 0.0
        self._began_at = time.monotonic()
        self._watched = False  # something is due after some updates

    # -- how far, how long

    @property
    def position(self) -> Position:
        """What was trained: `sample` samples of epoch `epoch`."""
        return Position(epoch=self._epoch, sample=self._sample)

    @position.setter
    def position(self, position: Position) -> None:
        self._epoch, self._sample = position.epoch, position.sample

    @property
    def steps_per_epoch(self) -> int | None:
        """Updates, the incomplete last one of an epoch too."""
        if self.loader is None or (batches := self.loader.batches) is None:
            return None
        ranks = self.column.size if self.column is not None and self.column.lockstep else 1
        return -(-batches // (self.config.training.accumulate * ranks))

    @property
    def total_steps(self) -> int | None:
        """Updates in the whole training, where that is known."""
        per_epoch, limit = self.steps_per_epoch, self.config.training.max_steps
        known = None if per_epoch is None or self.total_epochs is None else per_epoch * self.total_epochs
        return known if limit is None else limit if known is None else min(limit, known)

    @property
    def run(self) -> Run:
        """The run's output: its folder, recorder and terminal. Opened at the first use."""
        if self._run is None:
            self._run = Run(
                self.config,
                self.trainer.model,
                total_epochs=self.total_epochs,
                total_steps=self.total_steps,
                resumed=self.keeper.resumed,
                step=self.keeper.resumed_at,
                mark=self.keeper.mark,
            )
            atexit.register(self.trainer.end_with_the_program)
            place = self._run.place if self._run.folder else None
            self._run.say(summary(self.trainer, self.loader, place, self.keeper.resumed is not None))
            for line in self.notes:
                self._run.terminal.note(line)
            for name in self.keeper.unknown_callbacks:
                self._run.warn(
                    f"the checkpoint has a state of callback {name}, which this run does not have", self.step
                )
        return self._run

    @property
    def opened(self) -> bool:
        """Whether the run was opened."""
        return self._run is not None

    @property
    def stopped(self) -> bool:
        """Whether training was asked to stop before its end."""
        return self.stopping and not self._reached

    def march(self, group: Group) -> None:
        """Several ranks train this together."""
        if group.rank > 0:
            self.lead_as, self.config = self.config, without_output(self.config)
        self.column = column_of(self, group)

    def lead(self) -> None:
        """This rank has become the first one: it goes on with the run's output, which another had."""
        if self.lead_as is not None and self.folder_of_run is not None:
            self.config, self.lead_as = self.lead_as, None
            old, self._run = self._run, None
            if old:
                old.finish("stopped")
            self.keeper.resumed, self.keeper.resumed_at, self.keeper.mark = Path(self.folder_of_run), self.step, None
            try:
                _ = self.run
            except StoreError as error:  # its process may live on, frozen
                self.config = without_output(self.config)
                self.run.terminal.note(f"warning: this run is no longer recorded: {error}")

    def _go_on_with_run(self) -> None:
        """After an end (of an earlier call of `epochs()`, by Ctrl-C in a notebook) the run's record goes on, too."""
        self.over = False
        old = self._run
        if old and old.over:
            old.close()
            self.keeper.resumed, self.keeper.resumed_at, self.keeper.mark = old.folder, self.step, None
            self._run = None

    def stream_position(self) -> int:
        """How many samples of the stream of all epochs were handed out."""
        samples = self.loader.samples if self.loader else None
        return self.position.epoch * (samples or 0) + self.position.sample

    def begin(self, total_epochs: int | None) -> None:
        """Before the first update of this process, or of another call of `epochs()`."""
        training = self.config.training
        if self.closed:
            raise TrainingError("this trainer is closed: make another one with Trainer.setup")
        if training.swa_epochs and total_epochs is None:
            raise ConfigError("training.swa_epochs averages the last epochs: epochs() needs to know their number")
        if training.evaluate_steps and not self.evaluations.planned:
            self.run.say("evaluate_steps: nothing is evaluated, because trainer.plan_evaluation(...) was not called")
        self.total_epochs = total_epochs
        self._go_on_with_run()
        self.begun, self.stopping, self._reached = True, False, False
        self._began_at = time.monotonic()
        self.enter()
        if self.column:
            self.column.begin(total_epochs)
        self.update.make_schedule(self.total_steps)
        self._watched = bool(
            training.max_steps is not None
            or training.evaluate_steps
            or self.config.output.save_steps
            or self.update.scheduler
            or self.callbacks.listening("on_step_end")
        )
        if self.run.recorder:
            self.run.recorder.totals(epochs=total_epochs, steps=self.total_steps)
        if training.max_steps is not None and self.step >= training.max_steps:
            self.reach(f"max_steps is {training.max_steps}")
        self.tell("on_fit_start", {})
        if self.evaluations.due:
            self.evaluations.run()

    def enter(self) -> None:
        """Training begins: what it changes outside of itself is changed."""
        self.update.enter()
        if self.config.training.deterministic:
            self._deterministic.enter()

    def leave(self) -> None:
        """Training is over, or has failed: that is as it was before."""
        self._deterministic.leave()
        self.update.leave()
        if self.column:
            self.column.rest()

    def reach(self, why: str) -> None:
        """Training is done: `epochs()` ends after this update, and the run is finished."""
        if not self.stopping:
            self.stopping = self._reached = True
            number = self.position.epoch + (self.position.sample > 0)
            self.run.say(f"training ends in epoch {number}, after step {self.step}: {why}")

    def epoch_is_whole(self) -> bool:
        """Whether every batch of the epoch was trained."""
        if self.column and self.loader:
            return self.column.epoch_is_whole()
        samples = self.loader.samples if self.loader else 0
        return self.exhausted or (samples is not None and not self.pool and self.position.sample >= samples)

    # -- after each update

    def advance(self, metrics: Mapping[str, Any], weight: Weight | None) -> None:
        """An update was made (or left out by policy). weight: of its metrics; None: they are in the ledger already."""
        self.step = self.step + 1 if self.column is None else self.column.next_step()
        if weight is not None:
            for name, value in metrics.items():
                self.ledger.meter.add(self.step, weight, name, value)
        if self.untrained or self.evaluations.before:
            self.count_samples()
        for cell in self._cells:
            cell.detach()
        if self._watched:
            self._after_update(metrics)
        if time.perf_counter() > self._drain_at:
            self.drain(metrics.get("loss"))
        if self.column:
            self.column.after_update()
        else:
            self.check_interruption()

    def count_samples(self) -> None:
        """The batch under way is trained."""
        self.evaluations.before = None
        if self.column:
            self.untrained = 0  # the position is what all have trained
        elif self.untrained:
            if self.pool:
                self.pool = rest(self.pool, self.untrained)
            else:
                self._sample += self.untrained
            self.untrained = 0

    def _after_update(self, metrics: Mapping[str, Any]) -> None:
        training, output = self.config.training, self.config.output
        self._busy = True
        if self.update.scheduler:
            self.ledger.rate(self.step, self._rates_used()[0])
            if self.update.news:
                self.run.warn(self.update.news, self.step)
                self.update.news = None
        if self.callbacks.listening("on_step_end"):
            plain = {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in metrics.items()}
            self.tell("on_step_end", plain)
        if self.column:  # it decides in a meeting what else is due
            self._busy = False
            self._save_if_asked()
            return
        if training.evaluate_steps and self.step % training.evaluate_steps == 0:
            self.evaluations.run()
            self.keeper.save_if_best()
        self._busy = False
        self._save_if_asked()
        if output.save_steps and self.step % output.save_steps == 0 and self.keeper.wanted:
            self.keeper.save(periodic=True)
        if training.max_steps is not None and self.step >= training.max_steps:
            self.reach(f"max_steps is {training.max_steps}")

    def drain(self, loss: Any = None, *, at_once: bool = False) -> None:
        """Read the metrics since the last time, hand them on, act on requests from outside."""
        self._drain_at = time.perf_counter() + _DRAIN_SECONDS
        run, training = self.run, self.config.training
        points = self.ledger.points()
        run.points(points, self.position.epoch)
        self.ledger.record_steps(run.recorder)
        if news := self.nonfinite.news(points, self.step, at_once=at_once):
            run.warn(news[1], news[0])
        if self.loader:
            done = -(-self.position.sample // self.loader.batch_size)
            run.terminal.step(self.position.epoch + 1, done, self.loader.batches, loss)
        for request in run.recorder.requests() if run.recorder else ():
            if request.action == "stop":
                self.stopping = True
            elif self.column:
                self.column.wish(Flag.SAVE)
            elif self.keeper.wanted:
                self.keeper.save(wait=False)
        if training.max_time is not None and time.monotonic() - self._began_at > training.max_time:
            self.reach(f"max_time is {training.max_time:g} s")
        self.keeper.tell_written()
        if self.loader and self.loader.note and self.loader.note != self._loader_note:
            self._loader_note = self.loader.note
            run.say(self._loader_note)

    # -- epochs

    def end_epoch(self, seconds: float) -> None:
        """All batches of the epoch were seen."""
        training, epoch = self.config.training, self.position.epoch
        self._busy = True
        if self.column:
            self.column.leave_epoch()
        if training.evaluate_steps is None and (epoch + 1) % training.evaluate_epochs == 0:
            self.evaluations.run(after_step=False)
        self.drain(at_once=True)
        if self.column:
            self.column.merge_epoch()
        means = {**self.ledger.meter.means(), **self.evaluations.of_epoch}
        self.run.epoch(epoch, means, seconds, self.step, self.ledger.meter.not_finite.get("loss", 0))
        self.ledger.meter.clear()
        self.evaluations.end_epoch(means)
        self.history.append(means)
        control = self._ask("on_epoch_end", means)
        ahead = self.position.sample - (self.loader.samples or self.position.sample) if self.loader else 0
        self.position, self.exhausted = Position(epoch=epoch + 1, sample=max(ahead, 0)), False
        if self.column:
            self.column.enter_epoch(epoch + 1)
        self._average(epoch)
        self._busy = False
        self._obey(control, "on_epoch_end")
        self._save_if_asked()
        self.keeper.save_if_best()
        if self.keeper.wanted and self.keeper.age > self.config.output.save_seconds:
            self.keeper.save(periodic=True)
        self.check_interruption()

    def passing(self) -> dict[str, Any]:
        """What evaluations change of a training, in plain values and tensors."""
        return {
            "rng": checkpoint.rng_state(),
            "evaluations": self.evaluations.state(),
            "callbacks": copy.deepcopy(self.callbacks.state()),
            "rates": [
                {name: float(group[name]) for name in ("lr", "initial_lr") if name in group}
                for group in self.trainer.optimizer.param_groups
            ],
        }

    # -- callbacks

    def tell(self, moment: Moment, metrics: Mapping[str, Any], **more: Any) -> None:
        """Call the callbacks that listen to `moment`, and do what they ask for."""
        self._obey(self._ask(moment, metrics, **more), moment)

    def _ask(
        self,
        moment: Moment,
        metrics: Mapping[str, Any],
        *,
        written: Path | None = None,
        error: BaseException | None = None,
    ) -> Control | None:
        listening = self.callbacks.listening(moment)
        if not listening:
            return None
        control, optimizer = Control(), self.trainer.optimizer
        state = FitState(
            epoch=self.position.epoch,
            step=self.step,
            sample=self.position.sample,
            total_epochs=self.total_epochs,
            total_steps=self.total_steps,
            metrics=metrics,
            learning_rates=self._rates_used() if moment == "on_step_end" else rates(optimizer),
            model=self.trainer.model,
            optimizer=optimizer,
            folder=self.run.folder,
            checkpoint=written,
        )
        for call in listening:
            call(state, control) if error is None else call(state, control, error)
        return control

    def _obey(self, control: Control | None, moment: Moment) -> None:
        if control is None:
            return
        if control.stop_reason is not None:
            self.reach(control.stop_reason)
        if control.evaluate_asked and moment != "on_eval_end":
            if self.column and moment == "on_step_end":
                self.column.wish(Flag.EVALUATE)
            else:
                self.evaluations.run()
        if control.save_asked and moment != "on_checkpoint":
            self._save_asked = True
            if not self._busy and not (self.loader and self.epoch_is_whole()):
                self._save_if_asked()

    def _save_if_asked(self) -> None:
        """What a callback asked for: not before what belongs to the update, or to the epoch's end, is complete."""
        if self._save_asked and self.column:
            self.column.wish(Flag.SAVE)
        elif self._save_asked and self.keeper.wanted:
            self.keeper.save(wait=False)
        self._save_asked = False

    def _rates_used(self) -> tuple[float, ...]:
        """The learning rates of the newest update; before the schedule has moved for the first time, those of now."""
        return (self.update.scheduler and self.update.rates) or rates(self.trainer.optimizer)

    def span(self, kind: str, started: float) -> None:
        """Something took from `started` (seconds since 1970) until now, and no step did."""
        seconds = time.time() - started
        self.ledger.exclude(seconds)
        if self.column:
            self.column.exclude(seconds)
        if self.keeper.engine:
            self.keeper.engine.pause()
        if self._run and self._run.recorder:
            self._run.recorder.event(kind, start=started, seconds=seconds, step=self.step)

    # -- the end

    def refuse(self, what: str) -> None:
        """A batch must not be trained on: under "stop", end the run."""
        if self.config.training.nan_policy == "skip":
            return
        self.drain()
        saved = f"; the weights before it are in {self.keeper.save()}" if self.keeper.wanted else ""
        where = f"epoch {self.position.epoch + 1}, step {self.step + 1}"
        message = f"{what} at {where} (nan_policy is stop){saved}"
        self.over = True
        self.finish("failed", message)
        raise TrainingError(message)

    def save_if_wanted(self) -> None:
        """What was trained is kept."""
        self.drain()
        if self.keeper.wanted:
            self.keeper.save()

    def save_and_finish(self, state: Literal["finished", "stopped"]) -> None:
        """The loop has ended."""
        self.save_if_wanted()
        self.take_average()
        self._tell_unmeasured()
        self.tell("on_fit_end", self.history[-1] if self.history else {})
        self.finish(state)

    def _tell_unmeasured(self) -> None:
        """A metric that `keep_best` names and nobody measured has had no effect."""
        name, measured = self.config.output.keep_best, self.evaluations.measured
        if name is not None and measured and name not in measured:
            self.run.warn(f"keep_best is {name!r}, which was never measured.{nearest(name, measured)}", self.step)

    def finish(self, state: Literal["finished", "stopped", "failed"], error: str | None = None) -> None:
        """End the run's output; what was saved in the background is complete then."""
        try:
            self.keeper.close()
        finally:
            self.run.finish(state, error)

    def check_interruption(self) -> None:
        """End training if a signal has arrived."""
        if self.interruption.signal and self.column is None:  # several devices stop together, in a meeting
            self.interrupted()

    def interrupted(self) -> NoReturn:
        """Save, say how to go on, and leave the program as the signal wants it."""
        self.drain()
        number, self.interruption.signal = self.interruption.signal, 0
        run = self.run
        where = f"interrupted at epoch {self.position.epoch + 1}, step {self.step}"
        if self.keeper.wanted:
            self.keeper.save()
            run.terminal.note(f"{where}; resume with: {run.how_to_resume()}")
        else:
            run.terminal.note(f"{where}; nothing saved")
        self.over = True
        self.finish("stopped")
        leave(number)

    def leave_if_asked(self) -> None:
        """A signal has arrived when training was over: nothing is lost, but the program ends."""
        if number := self.interruption.signal:
            self.interruption.signal = 0
            leave(number)

    # -- averaged weights

    def _average(self, epoch: int) -> None:
        """The epoch's weights are among the last ones, which are averaged."""
        swa, last = self.update.swa, self.config.training.swa_epochs
        if swa and last and self.total_epochs is not None and epoch >= self.total_epochs - last:
            swa.update()

    def take_average(self) -> None:
        """Training is over: the model gets the average of its last epochs, with the BatchNorm statistics that fit it."""
        swa = self.update.swa
        if swa and not swa.updates and not self.stopped:
            self.run.say("swa_epochs: no epoch was averaged, because training ended before the last ones")
        if not swa or not swa.updates or self.stopped:
            return
        averages, live = swa.pairs()
        with torch.no_grad():
            for tensor, average in zip(live, averages, strict=True):
                tensor.copy_(average)
        if self.loader:
            forward = self.trainer.train_fn
            update_batch_norm(self.trainer.model, (batch for batch, _ in self.loader.counted(0)), forward=forward)
        self.run.say(f"the model has the mean of the weights of its last {swa.updates} epochs (swa_epochs)")
