"""`Trainer`: the loop you know, on the device there is, recorded and resumable."""

from __future__ import annotations

import atexit
import itertools
import math
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.data import Loader, Position
from flodl.errors import ConfigError, DataError, TrainingError
from flodl.graph.builder import FlowBuilder
from flodl.graph.state import StateCell
from flodl.train.builder import TrainerBuilder
from flodl.train.checks import OutputWatch, check_gradients, check_loss, check_optimizer
from flodl.train.compiled import TrainFn, WholeStep, split_result
from flodl.train.config import RunConfig
from flodl.train.device import choose_device, summary
from flodl.train.evaluate import evaluate
from flodl.train.metrics import Meter
from flodl.train.nonfinite import NonFinite
from flodl.train.run import Run
from flodl.train.saving import CHECKPOINT, read_checkpoint, write_checkpoint, written_by
from flodl.train.signals import Interruption

__all__ = ["Trainer"]

_numbers = itertools.count()
_trainer_of: weakref.WeakKeyDictionary[Optimizer, Callable[[], Trainer | None]] = weakref.WeakKeyDictionary()

_SAVE_SECONDS = 30.0  # at the least, between the checkpoints that epochs write
_DRAIN_SECONDS = 0.2  # how often metrics are read from the device and handed to the recorder

Metrics = Callable[[nn.Module, Any], Mapping[str, Any]]


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
    global_step: int
    """Optimizer updates so far."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, dataset: Any, config: RunConfig) -> None:
        training = config.training
        self.config = config
        self.device = choose_device(training.device, model)
        self.model = model.to(self.device)
        if not model.training:  # else a BatchNorm that was put into evaluation mode on purpose stays in it
            model.train()
        check_optimizer(optimizer, model)
        self.optimizer = optimizer
        self.global_step = 0
        self.position = Position()
        """What was trained: `sample` samples of epoch `epoch`."""
        self._loader = None
        if dataset is not None:
            self._loader = Loader(
                dataset,
                training.batch_size,
                seed=training.seed,
                shuffle=training.shuffle,
                drop_last=training.drop_last,
                device=self.device,
            )
        self._cells = [m for m in model.modules() if isinstance(m, StateCell)]
        self._meter = Meter()
        self._evaluations: dict[str, float] = {}
        self.history: list[dict[str, float]] = []
        """The means of each whole epoch that this trainer trained."""
        self.interruption = Interruption()
        self._run: Run | None = None
        self._resumed: Path | None = None
        self._resumed_at = 0  # the step that a resumed run's record is cut after
        self._total_epochs: int | None = None
        self._samples = 1  # of the batch under way, the weight of its metrics
        self._untrained = 0  # the same until its step is taken
        self._labels = OutputWatch(model, self._loader) if self._loader else None
        self._nonfinite = NonFinite(training.nan_policy, model)
        self._whole: WholeStep | None = None
        self._warned_eager = False
        self.stopping = False
        self._drain_at = 0.0
        self._stepping = False
        self._left_early = False  # out of epochs()
        self._over = False  # saved and ended, by a signal or by policy
        self._saved_at = time.monotonic()
        self.number = next(_numbers)
        """Which trainer of this program it is, from 0."""
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
        elif (resume := os.environ.get("FLODL_RESUME")) and written_by(Path(resume)) == self.number:
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
        **settings: Any,
    ) -> Trainer:
        """Prepare `model` for training in your own loop.

        optimizer: made from the model's parameters, or a callable that makes it from them.
        dataset: what `fl.data.as_dataset` takes; without it, iterate a loader of your own instead of `batches()`.
        settings: fields of the configuration by name (`batch_size=64`, `seed=1`); they win over `config`.

        Moves the model to the device and switches it to training mode. Raises `ConfigError`, `DataError` or
        `TrainingError` for what cannot be trained.
        """
        config = (config or RunConfig()).with_settings(settings, "argument of Trainer.setup")
        if not isinstance(model, nn.Module):
            hint = ": call .build() on the flow" if isinstance(model, FlowBuilder) else ""
            raise TrainingError(f"the model is {type(model).__name__}, not a module{hint}")
        if not isinstance(optimizer, Optimizer):
            optimizer = optimizer(model.parameters())
        return cls(model, optimizer, dataset, config)

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

    # -- the loop

    def epochs(self, number: int | None = None) -> Iterator[int]:
        """Epoch numbers from where training stands to `number` (the configuration's `epochs` without it).

        After each epoch one line is printed and recorded. The end writes `checkpoint.pt` into the run's folder, an epoch
        does when the last one is half a minute old, and so do leaving the loop or failing in it. Ctrl-C and SIGTERM save
        after the step under way, say how to resume and exit with 130 or 143.
        """
        number = self.config.training.epochs if number is None else number
        if not isinstance(number, int) or number < 0:
            raise ConfigError(
                f"epochs() needs a number of at least 0, not {number!r}: give one, or set training.epochs"
            )
        self._total_epochs = number
        self.stopping = self._left_early = False
        with self.interruption.watch():
            if self.position.epoch >= number:
                self.run.say(f"nothing to train: {self.position.epoch} epochs are done already; ask for more to go on")
                self.run.finish("finished")
                return
            assert self.run  # opened before the first step: a run that fails there is known
            try:
                while self.position.epoch < number and not self.stopping:
                    started = time.perf_counter()
                    yield self.position.epoch
                    if self.stopping and self._loader and self.position.sample < self._loader.samples:
                        break  # in the middle: the epoch goes on when the run is resumed
                    self._end_epoch(time.perf_counter() - started)
                    self._check_interruption()
            except GeneratorExit:  # the loop's body left or failed; what was trained is kept
                self._left_early = True
                if not self._over:
                    self._save_if_wanted()
                raise
            self._save_if_wanted()
            self.run.finish("stopped" if self.stopping else "finished")

    def batches(self) -> Iterator[Any]:
        """The batches of the current epoch that were not trained yet, on the device."""
        if self._loader is None or self._labels is None:
            raise TrainingError("Trainer.setup got no dataset: give it one, or iterate a loader of your own")
        self._labels.start()
        try:
            for batch, samples in self._loader.counted(self.position.epoch, self.position.sample):
                self._samples = self._untrained = samples
                try:
                    yield batch
                except GeneratorExit:  # the loop's body failed or left
                    if self._untrained and (why := self.explain(batch)):
                        print(f"flodl: {why}", file=sys.stderr, flush=True)
                    raise
                self._count_samples()  # of a batch that the loop took no step for
                self._labels.stop()
                if self.stopping:
                    return
        finally:
            self._samples = 1
            self._labels.stop()

    def step(self, loss: Tensor | None = None, **metrics: Any) -> None:
        """One update: backward of `loss` (unless you called it), optimizer, `zero_grad`.

        loss: (), the mean over the batch; it is recorded as `loss`. metrics: further means over the batch to record.
        Raises `TrainingError` for a loss that cannot be trained on, and for NaN under `nan_policy="stop"`.
        """
        if loss is not None:
            if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
                check_loss(loss, self.model)
            metrics = {"loss": loss, **metrics}
            if refusal := self._nonfinite.refusal(loss):
                self._refuse(refusal)
                self._advance(metrics)
                return
            self._backward(loss)
        else:
            check_gradients(self.model)
            self._refuse_bad_gradients()
        self._stepping = True
        try:
            self.optimizer.step()
        finally:
            self._stepping = False
        self.optimizer.zero_grad()
        self._advance(metrics)

    def train_step(self, train_fn: TrainFn, batch: Any) -> None:
        """One update from `train_fn(model, batch) -> loss` or `(loss, metrics)`; what the builder calls for each batch.

        With `step="compiled"` all of it is one compiled graph, where that can be; see `step_report()`. Raises `DataError`
        for a label outside the model's outputs, and what `step` raises.
        """
        if self.config.training.step == "compiled":
            if self._whole is None:
                self._whole = WholeStep(train_fn, self.model, self.optimizer)
            compiled = self._whole.step(batch)
            if compiled is not None:
                self._advance({"loss": compiled[0], **compiled[1]})
                return
            if self._whole.reason and not self._warned_eager:
                self._warned_eager = True
                self.run.warn(f"steps are taken eagerly: {self._whole.reason}", self.global_step)
        try:
            loss, metrics = split_result(train_fn(self.model, batch))
        except (IndexError, RuntimeError) as error:
            why = self.explain(batch)
            self._untrained = 0  # said here, not again when the loop ends
            if why:
                raise DataError(why) from error
            raise
        check_loss(loss, self.model)
        self.step(loss, **metrics)

    def step_report(self) -> str:
        """How the steps were taken so far, and why not otherwise."""
        whole = self._whole
        if whole is None:
            return f"{self.global_step} steps, all eager (training.step is {self.config.training.step})"
        why = f"; {whole.reason}" if whole.reason else "; the first, and batches of a rare shape, are eager"
        return f"{self.global_step} steps, {whole.compiled_steps} of them compiled whole{why}"

    def record(self, **metrics: Any) -> None:
        """Record numbers at the current step, weighted by the batch's samples in the epoch's mean."""
        for name, value in metrics.items():
            self._meter.add(self.global_step, self._samples, name, value)

    def evaluate(
        self, dataset: Any, metrics: Metrics, *, name: str = "test", batch_size: int | None = None
    ) -> dict[str, float]:
        """Means over `dataset` of what `metrics(model, batch)` returns (a dict of means over the batch).

        The model is in evaluation mode, without gradients, and in its former modes afterwards. Recorded as `{name}_{metric}`;
        inside an epoch it is also in that epoch's line.
        """
        self._drain()
        size = self.config.training.batch_size if batch_size is None else batch_size
        result = evaluate(self.model, dataset, metrics, self.device, size, self._check_interruption)
        named = {f"{name}_{key}": value for key, value in result.items()}
        self._evaluations.update(named)
        self.run.points([(self.global_step, key, value) for key, value in named.items()], self.position.epoch)
        return result

    def stop(self) -> None:
        """End training after the step under way; `epochs()` and `batches()` then end as if they were done."""
        self.stopping = True

    # -- saving

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write model, optimizer, position and random states; to the run's `checkpoint.pt` without a path."""
        if path is None:
            if self.run.folder is None:
                raise ConfigError("output.record is off, so the run has no folder: give save() a path")
            path = self.run.folder / CHECKPOINT
        self._drain()  # the epoch's sums so far are part of what is saved
        self._saved_at = time.monotonic()
        started = time.time()
        written = write_checkpoint(path, self, self._loader, self._meter)
        if self._run and self._run.recorder:
            seconds = time.time() - started
            self._run.recorder.event(
                "checkpoint", start=started, seconds=seconds, step=self.global_step, path=str(written)
            )
        return written

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint, or from the one in a run's folder; the latter also continues that run's record."""
        if self._run is not None:
            raise ConfigError("resume() comes before the first epoch and before anything is recorded")
        self._resumed = read_checkpoint(Path(path), self, self._loader, self._meter)
        self._resumed_at = self.global_step

    @property
    def run(self) -> Run:
        """The run's output: its folder, recorder and terminal. Opened at the first use."""
        if self._run is None:
            steps = self._total_epochs * len(self._loader) if self._loader and self._total_epochs else None
            self._run = Run(
                self.config,
                self.model,
                total_epochs=self._total_epochs,
                total_steps=steps,
                resumed=self._resumed,
                step=self._resumed_at,
            )
            atexit.register(self._at_exit)
            place = self._run.place if self._run.folder else None
            self._run.say(summary(self, self._loader, place, self._resumed is not None))
        return self._run

    def close(self) -> None:
        """Unhook the optimizer and end the run: "stopped" if `epochs()` was left early, else "finished"."""
        self._unhook()
        if self._whole:
            self._whole.close()
        atexit.unregister(self._at_exit)
        if self._run or self._meter.pending:
            self._drain()
            self.run.finish("stopped" if self._left_early else "finished")

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)) and self._run:
            self._run.finish("failed", f"{type(error).__name__}: {error}")
        self.close()

    # -- inside

    def explain(self, batch: Any) -> str | None:
        """What is wrong with the labels of a batch that the loss failed on, if that is what it was."""
        return self._labels.explain(batch, self.position, self._samples) if self._labels else None

    def _at_exit(self) -> None:
        """A plain loop does not say when it is done: the program's end without an error does."""
        if self._total_epochs is None and getattr(sys, "last_value", None) is None:
            self.close()

    def _backward(self, loss: Tensor) -> None:
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "backward through the graph a second time" in str(error):
                raise TrainingError(
                    "the gradient of this loss was computed already: either step(loss), or loss.backward() and step()"
                ) from error
            raise

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _see_batch(self, _model: nn.Module, args: tuple[Any, ...]) -> None:
        """With a loader of the user's own: the model's input tells how many samples a batch has."""
        if self.model.training and args and isinstance(args[0], Tensor) and args[0].dim():
            self._samples = args[0].shape[0]

    def _before_optimizer_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._stepping:
            self._refuse_bad_gradients()

    def _after_optimizer_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._stepping:
            self._advance({})

    def _advance(self, metrics: Mapping[str, Any]) -> None:
        """An update was made (or left out by policy)."""
        self.global_step += 1
        for name, value in metrics.items():
            self._meter.add(self.global_step, self._samples, name, value)
        self._count_samples()
        for cell in self._cells:
            cell.detach()
        if time.perf_counter() > self._drain_at:
            self._drain(metrics.get("loss"))
        if self.interruption.signal:
            self._interrupted()

    def _count_samples(self) -> None:
        if self._untrained:
            self.position = Position(epoch=self.position.epoch, sample=self.position.sample + self._untrained)
            self._untrained = 0

    def _refuse_bad_gradients(self) -> None:
        if refusal := self._nonfinite.refusal(None):
            self._meter.add(self.global_step + 1, self._samples, "loss", math.nan)  # to be counted
            self._refuse(refusal)

    def _refuse(self, what: str) -> None:
        """Leave an update out: without gradients the optimizer changes nothing. Under "stop", end the run."""
        self.optimizer.zero_grad()
        if self.config.training.nan_policy == "skip":
            return
        self._drain()
        saved = f"; the weights before it are in {self.save()}" if self._may_save() else ""
        where = f"epoch {self.position.epoch + 1}, step {self.global_step + 1}"
        message = f"{what} at {where} (nan_policy is stop){saved}"
        self._over = True
        self.run.finish("failed", message)
        raise TrainingError(message)

    def _drain(self, loss: Any = None, *, at_once: bool = False) -> None:
        """Read the metrics since the last time, hand them on, act on requests from outside."""
        self._drain_at = time.perf_counter() + _DRAIN_SECONDS
        run = self.run
        points = self._meter.drain()
        run.points(points, self.position.epoch)
        if news := self._nonfinite.news(points, self.global_step, at_once=at_once):
            run.warn(news[1], news[0])
        if self._loader:
            done = -(-self.position.sample // self._loader.batch_size)
            run.terminal.step(self.position.epoch + 1, done, len(self._loader), loss)
        for request in run.recorder.requests() if run.recorder else ():
            if request.action == "stop":
                self.stop()
            else:
                self.save()

    def _end_epoch(self, seconds: float) -> None:
        self._drain(at_once=True)
        epoch = self.position.epoch
        means = {**self._meter.means(), **self._evaluations}
        self.run.epoch(epoch, means, seconds, self.global_step, self._meter.not_finite.get("loss", 0))
        self._meter.clear()
        self._evaluations.clear()
        self.history.append(means)
        self.position = Position(epoch=epoch + 1)
        if time.monotonic() - self._saved_at > _SAVE_SECONDS and self._may_save():
            self.save()

    def _save_if_wanted(self) -> None:
        self._drain()
        if self._may_save():
            self.save()

    def _check_interruption(self) -> None:
        if self.interruption.signal:
            self._interrupted()

    def _interrupted(self) -> None:
        self._drain()
        number, self.interruption.signal = self.interruption.signal, 0
        run = self.run
        if self._may_save():
            self.save()
            run.terminal.note(
                f"interrupted at epoch {self.position.epoch + 1}, step {self.global_step}; resume with: {run.how_to_resume()}"
            )
        else:
            run.terminal.note(f"interrupted at epoch {self.position.epoch + 1}, step {self.global_step}; nothing saved")
        self._over = True
        run.finish("stopped")
        if number == signal.SIGINT and (hasattr(sys, "ps1") or "ipykernel" in sys.modules):
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _may_save(self) -> bool:
        return self.config.output.checkpoint and self.run.folder is not None
