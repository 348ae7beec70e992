"""The handle of a training that runs in a process for each device."""

from __future__ import annotations

import json
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle  # type: ignore[import-untyped]
import torch

from flodl.distributed.launch import Ranks
from flodl.errors import DistributedError
from flodl.train.handle import Progress, TrainedState
from flodl.train.worker import ERROR, PROGRESS, RESULT, STOP

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
        self._folder = tempfile.TemporaryDirectory(prefix="flodl-")
        payload = Path(self._folder.name) / "builder.pkl"
        payload.write_bytes(pickle.dumps({"path": sys.path, "builder": cloudpickle.dumps(builder)}))
        self._progress: dict[str, Any] = {"epoch": 0, "step": 0, "history": []}
        self._ranks: Ranks | None = None
        self._problem: BaseException | None = None
        self._state: Literal["running", "finished", "stopped", "failed"] = "running"
        self._before: dict[int, Any] = {}
        started = threading.Event()
        # The processes end with the thread that started them, so that one waits for them.
        self._thread = threading.Thread(target=self._watch, args=(payload, devices, started), name="flodl ranks")
        self._thread.start()
        started.wait()
        if self._problem is None and threading.current_thread() is threading.main_thread():
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
        if self._ranks and self._thread.is_alive():
            self._ranks.store.set(STOP, "1")

    def join(self) -> TrainedState:
        """Wait for the end. Returns what all ranks have in common. Raises what training raised; after Ctrl-C, exits
        with 130."""
        try:
            while self._thread.is_alive():
                self._thread.join(0.1)  # in slices: a signal handler runs between them
        finally:
            if not self._thread.is_alive():
                for number, handler in self._before.items():
                    signal.signal(number, handler)
                self._before = {}
        try:
            if self._problem is not None:
                raise self._problem
            assert self._ranks is not None
            first = self._ranks.failed[0] if self._ranks.failed else 0  # the others only tell that it failed
            for rank in (first, *range(len(self._ranks.processes))):
                file = self._file(f"{ERROR}{rank}")
                if file.exists():
                    error, text = pickle.loads(file.read_bytes())
                    raise error from DistributedError(f"on rank {rank}:\n{text}")
            if self._ranks.signal:
                _leave(self._ranks.signal)
            if not self._file(RESULT).exists():
                raise DistributedError(self._ranks.verdict() or "no rank has come to the end of the training")
            found = torch.load(self._file(RESULT), weights_only=True)
            found["folder"] = found["folder"] and Path(found["folder"])
            return TrainedState(**found)
        finally:
            self._folder.cleanup()

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _pass_on(self, number: int, _frame: Any) -> None:
        if self._ranks:
            self._ranks.pass_on(number)

    def _watch(self, payload: Path, devices: Sequence[torch.device], started: threading.Event) -> None:
        try:
            self._ranks = ranks = Ranks([sys.executable, "-m", "flodl.train.worker", str(payload)], devices)
        except BaseException as error:
            self._problem = error
            return
        finally:
            started.set()
        try:
            main = threading.main_thread()
            while ranks.running():
                if ranks.store.check([PROGRESS]):
                    self._progress = json.loads(ranks.store.get(PROGRESS))
                if not main.is_alive() and sys.exc_info()[0] is None and getattr(sys, "last_value", None) is not None:
                    ranks.close()  # the program has failed, and nobody waits for the training
                time.sleep(_LOOK_SECONDS)
            if ranks.store.check([PROGRESS]):
                self._progress = json.loads(ranks.store.get(PROGRESS))
        finally:
            ranks.close()
        failed = ranks.failed or not self._file(RESULT).exists()
        self._state = "stopped" if ranks.signal else "failed" if failed else self._progress.get("state", "finished")


def _leave(number: int) -> None:
    """End the program as the signal wants it; in a notebook, only the cell."""
    if number == signal.SIGINT and (hasattr(sys, "ps1") or "ipykernel" in sys.modules):
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
