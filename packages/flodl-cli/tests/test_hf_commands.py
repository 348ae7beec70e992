"""`fdl hf`: handed over to flodl in the project's Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flodl")
pytest.importorskip("transformers")


def test_what_is_wrong_is_told_by_flodl_itself(fdl: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    result = fdl("hf", "convert", "model")
    assert (result.code, result.err) == (2, "fdl hf: There is no pytorch_model.bin in model.\n")
    assert "--against SOURCE" in fdl("hf", "verify", "--help").out
    assert "export" in fdl("--complete", "fish", "hf", "exp").out
    result = fdl("hf", "verfy", "model")
    assert (result.code, "verify" in result.err) == (2, True)
