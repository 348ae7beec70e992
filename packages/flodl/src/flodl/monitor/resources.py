"""What the process and its machine use now: CPU, memory (within the container's limit), GPUs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

__all__ = ["GpuSample", "ResourceSample", "ResourceSampler"]


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU that this process may use."""

    gpu: int
    """The driver's number of the device."""
    name: str
    utilisation_percent: float | None
    """None where the driver does not tell it (some virtual and partitioned GPUs)."""
    vram_used_bytes: int
    """By all processes together."""
    vram_total_bytes: int


@dataclass(frozen=True, kw_only=True)
class ResourceSample:
    """What a process and its machine used at one moment."""

    time: float
    """Seconds since 1970."""
    cpu_percent: float
    """Of this process since the sample before; 100 is one core."""
    machine_cpu_percent: float
    """Of the whole machine since the sample before; 100 is all cores."""
    rss_bytes: int
    ram_used_bytes: int
    ram_total_bytes: int
    """The machine's, or the container's limit where that is lower."""
    gpus: tuple[GpuSample, ...]
    """Empty where there is none (or no driver): never zeros."""


class ResourceSampler:
    """Samples this process. Close it to release the GPU driver."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._memory = _memory_limit()
        self._gpus = _Gpus()
        self._process.cpu_percent()  # the first call only sets the starting point
        psutil.cpu_percent()

    def sample(self) -> ResourceSample:
        """What is used now, processors since the last call."""
        used, total = self.ram()
        return ResourceSample(
            time=time.time(),
            cpu_percent=self._process.cpu_percent(),
            machine_cpu_percent=psutil.cpu_percent(),
            rss_bytes=self.rss_bytes(),
            ram_used_bytes=used,
            ram_total_bytes=total,
            gpus=self.gpus(),
        )

    def rss_bytes(self) -> int:
        """Resident memory of this process."""
        return int(self._process.memory_info().rss)

    def ram(self) -> tuple[int, int]:
        """Bytes used and bytes there are: of the container where it has a limit, else of the machine."""
        machine = psutil.virtual_memory()
        if self._memory is None or self._memory.limit_bytes >= machine.total:
            return machine.total - machine.available, machine.total
        return self._memory.used_bytes(), self._memory.limit_bytes

    def gpus(self) -> tuple[GpuSample, ...]:
        """Each GPU that this process may use."""
        return self._gpus.sample()

    def close(self) -> None:
        """Release the GPU driver."""
        self._gpus.close()


@dataclass(frozen=True, kw_only=True)
class _MemoryLimit:
    """A control group (version 1 or 2) with a memory limit."""

    folder: Path
    limit_bytes: int
    usage_file: str

    def used_bytes(self) -> int:
        """Without file cache that the kernel gives back on demand."""
        used = int((self.folder / self.usage_file).read_text())
        for line in (self.folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                used -= int(value)
        return max(used, 0)


def _memory_limit() -> _MemoryLimit | None:
    """The tightest limit that a control group of this process or one of its parents sets."""
    if sys.platform != "linux":
        return None
    limits = []
    for folder in _cgroup_folders():
        for limit_file, usage_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            try:
                text = (folder / limit_file).read_text().strip()
                if text != "max":
                    limit = _MemoryLimit(folder=folder, limit_bytes=int(text), usage_file=usage_file)
                    limit.used_bytes()  # what cannot be read now will not be readable later
                    limits.append(limit)
            except OSError:  # no such controller here: not a limit
                continue
    return min(limits, key=lambda limit: limit.limit_bytes, default=None)


def _cgroup_folders() -> Iterator[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
        group = root / name.lstrip("/")
        # In a container the name can be the host's while only the container's own group is mounted, at the root.
        yield from (folder for folder in (group, *group.parents) if folder == root or root in folder.parents)


class _Gpus:
    """The GPUs that this process may use, through NVML; none where there is no driver."""

    def __init__(self) -> None:
        import pynvml  # takes milliseconds: not at import of the package

        self._nvml: Any = pynvml
        self._open = False
        self._handles: list[tuple[int, str, Any]] = []
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:  # no driver on this machine
            return
        self._open = True
        try:
            for gpu in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
                if _is_visible(gpu, _text(pynvml.nvmlDeviceGetUUID(handle))):
                    self._handles.append((gpu, _text(pynvml.nvmlDeviceGetName(handle)), handle))
        except pynvml.NVMLError:  # a driver that answers no questions about its devices: as good as none
            self._handles = []

    def sample(self) -> tuple[GpuSample, ...]:
        samples = []
        for gpu, name, handle in self._handles:
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._nvml.NVMLError:  # fell off the bus, or its memory is not the driver's to tell
                continue
            try:
                utilisation = float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except self._nvml.NVMLError:
                utilisation = None
            samples.append(
                GpuSample(
                    gpu=gpu,
                    name=name,
                    utilisation_percent=utilisation,
                    vram_used_bytes=int(memory.used),
                    vram_total_bytes=int(memory.total),
                )
            )
        return tuple(samples)

    def close(self) -> None:
        self._handles = []
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()


def _is_visible(gpu: int, uuid: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES (numbers, or beginnings of UUIDs) lets this process use the device."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or "MIG-" in visible:  # parts of a device have no number here: show the whole
        return True
    return any(part == str(gpu) or (part.startswith("GPU-") and uuid.startswith(part)) for part in visible.split(","))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
