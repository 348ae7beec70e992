"""Taking batches: from a loss, or a function that gives one, to the update and what is to be said of it."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.errors import DataError
from flodl.train.checks import OutputWatch, check_gradients, check_loss
from flodl.train.compiled import TrainFn, split_result
from flodl.train.engine import StepEngine
from flodl.train.fit import Fit
from flodl.train.hooks import OwnHook
from flodl.train.metrics import Weight

__all__ = ["Stepper"]


class Stepper:
    """Every way in which a batch is trained ends here: `step`, `train_step`, and a bare `optimizer.step()`, which is hooked."""

    def __init__(self, fit: Fit, labels: OutputWatch | None) -> None:
        self.engine: StepEngine | None = None  # made at the first step: then it is known who calls what
        self.train_fn: TrainFn | None = None
        """What `train_step` was given last."""
        self.samples = 1
        """Of the batch under way."""
        self.weight: Weight = 1
        """Its weight in means and updates."""
        self.batch: Any = None
        """The batch under way, None where it is not known."""
        self._fit, self._labels = fit, labels
        self._update = fit.update
        self._model, self._optimizer = fit.trainer.model, fit.trainer.optimizer
        self._own = False  # the optimizer's step is ours
        self._seen: tuple[Any, ...] | None = None  # what the model was called with, and nobody has looked at yet
        self._column = fit.column
        self._lockstep = fit.column if fit.column is not None and fit.column.lockstep else None
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before_optimizer_step),
            self._optimizer.register_step_post_hook(self._after_optimizer_step),
        ]
        if fit.loader is None:
            self._hooks.append(self._model.register_forward_pre_hook(OwnHook(self._see_batch)))

    def begin_batch(self, batch: Any, samples: int, weight: Weight) -> None:
        """The loop gets a batch."""
        self.batch, self.samples, self.weight = batch, samples, weight

    def end_batches(self) -> None:
        """There is no batch under way."""
        self.batch, self.samples, self.weight = None, 1, 1

    def look(self) -> None:
        """With a loader of the user's own: the model's newest input tells how many samples the batch has."""
        args, self._seen = self._seen, None
        if args and isinstance(args[0], Tensor) and args[0].dim():
            samples = args[0].shape[0]
            self.begin_batch(args, samples, samples)

    def step(self, loss: Tensor | None, weight: Weight | None, metrics: dict[str, Any]) -> None:
        """A batch of which the loss is known, or the gradients are there. weight: None, the batch's own."""
        fit, update = self._fit, self._update
        if not fit.begun:
            fit.begin(None)
        if self._seen is not None:
            self.look()
        if weight is None:
            weight = self.weight
        if loss is not None:
            if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
                check_loss(loss, self._model)
            metrics = {"loss": loss, **metrics} if metrics else {"loss": loss}
            if fit.nonfinite.looks and (refusal := fit.nonfinite.refusal(loss)):
                self._leave_out(refusal, metrics, weight)
                return
            update.backward(loss, weight)
            if fit.nonfinite.looks and not update.scaler and (refusal := fit.nonfinite.refusal(None)):
                update.spoil()
                update.batches -= 1  # counted as left out
                self._leave_out(refusal, {**metrics, "loss": math.nan}, weight)
                return
        else:
            check_gradients(self._model)
            if refusal := fit.nonfinite.refusal(None):
                self._optimizer.zero_grad()  # the gradients of earlier batches are kept apart
                self._leave_out(refusal, {"loss": math.nan, **metrics}, weight)
                return
            update.absorb(weight)
        if update.single:
            self._make_update()
            fit.advance(metrics, weight)
            return
        if self.engine:
            self.engine.end()
        self._gather(metrics, weight)

    def train_step(self, train_fn: TrainFn, batch: Any) -> None:
        """A batch of which `train_fn(model, batch)` gives the loss."""
        self.train_fn = train_fn
        if not self._fit.begun:
            self._fit.begin(None)
        if self.engine is None:
            self.engine = self._make_engine(own_loop=False)
        self.look()
        if not self._taken_whole(self.engine, train_fn, batch):
            with self.engine.eager():
                self._taken_eagerly(train_fn, batch)

    def close_update(self, *, alone: bool = True) -> None:
        """Make the update under way of the batches that it has; nothing if it has none.

        alone: without it, other devices make an update now, and this one takes part in it also with no batch.
        """
        if self._update.batches or not alone:
            self._make_update()
            self._fit.advance(self._fit.ledger.settle(self._fit.step + 1), None)

    def explain_labels(self, batch: Any) -> str | None:
        """What is wrong with the labels of a batch that the loss failed on, if that is what it was."""
        return self._labels.explain(batch, self._fit.position, self.samples) if self._labels else None

    def leave(self) -> None:
        """Nothing of the step's ways is left in the process or in the model."""
        if self.engine:
            self.engine.close()
            self._tell_of(self.engine)

    def unhook(self) -> None:
        """The optimizer and the model are no longer watched."""
        for hook in self._hooks:
            hook.remove()

    # -- with the engine

    def _make_engine(self, *, own_loop: bool) -> StepEngine:
        fit, training = self._fit, self._fit.config.training
        why = "" if training.nan_policy == "warn" else (
            f'nan_policy is "{training.nan_policy}", which looks at each loss before its update'
        )  # fmt: skip
        if self._lockstep:
            why = "gradients of several devices are averaged between backward and update (policy sync)"
        engine = StepEngine(
            self._model,
            self._optimizer,
            mode="eager" if training.deterministic else training.step,
            rule=self._update.rule,
            total_steps=lambda: fit.total_steps,
            why_not_whole=why,
            own_loop=own_loop,
        )
        fit.keeper.engine = engine
        if self._update.bare and not fit.nonfinite.looks and not self._lockstep:
            self._hooks[0].remove()  # nothing comes before the optimizer's step any more
        return engine

    def _taken_whole(self, engine: StepEngine, train_fn: TrainFn, batch: Any) -> bool:
        """Whether the engine has taken this batch as one graph; then what follows a batch is done, too."""
        fit, update, weight = self._fit, self._update, self.weight
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
            fit.advance(fit.ledger.settle(fit.step + 1), None)
        else:
            fit.check_interruption()
        return True

    def _taken_eagerly(self, train_fn: TrainFn, batch: Any) -> None:
        try:
            loss, metrics = split_result(train_fn(self._model, batch))
        except (IndexError, RuntimeError) as error:
            why = self.explain_labels(batch)
            self._fit.untrained = 0  # said here, not again when the loop ends
            if why:
                raise DataError(why) from error
            raise
        check_loss(loss, self._model)
        self.step(loss, None, metrics)

    def _engine_after_update(self) -> None:
        """The optimizer has made an update that no graph made."""
        if self.engine is None:
            self.engine = self._make_engine(own_loop=True)
        if self.engine.own_loop:
            self.engine.boundary(self.batch)
        else:
            self.engine.end()
        self._tell_of(self.engine)

    def _tell_of(self, engine: StepEngine) -> None:
        if engine.news:
            self._fit.run.warn(engine.news, self._fit.step)
            engine.news = None
        if engine.chosen and self._fit.run.recorder:
            self._fit.run.recorder.event("choice", step=self._fit.step, **engine.chosen)
            engine.chosen = None

    # -- without it

    def _make_update(self) -> None:
        if self._lockstep:
            self._lockstep.before_update(self._update)
        self._own = True
        try:
            if self._lockstep and self._update.weight == 0.0:  # each device has left its batch out
                self._update.drop()
            else:
                self._update.make()
        finally:
            self._own = False
        if self.engine and self.engine.plain:
            self.engine.steps += 1
        else:
            self._engine_after_update()

    def _leave_out(self, why: str, metrics: dict[str, Any], weight: Weight) -> None:
        """A batch that must not be trained on; others of the same update stay."""
        fit, update = self._fit, self._update
        fit.refuse(why)
        if update.single:
            update.drop()
            if self._lockstep:  # the others make an update
                self._make_update()
            fit.advance(metrics, weight)
            return
        update.leave_out()
        for name, value in metrics.items():  # counted, but no part of the mean of the others
            fit.ledger.meter.add(fit.step + 1, weight, name, value)
        self._gather({}, weight)

    def _gather(self, metrics: dict[str, Any], weight: Weight) -> None:
        """A batch is done, its update perhaps not."""
        fit = self._fit
        fit.ledger.gather(metrics, weight)
        fit.count_samples()
        if self._update.due:
            self.close_update()
        else:
            fit.check_interruption()

    def _before_optimizer_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """The loop calls `optimizer.step()` itself."""
        if self._own:
            return
        self.look()
        fit = self._fit
        if not fit.begun:
            fit.begin(None)
        self._update.refuse_own_step()
        if refusal := fit.nonfinite.refusal(None):
            fit.ledger.meter.add(fit.step + 1, self.weight, "loss", math.nan)  # to be counted
            self._optimizer.zero_grad()  # without gradients the optimizer changes nothing
            fit.refuse(refusal)
        else:
            if self._lockstep:
                self._update.count(self.weight)
                self._lockstep.before_update(self._update)
                self._update.batches = 0
            self._update.prepare()

    def _after_optimizer_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._own:
            self.look()
            self._update.follow()
            self._engine_after_update()
            self._fit.advance({}, None)

    def _see_batch(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        if model.training:  # in each forward, so no more than this
            self._seen = args
