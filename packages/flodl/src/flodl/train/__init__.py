"""Train a model: the loop you own (`Trainer.setup`) or the framework's (`Trainer.builder`)."""

from flodl.train import loggers
from flodl.train.average import Ema, Swa, update_batch_norm
from flodl.train.batch_size import find_batch_size
from flodl.train.builder import TrainerBuilder
from flodl.train.callbacks import Callback, Control, FitState
from flodl.train.config import OutputConfig, RunConfig, TrainingConfig
from flodl.train.handle import Progress, TrainedState, TrainHandle
from flodl.train.learning_rate import find_learning_rate
from flodl.train.profiling import Profiler
from flodl.train.schedule import make_schedule
from flodl.train.statistics import Statistics
from flodl.train.stopping import EarlyStopping, Plateau
from flodl.train.trainer import Trainer

__all__ = [
    "Callback",
    "Control",
    "EarlyStopping",
    "Ema",
    "FitState",
    "OutputConfig",
    "Plateau",
    "Profiler",
    "Progress",
    "RunConfig",
    "Statistics",
    "Swa",
    "TrainHandle",
    "TrainedState",
    "Trainer",
    "TrainerBuilder",
    "TrainingConfig",
    "find_batch_size",
    "find_learning_rate",
    "loggers",
    "make_schedule",
    "update_batch_norm",
]
