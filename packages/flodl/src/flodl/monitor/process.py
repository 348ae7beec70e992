"""Which process writes a run, and whether it is still alive."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["ProcessIdentity", "is_gone", "this_process"]


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process, told apart from a later one of the same pid by its start time, and from one elsewhere by its space."""

    host: str
    pid: int
    started: float
    """Seconds since 1970."""
    space: str
    """Where the pid means something: host, boot and pid namespace (two containers can share a host name)."""


def this_process() -> ProcessIdentity:
    return ProcessIdentity(
        host=socket.gethostname(), pid=os.getpid(), started=psutil.Process().create_time(), space=_process_space()
    )


def is_gone(process: ProcessIdentity, *, clock_trusted: bool) -> bool:
    """True when the process certainly ended; False when it lives or cannot be judged from here.

    Args:
        process: whom to look for.
        clock_trusted: take a different start time for another process. After the system clock was set, the start time
            that the system reports for one and the same process differs, so a fresh heartbeat is worth more.
    """
    if process.space != _process_space():
        return False
    try:
        found = psutil.Process(process.pid)
        if found.status() == psutil.STATUS_ZOMBIE:
            return True
        return clock_trusted and abs(found.create_time() - process.started) > 2.0
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _process_space() -> str:
    parts = [socket.gethostname()]
    if sys.platform == "linux":
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)
