"""The launcher: which program it starts again and from where, what its ranks print, and that nothing of them is left."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from flodl.distributed import launch_siblings
from flodl.distributed.launch import Ranks
from flodl.errors import ConfigError

TWO = [torch.device("cpu")] * 2

# Ranks need no torch to be told from each other.
SCRIPT = """
import os, sys
if "RANK" not in os.environ:
    import flodl.distributed, ipykernel, pytest, torch  # a script may import them
    os.chdir(sys.argv[1])
    flodl.distributed.launch_siblings([torch.device("cpu")] * 2)
print(os.path.basename(os.getcwd()), sys.argv[1:], sys._xoptions, __name__, flush=True)
"""


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def ended(ranks: Ranks) -> Ranks:
    assert until(lambda: not ranks.running())
    ranks.close()
    return ranks


@pytest.mark.parametrize("how", [["-X", "utf8", "./train_it.py"], ["-m", "train_it"]])
def test_the_program_is_started_again_as_it_was(tmp_path: Path, how: list[str]) -> None:
    home = tmp_path / "home"
    (home / "elsewhere").mkdir(parents=True)
    (home / "train_it.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *how, "elsewhere", "--lr=1 2"], cwd=home, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    flags = {"utf8": True} if "-X" in how else {}
    line = f"home ['elsewhere', '--lr=1 2'] {flags} __main__"
    assert sorted(done.stdout.splitlines()) == sorted([line, f"[rank 1] {line}"])


@pytest.mark.parametrize("how", ["-c", "-"])
def test_without_a_program_builder_mode_is_named(how: str) -> None:
    program = "import flodl.distributed as d\nd.launch_siblings(d.parse_devices('cpu:2'))"
    given = [how, program] if how == "-c" else [how]
    done = subprocess.run([sys.executable, *given], input=program, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert "use Trainer.builder(...).devices(...).run()" in done.stderr.splitlines()[-1]


def test_a_test_is_not_started_again() -> None:
    with pytest.raises(ConfigError, match="a test cannot be run again on each device"):
        launch_siblings(TWO)


def test_output_is_told_apart_and_an_error_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    program = (
        "import os, sys, time; rank = os.environ['RANK']\nprint('from', rank, end='', flush=True)\n"
        "if rank == '0': time.sleep(60)\nsys.exit('[rank1]: ValueError: a bug')"
    )
    with_error = ended(Ranks([sys.executable, "-c", program], TWO))
    assert with_error.code() == 1
    assert with_error.verdict() == "flodl: rank 1 failed with exit code 1, which ended the others: ValueError: a bug"
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[rank 1] from 1", "from 0"]
    assert err == "[rank 1] ValueError: a bug\n"


def test_a_killed_rank_ends_nobody_but_what_it_has_started(tmp_path: Path) -> None:
    program = (
        f"import os, pathlib, subprocess, time; rank = int(os.environ['RANK'])\n"
        f"child = subprocess.Popen(['sleep', '60'])\n"
        f"pathlib.Path({str(tmp_path)!r}, str(rank)).write_text(str(child.pid))\n"
        f"os.kill(os.getpid(), 9) if rank else (time.sleep(1), child.kill())"
    )
    ranks = ended(Ranks([sys.executable, "-c", program], TWO))
    assert (ranks.code(), ranks.lost) == (0, {1: signal.SIGKILL})
    assert ranks.verdict() == "flodl: killed: rank 1 by SIGKILL; the others have trained on"
    assert until(lambda: not alive(int((tmp_path / "1").read_text())), 2)


def test_the_first_rank_has_the_terminal() -> None:
    here, there = pty.openpty()
    program = (
        "import torch, sys\nfrom flodl.distributed.launch import Ranks\n"
        "shown = 'import sys; print(sys.stdout.isatty(), sys.stderr.isatty())'\n"
        "ranks = Ranks([sys.executable, '-c', shown], [torch.device('cpu')] * 2)\n"
        "while ranks.running(): pass\n"
        "ranks.close()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=there, stderr=subprocess.PIPE)
    os.close(there)
    _, errors = process.communicate(timeout=90)
    shown = os.read(here, 1000).decode().split("\r\n")
    os.close(here)
    assert not errors
    assert sorted(filter(None, shown)) == ["True False", "[rank 1] False False"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_nothing_outlives_a_killed_launcher(tmp_path: Path, number: int) -> None:
    """Neither the ranks nor what they have started, nor the folder."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = (
        "import torch, subprocess, sys, time\nfrom flodl.distributed.launch import Ranks\n"
        'rank = \'import subprocess; print("up", flush=True); subprocess.run(["sleep", "60"])\'\n'
        f"ranks = Ranks([sys.executable, '-c', rank], [torch.device('cpu')] * 2, scratch={str(scratch)!r})\n"
        "fork = subprocess.Popen(['sleep', '3'], close_fds=False, start_new_session=True)\n"
        "while ranks.running(): time.sleep(.01)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert {process.stdout.readline(), process.stdout.readline()} == {"up\n", "[rank 1] up\n"}
    started = psutil.Process(process.pid)
    assert until(lambda: len(started.children(recursive=True)) == 6)  # 2 ranks, a sleep of each, the guard, the fork
    children = [child for child in started.children(recursive=True) if child.cmdline() != ["sleep", "3"]]
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    assert until(lambda: not any(alive(child.pid) for child in children), 5)
    assert not scratch.exists()
