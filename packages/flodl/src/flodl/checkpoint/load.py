"""Read a checkpoint and put it into a model and an optimizer: all of it or nothing."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flodl.checkpoint.fit import LoadReport, model_fit, optimizer_misfits
from flodl.checkpoint.keys import unwrapped
from flodl.checkpoint.save import FORMAT, FORMAT_VERSION
from flodl.errors import CheckpointError, nearest

__all__ = ["Checkpoint", "load"]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a checkpoint file held.

    `model` and `optimizer` are the state dicts that were not loaded into an object; what was loaded is None here, so
    that a checkpoint kept by its reader keeps no second copy of the weights.
    """

    path: Path
    position: dict[str, int] | None
    extra: dict[str, Any]
    versions: dict[str, str]
    model: dict[str, Any] | None
    optimizer: dict[str, Any] | None
    report: LoadReport = field(default_factory=LoadReport)


def load(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    strict: bool = True,
) -> Checkpoint:
    """Read the checkpoint `path`; copy its weights into `model` and its state into `optimizer` where they are given.

    Tensors go to the devices and dtypes of the model's own. Everything is checked before anything is copied. With
    `strict=False` the entries that fit are loaded, and `Checkpoint.report` names the others.

    Raises CheckpointError: no such file, not a checkpoint, truncated or damaged, written by a newer format; with
    `strict`, names that are missing, unexpected or of another shape, weights tied here and not there; an optimizer of
    another type or with other parameter groups, with `strict` or without.
    """
    path = Path(path)
    payload = _read(path)
    problems: list[str] = []
    report = LoadReport()
    if model is not None:
        fit = model_fit(payload["model"], unwrapped(model))
        report = fit.report
        problems += fit.problems if strict else []
    if optimizer is not None:
        problems += optimizer_misfits(payload["optimizer"], optimizer, model)
    if problems:
        raise CheckpointError(f"The checkpoint {path} does not fit; nothing was loaded:\n  " + "\n  ".join(problems))
    if model is not None:
        unwrapped(model).load_state_dict(fit.state, strict=False)
    if optimizer is not None:
        optimizer.load_state_dict(payload["optimizer"]["state_dict"])
    saved_optimizer = payload["optimizer"]
    return Checkpoint(
        path=path,
        position=payload["position"],
        extra=payload["extra"],
        versions=payload["versions"],
        model=payload["model"] if model is None else None,
        optimizer=saved_optimizer["state_dict"] if saved_optimizer and optimizer is None else None,
        report=report,
    )


def _read(path: Path) -> dict[str, Any]:
    """The content of the file, on the CPU, after its checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            # torch.load itself takes a flipped bit in a tensor for a number.
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"The checkpoint {path} is damaged: the checksum of its record {damaged} is wrong.")
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no checkpoint {path}.{_neighbours(path)}") from error
    except OSError as error:
        raise CheckpointError(f"Cannot read the checkpoint {path}: {error.strerror or error}.") from error
    except CheckpointError:
        raise
    except Exception as error:  # whatever zipfile, pickle and torch raise on bytes that are not theirs
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{path} is no checkpoint, or a truncated one: {reason}") from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} was not written by flodl: it holds {_describe(payload)}. A plain state dict loads with "
            "model.load_state_dict(torch.load(path, weights_only=True))."
        )
    if payload["format_version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {payload['format_version']}, written by flodl {payload['versions'].get('flodl')}; this "
            f"flodl reads up to {FORMAT_VERSION}. Upgrade flodl."
        )
    return payload


def _neighbours(path: Path) -> str:
    return nearest(path.name, (p.name for p in path.parent.iterdir() if p.is_file())) if path.parent.is_dir() else ""


def _describe(payload: Any) -> str:
    if isinstance(payload, dict):
        return f"a dict with {', '.join(repr(key) for key in list(payload)[:4]) or 'nothing'}"
    return f"an object of type {type(payload).__name__}"
