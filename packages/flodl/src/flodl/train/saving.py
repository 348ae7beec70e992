"""A trainer's checkpoint: all that the next step depends on."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flodl import checkpoint
from flodl.data import Loader, Position
from flodl.errors import ConfigError
from flodl.monitor.schema import FILE_NAME
from flodl.train.metrics import Meter

if TYPE_CHECKING:
    from flodl.train.trainer import Trainer

__all__ = ["CHECKPOINT", "read_checkpoint", "write_checkpoint", "written_by"]

CHECKPOINT = "checkpoint.pt"  # in the run's folder


def write_checkpoint(path: str | os.PathLike[str], trainer: Trainer, loader: Loader | None, meter: Meter) -> Path:
    """Write model, optimizer, position, random states and the epoch's sums so far."""
    extra = {
        "step": trainer.global_step,
        "trainer": trainer.number,
        **_data(trainer, loader),
        "rng": checkpoint.rng_state(),
        "meter": meter.state(),
    }
    position = asdict(trainer.position)
    return checkpoint.save(path, model=trainer.model, optimizer=trainer.optimizer, position=position, extra=extra)


def written_by(path: Path) -> int:
    """Which trainer of its program, counted from 0, wrote the checkpoint at `path`."""
    return int(checkpoint.load(_file(path)).extra["trainer"])


def read_checkpoint(path: Path, trainer: Trainer, loader: Loader | None, meter: Meter) -> Path | None:
    """Put the checkpoint at `path`, a file or a run's folder, into the trainer. Returns the run's folder if it is one.

    Raises `CheckpointError` when it does not fit, `ConfigError` when the data would come in another order.
    """
    file = _file(path)
    folder = file.parent
    found = checkpoint.load(file)
    for what, now in _data(trainer, loader).items():
        was = found.extra.get(what)
        if was != now:
            raise ConfigError(
                f"{file} was written with {what} {was}, this run has {now}: the order of the data would differ"
            )
    loaded = checkpoint.load(file, model=trainer.model, optimizer=trainer.optimizer)
    trainer.position = Position(**(loaded.position or {}))
    trainer.global_step = loaded.extra["step"]
    meter.load(loaded.extra["meter"])
    checkpoint.set_rng_state(loaded.extra["rng"])
    return folder if (folder / FILE_NAME).exists() else None


def _file(path: Path) -> Path:
    return path / CHECKPOINT if path.is_dir() else path


def _data(trainer: Trainer, loader: Loader | None) -> dict[str, object]:
    """What the order of the data depends on."""
    training = trainer.config.training
    return {"seed": training.seed, "shuffle": training.shuffle, "samples": loader.samples if loader else 0}
