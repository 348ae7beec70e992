"""The launcher: starts a process for each device by running the program again, and waits for all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from flodl.distributed.devices import threads_of
from flodl.distributed.environment import STORE
from flodl.distributed.lifeline import Guard, die_with_parent, end_all, sweep
from flodl.distributed.membership import GONE, failure
from flodl.distributed.output import Pump
from flodl.errors import ConfigError

__all__ = ["Ranks", "launch_siblings"]

_PATIENCE = 60.0  # seconds that ranks get to save and end after a signal
_GRACE = 5.0  # seconds that ranks get to end after one has failed
_POLL = 0.01


class Ranks:
    """The processes of one training, and the store in which they find each other, which outlives each of them.

    cwd: where they start. scratch: a folder that is removed when they have ended, or this process has.
    """

    def __init__(
        self, command: Sequence[str], devices: Sequence[torch.device], *, cwd: str | None = None, scratch: str = ""
    ) -> None:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        self.store = PrefixStore("flodl0", store)
        self.address = f"127.0.0.1:{store.port}"
        self.signal = 0
        """That the launcher was told to end by."""
        self.processes: list[subprocess.Popen[bytes]] = []
        self.lost: dict[int, int] = {}
        """Rank -> signal that it was killed by."""
        self.failed: tuple[int, int] | None = None
        """The first rank that failed by itself, and its exit code."""
        self._seen: set[int] = set()
        self._end_at = 0.0
        count, tie = len(devices), die_with_parent()
        common = {
            **os.environ, STORE: self.address, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        if devices[0].type == "cpu":
            common.setdefault("OMP_NUM_THREADS", str(threads_of(count)))
        self.pumps: list[list[Pump]] = []
        self._guard = Guard(scratch)
        try:
            for rank in range(count):
                # The first rank has the terminal itself, if there is one: what it draws there stays a drawing.
                stdout, stderr = (
                    None if rank == 0 and stream is not None and stream.isatty() else subprocess.PIPE
                    for stream in (sys.__stdout__, sys.__stderr__)
                )  # fmt: skip
                process = subprocess.Popen(
                    command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdin=subprocess.DEVNULL,
                    stdout=stdout, stderr=stderr, preexec_fn=tie, cwd=cwd,
                )  # fmt: skip
                self.processes.append(process)
                self._guard.tell(process.pid)
                outs = ((process.stdout, sys.__stdout__), (process.stderr, sys.__stderr__))
                self.pumps.append([Pump(rank, stream, out and out.buffer) for stream, out in outs if stream])
        except BaseException:
            self.close(0.0)
            raise

    def running(self) -> bool:
        """Whether a rank still runs. Looks for those that have ended, tells the others, and ends those that must."""
        for rank, process in enumerate(self.processes):
            code = process.poll()
            if code is None or rank in self._seen:
                continue
            self._seen.add(rank)
            self.store.set(f"{GONE}{rank}", "")
            if code:
                sweep(process.pid)
            self._guard.tell(process.pid, ended=True)
            if code < 0 and not self.signal and self.failed is None:
                self.lost[rank] = -code
            elif code > 0 and code not in (128 + signal.SIGINT, 128 + signal.SIGTERM) and self.failed is None:
                self.failed = (rank, code)
                self._end_at = time.monotonic() + _GRACE
                failure(self.store, f"rank {rank} failed: its error is above")
        if self._end_at and time.monotonic() > self._end_at:
            end_all(self.processes, 1.0)
        return any(p.poll() is None for p in self.processes)

    def pass_on(self, number: int, _frame: FrameType | None = None) -> None:
        """A signal to the launcher is one to all ranks."""
        if self.signal:  # the second time
            self._end_at = min(self._end_at, time.monotonic() + _GRACE)
        else:
            self.signal, self._end_at = number, time.monotonic() + _PATIENCE
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def code(self) -> int:
        """The exit code of all together: 0 when training came to its end on whatever ranks were left."""
        if self.failed:
            return self.failed[1]
        codes = [p.returncode for p in self.processes]
        ended = [c for c in codes if c >= 0]
        return max(ended) if ended else 128 - min(codes)

    def verdict(self) -> str | None:
        """One line when something went wrong."""
        if self.failed:
            rank, code = self.failed
            lines = (line for pump in reversed(self.pumps[rank]) for line in reversed(pump.last) if line.strip())
            error = next(lines, "its error is above")
            return f"flodl: rank {rank} failed with exit code {code}, which ended the others: {error}"
        if self.lost:
            named = ", ".join(f"rank {rank} by {signal.Signals(number).name}" for rank, number in self.lost.items())
            if len(self.lost) == len(self.processes):
                return f"flodl: all ranks were killed ({named}): resume from the newest checkpoint"
            return f"flodl: killed: {named}; the others have trained on"
        return None

    def close(self, grace: float = 1.0) -> None:
        """Nothing is left running."""
        end_all(self.processes, grace)
        self._guard.close()
        for pumps in self.pumps:
            for pump in pumps:
                pump.join(2.0)


def launch_siblings(devices: Sequence[torch.device]) -> NoReturn:
    """Run this program once on each device, wait for all, and leave with their exit code.

    The calling process trains nothing itself: so any rank may be lost. Raises ConfigError where there is no program that
    could be run again: in a notebook, an interactive session, `python -c` or standard input.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("on several devices, Trainer.setup is called in the main thread: it leaves the program")
    ranks = Ranks(_this_program(), devices, cwd=sys.modules["flodl"]._started_in)
    before = {number: signal.signal(number, ranks.pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while ranks.running():
            time.sleep(_POLL)
    finally:
        ranks.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if verdict := ranks.verdict():
        print(verdict, file=sys.stderr, flush=True)
    raise SystemExit(ranks.code())


def _this_program() -> list[str]:
    """What started this process. Raises ConfigError where that cannot be done again."""
    main: Any = sys.modules["__main__"]
    file = getattr(main, "__file__", None) or ""
    # Standard input is the file "<stdin>"; IPython and notebooks have a prompt, too.
    if not os.path.exists(file) or hasattr(sys, "ps1") or sys.flags.interactive:
        raise ConfigError(
            "there is no program here that could be run on each device (a notebook, python -c or standard input): use "
            'Trainer.builder(...).devices(...).run(), or devices="cpu" for one'
        )
    if any(frame.f_globals.get("__name__", "").startswith("_pytest.") for frame, _ in traceback.walk_stack(None)):
        raise ConfigError("a test cannot be run again on each device: use Trainer.builder(...), or start a script")
    arguments = list(sys.orig_argv[1:])
    if main.__spec__ is None and sys.argv[0] in arguments:  # a script, and no module or folder
        arguments[arguments.index(sys.argv[0])] = os.path.abspath(file)
    return [sys.executable, *arguments]
