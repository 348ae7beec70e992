"""A head on two devices: their update is the one of all valid tokens of both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hf_models
import torch

from flodl import hf

SCRIPT = Path(__file__).with_name("two_devices.py")


def test_two_devices_train_a_head_as_one_does(tmp_path: Path) -> None:
    # Made once: a tokenizer that is trained again is another.
    folder = hf.export(hf_models.make("BERT", "token"), tmp_path / "model")
    found = []
    for devices in ("cpu:1", "cpu:2"):
        out = tmp_path / f"{devices}.pt"
        command = [sys.executable, str(SCRIPT), str(folder), str(out), devices]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(torch.load(out, weights_only=True))
    assert [one["ranks"] for one in found] == [1, 2]
    for key, value in found[0]["state"].items():
        torch.testing.assert_close(
            found[1]["state"][key], value, rtol=1e-5, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}"
        )
