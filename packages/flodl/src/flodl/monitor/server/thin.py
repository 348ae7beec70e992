"""Fewer points than were measured that draw the same picture: the least and the greatest of every pixel."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Thinned", "pixels", "thin", "window"]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_ROWS = 64  # cells of a pixel's height in which one of too many lone points is kept


class Thinned(NamedTuple):
    x: Floats
    y: Floats
    """NaN where the line is broken."""
    gap_x: Floats
    gap_y: Floats
    """What is not finite and where: NaN, inf, -inf. At most one of each kind for a pixel."""


def window(x: Floats, low: float | None, high: float | None) -> slice:
    """The part of ascending `x` from `low` to `high`, with a neighbour on either side so that lines reach the edge."""
    first = 0 if low is None else int(np.searchsorted(x, low, "left")) - 1
    last = len(x) if high is None else int(np.searchsorted(x, high, "right")) + 1
    return slice(max(first, 0), last)


def pixels(x: Floats, width: int, low: float, high: float) -> Ints:
    """The pixel of every `x`; -1 and `width` are outside."""
    if not high > low:
        return np.zeros(len(x), np.int64)
    return np.clip(np.floor((x - low) * (width / (high - low))), -1, width).astype(np.int64)


def thin(x: Floats, y: Floats, width: int, low: float | None = None, high: float | None = None) -> Thinned:
    """The points of a line that is drawn on `width` pixels from `low` to `high` (by default all of it).

    Kept are the first and the last point, the least and the greatest of every pixel, and the points beside a gap, so that a
    lone point between two gaps is seen. A break stands between two points that were not neighbours because of a gap.

    Args:
        x: ascending, (points,).
        y: (points,), may hold NaN and infinities.
    """
    if len(x) == 0:
        return Thinned(x, y, x, y)
    pixel = pixels(x, width, float(x[0] if low is None else low), float(x[-1] if high is None else high))
    finite = np.isfinite(y)
    holes = np.flatnonzero(~finite)
    shown = holes if len(holes) <= 2 * width else holes[_first_of_each(pixel[holes] * 4 + _kind(y[holes]))]
    line = np.flatnonzero(finite)
    before = np.searchsorted(holes, line)  # how many holes lie before each point of the line
    if len(line) > 2 * width:
        kept = _kept(y[line], pixel[line], before, width)
        line, before = line[kept], before[kept]
    breaks = np.flatnonzero(np.diff(before))
    at = holes[before[breaks]]
    return Thinned(np.insert(x[line], breaks + 1, x[at]), np.insert(y[line], breaks + 1, np.nan), x[shown], y[shown])


def _kept(y: Floats, pixel: Ints, before: Ints, width: int) -> Mask:
    kept = np.zeros(len(y), np.bool_)
    kept[[0, -1]] = True
    starts = np.flatnonzero(np.diff(pixel, prepend=pixel[0] - 1))
    group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(y)))
    for extreme in (np.minimum, np.maximum):
        found = np.flatnonzero(y == extreme.reduceat(y, starts)[group])
        kept[found[np.flatnonzero(np.diff(group[found], prepend=-1))]] = True
    gap = np.diff(before) > 0
    edges = np.flatnonzero(np.append(gap, False) | np.insert(gap, 0, False))
    if len(edges) > 2 * width:  # more than can be told apart
        low, high = float(y.min()), float(y.max())
        edges = edges[_first_of_each((pixel[edges] + 1) * _ROWS + pixels(y[edges], _ROWS - 1, low, high))]
    kept[edges] = True
    return kept


def _first_of_each(code: Ints) -> Ints:
    return np.sort(np.unique(code, return_index=True)[1])


def _kind(y: Floats) -> Ints:
    return np.where(np.isnan(y), 0, np.where(y > 0, 1, 2)).astype(np.int64)
