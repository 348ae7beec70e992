"""Read a checkpoint and put it into a model and an optimizer: all of it or nothing."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from flodl.checkpoint.fit import LoadReport, model_fit
from flodl.checkpoint.keys import Migration, part_of, renamed
from flodl.checkpoint.listing import list_checkpoints
from flodl.checkpoint.manifest import FORMAT, MANIFEST, Manifest
from flodl.checkpoint.optimizer import named_state, optimizer_fit, put_optimizer
from flodl.checkpoint.save import FILE_VERSION
from flodl.checkpoint.snapshot import read_folder
from flodl.errors import CheckpointError, nearest
from flodl.graph.structure import structural_hash

__all__ = ["Checkpoint", "load"]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a checkpoint held.

    `model` (a state dict) and `optimizer` (by names, see docs/design/checkpoint.md) are what was not loaded into an object;
    what was loaded is None here, so that a checkpoint kept by its reader keeps no second copy of the weights.
    """

    path: Path
    position: dict[str, int] | None
    extra: dict[str, Any]
    versions: dict[str, str]
    model: dict[str, Any] | None
    optimizer: dict[str, Any] | None
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    manifest: Manifest | None = None
    """None for a single file."""
    report: LoadReport = field(default_factory=LoadReport)


def load(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    strict: bool = True,
    migrate: Migration | None = None,
    only: str | None = None,
    into: str | None = None,
) -> Checkpoint:
    """Read the checkpoint `path`; copy its weights into `model` and its state into `optimizer` where they are given.

    Tensors go to the devices and types of the model's own. Everything is checked before anything is copied, the hashes of
    the files too.

    Args:
        strict: every name must fit. Without it the entries that fit are loaded, and `Checkpoint.report` (printable) names
            the others.
        migrate: `{"old.": "new."}` renames what begins so, or a function from a name in the file to the model's (None: leave
            it out); for the optimizer's state too.
        only: take just the part of the file below this label path.
        into: the label path of the part of `model` to load into; by default `only`, else all of it.

    Raises:
        CheckpointError: no such checkpoint, incomplete, damaged, written by a newer format; with `strict`, names that are
            missing, unexpected or of another shape, weights tied here and not there; an optimizer of another type or
            with another number of groups, with `strict` or without.
    """
    path = Path(path)
    manifest, payload = _read(path)
    part = payload["part"]
    into = only if into is None else into
    saved = _below(payload["model"], only, path) if only else payload["model"]
    saved = {new: saved[name] for name, new in renamed(saved, migrate, strict=strict).items()}
    problems: list[str] = []
    report = LoadReport()
    target = None
    if model is not None:
        target = part_of(model, into)
        fit = model_fit(saved, target)
        report = replace(fit.report, structure_differs=_differs(manifest, target, only))
        problems += fit.problems if strict else []
        if fit.problems and part and not into:
            problems += [f"it holds the part {part!r} of a model: into={part!r} loads it there"] if strict else []
    if optimizer is not None:
        if only or into or part:
            raise CheckpointError("A part of a model has no optimizer state: load the whole, or leave optimizer out.")
        rename = None
        if migrate is not None and payload["optimizer"] is not None:
            names = [name for group in payload["optimizer"]["groups"] for name in group["params"]]
            rename = renamed(names, migrate, strict=False)
        matched = optimizer_fit(payload["optimizer"], optimizer, model, rename)
        problems += [*matched.fatal, *(matched.problems if strict else ())]
        report = replace(report, optimizer_missing=matched.missing, optimizer_unexpected=matched.unexpected)
    if problems:
        raise CheckpointError(f"The checkpoint {path} does not fit; nothing was loaded:\n  " + "\n  ".join(problems))
    if target is not None:
        target.load_state_dict(fit.state, strict=False)
    if optimizer is not None:
        put_optimizer(optimizer, matched.state_dict)
    return Checkpoint(
        path=path,
        position=payload["position"],
        extra=payload["extra"],
        versions=payload["versions"],
        model=saved if model is None else None,
        optimizer=payload["optimizer"] if optimizer is None else None,
        step=payload["step"],
        metrics=payload["metrics"],
        manifest=manifest,
        report=report,
    )


def _below(saved: dict[str, Any], only: str, path: Path) -> dict[str, Any]:
    found = {name.removeprefix(f"{only}."): value for name, value in saved.items() if name.startswith(f"{only}.")}
    if not found:
        parts = {name.rsplit(".", depth)[0] for name in saved for depth in range(1, name.count(".") + 1)}
        raise CheckpointError(f"The checkpoint {path} holds no part {only!r}.{nearest(only, parts)}")
    return found


def _differs(manifest: Manifest | None, target: nn.Module, only: str | None) -> bool:
    return bool(manifest and manifest.structure and not only and manifest.structure != structural_hash(target))


def _read(path: Path) -> tuple[Manifest | None, dict[str, Any]]:
    """The content on the CPU, after its checksums, in one form for folders and files of any version."""
    if path.is_dir():
        if not (path / MANIFEST).exists() and (
            inside := [c for f in (path, path / "checkpoints") for c in list_checkpoints(f)]
        ):
            raise CheckpointError(f"{path} is no checkpoint, but holds some: load {inside[-1].path}.")
        manifest, content = read_folder(path)
        own = {"position", "versions", "part", "step", "metrics"}
        return manifest, {**content, **{name: getattr(manifest, name) for name in own}}
    payload = _read_file(path)
    if payload["format_version"] == 1:
        saved = payload["optimizer"]
        payload |= {"part": None, "step": payload["extra"].get("step"), "metrics": {}}
        if saved is not None:
            payload["optimizer"] = named_state(
                saved["state_dict"], kind=saved["type"], names=saved["names"], shapes=saved["shapes"]
            )
    return None, payload


def _read_file(path: Path) -> dict[str, Any]:
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
    if payload["format_version"] > FILE_VERSION:
        raise CheckpointError(
            f"{path} has format {payload['format_version']}, written by flodl {payload['versions'].get('flodl')}; this "
            f"flodl reads up to {FILE_VERSION}. Upgrade flodl."
        )
    return payload


def _neighbours(path: Path) -> str:
    names = [p.name for p in path.parent.iterdir() if not p.name.startswith(".")] if path.parent.is_dir() else []
    return nearest(path.name, names)


def _describe(payload: Any) -> str:
    if isinstance(payload, dict):
        return f"a dict with {', '.join(repr(key) for key in list(payload)[:4]) or 'nothing'}"
    return f"an object of type {type(payload).__name__}"
