"""The handle of a training that runs in the background."""

from __future__ import annotations

import atexit
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from flodl.checkpoint.keys import model_state

if TYPE_CHECKING:
    from flodl.train.trainer import Trainer

__all__ = ["Progress", "TrainHandle", "TrainedState"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A training at one moment. `metrics`: the means of the last whole epoch."""

    state: Literal["running", "finished", "stopped", "failed"]
    epoch: int
    step: int
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class TrainedState:
    """The result of a training. `state_dict`: parameters and buffers on the CPU. `folder`: the run's, None if not recorded."""

    state_dict: dict[str, Tensor]
    metrics: dict[str, float]
    epochs: int
    steps: int
    folder: Path | None


class TrainHandle:
    """Watch and end a training that runs in a thread. Ctrl-C in the main thread ends it as it would end your own loop."""

    def __init__(self, trainer: Trainer, train: Callable[[], None]) -> None:
        self._trainer = trainer
        self._error: BaseException | None = None
        self._ended = threading.Event()  # Thread.join() believes that a thread has ended when Ctrl-C interrupts it
        trainer.interruption.install()
        atexit.register(self._tell)
        self._thread = threading.Thread(target=self._run, args=(train,), name="flodl training")
        self._thread.start()

    @property
    def trainer(self) -> Trainer:
        """The trainer at work; its model must not be used before `join()` returns."""
        return self._trainer

    def metrics(self) -> list[dict[str, float]]:
        """The means of each whole epoch so far, in order."""
        return list(self._trainer.history)

    def poll(self) -> Progress:
        """Where training stands; does not wait."""
        trainer, history = self._trainer, self._trainer.history
        state: Literal["running", "finished", "stopped", "failed"]
        if not self._ended.is_set():
            state = "running"
        elif self._error is not None:
            state = "stopped" if isinstance(self._error, (SystemExit, KeyboardInterrupt)) else "failed"
        else:
            state = "stopped" if trainer.stopped else "finished"
        metrics = history[-1] if history else {}
        return Progress(state=state, epoch=trainer.position.epoch, step=trainer.global_step, metrics=dict(metrics))

    def stop(self) -> None:
        """End training after the step under way; its state is saved."""
        self._trainer.stop()

    def join(self) -> TrainedState:
        """Wait for the end. Raises what training raised; after Ctrl-C, exits with 130."""
        try:
            while not self._ended.wait(0.1):  # in slices: a signal handler runs between them
                pass
        except KeyboardInterrupt:  # the second Ctrl-C, or a notebook's, which has a handler of its own for each cell
            self._trainer.stop()
            self._ended.wait()
            raise
        finally:
            if self._ended.is_set():
                self._trainer.interruption.restore()
        atexit.unregister(self._tell)
        if self._error is not None:
            raise self._error
        trainer = self._trainer
        return TrainedState(
            state_dict={k: v.detach().cpu().clone() for k, v in model_state(trainer.model).items()},
            metrics=dict(trainer.history[-1]) if trainer.history else {},
            epochs=trainer.position.epoch,
            steps=trainer.global_step,
            folder=trainer.run.folder,
        )

    def _run(self, train: Callable[[], None]) -> None:
        try:
            with self._trainer:
                train()
        except BaseException as error:  # join() raises it in the caller's thread
            self._error = error
        finally:
            self._trainer.interruption.over = True
            self._ended.set()

    def _tell(self) -> None:
        """At the program's end: an error that no join() raised is not lost."""
        if isinstance(self._error, Exception):
            print("flodl: training failed, and join() was never called:", file=sys.stderr)
            traceback.print_exception(self._error)
