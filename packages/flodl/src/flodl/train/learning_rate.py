"""Find a learning rate by trying all of them; what was trained leaves no trace in the model."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint.atomic import write_atomically
from flodl.data import Loader
from flodl.errors import ConfigError, DataError
from flodl.train.compiled import TrainFn
from flodl.train.curve import curve_svg
from flodl.train.trainer import Trainer
from flodl.train.trials import Setup, untouched

__all__ = ["LearningRates", "find_learning_rate"]


@dataclass(frozen=True, kw_only=True)
class LearningRates:
    """The sweep: `losses[i]` at `rates[i]`, `smoothed` around each. `suggestion`: where the loss falls most steeply, None if
    it never fell. `diverged`: whether the sweep ended before its highest rate because the loss rose."""

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    suggestion: float | None
    diverged: bool

    def __str__(self) -> str:
        every = max(1, len(self.rates) // 20)
        rows = [f"{r:10.2e}  {v:10.4g}" for r, v in zip(self.rates[::every], self.smoothed[::every], strict=True)]
        found = "no rate makes the loss fall" if self.suggestion is None else f"suggestion: {self.suggestion:.2g}"
        return "\n".join(["      rate        loss", *rows, found])

    def svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """The curve as a picture, written to `path` too if there is one."""
        lines = [("#bbb", self.losses), ("#36c", self.smoothed)]
        text = curve_svg(
            self.rates, lines, title="Loss by learning rate", x_title="learning rate", mark=self.suggestion
        )
        if path is not None:
            write_atomically(Path(path), lambda file: file.write(text.encode()))
        return text


def find_learning_rate(
    subject: Trainer | nn.Module,
    train_fn: TrainFn,
    *,
    optimizer: Optimizer | None = None,
    batches: Iterable[Any] | None = None,
    lowest: float = 1e-7,
    highest: float = 10.0,
    steps: int = 100,
    diverged: float = 4.0,
) -> LearningRates:
    """Train `steps` updates with learning rates rising from `lowest` to `highest` by a constant factor (Smith, 2017).

    subject: a trainer, or a model with its `optimizer` and `batches` (which can be iterated again: a list, a DataLoader).
    train_fn: `(model, batch) -> loss` or `(loss, metrics)`. Groups of the optimizer keep the ratio of their rates; the rates
    here are those of the group with the largest. Gradients are clipped as the trainer's are; an update is one batch.

    The sweep ends when the loss is not finite, or rises above `diverged` times its best. Model, optimizer, gradients, modes
    and random numbers are then as before, also after an error. Raises `TrainingError` for a loss that cannot be trained on.
    """
    if not 0 < lowest < highest or steps < 3 or not diverged > 1:
        raise ConfigError(
            "needed are 0 < lowest < highest, at least 3 steps and diverged above 1, "
            f"not {lowest}, {highest}, {steps} and {diverged}"
        )
    setup = Setup.of(subject, optimizer)
    if batches is None:
        batches = _trainers_batches(subject)
    factor = (highest / lowest) ** (1 / (steps - 1))
    width = max(1, steps // 20)
    rates, losses, rose = [], [], False
    with untouched(setup.model, setup.optimizer), closing(_again(batches)) as stream:
        groups = setup.optimizer.param_groups
        own = [float(group["lr"]) for group in groups]
        shares = [rate / (max(own) or 1.0) if max(own) else 1.0 for rate in own]
        best = math.inf
        for number, batch in zip(range(steps), stream, strict=False):
            rate = lowest * factor**number
            for group, share in zip(groups, shares, strict=True):
                _set_rate(group, rate * share)
            loss = setup.loss(train_fn, batch)
            rates.append(rate)
            losses.append(loss.item())
            recent = sum(losses[-width:]) / len(losses[-width:])
            best = min(best, recent)
            scale = max(abs(best), abs(losses[0] - best))
            if not math.isfinite(recent) or recent > best + (diverged - 1) * scale:
                rose = True
                break
            setup.update(loss)
    return _learning_rates(rates, losses, width, rose)


def _learning_rates(rates: list[float], losses: list[float], width: int, diverged: bool) -> LearningRates:
    """The mean around each point, unlike a running one, does not lag behind: the steepest place is where it is."""
    smoothed = []
    for i in range(len(losses)):
        near = losses[max(0, i - width) : i + width + 1]
        smoothed.append(sum(near) / len(near) if all(map(math.isfinite, near)) else math.inf)
    lowest = smoothed.index(min(smoothed))
    last = min(lowest, len(losses) - 1 - width)
    slopes = {i: smoothed[i + width] - smoothed[i - width] for i in range(width, last + 1)}
    steepest = min(slopes, key=lambda i: slopes[i], default=None)
    falls = steepest is not None and slopes[steepest] < 0
    suggestion = rates[steepest] if steepest is not None and falls else None
    return LearningRates(rates=rates, losses=losses, smoothed=smoothed, suggestion=suggestion, diverged=diverged)


def _trainers_batches(subject: Trainer | nn.Module) -> Iterator[Any]:
    """In a loader of their own: the trainer's may be in the middle of an epoch, with processes that work for it."""
    given = subject._loader if isinstance(subject, Trainer) else None
    if given is None or given.samples is None:
        raise ConfigError(
            "find_learning_rate needs batches: give batches=..., or a trainer whose dataset has an index (an iterable "
            "would not be where it was)"
        )
    loader = Loader(
        given.dataset,
        given.batch_size,
        seed=given.seed,
        shuffle=given.shuffle,
        drop_last=given.drop_last,
        device=given.device,
        workers=0,
        prefetch=0,
    )
    for epoch in itertools.count():
        yield from loader.epoch(epoch)


def _again(batches: Iterable[Any]) -> Generator[Any]:
    """The batches, from the beginning when they end."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise DataError("there is no batch to train on, or batches can be iterated only once")


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
