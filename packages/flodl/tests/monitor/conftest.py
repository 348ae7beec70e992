"""Real processes and real small disks for the run store's tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def every_store_is_closed() -> Iterator[None]:
    yield
    if sys.platform == "linux":
        files = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert [file for file in files if "run.db" in file] == []


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Python process on a script; its output is a pipe of text. Ended and closed after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: str) -> subprocess.Popen[str]:
        file = tmp_path / f"script{len(started)}.py"
        file.write_text(textwrap.dedent(script))
        process = subprocess.Popen(
            [sys.executable, "-u", "-W", "ignore::DeprecationWarning", str(file), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with its children, which hold the pipes too
        process.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB; skipped where this user may not mount one."""
    disk = tmp_path / "small disk"
    disk.mkdir()
    if os.geteuid() != 0 or sys.platform != "linux" or _mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)):
        pytest.skip("mounting a file system is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def make_read_only(small_disk: Path) -> Callable[[], None]:
    """Makes the small disk read-only, also for root."""

    def remount() -> None:
        assert _mount("-o", "remount,ro", str(small_disk)) == 0

    return remount


def _mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True).returncode
