"""When a training is saved, and where it goes on from."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from flodl.errors import ConfigError
from flodl.train.recipes import Recipe
from flodl.train.resuming import find_run, locate, program_of
from flodl.train.saving import CHECKPOINTS, Saver, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from flodl.train.engine import StepEngine
    from flodl.train.fit import Fit

__all__ = ["Keeper"]


class Keeper:
    """The checkpoints of one training: made in the background, recorded once they are on disk, found again."""

    def __init__(self, fit: Fit) -> None:
        self.engine: StepEngine | None = None
        """Takes the steps; made at the first one."""
        self.resumed: Path | None = None
        """The run's folder that was resumed."""
        self.resumed_at = 0
        """The update that training went on after."""
        self.mark: int | None = None
        """How far the run's record was when the newest checkpoint was made."""
        self.unknown_callbacks: list[str] = []
        """Whose saved states no callback takes."""
        self._fit = fit
        self._saver: Saver | None = None
        self._saved_at = time.monotonic()

    @property
    def wanted(self) -> bool:
        """Whether checkpoints are wanted and there is a place for them."""
        return self._fit.config.output.checkpoint and self._fit.run.folder is not None

    @property
    def age(self) -> float:
        """Seconds since the newest checkpoint was made."""
        return time.monotonic() - self._saved_at

    def save(self, *, periodic: bool = False, wait: bool = True) -> Path | None:
        """Write a checkpoint into the run's folder. A periodic one is written in the background, or gives way to another."""
        fit, saver = self._fit, self._open()
        self._saved_at = time.monotonic()
        fit.drain()  # the epoch's sums so far are part of what is saved
        self.mark = fit.run.flush()
        with self._as_given():
            path = saver.save_fit(fit, fit.evaluations.measured, explicit=not periodic)
        if wait and not periodic:
            saver.wait()
        self.tell_written()
        return path

    def save_if_best(self) -> None:
        """After an evaluation: a checkpoint if it is the best one so far."""
        name, measured = self._fit.config.output.keep_best, self._fit.evaluations.measured
        if name is not None and name in measured and self.wanted and self._open().would_be_best(measured[name]):
            self.save(periodic=True)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a checkpoint to `path`."""
        fit = self._fit
        fit.drain()
        self.mark = fit.run.flush()
        started = time.time()
        with self._as_given():
            written = write_checkpoint(path, fit)
        fit.span("checkpoint", started)
        fit.tell("on_checkpoint", {}, written=written)
        return written

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint, before anything was trained; "auto" looks for the run that was not finished."""
        fit = self._fit
        if fit.opened:
            raise ConfigError("resume() comes before the first epoch and before anything is recorded")
        found: Path | None = Path(path)
        if str(path) == "auto":
            found = find_run(fit.config.output.folder, program_of(fit.config), fit.trainer.number, fit.notes.append)
        if found is not None:
            file = locate(found, lambda line: fit.notes.append(f"warning: {line}"))
            self.resumed = read_checkpoint(file, fit)
            self.resumed_at = fit.step

    def tell_written(self) -> None:
        """Raise what went wrong in the background; record what was written there, and call the callbacks for it."""
        if self._saver:
            self._saver.check()
            for written in self._saver.written():
                if recorder := self._fit.run.recorder:
                    place = str(written.path)
                    recorder.event(
                        "checkpoint", start=written.started, seconds=written.seconds, step=written.step, path=place
                    )
                self._fit.tell("on_checkpoint", {}, written=written.path)

    def close(self) -> None:
        """All is on disk, and the folder free for another training."""
        saver, self._saver = self._saver, None
        if saver:
            saver.close()

    @property
    def recipe(self) -> str | None:
        """By which steps are taken now."""
        return None if self.engine is None else str(self.engine.recipe)

    def compare_recipe(self, saved: str | None) -> None:
        """A run that goes on in another fixed way agrees with the unbroken one to rounding only, which is to be said."""
        training = self._fit.config.training
        if saved is None:
            return
        before = f"the checkpoint's steps were taken by {saved}"
        if training.step == "auto" and not training.deterministic:
            self._fit.notes.append(
                f'{before}, this run\'s are by what is fastest: they agree to rounding (step="{saved}": to the bit)'
            )
        elif saved != (now := str(Recipe() if training.deterministic else Recipe.parse(training.step))):
            self._fit.notes.append(f"{before}, this run's are by {now}: they agree to rounding")

    def _as_given(self) -> AbstractContextManager[None]:
        """The optimizer as the user made it."""
        return self.engine.as_given() if self.engine else nullcontext()

    def _open(self) -> Saver:
        if self._saver is None:
            output, folder = self._fit.config.output, self._fit.run.folder
            if folder is None:
                raise ConfigError("output.record is off, so the run has no folder: give save() a path")
            self._saver = Saver(
                folder / CHECKPOINTS,
                keep_last=output.keep_last,
                keep_best=output.keep_best,
                keep_best_mode=output.keep_best_mode,
            )
            if self.resumed is not None:
                self._saver.cut_after(self.resumed_at)
        return self._saver
