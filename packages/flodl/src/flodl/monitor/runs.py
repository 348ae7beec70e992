"""A folder of runs from the command line: found by a part of their id, compared, deleted."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flodl.errors import StoreError, nearest
from flodl.monitor.schema import FILE_NAME
from flodl.monitor.store import ListedRun, RunView, list_runs

__all__ = ["Removal", "UnknownRun", "compare_runs", "find_run", "prunable", "remove_run"]

_DAY_SECONDS = 86_400.0


class UnknownRun(StoreError):
    """No run, or more than one, has an id that begins like this."""


def find_run(folder: Path, name: str) -> Path:
    """The folder of the run whose id is `name`, or the only one whose id begins with it.

    Raises:
        UnknownRun: there is none, or there are several.
    """
    names = sorted(path.parent.name for path in folder.glob(f"*/{FILE_NAME}"))
    if name in names:
        return folder / name
    found = [other for other in names if name and other.startswith(name)]
    if len(found) == 1:
        return folder / found[0]
    if found:
        raise UnknownRun(f"{name!r} is the beginning of {len(found)} runs: {', '.join(found[:8])}")
    if not names:
        raise UnknownRun(f"there are no runs in {folder}")
    raise UnknownRun(f"there is no run {name!r} in {folder}.{nearest(name, names)}")


def compare_runs(runs: Sequence[Path]) -> dict[str, Any]:
    """What differs between the configurations of some runs, and their last and best metrics.

    Returns:
        `runs`: id -> state, seconds, epoch, last and best metrics; `config`: path -> id -> value, where they differ.
    """
    from flodl.monitor.server.answers import run_row

    rows: dict[str, Any] = {}
    settings: dict[str, dict[str, Any]] = {}
    for run in runs:
        with RunView(run) as view:
            row = run_row(view)
            rows[run.name] = {key: row[key] for key in ("name", "state", "seconds", "epoch", "step", "last", "best")}
            settings[run.name] = {path: setting.value for path, setting in view.config().items()}
    config: dict[str, Any] = {}
    for path in sorted({path for fields in settings.values() for path in fields}):
        values = {name: fields[path] for name, fields in settings.items() if path in fields}
        if len(values) < len(runs) or len({repr(value) for value in values.values()}) > 1:
            config[path] = values
    return {"runs": rows, "config": config}


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A run that may be deleted."""

    run: Path
    state: str
    started: float
    size_bytes: int
    """Of its folder, with its checkpoints."""


def prunable(
    folder: Path,
    *,
    names: Iterable[str] = (),
    keep: int | None = None,
    older_than_days: float | None = None,
    states: Iterable[str] = (),
) -> list[Removal]:
    """The runs that all the given conditions choose, oldest first. Never one that is running, or cannot be read unless named.

    Args:
        folder: where the runs are.
        names: only these (ids, or unambiguous beginnings).
        keep: not the newest so many.
        older_than_days: only those that started so long ago.
        states: only those in one of these states.

    Raises:
        UnknownRun: a name that fits no run.
    """
    named = {find_run(folder, name) for name in names}
    listed = [run for run in list_runs(folder) if not run.folder.is_symlink()]
    listed.sort(key=lambda run: (run.info.started if run.info else 0.0, run.folder.name))
    newest = {run.folder for run in listed[-keep:]} if keep else set()
    before = time.time() - (older_than_days or 0.0) * _DAY_SECONDS
    wanted_states = set(states)

    def chosen(run: ListedRun) -> bool:
        if run.info is None:
            return run.folder in named and not wanted_states
        return (
            run.info.state != "running"
            and (not named or run.folder in named)
            and run.folder not in newest
            and (older_than_days is None or run.info.started < before)
            and (not wanted_states or run.info.state in wanted_states)
        )

    return [
        Removal(
            run=run.folder,
            state=run.info.state if run.info else "unreadable",
            started=run.info.started if run.info else 0.0,
            size_bytes=_size(run.folder),
        )
        for run in listed
        if chosen(run)
    ]


def remove_run(run: Path) -> None:
    """Deletes a run's folder, with its checkpoints.

    Raises:
        StoreError: it is running again, or cannot be deleted.
    """
    aside = run.with_name(f".{run.name}.deleted")
    try:
        if not _is_running(run):
            shutil.rmtree(aside, ignore_errors=True)  # of a deletion that was interrupted
            run.rename(aside)  # nothing can resume it from here on
            if not _is_running(aside):
                shutil.rmtree(aside)
                return
            aside.rename(run)  # something did just before
    except OSError as error:
        raise StoreError(f"run {run.name} cannot be deleted: {error}") from error
    raise StoreError(f"run {run.name} is running: stop it first")


def _is_running(run: Path) -> bool:
    try:
        with RunView(run) as view:
            return view.info().state == "running"
    except StoreError:  # what cannot be read cannot be gone on with
        return False


def _size(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):  # it is gone meanwhile
                total += os.lstat(os.path.join(place, file)).st_size
    return total
