"""`Trainer`: the loop you know, on the device there is, recorded and resumable."""

from __future__ import annotations

import atexit
import itertools
import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flodl.data import Loader, Position
from flodl.data.tensors import IGNORE_INDEX, labels_of
from flodl.distributed import DdpConfig
from flodl.errors import ConfigError, TrainingError
from flodl.graph.builder import FlowBuilder
from flodl.train.builder import TrainerBuilder
from flodl.train.callbacks import Callback, Callbacks
from flodl.train.checks import OutputWatch, check_optimizer
from flodl.train.compiled import TrainFn
from flodl.train.config import RunConfig
from flodl.train.device import choose_device
from flodl.train.evaluate import Metrics, Planned
from flodl.train.feed import Feed
from flodl.train.fit import Fit
from flodl.train.metrics import Weight
from flodl.train.ranks import join_ranks
from flodl.train.run import Run
from flodl.train.saving import written_by
from flodl.train.standard import standard_callbacks
from flodl.train.stepper import Stepper
from flodl.train.update import Update

__all__ = ["Trainer"]

_numbers = itertools.count()
_trainer_of: weakref.WeakKeyDictionary[Optimizer, Callable[[], Trainer | None]] = weakref.WeakKeyDictionary()


class HeadLike(Protocol):
    """What `Trainer.setup_head` needs of a head of `flodl.hf`."""

    model: nn.Module

    @property
    def loss_weight(self) -> Literal["samples", "tokens"]:
        """What the gradients of an update are a mean over."""

    def encode(self, samples: Any, /) -> Any:
        """Samples as a dataset."""

    def callbacks(self) -> list[Callback]:
        """What the trainer calls, too."""


