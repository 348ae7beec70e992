"""`fdl cache`: what trainings keep about their steps, shown and forgotten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHOICE: dict[str, Any] = {
    "version": 1,
    "key": {"model": "0123456789abcdef", "optimizer": "Adam, 1, None, train_fn", "batch": "((torch.Size([32, 64]),))"},
    "recipe": "whole+onednn",
    "complete": True,
    "step_ms": 0.1234,
    "written": 1700000000.0,
}


def fdl(folder: Path, *words: str) -> str:
    env = {**os.environ, "FLODL_CACHE": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "flodl_cli", *words], env=env, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_shown_and_cleared(tmp_path: Path) -> None:
    assert fdl(tmp_path, "cache", "show") == f"nothing is kept in {tmp_path / 'steps'}\n"
    steps = tmp_path / "steps"
    steps.mkdir()
    (steps / "a.json").write_text(json.dumps(CHOICE))
    (steps / "b.json").write_text('{"recipe": ')
    lines = fdl(tmp_path, "cache", "show").splitlines()
    assert lines[0].split("  ")[0] == "model"
    assert "whole+onednn" in lines[1]
    assert "0.123" in lines[1]
    assert "b.json" in lines[2]
    assert "damaged: ignored" in lines[2]
    assert json.loads(fdl(tmp_path, "cache", "show", "--json")) == {"a.json": CHOICE, "b.json": None}
    assert fdl(tmp_path, "cache", "clear") == "2 forgotten\n"
    assert not list(steps.iterdir())


def changed(**fields: Any) -> str:
    return json.dumps({**CHOICE, **fields})


KEY = CHOICE["key"]
DAMAGED = {
    "nothing": b"",
    "cut": changed().encode()[:90],
    "zeros": bytes(4096),
    "bytes": b"\xff\xfe\x80",
    "nested": b"[" * 100_000,
    "null": b"null",
    "list": b"[]",
    "number": b"1e999",
    "no version": b"{}",
    "no recipe": json.dumps({k: v for k, v in CHOICE.items() if k != "recipe"}).encode(),
    "recipe": changed(recipe=5).encode(),
    "recipe none": changed(recipe=None).encode(),
    "key": changed(key=["model"]).encode(),
    "key text": changed(key="model").encode(),
    "model": changed(key={**KEY, "model": {"a": 1}}).encode(),
    "batch": changed(key={**KEY, "batch": 3}).encode(),
    "surrogate": changed(key={**KEY, "model": "\ud800"}).encode(),
    "escape": changed(recipe="\x1b[2Jeager\n").encode(),
    "when": changed(written="yesterday").encode(),
    "when far": changed(written=1e300).encode(),
    "when nan": changed(written=float("nan")).encode(),
    "duration": changed(step_ms="fast").encode(),
    "duration long": changed(step_ms=10**400).encode(),
}


def test_whatever_is_damaged_is_a_line_and_goes(tmp_path: Path) -> None:
    """One call for all of them: none hides the choice that is good, or another damaged one."""
    steps = tmp_path / "steps"
    steps.mkdir()
    for name, content in DAMAGED.items():
        (steps / f"{name}.json").write_bytes(content)
    (steps / "link.json").symlink_to("nowhere")
    (steps / "0 good.json").write_text(changed())
    (steps / "0 old.json").write_text(changed(version=0))
    (steps / "folder.json").mkdir()  # not ours
    (steps / ".writing-abc").write_text(changed()[:50])  # a training was killed as it wrote
    _, good, old, *damaged = fdl(tmp_path, "cache", "show").splitlines()
    assert good.startswith("0123456789abcdef")
    assert "whole+onednn" in good
    assert old.startswith("0 old.json")
    assert old.endswith("of another version: ignored")
    assert {line.partition(".json")[0] for line in damaged} == {*DAMAGED, "link"}
    assert len(damaged) == len(DAMAGED) + 1
    assert all(line.endswith("damaged: ignored") for line in damaged)
    assert json.loads(fdl(tmp_path, "cache", "show", "--json"))["0 good.json"] == CHOICE
    assert fdl(tmp_path, "cache", "clear") == f"{len(DAMAGED) + 3} forgotten\n"
    assert [path.name for path in steps.iterdir()] == ["folder.json"]


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A cache of one choice on a file system that is read-only, for root too."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        (disk / "steps").mkdir()
        (disk / "steps" / "a.json").write_text(changed())
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_what_cannot_be_removed_is_named(read_only: Path) -> None:
    env = {**os.environ, "FLODL_CACHE": str(read_only)}
    command = [sys.executable, "-m", "flodl_cli", "cache", "clear"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == "0 forgotten\n"
    assert done.stderr == f"fdl: cannot remove {read_only / 'steps' / 'a.json'}: Read-only file system\n"
