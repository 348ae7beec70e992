"""`./fdl quickstart` and README's program, run as a user runs them, on the real images."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flodl as fl
from flodl.train.resuming import locate as newest

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "examples" / "quickstart" / "quickstart.py"


def run(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", **environment}
    env.pop("OMP_NUM_THREADS", None)  # a user has all cores
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=1200, check=False
    )


def check_run(done: subprocess.CompletedProcess[str], cwd: Path, *, epochs: int, accuracy: float) -> None:
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("epoch ")]
    assert len(lines) == epochs
    assert all(re.search(r"loss=.* \[.*ETA .*\]  RAM ", line) for line in lines)
    (found,) = re.findall(r"test accuracy (\S+) on", done.stdout)
    assert float(found) >= accuracy
    (folder,) = (cwd / "runs").iterdir()
    with fl.monitor.RunView(folder) as view:
        assert view.info().state == "finished"
        assert len(view.epochs()) == epochs
        assert view.last()["test_accuracy"].value == pytest.approx(float(found), abs=1e-4)
        assert view.resources()
    saved = fl.checkpoint.load(newest(folder))
    assert saved.position == {"epoch": epochs, "sample": 0}
    assert saved.model is not None
    assert all(torch.isfinite(v).all() for v in saved.model.values())


def test_digits(tmp_path: Path) -> None:
    check_run(run(QUICKSTART, cwd=tmp_path), tmp_path, epochs=20, accuracy=0.97)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fashion_mnist(tmp_path: Path, fashion_mnist_files: Path) -> None:
    done = run(QUICKSTART, "--data", "fashion-mnist", cwd=tmp_path, FLODL_DATA=str(fashion_mnist_files))
    check_run(done, tmp_path, epochs=5, accuracy=0.90)


def test_wrong_settings_are_one_line(tmp_path: Path) -> None:
    done = run(QUICKSTART, "--batch-size", "0", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "quickstart: training.batch_size is 0; it must be at least 1\n")
    assert not (tmp_path / "runs").exists()


def test_the_program_of_the_readme(tmp_path: Path) -> None:
    (program,) = re.findall(
        r"```python\n(import flodl as fl\n.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL
    )
    assert len([line for line in program.splitlines() if line]) <= 12
    (tmp_path / "ten.py").write_text(program)
    done = run("ten.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"'accuracy': ([\d.]+)", done.stdout)
    assert float(accuracy) >= 0.95
