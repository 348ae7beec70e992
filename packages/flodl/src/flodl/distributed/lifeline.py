"""No process and no file is left when a launcher is gone, however that ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

__all__ = ["Guard", "die_with_parent", "end_all", "sweep"]

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


def sweep(group: int) -> None:
    """End what a process has started and left: data workers, for instance, notice its death after seconds."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(group, signal.SIGKILL)


def end_all(processes: Iterable[subprocess.Popen[bytes]], grace: float) -> None:
    """SIGTERM to all; SIGKILL to those that are there after `grace` seconds, and to what they have started and left."""
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
        sweep(process.pid)


class Guard:
    """A small process that outlives this one by a moment: when this one is gone, it ends the groups that it was told and
    removes `folder`. PDEATHSIG reaches the ranks alone, not their workers, and is Linux's only."""

    def __init__(self, folder: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-IS", __file__, str(os.getpid()), folder], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def tell(self, group: int, *, ended: bool = False) -> None:
        """This group of processes is to be ended; or it has ended, and its number may soon be another's."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # somebody has killed or closed it: PDEATHSIG is still there
            self._process.stdin.write(b"%d\n" % (-group if ended else group))
            self._process.stdin.flush()

    def close(self) -> None:
        """It is not needed any more: all is in order."""
        self.tell(0)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _guard(parent: int, folder: str) -> None:
    groups, rest, told = set[int](), b"", 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its parent, and not before
    while told and os.getppid() == parent:  # the pipe's end alone does not tell: a fork of the parent may hold it open
        if select.select([0], [], [], 0.2)[0]:
            read = os.read(0, 4096)
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            for told in map(int, lines):
                groups.add(told) if told > 0 else groups.discard(-told)
    if not told:
        return
    for group in groups:
        sweep(group)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), sys.argv[2])
