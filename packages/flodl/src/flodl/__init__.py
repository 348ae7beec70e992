"""floDl: describe a model as a flow, train it with the loop you know, watch it live."""

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

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "FlodlError",
    "FlowBuilder",
    "FlowError",
    "Graph",
    "StateAdd",
    "StepError",
    "StoreError",
    "TrainingError",
    "__version__",
    "flow",
]
