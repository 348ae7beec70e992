"""The checkpoints of one training: written in the background, the older ones removed."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.optim import Optimizer

from flodl.checkpoint.atomic import set_aside
from flodl.checkpoint.listing import Listed, best_of, list_checkpoints, newest, step_name
from flodl.checkpoint.lock import FolderLock
from flodl.checkpoint.snapshot import FILES, Snapshot, remove_files, sweep, take, write_error, write_folder
from flodl.checkpoint.tensors import Buffers
from flodl.errors import CheckpointError, ConfigError

__all__ = ["Series", "Written"]


class Written(NamedTuple):
    """A checkpoint that is on disk. `started`: seconds since 1970; `seconds`: the copy and the writing."""

    path: Path
    step: int
    started: float
    seconds: float


@dataclass(kw_only=True)
class _Job:
    path: Path
    step: int
    snapshot: Snapshot
    buffers: Buffers
    explicit: bool
    started: float
    copied: float  # seconds


class Series:
    """Checkpoints `folder/step-00001234`, written by a thread while training goes on.

    `save` copies what it is given and returns. At most one copy waits beside the one being written: a newer one takes the
    place of a periodic one, never that of an explicit one or of the best so far. An error in the thread is raised by the
    next call of `save`, `check`, `wait` or `close`; the checkpoints before it are intact. The thread lives only while there
    is something to write, and a program that ends waits for it.

    keep_last: how many of the newest stay; None keeps all. keep_best: a metric whose best checkpoint stays besides. Only
    complete checkpoints in this folder are removed, file by file; what else lies there, or in them, stays.
    background: False writes before `save` returns. One writer has the folder at a time, from its first save to `close`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int | None = 2,
        keep_best: str | None = None,
        keep_best_mode: Literal["min", "max"] = "min",
        background: bool = True,
    ) -> None:
        if keep_last is not None and keep_last < 1:
            raise ConfigError(f"keep_last is {keep_last}; it must be at least 1, or nothing to keep all")
        if keep_best_mode not in ("min", "max"):
            raise ConfigError(f'keep_best_mode is {keep_best_mode!r}; it must be "min" or "max"')
        self.folder = Path(folder).absolute()  # the program may change its folder
        self._keep_last, self._keep_best, self._mode = keep_last, keep_best, keep_best_mode
        self._background = background
        self._state = threading.Condition()
        self._waiting: _Job | None = None
        self._writing: _Job | None = None
        self._buffers: list[Buffers] = []
        self._error: BaseException | None = None
        self._written: list[Written] = []
        self._cut: int | None = None
        self._top: float | None = None  # the best value of `keep_best` so far, NaN where there is none
        self._lock = FolderLock(self.folder)
        weakref.finalize(self, self._lock.release)

    def save(
        self,
        *,
        step: int,
        model: nn.Module | Mapping[str, Any],
        optimizer: Optimizer | None = None,
        position: Mapping[str, int] | None = None,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        info: Mapping[str, Any] | None = None,
        explicit: bool = False,
    ) -> Path | None:
        """Copy everything and have it written. Returns where it will be; None if it was left out for an explicit one."""
        self.check()
        started, clock = time.time(), time.perf_counter()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise write_error(self.folder, error) from error
        if self._keep_best is not None and self.would_be_best(value := (metrics or {}).get(self._keep_best, math.nan)):
            self._top, explicit = value, True
        with self._state:
            if self._waiting is not None and self._waiting.explicit:
                if not explicit:
                    return None
                self._state.wait_for(lambda: self._waiting is None)
            elif self._waiting is not None:  # the older periodic one; its memory takes this copy
                self._buffers.append(self._waiting.buffers)
                self._waiting = None
            buffers = self._buffers.pop() if self._buffers else Buffers()
        snapshot = take(
            model=model, optimizer=optimizer, position=position, extra=extra, step=step, metrics=metrics, info=info,
            buffers=buffers,
        )  # fmt: skip
        job = _Job(
            path=self.folder / step_name(step), step=step, snapshot=snapshot, buffers=buffers, explicit=explicit,
            started=started, copied=time.perf_counter() - clock,
        )  # fmt: skip
        if not self._background:
            self._write(job)
            return job.path
        with self._state:
            if self._writing is None:
                self._writing = job
                threading.Thread(target=self._run, args=(job,), name="flodl checkpoint").start()
            else:
                self._waiting = job
        return job.path

    def would_be_best(self, value: float) -> bool:
        """Whether a checkpoint with this value of `keep_best` would be the best one."""
        if self._keep_best is None or math.isnan(value):
            return False
        if self._top is None:  # of the checkpoints that were here before
            present = [c for c in list_checkpoints(self.folder) if self._cut is None or c.step <= self._cut]
            top = best_of(present, self._keep_best, self._mode)
            self._top = top.manifest.metrics[self._keep_best] if top and top.manifest else math.nan
        return math.isnan(self._top) or (value < self._top if self._mode == "min" else value > self._top)

    def cut_after(self, step: int) -> None:
        """Training goes on from `step`: the next save first removes the checkpoints of later steps, which that history left."""
        self._cut, self._top = step, None

    def wait(self) -> None:
        """Until all is written. Raises what failed."""
        with self._state:
            self._state.wait_for(lambda: self._writing is None)
        self.check()

    def check(self) -> None:
        """Raise the error of the thread, once."""
        with self._state:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def written(self) -> list[Written]:
        """What was written since the last call."""
        with self._state:
            result, self._written = self._written, []
        return result

    def newest(self, complete_only: bool = True, warn: Callable[[str], object] | None = None) -> Path | None:
        """As `fl.checkpoint.newest` of this folder, once all is written."""
        self.wait()
        return newest(self.folder, complete_only=complete_only, warn=warn)

    def best(self, metric: str | None = None, mode: Literal["min", "max"] | None = None) -> Path | None:
        """As `fl.checkpoint.best`, by default of `keep_best`, once all is written."""
        self.wait()
        name = metric or self._keep_best
        if name is None:
            raise ConfigError("best() needs the name of a metric where keep_best is not set")
        found = best_of([c for c in list_checkpoints(self.folder) if c.manifest], name, mode or self._mode)
        return None if found is None else found.path

    def close(self) -> None:
        """Write what waits, free the memory and the folder. Raises what failed."""
        try:
            self.wait()
        finally:
            self._buffers.clear()
            self._lock.release()

    def _run(self, job: _Job | None) -> None:
        while job is not None:
            error: BaseException | None = None
            try:
                self._write(job)
            except BaseException as problem:  # the training thread raises it
                error = problem
            with self._state:
                self._error = self._error or error
                self._buffers.append(job.buffers)
                job = self._writing = self._waiting
                self._waiting = None
                self._state.notify_all()

    def _write(self, job: _Job) -> None:
        clock = time.perf_counter()
        if job.path.is_symlink():
            raise CheckpointError(f"Cannot write the checkpoint {job.path}: a link of that name is there. Remove it.")
        if self._cut is not None:
            self._remove([c for c in list_checkpoints(self.folder) if c.step > self._cut])
            self._cut = None
        write_folder(job.path, job.snapshot)
        seconds = job.copied + time.perf_counter() - clock
        with self._state:
            self._written.append(Written(job.path, job.step, job.started, seconds))
        self._prune(job)

    def _prune(self, job: _Job) -> None:
        sweep(self.folder)
        if self._keep_last is None:
            return
        complete = [c for c in list_checkpoints(self.folder) if c.manifest]
        kept = {c.path for c in complete[-self._keep_last :]} | {job.path}
        if self._keep_best and (top := best_of(complete, self._keep_best, self._mode)):
            kept.add(top.path)
        self._remove([c for c in complete if c.path not in kept])

    def _remove(self, checkpoints: list[Listed]) -> None:
        """In one step where nothing else is in its folder; else file by file, its manifest first."""
        try:
            for manifest, path in ((c.manifest, c.path) for c in checkpoints):
                if manifest is not None:
                    own = {*FILES, *manifest.files}
                    alone = all(file.name in own for file in path.iterdir())
                    remove_files(set_aside(path) if alone else path)
        except OSError as error:
            raise CheckpointError(
                f"Cannot remove an older checkpoint in {self.folder}: {error.strerror or error}. The newer ones are complete."
            ) from error
