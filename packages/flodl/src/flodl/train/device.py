"""Which device a model is trained on, and the line that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from flodl.data import Loader
from flodl.errors import ConfigError

if TYPE_CHECKING:
    from flodl.train.trainer import Trainer

__all__ = ["choose_device", "summary"]


def choose_device(name: str, model: nn.Module) -> torch.device:
    """The device called `name`; "auto" is CUDA when there is one and the model is on the CPU, else where the model is."""
    if name == "auto":
        own = next((p.device for p in model.parameters()), torch.device("cpu"))
        return torch.device("cuda") if own.type == "cpu" and torch.cuda.is_available() else own
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        raise ConfigError(f"training.device is {name!r}: {str(error).splitlines()[0]}") from None
    return device


def summary(trainer: Trainer, loader: Loader | None, place: str | None, resumed: bool) -> str:
    """One line: device, data, model, where the run is written."""
    parts = [f"training on {_describe(trainer.device)}"]
    if loader and loader.samples is None:
        parts.append(f"batches of {loader.batch_size}, as many as the data gives")
    elif loader and loader.samples is not None:
        short = loader.samples % loader.batch_size
        last = f" (the last of {short})" if short else ""
        parts.append(f"{loader.samples:,} samples in {len(loader):,} batches of {loader.batch_size}{last}")
    parts.append(f"{sum(p.numel() for p in trainer.model.parameters() if p.requires_grad):,} parameters")
    if resumed:
        parts.append(f"resumed at epoch {trainer.position.epoch + 1}, step {trainer.global_step}")
    if place:
        parts.append(place)
    return " · ".join(parts)


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        count = torch.cuda.device_count()
        return torch.cuda.get_device_name(device) + (f" (1 of {count} GPUs)" if count > 1 else "")
    if device.type == "cpu":
        count = torch.get_num_threads()
        return f"CPU ({count} thread{'s' if count > 1 else ''})"
    return str(device)
