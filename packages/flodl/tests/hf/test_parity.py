"""`./fdl bench hf-parity`, two of its families without the compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "hf_parity.py"


def test_models_are_the_same_in_every_form() -> None:
    command = [sys.executable, str(SCRIPT), "--no-compile", "--families", "ModernBERT", "GPT-2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 12  # heading, ten heads, verdict
