"""One writer for a folder: a second process is told who is at it."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

from flodl.errors import CheckpointError

__all__ = ["FolderLock"]

_held: dict[str, int] = {}  # lock file -> the process that has it: after a fork, not this one


class FolderLock:
    """Held from `acquire` to `release`, or until the process ends in any way.

    A record lock of POSIX: a forked child does not hold it, and network file systems know it. Elsewhere only this process
    is kept from locking twice.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        self._key = os.path.realpath(self._path)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises CheckpointError when another writer has it, naming its process."""
        if self._descriptor is not None:
            return
        if _held.get(self._key) == os.getpid():
            raise CheckpointError(
                f"Another writer of this process saves into {self._path.parent}: close() that one, or use another folder."
            )
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                _lock(descriptor)
                if self._path.exists() and os.path.samestat(os.fstat(descriptor), self._path.stat()):
                    break
                os.close(descriptor)  # the last writer removed the file in between
            except OSError as error:
                owner = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise CheckpointError(
                        f"Cannot save into {self._path.parent}: {owner} does. Wait for it to end, or use another folder."
                    ) from error
                raise
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        self._descriptor = descriptor
        _held[self._key] = os.getpid()

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            if _held.get(self._key) == os.getpid():
                self._path.unlink(missing_ok=True)
                del _held[self._key]
            os.close(descriptor)


if sys.platform == "win32":

    def _lock(descriptor: int) -> None:
        pass

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):  # a file system without locks
                raise
