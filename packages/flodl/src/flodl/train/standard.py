"""The callbacks that settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.train.callbacks import Callback
from flodl.train.config import OutputConfig
from flodl.train.loggers import CSV, TensorBoard
from flodl.train.profiling import Profiler
from flodl.train.statistics import Statistics
from flodl.train.stopping import EarlyStopping

if TYPE_CHECKING:
    from flodl.train.trainer import Trainer

__all__ = ["standard_callbacks"]


def standard_callbacks(trainer: Trainer, output: OutputConfig) -> list[Callback]:
    """In the order in which they are called, after the user's own."""
    training = trainer.config.training
    callbacks: list[Callback] = []
    if output.statistics:
        callbacks.append(Statistics(trainer.record))
    if output.profile:
        callbacks.append(Profiler(output.profile))
    if output.csv:
        callbacks.append(CSV(config=trainer.config.as_dict()))
    if output.tensorboard:
        callbacks.append(TensorBoard(config=trainer.config.as_dict()))
    if training.stop_metric is not None:
        stopping = EarlyStopping(
            training.stop_metric, mode=training.stop_mode, patience=training.patience, delta=training.stop_delta
        )
        callbacks.append(stopping)
    return callbacks
