"""A trainer's checkpoint: all that the next step depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flodl import checkpoint
from flodl.data import Position
from flodl.errors import ConfigError
from flodl.monitor.schema import FILE_NAME

if TYPE_CHECKING:
    from flodl.train.fit import Fit

__all__ = ["CHECKPOINT", "read_checkpoint", "write_checkpoint", "written_by"]

CHECKPOINT = "checkpoint.pt"  # in the run's folder


def write_checkpoint(path: str | os.PathLike[str], fit: Fit) -> Path:
    """Write model, optimizer, position and everything else that training goes on from."""
    position = asdict(fit.position)
    model, optimizer = fit.trainer.model, fit.trainer.optimizer
    return checkpoint.save(path, model=model, optimizer=optimizer, position=position, extra=training_state(fit))


def written_by(path: Path) -> int:
    """Which trainer of its program, counted from 0, wrote the checkpoint at `path`."""
    return int(checkpoint.load(_file(path)).extra["trainer"])


def read_checkpoint(path: Path, fit: Fit) -> Path | None:
    """Put the checkpoint at `path`, a file or a run's folder, into the training. Returns the run's folder if it is one.

    Raises `CheckpointError` when it does not fit, `ConfigError` when the data would come in another order.
    """
    file = _file(path)
    folder = file.parent
    found = checkpoint.load(file)
    for what, now in _data(fit).items():
        was = found.extra.get(what)
        if was != now:
            raise ConfigError(
                f"{file} was written with {what} {was}, this run has {now}: the order of the data would differ"
            )
    loaded = checkpoint.load(file, model=fit.trainer.model, optimizer=fit.trainer.optimizer)
    fit.position = Position(**(loaded.position or {}))
    put_state(fit, loaded.extra)
    return folder if (folder / FILE_NAME).exists() else None


def training_state(fit: Fit) -> dict[str, Any]:
    """Plain values and tensors: what is neither the model's nor the optimizer's own state."""
    update = fit.update
    state: dict[str, Any] = {
        "step": fit.step,
        "trainer": fit.trainer.number,
        **_data(fit),
        # Evaluations that follow the last update may be done once more: they then draw the same numbers.
        "rng": fit.rng_before_evaluation or checkpoint.rng_state(),
        "evaluation_due": fit.evaluation_due,
        "ledger": fit.ledger.state(),
        "callbacks": fit.callbacks.state(),
    }
    if update.batches:
        state["window"] = {"batches": update.batches, "weight": float(update.weight), "sums": update.sums()}
    if update.scheduler:
        state["scheduler"] = update.scheduler.state_dict()
    if update.scaler:
        state["scaler"] = update.scaler.state_dict()
    if update.rule.ema:
        state["ema"] = update.rule.ema.state_dict()
    if update.swa:
        state["swa"] = update.swa.state_dict()
    return state


def put_state(fit: Fit, state: Mapping[str, Any]) -> None:
    """Go on from `training_state`."""
    update = fit.update
    fit.step = state["step"]
    fit.evaluation_due = state["evaluation_due"]
    fit.ledger.load(state["ledger"])
    fit.unknown_callbacks = fit.callbacks.load(state["callbacks"])
    if window := state.get("window"):
        update.load_sums(window["batches"], window["weight"], window["sums"])
    if "scheduler" in state:
        update.load_schedule(state["scheduler"])
    for name, part in (("scaler", update.scaler), ("ema", update.rule.ema), ("swa", update.swa)):
        if part is not None and name in state:
            part.load_state_dict(state[name])
    checkpoint.set_rng_state(state["rng"])


def _file(path: Path) -> Path:
    return path / CHECKPOINT if path.is_dir() else path


def _data(fit: Fit) -> dict[str, object]:
    """What the order of the data depends on."""
    training = fit.config.training
    return {"seed": training.seed, "shuffle": training.shuffle, "samples": fit.loader.samples if fit.loader else 0}
