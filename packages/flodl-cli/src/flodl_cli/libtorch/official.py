"""The zip archives of PyTorch's server."""

from __future__ import annotations

import os
import platform
import sys

from flodl_cli.errors import CliError
from flodl_cli.libtorch.releases import number

__all__ = ["BASE_VARIABLE", "place_of", "zip_url"]

BASE_VARIABLE = "FLODL_LIBTORCH_URL"
_BASE = "https://download.pytorch.org/libtorch"


def zip_url(
    version: str, tag: str, base: str | None = None, system: str = sys.platform, machine: str = platform.machine()
) -> str:
    """Where the archive for a system lies. Before 2.8 the plain name on Linux is the one with the old std::string."""
    path = _path(number(version), version, tag, system, machine.lower())
    return f"{(base or os.environ.get(BASE_VARIABLE) or _BASE).rstrip('/')}/{path}"


def _path(release: tuple[int, ...], version: str, tag: str, system: str, machine: str) -> str:
    arm = machine in ("arm64", "aarch64")
    if system == "linux" and machine in ("x86_64", "amd64"):
        abi = "" if release >= (2, 8) else "cxx11-abi-"
        return f"{tag}/libtorch-{abi}shared-with-deps-{version}%2B{tag}.zip"
    if system == "darwin" and tag != "cpu":
        raise CliError("there is no CUDA on macOS: --cpu")
    if system == "darwin" and arm and release >= (2, 2):
        return f"cpu/libtorch-macos-arm64-{version}.zip"
    if system == "darwin" and not arm:
        if release > (2, 2, 2):
            raise CliError(f"torch {version} is not built for Intel Macs: the last is --version 2.2.2")
        return f"cpu/libtorch-macos-x86_64-{version}.zip" if release >= (2, 2) else f"cpu/libtorch-macos-{version}.zip"
    raise CliError(f"PyTorch's server has no zip of {version} for {system} on {machine}: --source wheel has one")


def place_of(member: str) -> str | None:
    """Where a member of a zip belongs: `libtorch/lib/x` -> `torch/lib/x`, so that every variant looks alike."""
    head, _, rest = member.partition("/")
    return f"torch/{rest}" if head == "libtorch" and rest else None
