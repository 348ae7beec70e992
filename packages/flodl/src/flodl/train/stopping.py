"""What ends a training, or lowers its learning rate, when a metric does not get better."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from flodl.errors import ConfigError, nearest
from flodl.graph.trend import Trend
from flodl.train.callbacks import Callback, Control, FitState

__all__ = ["EarlyStopping", "Plateau"]

Mode = Literal["min", "max"]


class EarlyStopping(Callback):
    """Ends training when `metric` was not better than its best by more than `delta` for `patience` measurements.

    metric: of an evaluation, by its recorded name (`test_loss`), or an epoch's mean (`loss`); each evaluation, or each
    epoch, is one measurement. mode: whether less ("min") or more ("max") is better. NaN and infinity are never better.
    A resumed training goes on with the patience that was left.
    """

    def __init__(self, metric: str, *, mode: Mode = "min", patience: int = 5, delta: float = 0.0) -> None:
        if not delta >= 0:
            raise ConfigError(f"delta is {delta}; it must be at least 0")
        if patience < 1:
            raise ConfigError(f"patience is {patience}; it must be at least 1")
        self._watch = _Watch(metric, mode)
        self.patience = patience
        self.delta = delta
        self.best: float | None = None
        """The best value so far, as it was recorded."""
        self.best_step: int | None = None
        self.waited = 0
        """Measurements since the best one."""

    def on_eval_end(self, state: FitState, control: Control) -> None:
        self._take(self._watch.of_evaluation(state.metrics), state, control)

    def on_epoch_end(self, state: FitState, control: Control) -> None:
        self._take(self._watch.of_epoch(state.metrics), state, control)

    def _take(self, value: float | None, state: FitState, control: Control) -> None:
        if value is None:
            return
        sign = self._watch.sign
        if math.isfinite(value) and (self.best is None or sign * value < sign * self.best - self.delta):
            self.best, self.best_step, self.waited = value, state.step, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            best = "never finite" if self.best is None else f"best {self.best:.6g} at step {self.best_step}"
            control.stop(f"{self._watch.metric} did not improve for {self.waited} measurements ({best})")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited, "watch": self._watch.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.best_step, self.waited = state["best"], state["best_step"], state["waited"]
        self._watch.load(state["watch"])


class Plateau(Callback):
    """Multiplies the learning rates by `factor` when the trend of `metric` is flat.

    The trend is the slope of the line through the last `patience` measurements (least squares), so that neither one lucky
    value nor noise decides. When it does not improve by more than `delta` a measurement, or one of them is NaN or
    infinite, the rates are lowered, though not below `min_lr`, and the next `patience` measurements are waited for.

    metric, mode: as for `EarlyStopping`. Groups keep the ratio of their rates. `initial_lr` is lowered too, so a schedule
    of `make_schedule` goes on from the lower rate; a torch scheduler that computes each rate from its own `base_lrs`
    (LambdaLR, OneCycleLR) undoes it.
    """

    def __init__(
        self,
        metric: str,
        *,
        factor: float = 0.5,
        patience: int = 5,
        mode: Mode = "min",
        delta: float = 0.0,
        min_lr: float = 0.0,
    ) -> None:
        if not 0 < factor < 1:
            raise ConfigError(f"factor is {factor}; it must be between 0 and 1")
        if patience < 2:
            raise ConfigError(f"patience is {patience}; a trend has at least 2 measurements")
        if not delta >= 0:
            raise ConfigError(f"delta is {delta}; it must be at least 0")
        self._watch = _Watch(metric, mode)
        self.factor = factor
        self.patience = patience
        self.delta = delta
        self.min_lr = min_lr
        self.reductions = 0
        """How often the rates were lowered."""
        self._trend = Trend()

    def on_eval_end(self, state: FitState, control: Control) -> None:
        self._take(self._watch.of_evaluation(state.metrics), state)

    def on_epoch_end(self, state: FitState, control: Control) -> None:
        self._take(self._watch.of_epoch(state.metrics), state)

    def _take(self, value: float | None, state: FitState) -> None:
        if value is None:
            return
        values = self._trend.values
        values.append(self._watch.sign * value)
        if len(values) < self.patience or self._trend.slope(self.patience) < -self.delta:
            del values[: -self.patience]
            return
        values.clear()
        lowered = [_lower(group, self.factor, self.min_lr) for group in state.optimizer.param_groups]
        self.reductions += any(lowered)

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._trend.values), "reductions": self.reductions, "watch": self._watch.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trend.values = list(state["values"])
        self.reductions = state["reductions"]
        self._watch.load(state["watch"])


class _Watch:
    """Finds one metric among the results of evaluations, or else among the means of an epoch, each value once."""

    def __init__(self, metric: str, mode: Mode) -> None:
        if mode not in ("min", "max"):
            raise ConfigError(f"mode is {mode!r}.{nearest(mode, ('min', 'max'))}")
        self.metric = metric
        self.sign = 1.0 if mode == "min" else -1.0
        self._evaluated = self._other = self._warned = False

    def of_evaluation(self, metrics: Mapping[str, Any]) -> float | None:
        if self.metric not in metrics:
            self._other = True
            return None
        self._evaluated = True
        return float(metrics[self.metric])

    def of_epoch(self, metrics: Mapping[str, Any]) -> float | None:
        if self._evaluated:  # taken as it was measured, and again among the epoch's results
            return None
        if self.metric in metrics:
            return float(metrics[self.metric])
        if self._other and not self._warned:
            self._warned = True
            hint = nearest(self.metric, metrics)
            warnings.warn(f"there is no metric {self.metric!r} after an evaluation.{hint}", stacklevel=2)
        return None

    def state(self) -> bool:
        return self._evaluated

    def load(self, evaluated: bool) -> None:
        self._evaluated = evaluated


def _lower(group: dict[str, Any], factor: float, least: float) -> bool:
    """One group's rate, in place where it is a tensor; the rate that its schedule begins with by the same factor."""
    rate = float(group["lr"])
    lowered = max(rate * factor, min(rate, least))
    if lowered >= rate * (1 - 1e-6):  # at its least already, up to the rounding of a float32 tensor, or 0
        return False
    for key in ("lr", "initial_lr"):
        if isinstance(value := group.get(key), Tensor):
            value.mul_(lowered / rate)
        elif value is not None:
            group[key] = lowered if key == "lr" else value * (lowered / rate)
    return True