class Trainer:
    """Trains a model in a loop that you own. Made by `Trainer.setup`; `Trainer.builder` owns the loop for you.

    ```python
    trainer = fl.Trainer.setup(model, optimizer, dataset, batch_size=64)
    for epoch in trainer.epochs(10):
        for x, y in trainer.batches():
            trainer.step(F.cross_entropy(trainer.model(x), y))
    ```
    `loss.backward(); trainer.step()` is the same. So is a plain loop that calls `optimizer.step()` itself: the optimizer
    is hooked.
    """

    model: nn.Module
    optimizer: Optimizer
    config: RunConfig
    device: torch.device

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dataset: Any,
        config: RunConfig,
        *,
        scheduler: LRScheduler | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> None:
        training = config.training
        group = join_ranks(config)
        self.config = config
        self.device = choose_device(training.device, model) if group is None else group.device
        self.model = model.to(self.device)
        if not model.training:  # else a BatchNorm that was put into evaluation mode on purpose stays in it
            model.train()
        check_optimizer(optimizer, model)
        self.optimizer = optimizer
        self.number = next(_numbers)
        """Which trainer of this program it is, from 0."""
        self._loader = None if dataset is None else self._load(dataset)
        self._update = Update(model, optimizer, training, self.device, scheduler)
        self._fit = Fit(self, self._loader, self._update, Callbacks(callbacks))
        if group is not None:
            self._fit.march(group)
        for callback in standard_callbacks(self, self._fit.config.output):
            self._fit.callbacks.add(callback)
        self.interruption = self._fit.interruption
        self._labels = OutputWatch(model, self._loader) if self._loader else None
        self._left_early = False  # out of epochs()
        if (other := _trainer_of.get(optimizer, lambda: None)()) is not None:
            other._stepper.unhook()
        _trainer_of[optimizer] = weakref.ref(self)
        self._stepper: Stepper = Stepper(self._fit, self._labels)
        if training.resume:
            self.resume(training.resume)
        elif (resume := os.environ.get("FLODL_RESUME")) and (
            resume == "auto" or self.rank > 0 or written_by(Path(resume)) == self.number
        ):
            self.resume(resume)

    # -- making one

    @classmethod
    def setup(
        cls,
        model: nn.Module,
        optimizer: Optimizer | Callable[[Iterator[nn.Parameter]], Optimizer],
        dataset: Any = None,
        *,
        config: RunConfig | DdpConfig | None = None,
        scheduler: str | LRScheduler | Callable[[Optimizer], LRScheduler] | None = None,
        callbacks: Iterable[Callback] = (),
        **settings: Any,
    ) -> Trainer:
        """Prepare `model` for training in your own loop.

        optimizer: made from the model's parameters, or a callable that makes it from them.
        dataset: what `fl.data.as_dataset` takes; without it, iterate a loader of your own instead of `batches()`.
        scheduler: a schedule's name, any torch scheduler of this optimizer, or a callable that makes one from it; it is
        stepped once an update. callbacks: see `fl.Callback`.
        config: all settings, or a `DdpConfig` with those of several devices.
        settings: fields of the configuration by name (`batch_size=64`, `seed=1`); they win over `config`.

        On a machine with several devices (or `devices="cpu:2"`) a process is started for each, in which the program runs
        again from its beginning; under torchrun or Slurm, those that are there train together.

        Moves the model to the device and switches it to training mode. Raises `ConfigError`, `DataError` or
        `TrainingError` for what cannot be trained.
        """
        if isinstance(scheduler, str):
            settings["scheduler"], scheduler = scheduler, None
        if isinstance(config, DdpConfig):
            config = RunConfig().with_section("ddp", config, "argument of Trainer.setup")
        config = (config or RunConfig()).with_settings(settings, "argument of Trainer.setup")
        if not isinstance(model, nn.Module):
            hint = ": call .build() on the flow" if isinstance(model, FlowBuilder) else ""
            raise TrainingError(f"the model is {type(model).__name__}, not a module{hint}")
        if not isinstance(optimizer, Optimizer):
            optimizer = optimizer(model.parameters())
        if scheduler is not None and not isinstance(scheduler, LRScheduler):
            scheduler = scheduler(optimizer)
        return cls(model, optimizer, dataset, config, scheduler=scheduler, callbacks=callbacks)

    @classmethod
    def setup_head(
        cls,
        head: HeadLike,
        optimizer: Optimizer | Callable[[Iterator[nn.Parameter]], Optimizer],
        dataset: Any = None,
        *,
        config: RunConfig | DdpConfig | None = None,
        scheduler: str | LRScheduler | Callable[[Optimizer], LRScheduler] | None = None,
        callbacks: Iterable[Callback] = (),
        **settings: Any,
    ) -> Trainer:
        """`setup` for a head of `flodl.hf`: its samples are tokenised, batches are padded to their longest and made of
        similar lengths, and a loss over tokens is a mean over all valid ones of an update.

        dataset: samples as the head takes them, or what `head.encode` made of them. The rest as for `setup`.
        """
        if isinstance(config, DdpConfig):
            config = RunConfig().with_section("ddp", config, "argument of Trainer.setup_head")
        if isinstance(scheduler, str):  # `warmup_steps` is checked together with it
            settings["scheduler"], scheduler = scheduler, None
        config = (config or RunConfig()).with_settings(settings, "argument of Trainer.setup_head")
        presets = {"group_by_length": True, "loss_weight": head.loss_weight}
        return cls.setup(
            head.model,
            optimizer,
            None if dataset is None else head.encode(dataset),
            config=config.with_defaults(presets, f"preset of {type(head).__name__}"),
            scheduler=scheduler,
            callbacks=[*callbacks, *head.callbacks()],
        )

    @staticmethod
    def builder(
        model_factory: Callable[..., nn.Module],
        optimizer_factory: Callable[[Iterator[nn.Parameter]], Optimizer],
        train_fn: Callable[[nn.Module, Any], Any],
    ) -> TrainerBuilder:
        """Let the framework own the loop: `.dataset(ds).batch_size(32).num_epochs(10).run().join()`.

        model_factory: makes the model, from the device if it takes an argument. optimizer_factory: makes the optimizer
        from the parameters. train_fn: `(model, batch) -> loss`, or `(loss, metrics)`.
        """
        return TrainerBuilder(model_factory, optimizer_factory, train_fn)

    # -- where it stands

    @property
    def global_step(self) -> int:
        """Optimizer updates so far."""
        return self._fit.step

    @property
    def position(self) -> Position:
        """What was trained: `sample` samples of epoch `epoch`."""
        return self._fit.position

    @property
    def history(self) -> list[dict[str, float]]:
        """The means of each whole epoch that this trainer trained."""
        return self._fit.history

    @property
    def train_fn(self) -> TrainFn | None:
        """What `train_step` was given last."""
        return self._stepper.train_fn

    @property
    def scheduler(self) -> LRScheduler | None:
        """The learning rate's schedule; one by name exists from the first step on, when the number of steps is known."""
        return self._update.scheduler

    @property
    def stopped(self) -> bool:
        """Whether training was asked to stop before its end."""
        return self._fit.stopped

    @property
    def run(self) -> Run:
        """The run's output: its folder, recorder and terminal. Opened at the first use."""
        return self._fit.run

    @property
    def rank(self) -> int:
        """Of this process among those that train together; 0 on one device."""
        return 0 if self._fit.column is None else self._fit.column.rank

    @property
    def ranks(self) -> int:
        """How many processes train together; 1 on one device."""
        return 1 if self._fit.column is None else self._fit.column.size

    def explain(self) -> None:
        """Print every setting with its value and where that was set, one a line."""
        print(self.config.explain())

    def step_report(self) -> str:
        """How the steps are taken, what else was tried and how fast that was, and why not otherwise."""
        return self._stepper.engine.report() if self._stepper.engine else "no step was taken yet"

    # -- the loop

    def epochs(self, number: int | None = None) -> Iterator[int]:
        """Epoch numbers from where training stands to `number` (the configuration's `epochs` without it).

        After each epoch one line is printed and recorded. The end writes a checkpoint into the run's folder, an epoch
        does when the last one is `save_seconds` old, and so do leaving the loop or failing in it. Ctrl-C and SIGTERM save
        after the step under way, say how to resume and exit with 130 or 143.
        """
        fit, training = self._fit, self.config.training
        number = training.epochs if number is None else number
        if number is None and training.max_steps is None and training.max_time is None:
            raise ConfigError("epochs() needs a number: give one, or set training.epochs, max_steps or max_time")
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise ConfigError(f"epochs() needs a number of at least 0, not {number!r}")
        end = math.inf if number is None else number
        self._left_early = False
        with fit.interruption.watch():
            if fit.position.epoch >= end:
                fit.total_epochs = number
                fit.take_average()
                fit.run.say(f"nothing to train: {fit.position.epoch} epochs are done already; ask for more to go on")
                fit.finish("finished")
                return
            fit.begin(number)  # opens the run before the first step: one that fails there is known
            try:
                while fit.position.epoch < end and not fit.stopping:
                    started = time.perf_counter()
                    fit.tell("on_epoch_start", {})
                    yield fit.position.epoch
                    if fit.stopping and not fit.epoch_is_whole():
                        break  # in the middle: the epoch goes on when the run is resumed
                    if fit.column is None or not self._loader:
                        self._stepper.close_update()
                    if not fit.epoch_is_whole():
                        fit.run.say(f"epoch {fit.position.epoch + 1} was left after {fit.position.sample:,} samples")
                    fit.end_epoch(time.perf_counter() - started)
            except GeneratorExit:  # the loop's body left or failed; what was trained is kept
                self._left_early = True
                if not fit.over:
                    fit.save_if_wanted()
                raise
            finally:
                self._leave()
            fit.save_and_finish("stopped" if fit.stopped else "finished")
            fit.leave_if_asked()  # a signal that came while training ended

    def batches(self) -> Iterator[Any]:
        """The batches of the current epoch that were not trained yet, on the device."""
        fit, loader, labels, stepper = self._fit, self._loader, self._labels, self._stepper
        if loader is None or labels is None:
            raise TrainingError("Trainer.setup got no dataset: give it one, or iterate a loader of your own")
        if not fit.begun:
            fit.begin(None)
        column = fit.column
        if fit.stopping and column is None:
            return
        by_tokens = self.config.training.loss_weight == "tokens"
        spent, clock = fit.ledger.spent, time.perf_counter
        labels.start()
        try:
            asked = clock()
            for batch, samples in self._coming(loader):
                got = clock()
                fit.untrained = samples
                stepper.begin_batch(batch, samples, _valid_tokens(batch) if by_tokens else samples)
                try:
                    yield batch
                except GeneratorExit:  # the loop's body failed or left
                    if fit.untrained and (why := stepper.explain_labels(batch)):
                        print(f"flodl: {why}", file=sys.stderr, flush=True)
                    raise
                if fit.untrained or fit.evaluations.before:  # no step was taken for it, or an evaluation followed
                    fit.count_samples()
                if labels.watching:
                    labels.stop()
                done = clock()
                spent(asked, got, done, fit.step)
                asked = done
                if fit.stopping and column is None:
                    return
            if column is None:
                fit.exhausted = True
                stepper.close_update()
        finally:
            stepper.end_batches()
            labels.stop()

    def step(self, loss: Tensor | None = None, *, weight: Weight | None = None, **metrics: Any) -> None:
        """The end of a batch: backward of `loss` (unless you called it) and, when the batches of an update are together,
        clipping, optimizer, schedule and `zero_grad`.

        loss: (), the mean over the batch; it is recorded as `loss`. metrics: further means over the batch to record.
        weight: of the batch in updates of several batches and in an epoch's means; without it, what `loss_weight` says.
        Raises `TrainingError` for a loss that cannot be trained on, and for NaN under `nan_policy="stop"`.
        """
        self._stepper.step(loss, weight, metrics)

    def train_step(self, train_fn: TrainFn, batch: Any) -> None:
        """One batch from `train_fn(model, batch) -> loss` or `(loss, metrics)`; what the builder calls for each batch.

        All of it may be one compiled graph: see `training.step` and `step_report()`. Raises `DataError` for a label outside
        the model's outputs, and what `step` raises.
        """
        self._stepper.train_step(train_fn, batch)

    def record(self, **metrics: Any) -> None:
        """Record numbers at the current step, weighted by the batch in the epoch's mean."""
        self._stepper.look()
        for name, value in metrics.items():
            self._fit.ledger.meter.add(self.global_step, self._stepper.weight, name, value)

    def evaluate(
        self, dataset: Any, metrics: Metrics, *, name: str = "test", batch_size: int | None = None
    ) -> dict[str, float]:
        """Means over `dataset` of what `metrics(model, batch)` returns (a dict of means over the batch).

        The model is in evaluation mode, without gradients, with its averaged weights where `ema` is on, and as it was
        afterwards. Recorded as `{name}_{metric}`; inside an epoch it is also in that epoch's line.
        """
        return self._fit.evaluations.evaluate(self._plan(dataset, metrics, name, batch_size))

    def plan_evaluation(
        self, dataset: Any, metrics: Metrics, *, name: str = "test", batch_size: int | None = None
    ) -> None:
        """Evaluate so every `evaluate_steps` updates or `evaluate_epochs` epochs, and when a callback asks for it."""
        self._fit.evaluations.planned.append(self._plan(dataset, metrics, name, batch_size))

    def stop(self) -> None:
        """End training after the step under way; `epochs()` and `batches()` then end as if they were done."""
        self._fit.stopping = True

    # -- saving and the end

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write all that the next step depends on; into the run's folder without a path. It is on disk on return."""
        if path is not None:
            return self._fit.keeper.write(path)
        written = self._fit.keeper.save()
        assert written is not None, "only a periodic checkpoint gives way to another"
        return written

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint, or from the newest complete one in a run's folder; then that run's record goes on, too.

        "auto": the newest run of this program, with these settings, that was not finished; a new one where there is none.
        """
        fit = self._fit
        if self.rank == 0:
            fit.keeper.resume(path)
        if fit.column:
            fit.column.share_state()

    def close(self) -> None:
        """Unhook the optimizer and end the run: "stopped" if `epochs()` was left early, else "finished"."""
        fit = self._fit
        if fit.column and not fit.over:
            fit.column.finish()
        self._stepper.unhook()
        fit.closed, fit.begun = True, False
        self._leave()
        if self._loader:
            self._loader.close()
        atexit.unregister(self.end_with_the_program)
        if fit.opened:
            fit.drain(at_once=True)
            fit.finish("stopped" if self._left_early else "finished")
            fit.run.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        fit = self._fit
        try:
            if error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)) and fit.opened:
                try:
                    fit.tell("on_exception", {}, error=error)
                finally:
                    fit.finish("failed", f"{type(error).__name__}: {error}")
        finally:
            self.close()

    # -- inside

    def close_update(self, *, alone: bool = True) -> None:
        """For the ranks' meetings: make the update under way."""
        self._stepper.close_update(alone=alone)

    def samples_of_update(self) -> int:
        """For the ranks' meetings: how many samples the newest update had, with a loader of the user's own."""
        self._stepper.look()
        return self._stepper.samples * self.config.training.accumulate

    def _coming(self, loader: Loader) -> Iterator[tuple[Any, int]]:
        """The batches of this epoch that were not trained yet."""
        fit = self._fit
        if fit.column:
            return fit.column.batches()
        samples = loader.samples
        if samples is not None and (fit.pool or fit.position.sample > samples):
            return Feed(loader).left(fit.position.epoch, fit.position.sample, fit.pool, loader.batch_size)
        return loader.counted(fit.position.epoch, fit.position.sample)

    def _load(self, dataset: Any) -> Loader:
        training = self.config.training
        return Loader(
            dataset,
            training.batch_size,
            seed=training.seed,
            shuffle=training.shuffle,
            drop_last=training.drop_last,
            device=self.device,
            workers=training.workers,
            prefetch=training.prefetch,
            group_by_length=training.group_by_length,
        )

    def _plan(self, dataset: Any, metrics: Metrics, name: str, batch_size: int | None) -> Planned:
        size = self.config.training.batch_size if batch_size is None else batch_size
        return Planned(name=name, metrics=metrics, loader=Loader(dataset, size, shuffle=False, device=self.device))

    def _leave(self) -> None:
        """Nothing of the step's ways is left in the process or in the model."""
        self._stepper.leave()
        self._fit.leave()

    def end_with_the_program(self) -> None:
        """A plain loop does not say when it is done: the program's end without an error does."""
        if self._fit.total_epochs is None and getattr(sys, "last_value", None) is None:
            self.close()


def _valid_tokens(batch: Any) -> Tensor:
    """How many labels of the batch are none to ignore."""
    return (labels_of(batch)[1] != IGNORE_INDEX).sum()
