"""What shared libraries say of themselves: for which machine they are, what they need, which GPUs their code is for."""

from __future__ import annotations

import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flodl_cli.libtorch.errors import MachineError

__all__ = ["Missing", "architectures", "check_machine", "cxx11_abi", "is_library", "machine_of", "missing_libraries"]

# e_machine of ELF, Machine of PE, cputype of Mach-O
_ELF = {3: "x86", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv64", 21: "ppc64"}
_PE = {0x14C: "x86", 0x8664: "x86-64", 0xAA64: "aarch64"}
_MACH = {0x01000007: "x86-64", 0x0100000C: "aarch64"}
_NAMES = {"amd64": "x86-64", "x86_64": "x86-64", "arm64": "aarch64", "i686": "x86", "armv7l": "arm", "ppc64le": "ppc64"}
_LIBRARY = re.compile(r"\.(so(\.[0-9]+)*|dylib|dll|pyd)$")


def is_library(name: str) -> bool:
    """True for the name of a shared library, of whichever system."""
    return _LIBRARY.search(name) is not None


def machine_of(head: bytes) -> str | None:
    """`Linux x86-64` and the like, from the first bytes of a library (1024 are enough); None when it is none."""
    if head[:4] == b"\x7fELF" and len(head) >= 20:
        order = "<" if head[5] == 1 else ">"
        (number,) = struct.unpack_from(f"{order}H", head, 18)
        return f"Linux {_ELF.get(number, f'(ELF machine {number})')}"
    if head[:4] == b"\xcf\xfa\xed\xfe" and len(head) >= 8:
        (number,) = struct.unpack_from("<I", head, 4)
        return f"macOS {_MACH.get(number, f'(Mach-O type {number})')}"
    if head[:2] == b"MZ" and len(head) >= 64:
        (at,) = struct.unpack_from("<I", head, 60)
        if head[at : at + 4] == b"PE\0\0" and len(head) >= at + 6:
            (number,) = struct.unpack_from("<H", head, at + 4)
            return f"Windows {_PE.get(number, f'(PE machine {number})')}"
        return "Windows"
    return None


def this_machine() -> str:
    """This machine in the same words."""
    system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, "Linux")
    name = platform.machine().lower()
    return f"{system} {_NAMES.get(name, name)}"


def check_machine(name: str, head: bytes) -> None:
    """Raises MachineError when a library is for another machine."""
    found, here = machine_of(head), this_machine()
    if found is not None and found != here:
        raise MachineError(f"{name} is for {found}, this machine is {here}: nothing was installed")


class Missing(NamedTuple):
    """A shared library that is nowhere to be found."""

    name: str
    needed_by: str

    @property
    def remedy(self) -> str:
        if self.name.startswith(("libcuda.so", "libnvidia-ml.so")):
            return "it comes with the NVIDIA driver"
        if self.name.startswith("libgomp.so"):
            return "package libgomp1 (Debian) or libgomp (Fedora)"
        if self.name.startswith(("libcu", "libnv", "libnccl")):
            return "it comes with the CUDA toolkit, or with the CUDA wheel of torch"
        return "install the package that has it"


