"""Hostile archives: each is refused by name, and nothing of it is written outside."""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flodl_cli.libtorch.errors import ArchiveError, LibtorchError, MachineError
from flodl_cli.libtorch.progress import progress
from flodl_cli.libtorch.unpack import unpack

Zipped = Callable[..., bytes]


def entry(name: str, kind: int = stat.S_IFREG, mode: int = 0o644, extra: bytes = b"") -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | mode) << 16
    info.extra = extra
    return info


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    def call(content: bytes) -> Path:
        archive = tmp_path / "in" / "a.zip"
        archive.parent.mkdir(exist_ok=True)
        archive.write_bytes(content)
        folder = tmp_path / "in" / "out"
        folder.mkdir(exist_ok=True)
        with progress("a.zip", quiet=True) as silent:
            unpack(archive, folder, lambda name: name, silent)
        return folder

    return call


HARD_LINK = struct.pack("<HHIIHH", 0x000D, 12 + 8, 0, 0, 0, 0) + b"/etc/pwd"

HOSTILE = {
    "../x": ([("../x", b"1")], "leaves its folder: '../x'"),
    "a/../../x": ([("a/../../x", b"1")], "leaves its folder"),
    "absolute": ([("/fdl-hostile/x", b"1")], "leaves its folder: '/fdl-hostile/x'"),
    "backslash": ([("..\\x", b"1")], "leaves its folder"),
    "drive": ([("C:/x", b"1")], "leaves its folder: 'C:/x'"),
    "no name": ([("/", b"")], "leaves its folder: '/'"),
    "link out": ([(entry("a", stat.S_IFLNK), b"../../x")], "a link that leaves its folder: 'a' -> '../../x'"),
    "absolute link": ([(entry("a", stat.S_IFLNK), b"/etc/passwd")], "a link that leaves its folder"),
    "endless link": ([(entry("a", stat.S_IFLNK), b"x" * 5000)], "a link with an endless target: 'a'"),
    "through a link": ([(entry("a", stat.S_IFLNK), b"b"), ("a/x", b"1")], "below 'a', which is no folder: 'a/x'"),
    "through a file": ([("a", b"1"), ("a/x", b"1")], "below 'a', which is no folder: 'a/x'"),
    "hard link": ([(entry("a", extra=HARD_LINK), b"")], "neither file, folder nor symbolic link: 'a'"),
    "device": ([(entry("a", stat.S_IFCHR), b"")], "neither file, folder nor symbolic link: 'a'"),
    "block device": ([(entry("a", stat.S_IFBLK), b"")], "neither file, folder nor symbolic link: 'a'"),
    "pipe": ([(entry("a", stat.S_IFIFO), b"")], "neither file, folder nor symbolic link: 'a'"),
    "twice": ([("a/b", b"1"), ("a//b", b"2")], "has two members 'a/b'"),
    "bomb": ([("a", b"\0" * 50_000_000)], "50.0 MB: that is no libtorch"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives(put: Any, zipped: Zipped, tmp_path: Path, kind: str) -> None:
    members, message = HOSTILE[kind]
    with pytest.raises(ArchiveError, match=r"a\.zip") as raised:
        put(zipped([("good", b"1"), *members]))
    assert message in str(raised.value)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.zip", "in", "out"]  # nothing inside either
    assert not Path("/fdl-hostile/x").exists()


def test_overlapping_members_are_a_bomb_too(put: Any, zipped: Zipped) -> None:
    content = bytearray(zipped([(f"{n:03}", b"\0" * 1_000_000) for n in range(50)]))
    first = content.find(b"PK\x01\x02")
    place = first
    while (place := content.find(b"PK\x01\x02", place + 1)) > 0:
        content[place + 42 : place + 46] = struct.pack("<I", 0)  # all at the first member's data
    with pytest.raises(ArchiveError, match="that is no libtorch"):
        put(bytes(content))


def test_a_size_that_lies(put: Any, zipped: Zipped) -> None:
    content = bytearray(zipped([("a", bytes(range(256)) * 100)]))
    place = content.find(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", 1000)
    with pytest.raises(ArchiveError, match="damaged"):
        put(bytes(content))


@pytest.mark.parametrize("content", [b"", b"<html>403</html>", b"PK\x03\x04" + b"\0" * 100])
def test_what_is_no_archive(put: Any, content: bytes) -> None:
    with pytest.raises(ArchiveError, match=r"a\.zip is damaged or no zip archive"):
        put(content)


def test_damaged_content(put: Any, zipped: Zipped) -> None:
    content = bytearray(zipped({"a": bytes(range(256)) * 50}))
    content[60] ^= 0xFF
    with pytest.raises(ArchiveError, match="damaged"):
        put(bytes(content))


def elf(machine: int, order: str = "<") -> bytes:
    return (
        b"\x7fELF"
        + bytes([2, 1 if order == "<" else 2, 1])
        + bytes(9)
        + struct.pack(f"{order}HH", 3, machine)
        + bytes(44)
    )


def pe(machine: int) -> bytes:
    return b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0" + struct.pack("<H", machine) + bytes(20)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("lib/libc10.so", elf(243), "lib/libc10.so is for Linux riscv64"),
        ("lib/libc10.so.1.2", elf(21, ">"), "is for Linux ppc64"),
        ("lib/libc10.so", elf(999), "(ELF machine 999)"),
        ("lib/libc10.dylib", struct.pack("<II", 0xFEEDFACF, 0x0100000C) + bytes(24), "is for macOS aarch64"),
        ("lib/c10.dll", pe(0x8664), "is for Windows x86-64"),
        ("lib/c10.dll", pe(0xAA64), "is for Windows aarch64"),
        ("lib/c10.dll", b"MZ" + bytes(100), "is for Windows"),
    ],
)
@pytest.mark.skipif("sys.platform != 'linux'")
def test_another_machine(put: Any, zipped: Zipped, name: str, content: bytes, said: str) -> None:
    with pytest.raises(MachineError) as raised:
        put(zipped({name: content}))
    assert said in str(raised.value)
    assert "this machine is Linux" in str(raised.value)


def test_links_and_modes_are_kept(put: Any, zipped: Zipped) -> None:
    folder = put(
        zipped(
            [
                ("lib/libx.so.1", b"1"),
                (entry("lib/libx.so", stat.S_IFLNK), b"libx.so.1"),
                (entry("include", stat.S_IFLNK), b"lib"),
                (entry("bin/run", mode=0o755), b"2"),
                (entry("bin/set", mode=0o4777), b"3"),
            ]
        )
    )
    assert (folder / "lib/libx.so").read_bytes() == b"1"
    assert (folder / "include/libx.so").is_symlink()
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (folder / "bin").iterdir()}
    assert modes == {"run": 0o755, "set": 0o755}  # no set-user-id
    assert stat.S_IMODE((folder / "lib/libx.so.1").stat().st_mode) == 0o644


def test_too_little_room(put: Any, zipped: Zipped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(LibtorchError, match="has 10 B left, 11 B are needed"):
        put(zipped({"a": b"12345678901"}))
