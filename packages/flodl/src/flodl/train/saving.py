"""A training's checkpoints: all that the next step depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flodl import checkpoint
from flodl.checkpoint.save import FILE_SUFFIXES
from flodl.checkpoint.snapshot import take, write_folder
from flodl.data import Position
from flodl.errors import ConfigError
from flodl.train.average import Average
from flodl.train.metrics import merged
from flodl.train.resuming import CHECKPOINT, CHECKPOINTS, about, locate, program_of, run_of, written_by

if TYPE_CHECKING:
    from flodl.train.fit import Fit

__all__ = ["CHECKPOINT", "CHECKPOINTS", "Saver", "read_checkpoint", "write_checkpoint", "written_by"]


class Saver(checkpoint.Series):
    """The checkpoints of one training, in the folder `checkpoints` of its run; `Series` says how they are written."""

    def save_fit(self, fit: Fit, metrics: Mapping[str, float], *, explicit: bool = False) -> Path | None:
        """Copy all of `fit` and have it written. `metrics`: the newest of each, for `keep_best`.

        Returns where it will be; None for a periodic one that was left out because an explicit one waits to be written.
        """
        info = {**_about(fit), "program": program_of(fit.config)}
        return self.save(step=fit.step, metrics=metrics, info=info, explicit=explicit, **_content(fit))


def write_checkpoint(path: str | os.PathLike[str], fit: Fit) -> Path:
    """Write model, optimizer, position and everything else that training goes on from, at once."""
    path = Path(path)
    if path.suffix in FILE_SUFFIXES:
        return checkpoint.save(path, step=fit.step, **_content(fit))
    return write_folder(path, take(step=fit.step, info=_about(fit), **_content(fit)))


def read_checkpoint(path: Path, fit: Fit) -> Path | None:
    """Put the checkpoint at `path`, or the newest one of a run's folder, into the training.

    Returns the run's folder if it is in one. Everything is compared before anything is changed. Raises `CheckpointError`
    when it does not fit, `ConfigError` when the data would come in another order.
    """
    file = locate(path)
    _check_data(file, _data(fit))
    loaded = checkpoint.load(file, model=fit.trainer.model, optimizer=fit.trainer.optimizer)
    fit.position = Position(**(loaded.position or {}))
    put_state(fit, loaded.extra)
    return run_of(file)


def _content(fit: Fit) -> dict[str, Any]:
    trainer = fit.trainer
    position = asdict(fit.position)
    return {"model": trainer.model, "optimizer": trainer.optimizer, "position": position, "extra": training_state(fit)}


def _about(fit: Fit) -> dict[str, Any]:
    return {"trainer": fit.trainer.number, "data": _data(fit)}


def training_state(fit: Fit) -> dict[str, Any]:
    """Plain values and tensors: what is neither the model's nor the optimizer's own state."""
    update = fit.update
    state: dict[str, Any] = {
        "step": fit.step,
        **_about(fit),
        "record": fit.keeper.mark,
        "recipe": fit.keeper.recipe,
        "evaluation_due": fit.evaluations.due,
        "ledger": fit.ledger.state(),
        # Evaluations that follow the last update may be made once more: then from the same state.
        **(fit.evaluations.before or fit.passing()),
    }
    if fit.column:
        state["column"] = fit.column.state()
    elif fit.pool:
        state["column"] = {
            "pool": [list(r) for r in fit.pool],
            "position": fit.stream_position(),
            "ranks": 1,
            "others": [],
        }
    if fit.loader and (place := fit.loader.state_dict()):
        state["loader"] = place
    if update.batches:
        state["window"] = {
            "of": update.rule.accumulate,
            "batches": update.batches,
            "weight": float(update.weight),
            "sums": update.sums(),
        }
    if update.scheduler:
        state["scheduler"] = update.scheduler.state_dict()
    state["schedule"] = update.schedule
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
    fit.keeper.compare_recipe(state["recipe"])
    fit.evaluations.due = state["evaluation_due"]
    for group, kept in zip(fit.trainer.optimizer.param_groups, state["rates"], strict=True):
        for name, rate in kept.items():
            group[name] = group[name].fill_(rate) if isinstance(group.get(name), Tensor) else rate
    fit.step, fit.keeper.mark = state["step"], state["record"]
    fit.ledger.load(state["ledger"])
    _put_place(fit, state.get("column"))
    fit.evaluations.load(state["evaluations"])
    fit.keeper.unknown_callbacks = fit.callbacks.load(state["callbacks"])
    if window := state.get("window"):
        if window["of"] != update.rule.accumulate:
            was, now = window["of"], update.rule.accumulate
            raise ConfigError(
                f"the checkpoint is inside an update of {was} batches, this run has accumulate {now}: set it back to "
                f"{was}, or resume from a checkpoint at the end of an update"
            )
        update.load_sums(window["batches"], window["weight"], window["sums"])
    if fit.loader and "loader" in state:
        fit.loader.load_state_dict(state["loader"])
    if state["schedule"] != update.schedule:
        fit.notes.append(f"the checkpoint's schedule is {state['schedule']}, this run's is {update.schedule}")
        update.start_schedule_at(fit.step)
    elif "scheduler" in state:
        update.load_schedule(state["scheduler"])
    for name, part in (("scaler", update.scaler), ("ema", update.rule.ema), ("swa", update.swa)):
        if part is not None and name in state:
            part.load_state_dict(state[name])
        elif isinstance(part, Average):
            part.restart()
            fit.notes.append(f"the checkpoint has no {name}: the average begins with the weights in it")
        elif part is None and name in state:
            fit.notes.append(f"the checkpoint has an {name}, which this run has not: it is dropped")
    checkpoint.set_rng_state(state["rng"])


def _put_place(fit: Fit, column: Mapping[str, Any] | None) -> None:
    """Go on in the data where one device or several had left it."""
    if fit.column and column:
        fit.column.load(column)
    elif fit.column and fit.loader and fit.loader.samples:
        fit.column.go_on(fit.position.epoch * fit.loader.samples + fit.position.sample, [])
    elif column:
        fit.pool = [(a, b) for a, b in column["pool"]]
        if column["others"]:
            fit.ledger.meter.load(merged([own["meter"] for own in column["others"]]))


def _data(fit: Fit) -> dict[str, Any]:
    """What the order of the data depends on."""
    return fit.loader.identity() if fit.loader else {"seed": fit.config.training.seed}


def _check_data(file: Path, data: Mapping[str, Any]) -> None:
    was = about(file)["data"]
    for what, now in data.items():
        if what in was and was[what] != now:
            raise ConfigError(
                f"{file} was written with {what} {was[what]}, this run has {now}: the order of the data would differ. "
                f"Set {what} back to {was[what]}, or begin a new run from its weights with fl.checkpoint.load."
            )
