"""Callbacks: what a user adds to a training, what it may see of it and what it may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from flodl.errors import CheckpointError, ConfigError, nearest

__all__ = ["Callback", "Callbacks", "Control", "FitState", "Moment"]

Moment = Literal[
    "on_fit_start", "on_epoch_start", "on_step_end", "on_eval_end", "on_epoch_end", "on_checkpoint", "on_fit_end", "on_exception"
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FitState:
    """A training at one moment. Epochs and samples are counted from 0, `step` is the number of updates made.

    metrics: at `on_eval_end` what was measured, by its recorded name (`test_accuracy`); at `on_epoch_end` the means of the
    epoch, evaluations among them; at `on_step_end` the step's own metrics as they were given: a loss is a tensor `()`,
    which may still be under way on a GPU.
    learning_rates: of each group; at `on_step_end` those of the update that was made.
    checkpoint: at `on_checkpoint` what was written. folder: the run's, None if it is not recorded.
    """

    epoch: int
    step: int
    sample: int
    total_epochs: int | None
    total_steps: int | None
    metrics: Mapping[str, Any]
    learning_rates: tuple[float, ...]
    model: nn.Module
    optimizer: Optimizer
    folder: Path | None
    checkpoint: Path | None = None


class Control:
    """What a callback may ask for. It is done when the callbacks of this moment have all been called."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self.save_asked = False
        self.evaluate_asked = False

    def stop(self, reason: str = "a callback asked for it") -> None:
        """End training after the update under way."""
        self.stop_reason = reason

    def save(self) -> None:
        """Write a checkpoint."""
        self.save_asked = True

    def evaluate(self) -> None:
        """Evaluate now what the trainer was given to evaluate."""
        self.evaluate_asked = True


class Callback:
    """Derive from it and override what you need. An exception in it ends training as one in your loop does.

    `state_dict` and `load_state_dict`: plain values that belong to a checkpoint, kept by the name of the class (and a
    number, from the second of the same class on).
    """

    def on_fit_start(self, state: FitState, control: Control) -> None:
        """Before the first epoch of this process."""

    def on_epoch_start(self, state: FitState, control: Control) -> None:
        """Before an epoch, or before what is left of it after a resume."""

    def on_step_end(self, state: FitState, control: Control) -> None:
        """After an update."""

    def on_eval_end(self, state: FitState, control: Control) -> None:
        """After an evaluation."""

    def on_epoch_end(self, state: FitState, control: Control) -> None:
        """After an epoch, its evaluations included."""

    def on_checkpoint(self, state: FitState, control: Control) -> None:
        """After a checkpoint was taken; in the background it may still be written."""

    def on_fit_end(self, state: FitState, control: Control) -> None:
        """After the last epoch, or when training was stopped."""

    def on_exception(self, state: FitState, control: Control, error: BaseException) -> None:
        """Training fails with `error`. In a loop of your own this needs `with trainer:` around it."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training must know."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""


class Callbacks:
    """The callbacks of one training, in order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._all = list(callbacks)
        for callback in self._all:
            if not isinstance(callback, Callback):
                raise ConfigError(f"a callback is an instance of fl.Callback, not {callback!r}")
            _check_names(callback)

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, callback: Callback) -> None:
        """Put another one at the end."""
        self._all.append(callback)

    def listening(self, moment: Moment) -> list[Any]:
        """The methods that override `moment`: only these are worth a state."""
        return [getattr(c, moment) for c in self._all if getattr(type(c), moment) is not getattr(Callback, moment)]

    def state(self) -> dict[str, Any]:
        """The states of all by name."""
        return {name: state for name, callback in self._named() if (state := callback.state_dict())}

    def load(self, states: Mapping[str, Any]) -> list[str]:
        """Give each callback its state. Returns the names in `states` that no callback has."""
        named = dict(self._named())
        for name, state in states.items():
            if name in named:
                try:
                    named[name].load_state_dict(state)
                except (KeyError, TypeError, ValueError) as error:
                    raise CheckpointError(f"the saved state of callback {name} does not fit it: {error!r}") from error
        return [name for name in states if name not in named]

    def _named(self) -> list[tuple[str, Callback]]:
        seen: dict[str, int] = {}
        named = []
        for callback in self._all:
            kind = type(callback).__name__
            seen[kind] = number = seen.get(kind, 0) + 1
            named.append((kind if number == 1 else f"{kind}_{number}", callback))
        return named


def _check_names(callback: Callback) -> None:
    """A misspelt `on_...` would never be called: say so at once."""
    known = [name for name in vars(Callback) if name.startswith("on_")]
    for name in dir(callback):
        if name.startswith("on_") and name not in known:
            raise ConfigError(f"{type(callback).__name__}.{name} is never called.{nearest(name, known)}")
