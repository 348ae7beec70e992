"""A file or a folder that is either the old one or the new one, whole, whatever happens in between."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import psutil

__all__ = ["Leftover", "leftovers", "new_folder", "set_aside", "sync", "write_atomically"]

_SUFFIXES = ("tmp", "gone")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write(file)` fill a temporary file next to `path`, bring it to disk, then rename it to `path`.

    On any exception, Ctrl-C included, the temporary file is removed, `path` is untouched, the exception is raised on.
    Only a killed process leaves a temporary file; the next writer of the same path on this host removes it.
    """
    path = Path(os.path.realpath(path))  # a link stays a link, its target is replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in leftovers(path.parent, path.name):
        if left.dead and left.path.is_file():
            left.path.unlink(missing_ok=True)
    temporary = _temporary(path)
    # os.open and not tempfile: the file gets the permissions of any new file, not 0600.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with open(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder next to `path`, to be filled; afterwards it is brought to disk and is `path`.

    A folder that was at `path` is then gone, but for files in it that the new one has not: those move over. On any exception
    the temporary folder is removed and `path` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        replaced = _publish(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(path.parent)
    if replaced is not None:
        for file in replaced.iterdir():
            if (path / file.name).exists():
                file.unlink()
            else:
                file.rename(path / file.name)
        replaced.rmdir()


def set_aside(path: Path) -> Path:
    """Rename the folder `path`, to be removed, in one step: from then on it is a leftover whose `gone` is true."""
    aside = _temporary(path, "gone")
    path.rename(aside)
    return aside


class Leftover(NamedTuple):
    """What a writer of `name` has not finished yet; `dead`: nor ever will, because its process is gone.

    `gone`: it was to be removed, else to be written.
    """

    path: Path
    name: str
    host: str
    pid: int
    dead: bool
    gone: bool


def leftovers(folder: Path, name: str | None = None) -> Iterator[Leftover]:
    """The temporary files and folders in `folder`, of one name or of all. On another host, no process is known dead."""
    for path in sorted(folder.iterdir()):
        parts = path.name.rsplit(".", 4)
        if len(parts) != 5 or parts[0][:1] != "." or not parts[2].isdigit() or parts[4] not in _SUFFIXES:
            continue
        whose, host, pid = parts[0][1:], parts[1], int(parts[2])
        if name in (None, whose) and not path.is_symlink():
            yield Leftover(path, whose, host, pid, host == _host() and not _wrote(pid, path), parts[4] == "gone")


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to disk. Windows cannot open a folder, and needs no such call."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no fsync for folders
            raise
    finally:
        os.close(descriptor)


def _temporary(path: Path, suffix: str = "tmp") -> Path:
    return path.with_name(f".{path.name}.{_host()}.{os.getpid()}.{secrets.token_hex(4)}.{suffix}")


def _host() -> str:
    return socket.gethostname().replace(".", "-") or "host"


def _wrote(pid: int, path: Path) -> bool:
    """Whether the process `pid` of now can have made `path`: it runs, and did so before (numbers are given out again)."""
    try:
        return psutil.Process(pid).create_time() <= path.stat().st_mtime + 1  # clocks of files are a little coarser
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    except psutil.AccessDenied:
        return True


def _publish(temporary: Path, path: Path) -> Path | None:
    """Give the folder its name. Returns where the one that had it is now."""
    try:
        temporary.rename(path)  # over an empty folder too
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES) or not path.is_dir():
            raise
    if _exchange(temporary, path):
        return temporary
    replaced = _temporary(path)
    path.rename(replaced)  # no exchange here: for a moment nothing is at `path`
    try:
        temporary.rename(path)
    except BaseException:
        replaced.rename(path)
        raise
    return replaced


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, where the system and the file system can."""
    if not sys.platform.startswith("linux"):
        return False
    call: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))
