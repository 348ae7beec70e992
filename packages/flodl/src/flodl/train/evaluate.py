"""Means over a dataset, with the model in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


def evaluate(
    model: nn.Module, planned: Planned, stop: Callable[[], bool], *, part: int = 0, of: int = 1
) -> Meter | None:
    """Sample-weighted sums over the dataset, without gradients; None when `stop`, asked after each batch, ended it.

    part, of: only every `of`-th batch, from number `part` on, where several devices share the work. Every module is put
    back into the mode (training or not) that it was in, also after an error.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    meter = Meter()
    try:
        with torch.no_grad():
            for batch, samples in _shared(planned.loader, part, of):
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
    return meter


def _shared(loader: Loader, part: int, of: int) -> Iterator[tuple[Any, int]]:
    if of == 1:
        yield from loader.counted(0)
    elif (order := loader.order(0)) is None:  # an iterable is read by everybody
        for number, counted in enumerate(loader.counted(0)):
            if number % of == part:
                yield counted
    else:
        size = loader.batch_size
        starts = range(part * size, len(order), of * size)
        yield from loader.given([(order[at : at + size], 0, at) for at in starts])
