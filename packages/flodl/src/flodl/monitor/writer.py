"""The writer thread: the only one that touches a live run's database."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

from flodl.errors import StoreError
from flodl.monitor.control import Request, pending
from flodl.monitor.resources import ResourceSampler
from flodl.monitor.schema import close_single_file, connect, store_error
from flodl.monitor.tables import Record, Tables

__all__ = ["DirectQueue", "Flush", "Writer", "write_now"]

_COMMIT_SECONDS = 0.25
_BEAT_SECONDS = 1.0
_MAX_WAITING = 1_000_000  # records kept in memory (about 200 MB) while the disk refuses them

_log = logging.getLogger("flodl.monitor")


class Flush:
    """A mark in the queue: everything before it is committed, or `failure` says why not, once `done` is set.

    `last_id`: of the rows until then.
    """

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure: StoreError | None = None
        self.last_id = 0


class Writer:
    """Commits what is appended to `queue`, four times a second, until `stop`.

    The connection is known to local variables of the thread and to nothing else: in a forked child that thread does not
    exist, so nothing there can write through the connection or close it.
    """

    def __init__(self, path: Path, sampler: ResourceSampler, on_request: Callable[[Request], None]) -> None:
        self.queue: deque[Record | Flush] = deque()
        self.busy = threading.Lock()
        """Held while SQLite or the sampler is at work; a fork waits for it, so that no child inherits a lock of theirs."""
        self._path = path
        self._sampler = sampler
        self._on_request = on_request
        self._waiting: list[Record] = []
        self._lost = 0
        self._failure: StoreError | None = None
        self._warned: set[str] = set()
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"flodl recorder {path.parent.name}", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def flush(self) -> int:
        """Waits until all that was appended before is committed. Returns the highest id of a row until then.

        Raises:
            StoreError: it could not be committed. It is kept in memory and tried again, so a later flush can succeed.
        """
        mark = Flush()
        self.queue.append(mark)
        self._wake.set()
        while not mark.done.wait(0.2):
            if not self._thread.is_alive() and not mark.done.is_set():
                raise self._failure or StoreError(f"run store {self._path}: its writer has ended")
        if mark.failure is not None:
            raise mark.failure
        return mark.last_id

    def stop(self) -> None:
        """Commits the rest and ends the thread. May be called again, for instance after a Ctrl-C during the first call.

        Raises:
            StoreError: some of what was recorded could not be committed.
        """
        self._stopping = True
        self._wake.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        opened: tuple[sqlite3.Connection, Tables, tuple[int, int]] | None = None
        next_beat = 0.0
        seen = 0
        stopping = False
        while not stopping:
            self._wake.wait(_COMMIT_SECONDS)
            self._wake.clear()
            stopping = self._stopping  # read before the queue: what was appended before `stop` is committed
            flushes = self._take()
            with self.busy:
                now = time.monotonic()
                beat = now >= next_beat
                if beat:
                    next_beat = now + _BEAT_SECONDS
                    self._sample()
                try:
                    if opened is None:
                        connection = connect(self._path)
                        opened = connection, Tables(connection), _file_identity(self._path)
                    connection, tables, identity = opened
                    if _file_identity(self._path) != identity:  # else all goes into a file that nobody can open
                        raise StoreError(f"run store {self._path} was replaced by another file.")
                    if self._waiting or beat:
                        tables.write(self._waiting)
                        self._waiting.clear()
                    requests = pending(connection, since=seen)
                except Exception as error:  # the thread must live on: what it could not do is raised by flush and stop
                    self._failed(error)
                else:
                    self._recovered()
                    for request in requests:
                        seen = request.id
                        self._on_request(request)
                if stopping:
                    self._close(opened)
            for mark in flushes:
                mark.failure = self._failure
                mark.last_id = opened[1].last_id if opened else 0
                mark.done.set()

    def _take(self) -> list[Flush]:
        """Moves the queue to `_waiting`; returns the marks that were in it."""
        flushes = []
        for _ in range(len(self.queue)):  # not "while": a fast producer would never let it end
            record = self.queue.popleft()
            if isinstance(record, Flush):
                flushes.append(record)
            else:
                self._waiting.append(record)
        return flushes

    def _sample(self) -> None:
        try:
            self._waiting.append(self._sampler.sample())
        except (OSError, ValueError, psutil.Error) as error:
            self._warn(f"resources are not recorded: {error}")

    def _close(self, opened: tuple[sqlite3.Connection, Tables, tuple[int, int]] | None) -> None:
        self._sampler.close()
        try:
            if opened is not None and self._failure is None:
                close_single_file(opened[0])
            elif opened is not None:
                opened[0].close()
        except sqlite3.Error as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._failure = error if isinstance(error, StoreError) else store_error(self._path, error)
        if not isinstance(error, StoreError | sqlite3.Error | OSError):
            self._failure.__cause__ = error  # a fault of ours: keep its traceback
        surplus = len(self._waiting) - _MAX_WAITING
        if surplus > 0:
            del self._waiting[-surplus:]
            self._lost += surplus
        self._warn(f"{self._failure} Training goes on; what is measured is kept in memory and tried again.")

    def _recovered(self) -> None:
        self._failure = (
            StoreError(f"run store {self._path}: {self._lost} records were lost while it could not be written")
            if self._lost
            else None
        )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _log.warning(message)


class DirectQueue:
    """Stands in for the queue once the writer has ended: what is appended is committed by the caller.

    Raises:
        StoreError: it could not be committed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._one_at_a_time = threading.Lock()

    def append(self, record: Record) -> None:
        self.extend([record])

    def extend(self, records: Iterable[Record]) -> None:
        with self._one_at_a_time:
            write_now(self._path, list(records))


def write_now(path: Path, records: Sequence[Record]) -> None:
    """Commits `records` in the calling thread, for a run whose writer has ended.

    Raises:
        StoreError: they could not be committed.
    """
    connection = connect(path)
    try:
        try:
            Tables(connection).write(records)
        finally:
            close_single_file(connection)
    except sqlite3.Error as error:
        raise store_error(path, error) from error


def _file_identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise StoreError(f"run store {path} was deleted.") from error
    return found.st_dev, found.st_ino
