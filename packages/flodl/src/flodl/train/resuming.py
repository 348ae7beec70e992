"""Which checkpoint to go on from: the newest whole one of a run, the newest run of this program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flodl import checkpoint
from flodl.checkpoint.listing import list_checkpoints
from flodl.checkpoint.manifest import MANIFEST
from flodl.errors import CheckpointError, StoreError
from flodl.monitor import RunView
from flodl.monitor.schema import FILE_NAME
from flodl.train.config import RunConfig

__all__ = ["CHECKPOINT", "CHECKPOINTS", "about", "find_run", "locate", "program_of", "run_of", "written_by"]

CHECKPOINT = "checkpoint.pt"  # in the run's folder: the single file of earlier versions
CHECKPOINTS = "checkpoints"  # in the run's folder

_RESUME = ("--resume", "--training.resume")
_SHOWN = 5
_ELSEWHERE = ("resume", "device")  # training settings that may differ between two halves of one run


def locate(path: str | os.PathLike[str], warn: Callable[[str], object] | None = None) -> Path:
    """The checkpoint at `path`: itself, or the newest whole one in a run's folder or in its `checkpoints`.

    Those that are incomplete, or whose content is not what was written, are passed over, and named to `warn`. Raises
    CheckpointError when none is left.
    """
    path = Path(path)
    if not path.is_dir() or (path / MANIFEST).exists():
        return path
    for listed in (c for folder in (path / CHECKPOINTS, path) for c in reversed(list_checkpoints(folder))):
        problem = listed.problem
        if listed.manifest is not None:
            try:
                checkpoint.verify(listed.path, listed.manifest)
                return listed.path
            except CheckpointError as error:
                problem = str(error)
        if warn is not None:
            warn(f"{listed.path} is passed over: {problem}")
    if (path / CHECKPOINT).exists():
        return path / CHECKPOINT
    raise CheckpointError(
        f"There is no complete checkpoint in {path}: neither {CHECKPOINTS}/step-... nor {CHECKPOINT}."
    )


def run_of(file: Path) -> Path | None:
    """The folder of the run that the checkpoint `file` is in."""
    folders = (file.parent, file.parent.parent)
    return next((folder for folder in folders if (folder / FILE_NAME).exists()), None)


def written_by(path: Path) -> int:
    """Which trainer of its program, counted from 0, wrote the checkpoint at `path`."""
    return int(about(locate(path))["trainer"])


def about(file: Path) -> Mapping[str, Any]:
    """What a trainer says of the checkpoint that it wrote: its number (`trainer`) and what its `data` depend on.

    Raises CheckpointError for one that no trainer wrote.
    """
    found: Mapping[str, Any] = checkpoint.read_manifest(file).info if file.is_dir() else checkpoint.load(file).extra
    if "data" not in found:
        raise CheckpointError(
            f"{file} was not written by this version's Trainer, so there is no training to go on with: load its weights "
            "with fl.checkpoint.load and begin a new run."
        )
    return found


def program_of(config: RunConfig) -> dict[str, Any]:
    """What makes two runs the same training: the script, its arguments, the training settings; not how to resume."""
    arguments, skip = [], False
    for argument in sys.argv[1:]:
        if not skip and argument.split("=")[0] not in _RESUME:
            arguments.append(argument)
        skip = argument in _RESUME
    training = {name: value for name, value in config.as_dict()["training"].items() if name not in _ELSEWHERE}
    return {"script": os.path.basename(sys.argv[0]), "arguments": arguments, "training": training}


def find_run(
    folder: str | os.PathLike[str], program: Mapping[str, Any], trainer: int, say: Callable[[str], object]
) -> Path | None:
    """The newest run in `folder` that this program, with the same settings and as the same trainer, began and did not end.

    A run that was interrupted, failed or was killed is not ended. None where there is none. `say` is told which one was
    chosen, or why none was.
    """
    folder = Path(folder)
    found, reasons = [], []
    for run in (p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else ():
        newest = next((c.manifest for c in reversed(list_checkpoints(run / CHECKPOINTS)) if c.manifest), None)
        if newest is not None:
            found.append((newest.created, run, newest.info))
    for _, run, info in sorted(found, key=lambda entry: entry[0], reverse=True):
        reason = _difference(info, program, trainer) or _against(run)
        if not reason:
            say(f"resuming {run}, the newest run of this program that is not finished")
            return run
        reasons.append(f"{run.name} {reason}")
    why = f" ({'; '.join(reasons[:_SHOWN])}{'; ...' if len(reasons) > _SHOWN else ''})" if reasons else ""
    say(f"nothing to resume in {folder}{why}: a new run begins")
    return None


def _difference(info: Mapping[str, Any], program: Mapping[str, Any], trainer: int) -> str:
    was = info.get("program", {})
    if was.get("script") != program["script"]:
        return f"is of {was.get('script')}"
    if was.get("arguments") != program["arguments"]:
        return "had other arguments"
    theirs, mine = was.get("training", {}), program["training"]
    for name in mine:
        if theirs.get(name) != mine[name]:
            return f"had {name} {theirs.get(name)}"
    return "" if info.get("trainer") == trainer else f"is of trainer {info.get('trainer')} of the program"


def _against(run: Path) -> str:
    """Why the run is not to be gone on with: empty where nothing is against it."""
    if not (run / FILE_NAME).exists():
        return ""
    try:
        with RunView(run) as view:
            state = view.info().state
    except StoreError as error:
        return f"cannot be read: {error}"
    return {"finished": "is finished", "running": "still runs"}.get(state, "")
