"""Two devices of unequal speed on one CPU: the policies compared, in samples a second and in what is learnt."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import torch
from torch import nn, optim
from torch.nn import functional as F

import flodl as fl


def train(policy: str, speeds: list[float], epochs: int) -> None:
    """One policy; started once more for each device."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
    train, test = fl.data.Digits("train"), fl.data.Digits("test")
    trainer = fl.Trainer.setup(
        model, optim.AdamW(model.parameters(), lr=1e-3), train, batch_size=32, devices=f"cpu:{len(speeds)}",
        simulate_speed=speeds, policy=policy, step="eager", record=False, quiet=True,
    )  # fmt: skip
    trained = 0
    with trainer:
        started = time.perf_counter()
        for _ in trainer.epochs(epochs):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
                trained += len(x)
        seconds = time.perf_counter() - started
        found = trainer.evaluate(test, lambda m, b: {"accuracy": (m(b[0]).argmax(1) == b[1]).float().mean()})
        if trainer.rank == 0:
            share = trained / (len(train) * epochs)
            print(json.dumps({"rate": len(train) * epochs / seconds, "share": share, "accuracy": found["accuracy"]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--policies", nargs="+", choices=["sync", "cadence", "async"], default=["sync", "cadence", "async"]
    )
    parser.add_argument("--speeds", type=float, nargs="+", default=[1.0, 0.4], help="shares of the processor's own")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.train, given.speeds, given.epochs)
        return
    print(f"{len(given.speeds)} devices of speeds {', '.join(map(str, given.speeds))}")
    for policy in given.policies:
        words = ["--train", policy, "--epochs", str(given.epochs), "--speeds", *map(str, given.speeds)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True, env=env
        )
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{policy:8} {found['rate']:7,.0f} samples a second, the first device trained {found['share']:.0%}, "
            f"test accuracy {found['accuracy']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
