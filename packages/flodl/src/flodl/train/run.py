"""What a training leaves behind and shows: its folder, run store and terminal lines."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch import nn

from flodl.errors import StoreError
from flodl.graph import Graph
from flodl.monitor import Dashboard, HtmlReport, Recorder, Terminal, serve
from flodl.train.config import RunConfig

__all__ = ["Run"]

_MOST_DRAWN = 300  # modules; a picture of more is none


class Run:
    """One run's output. `folder` is None when nothing is recorded."""

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        *,
        total_epochs: int | None = None,
        total_steps: int | None = None,
        resumed: Path | None = None,
        step: int = 0,
        mark: int | None = None,
    ) -> None:
        output = config.output
        self._quiet = output.quiet
        self.over = False
        """Its end was recorded; a training that goes on after it opens the run again."""
        self.terminal = Terminal(total_epochs, quiet=output.quiet)
        self.recorder: Recorder | None = None
        self.folder: Path | None = None
        self.dashboard: Dashboard | None = None
        self._report: HtmlReport | None = None
        self._drawing: threading.Thread | None = None
        if output.record:
            self.recorder = Recorder(
                Path(output.folder).resolve() if resumed is None else resumed.resolve().parent,
                run_id=None if resumed is None else resumed.resolve().name,
                resume=resumed is not None,
                name=output.name,
                config=config.as_dict(),
                origins=config.all_origins(),
                seeds={"data": config.training.seed},
                total_epochs=total_epochs,
                total_steps=total_steps,
            )
            self.folder = self.recorder.folder
            if resumed is not None:
                self.recorder.cut_after(step, mark)
            self.recorder.artifact("model.txt", str(model))
            if isinstance(model, Graph) and sum(1 for _ in model.modules()) <= _MOST_DRAWN:
                self._drawing = threading.Thread(target=self._draw, args=(model, self.recorder), name="flodl drawing")
                self._drawing.start()
            if output.serve is not None:
                self.dashboard = serve(output.serve, folder=self.folder.parent)
            if output.report:
                self._report = HtmlReport(self.folder, self.folder / "report.html")

    def points(self, points: list[tuple[int, str, float]], epoch: int) -> None:
        """Metrics of single steps: (step, name, value)."""
        if self.recorder:
            for step, name, value in points:
                self.recorder.metric(name, value, step=step, epoch=epoch)

    def epoch(self, number: int, metrics: Mapping[str, float], seconds: float, step: int, not_finite: int) -> None:
        """An epoch (from 0) is done."""
        self.terminal.epoch(number + 1, metrics, seconds, nan_count=not_finite)
        if self.recorder:
            self.recorder.epoch(number, metrics, seconds=seconds, step=step)
        if self._report:
            self._report.refresh()

    def say(self, text: str) -> None:
        """A line that is no warning."""
        if not self._quiet:
            self.terminal.note(text)

    def warn(self, text: str, step: int) -> None:
        """A line on the terminal and an event in the store."""
        self.terminal.note(f"warning: {text}")
        if self.recorder:
            self.recorder.event("warning", step=step, text=text)

    @property
    def place(self) -> str:
        """The run's folder for people: relative where it is inside the current folder."""
        folder, here = self.folder, Path.cwd()
        return str(folder.relative_to(here) if folder and folder.is_relative_to(here) else folder)

    def how_to_resume(self) -> str:
        """The command that goes on from this run's checkpoint, as the user would type it where they are."""
        typed = os.environ.get("FDL_COMMAND")
        place = str(self.folder) if typed else self.place  # a task of fdl may run in another folder
        return f"FLODL_RESUME={shlex.quote(place)} {typed or shlex.join(sys.orig_argv)}"

    def flush(self) -> int | None:
        """All that was recorded is on disk: a checkpoint must not be ahead of its run's record. Returns the record's mark."""
        if self.recorder:
            try:
                return self.recorder.flush()
            except StoreError as problem:  # training goes on without a record rather than not at all
                self.terminal.note(f"warning: the record of this run is behind: {problem}")
        return None

    def finish(self, state: Literal["finished", "stopped", "failed"], error: str | None = None) -> None:
        """End the run: everything committed, no thread left."""
        self.over = True
        self.terminal.close()
        if self._drawing:
            self._drawing.join()
        if self.recorder:
            try:
                self.recorder.finish(state, error)
            except StoreError as problem:  # of the record only: what was trained is not lost for it
                self.terminal.note(f"warning: the record of this run is not complete: {problem}")
        if self._report:
            try:
                self._report.close()
            except StoreError as problem:
                self.terminal.note(f"warning: {problem}")

    def close(self) -> None:
        """No longer serve the dashboard. Without this it is there until the program ends."""
        if self.dashboard:
            self.dashboard.close()

    def _draw(self, model: Graph, recorder: Recorder) -> None:
        """The picture of a flow, which takes half a second that training need not wait for."""
        recorder.artifact("model.svg", model.svg())
