"""A file that is either the old one or the new one, whole, whatever happens in between."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import psutil

__all__ = ["write_atomically"]


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write(file)` fill a temporary file next to `path`, bring it to disk, then rename it to `path`.

    On any exception, Ctrl-C included, the temporary file is removed, `path` is untouched, the exception is raised on.
    Only a killed process leaves a temporary file; the next writer of the same path on this host removes it.
    """
    path = Path(os.path.realpath(path))  # a link stays a link, its target is replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{_host()}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
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
    _sync_folder(path.parent)


def _host() -> str:
    return socket.gethostname().replace(".", "-") or "host"


def _remove_leftovers(path: Path) -> None:
    for file in path.parent.iterdir():
        if file.name.startswith(f".{path.name}.{_host()}.") and file.name.endswith(".tmp"):
            pid = file.name.split(".")[-3]
            if pid.isdigit() and not psutil.pid_exists(int(pid)):
                file.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Bring the rename to disk. Windows cannot open a folder, and needs no such call."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no fsync for folders
            raise
    finally:
        os.close(descriptor)
