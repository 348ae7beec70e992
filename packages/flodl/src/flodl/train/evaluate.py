"""Means over a dataset, with the model in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from flodl.data import Loader
from flodl.errors import TrainingError
from flodl.train.metrics import Meter

__all__ = ["Metrics", "Planned", "evaluate"]

Metrics = Callable[[nn.Module, Any], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """An evaluation: what `metrics(model, batch)` gives for the batches of `loader`, recorded as `{name}_{metric}`."""

    name: str
    metrics: Metrics
    loader: Loader


def evaluate(model: nn.Module, planned: Planned, stop: Callable[[], bool]) -> dict[str, float] | None:
    """Sample-weighted means over the dataset, without gradients; None when `stop`, asked after each batch, ended it.

    Every module is put back into the mode (training or not) that it was in, also after an error.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    meter = Meter()
    try:
        with torch.no_grad():
            for batch, samples in planned.loader.counted(0):
                result = planned.metrics(model, batch)
                if not isinstance(result, Mapping):
                    raise TrainingError(
                        f"the metrics of an evaluation are a dict of numbers, not {type(result).__name__}"
                    )
                for name, value in result.items():
                    meter.add(0, samples, name, value)
                if stop():
                    return None
        meter.drain()
    finally:
        for module, training in modes:
            module.training = training
    return meter.means()
