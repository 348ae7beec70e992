"""One update of the optimizer: gradients of one or more batches, scaling, clipping, the step, the schedule, the averages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from flodl.errors import ConfigError, TrainingError
from flodl.train.amp import Autocast
from flodl.train.average import Ema, Swa
from flodl.train.config import TrainingConfig
from flodl.train.metrics import Weight
from flodl.train.schedule import make_schedule

__all__ = ["Update", "UpdateRule", "rates"]


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """What happens to gradients on their way into the weights, as data: for the eager and for the compiled step.

    The gradient of an update is `sum(weight * gradient) / sum(weight)` over its `accumulate` batches, then clipped by
    value, then by norm. `ema` follows the weights after the optimizer.
    """

    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    amp: str | None = None
    ema: Ema | None = None


class Update:
    """The updates of one training. `backward` or `absorb` for each batch, `make` when `due`.

    In the middle of an update the gradients are `sum(weight * gradient)`, so that they can be saved as such.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        training: TrainingConfig,
        device: torch.device,
        scheduler: LRScheduler | None = None,
    ) -> None:
        self.rule = UpdateRule(
            accumulate=training.accumulate,
            clip_norm=training.clip_norm,
            clip_value=training.clip_value,
            amp=training.amp,
            ema=None if training.ema is None else Ema(model, training.ema),
        )
        self.swa = Swa(model) if training.swa_epochs else None
        self.single = training.accumulate == 1
        """Whether each batch is an update of its own."""
        self.scaler = torch.amp.GradScaler(device.type) if training.amp == "fp16" else None
        self.scheduler = scheduler
        if scheduler is not None:
            _check_scheduler(scheduler, optimizer, training)
        self._stepped: int | None = None  # where the schedule stood after its newest step
        self.news: str | None = None
        """A line to be said, to be taken by who says it."""
        self.rates: tuple[float, ...] = ()
        """Of the newest update, by group, where there is a schedule."""
        self.batches = 0
        """Of the update under way."""
        self.weight: Weight = 0.0
        """Their sum of weights."""
        self._optimizer, self._training = optimizer, training
        plain = type(optimizer).zero_grad is Optimizer.zero_grad and "zero_grad" not in vars(optimizer)
        self._zero_grad = self._forget_gradients if plain else optimizer.zero_grad
        self._plain = self.single and not self.scaler
        unclipped = training.clip_norm is None and training.clip_value is None
        self.bare = self._plain and unclipped and self.rule.ema is None
        """Whether nothing happens to gradients before the optimizer, nor an average follows it."""
        self._held: list[Tensor | None] | None = None  # the sums, while the user's own backward fills p.grad
        self._schedule_state: dict[str, Any] | None = None
        self._schedule_steps: int | None = None  # that the schedule by name was made for
        self._schedule_start = 0
        self._in_grad = False  # the sums of the update under way are in p.grad
        self.autocast = Autocast(model, training.amp, device) if training.amp else None
        self.enter()

    # -- the batches of an update

    @property
    def due(self) -> bool:
        """Whether all batches of an update are together."""
        return self.batches >= self.rule.accumulate

    def backward(self, loss: Tensor, weight: Weight) -> None:
        """Add the gradients of a batch's mean loss, `()`."""
        if not self._plain:
            self.release()
            if not self.single:
                self._in_grad = True
                loss = loss * weight
            if self.scaler:
                loss = self.scaler.scale(loss)
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "backward through the graph a second time" in str(error):
                raise TrainingError(
                    "the gradient of this loss was computed already: either step(loss), or loss.backward() and step()"
                ) from error
            raise
        self.count(weight)

    def absorb(self, weight: Weight) -> None:
        """Take the gradients of a batch that the user's own `loss.backward()` left in `p.grad`."""
        if self.scaler:
            raise ConfigError('training.amp "fp16" scales the loss: call trainer.step(loss) instead of loss.backward()')
        if not self.single:
            if self._in_grad:
                raise TrainingError(
                    "within one update, either call step(loss) for each batch, or loss.backward() and step()"
                )
            parameters = self._parameters()
            new = [p.grad for p in parameters]
            torch._foreach_mul_([g for g in new if g is not None], weight)
            held = self._held or [None] * len(parameters)
            self._held = [n if h is None else h if n is None else h.add_(n) for h, n in zip(held, new, strict=True)]
            for parameter in parameters:
                parameter.grad = None  # the next backward begins anew
        self.count(weight)

    def count(self, weight: Weight) -> None:
        """A batch's gradients are among the sums (a compiled step has added its own)."""
        self.batches += 1
        self.weight = weight if self.single else self.weight + weight

    def release(self) -> None:
        """Put sums that are kept apart into `p.grad`, to which the next backward adds."""
        if self._held is not None:
            for parameter, gradient in zip(self._parameters(), self._held, strict=True):
                parameter.grad = gradient
            self._held = None

    def drop(self) -> None:
        """Forget the update under way."""
        self._zero_grad()
        self._held, self._in_grad, self.batches, self.weight = None, False, 0, 0.0

    # -- the update

    def leave_out(self) -> None:
        """A batch of the update must not be trained on; the others are."""
        self.batches += 1

    def spoil(self) -> None:
        """Gradients that are no numbers are among the sums: none of the batches so far is trained on."""
        batches = self.batches
        self.drop()
        self.batches = batches

    def make(self) -> bool:
        """Update the weights from the batches so far, and start anew.

        False: there was no update, because each batch was left out, or the scaler found an overflow.
        """
        if self.bare:  # the usual update, without a detour
            self._optimizer.step()
            if self.scheduler:
                self.follow()
            self._zero_grad()
            self.batches = 0
            return True
        if isinstance(self.weight, float) and self.weight == 0.0:
            self.drop()
            return False
        self.release()
        scaler, optimizer = self.scaler, self._optimizer
        if scaler:
            scaler.unscale_(optimizer)
        self.prepare()
        if scaler:
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() < scale:  # it met an infinity, as it does to find the largest scale that fits
                self.drop()
                return False
        else:
            optimizer.step()
        self.follow()
        self.drop()
        return True

    def prepare(self) -> None:
        """Make of the summed gradients those that the optimizer sees: their mean, clipped."""
        rule = self.rule
        if not self.single:
            # a window without any valid token has gradients of zero, and keeps them
            total = self.weight.clamp(min=1) if isinstance(self.weight, Tensor) else self.weight
            torch._foreach_div_([p.grad for p in self._parameters() if p.grad is not None], total)
        if rule.clip_value is not None:
            nn.utils.clip_grad_value_(self._parameters(), rule.clip_value)
        if rule.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters(), rule.clip_norm)

    def follow(self, *, averaged: bool = False) -> None:
        """The optimizer has updated the weights: the average (unless it was `averaged` there) and the schedule follow."""
        if self.rule.ema and not averaged:
            self.rule.ema.update()
        if self.scheduler:
            self.rates = rates(self._optimizer)
            if self._stepped not in (None, self.scheduler.last_epoch):
                self.news = (
                    f"something else moved the {type(self.scheduler).__name__} from {self._stepped} to "
                    f"{self.scheduler.last_epoch}; the trainer steps it once an update: leave out scheduler.step()"
                )
            self.scheduler.step()
            self._stepped = self.scheduler.last_epoch

    def refuse_own_step(self) -> None:
        """Raise `ConfigError` if the loop may not call `optimizer.step()` itself."""
        for wanted, what in (
            (not self.single, f"accumulate is {self.rule.accumulate}"),
            (self.scaler, 'amp is "fp16"'),
        ):
            if wanted:
                raise ConfigError(f"training.{what}: call trainer.step(loss) instead of optimizer.step()")

    # -- what begins and ends with training

    def enter(self) -> None:
        """The model computes in mixed precision from now on, if that is wanted."""
        if self.autocast:
            self.autocast.on = True

    def leave(self) -> None:
        """The model is as it was."""
        if self.autocast:
            self.autocast.on = False

    def make_schedule(self, total_steps: int | None) -> None:
        """Make the schedule that was given by name, now that the number of steps is known."""
        training = self._training
        if training.scheduler and (self.scheduler is None or total_steps != self._schedule_steps):
            if self.scheduler is not None:  # another call of epochs() has made training longer
                self._schedule_state = self.scheduler.state_dict()
            self._schedule_steps = total_steps
            rates = [float(group["lr"]) for group in self._optimizer.param_groups]
            self.scheduler = None
            made = make_schedule(
                training.scheduler,
                self._optimizer,
                total_steps=total_steps,
                warmup_steps=training.warmup_steps,
                min_lr_ratio=training.min_lr_ratio,
            )
            self.scheduler, self._stepped = made, None
            if self._schedule_start:
                at = {"last_epoch": self._schedule_start, "_step_count": self._schedule_start + 1}
                made.load_state_dict({**made.state_dict(), **at})
                self._schedule_start = 0
            elif self._schedule_state is not None:
                self.load_schedule(self._schedule_state)
            # Making the schedule has set its first rates. The optimizer's own are kept to the bit where they fit.
            for group, own, now in zip(self._optimizer.param_groups, rates, made.get_lr(), strict=True):
                rate = own if math.isclose(own, float(now), rel_tol=1e-9) else float(now)
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model as it is to be evaluated: in mixed precision as in training, with its averaged weights."""
        was_on = self.autocast is not None and self.autocast.on
        self.enter()
        try:
            with self.rule.ema.applied() if self.rule.ema else nullcontext():
                yield
        finally:
            if not was_on:
                self.leave()

    # -- in a checkpoint

    def sums(self) -> list[Tensor | None]:
        """The gradients of the update under way, for each parameter of the optimizer in order."""
        return self._held or [None if p.grad is None else p.grad.detach() for p in self._parameters()]

    def load_sums(self, batches: int, weight: float, sums: Iterable[Tensor | None]) -> None:
        """Go on in the middle of an update."""
        self.batches, self.weight = batches, weight
        places = zip(self._parameters(), sums, strict=True)
        self._held = [None if g is None else g.to(p.device, p.dtype) for p, g in places]

    @property
    def schedule(self) -> str | None:
        """What kind of schedule there is: its name, or its class."""
        return self._training.scheduler or (type(self.scheduler).__name__ if self.scheduler else None)

    def start_schedule_at(self, step: int) -> None:
        """A schedule by name that a resumed run has and its checkpoint has not: it stands where it would be by now."""
        self._schedule_start = step

    def load_schedule(self, state: dict[str, Any]) -> None:
        """Go on with the schedule where it was, also if it is made later."""
        if self.scheduler is None:
            self._schedule_state = state
            return
        self.scheduler.load_state_dict(state)
        self._stepped = None

    def _forget_gradients(self) -> None:
        """What `optimizer.zero_grad()` does, without looking at each gradient first and being timed for a profiler."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]


def rates(optimizer: Optimizer) -> tuple[float, ...]:
    """The learning rate of each group now."""
    return tuple([float(group["lr"]) for group in optimizer.param_groups if "lr" in group])


def _check_scheduler(scheduler: LRScheduler, optimizer: Optimizer, training: TrainingConfig) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError("ReduceLROnPlateau needs a metric at each step: use the callback fl.Plateau(metric)")
    if scheduler.optimizer is not optimizer:
        raise ConfigError(f"the {type(scheduler).__name__} belongs to another optimizer than the trainer's")
    if training.scheduler:
        raise ConfigError(f"two schedules: a {type(scheduler).__name__}, and training.scheduler {training.scheduler!r}")
