"""What the environment says of a process that is one of several: our launcher's words, torchrun's, Slurm's."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from flodl.errors import ConfigError, DistributedError

__all__ = ["JOIN", "STORE", "Place", "host_name", "inside_a_rank"]

STORE = "FLODL_STORE"  # host:port of our launcher's store
JOIN = "FLODL_JOIN"  # host:port of the store of a training to come into


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this process stands. elastic: others may come; joining: it is one of those."""

    uid: int
    ranks: int
    local: int
    host: str
    port: int
    hosts_store: bool
    elastic: bool
    joining: bool = False
    restart: int = 0

    @classmethod
    def found(cls) -> Place:
        """As the environment says. Raises ConfigError where it says too little."""
        env = os.environ
        if JOIN in env:
            host, port = _address(JOIN)
            local = int(env.get("LOCAL_RANK", "0"))
            return cls(
                uid=-1, ranks=0, local=local, host=host, port=port, hosts_store=False, elastic=True, joining=True
            )
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        if "RANK" not in env and "SLURM_PROCID" in env:
            names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        try:
            uid, ranks, local = (int(env.get(name, "0") if "LOCAL" in name else env[name]) for name in names)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"the environment names no rank: {error}; start with torchrun, or set {names[0]}"
            ) from None
        if STORE in env:
            host, port = _address(STORE)
            return cls(uid=uid, ranks=ranks, local=local, host=host, port=port, hosts_store=False, elastic=True)
        try:
            host, port = env["MASTER_ADDR"], int(env.get("MASTER_PORT", "29500"))
        except KeyError:
            raise ConfigError(
                "MASTER_ADDR is not set: it is the host of rank 0, under Slurm the first of the job"
            ) from None
        agents = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(
            uid=uid, ranks=ranks, local=local, host=host, port=port, hosts_store=uid == 0 and not agents, elastic=False,
            restart=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )  # fmt: skip

    def store(self, timeout: float) -> Any:
        """The store in which the ranks find each other."""
        try:
            store = TCPStore(
                self.host,
                self.port,
                is_master=self.hosts_store,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout),
            )
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise DistributedError(
                f"rank {self.uid} cannot reach the store at {self.host}:{self.port}: {reason}"
            ) from error
        return PrefixStore(f"flodl{self.restart}", store)


def inside_a_rank() -> bool:
    """Whether this process is one of several that a launcher, torchrun or Slurm has started."""
    env = os.environ
    if JOIN in env or STORE in env:
        return True
    ranks = env.get("WORLD_SIZE") if "RANK" in env else env.get("SLURM_NTASKS") if "SLURM_PROCID" in env else None
    return ranks is not None and ranks.isdecimal() and int(ranks) > 1


def host_name() -> str:
    """Ranks with the same one are on one machine. FLODL_HOST says it otherwise, where machines or parts of one are grouped."""
    return os.environ.get("FLODL_HOST") or socket.gethostname()


def _address(name: str) -> tuple[str, int]:
    host, _, port = os.environ[name].rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{name} is {os.environ[name]!r}; it must be host:port")
    return host, int(port)
