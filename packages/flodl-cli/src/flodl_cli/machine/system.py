"""The machine around the GPUs."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

__all__ = ["System", "this_system"]


class System(NamedTuple):
    """`container` and `wsl` are where missing GPUs are most often explained."""

    name: str  # "Debian GNU/Linux 12 (bookworm)"
    kernel: str
    machine: str
    cpus: int | None
    memory_mib: int | None
    libc: str | None
    container: bool
    wsl: bool


def this_system() -> System:
    libc, version = platform.libc_ver()
    return System(
        name=_name(),
        kernel=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        memory_mib=_memory_mib(),
        libc=f"{libc} {version}" if libc else None,
        container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        wsl="microsoft" in platform.release().lower(),
    )


def _name() -> str:
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _memory_mib() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (OSError, ValueError):
        return None
