"""Thinning, against a plain loop over the points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl.monitor.server.thin import thin, window

VALUES = st.one_of(
    st.floats(-1e6, 1e6),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0]),
)


def segments(x: list[float], y: list[float]) -> list[list[tuple[float, float]]]:
    """The parts of a line between its breaks."""
    parts: list[list[tuple[float, float]]] = [[]]
    for a, b in zip(x, y, strict=True):
        if math.isfinite(b):
            parts[-1].append((a, b))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


@given(st.lists(VALUES, max_size=200), st.integers(1, 30), st.data())
def test_what_must_be_kept_is_kept(values: list[float], width: int, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 50), min_size=len(values), max_size=len(values)))
    x, y = np.cumsum(np.array(steps, float)), np.array(values, float)
    found = thin(x, y, width)
    points = [(a, b) for a, b in zip(x.tolist(), values, strict=True) if math.isfinite(b)]
    kept = [(a, b) for a, b in zip(found.x.tolist(), found.y.tolist(), strict=True) if math.isfinite(b)]
    assert np.all(np.diff(found.x) >= 0)
    assert not np.isinf(found.y).any()
    remaining = iter(points)
    assert all(point in remaining for point in kept), "a point that was not measured, or another order"
    if points:
        assert kept[0] == points[0]
        assert kept[-1] == points[-1]
        assert (min(b for _, b in kept), max(b for _, b in kept)) == (
            min(b for _, b in points),
            max(b for _, b in points),
        )
    for part in segments(found.x.tolist(), found.y.tolist()):
        assert any(set(part) <= set(whole) for whole in segments(x.tolist(), values)), "a line across a gap"
    holes = [b for b in values if not math.isfinite(b)]
    assert {str(b) for b in found.gap_y.tolist()} == {str(b) for b in holes}


@given(st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_every_pixel_has_its_extremes(width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y = np.arange(1000.0), random.normal(size=1000)
    found = thin(x, y, width)
    pixel = np.minimum((x * width / 999).astype(int), width)
    for p in range(width + 1):
        inside = y[pixel == p]
        kept = found.y[np.minimum((found.x * width / 999).astype(int), width) == p]
        if len(inside):
            assert (kept.min(), kept.max()) == (inside.min(), inside.max())
    assert len(found.x) <= 2 * width + 3


def test_lone_points_between_gaps() -> None:
    y = np.full(10_000, math.nan)
    y[[0, 5000, 5002, 9999]] = 1.0, 2.0, 2.5, 3.0
    found = thin(np.arange(10_000.0), y, 100)
    assert found.x[np.isfinite(found.y)].tolist() == [0, 5000, 5002, 9999]
    assert [len(part) for part in segments(found.x.tolist(), found.y.tolist())] == [1, 1, 1, 1]
    assert len(found.gap_x) <= 101


def test_more_lone_points_than_pixels() -> None:
    """Every other value is missing: each pixel keeps what can be told apart in its height."""
    x = np.arange(1_000_000.0)
    y = np.where(x % 2 == 0, np.sin(x / 1e5) * 10 + x % 3, math.nan)
    found = thin(x, y, 100)
    assert 200 < np.isfinite(found.y).sum() < 100 * 64
    assert np.isnan(found.y).sum() == np.isfinite(found.y).sum() - 1


@pytest.mark.parametrize("y", [[], [1.0], [math.nan], [math.inf, math.nan], [1.0, 1.0]])
def test_little(y: list[float]) -> None:
    found = thin(np.arange(float(len(y))), np.array(y), 10)
    assert found.y.tolist() == [v for v in y if math.isfinite(v)]


def test_all_at_one_place() -> None:
    found = thin(np.zeros(1000), np.arange(1000.0), 10)
    assert {0.0, 999.0} <= set(found.y.tolist())


def test_a_window_has_a_neighbour_on_either_side() -> None:
    x = np.arange(10.0)
    assert x[window(x, 3, 5)].tolist() == [2, 3, 4, 5, 6]
    assert x[window(x, 3.5, 3.6)].tolist() == [3, 4]
    assert x[window(x, None, 0)].tolist() == [0, 1]
    assert x[window(x, 9.5, None)].tolist() == [9]
    assert x[window(x, -5, 50)].tolist() == x.tolist()
