"""What the server answers about a run, as plain data for strict JSON. Exports embed the same."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from flodl.errors import StoreError
from flodl.monitor.rows import RunInfo
from flodl.monitor.server.columns import Curve
from flodl.monitor.server.memory import Memory, read_last_id
from flodl.monitor.server.thin import Floats, thin, window
from flodl.monitor.store import RunView

__all__ = [
    "audit",
    "epochs",
    "events",
    "number",
    "resources",
    "run_detail",
    "run_progress",
    "run_row",
    "series",
    "strict_json",
    "timeline",
]

Answer = dict[str, Any]

_LISTED_METRICS = 100  # in the list of runs
_MARKS = 500  # on a timeline; fewer than the variables of an older SQLite
_EXACT = 2**53


def strict_json(value: object) -> bytes:
    """UTF-8 JSON without NaN and infinities.

    Raises:
        ValueError: `value` holds one as a number.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def number(value: float | None, kind: int = 0) -> float | str | None:
    """A value of a metric; what is not finite as text."""
    return ("nan", "inf", "-inf")[kind - 1] if kind else value


def run_row(view: RunView) -> Answer:
    """One line of the list of runs."""
    info = view.info()
    return {
        "id": view.folder.name,
        "name": info.name,
        "state": info.state,
        "error": info.error,
        "started": info.started,
        "ended": info.ended,
        "seconds": seconds(info),
        "epoch": info.last_epoch,
        "total_epochs": info.total_epochs,
        "step": info.last_step,
        "total_steps": info.total_steps,
        "last": _last(view),
        "best": {
            name: {"min": least, "max": greatest}
            for name, least, greatest in view.query(
                "SELECT name, min(value), max(value) FROM epoch_value JOIN series ON series.id = series_id"
                " GROUP BY series_id LIMIT ?",
                (_LISTED_METRICS,),
            )
        },
        "problem": None,
    }


def seconds(info: RunInfo) -> float:
    """How long the run took, or has been going on."""
    end = info.ended if info.ended is not None else info.heartbeat if info.state == "stale" else time.time()
    return max(end - info.started, 0.0)


def _last(view: RunView) -> Answer:
    rows = view.query(
        "SELECT name, value, kind FROM epoch_value JOIN series ON series.id = series_id"
        " WHERE epoch_id = (SELECT max(id) FROM epoch) ORDER BY series_id LIMIT ?",
        (_LISTED_METRICS,),
    ) or view.query(
        "SELECT name, value, kind FROM (SELECT id, name FROM series ORDER BY id LIMIT ?) AS s JOIN point"
        " ON point.id = (SELECT max(id) FROM point WHERE series_id = s.id AND rank = 0)",
        (_LISTED_METRICS,),
    )
    return {name: number(value, kind) for name, value, kind in rows}


def run_progress(info: RunInfo) -> Answer:
    """What changes of a run while it goes on."""
    fields = [
        "state",
        "error",
        "ended",
        "heartbeat",
        "last_epoch",
        "last_step",
        "total_epochs",
        "total_steps",
        "last_id",
    ]
    return {**{field: getattr(info, field) for field in fields}, "seconds": seconds(info)}


_FIXED = ("run_id", "name", "started", "command", "git_commit", "git_dirty", "versions", "hardware", "seeds")


def run_detail(view: RunView) -> Answer:
    """A run without its measurements."""
    with view.snapshot():
        info = view.info()
        counts: dict[int, Answer] = {
            identity: {"id": identity, "name": name, "count": 0, "nan": 0, "inf": 0, "ranks": []}
            for identity, name in view.query("SELECT id, name FROM series ORDER BY id")
        }
        for identity, rank, count in view.query("SELECT series_id, rank, count(*) FROM point GROUP BY 1, 2"):
            counts[identity]["count"] += count
            counts[identity]["ranks"].append(rank)
        for identity, nan, count in view.query(
            "SELECT series_id, kind = 1, count(*) FROM point WHERE kind <> 0 GROUP BY 1, 2"
        ):
            counts[identity]["nan" if nan else "inf"] += count
        return {
            "info": {
                **{field: getattr(info, field) for field in _FIXED},
                **run_progress(info),
                "host": info.process.host,
                "pid": info.process.pid,
            },
            "config": [
                {"path": path, "value": _plain(view, value), "origin": origin}
                for path, value, origin in view.query("SELECT path, value, origin FROM config ORDER BY path")
            ],
            "series": [row for row in counts.values() if row["count"]],
            "artifacts": view.artifacts(),
            "audit": audit(view),
        }


