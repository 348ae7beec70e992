"""Numbers, durations and names as people read them."""

from __future__ import annotations

import math

from flodl.monitor.values import to_float

__all__ = ["format_duration", "format_gigabytes", "format_name", "format_value", "one_line"]

_MAX_NAME = 40


def format_value(value: float) -> str:
    """`value` with four significant digits after the leading one: 1.5264, 0.91, 1.234e-05, 123456, nan, -inf."""
    value = to_float("value", value)
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size != 0 and (size < 1e-3 or size >= 1e6):
        return f"{value:.3e}"
    if size >= 1e4:
        return f"{value:.0f}"
    return f"{value:.5g}" if size >= 1 else f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """49ms, 4.8s, 48s, 3m12s, 2h05m, 3d04h; "?" for what is no duration."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds == 0:
        return "0s"
    if seconds < 0.00095:
        return f"{seconds * 1000:.1g}ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d{hours % 24:02}h"


def format_gigabytes(used_bytes: int, total_bytes: int) -> str:
    """2.1/6.0 GB (2**30 bytes, as memory is sold); whole numbers from 10 on."""
    return f"{_gigabytes(used_bytes)}/{_gigabytes(total_bytes)} GB"


def format_name(name: str) -> str:
    """`name` on one line: what does not print as its escape, the middle of a long one left out."""
    shown = one_line(str(name))
    if len(shown) > _MAX_NAME:
        shown = f"{shown[: _MAX_NAME - 10]}…{shown[-9:]}"
    return shown


def one_line(text: str) -> str:
    """`text` with what does not print as its escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _gigabytes(size_bytes: int) -> str:
    size = size_bytes / 2**30
    if size < 0.095:
        return f"{size:.2g}"
    return f"{size:.1f}" if size < 9.95 else f"{size:.0f}"
