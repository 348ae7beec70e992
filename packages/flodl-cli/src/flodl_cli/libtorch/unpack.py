"""Unpacks a zip or a wheel: every member is checked before the first one is written, and none leaves the folder."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from flodl_cli.libtorch.binaries import check_machine, is_library
from flodl_cli.libtorch.errors import ArchiveError, LibtorchError
from flodl_cli.libtorch.progress import Progress, size_text

__all__ = ["unpack"]

# A CPU wheel grows to 4 times its size; CUDA libraries, of many zeros, to about 6 times.
_MOST_GROWTH, _MOST_BYTES, _MOST_MEMBERS = 40, 64 * 10**9, 200_000
_BLOCK = 1 << 20
_LINKED = 0x000D  # extra field that can name the target of a hard link


def unpack(archive: Path, folder: Path, place: Callable[[str], str | None], progress: Progress) -> None:
    """Unpacks the members that `place` gives a path (inside `folder`) for; modes and symbolic links are kept.

    Raises:
        ArchiveError: the archive is damaged, is a bomb, or has a member that would be written outside the folder or is no
            file, folder or link. Also when that member is none of those to be unpacked.
        MachineError: a library is for another machine.
        LibtorchError: there is not enough room.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            members = _checked(archive, opened)
            chosen = [(m, target) for m in members if not m.is_dir() and (target := place(m.filename)) is not None]
            if not chosen:
                raise ArchiveError(f"{archive.name} holds no libtorch")
            size = sum(m.file_size for m, _ in chosen)
            _check_room(folder, size)
            progress.start("unpacking", 0, size)
            links = [(m, target) for m, target in chosen if _kind(m) == stat.S_IFLNK]
            for member, target in chosen:
                if _kind(member) != stat.S_IFLNK:
                    _write(opened, member, folder / target, progress)
            for member, target in links:  # last: nothing is ever written through one
                path = folder / target
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(opened.read(member).decode())
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError) as error:
        raise ArchiveError(f"{archive.name} is damaged or no zip archive: {error}") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LibtorchError(f"{folder} is full: nothing was installed") from None
        raise


def _checked(archive: Path, opened: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """All members, or the error that says which one is wrong."""
    members = opened.infolist()
    packed, unpacked = archive.stat().st_size, sum(m.file_size for m in members)
    if len(members) > _MOST_MEMBERS or unpacked > min(_MOST_BYTES, _MOST_GROWTH * packed + 10**6):
        raise ArchiveError(
            f"{archive.name} ({size_text(packed)}) would unpack to {len(members)} files with {size_text(unpacked)}: "
            "that is no libtorch"
        )
    seen: set[str] = set()
    files: set[str] = set()
    for member in members:
        name = member.filename
        path = PurePosixPath(name)
        if (
            not path.parts
            or "\\" in name
            or "\0" in name
            or path.is_absolute()
            or ".." in path.parts
            or ":" in path.parts[0]
        ):
            raise ArchiveError(f"{archive.name} has a member that leaves its folder: '{name}'")
        if str(path) in seen:
            raise ArchiveError(f"{archive.name} has two members '{path}'")
        seen.add(str(path))
        kind = _kind(member)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK) or _is_hard_link(member):
            raise ArchiveError(f"{archive.name} has a member that is neither file, folder nor symbolic link: '{name}'")
        if kind == stat.S_IFLNK:
            _check_link(archive, path, opened, member)
        if not member.is_dir():
            files.add(str(path))
    for name in seen:
        if through := next((p for p in PurePosixPath(name).parents if str(p) in files), None):
            raise ArchiveError(f"{archive.name} has a member below '{through}', which is no folder: '{name}'")
    return members


def _kind(member: zipfile.ZipInfo) -> int:
    """The type bits of a Unix mode; 0 where there are none."""
    return stat.S_IFMT(member.external_attr >> 16)


def _is_hard_link(member: zipfile.ZipInfo) -> bool:
    """True where the extra field of Unix names a target: 12 bytes of times and owners, then the name."""
    rest = member.extra
    while len(rest) >= 4:
        kind, size = struct.unpack_from("<HH", rest)
        if kind == _LINKED and size > 12 and _kind(member) != stat.S_IFLNK:
            return True
        rest = rest[4 + size :]
    return False


def _check_link(archive: Path, path: PurePosixPath, opened: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    if member.file_size > 4096:
        raise ArchiveError(f"{archive.name} has a link with an endless target: '{path}'")
    target = opened.read(member).decode(errors="replace")
    resolved = os.path.normpath(os.path.join(path.parent, target))
    if os.path.isabs(target) or resolved.split("/")[0] == "..":
        raise ArchiveError(f"{archive.name} has a link that leaves its folder: '{path}' -> '{target}'")


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise LibtorchError(
            f"{folder} has {size_text(free)} left, {size_text(needed)} are needed: nothing was installed"
        )


def _write(opened: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, progress: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with opened.open(member) as source:
        block = source.read(_BLOCK)
        if is_library(path.name):
            check_machine(member.filename, block)
        with path.open("xb") as file:
            while block:
                file.write(block)
                progress.advance(len(block))
                block = source.read(_BLOCK)
    mode = member.external_attr >> 16
    path.chmod(0o755 if mode & 0o111 else 0o644)
