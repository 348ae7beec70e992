"""The points of a series as columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flodl.monitor.server.thin import Floats
from flodl.monitor.store import RunView

__all__ = ["Columns", "Curve", "read_ranks", "update"]

_FIRST_CAPACITY = 64
_VALUE = "CASE kind WHEN 0 THEN value WHEN 2 THEN 9e999 WHEN 3 THEN -9e999 END"  # NULL, which NumPy reads as NaN
_SCAN_SHARE = 4  # reading the whole table is faster than the index from a quarter of it on
_SCAN_SERIES = 500  # of more, too few points of each come at a time


class Curve(NamedTuple):
    series: int
    rank: int
    x: Floats
    """Ascending."""
    y: Floats


class _Growing:
    """A table that rows are appended to. Views that were given out stay as they are."""

    def __init__(self, columns: int) -> None:
        self._data = np.empty((columns, _FIRST_CAPACITY))
        self.size = 0
        self.read_to = 0
        """The id up to which the store was read."""

    def append(self, rows: Floats) -> None:
        end = self.size + len(rows)
        if end > self._data.shape[1]:
            grown = np.empty((len(self._data), max(end, self._data.shape[1] * 3 // 2)))
            grown[:, : self.size] = self._data[:, : self.size]
            self._data = grown
        self._data[:, self.size : end] = rows.T
        self.size = end

    def column(self, number: int) -> Floats:
        return self._data[number, : self.size]


class Columns:
    """One series of one rank, in the order of recording. Times are read when they are asked for."""

    def __init__(self, series: int, rank: int) -> None:
        self.series = series
        self.rank = rank
        self.points = _Growing(2)
        self._times = _Growing(1)

    @property
    def size(self) -> int:
        return self.points.size

    def read_points(self, view: RunView, last_id: int) -> None:
        self._read(view, self.points, f"step, {_VALUE}", last_id)

    def curve(self, view: RunView, x: str, last_id: int) -> Curve:
        """Over `x`, "step" or "time"."""
        across, y = self.points.column(0), self.points.column(1)
        if x == "time":
            self._read(view, self._times, "time", last_id)
            across = self._times.column(0)
        if not np.all(across[1:] >= across[:-1]):
            order = np.argsort(across, kind="stable")
            across, y = across[order], y[order]
        return Curve(self.series, self.rank, across, y)

    def _read(self, view: RunView, into: _Growing, columns: str, last_id: int) -> None:
        for block in view.blocks(
            f"SELECT {columns} FROM point WHERE series_id = ? AND rank = ? AND id > ? ORDER BY id",
            (self.series, self.rank, into.read_to),
        ):
            into.append(_table(block))
        into.read_to = last_id


def update(view: RunView, columns: Sequence[Columns], last_id: int) -> None:
    """Reads what is new in the points of each."""
    new = [c for c in columns if not c.points.read_to]
    if 1 < len(new) <= _SCAN_SERIES and _SCAN_SHARE * _count(view, new) > last_id:
        _scan(view, new, last_id)
    for c in columns:
        c.read_points(view, last_id)


def _scan(view: RunView, columns: Sequence[Columns], last_id: int) -> None:
    """All points of several series in one pass."""
    series, ranks = (np.unique([getattr(c, name) for c in columns]) for name in ("series", "rank"))
    by_key = {(c.series, c.rank): c for c in columns}
    which_rank = ", rank" if len(ranks) > 1 else ""  # a column less is a sixth of the time
    for block in view.blocks(
        f"SELECT step, {_VALUE}, series_id{which_rank} FROM point NOT INDEXED WHERE series_id IN"
        f" ({', '.join(map(str, series.tolist()))}) ORDER BY id"
    ):
        table = _table(block)
        key = np.searchsorted(series, table[:, 2]) * len(ranks)
        if which_rank:
            key += np.searchsorted(ranks, table[:, 3])
        order = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[order], prepend=-1))
        for part in np.split(order, starts[1:]):
            number, rank = divmod(int(key[part[0]]), len(ranks))
            by_key[int(series[number]), int(ranks[rank])].points.append(table[part, :2])
    for c in columns:
        c.points.read_to = last_id


def _count(view: RunView, columns: Sequence[Columns]) -> int:
    numbers = ", ".join(str(c.series) for c in columns)
    return int(view.query(f"SELECT count(*) FROM point WHERE series_id IN ({numbers})")[0][0])


def _table(rows: list[tuple[float, ...]]) -> npt.NDArray[np.float64]:
    width = len(rows[0])
    return np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * width).reshape(-1, width)


def read_ranks(view: RunView, series: int) -> list[int]:
    """The ranks of a series, ascending, by as many looks into the index."""
    rows = view.query(
        "WITH RECURSIVE r (rank) AS (SELECT min(rank) FROM point WHERE series_id = ?1 UNION ALL"
        " SELECT (SELECT min(rank) FROM point WHERE series_id = ?1 AND rank > r.rank) FROM r WHERE r.rank IS NOT NULL)"
        " SELECT rank FROM r WHERE rank IS NOT NULL",
        (series,),
    )
    return [rank for (rank,) in rows]
