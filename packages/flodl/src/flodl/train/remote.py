"""The handle of a training that runs in a process for each device."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle  # type: ignore[import-untyped]
import torch

from flodl.distributed.launch import Ranks
from flodl.errors import DistributedError
from flodl.train.handle import Progress, TrainedState
from flodl.train.signals import leave
from flodl.train.worker import COMMAND, ERROR, PROGRESS, RESULT, STOP

if TYPE_CHECKING:
    from flodl.train.builder import TrainerBuilder

__all__ = ["RemoteHandle"]

_LOOK_SECONDS = 0.02


class RemoteHandle:
    """As `TrainHandle`, for several devices: watch and end a training that runs in processes of its own.

    The builder travels to them by cloudpickle, with its functions, classes and dataset; so it works from a script without a
    `__main__` guard, from a notebook and from standard input. Ctrl-C ends all of them; nothing is left when this process ends.
    """

    def __init__(self, builder: TrainerBuilder, devices: Sequence[torch.device]) -> None:
        pickled = cloudpickle.dumps(builder)
        self._progress: dict[str, Any] = {"epoch": 0, "step": 0, "history": []}
        self._ranks: Ranks | None = None
        self._error: BaseException | None = None
        self._result: TrainedState | None = None
        self._state: Literal["running", "finished", "stopped", "failed"] = "running"
        self._before: dict[int, Any] = {}
        self._ended, started = threading.Event(), threading.Event()
        # The processes end with the thread that started them, so that one waits for them.
        self._thread = threading.Thread(target=self._run, args=(pickled, devices, started), name="flodl ranks")
        self._thread.start()
        started.wait()
        atexit.register(self._tell)
        if not self._ended.is_set() and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._pass_on)

    def metrics(self) -> list[dict[str, float]]:
        """The means of each whole epoch so far, in order."""
        return list(self._progress["history"])

    def poll(self) -> Progress:
        """Where training stands; does not wait."""
        known = self._progress
        metrics = known["history"][-1] if known["history"] else {}
        return Progress(state=self._state, epoch=known["epoch"], step=known["step"], metrics=dict(metrics))

    def stop(self) -> None:
        """End training at the ranks' next meeting; its state is saved."""
        if self._ranks and not self._ended.is_set():
            self._ranks.store.set(STOP, "1")

    def join(self) -> TrainedState:
        """Wait for the end. Returns what all ranks have in common. Raises what training raised; after Ctrl-C, exits
        with 130."""
        try:
            while not self._ended.wait(0.1):  # in slices: a signal handler runs between them
                pass
        except KeyboardInterrupt:  # a notebook has a handler of its own for each cell
            self._pass_on(signal.SIGINT)
            self._ended.wait()
            raise
        finally:
            if self._ended.is_set():
                self._restore()
        atexit.unregister(self._tell)
        if self._error is not None:
            raise self._error
        if self._ranks and self._ranks.signal:
            leave(self._ranks.signal)
        assert self._result is not None
        return self._result

    def _pass_on(self, number: int, _frame: Any = None) -> None:
        if self._ranks and not self._ended.is_set():
            self._ranks.pass_on(number)
        elif self._before:  # training is over: the signal means again what it meant before
            self._restore()
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = {}

    def _run(self, pickled: bytes, devices: Sequence[torch.device], started: threading.Event) -> None:
        try:
            self._watch(pickled, devices, started)
        except BaseException as error:  # join() raises it in the caller's thread
            self._error, self._state = error, "failed"
        finally:
            started.set()
            self._ended.set()

    def _watch(self, pickled: bytes, devices: Sequence[torch.device], started: threading.Event) -> None:
        with tempfile.TemporaryDirectory(prefix="flodl-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            payload = folder / "builder.pkl"
            payload.write_bytes(pickled)
            path = [p for p in sys.path if isinstance(p, str)]
            self._ranks = ranks = Ranks([sys.executable, *COMMAND, str(payload), *path], devices, scratch=name)
            started.set()
            try:
                self._accompany(ranks)
            finally:
                ranks.close()
            self._error = _error_of(ranks, folder)
            if self._error is not None:
                self._state = "failed"
            elif ranks.signal:
                self._state = "stopped"
            else:
                found = torch.load(folder / RESULT, weights_only=True)
                self._result = TrainedState(**{**found, "folder": found["folder"] and Path(found["folder"])})
                self._state = self._progress.get("state", "finished")

    def _accompany(self, ranks: Ranks) -> None:
        """Until the ranks have ended."""
        running = True
        main = threading.main_thread()
        while running:
            running = ranks.running()
            if ranks.store.check([PROGRESS]):
                self._progress = json.loads(ranks.store.get(PROGRESS))
            if not main.is_alive() and getattr(sys, "last_value", None) is not None:
                ranks.pass_on(signal.SIGTERM)  # the program has failed, and nobody waits for the training
                return
            time.sleep(_LOOK_SECONDS)

    def _tell(self) -> None:
        """At the program's end: an error that no join() raised is not lost."""
        if isinstance(self._error, Exception):
            print("flodl: training failed, and join() was never called:", file=sys.stderr)
            traceback.print_exception(self._error)


def _error_of(ranks: Ranks, folder: Path) -> Exception | None:
    """What the first rank to fail has raised; the others only tell that it failed."""
    first = ranks.failed[0] if ranks.failed else 0
    for rank in (first, *range(len(ranks.processes))):
        file = folder / f"{ERROR}{rank}"
        if file.exists():
            error, text = pickle.loads(file.read_bytes())
            error.__cause__ = DistributedError(f"on rank {rank}:\n{text}")
            assert isinstance(error, Exception)
            return error
    if ranks.signal or (folder / RESULT).exists():
        return None
    return DistributedError(ranks.verdict() or "no rank has come to the end of the training")
