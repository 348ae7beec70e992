"""Reading a run from any process, while it is written or long after."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from flodl.errors import StoreError
from flodl.monitor.process import ProcessIdentity, is_gone
from flodl.monitor.resources import GpuSample, ResourceSample
from flodl.monitor.rows import AuditRow, Counts, EpochRow, EventRow, PointRow, ResourceRow, RunInfo, RunState, Setting
from flodl.monitor.schema import FILE_NAME, connect_read_only, store_error
from flodl.monitor.values import decode, loads, text

__all__ = ["STALE_SECONDS", "ListedRun", "RunView", "list_runs"]

STALE_SECONDS = 15.0
_BLOCK_ROWS = 20_000
_TRUST_CLOCK_SECONDS = 3.0
"""A heartbeat younger than this outweighs a different start time of the process (see `is_gone`)."""
_RUN_COLUMNS = (
    "run_id", "name", "state", "error", "started", "heartbeat", "ended", "host", "pid", "process_started", "process_space",
    "command", "git_commit", "git_dirty", "versions", "hardware", "seeds", "total_epochs", "total_steps", "last_epoch",
    "last_step", "next_id",
)  # fmt: skip


class RunView:
    """A run, open for reading only. Close it, or use it in a `with`. For the thread that made it.

    Every method raises `StoreError` when the store is damaged or stays locked.

    Args:
        run: the run's folder.
        timeout: how many seconds to wait for a lock.

    Raises:
        StoreError: there is no store, or it is damaged, empty, locked or of a newer version.
    """

    def __init__(self, run: Path | str, *, timeout: float = 2.0) -> None:
        self.folder = Path(run)
        self.path = self.folder / FILE_NAME
        self._connection = connect_read_only(self.path, timeout=timeout)

    def info(self) -> RunInfo:
        """What the run is and how far it came; "stale" where its process is gone without having said so."""
        ((*values,),) = self.query(f"SELECT {', '.join(_RUN_COLUMNS)} FROM run")
        row: dict[str, Any] = dict(zip(_RUN_COLUMNS, values, strict=True))
        process = ProcessIdentity(
            host=row.pop("host"),
            pid=row.pop("pid"),
            started=row.pop("process_started"),
            space=row.pop("process_space"),
        )
        state: RunState = row.pop("state")
        if state == "running" and _is_stale(row["heartbeat"], process):
            state = "stale"
        dirty = row.pop("git_dirty")
        return RunInfo(
            state=state,
            process=process,
            git_dirty=None if dirty is None else bool(dirty),
            last_id=row.pop("next_id") - 1,
            **{field: self._json(row.pop(field)) for field in ("versions", "hardware", "seeds")},
            **row,
        )

    def names(self) -> list[str]:
        """The series that have points, in the order of their first value."""
        return [
            name
            for (name,) in self.query(
                "SELECT name FROM series WHERE EXISTS (SELECT 1 FROM point WHERE series_id = series.id) ORDER BY id"
            )
        ]

    def series(self, name: str, *, since: int = 0) -> list[PointRow]:
        """The points of one series with an id above `since`, in order."""
        return self._points("WHERE series.name = ? AND point.id > ?", (text(name), since))

    def points(self, *, since: int = 0, limit: int = -1) -> list[PointRow]:
        """The points of all series with an id above `since`, in order; at most `limit` when that is not negative."""
        return self._points("WHERE point.id > ?", (since,), limit=limit)

    def last(self) -> dict[str, PointRow]:
        """The newest point of every series."""
        points = self._points(
            "WHERE point.id IN (SELECT (SELECT max(id) FROM point WHERE series_id = s.id) FROM series AS s)", ()
        )
        return {point.name: point for point in points}

    def counts(self, name: str) -> Counts:
        """How many points a series has, and how many of them are not finite."""
        (row,) = self.query(
            "SELECT (SELECT count(*) FROM point WHERE series_id = s.id),"
            " (SELECT count(*) FROM point WHERE series_id = s.id AND kind <> 0 AND kind = 1),"
            " (SELECT count(*) FROM point WHERE series_id = s.id AND kind <> 0 AND kind > 1)"
            " FROM (SELECT (SELECT id FROM series WHERE name = ?) AS id) AS s",
            (text(name),),
        )
        return Counts(*row)

    def epochs(self, *, since: int = 0) -> list[EpochRow]:
        """The epochs with an id above `since`, in order."""
        rows = self.query(
            "SELECT epoch.id, number, step, time, seconds, series.name, value, kind FROM epoch"
            " LEFT JOIN epoch_value ON epoch_id = epoch.id LEFT JOIN series ON series.id = series_id"
            " WHERE epoch.id > ? ORDER BY epoch.id, series_id",
            (since,),
        )
        found: dict[int, tuple[tuple[Any, ...], dict[str, float]]] = {}
        for *epoch, name, value, kind in rows:
            metrics = found.setdefault(epoch[0], (tuple(epoch), {}))[1]
            if name is not None:
                metrics[name] = decode(value, kind)
        return [
            EpochRow(id=i, number=number, step=step, time=when, seconds=seconds, metrics=metrics)
            for (i, number, step, when, seconds), metrics in found.values()
        ]

    def events(self, *, since: int = 0, kind: str | None = None) -> list[EventRow]:
        """The events (of one kind) with an id above `since`, in order."""
        rows = self.query(
            "SELECT id, time, step, rank, kind, start, seconds, data FROM event"
            " WHERE id > ? AND (? IS NULL OR kind = ?) ORDER BY id",
            (since, kind, kind),
        )
        return [
            EventRow(
                id=i, time=when, step=step, rank=rank, kind=what, start=start, seconds=seconds, data=self._json(data)
            )
            for i, when, step, rank, what, start, seconds, data in rows
        ]

    def resources(self, *, since: int = 0) -> list[ResourceRow]:
        """The resource samples (one a second) with an id above `since`, in order."""
        gpus: dict[int, list[GpuSample]] = {}
        for resource, gpu, name, utilisation, used, total in self.query(
            "SELECT * FROM gpu WHERE resource_id > ? ORDER BY resource_id, gpu", (since,)
        ):
            gpus.setdefault(resource, []).append(
                GpuSample(
                    gpu=gpu, name=name, utilisation_percent=utilisation, vram_used_bytes=used, vram_total_bytes=total
                )
            )
        return [
            ResourceRow(
                i,
                ResourceSample(
                    time=when,
                    cpu_percent=cpu,
                    machine_cpu_percent=machine,
                    rss_bytes=rss,
                    ram_used_bytes=used,
                    ram_total_bytes=total,
                    gpus=tuple(gpus.get(i, ())),
                ),
            )
            for i, when, cpu, machine, rss, used, total in self.query(
                "SELECT * FROM resource WHERE id > ? ORDER BY id", (since,)
            )
        ]

    def config(self) -> dict[str, Setting]:
        """Every field of the resolved configuration by its dotted path."""
        rows = self.query("SELECT path, value, origin FROM config ORDER BY path")
        return {path: Setting(value=self._json(value), origin=origin) for path, value, origin in rows}

    def artifacts(self) -> list[str]:
        """The names of the texts that belong to the run."""
        return [name for (name,) in self.query("SELECT name FROM artifact ORDER BY id")]

    def artifact(self, name: str) -> str:
        """One of them.

        Raises:
            StoreError: there is none of that name.
        """
        for (found,) in self.query("SELECT text FROM artifact WHERE name = ?", (text(name),)):
            return str(found)
        raise StoreError(f"run {self.folder.name} has no artifact {name!r}")

    def audit(self) -> list[AuditRow]:
        """Every control request that was made to this run, in order."""
        rows = self.query("SELECT id, time, action, origin, taken, outcome FROM control ORDER BY id")
        return [
            AuditRow(id=i, time=when, action=action, origin=origin, taken=taken, outcome=outcome)
            for i, when, action, origin, taken, outcome in rows
        ]

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Inside, every method sees the store as it is now, whatever is written meanwhile."""
        self.query("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:  # an error of the disk ends it by itself
                self.query("COMMIT")

    def query(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows that SQL asks for."""
        return [row for block in self.blocks(query, parameters) for row in block]

    def blocks(self, query: str, parameters: Sequence[object] = ()) -> Iterator[list[tuple[Any, ...]]]:
        """The same in pieces, so that a million rows are never in memory at once."""
        try:
            cursor = self._connection.execute(query, parameters)
            while block := cursor.fetchmany(_BLOCK_ROWS):
                yield block
        except sqlite3.Error as error:
            raise store_error(self.path, error) from error

    def close(self) -> None:
        """Close the store's file."""
        self._connection.close()

    def __enter__(self) -> RunView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _points(self, where: str, parameters: Sequence[object], *, limit: int = -1) -> list[PointRow]:
        rows = self.query(
            "SELECT point.id, series.name, step, epoch, time, rank, value, kind FROM point"
            f" JOIN series ON series.id = series_id {where} ORDER BY point.id LIMIT ?",
            (*parameters, limit),
        )
        return [PointRow(i, n, s, e, t, r, v if k == 0 else decode(v, k)) for i, n, s, e, t, r, v, k in rows]

    def _json(self, document: str) -> Any:
        try:
            return loads(document)
        except json.JSONDecodeError as error:
            raise store_error(self.path, sqlite3.DatabaseError(f"malformed value: {error}")) from error


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A folder with a run store: `info`, or the `problem` that keeps it from being read."""

    folder: Path
    info: RunInfo | None
    problem: str | None


def list_runs(folder: Path | str) -> list[ListedRun]:
    """The runs below `folder`, oldest first by their id. One that cannot be read is listed with its problem."""
    runs = []
    for store in sorted(Path(folder).glob(f"*/{FILE_NAME}")):
        try:
            with RunView(store.parent, timeout=0.25) as view:
                runs.append(ListedRun(folder=store.parent, info=view.info(), problem=None))
        except StoreError as error:
            runs.append(ListedRun(folder=store.parent, info=None, problem=str(error)))
    return runs


def _is_stale(heartbeat: float, process: ProcessIdentity) -> bool:
    age = time.time() - heartbeat
    return age > STALE_SECONDS or is_gone(process, clock_trusted=age > _TRUST_CLOCK_SECONDS)
