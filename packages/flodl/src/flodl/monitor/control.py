"""What other processes ask of a live run: stop, or save a checkpoint. Every request stays in the store as an audit."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flodl.errors import StoreError
from flodl.monitor.schema import FILE_NAME, connect, store_error
from flodl.monitor.store import RunView
from flodl.monitor.values import text

__all__ = ["Action", "Request", "pending", "request"]

Action = Literal["stop", "save"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request that the training has not taken yet."""

    id: int
    time: float
    """When it was made: seconds since 1970."""
    action: Action
    origin: str
    """Who asked, as it said of itself."""


def request(run: Path, action: Action, *, origin: str) -> int:
    """Asks the run in folder `run` to stop or to save; it notices within about a quarter second. Returns the request's id.

    Raises:
        StoreError: the run is not running, or its store cannot be written.
    """
    with RunView(run) as view:
        state = view.info().state
    if state != "running":
        raise StoreError(f"run {run.name} is {state}: there is nothing to {action}")
    path = run / FILE_NAME
    connection = connect(path)
    try:
        row = connection.execute(
            "INSERT INTO control (time, action, origin) VALUES (?, ?, ?)", (time.time(), action, text(origin))
        )
        return int(row.lastrowid or 0)
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    finally:
        connection.close()


def pending(connection: sqlite3.Connection, *, since: int) -> list[Request]:
    """The requests after id `since` that nobody took and nothing made void."""
    rows = connection.execute(
        "SELECT id, time, action, origin FROM control WHERE id > ? AND taken IS NULL AND outcome IS NULL ORDER BY id",
        (since,),
    )
    return [Request(id=i, time=when, action=action, origin=origin) for i, when, action, origin in rows]