def audit(view: RunView) -> list[Answer]:
    return [asdict(row) for row in view.audit()]


def series(
    view: RunView,
    memory: Memory,
    wanted: Sequence[int],
    *,
    x: str = "step",
    low: float | None = None,
    high: float | None = None,
    width: int = 800,
    rank: int | None = None,
) -> Answer:
    """The curves of some series, thinned for `width` pixels."""
    with memory.snapshot(view) as (run, last_id):
        curves = run.curves(view, wanted, x, last_id)
    shown = [_curve(curve, low, high, width) for curve in curves if rank in (None, curve.rank)]
    return {"series": shown, "last_id": last_id}


def _curve(curve: Curve, low: float | None, high: float | None, width: int) -> Answer:
    part = window(curve.x, low, high)
    thinned = thin(curve.x[part], curve.y[part], width, low, high)
    kinds = ["nan" if math.isnan(y) else "inf" if y > 0 else "-inf" for y in thinned.gap_y.tolist()]
    return {
        "id": curve.series,
        "rank": curve.rank,
        "x": _numbers(thinned.x),
        "y": [None if y != y else y for y in thinned.y.tolist()],
        "gaps": [[x, kind] for x, kind in zip(_numbers(thinned.gap_x), kinds, strict=True)],
        "not_finite": int(np.count_nonzero(~np.isfinite(curve.y))),
        "total": len(curve.y),
    }


def _numbers(values: Floats) -> list[float] | list[int]:
    """As integers where they are."""
    whole = np.all((values == np.floor(values)) & (np.abs(values) <= _EXACT))
    found: list[float] | list[int] = values.astype(np.int64).tolist() if whole else values.tolist()
    return found


def epochs(view: RunView, *, since: int = 0, up_to: int | None = None) -> list[Answer]:
    """The epochs with an id above `since`."""
    rows = view.query(
        "SELECT epoch.id, number, step, time, seconds, series.name, value, kind FROM epoch"
        " LEFT JOIN epoch_value ON epoch_id = epoch.id LEFT JOIN series ON series.id = series_id"
        " WHERE epoch.id > ? AND epoch.id <= ? ORDER BY epoch.id, series_id",
        (since, read_last_id(view) if up_to is None else up_to),
    )
    found: dict[int, Answer] = {}
    for identity, count, step, when, took, name, value, kind in rows:
        row = found.setdefault(
            identity,
            {
                "id": identity,
                "number": count,
                "step": step,
                "time": when,
                "seconds": _finite(took),
                "metrics": {},
            },
        )
        if name is not None:
            row["metrics"][name] = number(value, kind)
    return list(found.values())


def events(
    view: RunView,
    *,
    since: int = 0,
    up_to: int | None = None,
    kinds: Sequence[str] = (),
    without: Sequence[str] = (),
    limit: int = -1,
    newest: bool = False,
) -> list[Answer]:
    """The events with an id above `since`, oldest first; of too many the first, or the `newest`."""
    chosen = ""
    for words, names in (("IN", kinds), ("NOT IN", without)):
        if names:
            chosen += f" AND kind {words} ({', '.join('?' * len(names))})"
    rows = view.query(
        f"SELECT {_EVENT} FROM event WHERE id > ? AND id <= ?{chosen} ORDER BY id {'DESC' if newest else 'ASC'} LIMIT ?",
        (since, read_last_id(view) if up_to is None else up_to, *kinds, *without, limit),
    )
    return [_event(view, row) for row in (rows[::-1] if newest else rows)]


_EVENT = "id, time, step, rank, kind, start, seconds, data"


def _event(view: RunView, row: tuple[Any, ...]) -> Answer:
    *fields, start, took, data = row
    found = dict(zip(("id", "time", "step", "rank", "kind"), fields, strict=True))
    return {**found, "start": _finite(start), "seconds": _finite(took), "data": _plain(view, data)}


