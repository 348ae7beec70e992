"""Builder mode on several devices: from standard input or a notebook, with closures; errors, stop and Ctrl-C come through
the handle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

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
    if what in ("raise", "forget") and os.environ["RANK"] == "1":
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
if what == "forget":
    sys.exit()
state = handle.join()
assert handle.join() is state
assert handle.metrics()[-1:] == ([state.metrics] if state.metrics else [])
print("STATE", handle.poll().state, state.epochs, sorted(state.state_dict), state.metrics.get("test_accuracy", 0) > 0.2)
"""


NOTEBOOK = (
    """
import time, torch, flodl as fl
from torch import nn
from torch.nn import functional as F

width, slow = 16, 0.0

def loss(model, batch):
    time.sleep(slow)
    return F.cross_entropy(model(batch[0]), batch[1])

def run(epochs, devices="cpu:2"):
    return (
        fl.Trainer.builder(lambda: nn.Linear(64, 10), lambda p: torch.optim.Adam(p, lr=1e-3), loss)
        .dataset(fl.data.Digits("train")).batch_size(32).num_epochs(epochs).devices(devices).policy("cadence")
        .settings(step="eager").run()
    )

print("EPOCHS", run(2).join().epochs)
""",
    """
slow = 0.01
handle = run(1000)
while handle.poll().step == 0:
    time.sleep(0.05)
""",
    """
import signal, threading

def interrupted(handle):
    threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()  # the notebook's button
    try:
        handle.join()
    except KeyboardInterrupt:
        print("INTERRUPTED", handle.poll().state)

interrupted(handle)
handle = run(1000, "cpu")
""",
    "interrupted(handle)",
)

# In a process of its own: clients of kernels leave sockets behind.
EXECUTE = """
import json, sys, nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
cells = [nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=120, km=AsyncKernelManager(kernel_name="python3", transport="ipc")).execute()
print(*(output.get("text", output) for cell in notebook.cells for output in cell.outputs))
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


def test_an_error_that_nobody_joins_is_told_and_the_current_folder_hides_nothing(tmp_path: Path) -> None:
    here, script = tmp_path / "here", tmp_path / "train_it.py"
    here.mkdir()
    (here / "queue.py").write_text("raise SystemExit('not the one of the standard library')")
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), "forget", str(tmp_path)], cwd=here, capture_output=True, text=True,
        timeout=90, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert "flodl: training failed, and join() was never called:" in done.stderr
    assert done.stderr.rstrip().endswith("ValueError: width is 16"), done.stderr
    check_clean(tmp_path)


def test_a_notebook_trains_on_two_devices_and_its_button_ends_them(tmp_path: Path) -> None:
    folders = {name: str(tmp_path) for name in ("TMPDIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE], input=json.dumps(NOTEBOOK), capture_output=True, text=True, timeout=150,
        cwd=tmp_path, env={**os.environ, **folders},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "EPOCHS 2" in done.stdout
    assert "epoch 2" in done.stdout  # what the first rank prints is in the cell
    assert done.stdout.count("INTERRUPTED stopped") == 2
    assert not [p.pid for p in psutil.process_iter() if str(tmp_path) in " ".join(command_of(p))]
    check_clean(tmp_path)


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
