"""What reading a run store gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from flodl.monitor.process import ProcessIdentity
from flodl.monitor.resources import ResourceSample

__all__ = [
    "AuditRow",
    "Counts",
    "EpochRow",
    "EventRow",
    "PointRow",
    "ResourceRow",
    "RunInfo",
    "RunState",
    "Setting",
]

RunState = Literal["running", "finished", "stopped", "failed", "stale"]
"""How a run stands; "stale" is one whose process is gone without having said so."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A run as a whole. Times are seconds since 1970."""

    run_id: str
    name: str | None
    state: RunState
    """"stale": it was running and its process is gone, or silent for 15 s."""
    error: str | None
    started: float
    heartbeat: float
    ended: float | None
    process: ProcessIdentity
    command: str
    git_commit: str | None
    git_dirty: bool | None
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    seeds: Mapping[str, int]
    total_epochs: int | None
    total_steps: int | None
    last_epoch: int | None
    last_step: int | None
    last_id: int
    """The highest id that any row of points, epochs, events, resources or artifacts has had."""


class PointRow(NamedTuple):
    """One measured value. A tuple, because a run has a million of them."""

    id: int
    name: str
    step: int
    epoch: int | None
    time: float
    rank: int
    value: float


class Counts(NamedTuple):
    """How many values a series has, and how many of them are not finite."""

    total: int
    nan: int
    inf: int
    """Of either sign."""


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """The results of an epoch (`number`, from 0) that took `seconds` and ended at `time`, in seconds since 1970."""

    id: int
    number: int
    step: int | None
    """The last step of it."""
    time: float
    seconds: float | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """Something that happened on a rank: at `start`, in seconds since 1970, for `seconds` (None: an instant)."""

    id: int
    time: float
    step: int | None
    rank: int
    kind: str
    start: float
    seconds: float | None
    """None: an instant."""
    data: Mapping[str, Any]


class ResourceRow(NamedTuple):
    """What the process and its machine used at one moment."""

    id: int
    sample: ResourceSample


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of the configuration."""

    value: Any
    origin: str | None


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """A control request and what became of it."""

    id: int
    time: float
    action: str
    origin: str
    taken: float | None
    outcome: str | None
