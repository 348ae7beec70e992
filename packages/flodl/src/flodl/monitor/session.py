"""The beginning of a run: its folder, its store, and going on with one that ended."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from flodl.errors import StoreError, nearest
from flodl.monitor.environment import Environment
from flodl.monitor.process import this_process
from flodl.monitor.schema import FILE_NAME, connect, create, store_error
from flodl.monitor.store import RunView
from flodl.monitor.tables import Config, Event, Tables
from flodl.monitor.values import dumps, text
from flodl.monitor.writer import write_now

__all__ = ["open_run"]


def open_run(
    folder: Path,
    run_id: str | None,
    *,
    resume: bool,
    name: str | None,
    environment: Environment,
    seeds: Mapping[str, int],
    config: Config,
) -> Path:
    """The folder of a new run, or of the run to resume; its store says "running" and names this process.

    Raises:
        StoreError: see `Recorder`.
    """
    if run_id is not None and (run_id in ("", ".", "..") or any(c in run_id for c in "/\\\0")):
        raise StoreError(f"run id {run_id!r} cannot name a folder")
    process = this_process()
    row: dict[str, object] = {
        "state": "running",
        "heartbeat": time.time(),
        "host": process.host,
        "pid": process.pid,
        "process_started": process.started,
        "process_space": process.space,
        "command": text(environment.command),
        "git_commit": environment.git_commit,
        "git_dirty": environment.git_dirty,
        "versions": dumps(environment.versions),
        "hardware": dumps(environment.hardware),
        "seeds": dumps(seeds),
    }
    if name is not None:
        row["name"] = text(name)
    if resume:
        return _resume(folder, run_id, row, config)
    run = _new_folder(folder, run_id)
    try:
        create(run / FILE_NAME, {**row, "run_id": text(run.name), "started": time.time(), "next_id": 1})
        write_now(run / FILE_NAME, [config])
    except StoreError:
        shutil.rmtree(run, ignore_errors=True)  # made above, and of no use
        raise
    return run


def _new_folder(folder: Path, run_id: str | None) -> Path:
    """Made by this process alone, however many start in the same second: `mkdir` is exclusive."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            name = run_id or time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)
            try:
                (folder / name).mkdir()
            except FileExistsError as error:
                if run_id is not None:
                    raise StoreError(
                        f"run {run_id!r} exists already in {folder}: resume it, or choose another run id"
                    ) from error
                continue
            return folder / name
    except OSError as error:
        raise store_error(folder, error) from error


def _resume(folder: Path, run_id: str | None, row: Mapping[str, object], config: Config) -> Path:
    if run_id is None:
        raise StoreError("resuming needs the run id of the run to go on with")
    run = folder / run_id
    if not run.is_dir():
        others = sorted(path.parent.name for path in folder.glob(f"*/{FILE_NAME}"))
        raise StoreError(f"there is no run {run_id!r} in {folder}.{nearest(run_id, others)}")
    with RunView(run) as view:
        before = view.info()
    if before.state == "running":
        raise StoreError(f"run {run_id!r} is still running (process {before.process.pid} on {before.process.host})")
    path = run / FILE_NAME
    connection = connect(path)
    try:
        # Of two processes that resume the same run at once, only one finds its heartbeat unchanged.
        changed = connection.execute(
            f"UPDATE run SET {', '.join(f'{column} = ?' for column in row)}, ended = NULL, error = NULL WHERE heartbeat = ?",
            (*row.values(), before.heartbeat),
        ).rowcount
        if changed != 1:
            raise StoreError(f"run {run_id!r} was just resumed by another process")
        connection.execute("UPDATE control SET outcome = 'the run had ended' WHERE taken IS NULL AND outcome IS NULL")
        now = time.time()
        data = dumps({"state": before.state, "error": before.error, "process": asdict(before.process)})
        event = Event(kind="resumed", step=None, rank=0, time=now, start=now, seconds=None, data=data)
        Tables(connection).write([event, config])
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    finally:
        connection.close()
    return run
