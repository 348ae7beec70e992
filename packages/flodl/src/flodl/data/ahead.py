"""A thread that fetches ahead, and one that tells whether the GIL is free."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

__all__ = ["Ahead", "Ticker"]

_END = object()


class Ahead(Iterator[Any]):
    """The items of `items` in their order, the next `depth` of them fetched in a thread. `close()` ends the thread."""

    def __init__(self, items: Iterator[Any], depth: int) -> None:
        self._items = items
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flodl-data")
        self._pending: deque[Future[Any]] = deque(self._pool.submit(next, items, _END) for _ in range(depth))

    def __next__(self) -> Any:
        item = self._pending.popleft().result()
        if item is _END:
            self._pending.append(self._pool.submit(lambda: _END))
            raise StopIteration
        self._pending.append(self._pool.submit(next, self._items, _END))
        return item

    def close(self) -> None:
        """Wait for the item being fetched, drop all, end the thread. May be called again."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()


class Ticker:
    """A thread that counts short sleeps. Behind code that holds the GIL it waits for the switch interval each time."""

    PERIOD_S = 0.0005

    def __init__(self) -> None:
        self.ticks = 0
        self._over = False
        self._thread = threading.Thread(target=self._tick, name="flodl-gil", daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over = True
        self._thread.join()

    def _tick(self) -> None:
        while not self._over:
            time.sleep(self.PERIOD_S)
            self.ticks += 1
