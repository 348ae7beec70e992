"""floDl: describe a model as a flow, train it with the loop you know, watch it live."""

from flodl import checkpoint, data, monitor
from flodl.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    FlodlError,
    FlowError,
    StepError,
    StoreError,
    TrainingError,
)
from flodl.graph import FlowBuilder, Graph, StateAdd, flow
from flodl.train import (
    OutputConfig,
    Progress,
    RunConfig,
    TrainedState,
    Trainer,
    TrainHandle,
    TrainingConfig,
)

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "FlodlError",
    "FlowBuilder",
    "FlowError",
    "Graph",
    "OutputConfig",
    "Progress",
    "RunConfig",
    "StateAdd",
    "StepError",
    "StoreError",
    "TrainHandle",
    "TrainedState",
    "Trainer",
    "TrainingConfig",
    "TrainingError",
    "__version__",
    "checkpoint",
    "data",
    "flow",
    "monitor",
]
