"""Whether what is installed has code for a GPU, and what to do where it has none."""

from __future__ import annotations

from typing import NamedTuple

from flodl_cli.machine.architectures import Architecture, covers
from flodl_cli.machine.readings import Gpu

__all__ = ["Code", "Coverage", "coverage"]


class Code(NamedTuple):
    """For which GPUs there is code: `made_with` is None for a CPU build; `targets` are those of ROCm."""

    made_with: str | None  # "CUDA 12.6"
    architectures: tuple[Architecture, ...] = ()
    targets: tuple[str, ...] = ()


class Coverage(NamedTuple):
    """`covered` is None where nobody can tell; `reason` completes `torch ...`."""

    covered: bool | None
    reason: str


def coverage(code: Code, gpu: Gpu) -> Coverage:
    """Whether a GPU can run a build's code."""
    if code.made_with is None:
        return Coverage(False, "is a CPU build")
    if gpu.vendor == "amd":
        if not code.targets:
            return Coverage(False, f"is made for {code.made_with}, not for ROCm")
        fits = gpu.target in code.targets
        return Coverage(fits, f"has {'' if fits else 'no '}code for {gpu.target}")
    if code.targets:
        return Coverage(False, f"is made for {code.made_with}, not for CUDA")
    if gpu.capability is None:
        return Coverage(None, "may have code for it: its capability is not known")
    by = covers(code.architectures, gpu.capability)
    if by is None:
        has = " ".join(dict.fromkeys(str(a) for a in code.architectures)) or "none"
        return Coverage(False, f"has no code for it ({code.made_with}: {has})")
    return Coverage(True, f"has code for it ({code.made_with}: {by})")
