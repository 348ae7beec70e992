"""The showcase example, run as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "examples" / "showcase" / "showcase.py"


def test_the_showcase_trains_and_draws(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--epochs", "3", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    accuracy = float(re.search(r"^test accuracy (\S+)", done.stdout, re.M).group(1))  # type: ignore[union-attr]
    assert accuracy > 0.85
    assert done.stderr == ""
    for name in ("showcase.svg", "showcase-heat.svg"):
        ElementTree.parse(tmp_path / name)
