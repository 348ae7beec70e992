"""Which build of torch (and of libtorch, which is cut from it) runs on a set of GPUs, or why none does and what helps."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import NamedTuple

from flodl_cli.errors import CliError, nearest
from flodl_cli.machine.architectures import Architecture, Capability, covers, dotted
from flodl_cli.machine.builds import (
    Build,
    builds,
    cuda_of_driver,
    minimum_driver,
    releases,
    toolkits_for,
    version_key,
)
from flodl_cli.machine.readings import Gpu

__all__ = ["LIBTORCH", "TORCH", "Refusal", "Variant", "Words", "choose"]


class Variant(NamedTuple):
    """A build that runs on all GPUs: `tag` cu126 or cpu, `cuda` 12.6 or None. `reason` is one sentence."""

    version: str
    tag: str
    cuda: str | None
    architectures: tuple[Architecture, ...]
    reason: str


class Refusal(NamedTuple):
    """No build runs on all GPUs: why, and what can be done, the best first."""

    reason: str
    remedies: tuple[str, ...]


class Words(NamedTuple):
    """How to get what a remedy recommends."""

    build: str
    download: str
    adopt: str
    cpu: str


LIBTORCH = Words(
    'build it for them (with CUDA {cuda}): fdl libtorch build --archs "{archs}"',
    "fdl libtorch download --cuda {cuda} --version {version}",
    ", then adopt it: fdl libtorch link",
    "train on the CPU: fdl libtorch download --cpu",
)
TORCH = Words(
    "build torch from source with CUDA {cuda} and TORCH_CUDA_ARCH_LIST='{archs}'",
    "fdl setup --cuda {cuda} --version {version}",
    "",
    "train on the CPU: fdl setup --cpu",
)


def choose(
    gpus: Sequence[Gpu],
    driver: str | None,
    *,
    release: str | None = None,
    system: str | None = None,
    machine: str | None = None,
    words: Words = LIBTORCH,
) -> Variant | Refusal:
    """The newest release with a build for all `gpus` under `driver`; only `release` (2.13) when that is named.

    `words` are the commands that remedies name: those for libtorch, or for the torch of Python (TORCH).

    Of several builds of a release: one with machine code for each GPU before one that relies on PTX, then the newest CUDA
    that the driver itself knows, else the oldest (CUDA runs on older drivers of its major version).
    """
    system, machine = system or platform.system(), machine or platform.machine()
    newest = _release(release)
    if system == "Darwin" or not gpus:
        reason = "macOS builds have no CUDA" if system == "Darwin" else "no GPU was found"
        return Variant(newest, "cpu", None, (), f"{reason}: the CPU build")
    if any(gpu.vendor != "nvidia" for gpu in gpus):
        return _not_nvidia([g for g in gpus if g.vendor != "nvidia"], words)
    if machine.lower() not in ("x86_64", "amd64"):
        return Refusal(
            f"the builds for {system} on {machine} are not known here",
            (f"install torch with pip{words.adopt}", words.cpu),
        )
    known = [gpu.capability for gpu in gpus if gpu.capability is not None]
    if len(known) < len(gpus):
        unknown = ", ".join(g.name for g in gpus if g.capability is None)
        enough = minimum_driver("12.0", system)
        old = driver is not None and version_key(driver) < version_key(enough)
        return Refusal(
            f"the compute capability of {unknown} is not known (driver {driver or 'unknown'})",
            (
                *([f"update the driver to {enough} or newer, which tells it"] if old else []),
                "say it yourself, for example FLODL_GPUS='6.1 NVIDIA GeForce GTX 1060'",
                words.cpu,
            ),
        )
    devices = sorted(set(known))
    covering = [b for b in builds(release) if all(covers(b.architectures, d) for d in devices)]
    for version in dict.fromkeys(b.version for b in covering):
        running = [b for b in covering if b.version == version and _driver_suffices(driver, b, system)]
        if running:
            return _variant(_best(running, devices, driver), gpus, driver, _newer(covering, version))
    if covering:
        return _driver_too_old(covering, driver, system, words)
    parts = [[g for g in gpus if g.capability == d] for d in reversed(devices)] if len(devices) > 1 else []
    alone = [choose(part, driver, release=release, system=system, machine=machine, words=words) for part in parts]
    return _uncovered(gpus, devices, release, [v for v in alone if isinstance(v, Variant)], words)


def _release(named: str | None) -> str:
    if named is None:
        return releases()[0]
    for version in releases():
        if version_key(version)[:2] == version_key(named)[:2]:
            if len(version_key(named)) > 2 and version_key(named) != version_key(version):
                raise CliError(f"torch {named} is not in the table of builds; {version} is")
            return version
    short = [v.rpartition(".")[0] for v in releases()]
    raise CliError(f"torch {named} is not in the table of builds.{nearest(named, short)}")


def _driver_suffices(driver: str | None, build: Build, system: str) -> bool:
    """A driver that nobody could tell is taken for new enough: it runs the GPU."""
    return driver is None or version_key(driver) >= version_key(minimum_driver(build.cuda, system))


def _best(running: Sequence[Build], devices: Sequence[Capability], driver: str | None) -> Build:
    newest_known = version_key(cuda_of_driver(driver) or "") if driver else ()

    def rank(build: Build) -> tuple[bool, bool, tuple[int, ...]]:
        native = all((code := covers(build.architectures, d)) is not None and not code.ptx for d in devices)
        cuda = version_key(build.cuda)
        in_driver = cuda <= newest_known
        return native, in_driver, cuda if in_driver else tuple(-n for n in cuda)

    return max(running, key=rank)


def _newer(covering: Sequence[Build], version: str) -> str | None:
    """A newer release that also has code for the GPUs: only the driver stands in its way."""
    return covering[0].version if covering[0].version != version else None


def _variant(build: Build, gpus: Sequence[Gpu], driver: str | None, newer: str | None) -> Variant:
    reason = f"{build.tag} of torch {build.version} runs on {_titles(gpus)}"
    if driver:
        reason += f" with driver {driver}"
    if newer:
        reason += f"; torch {newer} needs a newer driver there"
    return Variant(build.version, build.tag, build.cuda, build.architectures, reason)


def _not_nvidia(amd: Sequence[Gpu], words: Words) -> Refusal:
    return Refusal(
        f"{_titles(amd)}: ROCm builds are not in the table",
        (f"install torch for ROCm with pip{words.adopt}", words.cpu),
    )


def _driver_too_old(covering: Sequence[Build], driver: str | None, system: str, words: Words) -> Refusal:
    oldest = min((minimum_driver(b.cuda, system) for b in covering), key=version_key)
    needing = next(b for b in covering if minimum_driver(b.cuda, system) == oldest)
    return Refusal(
        f"driver {driver} is too old: {needing.tag} of torch {needing.version} needs {oldest} or newer",
        (f"update the NVIDIA driver to {oldest} or newer", words.cpu),
    )


def _uncovered(
    gpus: Sequence[Gpu], devices: list[Capability], release: str | None, parts: list[Variant], words: Words
) -> Refusal:
    """No build has code for all: from source where a toolkit can, else for some of the GPUs, else on the CPU."""
    which = f"no build of torch {release}" if release else "no build of torch in the table"
    remedies = []
    if toolkits := toolkits_for(devices):
        archs = ";".join(dotted(d) for d in devices)
        remedies.append(words.build.format(cuda=toolkits[0], archs=archs))
    for part in parts:
        running = [g for g in gpus if g.capability and covers(part.architectures, g.capability)]
        indices = ",".join(str(g.number) for g in running if g.number is not None)
        remedies.append(
            f"use only {_titles(running)}: {words.download.format(cuda=part.cuda, version=part.version)}"
            + (f", then CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={indices}" if indices else "")
        )
    return Refusal(f"{which} has code for {_titles(gpus)}", (*dict.fromkeys(remedies), words.cpu))


def _titles(gpus: Sequence[Gpu]) -> str:
    counted: dict[str, int] = {}
    for gpu in gpus:
        counted[gpu.title] = counted.get(gpu.title, 0) + 1
    return " and ".join(f"{n} x {title}" if n > 1 else title for title, n in counted.items())
