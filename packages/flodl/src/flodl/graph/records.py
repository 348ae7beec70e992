"""What is kept of observed values: the last one, the mean until the next flush, the trend of the means."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from flodl.graph.dry import is_dry
from flodl.graph.traces import Trace, detached
from flodl.graph.trend import Trend

__all__ = ["Hook", "Records"]


class Mean:
    """The mean of the numbers added since the last `take`. NaN is counted instead; nothing waits for the device."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # on the device of the values: sum, count, number of NaN
        self._numbers = [0.0, 0, 0]  # the same for plain numbers

    def add(self, value: Tensor | float) -> None:
        """value: a number, or a tensor of any shape that counts with its mean"""
        if not isinstance(value, Tensor):
            bad = math.isnan(value)
            for i, part in enumerate((0.0 if bad else float(value), not bad, bad)):
                self._numbers[i] += part
            return
        with torch.no_grad():
            mean = value.mean(dtype=value.dtype if value.is_floating_point() else torch.float32)
            mean = mean.to(torch.float32 if value.device.type == "mps" else torch.float64)
            nan = mean.isnan()
            sums = torch.stack([mean.masked_fill(nan, 0.0), (~nan).to(mean.dtype), nan.to(mean.dtype)])
            self._sums = sums if self._sums is None else self._sums.to(sums.device) + sums

    def take(self) -> tuple[float, int]:
        """The mean, NaN when nothing was added but NaN, and how many NaN there were; starts anew."""
        total, number, nans = self._numbers
        if self._sums is not None:
            a, b, c = self._sums.tolist()
            total, number, nans = total + a, number + b, nans + c
        self.__init__()  # type: ignore[misc]
        return (total / number if number else float("nan")), int(nans)


class Records:
    """The observed values of one flow, or of the view of a module, by name."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}  # of the observed names; None before the first forward
        self.collected: set[str] = set()
        self.means: dict[str, Mean] = {}
        self.trends: dict[str, Trend] = {}
        self.traces: dict[str, list[tuple[Trace, str]]] = {}  # name -> loops around that trace it, and how they call it

    def see(self, name: str, value: Any) -> None:
        """A value of a forward. Called by the generated forward and by hooks, for observed names only."""
        if is_dry():
            return
        value = detached(value)
        if name in self.last:
            self.last[name] = value
        for trace, called in self.traces.get(name, ()):
            trace.put(called, value)
        if name in self.collected:
            tensor = next((v for v in _pytree.tree_leaves(value) if isinstance(v, Tensor)), None)
            if tensor is not None:
                self.record(name, tensor)

    def record(self, name: str, value: Tensor | float) -> None:
        """One more number for the mean of `name`."""
        if name not in self.means:
            self.means[name] = Mean()
        self.means[name].add(value)

    def flush(self) -> dict[str, float]:
        """End the epoch: the mean of each name that got values, appended to its trend."""
        flushed = {}
        for name, mean in self.means.items():
            trend = self.trends.setdefault(name, Trend())
            value, nans = mean.take()
            trend.values.append(value)
            trend.nan_count += nans
            flushed[name] = value
        self.means.clear()
        return flushed


class Hook:
    """A forward hook that shows the output of a module to `records`; copies and pickles with the module."""

    def __init__(self, records: Records, name: str) -> None:
        self.records, self.name = records, name

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        self.records.see(self.name, output)
