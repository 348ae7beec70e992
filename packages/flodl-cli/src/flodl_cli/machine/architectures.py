"""Compute capabilities of GPUs and the architectures that a build has code for, compared as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from flodl_cli.errors import CliError

__all__ = ["Architecture", "Capability", "covers", "dotted", "parse_capability", "parse_list"]

Capability = tuple[int, int]  # (8, 6) is compute capability 8.6


class Architecture(NamedTuple):
    """Code in a build: machine code (`sm_86`), or PTX (`compute_90`), which the driver compiles for newer GPUs."""

    capability: Capability
    ptx: bool = False
    only: str = ""  # "a": for this very capability alone; "f": for its family, which is what machine code is for anyway

    def __str__(self) -> str:
        return f"{dotted(self.capability)}{self.only}{'+PTX' if self.ptx else ''}"

    def runs_on(self, device: Capability) -> bool:
        """Machine code X.y runs on X.z with z >= y, PTX on everything newer."""
        if self.only == "a":
            return device == self.capability
        return device >= self.capability and (self.ptx or device[0] == self.capability[0])


def dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def parse_capability(text: str) -> Capability | None:
    """`8.6`, or None for anything else (`[N/A]`, an empty field)."""
    found = re.fullmatch(r"(\d+)\.(\d+)", text.strip())
    return (int(found[1]), int(found[2])) if found else None


def parse_list(text: str | Iterable[str]) -> tuple[Architecture, ...]:
    """Reads `6.1;12.0+PTX` (TORCH_CUDA_ARCH_LIST; spaces and commas separate, too) or `sm_75 compute_120` (torch's own list)."""
    words = re.split(r"[;,\s]+", text) if isinstance(text, str) else list(text)
    found: list[Architecture] = []
    for word in filter(None, words):
        if match := re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", word, re.IGNORECASE):
            device, only = (int(match[1]), int(match[2])), match[3].lower()
            found.append(Architecture(device, only=only))
            if match[4]:
                found.append(Architecture(device, ptx=True))
        elif match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", word):
            found.append(Architecture((int(match[2]), int(match[3])), match[1] == "compute", match[4]))
        else:
            raise CliError(f"'{word}' is no architecture: write them as in 6.1;12.0 or 9.0+PTX")
    return tuple(dict.fromkeys(found))


def covers(build: Iterable[Architecture], device: Capability) -> Architecture | None:
    """The best code of a build for a GPU: machine code before PTX, the newest of each; None where nothing runs."""
    fitting = [a for a in build if a.runs_on(device)]
    return max(fitting, key=lambda a: (not a.ptx, a.capability), default=None)
