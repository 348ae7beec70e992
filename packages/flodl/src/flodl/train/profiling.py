"""Where the time of some steps goes, by torch.profiler: a trace to look at, and a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

from flodl.checkpoint.atomic import write_atomically
from flodl.errors import ConfigError, StoreError
from flodl.train.callbacks import Callback, Control, FitState

__all__ = ["Profiler"]


class Profiler(Callback):
    """Profiles `steps` steps after the first `warmup` ones (and one that warms up the profiler itself), once.

    Written into `folder`, the run's without it: `trace.json`, for chrome://tracing or https://ui.perfetto.dev, and
    `operators.txt`, the `rows` operators with the most time of their own. Training that ends before writes the steps that
    were profiled. memory: also what each operator allocates.

    In a loop of your own: `start()` before, `step()` after each step, `stop()` at the end, or `with`.
    """

    def __init__(
        self,
        steps: int = 5,
        *,
        warmup: int = 3,
        folder: str | os.PathLike[str] | None = None,
        rows: int = 20,
        memory: bool = False,
    ) -> None:
        for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0), ("rows", rows, 1)):
            if value < least:
                raise ConfigError(f"{name} is {value}; it must be at least {least}")
        self.trace: Path | None = None
        """The trace, once it is written."""
        self.table: str | None = None
        """The text of `operators.txt`."""
        self._plan = schedule(wait=warmup, warmup=1, active=steps, repeat=1)
        self._folder = None if folder is None else Path(folder)
        self._rows, self._memory = rows, memory
        self._profile: profile | None = None

    def start(self) -> None:
        """Begin to count steps. Nothing is done when a trace was written before."""
        if self._folder is None:
            raise ConfigError("there is no folder for the profile: give Profiler one")
        if self._profile is None and self.trace is None:
            wanted = [a for a in (ProfilerActivity.CPU, ProfilerActivity.CUDA) if a in _supported()]
            self._profile = profile(
                activities=wanted,
                schedule=self._plan,
                on_trace_ready=self._write,
                profile_memory=self._memory,
                acc_events=True,
            )
            self._profile.start()

    def step(self) -> None:
        """A step is done."""
        if self._profile is not None:
            self._profile.step()
            if self.trace is not None:
                self.stop()

    def stop(self) -> None:
        """End, and write what was profiled if that was not done yet."""
        if self._profile is not None:
            done, self._profile = self._profile, None
            done.stop()

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def on_fit_start(self, state: FitState, control: Control) -> None:
        if self._folder is None and state.folder is None:
            raise ConfigError("the run is not recorded and has no folder: give Profiler a folder")
        self._folder = self._folder or state.folder
        self.start()

    def on_step_end(self, state: FitState, control: Control) -> None:
        self.step()

    def on_fit_end(self, state: FitState, control: Control) -> None:
        self.stop()

    def on_exception(self, state: FitState, control: Control, error: BaseException) -> None:
        self.stop()

    def _write(self, found: Any) -> None:
        assert self._folder
        self._folder.mkdir(parents=True, exist_ok=True)
        on_gpu = ProfilerActivity.CUDA in found.activities
        order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        table: str = found.key_averages().table(sort_by=order, row_limit=self._rows)
        trace, unfinished = self._folder / "trace.json", self._folder / f".trace.{os.getpid()}.json"
        try:
            found.export_chrome_trace(str(unfinished))  # writes to a path of its own
            os.replace(unfinished, trace)
            write_atomically(self._folder / "operators.txt", lambda file: file.write(table.encode()))
        except (OSError, RuntimeError) as error:
            raise StoreError(f"cannot write the profile into {self._folder}: {error}") from error
        finally:
            unfinished.unlink(missing_ok=True)
        self.trace, self.table = trace, table


def _supported() -> set[ProfilerActivity]:
    return set(supported_activities())  # type: ignore[no-untyped-call]
