"""What would help: measured on the first batches."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from flodl.data.ahead import Ticker
from flodl.data.workers import FORKS

__all__ = ["Choice", "Pace"]

_T = TypeVar("_T")

_BATCHES, _SECONDS = 3, 0.05  # a window of measurements has at least so many, of so long
_FAST_S = 0.0002  # a fetch below it is as cheap as handing it over
_SMALL_SHARE = 0.1  # of the loop's time: not worth a thread
_START_S = 0.5  # of fetching must be left for processes to be started
_GIL_FREE = 0.5  # of a fetch
_MOST = 16


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Where batches are fetched ("here", "thread", "worker") and why."""

    kind: str = "here"
    workers: int = 0
    why: str = ""


class Pace:
    """Times each fetch and the loop in between, and chooses when it knows enough.

    A fetch that costs little beside the step stays where it is. One that leaves the GIL free goes to a thread, unless it
    takes longer than the step or draws from the global random generators; others to as many processes as hide it.
    """

    def __init__(self) -> None:
        self._fetches: list[float] = []
        self._steps: list[float] = []
        self._ticks = 0
        self._ticker: Ticker | None = None
        self._left_at: float | None = None
        self._done = False

    def fetch(self, fetch: Callable[[], _T]) -> _T:
        """Time `fetch()`. The first one is only the start: it opens files and fills caches."""
        begun = time.perf_counter()
        ticks = self._ticker.ticks if self._ticker else 0
        result = fetch()
        now = time.perf_counter()
        if self._left_at is not None and not self._done:
            self._steps.append(begun - self._left_at)
            self._fetches.append(now - begun)
            self._ticks += (self._ticker.ticks if self._ticker else 0) - ticks
        self._left_at = now
        return result

    def choice(self, *, draws: bool, batches_left: int | None, most_workers: int) -> Choice | None:
        """What to do from now on; None: go on here and measure."""
        total = sum(self._fetches)
        if self._done or len(self._fetches) < _BATCHES or total < _SECONDS:
            return None
        fetch, step, ticks = median(self._fetches), median(self._steps), self._ticks
        self._fetches, self._steps, self._ticks = [], [], 0
        if fetch < _FAST_S or fetch < _SMALL_SHARE * (fetch + step):
            self.close()
            return None
        if self._ticker is None:
            self._ticker = Ticker()
            self._ticker.__enter__()
            return None
        self._done = True  # nothing will be known better in this epoch
        gil_free = ticks * Ticker.PERIOD_S > _GIL_FREE * total
        self.close()
        times = f"a batch takes {_ms(fetch)} to fetch, the step {_ms(step)}"
        holds = "" if gil_free else ", and fetching holds the GIL"
        if gil_free and not draws and fetch <= 1.5 * step:
            return Choice(kind="thread", why=times)
        workers = _workers(fetch, step, most_workers)
        if workers and (batches_left is None or batches_left * fetch > _START_S):
            return Choice(kind="worker", workers=workers, why=times + holds)
        return Choice(kind="thread", why=times) if gil_free and not draws else None

    def close(self) -> None:
        """End the thread that measures, if there is one."""
        if self._ticker:
            self._ticker.__exit__(None, None, None)
            self._ticker = None


def _workers(fetch: float, step: float, most: int) -> int:
    """As many as fetch in the time of a step, 0 where none can be started unasked."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not FORKS or not most or processors < 2 or multiprocessing.current_process().daemon:
        return 0
    return max(1, min(processors, most, _MOST, round(fetch / max(step, 1e-6) + 0.49)))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
