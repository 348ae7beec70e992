"""Write a checkpoint: one file of plain types and tensors."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn
from torch.optim import Optimizer

from flodl.checkpoint.atomic import write_atomically
from flodl.checkpoint.keys import model_state, plain_names, unwrapped
from flodl.checkpoint.plain import plain
from flodl.errors import CheckpointError

__all__ = ["FORMAT", "FORMAT_VERSION", "optimizer_names", "optimizer_shapes", "save"]

FORMAT = "flodl.checkpoint"
FORMAT_VERSION = 1


def save(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | Mapping[str, Any],
    optimizer: Optimizer | None = None,
    position: Mapping[str, int] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint to the single file `path`, atomically; missing folders are made. Returns the path.

    `model`: a module or a state dict; names are written without the prefixes of `torch.compile` and DDP, tied weights
    once. `position`: where the data stands, such as `{"epoch": 3, "sample": 640}`. `extra`: anything else in plain
    types and tensors (`{"rng": fl.checkpoint.rng_state()}`).

    Raises CheckpointError, naming the path and the cause: disk full, no permission, a value that is not plain. The
    previous file is then intact and no temporary file is left.
    """
    path = Path(path)
    payload = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": _versions(),
        "model": model_state(model),
        "optimizer": None if optimizer is None else _optimizer_state(optimizer, model),
        "position": None if position is None else plain(position, "position"),
        "extra": {} if extra is None else plain(extra, "extra"),
    }
    try:
        write_atomically(path, lambda file: _write(payload, file))
    except OSError as error:
        raise CheckpointError(f"Cannot write the checkpoint {path}: {error.strerror or error}.") from error
    except RuntimeError as error:
        # torch's writer reports a failed write as RuntimeError about positions; the reason is in its context.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise CheckpointError(f"Cannot write the checkpoint {path}: {getattr(cause, 'strerror', cause)}.") from error
    return path


def _write(payload: dict[str, Any], file: BinaryIO) -> None:
    checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)  # load() checks them
    try:
        torch.save(payload, file)
    finally:
        torch.serialization.set_crc32_options(checksums)


def _versions() -> dict[str, str]:
    from flodl import __version__

    return {"flodl": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def _optimizer_state(optimizer: Optimizer, model: nn.Module | Mapping[str, Any]) -> dict[str, Any]:
    names = optimizer_names(optimizer, model) if isinstance(model, nn.Module) else None
    return {
        "type": type(optimizer).__name__,
        "names": names,
        "shapes": optimizer_shapes(optimizer),
        "state_dict": plain(optimizer.state_dict(), "optimizer"),
    }


def optimizer_shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    """For each parameter group the shapes of its parameters."""
    return [[list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups]


def optimizer_names(optimizer: Optimizer, model: nn.Module) -> list[list[str | None]]:
    """For each parameter group the names of its parameters in `model`; None for a parameter of something else."""
    parameters = dict(unwrapped(model).named_parameters())
    plain_name = plain_names(parameters)
    by_id = {id(parameter): plain_name[name] for name, parameter in parameters.items()}
    return [[by_id.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]
