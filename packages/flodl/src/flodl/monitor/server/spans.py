"""The timeline: what each rank did when, with no more spans than pixels."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flodl.errors import StoreError
from flodl.monitor.server.thin import pixels
from flodl.monitor.store import RunView

__all__ = ["Lane", "Spans"]

_ROW = np.dtype(
    [
        ("event", "i8"), ("steps", "?"), ("lane", "i4"), ("rank", "i8"), ("start", "f8"), ("seconds", "f8"), ("busy", "f8"),
        ("step", "f8"), ("count", "i8"),  # steps: made of a step event
    ]
)  # fmt: skip
Rows = npt.NDArray[np.void]

_STEPS = "steps"
_FIRST_LANES = ("data", "compute", "sync", "wait", "checkpoint", "evaluation")


class Lane(NamedTuple):
    rank: int
    name: str
    spans: list[list[float | int | None]]
    """Start, seconds, first step, how many, how many seconds of it are really this lane's."""


class Spans:
    """All spans and instants of a run; `update` reads what is new.

    Steps are recorded many in one event. Here such an event is two spans, of waiting for data and of computing, and is
    taken apart only when it is wider than a pixel.
    """

    def __init__(self) -> None:
        self._rows: Rows = np.empty(0, _ROW)
        self._marks: Rows = np.empty(0, np.dtype([("event", "i8"), ("start", "f8")]))
        self._lanes: dict[str, int] = {name: i for i, name in enumerate(_FIRST_LANES)}
        self._last_id = 0

    @property
    def size(self) -> int:
        return len(self._rows) + len(self._marks)

    def update(self, view: RunView) -> None:
        for block in view.blocks(
            f"SELECT id, kind, rank, step, start, seconds, CASE kind WHEN '{_STEPS}' THEN data END FROM event"
            " WHERE id > ? ORDER BY id",
            (self._last_id,),
        ):
            rows: list[tuple[Any, ...]] = []
            marks: list[tuple[int, float]] = []
            for event, kind, rank, step, start, seconds, data in block:
                parts = _parts(view, data) if kind == _STEPS else None
                if not math.isfinite(start) or not math.isfinite(seconds or 0.0):
                    continue  # nowhere on a timeline
                if seconds is None:
                    marks.append((event, start))
                elif parts is None:
                    rows.append((event, False, self._lane(kind), rank, start, seconds, seconds, _or_nan(step), 1))
                else:
                    first, *lanes = parts
                    rows += [
                        (event, True, lane, rank, start, seconds, float(us.sum()) / 1e6, first, len(us))
                        for lane, us in enumerate(lanes)
                    ]
            self._rows = np.concatenate([self._rows, np.array(rows, _ROW)])
            self._marks = np.concatenate([self._marks, np.array(marks, self._marks.dtype)])
            self._last_id = block[-1][0]

    def extent(self) -> tuple[float, float] | None:
        """From the first start to the last end."""
        starts = np.concatenate([self._rows["start"], self._marks["start"]])
        if not len(starts):
            return None
        return float(starts.min()), float(
            max(starts.max(), (self._rows["start"] + self._rows["seconds"]).max(initial=0))
        )

    def lanes(self, view: RunView, low: float, high: float, width: int) -> Iterator[Lane]:
        """The lanes between two times, by rank. A pixel has at most one span of those that are shorter than it."""
        rows = self._rows
        rows = rows[(rows["start"] <= high) & (rows["start"] + rows["seconds"] >= low)]
        wide = rows["steps"] & (rows["lane"] == 0) & (rows["seconds"] > (high - low) / width)
        taken_apart = rows["event"][wide]
        if len(taken_apart):
            apart = [_ROW_EMPTY, *(_take_apart(view, row) for row in rows[wide])]
            rows = np.concatenate([rows[~np.isin(rows["event"], taken_apart)], *apart])
        rows = rows[~rows["steps"] | (rows["busy"] > 0)]
        names = list(self._lanes)
        for rank in np.unique(rows["rank"]).tolist():
            of_rank = rows[rows["rank"] == rank]
            for lane in np.unique(of_rank["lane"]).tolist():
                merged = _merge(np.sort(of_rank[of_rank["lane"] == lane], order="start"), low, high, width)
                yield Lane(rank, names[lane], merged)

    def marks(self, low: float, high: float) -> list[int]:
        """The events of the instants between two times, in order of time."""
        inside = self._marks[(self._marks["start"] >= low) & (self._marks["start"] <= high)]
        found: list[int] = np.sort(inside, order=["start", "event"])["event"].tolist()
        return found

    def _lane(self, kind: str) -> int:
        return self._lanes.setdefault(kind, len(self._lanes))


_ROW_EMPTY = np.empty(0, _ROW)


def _or_nan(step: int | None) -> float:
    return float("nan") if step is None else step


def _parts(view: RunView, document: str) -> tuple[float, npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
    """First step, microseconds of waiting for data, of computing. None when the event is another's of the same name."""
    try:
        data = json.loads(document)
    except json.JSONDecodeError as error:
        raise StoreError(f"run store {view.path}: malformed value: {error}. The file is damaged.") from error
    try:
        first, waited, computed = float(data["first"]), data["data_us"], data["compute_us"]
        lanes = np.array(waited, np.float64), np.array(computed, np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    fits = lanes[0].shape == lanes[1].shape and lanes[0].ndim == 1 and len(lanes[0]) > 0
    return (first, *lanes) if fits and np.isfinite(lanes).all() else None


def _take_apart(view: RunView, row: Any) -> Rows:
    ((document,),) = view.query("SELECT data FROM event WHERE id = ?", (int(row["event"]),))
    parts = _parts(view, document)
    assert parts is not None, "the event was taken apart before"
    first, waited, computed = parts
    ends = float(row["start"]) + np.cumsum(waited + computed) / 1e6
    starts = np.concatenate([[float(row["start"])], ends[:-1]])
    found = np.zeros(2 * len(waited), _ROW)
    found["event"], found["steps"], found["rank"], found["count"] = row["event"], True, row["rank"], 1
    for lane, (start, us) in enumerate(((starts, waited), (starts + waited / 1e6, computed))):
        part = found[lane * len(us) : (lane + 1) * len(us)]
        part["lane"], part["start"], part["step"] = lane, start, first + np.arange(len(us))
        part["seconds"] = part["busy"] = us / 1e6
    return found[found["seconds"] > 0]


def _merge(rows: Rows, low: float, high: float, width: int) -> list[list[float | int | None]]:
    """One span for all that are shorter than a pixel and start in the same one. `rows` are in order of their start."""
    pixel = pixels(rows["start"], width, low, high)
    narrow = rows["seconds"] < (high - low) / width
    both = narrow[1:] & narrow[:-1] & (pixel[1:] == pixel[:-1])
    starts = np.flatnonzero(np.insert(~both, 0, True))
    if not len(rows):
        return []
    start = rows["start"][starts]
    seconds = np.maximum.reduceat(rows["start"] + rows["seconds"], starts) - start
    busy = np.minimum(np.add.reduceat(rows["busy"], starts), seconds)
    count = np.add.reduceat(rows["count"], starts)
    columns: Sequence[list[Any]] = (start.tolist(), seconds.tolist(), rows["step"][starts].tolist(), count.tolist())
    return [
        [a, b, None if step != step else int(step), n, c]
        for a, b, step, n, c in zip(*columns, busy.tolist(), strict=True)
    ]
