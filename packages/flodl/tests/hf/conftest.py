"""The tiny models are those of `./fdl bench hf-parity`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))
