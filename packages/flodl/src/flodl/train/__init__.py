"""Train a model: the loop you own (`Trainer.setup`) or the framework's (`Trainer.builder`)."""

from flodl.train.builder import TrainerBuilder
from flodl.train.callbacks import Callback, Control, FitState
from flodl.train.config import OutputConfig, RunConfig, TrainingConfig
from flodl.train.handle import Progress, TrainedState, TrainHandle
from flodl.train.trainer import Trainer

__all__ = [
    "Callback",
    "Control",
    "FitState",
    "OutputConfig",
    "Progress",
    "RunConfig",
    "TrainHandle",
    "TrainedState",
    "Trainer",
    "TrainerBuilder",
    "TrainingConfig",
]
