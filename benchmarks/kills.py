"""Kills a training with SIGKILL at random moments, resumes it, and compares the end with an unbroken one, bit for bit.

The training has all that a checkpoint must hold: dropout and BatchNorm, updates of three batches with an incomplete last one,
a schedule, an exponential average, evaluations that draw numbers, a callback with a state, checkpoints every few updates in the
background. Weights, optimizer, average, schedule, the recorded curves and the random states are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flodl as fl
from flodl.train.resuming import locate

EPOCHS, STEPS = 4, 4 * 20


class Losses(fl.Callback):
    """A callback with a state."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
        self.losses.append(float(state.metrics["loss"]))
        time.sleep(0.002)  # so that the moments spread over the training, not over its start and end

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = list(state["losses"])


def noisy(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """A metric that draws numbers."""
    return {"loss": F.cross_entropy(model(batch[0] + 0.1 * torch.randn_like(batch[0])), batch[1])}


def train(folder: Path) -> None:
    """Train to the end, from where the run in `folder` stands, and write what came out to `folder/result.json`."""
    torch.set_num_threads(1)
    random.seed(0)  # a fork seeds it anew
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.Dropout(0.3), nn.Linear(48, 10))
    digits, losses = fl.data.Digits("train"), Losses()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = fl.Trainer.setup(
        model, optimizer, fl.data.Tensors(*digits[0:472]), batch_size=8, accumulate=3, clip_norm=1.0, scheduler="cosine",
        ema=0.9, evaluate_steps=7, save_steps=3, folder=str(folder / "runs"), quiet=True, resume="auto", step="eager",
        callbacks=[losses],
    )  # fmt: skip
    trainer.plan_evaluation(fl.data.Tensors(*digits[472:500]), noisy, batch_size=8)
    with trainer:
        for _ in trainer.epochs(EPOCHS):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
        run = trainer.run.folder
    assert run is not None
    saved = fl.checkpoint.load(locate(run))
    with fl.monitor.RunView(run) as view:
        names = [name for name in view.names() if name in ("loss", "lr", "test_loss")]
        curves = {name: [(p.step, p.value) for p in view.series(name)] for name in names}
        epochs = [(e.number, e.step, dict(e.metrics)) for e in view.epochs()]
    kept = {key: saved.extra[key] for key in ("step", "ema", "scheduler", "callbacks", "rng")}
    result = {
        "model": digest(saved.model),
        "optimizer": digest(optimizer.state_dict()),
        "state": digest(kept),
        "curves": digest(curves),
        "epochs": digest(epochs),
        "steps": trainer.global_step,
    }
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


def digest(value: Any) -> str:
    """A hash of nested values, tensors by their bytes."""
    sha = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            sha.update(f"{part.dtype}{tuple(part.shape)}".encode())
            sha.update(part.detach().contiguous().numpy().tobytes())
        elif isinstance(part, dict):
            for key in sorted(part, key=str):
                sha.update(repr(key).encode())
                add(part[key])
        elif isinstance(part, (list, tuple)):
            for item in part:
                add(item)
        else:
            sha.update(repr(part).encode())

    add(value)
    return sha.hexdigest()


def forked(work: Callable[[], None], log: Path) -> int:
    """A child that does `work`, with everything imported already; its output goes to `log`."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1), os.dup2(out, 2)
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int, seconds: float | None = None) -> int | None:
    """The exit status of `pid`, negative for a signal; None if it still runs after `seconds`."""
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, 0 if until is None else os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        assert until is not None
        if time.monotonic() >= until:
            return None
        time.sleep(0.001)


def broken(folder: Path, moments: list[float]) -> tuple[dict[str, Any] | None, int, str]:
    """Train in `folder`, killed after each of `moments` (seconds after its start), then to the end."""
    log, killed = folder / "log.txt", 0
    for moment in moments:
        pid = forked(lambda: train(folder), log)
        status = ended(pid, moment)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            killed += ended(pid) == -signal.SIGKILL
        elif status != 0:
            return None, killed, log.read_text(encoding="utf-8")
    if not (folder / "result.json").exists() and ended(forked(lambda: train(folder), log)) != 0:
        return None, killed, log.read_text(encoding="utf-8")
    return json.loads((folder / "result.json").read_text(encoding="utf-8")), killed, ""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--moments", type=int, default=200, help="how many kills (default 200)")
    options.add_argument("--seed", type=int, default=0, help="of the moments")
    given = options.parse_args()
    chance = random.Random(given.seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        whole.mkdir()
        started = time.perf_counter()
        expected, _, log = broken(whole, [])
        seconds = time.perf_counter() - started
        if expected is None or expected["steps"] != STEPS:
            sys.exit(f"the unbroken training failed: {log or expected}")
        kills = differing = number = 0
        while kills < given.moments:
            folder = Path(place) / f"broken{number}"
            folder.mkdir()
            moments = [chance.uniform(0, seconds) for _ in range(chance.randint(1, 3))]
            result, killed, log = broken(folder, moments)
            kills, number = kills + killed, number + 1
            if result != expected:
                differing += 1
                keys = [key for key in expected if not result or result[key] != expected[key]]
                print(f"killed after {moments}: {', '.join(keys)} differ\n{log[-2000:]}", file=sys.stderr)
            if sys.stderr.isatty():
                print(f"\r{kills}/{given.moments} kills", end="", file=sys.stderr, flush=True)
    print(
        f"{kills} kills in {number} trainings of {seconds:.2f} s: {number - differing} of {number} end bit-identically"
    )
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
