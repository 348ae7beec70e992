"""Policy Sync: how a global batch is shared, so that all ranks are done with their parts at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Split"]

_EARLY, _EARLY_EVERY, _EVERY = 10, 2, 8  # updates: until then, and how often, sizes follow what was measured


class Split:
    """Sizes in proportion to measured speed. A batch's time is not in proportion to its size, but sizes converge."""

    def __init__(
        self,
        *,
        ranks: int,
        speed_hint: Mapping[int, float] | None = None,
        partition_ratios: Sequence[float] | None = None,
    ) -> None:
        self.fixed = partition_ratios is not None
        hints = speed_hint or {}
        self.rates = list(map(float, partition_ratios or [hints.get(r, 1.0) for r in range(ranks)]))
        """Relative speeds."""
        self._updates = 0
        self._samples, self._ms = [0.0] * ranks, [0.0] * ranks

    def sizes(self, total: int) -> list[int]:
        """The samples of each rank's part, `total` together."""
        whole = sum(self.rates)
        exact = [total * rate / whole for rate in self.rates]
        sizes = [int(x) for x in exact]
        by_rest = sorted(range(len(sizes)), key=lambda r: (sizes[r] - exact[r], r))
        for rank in by_rest[: total - sum(sizes)]:
            sizes[rank] += 1
        if total >= len(sizes):  # a rank without a sample would never be measured again
            for rank in [r for r, size in enumerate(sizes) if not size]:
                sizes[rank] += 1
                sizes[sizes.index(max(sizes))] -= 1
        return sizes

    def observe(self, compute_ms: Sequence[float], samples: Sequence[int]) -> None:
        """What an update took on each rank."""
        if self.fixed:
            return
        self._updates += 1
        for rank, (ms, n) in enumerate(zip(compute_ms, samples, strict=True)):
            if n and self._updates > 1:  # the first update is not timed
                self._ms[rank] += ms
                self._samples[rank] += n
        if self._updates % (_EARLY_EVERY if self._updates <= _EARLY else _EVERY) or not all(self._ms):
            return
        rates = [n / ms for n, ms in zip(self._samples, self._ms, strict=True)]
        old, new = sum(self.rates), sum(rates)
        weight = 1.0 if self._updates <= _EARLY else 0.5
        self.rates = [weight * r / new + (1 - weight) * was / old for r, was in zip(rates, self.rates, strict=True)]
        self._samples, self._ms = [0.0] * len(rates), [0.0] * len(rates)

    def reform(self, before: Sequence[int | None]) -> None:
        """before: of each rank now, which one it was; None for a newcomer, which begins with the mean speed."""
        mean = sum(self.rates) / len(self.rates)
        self.rates = [mean if was is None else self.rates[was] for was in before]
        self._updates = 0
        self._samples, self._ms = [0.0] * len(before), [0.0] * len(before)

    def state(self) -> dict[str, Any]:
        """Plain values."""
        return {"rates": list(self.rates), "updates": self._updates}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self.rates, self._updates = list(state["rates"]), state["updates"]
        self._samples, self._ms = [0.0] * len(self.rates), [0.0] * len(self.rates)
