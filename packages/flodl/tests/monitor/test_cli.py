"""`fdl runs` and `fdl dash`, as flodl carries them out: real processes on real runs."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flodl.errors import StoreError
from flodl.monitor import Recorder, RunView
from flodl.monitor.cli import main
from flodl.monitor.runs import UnknownRun, find_run, prunable, remove_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: apple-1 (finished), apple-2 (stopped), banana (failed)."""
    folder = tmp_path / "runs"
    with Recorder(folder, run_id="apple-1", config={"lr": 0.1, "same": 1}, total_epochs=2) as recorder:
        recorder.epoch(0, {"loss": 0.5}, seconds=1)
    recorder = Recorder(folder, run_id="apple-2", name="second", config={"lr": 0.2, "same": 1, "new": None})
    recorder.epoch(0, {"loss": 0.25, "accuracy": 0.9}, seconds=1)
    recorder.finish("stopped")
    with pytest.raises(ValueError), Recorder(folder, run_id="banana"):
        raise ValueError("it\nbroke")
    return folder


@pytest.fixture
def live(runs: Path) -> Iterator[Recorder]:
    with Recorder(runs, run_id="live") as recorder:
        yield recorder


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["runs", *words]) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_list(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "broken").mkdir()
    (runs / "broken" / "run.db").write_bytes(b"")
    head, *lines = said(capsys, "list").splitlines()
    assert head.split() == ["run", "state", "started", "took", "epochs", "steps", "metrics"]
    assert [line.split()[0] for line in lines] == ["apple-1", "apple-2", "banana", "broken"]
    assert "1/2" in lines[0]
    assert "loss=0.5" in lines[0]
    assert "(second)" in lines[1]
    assert "empty" in lines[3]
    rows = json.loads(said(capsys, "list", "--json"))
    assert [row["state"] for row in rows] == ["finished", "stopped", "failed", None]
    assert said(capsys, "list", "--folder", "elsewhere") == "there are no runs in elsewhere\n"


def test_show_and_compare(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "show", "ban")
    assert "failed" in shown
    assert re.search(r"^error +ValueError: it\\nbroke$", shown, re.MULTILINE)
    assert json.loads(said(capsys, "show", "apple-2", "--json"))["last"] == {"loss": 0.25, "accuracy": 0.9}
    found = json.loads(said(capsys, "compare", "apple-1", "apple-2", "--json"))
    assert found["config"] == {"lr": {"apple-1": 0.1, "apple-2": 0.2}, "new": {"apple-2": None}}
    assert found["runs"]["apple-2"]["best"]["loss"] == {"min": 0.25, "max": 0.25}
    lines = {line.split()[0]: line.split()[1:] for line in said(capsys, "compare", "apple-1", "apple-2").splitlines()}
    assert lines["loss"] == ["0.5", "0.25"]
    assert lines["lr"] == ["0.1", "0.2"]
    assert "same" not in lines


def test_ids_may_be_shortened(runs: Path) -> None:
    assert find_run(runs, "b") == runs / "banana"
    assert find_run(runs, "apple-1") == runs / "apple-1"
    with pytest.raises(UnknownRun, match="beginning of 2 runs: apple-1, apple-2"):
        find_run(runs, "apple")
    with pytest.raises(UnknownRun, match="Did you mean 'banana'"):
        find_run(runs, "bananna")
    for nothing in ("", "../runs", "."):
        with pytest.raises(UnknownRun):
            find_run(runs, nothing)
    (runs / "apple").mkdir()
    Recorder(runs / "other", run_id="x").finish()
    with pytest.raises(UnknownRun, match="there are no runs"):
        find_run(runs / "apple", "x")


def test_wrong_calls(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean 'banana'" in said(capsys, "show", "banane", code=2)
    assert "is finished: there is nothing to stop" in said(capsys, "stop", "apple-1", code=1)
    assert "say which runs" in said(capsys, "prune", code=2)
    assert "No terminal to ask on" in said(capsys, "prune", "banana", code=2)
    for words in (["runs", "delete"], ["dash", "--port", "x"], []):
        with pytest.raises(SystemExit) as error:
            main(words)
        assert error.value.code == 2


def test_export(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "export", "apple-1", "--format", "log") == "wrote apple-1.log\n"
    assert Path("apple-1.log").read_text().startswith("run apple-1\n")
    told = json.loads(said(capsys, "export", "apple-1", "--format", "csv", "--output", "x.csv", "--json"))
    assert told == {"run": "apple-1", "format": "csv", "path": "x.csv"}
    assert Path("x.csv").read_text() == "series,rank,step,epoch,time,value\n"


@pytest.mark.parametrize("action", ["stop", "save"])
def test_a_live_run_is_asked(live: Recorder, capsys: pytest.CaptureFixture[str], action: str) -> None:
    assert said(capsys, action, "li") == f"asked live to {action}\n"
    deadline = time.monotonic() + 10
    while not (requests := live.requests()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [request.action for request in requests] == [action]
    assert requests[0].origin.startswith(f"fdl runs {action}, ")


def test_prune(runs: Path, live: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "apple-1" / "checkpoints").mkdir()
    (runs / "apple-1" / "checkpoints" / "1.bin").write_bytes(b"x" * 2_000_000)
    assert [r.run.name for r in prunable(runs, keep=2)] == ["apple-1", "apple-2"]
    assert [r.run.name for r in prunable(runs, keep=0)] == ["apple-1", "apple-2", "banana"]
    assert [r.run.name for r in prunable(runs, states=["failed", "stopped"])] == ["apple-2", "banana"]
    assert prunable(runs, older_than_days=1) == []
    assert prunable(runs, names=["live"]) == []
    with pytest.raises(StoreError, match="running"):
        remove_run(runs / "live")
    assert "apple-1  finished" in said(capsys, "prune", "apple-1", "banana", "--yes")
    assert json.loads(said(capsys, "prune", "--keep", "0", "--yes", "--json")) == ["apple-2"]
    assert said(capsys, "prune", "--keep", "0", "--yes") == "nothing to delete\n"
    assert [path.name for path in runs.iterdir()] == ["live"]
    with RunView(live.folder) as view:
        assert view.info().state == "running"


def test_pruning_does_not_follow_links(runs: Path, tmp_path: Path) -> None:
    Recorder(tmp_path / "elsewhere", run_id="far").finish()
    (runs / "far").symlink_to(tmp_path / "elsewhere" / "far")
    assert "far" not in [r.run.name for r in prunable(runs, keep=0)]
    assert prunable(runs, names=["far"]) == []


@pytest.mark.parametrize(("answer", "left"), [("n", 3), ("", 3), ("y", 2)])
def test_prune_asks_on_a_terminal(runs: Path, answer: str, left: int) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "flodl.monitor.cli", "runs", "prune", "banana"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        assert b"delete 1 run with all checkpoints?" in process.communicate(timeout=30)[1]
    os.close(ours)
    assert process.returncode == (0 if answer == "y" else 1)
    assert len(list(runs.iterdir())) == left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_dash(runs: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "flodl.monitor.cli", "dash", "runs/banana", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stderr
        url = process.stderr.readline().split()[1]
        with urllib.request.urlopen(url + "api/runs", timeout=20) as answer:
            assert [row["id"] for row in json.load(answer)["runs"]] == ["apple-1", "apple-2", "banana"]
        process.send_signal(number)
        assert process.wait(20) == 128 + number
        assert process.stderr.read() == ""


def test_dash_without_the_folder(
    start: Callable[..., subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dash", "nothing"]) == 2
    assert "there is no folder nothing" in capsys.readouterr().err