def missing_libraries(lib: Path) -> list[Missing]:
    """What the linker would not find for a program that uses torch; only of ELF libraries.

    Follows what each library needs (DT_NEEDED) through its own RUNPATH or RPATH, LD_LIBRARY_PATH and the system's folders.
    """
    waiting = [lib / name for name in ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so")]
    waiting = [path for path in waiting if path.is_file()]
    system = _system_libraries() if waiting else {}
    named = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    seen = {path.name: path for path in waiting}
    missing = []
    while waiting:
        path = waiting.pop()
        needed, run_paths = _dynamic(path)
        for name in needed:
            if name in seen:
                continue
            places = [folder / name for folder in (*run_paths, *named)]
            found = next((p for p in places if p.is_file()), system.get(name))
            if found is None:
                missing.append(Missing(name, path.name))
            else:
                waiting.append(found)
            seen[name] = found or path
    return missing


def _dynamic(path: Path) -> tuple[list[str], list[Path]]:
    """What an ELF library needs and where it says to look."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile

    needed, run_paths = [], []
    try:
        with path.open("rb") as file:
            segments = [s for s in ELFFile(file).iter_segments() if isinstance(s, DynamicSegment)]
            for segment in segments:
                tag: Any
                for tag in segment.iter_tags():
                    if tag.entry.d_tag == "DT_NEEDED":
                        needed.append(tag.needed)
                    elif tag.entry.d_tag in ("DT_RUNPATH", "DT_RPATH"):
                        run_paths += (tag.runpath if tag.entry.d_tag == "DT_RUNPATH" else tag.rpath).split(":")
    except ELFError as error:
        raise MachineError(f"{path} is no ELF library: {error}") from None
    origin = str(path.parent)
    return needed, [Path(p.replace("$ORIGIN", origin).replace("${ORIGIN}", origin)) for p in run_paths if p]


def _system_libraries() -> dict[str, Path]:
    """The libraries that the linker knows, by name: its cache, then the folders that it looks into anyhow."""
    found: dict[str, Path] = {}
    multiarch = f"{platform.machine()}-linux-gnu"
    for folder in (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"):
        if os.path.isdir(folder):
            found.update({name: Path(folder, name) for name in os.listdir(folder) if ".so" in name})
    ldconfig = next((p for p in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.access(p, os.X_OK)), None)
    if ldconfig is not None:
        cache = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
        for name, path in re.findall(r"^\s+(\S+) .*=> (/\S+)$", cache, re.MULTILINE):
            found[name] = Path(path)
    return found


def cxx11_abi(lib: Path) -> int:
    """_GLIBCXX_USE_CXX11_ABI: 1 when libc10's own functions take the new std::string; what is not ELF has only the new one."""
    path = lib / "libc10.so"
    if not path.is_file():
        return 1
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        if not isinstance(table, SymbolTableSection):
            return 1
        names = (s.name for s in table.iter_symbols() if s.entry.st_shndx != "SHN_UNDEF")
        return int(any("c10" in name and "__cxx11" in name for name in names))


def architectures(lib: Path) -> tuple[str, ...]:
    """The GPUs that the code in torch's CUDA libraries is for.

    "8.6" is machine code, "12.0+PTX" that and PTX for newer ones, "compute_90" PTX alone.
    """
    code: set[tuple[int, int]] = set()
    portable: set[tuple[int, int]] = set()
    for path in sorted(lib.glob("libtorch_cuda*.so")):
        for kind, major, minor in _fat_binaries(path):
            (portable if kind == _PTX else code).add((major, minor))
    names = [f"{major}.{minor}{'+PTX' if (major, minor) in portable else ''}" for major, minor in sorted(code)]
    return (*names, *(f"compute_{major}{minor}" for major, minor in sorted(portable - code)))


_PTX, _CUBIN = 1, 2
_FAT_MAGIC = 0xBA55ED50


def _fat_binaries(path: Path) -> Iterator[tuple[int, int, int]]:
    """(kind, major, minor) of every piece of device code in an ELF library's section .nv_fatbin.

    A fat binary is a header (magic, version, size of header, size of content) and entries, each with a header of its own:
    kind at 0, its size at 4, the size of its content at 8, the architecture (such as 86) at 28. Only headers are read.
    """
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        elf = ELFFile(file)
        for section in elf.iter_sections():
            if section.name not in (".nv_fatbin", "__nv_relfatbin"):
                continue
            at, end = section["sh_offset"], section["sh_offset"] + section["sh_size"]
            while at + 16 <= end:
                file.seek(at)
                magic, _, header, size = struct.unpack("<IHHQ", file.read(16))
                if magic != _FAT_MAGIC:
                    at += 8  # padding between two fat binaries
                    continue
                entry, stop = at + header, min(at + header + size, end)
                while entry + 32 <= stop:
                    file.seek(entry)
                    kind, _, own, content, _, _, _, sm = struct.unpack("<HHIQIIII", file.read(32))
                    if kind in (_PTX, _CUBIN) and 10 <= sm < 1000:
                        yield kind, sm // 10, sm % 10
                    if own + content == 0:
                        break
                    entry += own + content
                at = stop
