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
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flodl.data import Loader, Position
from flodl.data.tensors import IGNORE_INDEX, labels_of
from flodl.errors import ConfigError, DataError, TrainingError
from flodl.graph.builder import FlowBuilder
from flodl.train.builder import TrainerBuilder
from flodl.train.callbacks import Callback, Callbacks
from flodl.train.checks import OutputWatch, check_gradients, check_loss, check_optimizer
from flodl.train.compiled import TrainFn, split_result
from flodl.train.config import RunConfig
from flodl.train.device import choose_device
from flodl.train.engine import StepEngine
from flodl.train.evaluate import Metrics, Planned
from flodl.train.fit import Fit
from flodl.train.metrics import Weight
from flodl.train.run import Run
from flodl.train.saving import written_by
from flodl.train.standard import standard_callbacks
from flodl.train.update import Update

__all__ = ["Trainer"]

_numbers = itertools.count()
_trainer_of: weakref.WeakKeyDictionary[Optimizer, Callable[[], Trainer | None]] = weakref.WeakKeyDictionary()


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
        self.config = config
        self.device = choose_device(training.device, model)
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
        for callback in standard_callbacks(self):
            self._fit.callbacks.add(callback)
        self.interruption = self._fit.interruption
        self._samples = 1  # of the batch under way
        self._weight: Weight = 1  # its weight in means and updates
        self._labels = OutputWatch(model, self._loader) if self._loader else None
        self.train_fn: TrainFn | None = None
        """What `train_step` was given last."""
        self._engine: StepEngine | None = None  # made at the first step
        self._batch: Any = None  # under way, in a loop of the user's own
        self._stepping = False
        self._left_early = False  # out of epochs()
        if (other := _trainer_of.get(optimizer, lambda: None)()) is not None:
            other._unhook()
        _trainer_of[optimizer] = weakref.ref(self)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_optimizer_step),
            optimizer.register_step_post_hook(self._after_optimizer_step),
        ]
        if self._loader is None:
            self._hooks.append(model.register_forward_pre_hook(self._see_batch))
        if training.resume:
            self.resume(training.resume)
        elif (resume := os.environ.get("FLODL_RESUME")) and (
            resume == "auto" or written_by(Path(resume)) == self.number
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
        config: RunConfig | None = None,
        scheduler: str | LRScheduler | Callable[[Optimizer], LRScheduler] | None = None,
        callbacks: Iterable[Callback] = (),
        **settings: Any,
    ) -> Trainer:
        """Prepare `model` for training in your own loop.

        optimizer: made from the model's parameters, or a callable that makes it from them.
        dataset: what `fl.data.as_dataset` takes; without it, iterate a loader of your own instead of `batches()`.
        scheduler: a schedule's name, any torch scheduler of this optimizer, or a callable that makes one from it; it is
        stepped once an update. callbacks: see `fl.Callback`.
        settings: fields of the configuration by name (`batch_size=64`, `seed=1`); they win over `config`.

        Moves the model to the device and switches it to training mode. Raises `ConfigError`, `DataError` or
        `TrainingError` for what cannot be trained.
        """
        if isinstance(scheduler, str):
            settings["scheduler"], scheduler = scheduler, None
        config = (config or RunConfig()).with_settings(settings, "argument of Trainer.setup")
        if not isinstance(model, nn.Module):
            hint = ": call .build() on the flow" if isinstance(model, FlowBuilder) else ""
            raise TrainingError(f"the model is {type(model).__name__}, not a module{hint}")
        if not isinstance(optimizer, Optimizer):
            optimizer = optimizer(model.parameters())
        if scheduler is not None and not isinstance(scheduler, LRScheduler):
            scheduler = scheduler(optimizer)
        return cls(model, optimizer, dataset, config, scheduler=scheduler, callbacks=callbacks)

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

    def explain(self) -> None:
        """Print every setting with its value and where that was set, one a line."""
        print(self.config.explain())

    def step_report(self) -> str:
        """How the steps are taken, what else was tried and how fast that was, and why not otherwise."""
        return self._engine.report() if self._engine else "no step was taken yet"

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
                    self._close_update()
                    fit.end_epoch(time.perf_counter() - started)
            except GeneratorExit:  # the loop's body left or failed; what was trained is kept
                self._left_early = True
                if not fit.over:
                    fit.save_if_wanted()
                raise
            finally:
                self._leave()
            fit.save_and_finish("stopped" if fit.stopped else "finished")

    def batches(self) -> Iterator[Any]:
        """The batches of the current epoch that were not trained yet, on the device."""
        fit, loader, labels = self._fit, self._loader, self._labels
        if loader is None or labels is None:
            raise TrainingError("Trainer.setup got no dataset: give it one, or iterate a loader of your own")
        if not fit.begun:
            fit.begin(None)
        if fit.stopping:
            return
        by_tokens = self.config.training.loss_weight == "tokens"
        spent, clock = fit.ledger.spent, time.perf_counter
        labels.start()
        try:
            asked = clock()
            for batch, samples in loader.counted(fit.position.epoch, fit.position.sample):
                got = clock()
                self._samples = fit.untrained = samples
                self._weight = _valid_tokens(batch) if by_tokens else samples
                self._batch = batch
                try:
                    yield batch
                except GeneratorExit:  # the loop's body failed or left
                    if fit.untrained and (why := self._explain_labels(batch)):
                        print(f"flodl: {why}", file=sys.stderr, flush=True)
                    raise
                fit.count_samples()  # of a batch that the loop took no step for
                labels.stop()
                waited, asked = got - asked, clock()
                spent(waited, asked - got, fit.step)
                if fit.stopping:
                    return
            fit.exhausted = True
            self._close_update()
        finally:
            self._samples = self._weight = 1
            self._batch = None
            labels.stop()

    def step(self, loss: Tensor | None = None, *, weight: Weight | None = None, **metrics: Any) -> None:
        """The end of a batch: backward of `loss` (unless you called it) and, when the batches of an update are together,
        clipping, optimizer, schedule and `zero_grad`.

        loss: (), the mean over the batch; it is recorded as `loss`. metrics: further means over the batch to record.
        weight: of the batch in updates of several batches and in an epoch's means; without it, what `loss_weight` says.
        Raises `TrainingError` for a loss that cannot be trained on, and for NaN under `nan_policy="stop"`.
        """
        fit, update = self._fit, self._update
        if not fit.begun:
            fit.begin(None)
        if weight is None:
            weight = self._weight
        if loss is not None:
            if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
                check_loss(loss, self.model)
            metrics = {"loss": loss, **metrics}
            if refusal := fit.nonfinite.refusal(loss):
                self._leave_out(refusal, metrics, weight)
                return
            update.backward(loss, weight)
        else:
            check_gradients(self.model)
            if refusal := fit.nonfinite.refusal(None):
                self.optimizer.zero_grad()  # the gradients of earlier batches are kept apart
                self._leave_out(refusal, {"loss": math.nan, **metrics}, weight)
                return
            update.absorb(weight)
        if update.single:
            self._make_update()
            self._step_done()
            fit.advance(metrics, weight)
        else:
            if self._engine:
                self._engine.end()
            self._gather(metrics, weight)

    def train_step(self, train_fn: TrainFn, batch: Any) -> None:
        """One batch from `train_fn(model, batch) -> loss` or `(loss, metrics)`; what the builder calls for each batch.

        All of it may be one compiled graph: see `training.step` and `step_report()`. Raises `DataError` for a label outside
        the model's outputs, and what `step` raises.
        """
        fit, self.train_fn = self._fit, train_fn
        if not fit.begun:
            fit.begin(None)
        if self._engine is None:
            self._engine = self._make_engine(own_loop=False)
        if self._taken_whole(self._engine, train_fn, batch):
            return
        with self._engine.eager():
            self._taken_eagerly(train_fn, batch)

    def _taken_eagerly(self, train_fn: TrainFn, batch: Any) -> None:
        try:
            loss, metrics = split_result(train_fn(self.model, batch))
        except (IndexError, RuntimeError) as error:
            why = self._explain_labels(batch)
            self._fit.untrained = 0  # said here, not again when the loop ends
            if why:
                raise DataError(why) from error
            raise
        check_loss(loss, self.model)
        self.step(loss, **metrics)

    def record(self, **metrics: Any) -> None:
        """Record numbers at the current step, weighted by the batch in the epoch's mean."""
        for name, value in metrics.items():
            self._fit.ledger.meter.add(self.global_step, self._weight, name, value)

    def evaluate(
        self, dataset: Any, metrics: Metrics, *, name: str = "test", batch_size: int | None = None
    ) -> dict[str, float]:
        """Means over `dataset` of what `metrics(model, batch)` returns (a dict of means over the batch).

        The model is in evaluation mode, without gradients, with its averaged weights where `ema` is on, and as it was
        afterwards. Recorded as `{name}_{metric}`; inside an epoch it is also in that epoch's line.
        """
        return self._fit.evaluate(self._plan(dataset, metrics, name, batch_size))

    def plan_evaluation(
        self, dataset: Any, metrics: Metrics, *, name: str = "test", batch_size: int | None = None
    ) -> None:
        """Evaluate so every `evaluate_steps` updates or `evaluate_epochs` epochs, and when a callback asks for it."""
        self._fit.planned.append(self._plan(dataset, metrics, name, batch_size))

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
        self._fit.keeper.resume(path)

    def close(self) -> None:
        """Unhook the optimizer and end the run: "stopped" if `epochs()` was left early, else "finished"."""
        self._unhook()
        fit = self._fit
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
                fit.tell("on_exception", {}, error=error)
                fit.finish("failed", f"{type(error).__name__}: {error}")
        finally:
            self.close()

    # -- inside

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

    def _make_update(self) -> bool:
        self._stepping = True
        try:
            return self._update.make()
        finally:
            self._stepping = False

    def _close_update(self) -> None:
        """Make the update under way of the batches that it has; nothing if it has none."""
        if self._update.batches:
            self._make_update()
            self._step_done()
            self._fit.advance(self._fit.ledger.settle(self.global_step + 1), None)

    def _make_engine(self, *, own_loop: bool) -> StepEngine:
        training = self.config.training
        looks = f'nan_policy is "{training.nan_policy}", which looks at each loss before its update'
        engine = StepEngine(
            self.model,
            self.optimizer,
            mode="eager" if training.deterministic else training.step,
            rule=self._update.rule,
            total_steps=lambda: self._fit.total_steps,
            why_not_whole="" if training.nan_policy == "warn" else looks,
            own_loop=own_loop,
        )
        self._fit.keeper.as_given = engine.as_given
        return engine

    def _taken_whole(self, engine: StepEngine, train_fn: TrainFn, batch: Any) -> bool:
        """Whether the engine has taken this batch as one graph; then what follows a batch is done, too."""
        fit, update, weight = self._fit, self._update, self._weight
        update.release()
        last = update.batches + 1 >= update.rule.accumulate
        taken = engine.step(train_fn, batch, weight=weight, window=update.weight + weight, last=last)
        self._tell_of(engine)
        if taken is None:
            return False
        metrics = {"loss": taken[0], **taken[1]}
        if last:
            update.follow(averaged=update.rule.ema is not None)
        if update.single:
            fit.advance(metrics, weight)
            return True
        update.count(weight)
        fit.ledger.gather(metrics, weight)
        fit.count_samples()
        if last:
            update.drop()
            fit.advance(fit.ledger.settle(self.global_step + 1), None)
        else:
            fit.check_interruption()
        return True

    def _step_done(self) -> None:
        """The optimizer has made an update that no graph made."""
        if self._engine is None:
            self._engine = self._make_engine(own_loop=True)
        if self._engine.own_loop:
            self._engine.boundary(self._batch)
        else:
            self._engine.end()
        self._tell_of(self._engine)

    def _tell_of(self, engine: StepEngine) -> None:
        if engine.news:
            self.run.warn(engine.news, self.global_step)
            engine.news = None
        if engine.chosen and self.run.recorder:
            self.run.recorder.event("choice", step=self.global_step, **engine.chosen)
            engine.chosen = None

    def _leave(self) -> None:
        """Nothing of the step's ways is left in the process or in the model."""
        if self._engine:
            self._engine.close()
        self._fit.leave()

    def _leave_out(self, why: str, metrics: dict[str, Any], weight: Weight) -> None:
        """A batch that must not be trained on; others of the same update stay."""
        fit, update = self._fit, self._update
        fit.refuse(why)
        if update.single:
            update.drop()
            fit.advance(metrics, weight)
            return
        update.leave_out()
        self._gather(metrics, weight)

    def _gather(self, metrics: dict[str, Any], weight: Weight) -> None:
        """A batch is done, its update perhaps not."""
        fit = self._fit
        fit.ledger.gather(metrics, weight)
        fit.count_samples()
        if self._update.due:
            self._close_update()
        elif fit.interruption.signal:
            fit.interrupted()

    def _explain_labels(self, batch: Any) -> str | None:
        """What is wrong with the labels of a batch that the loss failed on, if that is what it was."""
        return self._labels.explain(batch, self.position, self._samples) if self._labels else None

    def _before_optimizer_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """The loop calls `optimizer.step()` itself."""
        if self._stepping:
            return
        if not self._fit.begun:
            self._fit.begin(None)
        self._update.refuse_own_step()
        if refusal := self._fit.nonfinite.refusal(None):
            self._fit.ledger.meter.add(self.global_step + 1, self._weight, "loss", math.nan)  # to be counted
            self.optimizer.zero_grad()  # without gradients the optimizer changes nothing
            self._fit.refuse(refusal)
        else:
            self._update.prepare()

    def _after_optimizer_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._stepping:
            self._update.follow()
            self._step_done()
            self._fit.advance({}, None)

    def _see_batch(self, _model: nn.Module, args: tuple[Any, ...]) -> None:
        """With a loader of the user's own: the model's input tells how many samples a batch has."""
        if self.model.training and args and isinstance(args[0], Tensor) and args[0].dim():
            self._samples = self._weight = args[0].shape[0]
            self._batch = args

    def end_with_the_program(self) -> None:
        """A plain loop does not say when it is done: the program's end without an error does."""
        if self._fit.total_epochs is None and getattr(sys, "last_value", None) is None:
            self.close()

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _valid_tokens(batch: Any) -> Tensor:
    """How many labels of the batch are none to ignore."""
    return (labels_of(batch)[1] != IGNORE_INDEX).sum()
