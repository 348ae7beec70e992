"""A curve over a logarithmic axis, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

__all__ = ["curve_svg"]

_WIDTH, _HEIGHT, _LEFT, _BELOW, _MARGIN = 640, 360, 64, 44, 16


def curve_svg(
    x: Sequence[float], lines: Sequence[tuple[str, Sequence[float]]], *, title: str, x_title: str, mark: float | None
) -> str:
    """Each of `lines` is a colour and its values at `x` (above 0); the last one decides the range of y, what is outside is
    cut off. `mark` is a place on x."""
    low, high = math.log10(min(x)), math.log10(max(x))
    finite = [v for v in lines[-1][1] if math.isfinite(v)]
    bottom, top = (min(finite), max(finite)) if finite else (0.0, 1.0)
    bottom, top = bottom - 0.05 * (top - bottom), top + 0.05 * (top - bottom)

    def at(value: float) -> float:
        return _LEFT + (math.log10(value) - low) / ((high - low) or 1) * (_WIDTH - _LEFT - _MARGIN)

    def up(value: float) -> float:
        return _HEIGHT - _BELOW - (value - bottom) / ((top - bottom) or 1) * (_HEIGHT - _BELOW - 2 * _MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>',
    ]
    for exponent in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1):
        place = f"{at(10.0**exponent):.1f}"
        parts.append(f'<path d="M{place} {_MARGIN}V{_HEIGHT - _BELOW}" stroke="#ddd"/>')
        parts.append(f'<text x="{place}" y="{_HEIGHT - _BELOW + 16}" text-anchor="middle">1e{exponent}</text>')
    for step in range(5):
        value = bottom + step * (top - bottom) / 4
        parts.append(f'<text x="{_LEFT - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for colour, values in lines:
        points = [(a, v) for a, v in zip(x, values, strict=True) if math.isfinite(v) and bottom <= v <= top]
        path = " ".join(f"{at(a):.1f},{up(v):.1f}" for a, v in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    if mark is not None:
        place = f"{at(mark):.1f}"
        parts.append(f'<path d="M{place} {_MARGIN}V{_HEIGHT - _BELOW}" stroke="#d33" stroke-dasharray="4"/>')
        parts.append(f'<text x="{place}" y="12" text-anchor="middle" fill="#d33">{mark:.2g}</text>')
    return "\n".join([*parts, "</svg>\n"])
