"""One tree of errors. A message names the thing, its place and the nearest valid names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DistributedError",
    "FlodlError",
    "FlowError",
    "StepError",
    "StoreError",
    "TrainingError",
]


class FlodlError(Exception):
    """Root of every error that this library raises on purpose."""


class FlowError(FlodlError, ValueError):
    """A flow that cannot be built: raised by `build()` with the step's number and name."""


class StepError(FlodlError, RuntimeError):
    """A step of a flow that failed in a real forward: names the step, its place in the tree and the shapes it got."""


class DataError(FlodlError, ValueError):
    """A dataset or a batch that cannot be trained on."""


class TrainingError(FlodlError, RuntimeError):
    """A training step that cannot be taken (a loss that is no scalar, a loss without gradient, NaN by policy)."""


class ConfigError(FlodlError, ValueError):
    """A setting that does not exist or has a value outside its range."""


class CheckpointError(FlodlError, RuntimeError):
    """A checkpoint that cannot be written or read; the previous one is intact."""


class DistributedError(FlodlError, RuntimeError):
    """Several devices cannot train together: one is lost, differs, or failed."""


class StoreError(FlodlError, RuntimeError):
    """A run store (`run.db`) that cannot be opened or written."""


def nearest(name: str, valid: Iterable[str], *, limit: int = 3) -> str:
    """A sentence that offers the valid names nearest to `name`, ready to be appended to a message.

    Returns `" Did you mean 'a' or 'b'?"`, else `" Valid: a, b, c."` when nothing is near, else `""` when `valid` is empty.
    """
    names = [str(v) for v in valid]
    close = difflib.get_close_matches(str(name), names, n=limit, cutoff=0.6)
    if close:
        return " Did you mean " + " or ".join(repr(c) for c in close) + "?"
    if names:
        shown = ", ".join(sorted(names)[:12]) + (", ..." if len(names) > 12 else "")
        return f" Valid: {shown}."
    return ""
