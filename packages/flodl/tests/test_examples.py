"""The examples, each as its user runs it, with small settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(folder: Path, script: str, *words: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / script), *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(group.replace(",", "")) for group in found.groups()]


def test_only_the_monitor(tmp_path: Path) -> None:
    assert "finished: 58 steps in " in run(tmp_path, "adopt/monitor_only.py", "--epochs", "2")
    assert len(list(tmp_path.glob("runs/*/run.db"))) == 1


def test_only_the_graph_view(tmp_path: Path) -> None:
    said = run(tmp_path, "adopt/graph_only.py")
    assert "9,610 of 14,250 parameters are trained" in said
    assert (tmp_path / "net.svg").read_text("utf-8").startswith("<")
    assert (tmp_path / "stem").is_dir()


def test_only_the_cadence(tmp_path: Path) -> None:
    (accuracy,) = numbers(
        r"2 processes: test accuracy (0\.\d+)", run(tmp_path, "adopt/cadence_only.py", "--epochs", "3")
    )
    assert accuracy > 0.8


def test_transfer(tmp_path: Path) -> None:
    said = run(tmp_path, "transfer/transfer.py", "--epochs", "10")
    scratch, encoder = numbers(r"from scratch (0\.\d+),.* trained on (0\.\d+)", said)
    assert encoder > scratch


def test_mixture(tmp_path: Path) -> None:
    said = run(tmp_path, "mixture/mixture.py", "--epochs", "4")
    assert min(numbers(r"soft, 4 experts: test accuracy (0\.\d+)(?s:.*)more ink: test accuracy (0\.\d+)", said)) > 0.85
    upper, lower = numbers(r"upper half: (\d+) images, lower half: (\d+)", said)
    assert min(upper, lower) > 0
    assert upper + lower == 297


def test_adaptive_depth(tmp_path: Path) -> None:
    said = run(tmp_path, "adaptive_depth/depth.py", "--epochs", "6")
    accuracy, depth = numbers(r"test accuracy (0\.\d+), (\d+\.\d+) iterations of at most 8", said)
    least, most = numbers(r"least for the digit \d \((\d\.\d+)\), most for the digit \d \((\d\.\d+)\)", said)
    assert accuracy > 0.85
    assert 1 <= least < depth < most <= 8


def test_char_gpt(tmp_path: Path) -> None:
    said = run(tmp_path, "char_gpt/char_gpt.py", "--epochs", "1", "--files", "3", "--write", "40")
    entropy, bits = numbers(r"(\d\.\d+) bits each by frequency alone(?s:.*)held-out text: (\d\.\d+) bits", said)
    assert bits < entropy


@pytest.mark.slow
def test_mixed_devices(tmp_path: Path) -> None:
    said = run(tmp_path, "mixed_devices/mixed.py", "--policies", "cadence", "--epochs", "3")
    (share,) = numbers(r"the first device trained (\d+)%", said)
    assert share > 50


@pytest.mark.slow
def test_resume(tmp_path: Path) -> None:
    said = run(tmp_path, "resume/resume.py", "--epochs", "2", "--kill-at", "17")
    assert "killed after step 17" in said
    assert "the same, bit for bit" in said
