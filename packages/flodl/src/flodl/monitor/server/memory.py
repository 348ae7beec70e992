"""What was read of runs stays in memory from one request to the next, up to a limit: then only what is new is read."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flodl.monitor.server.columns import Columns, Curve, read_ranks, update
from flodl.monitor.server.spans import Spans
from flodl.monitor.store import RunView

__all__ = ["Memory", "RunMemory", "read_last_id"]

_MAX_ROWS = 3_000_000  # of all runs together; 24 bytes for a point, 64 for a span


@dataclass(eq=False)
class RunMemory:
    """One run. Use it in `Memory.snapshot`."""

    identity: tuple[int, int]
    seen: int = 0
    """No cut up to this id."""
    series: dict[int, dict[int, Columns]] = field(default_factory=dict)
    """Series id -> rank -> columns."""
    spans: Spans = field(default_factory=Spans)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def curves(self, view: RunView, series: Sequence[int], x: str, last_id: int) -> list[Curve]:
        """The curves of each of `series`, by rank."""
        found = []
        for number in dict.fromkeys(series):
            ranks = self.series.setdefault(number, {})
            found += [ranks.setdefault(rank, Columns(number, rank)) for rank in read_ranks(view, number)]
        update(view, found, last_id)
        return [columns.curve(view, x, last_id) for columns in found]

    def size(self) -> int:
        return self.spans.size + sum(c.size for ranks in list(self.series.values()) for c in list(ranks.values()))


class Memory:
    """What was read of all runs, the least recently used forgotten first. For any number of threads."""

    def __init__(self, max_rows: int = _MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._runs: OrderedDict[Path, RunMemory] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def snapshot(self, view: RunView) -> Iterator[tuple[RunMemory, int]]:
        """The run's memory and the id up to which the store is seen inside."""
        run = self._run(view)
        with run.lock, view.snapshot():  # the lock first: then what is in memory is never newer than the snapshot
            last_id = read_last_id(view)
            if view.query("SELECT 1 FROM event WHERE id > ? AND kind = 'cut' LIMIT 1", (run.seen,)):
                run.series, run.spans = {}, Spans()
            run.seen = last_id
            yield run, last_id
        self._forget()

    def _run(self, view: RunView) -> RunMemory:
        found = os.stat(view.path)
        identity = (found.st_dev, found.st_ino)
        with self._lock:
            run = self._runs.get(view.folder)
            if run is None or run.identity != identity:
                run = self._runs[view.folder] = RunMemory(identity)
            self._runs.move_to_end(view.folder)
            return run

    def _forget(self) -> None:
        with self._lock:
            sizes = {folder: run.size() for folder, run in self._runs.items()}
            total = sum(sizes.values())
            for folder, size in sizes.items():
                if total <= self._max_rows:
                    break
                total -= size
                del self._runs[folder]


def read_last_id(view: RunView) -> int:
    return int(view.query("SELECT next_id - 1 FROM run")[0][0])
