"""Write a checkpoint: a folder, or one file of plain types and tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from flodl.checkpoint.atomic import write_atomically
from flodl.checkpoint.keys import model_state, part_of
from flodl.checkpoint.manifest import FORMAT, versions
from flodl.checkpoint.optimizer import optimizer_state
from flodl.checkpoint.plain import plain
from flodl.checkpoint.snapshot import dump, take, write_error, write_folder
from flodl.errors import CheckpointError

__all__ = ["FILE_SUFFIXES", "FILE_VERSION", "save"]

FILE_VERSION = 2
FILE_SUFFIXES = (".pt", ".pth")


def save(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | Mapping[str, Any],
    optimizer: Optimizer | None = None,
    position: Mapping[str, int] | None = None,
    extra: Mapping[str, Any] | None = None,
    only: str | None = None,
    step: int | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Write a checkpoint to the folder `path`, or to one file when `path` ends in .pt or .pth. Returns the path.

    The folder holds the model's tensors as safetensors, the rest in plain types, and a manifest with the hash of each file.
    It is written beside `path` and renamed; missing parent folders are made.

    Args:
        model: a module or a state dict; names are written without the prefixes of `torch.compile`, DDP and FSDP, tied
            weights once.
        optimizer: its state is kept by the names of the parameters.
        position: where the data stands, such as `{"epoch": 3, "sample": 640}`.
        extra: anything else in plain types and tensors (`{"rng": fl.checkpoint.rng_state()}`).
        only: the label path of the one part of `model` to save, with names as seen from there.
        step, metrics: for the manifest; `newest` and `best` go by them.

    Raises:
        CheckpointError: names the path and the cause: disk full, no permission, a value that is not plain, something
            else of that name. What was at `path` before is then intact and no temporary file is left.
    """
    path = Path(path)
    if path.suffix not in FILE_SUFFIXES:
        snapshot = take(
            model=model, optimizer=optimizer, position=position, extra=extra, only=only, step=step, metrics=metrics
        )
        write_folder(path, snapshot)
        return path
    if only and (optimizer is not None or not isinstance(model, nn.Module)):
        raise CheckpointError(f"only={only!r} saves a part of a module, and no optimizer with it.")
    payload = {
        "format": FORMAT,
        "format_version": FILE_VERSION,
        "versions": versions(),
        "part": only or None,
        "model": model_state(part_of(model, only) if isinstance(model, nn.Module) else model),
        "optimizer": None if optimizer is None else plain(optimizer_state(optimizer, model), "optimizer"),
        "position": None if position is None else plain(position, "position"),
        "extra": {} if extra is None else plain(extra, "extra"),
        "step": step,
        "metrics": {} if metrics is None else plain(metrics, "metrics"),
    }
    try:
        write_atomically(path, lambda file: dump(payload, file))
    except (OSError, RuntimeError) as error:
        raise write_error(path, error) from error
    return path
