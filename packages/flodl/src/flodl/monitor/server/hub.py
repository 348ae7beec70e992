"""One look at each watched run, up to four times a second, for all streams together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar

import anyio.to_thread

from flodl.errors import StoreError
from flodl.monitor.server.answers import audit, run_progress
from flodl.monitor.server.folder import RunFolder
from flodl.monitor.server.pieces import Piece, read_piece
from flodl.monitor.store import RunView

__all__ = ["Hub", "Watch"]

_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.25, 1.0
_SHARE = 0.01  # of a core is what following may take from a training on the same machine, else it looks less often
_LIST_SECONDS = 2.0
_HEARTBEAT_SECONDS = 1.0
_THREADS = 4  # bound what requests hold in memory at once
_KEPT_PIECES = 4

Result = TypeVar("Result")


class Watch:
    """What is known of one run while streams follow it. Everything here happens in the event loop's thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.readers = 0
        self.last_id = 0
        self.identity: object = None
        """Of the store's file: another means another run."""
        self.started_ms = 0
        self.info: dict[str, Any] | None = None
        """The data of an `info` message; replaced, never changed."""
        self.problem: str | None = None
        self.pieces: OrderedDict[int, Piece] = OrderedDict()
        """By the id that they begin after: streams that follow a live run all ask for the same."""
        self.reading = asyncio.Lock()
        self.told = 0.0

    def learn(self, seen: dict[str, Any]) -> bool:
        """Takes over what a look found; True when streams should know."""
        problem = seen.get("problem")
        if problem is not None:
            before, self.problem = self.problem, problem
            return before != self.problem
        changed: bool = self.problem is not None or seen["last_id"] != self.last_id or seen["identity"] != self.identity
        self.problem = None
        if seen["identity"] != self.identity:
            self.pieces.clear()
        self.identity, self.last_id, self.started_ms = seen["identity"], seen["last_id"], seen["started_ms"]
        now = time.monotonic()
        if _apart_from_time(seen["info"]) == _apart_from_time(self.info):
            beats = self.info is not None and seen["info"]["info"]["heartbeat"] != self.info["info"]["heartbeat"]
            if not beats or now - self.told < _HEARTBEAT_SECONDS:
                return changed
        self.info, self.told = seen["info"], now
        return True


class Hub:
    """Looks after the streams of a server."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.readers = 0
        self.changes = 0
        self.list_version = 0
        self.closing = False
        self.threads = anyio.CapacityLimiter(_THREADS)
        self._watches: dict[str, Watch] = {}
        self._changed = asyncio.Event()
        self._needed = asyncio.Event()
        self._list: object = None
        self._listed = 0.0

    @contextlib.asynccontextmanager
    async def reader(self, names: Iterable[str]) -> AsyncIterator[dict[str, Watch]]:
        """The watches of some runs, looked at at least once, for as long as a stream lasts."""
        watches = {name: self._watches.setdefault(name, Watch(name)) for name in names}
        for watch in watches.values():
            watch.readers += 1
        self.readers += 1
        self._needed.set()
        try:
            for watch in watches.values():
                if watch.identity is None and watch.problem is None:
                    await self.look(watch)
            yield watches
        finally:
            self.readers -= 1
            for watch in watches.values():
                watch.readers -= 1
                if not watch.readers:
                    self._watches.pop(watch.name, None)

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Runs what waits for a disk, a few at once."""
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self.threads, abandon_on_cancel=True)

    async def piece(self, watch: Watch, since: int) -> Piece:
        """What is new in a run after `since`.

        Raises:
            StoreError: the store cannot be read.
        """
        async with watch.reading:
            found = watch.pieces.get(since)
            if found is None:
                found = await self.in_thread(_piece, self.folder, watch.name, since)
                watch.pieces[since] = found
                while len(watch.pieces) > _KEPT_PIECES:
                    watch.pieces.popitem(last=False)
            watch.last_id = max(watch.last_id, found.last_id)
            return found

    async def look(self, watch: Watch) -> None:
        """Looks at a run now."""
        if watch.learn(await self.in_thread(_look, self.folder, watch.name)):
            self._wake()

    async def change(self, since: int, seconds: float) -> None:
        """Returns when `changes` is no longer `since`, at the latest after `seconds`."""
        if self.changes == since:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)

    async def run(self) -> None:
        """Looks at the runs until `close`."""
        spent = time.process_time()
        while not self.closing:
            if not self.readers:
                self._needed.clear()
                await self._needed.wait()
                continue
            await self._look_at_list()
            for watch in list(self._watches.values()):
                await self.look(watch)
            spent, before = time.process_time(), spent  # of the last look, and of what the streams sent after it
            await asyncio.sleep(min(max((spent - before) / _SHARE, _LOOK_SECONDS), _LONGEST_LOOK_SECONDS))

    def close(self) -> None:
        """Every stream ends soon."""
        self.closing = True
        self._needed.set()
        self._wake()

    def _wake(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def _look_at_list(self) -> None:
        if time.monotonic() - self._listed < _LIST_SECONDS:
            return
        rows = await self.in_thread(self.folder.rows)
        self._listed = time.monotonic()
        found = [(row["id"], row["state"], row["problem"], row["name"]) for row in rows]
        before, self._list = self._list, found
        if before is not None and before != found:
            self.list_version += 1
            self._wake()


def _look(folder: RunFolder, name: str) -> dict[str, Any]:
    try:
        run = folder.run(name)
        with RunView(run, timeout=0.25) as view, view.snapshot():
            file = os.stat(view.path)
            info = view.info()
            return {
                "identity": (file.st_dev, file.st_ino),
                "started_ms": int(info.started * 1000),
                "last_id": info.last_id,
                "info": {"run": name, "info": run_progress(info), "audit": audit(view)},
            }
    except (StoreError, OSError) as error:
        return {"problem": str(error)}


def _piece(folder: RunFolder, name: str, since: int) -> Piece:
    with RunView(folder.run(name)) as view:
        return read_piece(view, since)


def _apart_from_time(info: dict[str, Any] | None) -> object:
    if info is None:
        return None
    kept = {key: value for key, value in info["info"].items() if key not in ("heartbeat", "seconds", "last_id")}
    return kept, info["audit"]
