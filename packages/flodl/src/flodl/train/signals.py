"""Ctrl-C and SIGTERM: the first one ends training after the step that runs, the second one at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

__all__ = ["Interruption", "leave"]


class Interruption:
    """`signal` is 0 until SIGINT or SIGTERM arrives; training looks at it between steps.

    `over`: training has ended, the signals mean again what they meant before.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.over = False
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Handle the signals from now on. Does nothing outside the main thread, where Python cannot."""
        self.signal, self.over = 0, False
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore(self) -> None:
        """Put the handlers of before back."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Handle the signals in here."""
        self.install()
        try:
            yield
        finally:
            self.restore()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.over:
            self.restore()
            os.kill(os.getpid(), number)
            return
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        print("\nstopping after this step; once more stops at once", file=sys.stderr, flush=True)


def leave(number: int) -> NoReturn:
    """End the program as the signal wants it; at a prompt or in a notebook, only what was entered."""
    if number == signal.SIGINT and hasattr(sys, "ps1"):
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
