"""Reading what drivers, kernels and tools say about GPUs. Pure functions: text in, facts out; what is not known is None."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flodl_cli.errors import CliError
from flodl_cli.machine.architectures import Capability, dotted, parse_capability

__all__ = [
    "SMI_FIELDS",
    "SMI_FIELDS_OLD",
    "Gpu",
    "Reading",
    "parse_kfd",
    "parse_nvml",
    "parse_override",
    "parse_proc_version",
    "parse_smi",
]

SMI_FIELDS = ("index", "name", "compute_cap", "memory.total", "driver_version")
SMI_FIELDS_OLD = ("index", "name", "memory.total", "driver_version")  # drivers up to 470 do not know compute_cap


class Gpu(NamedTuple):
    """One GPU. `number` is the driver's own index; None marks what nobody could tell."""

    name: str
    number: int | None = None
    vendor: str = "nvidia"  # or "amd"
    capability: Capability | None = None  # NVIDIA
    target: str | None = None  # AMD, such as gfx1100
    memory_mib: int | None = None
    mig: bool = False  # split into instances, which have the capability of the whole

    @property
    def title(self) -> str:
        """`NVIDIA H100 (9.0)`."""
        known = self.target or (dotted(self.capability) if self.capability else "capability unknown")
        return f"{self.name} ({known})"


class Reading(NamedTuple):
    """What one source says. `notes` are sentences for the user about what went wrong there."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None  # the newest CUDA that the driver knows
    notes: tuple[str, ...] = ()


def parse_override(gpus: str, driver: str | None = None) -> Reading:
    """FLODL_GPUS: `6.1 NVIDIA GeForce GTX 1060; 12.0 RTX 5060 Ti`, `gfx1100 Radeon`, `none` or nothing for no GPU."""
    found: list[Gpu] = []
    words = [] if gpus.strip().lower() == "none" else [w.strip() for w in gpus.split(";") if w.strip()]
    for index, word in enumerate(words):
        kind, _, name = word.partition(" ")
        name = name.strip() or f"GPU {index}"
        if re.fullmatch(r"gfx[0-9a-f]+", kind):
            found.append(Gpu(name, index, "amd", target=kind))
        elif (capability := parse_capability(kind)) is not None or kind == "?":
            found.append(Gpu(name, index, capability=capability))
        else:
            raise CliError(f"FLODL_GPUS: '{word}' must be a capability and a name, as in '8.6 NVIDIA RTX A2000'")
    return Reading(tuple(found), (driver or "").strip() or None)


def parse_nvml(text: str) -> Reading:
    """What nvml.py printed."""
    try:
        said = json.loads(text)
    except ValueError:
        return Reading(notes=("NVML: its answer could not be read",))
    if error := said.get("error"):
        # Without the library there is no driver: that is no news.
        return Reading(notes=() if "not found" in error.lower() else (f"NVML: {_explained(error)}",))
    gpus, notes = [], []
    for entry in said["gpus"]:
        if entry.get("error"):
            notes.append(f"GPU {entry['index']} does not answer: {_explained(entry['error'])}")
            continue
        capability = entry["capability"]
        gpus.append(
            Gpu(
                entry["name"] or "NVIDIA GPU",
                entry["index"],
                capability=(capability[0], capability[1]) if capability else None,
                memory_mib=entry["memory"] // 2**20 if entry["memory"] else None,
                mig=entry["mig"],
            )
        )
    cuda = said["cuda"]
    return Reading(
        tuple(gpus), said["driver"] or None, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None, tuple(notes)
    )


def parse_smi(text: str, fields: tuple[str, ...] = SMI_FIELDS) -> Reading:
    """The rows of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; lines that are no rows become notes.

    A name may hold commas, so the other fields are counted from both ends.
    """
    gpus, notes, driver = [], [], None
    after = len(fields) - 2
    for line in filter(None, (line.strip() for line in text.splitlines())):
        cells = [c.strip() for c in line.split(",")]
        if len(cells) < len(fields) or not re.fullmatch(r"\d+|\[.*\]", cells[0]):
            notes.append(f"nvidia-smi: {_explained(line)}")
            continue
        row = dict(zip(fields, [cells[0], ", ".join(cells[1:-after]), *cells[-after:]], strict=True))
        known = {name: None if re.fullmatch(r"\[.*\]|N/A|", cell) else cell for name, cell in row.items()}
        driver = driver or known["driver_version"]
        memory = re.match(r"\d+", known["memory.total"] or "")
        gpus.append(
            Gpu(
                known["name"] or "NVIDIA GPU",
                int(known["index"]) if known["index"] else None,
                capability=parse_capability(known.get("compute_cap") or ""),
                memory_mib=int(memory[0]) if memory else None,
            )
        )
    return Reading(tuple(gpus), driver, notes=tuple(dict.fromkeys(notes)))


def parse_proc_version(text: str) -> str | None:
    """The driver's version in /proc/driver/nvidia/version, of the open or the closed kernel module."""
    found = re.search(r"NVRM version:.*?Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", text)
    return found[1] if found else None


def parse_kfd(nodes: Iterable[tuple[int, str, Iterable[str]]]) -> Reading:
    """The kernel's topology of AMD GPUs: of each node its number, its `properties`, and those of its memory banks."""
    gpus: list[Gpu] = []
    for _, text, banks in sorted(nodes, key=lambda node: node[0]):
        values = _properties(text)
        version = values.get("gfx_target_version", 0)
        if not values.get("simd_count") or not version:  # a CPU
            continue
        target = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        memory = sum(b.get("size_in_bytes", 0) for b in map(_properties, banks) if b.get("heap_type") in (1, 2))
        gpus.append(
            Gpu(f"AMD GPU {target}", len(gpus), "amd", target=target, memory_mib=memory // 2**20 if memory else None)
        )
    return Reading(tuple(gpus))


def _properties(text: str) -> Mapping[str, int]:
    """Lines of a name and a number; others are skipped."""
    pairs = (line.split() for line in text.splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}


def _explained(message: str) -> str:
    """A message of the driver, with what to do about it where that is known."""
    message = message.rstrip(".")
    for sign, remedy in (
        ("version mismatch", "the driver was updated while the old one is loaded: restart the machine"),
        ("communicate with the NVIDIA driver", "install or load it: modprobe nvidia; reinstall it after a new kernel"),
        ("Insufficient Permissions", "this user may not use the GPU: check the group of /dev/nvidia*"),
        ("is lost", "it has fallen off the bus: restart the machine, check power and cooling"),
    ):  # fmt: skip
        if sign.lower() in message.lower():
            return f"{message} ({remedy})"
    return message
