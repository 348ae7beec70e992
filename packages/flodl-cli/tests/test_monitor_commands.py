"""`fdl dash` and `fdl runs`: handed over, with their words and exit code, to flodl in the project's Python."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

flodl = pytest.importorskip("flodl", reason="flodl is another distribution")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    from flodl.monitor import Recorder

    for name in ("apple-1", "apple-2", "-dashed"):
        Recorder(tmp_path / "project" / "runs", run_id=name).finish()
    return tmp_path / "project" / "runs"


@pytest.fixture
def project(runs: Path, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    write("project/fdl.yml", "description: a project")
    (runs.parent / "deeper").mkdir()
    monkeypatch.chdir(runs.parent)
    return runs.parent


def test_runs_of_the_project_from_any_folder_in_it(fdl, project: Path) -> None:
    for folder in (project, project / "deeper"):
        found = json.loads(fdl("runs", "list", "--json", cwd=folder).out)
        assert [row["id"] for row in found] == ["-dashed", "apple-1", "apple-2"]


def test_a_folder_of_ones_own_goes_first(fdl, project: Path) -> None:
    (project / "deeper" / "runs").mkdir()
    assert json.loads(fdl("runs", "list", "--json", cwd=project / "deeper").out) == []
    assert len(json.loads(fdl("runs", "list", "--json", "--folder", "../runs", cwd=project / "deeper").out)) == 3


def test_words_reach_flodl_as_they_were_typed(fdl, project: Path) -> None:
    assert json.loads(fdl("runs", "show", "--json", "--", "-dashed").out)["id"] == "-dashed"
    found = json.loads(fdl("runs", "compare", "apple-1", "apple-2", "--json").out)
    assert list(found["runs"]) == ["apple-1", "apple-2"]
    result = fdl("runs", "prune", "--state", "finished", "--state", "failed", "--keep", "1", "--yes", "--json")
    assert (result.code, len(json.loads(result.out))) == (0, 2)
    assert len(list((project / "runs").iterdir())) == 1


def test_exit_codes_and_errors_come_back(fdl, project: Path) -> None:
    missing = fdl("runs", "show", "apple-3")
    assert (missing.code, missing.out) == (2, "")
    assert "Did you mean 'apple-2' or 'apple-1'?" in missing.err
    finished = fdl("runs", "stop", "apple-1")
    assert (finished.code, "nothing to stop" in finished.err) == (1, True)
    assert fdl("runs", "prune").code == 2
    assert fdl("runs", "export", "apple-1", "--format", "pdf").code == 2
    assert fdl("dash", "--port", "70000").code == 2
    assert fdl("dash", "nothing").code == 2


def test_export_writes_where_fdl_was_called(fdl, project: Path) -> None:
    assert fdl("runs", "export", "apple-1", "--format", "csv", cwd=project / "deeper").code == 0
    assert (project / "deeper" / "apple-1.csv").is_file()


def test_without_flodl_it_says_what_is_missing(fdl, project: Path) -> None:
    """A virtual environment of the project that has Python and nothing else."""
    folder = project / ".venv" / "bin"
    folder.mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text("")
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    (folder / "python").chmod(0o755)
    result = fdl("runs", "list", env={"VIRTUAL_ENV": None})
    assert (result.code, result.out) == (2, "")
    assert "pip install flodl" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_dashboard_until_it_is_stopped(fdl, project: Path, number: signal.Signals) -> None:
    with fdl.start("dash", "--port", "0") as process:
        url = process.stderr.readline().split()[1]
        with urllib.request.urlopen(url + "api/runs", timeout=30) as answer:
            assert len(json.load(answer)["runs"]) == 3
        process.send_signal(number)
        assert process.wait(20) == 128 + number
        assert process.stderr.read() == ""


def test_help_needs_no_flodl(fdl) -> None:
    assert "--allowed-host" in fdl("dash", "--help").out
    assert "prune" in fdl("runs", "--help").out
    assert os.listdir() == []
