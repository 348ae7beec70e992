"""What is new in a run since an id, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flodl.monitor.server.answers import epochs, events, strict_json
from flodl.monitor.server.memory import read_last_id
from flodl.monitor.store import RunView

__all__ = ["Piece", "read_piece"]

_MAX_POINTS = 1000
_MAX_RESOURCES = 500
_MAX_EPOCHS = 500
_MAX_EPOCH_VALUES = 1000
_MAX_EVENTS = 500
_MAX_EVENT_CHARACTERS = 65_536


@dataclass(frozen=True, kw_only=True)
class Piece:
    data: bytes
    """The JSON of a `rows` message."""
    last_id: int
    """A reader that has this piece has everything up to here."""
    more: bool


def read_piece(view: RunView, since: int) -> Piece:
    """The rows after `since`: all of them, or as many as make a message of a bounded size (but at least one)."""
    with view.snapshot():
        newest = read_last_id(view)
        last = min(newest, _limit(view, since))
        points = view.query(
            "SELECT id, series_id, rank, step, epoch, time, value, kind FROM point WHERE id > ? AND id <= ? ORDER BY id",
            (since, last),
        )
        data = {
            "run": view.folder.name,
            "names": _new_names(view, {point[1] for point in points}, since),
            "points": points,
            "epochs": epochs(view, since=since, up_to=last),
            "events": events(view, since=since, up_to=last),
            "resources": _resources(view, since, last),
            "artifacts": [
                name
                for (name,) in view.query(
                    "SELECT name FROM artifact WHERE id > ? AND id <= ? ORDER BY id", (since, last)
                )
            ],
            "last_id": last,
            "more": last < newest,
        }
    return Piece(data=strict_json(data), last_id=last, more=last < newest)


def _limit(view: RunView, since: int) -> int:
    """The highest id that a piece may hold; every table says where its share ends."""
    ends = []
    for table, rows in (("point", _MAX_POINTS), ("resource", _MAX_RESOURCES), ("epoch", _MAX_EPOCHS)):
        found = view.query(f"SELECT id FROM {table} WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?", (since, rows))
        ends += [identity - 1 for (identity,) in found]
    sized = view.query("SELECT id, length(data) FROM event WHERE id > ? ORDER BY id LIMIT ?", (since, _MAX_EVENTS + 1))
    ends += _full(sized, _MAX_EVENT_CHARACTERS)
    if len(sized) > _MAX_EVENTS:
        ends.append(sized[-1][0] - 1)
    counted = view.query(
        "SELECT id, (SELECT count(*) FROM epoch_value WHERE epoch_id = id) FROM epoch WHERE id > ? ORDER BY id LIMIT ?",
        (since, _MAX_EPOCHS),
    )
    ends += _full(counted, _MAX_EPOCH_VALUES)
    return min(ends, default=2**63 - 1)


def _full(sizes: Iterable[tuple[int, int]], most: int) -> list[int]:
    """The id before the first row with which the sum is more than `most`; never before the first row of all."""
    total = 0
    for position, (identity, size) in enumerate(sizes):
        total += size
        if total > most and position > 0:
            return [identity - 1]
    return []


def _new_names(view: RunView, series: set[int], since: int) -> dict[int, str]:
    """The names of those of `series` that have no point up to `since`."""
    names: dict[int, str] = {}
    for identity in sorted(series):
        rows = view.query(
            "SELECT name FROM series WHERE id = ?1 AND NOT EXISTS"
            " (SELECT 1 FROM point WHERE series_id = ?1 AND id <= ?2)",
            (identity, since),
        )
        names.update((identity, name) for (name,) in rows)
    return names


def _resources(view: RunView, since: int, last: int) -> list[tuple[object, ...]]:
    gpus: dict[int, list[tuple[object, ...]]] = {}
    for sample, *gpu in view.query(
        "SELECT resource_id, gpu, name, utilisation_percent, vram_used_bytes, vram_total_bytes FROM gpu"
        " WHERE resource_id > ? AND resource_id <= ? ORDER BY resource_id, gpu",
        (since, last),
    ):
        gpus.setdefault(sample, []).append(tuple(gpu))
    rows = view.query(
        "SELECT id, time, cpu_percent, machine_cpu_percent, rss_bytes, ram_used_bytes, ram_total_bytes FROM resource"
        " WHERE id > ? AND id <= ? ORDER BY id",
        (since, last),
    )
    return [(*row, gpus.get(row[0], [])) for row in rows]
