"""Releases as a user writes them, and the tch (Rust) that fits each. What was installed is read from its files instead."""

from __future__ import annotations

from typing import NamedTuple

from flodl_cli.errors import CliError, nearest
from flodl_cli.machine.builds import builds, releases

__all__ = ["TCH", "Tch", "check_version", "cuda_tag", "number", "tch_for"]


class Tch(NamedTuple):
    """A release of tch (Rust), and the torch that it is made for: its build script refuses every other one."""

    version: str
    torch: str

    def fits(self, version: str) -> bool:
        return version.partition("+")[0] == self.torch


# the newest last; from the change log of tch
TCH = (
    Tch("0.13", "2.0.0"),
    Tch("0.14", "2.1.0"),
    Tch("0.15", "2.2.0"),
    Tch("0.16", "2.3.0"),
    Tch("0.17", "2.4.0"),
    Tch("0.18", "2.5.1"),
    Tch("0.19", "2.6.0"),
    Tch("0.20", "2.7.0"),
    Tch("0.21", "2.8.0"),
    Tch("0.22", "2.9.0"),
    Tch("0.23", "2.10.0"),
    Tch("0.24", "2.11.0"),
    Tch("0.25", "2.12.0"),
    Tch("0.26", "2.13.0"),
)


def number(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0)."""
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdigit())


def check_version(version: str) -> str:
    """A whole release such as 2.13.0."""
    parts = version.split(".")
    if len(parts) != 3 or not all(p.isdigit() for p in parts):
        raise CliError(f"--version {version}: a release is written like {releases()[0]}.{nearest(version, releases())}")
    return version


def cuda_tag(version: str, cuda: str) -> str:
    """`cu128` for 12.8 (or cu128); a CUDA that a known release is not built for is refused with those that it is."""
    cuda = f"{cuda[2:-1]}.{cuda[-1]}" if cuda.startswith("cu") and cuda[2:].isdigit() else cuda
    major, dot, minor = cuda.partition(".")
    if not (dot and major.isdigit() and minor.isdigit()):
        raise CliError(f"--cuda {cuda}: a version such as 12.8")
    known = [build.cuda for build in builds(version)]
    if known and cuda not in known:
        others = [build.version for build in builds() if build.cuda == cuda]
        elsewhere = f"; {cuda} is built for torch {', '.join(others)}: --version {others[0]}" if others else ""
        raise CliError(f"--cuda {cuda}: torch {version} is built for CUDA {', '.join(known)}{elsewhere}")
    return f"cu{major}{minor}"


def tch_for(version: str) -> Tch | None:
    """The tch that is made for a torch, or for another patch of the same release; None where none is known."""
    return next((t for t in TCH if number(t.torch)[:2] == number(version)[:2]), None)
