"""`fdl cache`: what trainings keep about their steps, shown and forgotten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CHOICE = {
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
