"""Which GPUs this machine has. The environment variable CUDA_VISIBLE_DEVICES hides none of them here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from flodl_cli.machine.asking import answer, python_command
from flodl_cli.machine.readings import (
    SMI_FIELDS,
    SMI_FIELDS_OLD,
    Gpu,
    Reading,
    parse_kfd,
    parse_nvml,
    parse_override,
    parse_proc_version,
    parse_smi,
)
from flodl_cli.project import find_program

__all__ = ["Detected", "Gpu", "detect"]

TIMEOUT_S = 10.0
_WSL_FOLDER = "usr/lib/wsl/lib"  # Windows puts its nvidia-smi there, and not every shell has it on PATH


class Detected(NamedTuple):
    """The GPUs and the NVIDIA driver (`580.65.06`, its newest CUDA `13.0`); `source` says who told."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    source: str = "nothing found"
    notes: tuple[str, ...] = ()


def detect(
    environ: Mapping[str, str] = os.environ,
    *,
    root: Path = Path("/"),
    nvml: Callable[[Mapping[str, str]], Reading] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Detected:
    """Asks, in this order: FLODL_GPUS, NVML, the loaded kernel module, nvidia-smi, and for AMD the kernel's KFD topology.

    It never fails because of a machine in a bad state: what went wrong is in `notes`. `root` is where /sys and /proc are.
    """
    if "FLODL_GPUS" in environ:
        told = parse_override(environ["FLODL_GPUS"], environ.get("FLODL_GPU_DRIVER"))
        return _detected(told, told.driver, "FLODL_GPUS", ())
    first = (nvml or (lambda env: _ask_nvml(env, timeout_s)))(environ)
    driver = first.driver or _kernel_driver(root)
    if first.gpus:
        return _detected(first, driver, "NVML", first.notes)
    second = _ask_smi(environ, root, timeout_s)
    notes = tuple(dict.fromkeys((*first.notes, *second.notes)))
    driver = driver or second.driver
    if second.gpus:
        return _detected(second, driver, "nvidia-smi", notes)
    third = parse_kfd(_kfd_nodes(root))
    if third.gpus:
        return _detected(third, driver, "KFD", notes)
    return _detected(first, driver, "the kernel module" if driver else "nothing found", notes)


def _detected(reading: Reading, driver: str | None, source: str, notes: tuple[str, ...]) -> Detected:
    from flodl_cli.machine.builds import cuda_of_driver

    return Detected(reading.gpus, driver, reading.cuda or (cuda_of_driver(driver) if driver else None), source, notes)


def _ask_nvml(environ: Mapping[str, str], timeout_s: float) -> Reading:
    said = answer(python_command(sys.executable, Path(__file__).with_name("nvml.py")), environ, timeout_s)
    if said is None:
        return Reading(notes=(f"NVML did not answer within {timeout_s:g} s: the driver hangs; restart the machine",))
    status, text = said
    if status:
        last = text.strip().splitlines()[-1:] or [f"exit status {status}"]
        return Reading(notes=(f"NVML could not be asked: {last[0]}",))
    return parse_nvml(text)


def _kernel_driver(root: Path) -> str | None:
    """The version of the loaded kernel module; WSL2 has neither file."""
    version = _text(root / "sys/module/nvidia/version").strip()
    return version or parse_proc_version(_text(root / "proc/driver/nvidia/version"))


def _ask_smi(environ: Mapping[str, str], root: Path, timeout_s: float) -> Reading:
    program = find_program("nvidia-smi", root, environ)
    if program is None:
        in_wsl = root / _WSL_FOLDER / "nvidia-smi"
        if not os.access(in_wsl, os.X_OK):
            return Reading()
        program = str(in_wsl)
    reading = Reading()
    for fields in (SMI_FIELDS, SMI_FIELDS_OLD):
        query = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        said = answer(query, environ, timeout_s)
        if said is None:
            return Reading(notes=(f"nvidia-smi did not answer within {timeout_s:g} s: restart the machine",))
        status, text = said
        reading = parse_smi(text, fields)
        if "not a valid field" not in text:
            if status and not reading.notes:
                return reading._replace(notes=(f"nvidia-smi failed with status {status}",))
            return reading
    return reading


def _kfd_nodes(root: Path) -> Iterator[tuple[int, str, list[str]]]:
    for folder in (root / "sys/class/kfd/kfd/topology/nodes").glob("*"):
        if folder.name.isdigit():
            banks = [_text(bank) for bank in folder.glob("mem_banks/*/properties")]
            yield int(folder.name), _text(folder / "properties"), banks


def _text(path: Path) -> str:
    """A file of the kernel, empty where it is missing or not for this user."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
