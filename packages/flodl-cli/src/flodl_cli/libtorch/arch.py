"""`.arch`: what a variant is, as `name=value` lines that a shell or a build script reads as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["ARCH_FILE", "Arch", "read", "render", "tag_of"]

ARCH_FILE = ".arch"


class Arch(NamedTuple):
    """What was read from the files of a variant when it was installed."""

    version: str  # "2.13.0+cpu"
    cuda: str | None  # "12.8"; None for a CPU build
    architectures: tuple[str, ...]  # machine code "8.6", code for any newer device "12.0+PTX"
    abi: int  # _GLIBCXX_USE_CXX11_ABI
    source: str  # "wheel", "zip", "link" or "build"
    sha256: str = ""  # of the archive; empty where there was none
    prefix: str = "torch"  # the folder with lib, include and share, from the variant's folder on; absolute for a link

    @property
    def tag(self) -> str:
        """`cpu`, or `cu128`."""
        return tag_of(self.cuda)

    @property
    def release(self) -> str:
        """The version without what stands behind `+`."""
        return self.version.partition("+")[0]


def tag_of(cuda: str | None) -> str:
    """`cu128` for "12.8", `cpu` for None."""
    return "cu" + cuda.replace(".", "") if cuda else "cpu"


def render(arch: Arch) -> str:
    return "".join(f"{name}={value}\n" for name, value in _fields(arch))


def _fields(arch: Arch) -> Iterator[tuple[str, str]]:
    yield "version", arch.version
    yield "cuda", arch.cuda or "none"
    yield "architectures", " ".join(arch.architectures)
    yield "abi", str(arch.abi)
    yield "source", arch.source
    yield "sha256", arch.sha256
    yield "prefix", arch.prefix


def read(folder: Path) -> Arch | None:
    """The metadata of a variant's folder; None where there is none or it is not complete: then nothing is installed."""
    try:
        text = (folder / ARCH_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        return Arch(
            version=values["version"],
            cuda=None if values["cuda"] == "none" else values["cuda"],
            architectures=tuple(values["architectures"].split()),
            abi=int(values["abi"]),
            source=values["source"],
            sha256=values["sha256"],
            prefix=values["prefix"],
        )
    except (KeyError, ValueError):
        return None
