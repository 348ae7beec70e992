"""Signals, exit codes, and that nothing is left running."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

Fdl = Callable[..., Any]
Write = Callable[..., Path]

# Tells that it has started, then sleeps; `ignore` makes it deaf to Ctrl-C and SIGTERM, `child` starts another one like it.
SLEEPER = """\
import os, pathlib, signal, subprocess, sys, time
if "child" in sys.argv:
    subprocess.Popen([sys.executable, __file__, *[w for w in sys.argv[1:] if w != "child"]])
if "ignore" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "tidy" in sys.argv:
    def tidy(number, frame):
        time.sleep(0.3)
        pathlib.Path("tidied").touch()
        sys.exit(0)
    signal.signal(signal.SIGINT, tidy)
    signal.signal(signal.SIGTERM, tidy)
pathlib.Path(f"started-{os.getpid()}").touch()
time.sleep(60)
"""


def started(folder: Path, count: int = 1) -> list[int]:
    """The processes of sleepers, once that many have started."""
    end = time.monotonic() + 30
    while len(files := list(folder.glob("started-*"))) < count:
        assert time.monotonic() < end, "they did not start"
        time.sleep(0.02)
    return [int(f.name.removeprefix("started-")) for f in files]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def sleeper(write: Write) -> Path:
    return write("sleeper.py", SLEEPER)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.usefixtures("sleeper")
def test_a_signal_ends_the_child_and_the_chain_quietly(
    fdl: Fdl, write: Write, tmp_path: Path, number: int, code: int
) -> None:
    write(
        "fdl.yml", "commands:\n  first: { run: python sleeper.py child }\n  all: { needs: first, run: touch second }\n"
    )
    process = fdl.start("all")
    pids = started(tmp_path, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert out == ""
    assert "fdl:" not in err
    assert not (tmp_path / "second").exists()
    assert all(gone(pid) for pid in pids)


@pytest.mark.usefixtures("sleeper")
def test_children_get_time_to_tidy_up(fdl: Fdl, write: Write, tmp_path: Path) -> None:
    write("fdl.yml", "commands:\n  job: { run: python sleeper.py child tidy; }\n")
    process = fdl.start("job")
    started(tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert (tmp_path / "tidied").exists()


@pytest.mark.usefixtures("sleeper")
def test_who_does_not_listen_is_killed_after_the_grace_period(fdl: Fdl, write: Write, tmp_path: Path) -> None:
    write("fdl.yml", "grace: 0.5\ncommands:\n  job: { run: python sleeper.py child ignore }\n")
    process = fdl.start("job")
    pids = started(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert all(gone(pid) for pid in pids)


@pytest.mark.usefixtures("sleeper")
def test_the_grace_period_can_be_set_by_the_environment(fdl: Fdl, write: Write, tmp_path: Path) -> None:
    write("fdl.yml", "commands:\n  job: { run: python sleeper.py ignore }\n")
    fdl.env["FDL_SET_GRACE"] = "0.2"
    process = fdl.start("job")
    started(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=8)  # ten seconds would be the default
    assert process.returncode == 143


def test_a_wrong_grace_period_is_told(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { job: { run: 'true' } }")
    result = fdl("job", env={"FDL_SET_GRACE": "soon"})
    assert (result.code, result.err) == (2, "fdl: FDL_SET_GRACE: grace is 'soon'; it must be a number\n")


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.usefixtures("sleeper")
def test_ctrl_c_on_a_terminal(fdl: Fdl, write: Write, tmp_path: Path, deaf: bool) -> None:
    write("fdl.yml", f"grace: 0.5\ncommands:\n  job: {{ run: python sleeper.py child {'ignore' if deaf else ''} }}\n")
    main, side = pty.openpty()
    terminal = {"stdin": side, "stdout": side, "stderr": side, "start_new_session": True}
    process = fdl.start("job", **terminal, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(side)
    try:
        pids = started(tmp_path, 2)
        os.write(main, b"\x03")
        process.wait(timeout=20)
        assert process.returncode == 130
        end = time.monotonic() + 5
        while not all(gone(pid) for pid in pids):
            assert time.monotonic() < end, "a process was left running"
            time.sleep(0.02)
    finally:
        os.close(main)


def test_a_task_reads_the_keyboard_of_the_terminal(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "commands: { ask: { run: 'read answer; echo got $answer' } }")
    assert fdl("ask", stdin="yes\n").out == "got yes\n"


def test_what_a_finished_task_left_in_the_background_is_its_own_business(
    fdl: Fdl, write: Write, tmp_path: Path
) -> None:
    write("fdl.yml", "commands: { bg: { run: 'sleep 30 >/dev/null 2>&1 & echo $!' } }")
    pid = int(fdl("bg").out)
    assert psutil.pid_exists(pid)
    psutil.Process(pid).kill()


def test_the_reader_of_a_pipe_may_leave(fdl: Fdl, write: Write) -> None:
    keys = "\n".join(f"  K{i}: value" for i in range(5000))
    write("fdl.yml", f"env:\n{keys}\n")
    process = fdl.start("config", "show")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=20) == 141


def test_a_full_disk_is_told(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "env: { A: 1 }")
    with open("/dev/full", "w") as full:
        process = fdl.start("config", "show", stdout=full)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (1, "fdl: output: No space left on device\n")


def test_a_terminal_that_lacks_letters_gets_escapes(fdl: Fdl, write: Write) -> None:
    write("fdl.yml", "description: 日本\n")
    result = fdl("config", "show", env={"PYTHONIOENCODING": "ascii"})
    assert result.code == 0
    assert "\\u65e5" in result.out


INTERRUPTED = """\
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
from flodl_cli.main import main
main()
"""


@pytest.mark.parametrize("module", ["flodl_cli.errors", "flodl_cli.call", "flodl_cli.help", "typing"])
def test_ctrl_c_while_fdl_itself_is_being_loaded_is_quiet(fdl: Any, module: str) -> None:
    command = [sys.executable, "-S", "-c", INTERRUPTED, "--help"]
    path = os.pathsep.join(p for p in sys.path if p)
    env = fdl.environment({"AT": module, "PYTHONPATH": path})
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
