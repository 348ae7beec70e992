"""The builds of torch that exist, from builds.json: edit that file for a new release, nothing else."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flodl_cli.machine.architectures import Architecture, Capability, parse_capability, parse_list

__all__ = ["Build", "builds", "cuda_of_driver", "minimum_driver", "releases", "toolkits_for", "version_key"]


class Build(NamedTuple):
    """One build: torch's version, its tag (`cu130`), the CUDA it is made with, and the GPUs it has code for."""

    version: str
    tag: str
    cuda: str
    architectures: tuple[Architecture, ...]


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("builds.json").read_text(encoding="utf-8"))
    return table


def version_key(version: str) -> tuple[int, ...]:
    """`580.65.06` as numbers, for comparing; what follows `+` or is no number does not count."""
    numbers = version.partition("+")[0].split(".")
    return tuple(int(n) for n in numbers if n.isdigit())


def releases() -> tuple[str, ...]:
    """The versions of torch in the table, the newest first."""
    return tuple(r["version"] for r in _table()["releases"])


def builds(version: str | None = None) -> tuple[Build, ...]:
    """The CUDA builds for Linux x86-64 and Windows, of one release (`2.13` or `2.13.0`) or of all, the newest first."""
    wanted = version_key(version or "")
    return tuple(
        Build(r["version"], tag, f"{tag[2:-1]}.{tag[-1]}", parse_list(_table()["architectures"][name]))
        for r in _table()["releases"]
        if version is None or version_key(r["version"])[: len(wanted)] == wanted
        for tag, name in r["builds"].items()
    )


def minimum_driver(cuda: str, system: str = "Linux") -> str:
    """The oldest driver that runs programs made with this CUDA (`12.6`)."""
    driver: str = _table()["minimum_driver"][cuda.partition(".")[0]][system]
    return driver


def cuda_of_driver(driver: str) -> str | None:
    """The newest CUDA that a driver is known to know; None for one older than the table."""
    known = {int(number): cuda for number, cuda in _table()["cuda_of_driver"].items()}
    major = version_key(driver)[:1]
    return next((known[n] for n in sorted(known, reverse=True) if major and n <= major[0]), None)


def toolkits_for(devices: list[Capability]) -> tuple[str, ...]:
    """The CUDA toolkits whose compiler makes code for all these GPUs, the newest first."""
    found = []
    for cuda, (low, high) in _table()["toolkits"].items():
        lowest, highest = parse_capability(low), parse_capability(high)
        if lowest and highest and all(lowest <= d <= highest for d in devices):
            found.append(cuda)
    return tuple(found)
