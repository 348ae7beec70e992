"""Dry runs: a forward on fake tensors, for its shapes. Nothing is recorded and no decision waits for a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

__all__ = ["dry_run", "is_dry"]

#: Dry runs that are going on, by thread: a model may be checked while another one trains in its own thread.
_depths: dict[int, int] = {}


def is_dry() -> bool:
    """Whether a dry run is going on here: observers look away, loops run twice at most, switches try every branch."""
    return bool(_depths) and get_ident() in _depths


@contextmanager
def dry_run() -> Iterator[None]:
    """Every forward inside the block, in this thread, is a dry run."""
    thread = get_ident()
    _depths[thread] = _depths.get(thread, 0) + 1
    try:
        yield
    finally:
        _depths[thread] -= 1
        if not _depths[thread]:
            del _depths[thread]
