"""The checkpoints in a folder: which there are, which are complete, the newest, the best."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from flodl.checkpoint.atomic import leftovers
from flodl.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from flodl.errors import CheckpointError

__all__ = ["Listed", "best", "best_of", "list_checkpoints", "newest", "step_name"]

_STEP = re.compile(r"step-(\d{8,})")


class Listed(NamedTuple):
    """A checkpoint in a folder. `manifest` is None for one that is not complete, `problem` then says why."""

    path: Path
    step: int
    manifest: Manifest | None
    problem: str


def step_name(step: int) -> str:
    """The name of a training's checkpoint."""
    return f"step-{step:08d}"


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Listed]:
    """The checkpoints in `folder`, by step, then by time; links and folders of others are not among them.

    Complete means that the manifest is there and whole and that the files have its sizes; hashes are not computed.
    """
    folder = Path(folder)
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        named = _STEP.fullmatch(path.name)
        if path.name.startswith(".") or path.is_symlink() or not path.is_dir():
            continue
        if not named and not (path / MANIFEST).is_file():
            continue
        step = int(named[1]) if named else -1
        try:
            manifest = read_manifest(path)
            found.append(Listed(path, step if manifest.step is None else manifest.step, manifest, ""))
        except CheckpointError as error:
            if named or "was not written by flodl" not in str(error):
                found.append(Listed(path, step, None, str(error)))
    return sorted(found, key=lambda c: (c.step, c.manifest.created if c.manifest else 0.0, c.path.name))


def newest(
    folder: str | os.PathLike[str], *, complete_only: bool = True, warn: Callable[[str], object] | None = None
) -> Path | None:
    """The checkpoint of the highest step in `folder`, None where there is none.

    Each incomplete one that is newer, and each that a killed process has left unfinished, is named in a warning, which
    `warn` is given if it is not None.
    """
    warn = warn or warnings.warn
    folder = Path(folder)
    checkpoints = list_checkpoints(folder)
    for left in leftovers(folder) if folder.is_dir() else ():
        if _STEP.fullmatch(left.name) and left.dead and not left.gone:
            warn(
                f"{left.path} is an incomplete checkpoint, left by a process that was killed; the next save removes it"
            )
    while checkpoints:
        last = checkpoints.pop()
        if last.manifest is not None or not complete_only:
            return last.path
        warn(f"{last.path} is passed over: {last.problem}")
    return None


def best(folder: str | os.PathLike[str], metric: str, mode: Literal["min", "max"] = "min") -> Path | None:
    """The complete checkpoint whose `metric` is the lowest (highest with "max"); of equal ones the earlier.

    NaN never counts, nor does a checkpoint without that metric. None where none is left.
    """
    found = best_of([c for c in list_checkpoints(folder) if c.manifest], metric, mode)
    return None if found is None else found.path


def best_of(checkpoints: list[Listed], metric: str, mode: Literal["min", "max"]) -> Listed | None:
    """The same among `checkpoints` in the order of their steps."""
    if mode not in ("min", "max"):
        raise CheckpointError(f'mode is {mode!r}: it must be "min" or "max".')
    chosen, at = None, math.inf
    for checkpoint in checkpoints:
        value = checkpoint.manifest.metrics.get(metric, math.nan) if checkpoint.manifest else math.nan
        value = -value if mode == "max" else value
        if value < at or (chosen is None and value == at):
            chosen, at = checkpoint, value
    return chosen
