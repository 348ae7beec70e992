"""The folder of runs as the server sees it: which runs there are, and nothing outside it."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from flodl.errors import StoreError
from flodl.monitor.schema import FILE_NAME
from flodl.monitor.server.answers import run_row
from flodl.monitor.store import RunView

__all__ = ["RunFolder", "UnknownRun"]

_MAX_KEPT = 10_000
_FILES = ("", "-wal", "-shm", "-journal")  # SQLite opens these beside a store
_NOTHING = dict.fromkeys(
    ["name", "state", "error", "started", "ended", "seconds", "epoch", "total_epochs", "step", "total_steps"]
)  # of a run that cannot be read


class UnknownRun(StoreError):
    """There is no run of that name in the folder."""


class RunFolder:
    """The runs below `folder`. For any number of threads."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.absolute()
        self._rows: OrderedDict[str, tuple[object, dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, name: str) -> Path:
        """The run's folder.

        Raises:
            UnknownRun: there is none, or it leads out of this folder.
        """
        if not name or name[0] == "." or any(c in name for c in "/\\\0") or not self._is_inside(name):
            raise UnknownRun(f"there is no run {name[:200]!r} here")
        return self.path / name

    def names(self) -> list[str]:
        """Oldest first, by their id."""
        try:
            found = sorted(os.listdir(self.path))
        except FileNotFoundError:  # nothing was recorded yet
            return []
        return [name for name in found if not name.startswith(".") and self._is_inside(name)]

    def rows(self) -> list[dict[str, Any]]:
        """A line for each run; what cannot be read has a `problem`. Of what did not change, the line of before."""
        return [self._row(name) for name in self.names()]

    def _row(self, name: str) -> dict[str, Any]:
        stamp = self._stamp(name)
        with self._lock:
            kept = self._rows.get(name)
        if kept is not None and stamp is not None and kept[0] == stamp:
            return kept[1]
        try:
            with RunView(self.path / name, timeout=0.25) as view:
                row = run_row(view)
        except (StoreError, OSError) as error:
            return {"id": _shown(name), **_NOTHING, "last": {}, "best": {}, "problem": str(error)}
        if row["state"] != "running":  # a running one becomes stale without a change of its file
            with self._lock:
                self._rows[name] = stamp, row
                while len(self._rows) > _MAX_KEPT:
                    self._rows.popitem(last=False)
        return row

    def _stamp(self, name: str) -> object:
        found: list[object] = []
        for end in ("", "-wal"):
            try:
                status = os.stat(self.path / name / f"{FILE_NAME}{end}")
            except OSError:
                found.append(None)
            else:
                found.append((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found) if found[0] is not None else None

    def _is_inside(self, name: str) -> bool:
        """There is a store, and neither it nor a file beside it is a link to elsewhere."""
        run = self.path / name
        files = [run / f"{FILE_NAME}{end}" for end in _FILES]
        try:
            if not files[0].is_file():
                return False
            if not any(os.path.islink(path) for path in (run, *files)):
                return True
            top = self.path.resolve()
            return all(file.resolve().is_relative_to(top) for file in files)
        except (OSError, RuntimeError, ValueError):  # links in a circle, a name that is too long
            return False


def _shown(name: str) -> str:
    """A folder's name that is no UTF-8, for JSON."""
    return name.encode("utf-8", "backslashreplace").decode()
