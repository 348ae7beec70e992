"""The CUDA toolkit that a build uses: what its compiler says of itself."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from flodl_cli.errors import CliError
from flodl_cli.libtorch.errors import BuildError
from flodl_cli.machine.architectures import Architecture, dotted
from flodl_cli.machine.asking import answer
from flodl_cli.machine.builds import toolkits_for

__all__ = ["IMAGES", "check_architectures", "nvcc_version"]

# NVIDIA's containers with compiler and cuDNN, by toolkit
IMAGES = {
    "13.0": "nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04",
    "12.9": "nvidia/cuda:12.9.1-cudnn-devel-ubuntu24.04",
    "12.8": "nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04",
    "12.6": "nvidia/cuda:12.6.3-cudnn-devel-ubuntu24.04",
}


def nvcc_version(said: str) -> str:
    """`13.0`, from what `nvcc --version` prints."""
    found = re.search(r"release (\d+\.\d+)", said)
    if not found:
        raise BuildError(f"nvcc --version does not tell its version: {said.strip()[-300:]}")
    return found[1]


def check_architectures(wanted: Sequence[Architecture], nvcc: str) -> None:
    """Refuses what this compiler makes no code for, before hours have gone into it."""
    said = answer([nvcc, "--list-gpu-arch"], os.environ, timeout_s=60.0)
    able = set(re.findall(r"compute_(\d+)", said[1])) if said and said[0] == 0 else set()
    if not able:  # an old one, which has no such option: nvcc itself will tell
        return
    unable = [a for a in wanted if f"{a.capability[0]}{a.capability[1]}" not in able]
    if unable:
        version = answer([nvcc, "--version"], os.environ, timeout_s=60.0)
        names = ", ".join(dict.fromkeys(dotted(a.capability) for a in unable))
        others = toolkits_for([a.capability for a in wanted])
        remedy = (
            f"; CUDA {', '.join(others)} can: install it, or --docker"
            if others
            else "; no toolkit makes code for all of them"
        )
        raise CliError(f"{nvcc} (CUDA {nvcc_version(version[1] if version else '')}) makes no code for {names}{remedy}")
