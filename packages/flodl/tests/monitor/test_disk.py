"""Disks that fill up, folders that cannot be written or go away."""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flodl.errors import StoreError
from flodl.monitor import Recorder, RunView, list_runs


def fill(disk: Path) -> Path:
    """Writes a file until the disk is full."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return ballast


def test_a_full_disk_is_told_once_and_nothing_is_lost_when_there_is_space_again(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(small_disk)
    recorder.flush()
    ballast = fill(small_disk)
    for step in range(5000):
        recorder.metric("loss", step / 3, step=step)
    for _ in range(2):
        with pytest.raises(StoreError, match="Free some space") as error:
            recorder.flush()
    assert str(recorder.path) in str(error.value)
    assert sum("Free some space" in record.getMessage() for record in caplog.records) == 1
    recorder.metric("loss", 0.5, step=5000)  # the training goes on
    ballast.unlink()
    recorder.finish()
    with RunView(recorder.folder) as view:
        assert [point.step for point in view.series("loss")] == list(range(5001))


def test_a_disk_that_stays_full_is_an_error_at_the_end_and_leaves_no_thread(small_disk: Path) -> None:
    before = set(threading.enumerate())
    recorder = Recorder(small_disk)
    recorder.metric("loss", 1.0, step=1)
    recorder.flush()
    recorder.artifact("drawing", "x" * 3_000_000)
    with pytest.raises(StoreError, match="Free some space"):
        recorder.finish()
    assert set(threading.enumerate()) == before
    with RunView(recorder.folder) as view:
        assert [point.value for point in view.points()] == [1.0]


def test_no_run_can_start_on_a_full_disk(small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(StoreError, match="Free some space"):
        Recorder(small_disk)
    assert list(small_disk.iterdir()) == [ballast]


def test_a_read_only_folder(small_disk: Path, make_read_only: Callable[[], None]) -> None:
    with Recorder(small_disk, run_id="done") as recorder:
        recorder.metric("loss", 1.0, step=1)
    killed = Recorder(small_disk, run_id="killed")
    killed.metric("loss", 2.0, step=1)
    killed.flush()
    # The files as a kill leaves them: part of the data only in the write-ahead log.
    shutil.copytree(small_disk / "killed", small_disk / "as killed")
    killed.finish()
    make_read_only()
    with pytest.raises(StoreError, match="Make the folder writable"):
        Recorder(small_disk)
    with pytest.raises(StoreError, match="Make the folder writable"):
        Recorder(small_disk, run_id="done", resume=True)
    with RunView(small_disk / "done") as view:
        assert view.last()["loss"].value == 1.0
    with RunView(small_disk / "as killed") as view:
        assert view.last()["loss"].value == 2.0
    assert [run.problem for run in list_runs(small_disk)] == [None] * 3


def test_a_file_where_the_runs_should_be(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match=r"exists"):
        Recorder(tmp_path / "runs")


def test_a_deleted_run_folder_is_an_error_at_the_next_flush(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path)
    recorder.flush()
    shutil.rmtree(recorder.folder)
    recorder.metric("loss", 1.0, step=1)
    with pytest.raises(StoreError, match="was deleted"):
        recorder.flush()
    recorder.metric("loss", 1.0, step=2)
    with pytest.raises(StoreError, match="was deleted"):
        recorder.finish()
    with pytest.raises(StoreError, match="no run store"):
        recorder.metric("loss", 1.0, step=3)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert not recorder.folder.exists()
