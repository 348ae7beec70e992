"""The writing side of the run store: records in, rows out, one transaction for each batch."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from flodl.monitor.resources import ResourceSample
from flodl.monitor.values import dumps, encode, flatten, text

__all__ = ["Artifact", "Config", "Cut", "End", "Epoch", "Event", "Point", "Record", "Tables", "Taken", "Totals"]

Point: TypeAlias = tuple[str, float, int, "int | None", int, float]
"""name, value, step, epoch, rank, time: a plain tuple, because the training loop makes one for every value."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    number: int
    step: int | None
    """None: the last step that was recorded."""
    time: float
    seconds: float | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Event:
    kind: str
    step: int | None
    """None: the last step that was recorded."""
    rank: int
    time: float
    start: float
    seconds: float | None
    data: str
    """JSON."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    name: str
    text: str
    time: float


@dataclass(frozen=True, kw_only=True)
class Config:
    """The resolved configuration; replaces the one before."""

    rows: tuple[tuple[str, str, str | None], ...]
    """Dotted path, JSON value, origin."""

    @classmethod
    def of(cls, config: Mapping[str, Any], origins: Mapping[str, str]) -> Config:
        origin = {text(path): text(where) for path, where in origins.items()}
        leaves = {text(path): dumps(value) for path, value in flatten(config)}
        return cls(rows=tuple((path, value, origin.get(path)) for path, value in leaves.items()))


@dataclass(frozen=True, kw_only=True)
class Totals:
    epochs: int | None
    steps: int | None


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Deletes what came after `step`, and, where `mark` says so, what was recorded after the row with that id."""

    step: int
    mark: int | None
    time: float


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The training took a control request."""

    request_id: int
    time: float


@dataclass(frozen=True, kw_only=True)
class End:
    state: str
    error: str | None
    time: float


Record: TypeAlias = Point | Epoch | Event | Artifact | Config | Totals | Cut | Taken | End | ResourceSample

_POINT_COLUMNS = 8
# Each execution hands the interpreter lock to the training thread and has to wait for it again: many rows in one are
# what lets the writer keep up with a busy loop. 100 rows stay under the 999 variables of an older SQLite.
_ROWS_AT_ONCE = (100, 10, 1)
_INSERT_POINTS = {
    rows: f"INSERT INTO point VALUES {', '.join(['(' + ', '.join('?' * _POINT_COLUMNS) + ')'] * rows)}"
    for rows in _ROWS_AT_ONCE
}


class Tables:
    """Writes records through `connection`, which stays the caller's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._reload()

    def write(self, records: Sequence[Record]) -> None:
        """All of `records`, in order, and the heartbeat; all or nothing.

        Raises:
            sqlite3.Error: nothing was written; the same records can be given again.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for run in _runs(records):
                if isinstance(run, list):
                    self._points(run)
                else:
                    self._record(run)
            self._connection.execute(
                "UPDATE run SET heartbeat = ?, next_id = ?, last_step = ?, last_epoch = ?",
                (time.time(), self._next_id, self._last_step, self._last_epoch),
            )
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._reload()
            raise

    @property
    def last_id(self) -> int:
        """The highest id that a row has."""
        return int(self._next_id) - 1

    def _reload(self) -> None:
        self._series: dict[str, int] = {}
        self._next_id, self._last_step, self._last_epoch = self._connection.execute(
            "SELECT next_id, last_step, last_epoch FROM run"
        ).fetchone()

    def _id(self) -> int:
        self._next_id += 1
        return int(self._next_id) - 1

    def _series_id(self, name: str) -> int:
        known = self._series.get(name)
        if known is None:
            stored = text(name)
            self._connection.execute("INSERT OR IGNORE INTO series (name) VALUES (?)", (stored,))
            (known,) = self._connection.execute("SELECT id FROM series WHERE name = ?", (stored,)).fetchone()
            self._series[name] = known
        return known

    def _points(self, points: list[Point]) -> None:
        values: list[object] = []
        known = self._series
        for identity, (name, value, step, epoch, rank, when) in enumerate(points, self._next_id):
            series = known[name] if name in known else self._series_id(name)
            if value - value == 0.0:  # finite, as nearly always: saves a call for each point
                values += (identity, series, step, epoch, when, rank, value, 0)
            else:
                values += (identity, series, step, epoch, when, rank, *encode(value))
        self._next_id += len(points)
        self._last_step = points[-1][2]
        first = 0
        for rows in _ROWS_AT_ONCE:
            size = rows * _POINT_COLUMNS
            while len(values) - first >= size:
                self._connection.execute(_INSERT_POINTS[rows], values[first : first + size])
                first += size

    def _record(self, record: Record) -> None:
        execute = self._connection.execute
        match record:
            case Epoch():
                identity = self._id()
                step = self._last_step if record.step is None else record.step
                execute(
                    "INSERT INTO epoch VALUES (?, ?, ?, ?, ?)",
                    (identity, record.number, step, record.time, record.seconds),
                )
                self._connection.executemany(
                    "INSERT OR REPLACE INTO epoch_value VALUES (?, ?, ?, ?)",
                    [(identity, self._series_id(name), *encode(value)) for name, value in record.metrics.items()],
                )
                self._last_epoch, self._last_step = record.number, step
            case Event():
                self._event(record)
            case Artifact():
                execute(
                    "INSERT OR REPLACE INTO artifact VALUES (?, ?, ?, ?)",
                    (self._id(), record.time, text(record.name), text(record.text)),
                )
            case ResourceSample():
                self._resources(record)
            case Config():
                execute("DELETE FROM config")
                self._connection.executemany("INSERT INTO config VALUES (?, ?, ?)", record.rows)
            case Totals():
                execute(
                    "UPDATE run SET total_epochs = ifnull(?, total_epochs), total_steps = ifnull(?, total_steps)",
                    (record.epochs, record.steps),
                )
            case Cut():
                self._cut(record)
            case Taken():
                execute("UPDATE control SET taken = ? WHERE id = ?", (record.time, record.request_id))
            case End():
                execute(
                    "UPDATE run SET state = ?, error = ?, ended = ?",
                    (record.state, None if record.error is None else text(record.error), record.time),
                )
                execute("UPDATE control SET outcome = 'the run ended' WHERE taken IS NULL AND outcome IS NULL")

    def _event(self, event: Event) -> None:
        step = self._last_step if event.step is None else event.step
        self._connection.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self._id(), event.time, step, event.rank, text(event.kind), event.start, event.seconds, event.data),
        )

    def _resources(self, sample: ResourceSample) -> None:
        identity = self._id()
        self._connection.execute(
            "INSERT INTO resource VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                identity,
                sample.time,
                sample.cpu_percent,
                sample.machine_cpu_percent,
                sample.rss_bytes,
                sample.ram_used_bytes,
                sample.ram_total_bytes,
            ),
        )
        self._connection.executemany(
            "INSERT INTO gpu VALUES (?, ?, ?, ?, ?, ?)",
            [
                (identity, g.gpu, g.name, g.utilisation_percent, g.vram_used_bytes, g.vram_total_bytes)
                for g in sample.gpus
            ],
        )

    def _cut(self, cut: Cut) -> None:
        execute = self._connection.execute
        mark = self._next_id if cut.mark is None else cut.mark
        later = cut.step, mark
        execute("DELETE FROM epoch_value WHERE epoch_id IN (SELECT id FROM epoch WHERE step > ? OR id > ?)", later)
        for table in ("point", "epoch"):
            execute(f"DELETE FROM {table} WHERE step > ? OR id > ?", later)
        execute(  # all but the run's own history
            "DELETE FROM event WHERE (step > ? OR id > ?) AND kind NOT IN ('cut', 'resumed')", later
        )
        self._last_step = cut.step
        (self._last_epoch,) = execute("SELECT max(number) FROM epoch").fetchone()
        self._event(  # tells a live reader, who has the deleted rows already, to drop them
            Event(
                kind="cut",
                step=cut.step,
                rank=0,
                time=cut.time,
                start=cut.time,
                seconds=None,
                data=dumps({"after_step": cut.step} | ({} if cut.mark is None else {"after_id": cut.mark})),
            )
        )


def _runs(records: Iterable[Record]) -> Iterator[list[Point] | Record]:
    """`records` in order, neighbouring points together."""
    points: list[Point] = []
    for record in records:
        if isinstance(record, tuple):
            points.append(record)
            continue
        if points:
            yield points
            points = []
        yield record
    if points:
        yield points
