"""All that goes into a checkpoint, taken apart for its files and copied, and the folder that holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint.atomic import leftovers, new_folder
from flodl.checkpoint.keys import memory_of, model_state, part_of, unwrapped
from flodl.checkpoint.manifest import MANIFEST, Manifest, describe, digest, read_manifest, verify, write_manifest
from flodl.checkpoint.optimizer import optimizer_state
from flodl.checkpoint.plain import joined, plain, split
from flodl.checkpoint.tensors import Buffers, read_tensors, storable, write_tensors
from flodl.errors import CheckpointError
from flodl.graph.structure import structural_hash

__all__ = [
    "FILES",
    "STATE",
    "Snapshot",
    "check_replaceable",
    "dump",
    "read_folder",
    "remove_files",
    "sweep",
    "take",
    "write_error",
    "write_folder",
]

MODEL, TENSORS, STATE = "model.safetensors", "state.safetensors", "state.pt"
FILES = (MODEL, TENSORS, STATE, MANIFEST)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """`model`: its tensors, tied ones once; `tensors`: those of `state`, which holds marks in their places."""

    model: dict[str, Tensor]
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    manifest: Manifest


@dataclass(kw_only=True)
class _Parts:
    tensors: dict[str, Tensor] = field(default_factory=dict)
    key_of: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def keep(self, tensor: Tensor, place: str) -> str | None:
        """A key for a tensor, the same for the same memory; None for one that stays where it is."""
        if not storable(tensor):
            return None
        memory = memory_of(tensor)
        if memory is not None and memory in self.key_of:
            return self.key_of[memory]
        key, number = place, 1
        while key in self.tensors:
            number += 1
            key = f"{place}#{number}"
        self.tensors[key] = tensor
        if memory is not None:
            self.key_of[memory] = key
        return key


def take(
    *,
    model: nn.Module | Mapping[str, Any],
    optimizer: Optimizer | None = None,
    position: Mapping[str, int] | None = None,
    extra: Mapping[str, Any] | None = None,
    only: str | None = None,
    step: int | None = None,
    metrics: Mapping[str, float] | None = None,
    info: Mapping[str, Any] | None = None,
    buffers: Buffers | None = None,
) -> Snapshot:
    """Copy it all. `buffers`: the memory for the copies, valid until it is used again. See `save` for the rest."""
    part: nn.Module | None = None
    if only:
        if optimizer is not None:
            raise CheckpointError(f"only={only!r} saves a part; an optimizer belongs to the whole model: leave it out.")
        if not isinstance(model, nn.Module):
            raise CheckpointError(f"only={only!r} names a part of a module; model is of type {type(model).__name__}.")
        part = part_of(model, only)
    elif isinstance(model, nn.Module):
        part = unwrapped(model)
    state_of_model = model_state(model if part is None else part)
    tensors = {name: v for name, v in state_of_model.items() if isinstance(v, Tensor) and storable(v)}
    tied: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        if (memory := memory_of(tensor)) is not None and first.setdefault(memory, name) != name:
            tied[name] = first[memory]
    content = {
        "rest": {name: value for name, value in state_of_model.items() if name not in tensors},
        "optimizer": None if optimizer is None else optimizer_state(optimizer, model),
        "extra": dict(extra or {}),
    }
    parts = _Parts()
    state = {key: split(value, key, parts.keep) for key, value in content.items()}
    model_tensors = {f"model.{name}": tensor for name, tensor in tensors.items() if name not in tied}
    copies = (buffers or Buffers()).copy({**model_tensors, **{f"state.{k}": t for k, t in parts.tensors.items()}})
    return Snapshot(
        model={key.removeprefix("model."): copies[key] for key in model_tensors},
        tensors={key: copies[f"state.{key}"] for key in parts.tensors},
        state=_owned(state),
        manifest=Manifest(
            step=step,
            position=None if position is None else plain(position, "position"),
            metrics={name: float(value) for name, value in (metrics or {}).items()},
            structure=None if part is None else structural_hash(part),
            part=only or None,
            info=dict(info or {}),
            tensors=describe(tensors),
            tied=tied,
        ),
    )


def _owned(value: Any) -> Any:
    """Tensors that no file of tensors can hold, copied; all else in here is new already."""
    if isinstance(value, Tensor):
        return value.cpu().clone()
    if type(value) is dict:
        return {key: _owned(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_owned(item) for item in value)
    return value


def write_folder(path: Path, snapshot: Snapshot) -> Path:
    """Write the folder `path`, atomically. Raises CheckpointError; what was there is then intact."""
    path = Path(os.path.realpath(path))  # a link stays a link
    try:
        check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
        with new_folder(path) as folder:
            write_tensors(folder / MODEL, snapshot.model)
            write_tensors(folder / TENSORS, snapshot.tensors)
            with open(folder / STATE, "wb") as file:
                dump(snapshot.state, file)
            for name in (MODEL, TENSORS):  # safetensors makes them for the owner only
                (folder / name).chmod((folder / STATE).stat().st_mode)
            files = {name: digest(folder / name) for name in (MODEL, TENSORS, STATE)}
            write_manifest(folder, replace(snapshot.manifest, files=files))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise write_error(path, error) from error
    return path


def read_folder(path: Path) -> tuple[Manifest, dict[str, Any]]:
    """The manifest and `model`, `optimizer`, `extra` of the folder `path`, on the CPU, after the check of all hashes."""
    manifest = read_manifest(path)
    if manifest.kind != "whole":
        raise CheckpointError(f"{path} was written by save_sharded: read it with fl.checkpoint.load_sharded.")
    verify(path, manifest)
    try:
        tensors = read_tensors(path / MODEL)
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        state = joined(state, read_tensors(path / TENSORS))
    except OSError as error:
        raise CheckpointError(f"Cannot read the checkpoint {path}: {error.strerror or error}.") from error
    except Exception as error:  # of hashes that are right: written by something that is not this library
        raise CheckpointError(f"Cannot read the checkpoint {path}: {error}") from error
    model: dict[str, Any] = {name: tensors[manifest.tied.get(name, name)] for name in manifest.tensors}
    return manifest, {"model": model | state["rest"], "optimizer": state["optimizer"], "extra": state["extra"]}


def dump(payload: dict[str, Any], file: BinaryIO) -> None:
    """`torch.save` with checksums, whatever torch was told."""
    checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)  # load() checks them
    try:
        torch.save(payload, file)
    finally:
        torch.serialization.set_crc32_options(checksums)


def write_error(path: Path, error: BaseException) -> CheckpointError:
    """What kept `path` from being written: the system's words, whichever library passed them on."""
    if isinstance(error, CheckpointError):
        return error
    # torch's writer reports a failed write as RuntimeError about positions; the reason is in its context.
    cause = error.__context__ if isinstance(error.__context__, OSError) else error
    reason = getattr(cause, "strerror", None) or str(cause)
    return CheckpointError(f"Cannot write the checkpoint {path}: {reason}. What was there before is intact.")


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove what dead processes of this host left of checkpoints `name` (of all), their own files only."""
    for left in leftovers(folder, name):
        if not left.dead or not left.path.is_dir():
            continue
        if not left.gone and not (folder / left.name).exists() and _is_complete(left.path):
            # Complete: killed just before it got its name, or while it was replaced where names cannot be exchanged.
            left.path.rename(folder / left.name)
            continue
        remove_files(left.path)


def _is_complete(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except CheckpointError:
        return False
    return True


def remove_files(folder: Path) -> None:
    """Remove the files of a checkpoint, and the folder if nothing else is in it. The manifest goes first."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for file in folder.iterdir():
        # safetensors writes to a `.tmp...` of its own first
        if file.name in (*FILES, ".metadata") or file.suffix == ".distcp" or file.name.startswith(".tmp"):
            file.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def check_replaceable(path: Path) -> None:
    """Raises CheckpointError when something is at `path` that is neither a checkpoint nor an empty folder."""
    if not path.exists():
        return
    if not path.is_dir():
        raise CheckpointError(f"Cannot write the checkpoint {path}: a file of that name is there. Choose another name.")
    if any(path.iterdir()) and not any((path / name).exists() for name in FILES):
        raise CheckpointError(
            f"Cannot write the checkpoint {path}: the folder holds something else, which is left alone. Choose another name."
        )
