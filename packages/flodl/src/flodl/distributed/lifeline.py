"""No process is left when its launcher is gone, however that ended."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

__all__ = ["die_with_parent", "end_all"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> Callable[[], None]:
    """For `preexec_fn`: the child leads a group of its own and, on Linux, gets SIGKILL when the thread that started it
    ends."""
    parent, prctl = os.getpid(), None if _libc is None else _libc.prctl

    def tie() -> None:
        os.setpgrp()  # Ctrl-C goes to the launcher, which passes it on once
        if prctl is None:
            return
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has gone before
            os._exit(1)

    return tie


def end_all(processes: Iterable[subprocess.Popen[bytes]], grace: float) -> None:
    """SIGTERM to all, and SIGKILL to those that are there after `grace` seconds."""
    running = [p for p in processes if p.poll() is None]
    for process in running:
        process.terminate()
    until = time.monotonic() + grace
    for process in running:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
