"""How a number goes over the epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Trend", "Trends"]


class Trend:
    """The means of one name, one for each flush, oldest first.

    Windows are the last `n` of them. With fewer than `n` means, or NaN or infinity among them, nothing is stalled, improving or
    converged. "Improving" means falling: record a negative accuracy, or an error, not an accuracy.
    """

    def __init__(self) -> None:
        self.values: list[float] = []
        #: Values that were NaN, over all flushes. They are left out of the means.
        self.nan_count = 0

    def latest(self) -> float:
        """The mean of the last flush; NaN before the first."""
        return self.values[-1] if self.values else math.nan

    def slope(self, n: int) -> float:
        """Change per flush over the last `n` means, by least squares; NaN with fewer than two or where one is not finite."""
        window = self.values[-n:]
        if len(window) < 2 or not all(map(math.isfinite, window)):
            return math.nan
        middle, mean = (len(window) - 1) / 2, math.fsum(window) / len(window)
        across = math.fsum((i - middle) * (v - mean) for i, v in enumerate(window))
        return across / math.fsum((i - middle) ** 2 for i in range(len(window)))

    def stalled(self, n: int, tol: float = 1e-4) -> bool:
        """Whether the slope over the last `n` means is within `tol` of zero: it may still jump up and down."""
        return self._full(n) and abs(self.slope(n)) <= tol

    def improving(self, n: int) -> bool:
        """Whether the slope over the last `n` means is negative."""
        return self._full(n) and self.slope(n) < 0

    def converged(self, n: int, tol: float = 1e-4) -> bool:
        """Whether the last `n` means lie within `tol` of each other."""
        window = self.values[-n:]
        return self._full(n) and max(window) - min(window) <= tol

    def _full(self, n: int) -> bool:
        if n < 2:
            raise ValueError(f"a window has at least two means, not {n}")
        return len(self.values) >= n and all(map(math.isfinite, self.values[-n:]))

    def __repr__(self) -> str:
        shown = ", ".join(f"{v:.4g}" for v in self.values[-5:])
        return f"Trend({'..., ' if len(self.values) > 5 else ''}{shown})"


class Trends:
    """Several trends at once, by name."""

    def __init__(self, trends: dict[str, Trend]) -> None:
        self.by_name = trends

    def slopes(self, n: int) -> dict[str, float]:
        """The slope of each."""
        return {name: trend.slope(n) for name, trend in self.by_name.items()}

    def mean_slope(self, n: int) -> float:
        """The mean of the slopes."""
        slopes: Sequence[float] = list(self.slopes(n).values())
        return math.fsum(slopes) / len(slopes)

    def all_improving(self, n: int) -> bool:
        """Whether every one is improving."""
        return all(t.improving(n) for t in self.by_name.values())

    def any_stalled(self, n: int, tol: float = 1e-4) -> bool:
        """Whether one of them is stalled."""
        return any(t.stalled(n, tol) for t in self.by_name.values())

    def all_converged(self, n: int, tol: float = 1e-4) -> bool:
        """Whether every one has converged."""
        return all(t.converged(n, tol) for t in self.by_name.values())
