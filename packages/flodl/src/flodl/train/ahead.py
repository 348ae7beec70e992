"""Compiling ahead: in a forked process, into torch's cache on disk, while training goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

__all__ = ["Ahead"]


class Ahead:
    """A process that compiles and ends. Only what it leaves in the cache on disk counts, so that it may fail."""

    def __init__(self, pid: int) -> None:
        self._pid, self._started, self._seconds = pid, time.monotonic(), 0.0

    @classmethod
    def start(cls, trace: Callable[[Any], None], graphs: int) -> Ahead | None:
        """Run `trace(backend)`, which compiles as many `graphs`, up to where it would run them. None: not on this system."""
        if sys.platform != "linux" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return None
        from torch._inductor import compile_fx  # once, here: the process shares it

        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Python 3.12: other threads. This child waits for none.
            pid = os.fork()
        if pid:
            return cls(pid)
        code = 1
        try:
            _in_the_child()
            left = graphs

            def backend(module: Any, inputs: Any) -> Any:
                nonlocal left
                compile_fx.compile_fx(module, inputs)
                left -= 1
                if not left:
                    os._exit(0)
                return lambda *_: None

            trace(backend)
        finally:
            os._exit(code)

    @property
    def running(self) -> bool:
        """Whether it still compiles. It is given five minutes."""
        if self._pid:
            if time.monotonic() - self._started > 300:
                self.close()
            elif os.waitpid(self._pid, os.WNOHANG)[0]:
                self._pid, self._seconds = 0, time.monotonic() - self._started
        return self._pid != 0

    def close(self) -> None:
        """End it."""
        if self._pid:
            _kill_group(self._pid)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _in_the_child() -> None:
    os.setpgid(0, 0)  # with the compilers that it starts; Ctrl-C is not for it
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
    os.nice(3)  # training comes first
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):  # it has ended, or has made no group yet
            kill(pid, signal.SIGKILL)
