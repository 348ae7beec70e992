"""Choosing a recipe while training: challengers are tried in turns with the best one so far, on steps that count."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flodl.train.recipes import Recipe

__all__ = ["Chooser", "Move", "Trial"]

_BLOCK_SECONDS = 0.02  # a block of a trial has as many steps as take this long
_MOST_PAIRS = 7
_GAIN = 1.015  # less is noise
_WORTH_SECONDS, _WORTH_STEPS = 3.0, 100  # a shorter training is not worth a trial, and keeps plain PyTorch's bits
_RECHECK_SECONDS = 30.0  # until the first re-check against plain PyTorch; then after ever longer times

Move = tuple[str, Callable[[Recipe], Recipe | None]]
"""What is tried, and how it changes a recipe; None: it does not apply."""


@dataclass
class Trial:
    """Two recipes in turns. `ratios`: how many times faster the challenger was, for each pair of blocks."""

    base: Recipe
    challenger: Recipe
    steps: int
    """Of a block, without its first."""
    ratios: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    verdict: str = ""

    @property
    def recipe(self) -> Recipe:
        """Of the next step: base, challenger, challenger, base, ..."""
        pair, second = divmod(len(self.blocks), 2)
        return self.challenger if (pair + second) % 2 else self.base

    def took(self, seconds: float) -> None:
        """A step by `recipe` took so long."""
        self.times.append(seconds)
        # The first step after a change is slow; where steps are long, that is left out at the first change only.
        left_out = 1 if self.steps > 1 or len(self.blocks) < 2 else 0
        if len(self.times) < self.steps + left_out:
            return
        self.blocks.append(statistics.median(self.times[left_out:]))
        self.times.clear()
        if len(self.blocks) % 2 == 0:
            first, second = self.blocks[-2:]
            pair = len(self.blocks) // 2 - 1
            self.ratios.append(second / first if pair % 2 else first / second)
            self.verdict = self._decide()

    def _decide(self) -> str:
        ratios = sorted(self.ratios)
        middle = statistics.median(ratios)
        if len(ratios) >= 2 and ratios[-1] < 0.8:
            return "slower"
        if len(ratios) >= 3 and ratios[0] > 1.03:
            return "faster"
        if len(ratios) >= 4 and ratios[-2] < 0.99:
            return "slower"
        if len(ratios) < _MOST_PAIRS:
            return ""
        return "faster" if middle > _GAIN and ratios[1] > 1.0 else "no faster"  # all pairs but one

    @property
    def ratio(self) -> float:
        """The median; NaN before the first pair."""
        return statistics.median(self.ratios) if self.ratios else float("nan")

    @property
    def seconds(self) -> float:
        """Of a step by the challenger."""
        return self.best_of(1)

    def best_of(self, which: int) -> float:
        """Median of the blocks of the base (0) or the challenger (1)."""
        own = [b for i, b in enumerate(self.blocks) if ((i // 2 + i % 2) % 2) == which]
        return statistics.median(own) if own else float("nan")


class Chooser:
    """Says by which recipe the next step is taken, and learns from how long it took.

    Challengers are the best recipe with one thing changed, in the order of `moves`; the best one is then compared with
    plain PyTorch, again and again at growing distances, and gives way to it if that is faster. remaining: updates still
    to come, None if nobody knows.
    """

    def __init__(self, start: Recipe, moves: Sequence[Move], remaining: Callable[[], int | None]) -> None:
        self.best = start
        self.trials: list[Trial] = []
        self.seconds = float("nan")
        """Of a step by the best recipe."""
        self.done = 0
        self.waiting: Recipe | None = None
        """A challenger that must be compiled first, if it pays."""
        self._moves = list(moves)
        self._remaining = remaining
        self._trial: Trial | None = None
        self._first: list[float] = []
        self._settled_for = 0.0
        self._recheck = _RECHECK_SECONDS
        self.checked = False
        """Whether the best one was compared with plain PyTorch."""

    @property
    def recipe(self) -> Recipe:
        """Of the next step."""
        return self._trial.recipe if self._trial else self.best

    @property
    def settled(self) -> bool:
        """Whether nothing is left to try."""
        return self._trial is None and not self._moves and self.waiting is None

    @property
    def remaining(self) -> int:
        """Updates to come: as many as are done, where nobody knows."""
        known = self._remaining()
        return self.done if known is None else max(0, known)

    def took(self, seconds: float) -> None:
        """The step by `recipe` took so long."""
        self.done += 1
        if self._trial:
            self._trial.took(seconds)
            if self._trial.verdict:
                self._conclude(self._trial)
            return
        if len(self._first) < 8:  # the very first ones are slow
            self._first.append(seconds)
            self.seconds = statistics.median(self._first[len(self._first) // 2 :])
            return
        self._settled_for += seconds
        if (self._moves and self.waiting is None) or self._settled_for > self._recheck or not self.checked:
            self._next()

    def start(self, challenger: Recipe) -> None:
        """Try it from the next step on."""
        if challenger == self.waiting:
            self.waiting = None
        self._trial = Trial(self.best, challenger, self._block())

    def also(self, move: Move) -> None:
        """Try this, too."""
        self._moves.insert(0, move)

    def failed(self, recipe: Recipe, instead: Recipe) -> None:
        """A recipe cannot be used."""
        if self._trial and recipe in (self._trial.base, self._trial.challenger):
            self._trial.verdict = "not possible"
            self.trials.append(self._trial)
            self._trial = None
        if self.best == recipe:
            self.best = instead
        if self.waiting == recipe:
            self.waiting = None

    def _block(self) -> int:
        return max(1, min(100, round(_BLOCK_SECONDS / self.seconds))) if self.seconds > 0 else 1

    def _worth_it(self) -> bool:
        """Whether enough is to come: trials cost a little, as some challengers are slower."""
        steps = self.remaining
        return steps >= max(_WORTH_STEPS, 8 * 2 * (self._block() + 1)) and steps * self.seconds > _WORTH_SECONDS

    def _next(self) -> None:
        if not self._worth_it():
            return
        while self._moves and self.waiting is None:
            _, change = self._moves.pop(0)
            challenger = change(self.best)
            if challenger is None or challenger == self.best:
                continue
            if challenger.graph != "eager" and self.best.graph == "eager":
                self.waiting = challenger
                return
            self.start(challenger)
            return
        if self.best == Recipe():
            self.checked = True
        elif self._settled_for > self._recheck or not self.checked:
            self._settled_for, self._recheck, self.checked = 0.0, 4 * self._recheck, True
            self.start(Recipe())

    def _conclude(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._trial = None
        if trial.verdict == "faster":
            self.best, self.seconds = trial.challenger, trial.best_of(1)
        else:
            self.seconds = trial.best_of(0)
