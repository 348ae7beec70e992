"""Where a run happens: code, versions, hardware, command line."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from flodl.monitor.resources import ResourceSampler

__all__ = ["Environment", "describe_environment"]

_GIT_SECONDS = 2.0  # `git status` of a huge or remote working tree must not hold up a training


@dataclass(frozen=True, kw_only=True)
class Environment:
    command: str
    git_commit: str | None
    git_dirty: bool | None
    versions: Mapping[str, str]
    hardware: Mapping[str, object]


def describe_environment(sampler: ResourceSampler) -> Environment:
    """Reads it all from the system; what cannot be told (no git, no such package) is left out."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no") if commit else None
    return Environment(
        command=shlex.join(sys.orig_argv),
        git_commit=commit or None,
        git_dirty=None if status is None else bool(status),
        versions=_versions(),
        hardware=_hardware(sampler),
    )


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # never gets in the way of a git of the user
        )
    except (OSError, subprocess.TimeoutExpired):  # no git, or no answer: the run is recorded without a commit
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, "platform": platform.platform()}
    for package in ("flodl", "torch", "numpy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _hardware(sampler: ResourceSampler) -> dict[str, object]:
    return {
        "cpu": _cpu_name(),
        "logical_cores": psutil.cpu_count(),
        "ram_total_bytes": sampler.ram()[1],
        "gpus": [{"gpu": g.gpu, "name": g.name, "vram_bytes": g.vram_total_bytes} for g in sampler.gpus()],
    }


def _cpu_name() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
