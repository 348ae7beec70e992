"""Builder mode on several devices: from standard input, with closures; errors, stop and Ctrl-C come through the handle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import sys, time, torch, flodl as fl
from torch import nn
from torch.nn import functional as F

what, out = sys.argv[1:3]
width = 16

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    def forward(self, x):
        return self.body(x)

def loss(model, batch):
    import os
    if what == "raise" and os.environ["RANK"] == "1":
        raise ValueError(f"width is {width}")
    if what in ("stop", "ctrl-c"):
        time.sleep(0.01)
    return F.cross_entropy(model(batch[0]), batch[1])

handle = (
    fl.Trainer.builder(Net, lambda p: torch.optim.Adam(p, lr=1e-3), loss)
    .dataset(fl.data.Digits("train")).batch_size(32).num_epochs(3 if what == "train" else 1000).devices("cpu:2")
    .policy("cadence").backend("cpu").settings(folder=out, step="eager", quiet=True)
    .evaluate(fl.data.Digits("test"), lambda m, b: {"accuracy": (m(b[0]).argmax(1) == b[1]).float().mean()})
    .run()
)
if what in ("stop", "ctrl-c"):
    while handle.poll().step == 0:
        time.sleep(0.05)
    print("TRAINING", flush=True)
    if what == "stop":
        handle.stop()
state = handle.join()
assert handle.metrics()[-1:] == ([state.metrics] if state.metrics else [])
print("STATE", handle.poll().state, state.epochs, sorted(state.state_dict), state.metrics.get("test_accuracy", 0) > 0.2)
"""


def run(what: str, out: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-", what, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True, env={**os.environ, "TMPDIR": str(out)},
    )  # fmt: skip
    assert process.stdin
    process.stdin.write(PROGRAM)
    process.stdin.close()
    process.stdin = None
    return process


def check_clean(out: Path) -> None:
    assert not list(out.glob("flodl-*")), tempfile.gettempdir()


def test_a_builder_from_standard_input_trains_on_two_devices(tmp_path: Path) -> None:
    process = run("train", tmp_path)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert "STATE finished 3 ['body.0.bias', 'body.0.weight', 'body.2.bias', 'body.2.weight'] True" in output
    check_clean(tmp_path)


def test_an_error_on_a_rank_is_raised_at_join(tmp_path: Path) -> None:
    process = run("raise", tmp_path)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 1
    assert output.rstrip().endswith("ValueError: width is 16"), output
    assert "flodl.errors.DistributedError: on rank 1:" in output
    check_clean(tmp_path)


def test_stop_ends_all_ranks(tmp_path: Path) -> None:
    process = run("stop", tmp_path)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert "STATE stopped" in output
    check_clean(tmp_path)


def test_ctrl_c_ends_all_ranks(tmp_path: Path) -> None:
    process = run("ctrl-c", tmp_path)
    assert process.stdout
    while "TRAINING" not in (line := process.stdout.readline()):
        assert line, "training did not begin"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 130, output
    check_clean(tmp_path)