def timeline(
    view: RunView, memory: Memory, *, low: float | None = None, high: float | None = None, width: int = 800
) -> Answer:
    """What every rank did between two times, by default from the beginning to now, and the newest marks there."""
    with memory.snapshot(view) as (run, last_id):
        info = view.info()
        run.spans.update(view)
        begin, end = run.spans.extent() or (info.started, info.ended or info.heartbeat)
        low, high = begin if low is None else low, end if high is None else high
        high = max(high, low + 1e-6)
        ranks: dict[int, list[Answer]] = {}
        for rank, lane, spans in run.spans.lanes(view, low, high, width):
            ranks.setdefault(rank, []).append({"lane": lane, "spans": spans})
        marks = run.spans.marks(low, high)
        shown = marks[-_MARKS:]
        rows = view.query(
            f"SELECT {_EVENT} FROM event WHERE id IN ({', '.join('?' * len(shown))}) ORDER BY start, id", shown
        )
    return {
        "from": low,
        "to": high,
        "ranks": [{"rank": rank, "lanes": lanes} for rank, lanes in ranks.items()],
        "marks": [_event(view, row) for row in rows],
        "marks_left_out": len(marks) - len(shown),
        "last_id": last_id,
    }


_RESOURCES = ("cpu_percent", "machine_cpu_percent", "rss_bytes", "ram_used_bytes", "ram_total_bytes")


def resources(view: RunView, *, since: int = 0, width: int = 800) -> Answer:
    """The samples with an id above `since` as columns; of more than `width` can show, each column's peaks."""
    rows = view.query(f"SELECT id, time, {', '.join(_RESOURCES)} FROM resource WHERE id > ? ORDER BY id", (since,))
    gpus: dict[int, dict[int, tuple[Any, ...]]] = {}
    names: dict[int, str] = {}
    for sample, gpu, name, *values in view.query("SELECT * FROM gpu WHERE resource_id > ? ORDER BY gpu", (since,)):
        names[gpu] = name
        gpus.setdefault(gpu, {})[sample] = tuple(values)
    if len(rows) > 2 * width:
        table = np.array([row[1:] for row in rows], np.float64)
        table[:, 1:3] = np.nan_to_num(table[:, 1:3])
        devices = [
            np.array([gpus[gpu].get(row[0], (None, None, None))[column] for row in rows], np.float64)
            for gpu in gpus
            for column in (0, 1)
        ]
        kept = _peaks(table[:, 0], [*table[:, 1:-1].T, *devices], width)
        rows = [rows[i] for i in kept]
    nothing = (None, None, None)
    return {
        "time": [row[1] for row in rows],
        **{name: [row[column] for row in rows] for column, name in enumerate(_RESOURCES, 2)},
        "gpus": [
            {
                "gpu": gpu,
                "name": names[gpu],
                **{
                    field: [samples.get(row[0], nothing)[column] for row in rows]
                    for column, field in enumerate(("utilisation_percent", "vram_used_bytes", "vram_total_bytes"))
                },
            }
            for gpu, samples in gpus.items()
        ],
        "last_id": rows[-1][0] if rows else since,
    }


def _peaks(when: Floats, columns: Sequence[Floats], width: int) -> list[int]:
    """The rows that hold the least or the greatest value of a column in a pixel."""
    order = np.arange(len(when), dtype=np.float64)  # clocks are set back now and then; rows are not
    wanted: set[int] = {0, len(when) - 1}
    for column in columns:
        kept = thin(order, column, width).x
        wanted.update(int(i) for i in kept)
    return sorted(wanted)


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def _plain(view: RunView, document: str) -> Any:
    """JSON of the store as it stands there: what is not finite is {"$float": "nan"}."""
    try:
        return json.loads(document, parse_constant=_refuse)
    except ValueError as error:
        raise StoreError(f"run store {view.path}: malformed value: {error}. The file is damaged.") from error


def _refuse(constant: str) -> Mapping[str, Any]:
    raise ValueError(f"{constant} is no JSON")
