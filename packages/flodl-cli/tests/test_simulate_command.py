"""`fdl simulate`: handed over to flodl in the project's Python."""

from __future__ import annotations

import json

import pytest

WORDS = ("simulate", "--devices", "4x3090, 2x1060", "--step-ms", "80", "--parameters", "25M", "--json")


def test_predictions_and_errors_come_back(fdl) -> None:
    pytest.importorskip("flodl", reason="flodl is another distribution")
    result = fdl(*WORDS, "--policy", "async", "--policy", "cadence", "--stall", "0", "--per-host", "2")
    assert (result.code, [p["policy"] for p in json.loads(result.out)]) == (0, ["async", "cadence"])
    wrong = fdl(*WORDS, "--network", "10GbF")
    assert (wrong.code, wrong.out) == (2, "")
    assert "Did you mean '10GbE'" in wrong.err


def test_wrong_calls_need_no_flodl(fdl) -> None:
    assert "--within-host" in fdl("simulate", "--help").out
    assert fdl("simulate").code == 2
    assert fdl(*WORDS, "--max-anchor", "0").code == 2
