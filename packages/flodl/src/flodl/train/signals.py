"""Ctrl-C and SIGTERM: the first one ends training after the step that runs, the second one at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interruption"]


class Interruption:
    """`signal` is 0 until SIGINT or SIGTERM arrives (or `request` is called); training looks at it between steps."""

    def __init__(self) -> None:
        self.signal = 0

    def request(self, number: int = signal.SIGINT) -> None:
        """Ask for the end of the training as the signal would."""
        self.signal = number

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Handle the signals in here; the handlers of before are back afterwards. Does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        print("\nstopping after this step; once more stops at once", file=sys.stderr, flush=True)
