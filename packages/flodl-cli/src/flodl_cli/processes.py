"""Children: started in a group of their own, told of signals, given time, and never left running.

On a terminal the child stays in fdl's group, so that Ctrl-C and Ctrl-Z reach it from the terminal itself and it may read
the keyboard (a debugger under `fdl test`); elsewhere it leads a new group, and signals are passed on to that group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from flodl_cli.errors import CliError

__all__ = ["exit_code", "run_child"]

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_code(status: int) -> int:
    """The shell's number for a status of subprocess: 128 + n for a child that signal n killed."""
    return 128 - status if status < 0 else status


def run_child(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], grace_s: float, stdout: BinaryIO | None = None
) -> int:
    """Runs a program to its end and returns its exit code; 128 + n when signal n stopped fdl meanwhile."""
    terminal = _on_terminal()
    sys.stdout.flush()
    with _Stopping(grace_s) as stopping:
        # A new group, not a new session: the child keeps its terminal, should it have one.
        try:
            prepare = None if terminal else os.setpgrp
            child = subprocess.Popen(argv, cwd=cwd, env=dict(env), stdout=stdout, preexec_fn=prepare)
        except OSError as error:
            raise CliError(f"cannot start {argv[0]}: {error.strerror}") from error
        group = None if terminal else child.pid
        stopping.watch(child, group)
        status = child.wait()
        if stopping.signal is None:
            return exit_code(status)
        stopping.finish()
        return 128 + stopping.signal


def _on_terminal() -> bool:
    """True when the terminal's keys reach this process: then they reach a child in the same group, too."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


class _Stopping:
    """What happens from the first signal on: the child is told, after the grace period everything is killed."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.signal: int | None = None
        self.deadline = 0.0
        self.child: subprocess.Popen[bytes] | None = None
        self.group: int | None = None
        self.before: dict[int, object] = {}

    def __enter__(self) -> _Stopping:
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                self.before[number] = signal.signal(number, self.on_signal)
        self.before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self.on_alarm)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def watch(self, child: subprocess.Popen[bytes], group: int | None) -> None:
        self.child, self.group = child, group
        if self.signal is not None:  # it came while the child was being started
            self.pass_on(self.signal)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            self.deadline = time.monotonic() + self.grace_s
            signal.setitimer(signal.ITIMER_REAL, max(self.grace_s, 0.001))
        self.pass_on(number)

    def pass_on(self, number: int) -> None:
        if self.child is None:
            return
        if self.group is not None:
            _signal_group(self.group, number)
        elif number != signal.SIGINT:  # Ctrl-C reached it from the terminal already
            _signal_process(self.child.pid, number)

    def on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        self.kill()

    def kill(self) -> None:
        for pid in self.left():
            _signal_process(pid, signal.SIGKILL)

    def finish(self) -> None:
        """The child has ended: its own children get the rest of the grace period."""
        while self.left() and time.monotonic() < self.deadline:
            time.sleep(0.02)
        self.kill()

    def left(self) -> list[int]:
        """The processes that the child and its descendants still are."""
        table = list(_processes())
        if self.group is not None:
            return [pid for pid, _, group in table if group == self.group]
        found = {os.getpid()}
        grown = True
        while grown:  # parents can stand behind their children in the table
            new = {pid for pid, parent, _ in table if parent in found} - found
            found |= new
            grown = bool(new)
        return sorted(found - {os.getpid()})


def _signal_group(group: int, number: int) -> None:
    with _gone_is_fine():
        os.killpg(group, number)


def _signal_process(pid: int, number: int) -> None:
    with _gone_is_fine():
        os.kill(pid, number)


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Between looking and signalling a process may end; that is what was wanted."""
    try:
        yield
    except ProcessLookupError:
        return


def _processes() -> Iterator[tuple[int, int, int]]:
    """(process, parent, group) of all processes that are not zombies."""
    proc = Path("/proc")
    if not (proc / "self" / "stat").exists():
        yield from _processes_from_ps()
        return
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            text = (proc / entry / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # it ended while the folder was read
            continue
        state, parent, group = text.rpartition(")")[2].split()[:3]
        if state not in "ZX":
            yield int(entry), int(parent), int(group)


def _processes_from_ps() -> Iterator[tuple[int, int, int]]:
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,state="], capture_output=True, text=True, check=True
    ).stdout
    for line in listing.splitlines():
        pid, parent, group, state = line.split(None, 3)
        if not state.startswith("Z"):
            yield int(pid), int(parent), int(group)
