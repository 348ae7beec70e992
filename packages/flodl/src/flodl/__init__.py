"""floDl: describe a model as a flow, train it with the loop you know, watch it live.

Names are imported at their first use, so that what needs no torch (`flodl.monitor`, `flodl.errors`) never loads it.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

try:  # before the program goes elsewhere: on several devices it is started there once more for each
    _started_in: str | None = os.getcwd()
except FileNotFoundError:
    _started_in = None

if TYPE_CHECKING:
    from flodl import checkpoint, data, distributed, hf, monitor
    from flodl.distributed import Ddp, DdpConfig
    from flodl.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DistributedError,
        FlodlError,
        FlowError,
        StepError,
        StoreError,
        TrainingError,
    )
    from flodl.graph import (
        ArgmaxSelector,
        FixedSelector,
        FlowBuilder,
        Graph,
        LearnedHalt,
        SigmoidRouter,
        SoftmaxRouter,
        StateAdd,
        ThresholdHalt,
        emit,
        flow,
    )
    from flodl.train import (
        Callback,
        Control,
        EarlyStopping,
        Ema,
        FitState,
        OutputConfig,
        Plateau,
        Profiler,
        Progress,
        RunConfig,
        Statistics,
        Swa,
        TrainedState,
        Trainer,
        TrainHandle,
        TrainingConfig,
        find_batch_size,
        find_learning_rate,
        loggers,
        make_schedule,
        update_batch_norm,
    )

_MODULES = ("checkpoint", "data", "distributed", "hf", "monitor")
_NAMES = {
    "distributed": ("Ddp", "DdpConfig"),
    "errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "DistributedError",
        "FlodlError",
        "FlowError",
        "StepError",
        "StoreError",
        "TrainingError",
    ),
    "graph": (
        "ArgmaxSelector",
        "FixedSelector",
        "FlowBuilder",
        "Graph",
        "LearnedHalt",
        "SigmoidRouter",
        "SoftmaxRouter",
        "StateAdd",
        "ThresholdHalt",
        "emit",
        "flow",
    ),
    "train": (
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
        "TrainingConfig",
        "find_batch_size",
        "find_learning_rate",
        "loggers",
        "make_schedule",
        "update_batch_norm",
    ),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "ArgmaxSelector",
    "Callback",
    "CheckpointError",
    "ConfigError",
    "Control",
    "DataError",
    "Ddp",
    "DdpConfig",
    "DistributedError",
    "EarlyStopping",
    "Ema",
    "FitState",
    "FixedSelector",
    "FlodlError",
    "FlowBuilder",
    "FlowError",
    "Graph",
    "LearnedHalt",
    "OutputConfig",
    "Plateau",
    "Profiler",
    "Progress",
    "RunConfig",
    "SigmoidRouter",
    "SoftmaxRouter",
    "StateAdd",
    "Statistics",
    "StepError",
    "StoreError",
    "Swa",
    "ThresholdHalt",
    "TrainHandle",
    "TrainedState",
    "Trainer",
    "TrainingConfig",
    "TrainingError",
    "__version__",
    "checkpoint",
    "data",
    "distributed",
    "emit",
    "find_batch_size",
    "find_learning_rate",
    "flow",
    "hf",
    "loggers",
    "make_schedule",
    "monitor",
    "update_batch_norm",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"flodl.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"flodl.{_HOME[name]}"), name)
        globals()[name] = value  # found at once the next time
        return value
    from flodl.errors import nearest

    raise AttributeError(f"module 'flodl' has no attribute {name!r}.{nearest(name, __all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
