"""Learning rates by name: a factor on each group's own rate, as a pure function of the number of updates made."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from flodl.errors import ConfigError, nearest

__all__ = ["SCHEDULES", "make_schedule"]

_ONE_CYCLE_START = 1 / 25  # of the peak; both as torch's OneCycleLR has them
_ONE_CYCLE_RISE = 0.3  # of the updates, when no warm-up says otherwise


def make_schedule(
    name: str,
    optimizer: Optimizer,
    *,
    total_steps: int | None = None,
    warmup_steps: int = 0,
    min_lr_ratio: float = 0.0,
    power: float = 2.0,
) -> LRScheduler:
    """A torch scheduler: call its `step()` once after each update. Groups keep the ratio of their learning rates.

    The factor on the learning rate of update u = 0, 1, ..., with w = `warmup_steps`, n = `total_steps`,
    m = `min_lr_ratio` and t = (u - w) / (n - w) from 0 at u = w to 1 at u = n, where it stays:

    warm-up (u < w): (u + 1) / (w + 1), so that no update is made with a rate of 0 and update w has the full rate
    constant: 1
    linear: m + (1 - m) (1 - t)
    cosine: m + (1 - m) (1 + cos πt) / 2
    polynomial: m + (1 - m) (1 - t)^`power`
    inverse_sqrt: sqrt((w + 1) / (u + 1)), at least m
    one_cycle: from 1/25 up to 1 at u = w (without a warm-up: at 0.3 n - 1) and down to m at u = n - 1, both along half a cosine

    Settings are not part of `state_dict()`, only the position is: a resumed run follows the settings that it was given.
    A group's `initial_lr` is read at every step, so what scales that (`Plateau`) scales the whole schedule.

    Raises `ConfigError`: an unknown name; no `total_steps` where it is needed; a setting outside its range.
    """
    if name not in SCHEDULES:
        raise ConfigError(f"there is no learning-rate schedule {name!r}.{nearest(name, SCHEDULES)}")
    if name in _ENDLESS:
        total_steps = None
    elif total_steps is None:
        raise ConfigError(
            f"the schedule {name!r} needs to know how long training is: give total_steps "
            f"(or epochs or max_steps, over data of a known length), or choose {' or '.join(sorted(_ENDLESS))}"
        )
    elif total_steps < 1:
        raise ConfigError(f"total_steps is {total_steps}; it must be at least 1")
    if warmup_steps < 0 or (total_steps is not None and warmup_steps >= total_steps):
        most = "" if total_steps is None else f" and less than the {total_steps} steps of training"
        raise ConfigError(f"warmup_steps is {warmup_steps}; it must be at least 0{most}")
    if not 0 <= min_lr_ratio <= 1:
        raise ConfigError(f"min_lr_ratio is {min_lr_ratio}; it must be from 0 to 1")
    if not power > 0:
        raise ConfigError(f"power is {power}; it must be above 0")
    factor = partial(_factor, name, total=total_steps or 0, warmup=warmup_steps, least=min_lr_ratio, power=power)
    return _Schedule(optimizer, factor)


class _Schedule(LambdaLR):
    def get_lr(self) -> list[float | Tensor]:
        factor = self.lr_lambdas[0](self.last_epoch)
        return [group["initial_lr"] * factor for group in self.optimizer.param_groups]


def _factor(name: str, update: int, *, total: int, warmup: int, least: float, power: float) -> float:
    """Of the learning rate at `update`, from 0. A partial of it has no state of its own to be saved, and pickles."""
    if name == "one_cycle":
        return _one_cycle(update, total, warmup, least)
    if update < warmup:
        return (update + 1) / (warmup + 1)
    if name == "inverse_sqrt":
        return max(least, math.sqrt((warmup + 1) / (update + 1)))
    if name == "constant":
        return 1.0
    t = min(1.0, (update - warmup) / (total - warmup))
    return least + (1 - least) * _SHAPES[name](t, power)


_SHAPES: dict[str, Callable[[float, float], float]] = {
    "linear": lambda t, _: 1 - t,
    "cosine": lambda t, _: (1 + math.cos(math.pi * t)) / 2,
    "polynomial": lambda t, power: (1 - t) ** power,
}
_ENDLESS = {"constant", "inverse_sqrt"}

SCHEDULES = ("constant", "linear", "cosine", "polynomial", "inverse_sqrt", "one_cycle")
"""The names that `make_schedule` knows."""


def _one_cycle(update: int, total: int, warmup: int, least: float) -> float:
    peak = float(warmup) if warmup else max(0.0, _ONE_CYCLE_RISE * total - 1)
    last = total - 1
    if update < peak:
        return _half_cosine(_ONE_CYCLE_START, 1.0, update / peak)
    return _half_cosine(1.0, least, min(1.0, (update - peak) / (last - peak)) if last > peak else 0.0)


def _half_cosine(start: float, end: float, t: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * t)) / 2
