"""Exact resume after `kill -9`: a training is killed in the middle, goes on, and ends with the bits of one that was not."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import flodl as fl


def train(epochs: int) -> None:
    """What is killed: a training as any other. It goes on from where it was when it is started again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    settings = {"batch_size": 32, "accumulate": 2, "ema": 0.99, "scheduler": "cosine", "step": "eager", "quiet": True}
    trainer = fl.Trainer.setup(model, optimizer, fl.data.Digits("train"), save_steps=5, resume="auto", **settings)
    for _ in trainer.epochs(epochs):
        for x, y in trainer.batches():
            trainer.step(F.cross_entropy(trainer.model(x), y))
            print(trainer.global_step, flush=True)
    torch.save(model.state_dict(), "end.pt")


def start(folder: Path, epochs: int) -> subprocess.Popen[str]:
    """This script, as the training, in `folder`."""
    command = [sys.executable, str(Path(__file__).resolve()), "--train", "--epochs", str(epochs)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kill-at", type=int, nargs="+", default=[17, 40], help="steps after which it is killed")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.epochs)
        return
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        whole.mkdir()
        killed.mkdir()
        start(whole, given.epochs).communicate()
        for at in given.kill_at:
            process = start(killed, given.epochs)
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= at:
                    process.send_signal(signal.SIGKILL)
                    break
            if process.wait() != -signal.SIGKILL:
                sys.exit(f"the training ended before step {at}: give --kill-at a smaller one, or more --epochs")
            print(f"killed after step {line.strip()}", flush=True)
        started = time.perf_counter()
        output, _ = start(killed, given.epochs).communicate()
        first = output.split()[0]
        print(f"went on with step {first}, done after {time.perf_counter() - started:.1f} s")
        states = [torch.load(path / "end.pt") for path in (whole, killed)]
        same = all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        print(f"weights, running statistics and counters are {'the same, bit for bit' if same else 'NOT the same'}")
        if not same:
            sys.exit(1)


if __name__ == "__main__":
    main()
