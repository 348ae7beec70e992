"""From a configuration to the ranks that train it: who is there, who is started, and by which policy they march."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

from flodl.distributed import Group, device_of_rank, inside_a_rank, kind_of, launch_siblings, parse_devices
from flodl.errors import ConfigError
from flodl.train.config import RunConfig

if TYPE_CHECKING:
    from flodl.train.column import Column
    from flodl.train.fit import Fit

__all__ = ["column_of", "join_ranks"]

_group: Group | None = None  # a process is one rank, whatever it trains one after the other


def join_ranks(config: RunConfig) -> Group | None:
    """The ranks that this process is one of; None where one device trains alone.

    On a machine with several devices, outside of a launcher, this starts a process for each and does not return.
    """
    global _group
    if not inside_a_rank():
        devices = parse_devices(config.ddp.devices) if config.training.device == "auto" else []
        if len(devices) < 2:
            return None
        launch_siblings(devices)
    if _group is None:
        ddp = config.ddp
        device = device_of_rank(ddp.devices)
        _group = Group.connect(backend=ddp.backend, device=device, timeout=ddp.timeout, min_ranks=ddp.min_ranks)
        atexit.register(_group.leave)
    return _group if _group.size > 1 or _group.joined else None


def column_of(fit: Fit, group: Group) -> Column:
    """How `fit` trains with the others, by policy."""
    from flodl.train.cadence import Cadence
    from flodl.train.lockstep import Lockstep

    ddp = fit.trainer.config.ddp
    speeds = ddp.simulate_speed
    if speeds is not None and len(speeds) != group.size:
        raise ConfigError(f"ddp.simulate_speed has {len(speeds)} speeds for {group.size} devices")
    if ddp.partition_ratios is not None and len(ddp.partition_ratios) != group.size:
        raise ConfigError(f"ddp.partition_ratios has {len(ddp.partition_ratios)} shares for {group.size} devices")
    policy = ddp.policy
    if policy == "auto":
        kinds = set(group.gather((kind_of(group.device), speeds and speeds[group.rank])))
        unequal = len(kinds) > 1
        policy = "cadence" if unequal or ddp.hosts_every > 1 else "sync"
    if policy == "sync":
        return Lockstep(fit, group)
    return Cadence(fit, group, overlapped=policy == "async")
