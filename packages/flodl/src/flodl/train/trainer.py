"""`Trainer`: the loop you know, on the device there is, recorded and resumable."""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.data import Loader, Position, epoch_order
from flodl.errors import ConfigError, DataError, TrainingError
from flodl.graph.state import StateCell
from flodl.train.builder import TrainerBuilder
from flodl.train.checks import FirstForward, check_loss, check_optimizer, explain_labels
from flodl.train.compiled import TrainFn, WholeStep, split_result
from flodl.train.config import RunConfig
from flodl.train.device import choose_device, summary
from flodl.train.evaluate import evaluate
from flodl.train.metrics import Meter
from flodl.train.run import Run
from flodl.train.saving import CHECKPOINT, read_checkpoint, write_checkpoint
from flodl.train.signals import Interruption

__all__ = ["Trainer"]

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
        self.model = model.to(self.device).train()
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
        self._outputs: int | None = None  # of the model's first forward; 0 when they cannot be told
        self._first: FirstForward | None = None  # on watch for it
        self._whole: WholeStep | None = None
        self._warned_eager = False
        self.stopping = False
        self._warned_not_finite = False
        self._drain_at = 0.0
        self._stepping = False
        self._hook = optimizer.register_step_post_hook(self._after_optimizer_step)
        resume = training.resume or os.environ.get("FLODL_RESUME")
        if resume:
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

        After each epoch one line is printed and recorded. The end writes `checkpoint.pt` into the run's folder; Ctrl-C
        and SIGTERM write it too, after the step under way, say how to resume and exit with 130 or 143.
        """
        number = self.config.training.epochs if number is None else number
        if number is None:
            raise ConfigError("epochs() needs a number: give one, or set training.epochs")
        self._total_epochs = number
        self.stopping = False
        run = self.run
        if self.position.epoch >= number:
            done = f"{self.position.epoch} epochs are done already"
            run.terminal.note(f"nothing to train: {done}; ask for more than that to go on")
            run.finish("finished")
            return
        with self.interruption.watch():
            while self.position.epoch < number and not self.stopping:
                started = time.perf_counter()
                yield self.position.epoch
                if self.stopping and self._loader and self.position.sample < self._loader.samples:
                    break  # in the middle: the epoch goes on when the run is resumed
                self._end_epoch(time.perf_counter() - started)
            self._end("stopped" if self.stopping else "finished")

    def batches(self) -> Iterator[Any]:
        """The batches of the current epoch that were not trained yet, on the device."""
        if self._loader is None:
            raise TrainingError("Trainer.setup got no dataset: give it one, or iterate a loader of your own")
        if self._outputs is None:
            self._first = FirstForward(self.model, self._loader.samples, self._loader.batch_size)
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
                self._seen_first()
                if self.stopping:
                    return
        finally:
            self._samples = 1
            self._seen_first()

    def step(self, loss: Tensor | None = None, **metrics: Any) -> None:
        """One update: backward of `loss` (unless you called it), optimizer, `zero_grad`.

        loss: (), the mean over the batch; it is recorded as `loss`. metrics: further means over the batch to record.
        Raises `TrainingError` for a loss that cannot be trained on, and for NaN under `nan_policy="stop"`.
        """
        if loss is not None:
            if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
                check_loss(loss, self.model)
            metrics = {"loss": loss, **metrics}
            if self.config.training.nan_policy != "warn" and not math.isfinite(loss.item()):
                self._refuse(loss.item(), metrics)
                return
            self._backward(loss)
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
            if why := self.explain(batch):
                raise DataError(why) from error
            raise
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
        result = evaluate(self.model, dataset, metrics, self.device, batch_size or self.config.training.batch_size)
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
            if not self.config.output.quiet:
                self._run.terminal.note(
                    summary(
                        self, self._loader, self._run.place if self._run.folder else None, self._resumed is not None
                    )
                )
        return self._run

    def close(self) -> None:
        """Unhook the optimizer and end the run. A run that `epochs()` did not end counts as finished."""
        self._hook.remove()
        if self._whole:
            self._whole.close()
        atexit.unregister(self._at_exit)
        if self._run or self._meter.pending:
            self._drain()
            self.run.finish("finished")

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)) and self._run:
            self._run.finish("failed", f"{type(error).__name__}: {error}")
        self.close()

    # -- inside

    def explain(self, batch: Any) -> str | None:
        """What is wrong with the labels of a batch that the loss failed on, if that is what it was."""
        outputs = self._first.outputs if self._first else self._outputs
        if self._loader is None or not outputs:
            return None
        training, at = self.config.training, self.position.sample
        order = epoch_order(len(self._loader.dataset), training.seed, self.position.epoch, training.shuffle)
        return explain_labels(batch, order[at : at + self._samples], outputs)

    def _at_exit(self) -> None:
        """A plain loop does not say when it is done: the program's end without an error does."""
        if self._total_epochs is None and getattr(sys, "last_value", None) is None:
            self.close()

    def _seen_first(self) -> None:
        if self._first:
            self._first.close()
            self._outputs, self._first = self._first.outputs or 0, None

    def _backward(self, loss: Tensor) -> None:
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "backward through the graph a second time" in str(error):
                raise TrainingError(
                    "the gradient of this loss was computed already: either step(loss), or loss.backward() and step()"
                ) from error
            raise

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

    def _refuse(self, value: float, metrics: Mapping[str, Any]) -> None:
        """A loss that is not finite, under the policies "skip" and "stop"."""
        where = f"epoch {self.position.epoch + 1}, step {self.global_step + 1}"
        self.optimizer.zero_grad()
        if self.config.training.nan_policy == "skip":
            self._advance(metrics)
            return
        self._drain()
        saved = f"; the weights before it are in {self.save()}" if self._may_save() else ""
        message = f"the loss is {value} at {where} (nan_policy is stop){saved}"
        self.run.finish("failed", message)
        raise TrainingError(message)

    def _drain(self, loss: Any = None) -> None:
        """Read the metrics since the last time, hand them on, act on requests from outside."""
        self._drain_at = time.perf_counter() + _DRAIN_SECONDS
        run = self.run
        run.points(self._meter.drain(), self.position.epoch)
        if self._meter.not_finite.get("loss") and not self._warned_not_finite:
            self._warned_not_finite = True
            policy = self.config.training.nan_policy
            run.warn(f"a loss is NaN or infinite at step {self.global_step} (nan_policy is {policy})", self.global_step)
        if self._loader:
            done = -(-self.position.sample // self._loader.batch_size)
            run.terminal.step(self.position.epoch + 1, done, len(self._loader), loss)
        for request in run.recorder.requests() if run.recorder else ():
            if request.action == "stop":
                self.stop()
            else:
                self.save()

    def _end_epoch(self, seconds: float) -> None:
        self._drain()
        epoch = self.position.epoch
        means = {**self._meter.means(), **self._evaluations}
        self.run.epoch(epoch, means, seconds, self.global_step, self._meter.not_finite.get("loss", 0))
        self._meter.clear()
        self._evaluations.clear()
        self.history.append(means)
        self.position = Position(epoch=epoch + 1)

    def _end(self, state: Literal["finished", "stopped"]) -> None:
        self._drain()
        if self._may_save():
            self.save()
        self.run.finish(state)

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
        run.finish("stopped")
        if number == signal.SIGINT and (hasattr(sys, "ps1") or "ipykernel" in sys.modules):
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _may_save(self) -> bool:
        return self.config.output.checkpoint and self.run.folder is not None
