"""`./fdl bench kills` with 20 of its 200 moments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "kills.py"


@pytest.mark.slow
def test_a_training_killed_at_any_moment_resumes_to_the_same_bits() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--moments", "20", "--seed", "7"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found = re.match(r"(\d+) kills in (\d+) trainings .*: (\d+) of (\d+) end bit-identically", done.stdout)
    assert found, done.stdout
    assert int(found[1]) >= 20
    assert found[2] == found[3] == found[4]
