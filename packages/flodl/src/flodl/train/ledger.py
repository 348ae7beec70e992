"""What is measured on the way: metrics of the steps and their means, learning rates, and where the time went."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flodl.monitor import Recorder
from flodl.train.metrics import Meter, Weight

__all__ = ["Ledger"]


class Ledger:
    """Costs an append where something is measured; `points` and `record_steps` hand on what has come together.

    With several batches an update, `gather` takes the metrics of each batch and `settle` makes their weighted mean the
    update's.
    """

    def __init__(self) -> None:
        self.meter = Meter()
        """Of the epoch under way."""
        self._gathered: dict[str, list[Any]] = {}  # name -> sum of weight * value, sum of weights
        self._rates: list[tuple[int, str, float]] = []
        self._rate: float | None = None
        self._waited: list[float] = []
        self._computed: list[float] = []
        self._excluded = 0.0
        self._last_step = 0
        self._until = 0.0  # when the newest of them ended, by the clock of `time.perf_counter`

    def gather(self, metrics: Mapping[str, Any], weight: Weight) -> None:
        """Metrics of one of several batches."""
        for name, value in metrics.items():
            value = value.detach() if isinstance(value, Tensor) else value
            sums = self._gathered.setdefault(name, [0.0, 0.0])
            # a mean over no token at all is NaN, and counts nothing
            share = torch.where(weight > 0, value * weight, 0.0) if isinstance(weight, Tensor) else value * weight
            sums[0], sums[1] = sums[0] + share, sums[1] + weight

    def settle(self, step: int) -> dict[str, Any]:
        """The means of what was gathered are the metrics of `step`."""
        means = {}
        for name, (total, weight) in self._gathered.items():
            means[name] = total / weight
            self.meter.add(step, weight, name, means[name])
        self._gathered = {}
        return means

    def rate(self, step: int, value: float) -> None:
        """The learning rate of `step`; recorded where it changes."""
        if value != self._rate:
            self._rate = value
            self._rates.append((step, "lr", value))

    def spent(self, asked: float, got: float, done: float, step: int) -> None:
        """When a batch was asked for, given and computed with (`time.perf_counter`); `step`: updates made by then."""
        waited, computed = got - asked, done - got
        if self._excluded:
            computed, self._excluded = max(computed - self._excluded, 0.0), 0.0
        if self._waited and step == self._last_step:  # another batch of the same update
            self._waited[-1] += waited
            self._computed[-1] += computed
        else:
            self._waited.append(waited)
            self._computed.append(computed)
            self._last_step = step
        self._until = done

    def exclude(self, seconds: float) -> None:
        """So much of the time since the last batch was no step's (an evaluation, a checkpoint)."""
        self._excluded += seconds

    def points(self) -> list[tuple[int, str, float]]:
        """What was measured since the last call: (step, name, value)."""
        rates, self._rates = self._rates, []
        return [*self.meter.drain(), *rates]

    def record_steps(self, recorder: Recorder | None) -> None:
        """Hand on where the time went, as one row for all steps since the last call, which follow each other without a gap."""
        waited, computed = self._waited, self._computed
        if recorder and waited:
            seconds = sum(waited) + sum(computed)
            recorder.event(
                "steps",
                start=time.time() - (time.perf_counter() - self._until) - seconds,
                seconds=seconds,
                step=self._last_step,
                first=self._last_step - len(waited) + 1,
                data_us=[round(1e6 * s) for s in waited],
                compute_us=[round(1e6 * s) for s in computed],
            )
        self._waited, self._computed = [], []

    def state(self) -> dict[str, Any]:
        """Plain values and tensors, for a checkpoint in the middle of an epoch. What was measured must have been handed on."""
        gathered = {name: list(sums) for name, sums in self._gathered.items()}
        return {**self.meter.state(), "gathered": gathered}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self.meter.load(state)
        self._gathered = {name: list(sums) for name, sums in state.get("gathered", {}).items()}
