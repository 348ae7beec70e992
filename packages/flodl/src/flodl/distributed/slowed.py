"""Devices that are slower on purpose: to try out, test and show what unequal ones do."""

from __future__ import annotations

import time

__all__ = ["Slowed"]


class Slowed:
    """Sleeps after each batch, so that this process has the share `speed` (0 to 1] of its own speed.

    What a batch took is the processor time of the calling thread, which waiting for other processes does not change.
    """

    def __init__(self, speed: float) -> None:
        self._factor = 1.0 / speed - 1.0
        self._before = time.thread_time()
        self._debt = 0.0  # slept too long, so far

    def after_batch(self) -> None:
        """A batch was trained."""
        now = time.thread_time()
        wanted = self._factor * (now - self._before) - self._debt
        if wanted > 0:
            started = time.perf_counter()
            time.sleep(wanted)
            self._debt = min(time.perf_counter() - started - wanted, 0.005)
        else:
            self._debt = -wanted
        self._before = time.thread_time()

    def skip(self) -> None:
        """What was computed since the last batch was no part of one."""
        self._before = time.thread_time()
