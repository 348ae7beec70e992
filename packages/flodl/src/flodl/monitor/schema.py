"""The run store's file: its tables, its version, and how it is opened.

Every measured row takes its `id` from one counter of the run, so that "everything after id N" is one number for all tables
together; an id is never used twice, not even after a cut.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from flodl.errors import StoreError

__all__ = ["FILE_NAME", "VERSION", "close_single_file", "connect", "connect_read_only", "create", "store_error"]

FILE_NAME = "run.db"
VERSION = 1
_APPLICATION_ID = int.from_bytes(b"flDl", "big")  # tells a run store from any other SQLite file

_TABLES = """
CREATE TABLE run (                      -- one row
    run_id TEXT NOT NULL, name TEXT,
    state TEXT NOT NULL CHECK (state IN ('running', 'finished', 'stopped', 'failed')), error TEXT,
    started REAL NOT NULL, heartbeat REAL NOT NULL, ended REAL,     -- seconds since 1970
    host TEXT NOT NULL, pid INTEGER NOT NULL, process_started REAL NOT NULL, process_space TEXT NOT NULL,
    command TEXT NOT NULL, git_commit TEXT, git_dirty INTEGER,
    versions TEXT NOT NULL, hardware TEXT NOT NULL, seeds TEXT NOT NULL,    -- JSON objects
    total_epochs INTEGER, total_steps INTEGER, last_epoch INTEGER, last_step INTEGER,
    next_id INTEGER NOT NULL
);
CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE point (                    -- one measured value; `value` is NULL unless `kind` is 0
    id INTEGER PRIMARY KEY, series_id INTEGER NOT NULL, step INTEGER NOT NULL, epoch INTEGER, time REAL NOT NULL,
    rank INTEGER NOT NULL, value REAL, kind INTEGER NOT NULL        -- 0 finite, 1 NaN, 2 +inf, 3 -inf
);
CREATE INDEX point_series ON point (series_id, rank);
CREATE INDEX point_not_finite ON point (series_id, kind) WHERE kind <> 0;
CREATE TABLE epoch (id INTEGER PRIMARY KEY, number INTEGER NOT NULL, step INTEGER, time REAL NOT NULL, seconds REAL);
CREATE TABLE epoch_value (
    epoch_id INTEGER NOT NULL, series_id INTEGER NOT NULL, value REAL, kind INTEGER NOT NULL,
    PRIMARY KEY (epoch_id, series_id)
) WITHOUT ROWID;
CREATE TABLE resource (                 -- percent: 100 is one core
    id INTEGER PRIMARY KEY, time REAL NOT NULL, cpu_percent REAL NOT NULL, machine_cpu_percent REAL NOT NULL,
    rss_bytes INTEGER NOT NULL, ram_used_bytes INTEGER NOT NULL, ram_total_bytes INTEGER NOT NULL
);
CREATE TABLE gpu (                      -- utilisation is NULL where the driver does not tell it
    resource_id INTEGER NOT NULL, gpu INTEGER NOT NULL, name TEXT NOT NULL, utilisation_percent REAL,
    vram_used_bytes INTEGER NOT NULL, vram_total_bytes INTEGER NOT NULL,
    PRIMARY KEY (resource_id, gpu)
) WITHOUT ROWID;
CREATE TABLE config (path TEXT PRIMARY KEY, value TEXT NOT NULL, origin TEXT) WITHOUT ROWID;      -- value: JSON
CREATE TABLE event (                    -- `seconds` is NULL for an instant; data: JSON object
    id INTEGER PRIMARY KEY, time REAL NOT NULL, step INTEGER, rank INTEGER NOT NULL, kind TEXT NOT NULL,
    start REAL NOT NULL, seconds REAL, data TEXT NOT NULL
);
CREATE TABLE artifact (id INTEGER PRIMARY KEY, time REAL NOT NULL, name TEXT NOT NULL UNIQUE, text TEXT NOT NULL);
CREATE TABLE control (                  -- written by other processes; kept as the audit of who asked for what
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, action TEXT NOT NULL CHECK (action IN ('stop', 'save')),
    origin TEXT NOT NULL, taken REAL, outcome TEXT
);
"""


def create(path: Path, run: Mapping[str, object]) -> None:
    """A new store at `path` with `run` as its row of the run table: there completely, or not at all.

    Raises:
        StoreError: it cannot be written.
    """
    unfinished = path.with_name(path.name + ".new")  # a reader never sees a store without its tables
    try:
        connection = sqlite3.connect(unfinished, isolation_level=None)
        try:
            connection.executescript(
                f"PRAGMA journal_mode=WAL; BEGIN; PRAGMA application_id={_APPLICATION_ID};"
                f"PRAGMA user_version={VERSION}; {_TABLES} COMMIT;"
            )
            places = ", ".join("?" * len(run))
            connection.execute(f"INSERT INTO run ({', '.join(run)}) VALUES ({places})", tuple(run.values()))
        finally:
            connection.close()
        unfinished.rename(path)
    except (sqlite3.Error, OSError) as error:
        raise store_error(path, error) from error


def connect(path: Path, *, timeout: float = 5.0) -> sqlite3.Connection:
    """The existing store at `path`, open for writing, in autocommit mode; waits up to `timeout` seconds for a lock.

    In WAL mode readers and the writer do not wait for each other.

    Raises:
        StoreError: missing, damaged, empty, locked, read-only or of a newer version.
    """
    return _open(
        path, f"{path.resolve().as_uri()}?mode=rw", timeout, ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL")
    )


def close_single_file(connection: sqlite3.Connection) -> None:
    """Closes a store that was open for writing and leaves one file, which can be copied and be read in a read-only folder.

    While somebody reads it, the files of the WAL mode stay beside it, because that reader needs them; what they hold is
    in the store as well.
    """
    try:
        connection.execute("PRAGMA busy_timeout=0")
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
    finally:
        connection.close()


def connect_read_only(path: Path, *, timeout: float = 2.0) -> sqlite3.Connection:
    """The existing store at `path`, open for reading only; waits up to `timeout` seconds for a lock.

    Raises:
        StoreError: missing, damaged, empty, locked or of a newer version.
    """
    uri = path.resolve().as_uri()
    try:
        return _open(path, f"{uri}?mode=ro", timeout)
    except StoreError as error:
        # Reading in WAL mode makes two small files beside the store, which a read-only folder refuses. Without a
        # `-wal` file nobody is writing, and the store can be read as it lies.
        refused = any(sign in str(error.__cause__) for sign in ("unable to open", "readonly"))
        if not refused or path.with_name(path.name + "-wal").exists():
            raise
        return _open(path, f"{uri}?mode=ro&immutable=1", timeout)


def _open(path: Path, uri: str, timeout: float, pragmas: Sequence[str] = ()) -> sqlite3.Connection:
    if not path.is_file():
        raise StoreError(f"there is no run store at {path}")
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)
        try:
            _check(connection, path)
            for pragma in pragmas:
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    application, version, tables = (
        connection.execute(f"SELECT * FROM {source}").fetchone()[0]
        for source in ("pragma_application_id", "pragma_user_version", "(SELECT count(*) FROM sqlite_master)")
    )
    if tables == 0 and application == 0:
        raise StoreError(f"{path} is empty: nothing was recorded in it. Delete its folder.")
    if application != _APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite file but not a run store. Move it out of the runs folder.")
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer flodl (store version {version}; this one reads up to {VERSION}). Upgrade flodl."
        )
    if connection.execute("SELECT count(*) FROM run").fetchone()[0] != 1:
        raise StoreError(f"{path} names no run: it was not written completely. Delete its folder.")


def store_error(path: Path, error: Exception) -> StoreError:
    """What SQLite or the system reported about `path`, with what to do about it."""
    text = str(error)
    advice = next((advice for sign, advice in _ADVICE.items() if sign in text.lower()), "")
    return StoreError(f"run store {path}: {text}.{advice}")


_ADVICE = {
    "locked": " Another process holds it: close that program, or try again.",
    "full": " Free some space on that disk.",
    "no space": " Free some space on that disk.",
    "not a database": " The file is damaged: move its folder away, other runs are not affected.",
    "malformed": " The file is damaged: move its folder away, other runs are not affected.",
    "no such table": " The file is damaged: move its folder away, other runs are not affected.",
    "no such column": " The file is damaged: move its folder away, other runs are not affected.",
    "readonly": " Make the folder writable, or choose another.",
    "read-only": " Make the folder writable, or choose another.",
    "permission": " Make the folder writable, or choose another.",
    "unable to open": " Check that the folder exists and that you may read and write it.",
    "disk i/o": " The disk or the network share failed, or the folder was removed.",
}
