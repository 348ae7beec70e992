"""Checkpoints of models that are spread over processes (FSDP, tensor parallelism): each process writes its own part."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.optim import Optimizer

from flodl.checkpoint.atomic import new_folder
from flodl.checkpoint.fit import LoadReport, mismatches
from flodl.checkpoint.load import Checkpoint
from flodl.checkpoint.manifest import Manifest, describe, digest, read_manifest, verify, write_manifest
from flodl.checkpoint.plain import plain
from flodl.checkpoint.snapshot import STATE, check_replaceable, dump, sweep
from flodl.errors import CheckpointError

__all__ = ["load_sharded", "save_sharded"]

_Value = TypeVar("_Value")


def save_sharded(
    path: str | os.PathLike[str],
    *,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    position: Mapping[str, int] | None = None,
    extra: Mapping[str, Any] | None = None,
    step: int | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Write the folder `path`, which all processes of the default group must see. All of them call this.

    Each writes its own part, through `torch.distributed.checkpoint`; `load_sharded` reads it in any number of processes. The
    rest is that of the first process. The folder appears when all have written. Without a process group one process
    writes all. Raises CheckpointError in every process when one of them fails; what was at `path` is then intact.
    """
    path = Path(os.path.realpath(path))
    with ExitStack() as stack:
        folder = _first(path, lambda: stack.enter_context(_begin(path)))
        state: dict[str, Any] = {"model": get_model_state_dict(model)}
        kept = None
        if optimizer is not None:
            # Asking a fresh optimizer for its state would make it take a step.
            fresh = not any(_each(path, lambda: bool(optimizer.state)))
            kept = {"type": type(optimizer).__name__, "fresh": fresh}
            if not fresh:
                state["optimizer"] = get_optimizer_state_dict(model, optimizer)
        _each(path, lambda: _write(state, folder))
        shares = _each(path, lambda: {name: digest(folder / name) for name in _share(os.listdir(folder))})
        manifest = Manifest(
            kind="sharded",
            step=step,
            position=None if position is None else plain(position, "position"),
            metrics={name: float(value) for name, value in (metrics or {}).items()},
            info={"optimizer": kept},
            tensors=describe(state["model"]),
            files={name: facts for share in shares for name, facts in share.items()},
        )
        _first(path, lambda: _finish(folder, manifest, dict(extra or {}), stack))
    return path


def load_sharded(
    path: str | os.PathLike[str], *, model: nn.Module, optimizer: Optimizer | None = None, strict: bool = True
) -> Checkpoint:
    """Put what `save_sharded` wrote into `model` and `optimizer`, in any number of processes. All of them call this.

    The hashes are checked first, each process some of the files; then names and shapes. The files of torch hold pickled
    metadata: load only what you trust. Raises CheckpointError in every process when one of them fails, and with `strict` for
    names that are missing, unexpected or of another shape.
    """
    path = Path(path)
    manifest = _each(path, lambda: _checked(path))[0]
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    missing, unexpected, wrong = mismatches(manifest.tensors, describe(state["model"]))
    problems = [
        *(f"missing in the file: {name!r}" for name in missing),
        *(f"not in the model: {name!r}" for name in unexpected),
        *(f"of another shape: {name!r}: {what}" for name, what in wrong.items()),
    ]
    kept = manifest.info["optimizer"]
    if optimizer is not None and (kept is None or kept["type"] != type(optimizer).__name__):
        found = "no optimizer state" if kept is None else f"the state of {kept['type']}"
        raise CheckpointError(f"The checkpoint {path} holds {found}; this optimizer is {type(optimizer).__name__}.")
    if problems and strict:
        raise CheckpointError(
            f"The checkpoint {path} does not fit; nothing was loaded:\n  " + "\n  ".join(problems[:24])
        )
    for name in (*missing, *wrong):
        del state["model"][name]
    loaded = tuple(state["model"])
    if optimizer is not None and not kept["fresh"]:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    _each(path, lambda: _read(state, path, partial=not strict))
    set_model_state_dict(model, state["model"], options=StateDictOptions(strict=strict))
    if optimizer is not None and "optimizer" in state:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    rest = torch.load(path / STATE, map_location="cpu", weights_only=True)
    return Checkpoint(
        path=path,
        position=manifest.position,
        extra=rest["extra"],
        versions=manifest.versions,
        model=None,
        optimizer=None,
        step=manifest.step,
        metrics=manifest.metrics,
        manifest=manifest,
        report=LoadReport(loaded=loaded, missing=missing, unexpected=unexpected, wrong_shape=wrong),
    )


def _begin(path: Path) -> Any:
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    return new_folder(path)


def _write(state: dict[str, Any], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group, and of torch to itself
        dcp_save(state, checkpoint_id=folder, no_dist=not distributed.is_initialized())


def _read(state: dict[str, Any], path: Path, *, partial: bool) -> None:
    planner = DefaultLoadPlanner(allow_partial_load=partial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_load(state, checkpoint_id=path, planner=planner, no_dist=not distributed.is_initialized())


def _finish(folder: Path, manifest: Manifest, extra: dict[str, Any], stack: ExitStack) -> None:
    with open(folder / STATE, "wb") as file:
        dump({"extra": plain(extra, "extra")}, file)
    manifest.files[STATE] = digest(folder / STATE)
    write_manifest(folder, manifest)
    stack.close()  # the folder gets its name


def _checked(path: Path) -> Manifest:
    manifest = read_manifest(path)
    if manifest.kind != "sharded":
        raise CheckpointError(f"{path} was written by save: read it with fl.checkpoint.load.")
    verify(path, manifest, only=_share(manifest.files))
    return manifest


def _share(names: Any) -> list[str]:
    """This process's part of the work on `names`."""
    rank, processes = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    return sorted(names)[rank::processes]


def _each(path: Path, action: Callable[[], _Value]) -> list[_Value]:
    """What `action` gives in each process. Raises in all of them when it fails in one."""
    outcome: tuple[Any, str | None]
    cause: BaseException | None = None
    try:
        outcome = (action(), None)
    except Exception as error:
        cause, outcome = error, (None, str(error).strip() or type(error).__name__)
    outcomes: list[Any] = [outcome]
    if distributed.is_initialized():
        outcomes = [None] * distributed.get_world_size()
        distributed.all_gather_object(outcomes, outcome)
    for rank, (_, problem) in enumerate(outcomes):
        if problem is not None:
            where = f" in process {rank}" if len(outcomes) > 1 else ""
            raise CheckpointError(f"The checkpoint {path} failed{where}: {problem}") from cause
    return [value for value, _ in outcomes]


def _first(path: Path, action: Callable[[], _Value]) -> _Value:
    """What `action` gives in the first process, where alone it is done."""
    first = not distributed.is_initialized() or distributed.get_rank() == 0
    return _each(path, lambda: action() if first else None)[0]  # type: ignore[return-value]
