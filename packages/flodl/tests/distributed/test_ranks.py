"""Ranks that are killed, freeze, fail, are stopped, come and go, in real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import flodl as fl
from flodl.distributed import Group

SCRIPT = Path(__file__).with_name("training.py")
SAMPLES = 600


def start(out: Path, *, env: dict[str, str] | None = None, **given: Any) -> subprocess.Popen[str]:
    given = {"devices": "cpu:3", "timeout": 30.0, **given}
    command = [sys.executable, "-W", "error", str(SCRIPT), str(out), json.dumps(given)]
    # a group of its own: the Ctrl-C of a test is not the test's
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})},
        start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], seconds: float = 90) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output


def ended(output: str) -> dict[str, Any]:
    found = re.search(r"END (\{.*\})", output)
    assert found, output
    return json.loads(found[1])  # type: ignore[no-any-return]


def seen(out: Path) -> dict[int, list[tuple[int, list[int]]]]:
    """Of each process, by its rank: (window, samples) of each batch."""
    found: dict[int, list[tuple[int, list[int]]]] = {}
    for file in sorted(out.glob("seen.*")):
        lines = [[int(n) for n in line.split()] for line in file.read_text().splitlines()]
        found.setdefault(int(file.suffixes[0][1:]), []).extend((line[1], line[2:]) for line in lines)
    return found


def check_coverage(out: Path, epochs: int, victim: int | None) -> None:
    """Each sample is in the weights once an epoch: what was trained once more is what the victim took with it."""
    batches = seen(out)
    counts = Counter(n for each in batches.values() for _, numbers in each for n in numbers)
    assert set(counts) == set(range(SAMPLES))
    more = counts - Counter(dict.fromkeys(range(SAMPLES), epochs))
    assert min(counts.values()) >= epochs
    if victim is None:
        assert not more
        return
    windows = sorted({window for window, _ in batches[victim]})[-2:]
    lost = Counter(n for window, numbers in batches[victim] if window in windows for n in numbers)
    assert more <= lost


def left_behind(out: Path) -> list[str]:
    return [" ".join(p.cmdline()) for p in psutil.process_iter() if str(out) in " ".join(_command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []


@pytest.mark.parametrize(("policy", "victim"), [("cadence", 0), ("async", 1), ("sync", 0)])
def test_a_killed_rank_is_missed_by_nobody(tmp_path: Path, policy: str, victim: int) -> None:
    code, output = finish(start(tmp_path, policy=policy, fault=[[victim, "kill"], 21], simulate_speed=[1, 0.6, 0.6]))
    assert code == 0, output
    assert ended(output)["ranks"] == 2
    assert f"rank {victim} is lost: training goes on with 2 devices" in output
    assert f"killed: rank {victim} by SIGKILL" in output
    check_coverage(tmp_path, 3, victim)
    assert len({(tmp_path / f"end.{r}").read_text() for r in range(3) if r != victim}) == 1
    assert not left_behind(tmp_path)


def test_a_host_loses_a_rank(tmp_path: Path) -> None:
    fault = [[2, "kill"], 21]
    code, output = finish(
        start(tmp_path, devices="cpu:4", policy="cadence", hosts_every=4, hosts=2, ranks=4, anchor=1, fault=fault)
    )
    assert code == 0, output
    assert ended(output)["ranks"] == 3
    check_coverage(tmp_path, 3, 2)
    assert len({(tmp_path / f"end.{r}").read_text() for r in (0, 1, 3)}) == 1
    assert not left_behind(tmp_path)


def test_below_min_ranks_training_ends_and_can_be_resumed(tmp_path: Path) -> None:
    code, output = finish(
        start(tmp_path, devices="cpu:2", policy="cadence", fault=[[1, "kill"], 30], min_ranks=2, save_steps=5)
    )
    assert code == 1, output
    assert "1 of 2 ranks are left, ddp.min_ranks is 2" in output
    run = next((tmp_path / "runs").iterdir())
    code, output = finish(start(tmp_path, devices="cpu", resume=str(run)))
    assert code == 0, output
    assert "resumed at epoch" in output


def test_a_full_disk_on_the_first_rank_ends_all_and_the_checkpoint_before_it_resumes(tmp_path: Path) -> None:
    given = {"devices": "cpu:2", "policy": "cadence", "width": 2000, "save_steps": 5, "epochs": 6}
    code, output = finish(start(tmp_path, fault=[[0, "full"], 60], **given))
    assert code == 1, output
    assert re.search(r"rank 0 .*CheckpointError", output), output
    assert "File too large" in output
    assert not left_behind(tmp_path)
    run = next((tmp_path / "runs").iterdir())
    code, output = finish(start(tmp_path, resume=str(run), **{**given, "devices": "cpu"}))
    assert code == 0, output
    assert "resumed at epoch" in output


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name, value in {
            "RANK": 0,
            "WORLD_SIZE": 2,
            "LOCAL_RANK": 0,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(fl.DistributedError, match=f"rank 0 cannot reach the store at 127.0.0.1:{port}: .*in use"):
            Group.connect(backend="cpu", device=torch.device("cpu"), timeout=5)


def test_a_frozen_rank_counts_as_lost(tmp_path: Path) -> None:
    process = start(tmp_path, policy="cadence", fault=[[1, "freeze"], 20], timeout=3.0)
    code = None
    until = time.monotonic() + 90
    while code is None and time.monotonic() < until:
        time.sleep(0.2)
        code = process.poll()
        if (tmp_path / "end.0").exists() and (tmp_path / "end.2").exists():
            for p in psutil.process_iter():
                if str(tmp_path) in " ".join(_command(p)) and p.status() == psutil.STATUS_STOPPED:
                    p.send_signal(signal.SIGCONT)
    _, output = finish(process, 5)
    assert "rank 1 is lost: training goes on with 2 devices" in output, output
    assert "rank 1 was silent for too long (ddp.timeout is 3 s): the others went on without it" in output
    check_coverage(tmp_path, 3, 1)
    assert not left_behind(tmp_path)


def test_an_error_on_one_rank_ends_all_and_is_shown_once(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path, policy="cadence", fault=[[1, "raise"], 10]))
    assert code == 1
    assert output.count("ValueError: a bug on one rank") == 2, output  # its traceback, and the launcher's last line
    assert "flodl: rank 1 failed with exit code 1, which ended the others" in output.splitlines()[-1]
    assert not left_behind(tmp_path)


def test_ranks_with_different_data_are_named(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path, devices="cpu:2", policy="sync", fault=[[1, "data"], 0]))
    assert code == 1
    assert (
        "the ranks do not train the same: they differ in samples in the dataset (600 on rank 0, 601 on rank 1)"
        in output
    )


@pytest.mark.parametrize("policy", ["cadence", "sync"])
def test_ctrl_c_saves_and_another_number_of_ranks_trains_the_rest_once(tmp_path: Path, policy: str) -> None:
    process = start(tmp_path, devices="cpu:2", policy=policy, epochs=4)
    wait_for_batches(tmp_path, 40)
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 130, output
    assert "resume with" in output
    assert not left_behind(tmp_path)
    run = next((tmp_path / "runs").iterdir())
    code, output = finish(start(tmp_path, devices="cpu:3" if policy == "cadence" else "cpu", epochs=4, resume=str(run)))
    assert code == 0, output
    check_coverage(tmp_path, 4, None)


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    process = start(tmp_path, policy="cadence", epochs=1000)
    wait_for_batches(tmp_path, 20)
    process.kill()
    process.wait()
    until = time.monotonic() + 5
    while left_behind(tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left_behind(tmp_path)
    assert process.stdout
    process.stdout.close()


def test_a_process_joins(tmp_path: Path) -> None:
    process = start(tmp_path, devices="cpu:2", policy="cadence", epochs=25, batch_seconds=0.008)
    wait_for_batches(tmp_path, 20)
    environments = [
        p.environ() for p in psutil.process_iter() if str(tmp_path) in " ".join(_command(p)) and p.ppid() == process.pid
    ]
    joiner = start(tmp_path, policy="cadence", epochs=25, env={"FLODL_JOIN": environments[0]["FLODL_STORE"]})
    code, output = finish(process)
    joined = finish(joiner)
    assert (code, joined[0]) == (0, 0), output + joined[1]
    assert "1 joined: training goes on with 3 devices" in output
    assert ended(output)["ranks"] == 3
    check_coverage(tmp_path, 25, None)
    assert (tmp_path / "end.9").read_text() == (tmp_path / "end.0").read_text()


def test_torchrun(tmp_path: Path) -> None:
    given = json.dumps({"policy": "async", "epochs": 2})
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(SCRIPT),
        str(tmp_path),
        given,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ended(done.stdout)["ranks"] == 2
    check_coverage(tmp_path, 2, None)


def wait_for_batches(out: Path, number: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if sum(len(batches) for batches in seen(out).values()) >= number:
            return
        time.sleep(0.05)
    raise AssertionError("training did not begin")
