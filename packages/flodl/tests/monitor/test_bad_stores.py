"""Stores that cannot be read: each says so by name and with advice, and none hides the others."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flodl.errors import StoreError
from flodl.monitor import Recorder, RunView, list_runs


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with one good run, "good"."""
    with Recorder(tmp_path / "runs", run_id="good") as recorder:
        for step in range(2000):
            recorder.metric("loss", step / 3, step=step)
    return tmp_path / "runs"


def copy(runs: Path, name: str) -> Path:
    shutil.copytree(runs / "good", runs / name)
    return runs / name / "run.db"


def empty(store: Path) -> None:
    store.write_bytes(b"")


def noise(store: Path) -> None:
    store.write_bytes(b"this is no database at all, " * 100)


def truncated(store: Path) -> None:
    store.write_bytes(store.read_bytes()[:6000])


def overwritten(store: Path) -> None:
    data = bytearray(store.read_bytes())
    data[200:] = b"\xa5" * (len(data) - 200)
    store.write_bytes(bytes(data))


def newer(store: Path) -> None:
    change(store, "PRAGMA user_version=2")


def foreign(store: Path) -> None:
    store.unlink()
    change(store, "CREATE TABLE run (x)")


def without_a_run(store: Path) -> None:
    change(store, "DELETE FROM run")


def without_a_table(store: Path) -> None:
    change(store, "DROP TABLE run")


def with_bad_json(store: Path) -> None:
    change(store, "UPDATE run SET hardware = '{'")


def a_folder(store: Path) -> None:
    store.unlink()
    store.mkdir()


def change(store: Path, statement: str) -> None:
    connection = sqlite3.connect(store)
    with connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (empty, r"is empty.*Delete its folder"),
        (noise, r"not a database.*damaged: move its folder away"),
        (truncated, r"malformed.*damaged: move its folder away"),
        (overwritten, r"damaged: move its folder away"),
        (newer, r"written by a newer flodl \(store version 2; this one reads up to 1\)\. Upgrade"),
        (foreign, r"not a run store"),
        (without_a_run, r"names no run"),
        (without_a_table, r"damaged"),
        (with_bad_json, r"damaged"),
        (a_folder, r"no run store at"),
    ],
)
def test_a_store_that_cannot_be_read_says_why_and_hides_no_other(
    runs: Path, spoil: Callable[[Path], None], says: str
) -> None:
    store = copy(runs, "bad")
    spoil(store)

    def read() -> None:
        with RunView(store.parent) as view:
            view.info()

    with pytest.raises(StoreError, match=says) as error:
        read()
    assert str(store) in str(error.value)
    bad, good = list_runs(runs)
    assert (bad.folder.name, bad.info) == ("bad", None)
    assert bad.problem == str(error.value)
    assert good.info is not None
    assert good.info.state == "finished"
    with pytest.raises(StoreError):
        Recorder(runs, run_id="bad", resume=True)


def test_a_page_damaged_in_the_middle_is_an_error_of_the_query_that_meets_it(runs: Path) -> None:
    store = copy(runs, "bad")
    data = bytearray(store.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40_000] = b"\xff" * 40_000
    store.write_bytes(bytes(data))

    def read() -> None:
        with RunView(store.parent) as view:
            view.points()
            view.last()
            view.epochs()

    with pytest.raises(StoreError, match="damaged"):
        read()


def test_a_locked_store_is_said_to_be_locked(runs: Path) -> None:
    copy(runs, "locked")
    other = sqlite3.connect(runs / "locked" / "run.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match=r"locked.*try again"):
        RunView(runs / "locked", timeout=0.05)
    good, locked = list_runs(runs)
    assert good.info is not None
    assert locked.problem is not None
    other.execute("ROLLBACK")
    other.close()
    with RunView(runs / "locked") as view:
        assert view.info().state == "finished"


def test_a_lock_held_by_another_process_does_not_hold_up_the_training(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.flush()
    other = sqlite3.connect(recorder.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for step in range(1000):
        recorder.metric("loss", 1.0, step=step)
        recorder.requests()
    with RunView(recorder.folder) as view:
        assert view.points() == []
    other.execute("ROLLBACK")
    other.close()
    recorder.finish()
    with RunView(recorder.folder) as view:
        assert len(view.points()) == 1000


def test_no_folder_is_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "nothing here") == []
    with pytest.raises(StoreError, match="no run store at"):
        RunView(tmp_path / "nothing here")


@pytest.mark.parametrize(("age", "state"), [(16.0, "stale"), (5.0, "running"), (-3600.0, "running")])
def test_a_run_elsewhere_is_judged_by_its_heartbeat(runs: Path, age: float, state: str) -> None:
    store = copy(runs, "other")
    change(store, f"UPDATE run SET state='running', process_space='other host', heartbeat={time.time() - age}")
    with RunView(store.parent) as view:
        assert view.info().state == state


def test_a_pid_that_another_process_got_is_not_the_run(runs: Path) -> None:
    store = copy(runs, "other")
    change(store, f"UPDATE run SET state='running', process_started=5, heartbeat={time.time() - 5}")
    with RunView(store.parent) as view:
        assert view.info().state == "stale"


def test_an_unknown_artifact_is_named(runs: Path) -> None:
    with RunView(runs / "good") as view, pytest.raises(StoreError, match="no artifact 'drawing'"):
        view.artifact("drawing")
