"""Dry runs: a forward on fake tensors, for its shapes. Nothing is recorded and no decision waits for a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["dry_run", "is_dry"]

_depth = 0


def is_dry() -> bool:
    """Whether a dry run is going on: observers then look away, loops run once and switches try every branch."""
    return _depth > 0


@contextmanager
def dry_run() -> Iterator[None]:
    """Every forward inside the block is a dry run."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
