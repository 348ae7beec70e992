"""Means over an epoch, weighted by samples, without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from flodl.errors import TrainingError

__all__ = ["Meter", "Weight", "merged"]

Weight = float | Tensor
"""Of a batch: its samples, or its valid tokens as a tensor `()`."""


class Meter:
    """Collects values and reads them later, many at once: on a GPU, `item()` at each step would stall it.

    A value that is not finite is counted and left out of the mean.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[int, Weight, str, Any]] = []
        self.clear()

    def clear(self) -> None:
        """Start a new epoch. What is pending must have been drained."""
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self.not_finite: dict[str, int] = {}

    @property
    def pending(self) -> bool:
        """Whether something was added since the last `drain`."""
        return bool(self._pending)

    def add(self, step: int, weight: Weight, name: str, value: Any) -> None:
        """`value`: a number or a tensor with one element, which counts as `weight` in the mean."""
        if value.__class__ is float:
            pass
        elif isinstance(value, Tensor):
            if value.numel() != 1:
                raise TrainingError(f"metric {name!r} has shape {tuple(value.shape)}: record one number")
            value = float(value.item()) if value.is_cpu else value.detach()  # a number is less to keep than a tensor
        else:
            try:
                value = float(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise TrainingError(f"metric {name!r} is no number: {error}") from None
        self._pending.append((step, weight, name, value))

    def drain(self) -> list[tuple[int, str, float]]:
        """Read what is pending: (step, name, value), in order."""
        pending, self._pending = self._pending, []
        values = _read([value for *_, value in pending])
        weights = _read([weight for _, weight, _, _ in pending])
        sums, totals, finite, points = self._sums, self._weights, math.isfinite, []
        for (step, _, name, _), value, weight in zip(pending, values, weights, strict=True):
            points.append((step, name, value))
            if weight == 0:  # a mean over no token at all is NaN, and counts nothing
                continue
            if finite(value):
                sums[name] = sums.get(name, 0.0) + value * weight
                totals[name] = totals.get(name, 0.0) + weight
            else:
                self.not_finite[name] = self.not_finite.get(name, 0) + 1
        return points

    def means(self) -> dict[str, float]:
        """The mean of each metric since `clear`; NaN where no value was finite."""
        names = list(dict.fromkeys([*self._sums, *self.not_finite]))
        return {n: self._sums[n] / self._weights[n] if self._weights.get(n) else math.nan for n in names}

    def total(self, name: str) -> tuple[float, float]:
        """The sum of weight times value, and of weights, of what was drained since `clear`."""
        return self._sums.get(name, 0.0), self._weights.get(name, 0.0)

    def state(self) -> dict[str, dict[str, Any]]:
        """Plain values, for a checkpoint in the middle of an epoch."""
        return {"sums": dict(self._sums), "weights": dict(self._weights), "not_finite": dict(self.not_finite)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._sums, self._weights = dict(state["sums"]), dict(state["weights"])
        self.not_finite = dict(state["not_finite"])


def merged(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of several meters as that of one."""
    total: dict[str, dict[str, Any]] = {"sums": {}, "weights": {}, "not_finite": {}}
    for state in states:
        for kind, values in total.items():
            for name, value in state[kind].items():
                values[name] = values.get(name, 0) + value
    return total


def _read(values: list[Any]) -> list[float]:
    """The values as floats, with one transfer per device instead of one per value."""
    if values and {float, int} >= set(map(type, values)):
        return values
    on_devices = {v.device for v in values if isinstance(v, Tensor) and v.device.type != "cpu"}
    for device in on_devices:
        places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.device == device]
        # float32 is the widest type that every device has (MPS has no float64); a loss is rarely wider
        wide = torch.float32 if device.type == "mps" else torch.float64
        read = torch.stack([values[i].reshape(()).to(wide) for i in places]).tolist()
        for i, value in zip(places, read, strict=True):
            values[i] = value
    return [float(v) for v in values]
