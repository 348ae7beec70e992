"""The manifest of a checkpoint's folder: what is in it, of which sizes and hashes. Written last, so it means "complete"."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from flodl.errors import CheckpointError

__all__ = [
    "FOLDER_VERSION",
    "FORMAT",
    "MANIFEST",
    "Manifest",
    "digest",
    "read_manifest",
    "verify",
    "versions",
    "write_manifest",
]

FORMAT = "flodl.checkpoint"
FOLDER_VERSION = 2
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint says of itself without its tensors being read.

    kind: "whole", or "sharded" (written by several processes). structure: the structural hash of the model. part: the label
    path of the part that it holds, None for a whole model. position, metrics, info: as given to `save`. tensors: the model's,
    name -> [type, shape]. tied: name -> the name that it is one tensor with. files: name -> {"bytes", "sha256"}.
    """

    kind: Literal["whole", "sharded"] = "whole"
    step: int | None = None
    position: dict[str, int] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    structure: str | None = None
    part: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, list[Any]] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    created: float = 0.0


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Into `folder`, with the time, the versions and a checksum of its own."""
    document = {"format": FORMAT, "format_version": FOLDER_VERSION, **asdict(manifest)}
    document["metrics"] = {name: _to_json(value) for name, value in manifest.metrics.items()}
    document |= {"created": time.time(), "versions": versions()}
    document["checksum"] = _checksum(document)
    (folder / MANIFEST).write_text(json.dumps(document, indent=1), encoding="utf-8")


def versions() -> dict[str, str]:
    """Of what wrote it."""
    from flodl import __version__

    return {"flodl": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def read_manifest(folder: Path) -> Manifest:
    """Raises CheckpointError: none there, damaged, not of this library, of a newer format, its files missing or cut."""
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} is no complete checkpoint: it has no {MANIFEST}, which is written last. Take an earlier one."
        ) from error
    except OSError as error:
        raise CheckpointError(f"Cannot read the checkpoint {folder}: {error.strerror or error}.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}. Take an earlier checkpoint.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by flodl: the folder is something else.")
    if document["format_version"] > FOLDER_VERSION:
        raise CheckpointError(
            f"{folder} has format {document['format_version']}, written by flodl {document['versions'].get('flodl')}; "
            f"this flodl reads up to {FOLDER_VERSION}. Upgrade flodl."
        )
    if document.pop("checksum", None) != _checksum(document):
        raise CheckpointError(f"{path} is damaged: its checksum is wrong. Take an earlier checkpoint.")
    document["metrics"] = {name: float(value) for name, value in document["metrics"].items()}
    manifest = Manifest(**{f.name: document[f.name] for f in fields(Manifest)})
    for name, facts in manifest.files.items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size != facts["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes instead of {facts['bytes']}"
            raise CheckpointError(f"The checkpoint {folder} is incomplete: {name} {found}. Take an earlier one.")
    return manifest


def verify(folder: Path, manifest: Manifest | None = None, *, only: Collection[str] | None = None) -> Manifest:
    """Read every file (those in `only`) and compare its hash.

    Raises CheckpointError for a damaged one, and what `read_manifest` raises.
    """
    manifest = manifest or read_manifest(folder)
    for name, facts in manifest.files.items():
        if only is not None and name not in only:
            continue
        try:
            found = digest(folder / name)
        except OSError as error:
            raise CheckpointError(f"Cannot read {folder / name}: {error.strerror or error}.") from error
        if found != facts:
            raise CheckpointError(
                f"The checkpoint {folder} is damaged: the content of {name} is not what was written. Take an earlier one."
            )
    return manifest


def describe(state: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Type and shape of each tensor."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()}


def digest(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file."""
    hashed, size, chunk = hashlib.sha256(), 0, bytearray(1 << 20)
    view = memoryview(chunk)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(chunk):
            hashed.update(view[:count])
            size += count
    return {"bytes": size, "sha256": hashed.hexdigest()}


def _to_json(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))  # JSON has no NaN


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
