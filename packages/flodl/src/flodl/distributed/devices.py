"""Which devices train: names such as "cuda:0,2" or "cpu:4", and what a machine has."""

from __future__ import annotations

import os
import re

import torch

from flodl.distributed.environment import Place
from flodl.errors import ConfigError

__all__ = ["device_of_rank", "kind_of", "parse_devices"]


def parse_devices(text: str) -> list[torch.device]:
    """One device for each process. "auto": all GPUs, else the CPU once; "cpu:4": the CPU for four processes.

    Raises ConfigError that says what there is.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "auto":
        return [torch.device("cuda", n) for n in range(count)] or [torch.device("cpu")]
    matched = re.fullmatch(r"(cpu|cuda)(?::(\d+(?:,\d+)*))?", text)
    if not matched:
        raise ConfigError(f'ddp.devices is {text!r}; it is "auto", "cuda", "cuda:0,2" or "cpu:4"')
    kind, numbers = matched[1], [int(n) for n in matched[2].split(",")] if matched[2] else None
    if kind == "cpu":
        if numbers is not None and (len(numbers) > 1 or not numbers[0]):
            raise ConfigError(f'ddp.devices is {text!r}; "cpu:4" is the CPU for four processes')
        return [torch.device("cpu")] * (numbers[0] if numbers else 1)
    chosen = list(range(count)) if numbers is None else numbers
    missing = [n for n in chosen if n >= count]
    if missing or not chosen:
        have = ", ".join(f"{n}: {torch.cuda.get_device_name(n)}" for n in range(count)) or "no GPU"
        raise ConfigError(f"ddp.devices is {text!r}; this machine has {have}")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"ddp.devices is {text!r}: a GPU is named twice")
    return [torch.device("cuda", n) for n in chosen]


def device_of_rank(text: str) -> torch.device:
    """The device of this process, by its number on its machine."""
    local = Place.found().local
    devices = parse_devices(text)
    if text == "auto" and devices[0].type == "cpu":
        return devices[0]
    if local >= len(devices):
        raise ConfigError(f"this is process {local} of its machine, but ddp.devices {text!r} are {len(devices)}")
    return devices[local]


def kind_of(device: torch.device) -> str:
    """What makes devices equal or unequal before anything was measured."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def threads_of(ranks: int) -> int:
    """Of each of several processes that share this machine's CPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // ranks)
