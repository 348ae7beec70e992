"""The evaluations of a training: what was planned, what was measured, and what a resumed run does once more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from flodl.train.evaluate import Planned, evaluate

if TYPE_CHECKING:
    from flodl.train.fit import Fit

__all__ = ["Evaluations"]


class Evaluations:
    """Made when they are due, exactly once also in a training that is cut off in one of them."""

    def __init__(self, fit: Fit) -> None:
        self.planned: list[Planned] = []
        self.measured: dict[str, float] = {}
        """The newest of each, the means of the epochs among them."""
        self.of_epoch: dict[str, float] = {}
        """Made in the epoch under way."""
        self.due = False
        """Those after this update are not complete."""
        self.before: dict[str, Any] | None = None
        """What a checkpoint holds as it was before evaluations that a resumed training will make, and tell of, once more."""
        self._fit = fit

    def run(self, *, after_step: bool = True) -> None:
        """All that were planned, now. One that a signal cuts off is made again when the run is resumed.

        after_step: not what ends an epoch, to which a resumed loop comes back by itself.
        """
        self.due = after_step
        for planned in self.planned:
            self.evaluate(planned)
        self.due, self.before = False, None

    def evaluate(self, planned: Planned) -> dict[str, float]:
        """Means over a dataset, recorded and, inside an epoch, part of its line."""
        fit = self._fit
        fit.drain()
        # A loop comes back to what follows its last batch, but not to what it does between two batches: that is completed.
        comes_back = self.due or fit.epoch_is_whole()
        if comes_back and self.before is None:
            self.before = {**fit.passing(), "record": fit.run.flush()}
        started = time.time()
        with fit.update.evaluating():
            stop = (lambda: bool(fit.interruption.signal)) if comes_back else (lambda: False)
            meter = (
                evaluate(fit.trainer.model, planned, stop) if fit.column is None else fit.column.evaluate(planned, stop)
            )
        if meter is None:
            fit.interrupted()
        result = meter.means()
        named = {f"{planned.name}_{key}": value for key, value in result.items()}
        self.of_epoch.update(named)
        self.measured.update(named)
        fit.run.points([(fit.step, key, value) for key, value in named.items()], fit.position.epoch)
        fit.span("evaluation", started)
        fit.tell("on_eval_end", named)
        return result

    def end_epoch(self, means: dict[str, float]) -> None:
        """The epoch is over, with these means: a resumed training does not come back to it."""
        self.measured.update(means)
        self.of_epoch, self.before = {}, None

    def state(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {"of_epoch": dict(self.of_epoch), "measured": dict(self.measured)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.of_epoch, self.measured = dict(state["of_epoch"]), dict(state["measured"])
