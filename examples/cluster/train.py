"""A training for several machines: the script of one. Says how fast it went and how good the model is.

`hosts.sh` starts it on two machines that are none; on a cluster, torchrun, Slurm or Kubernetes do (README.md).
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn, optim
from torch.nn import functional as F

import flodl as fl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=["sync", "cadence", "async"], default="cadence")
    parser.add_argument("--hosts-every", type=int, default=1, help="hosts average at each so many-th meeting (cadence)")
    parser.add_argument("--width", type=int, default=512, help="of the model's two hidden layers")
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()

    torch.manual_seed(0)
    layers = [nn.Linear(64, given.width), nn.GELU(), nn.Linear(given.width, given.width), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(given.width, 10))
    train, test = fl.data.Digits("train"), fl.data.Digits("test")
    trainer = fl.Trainer.setup(
        model, optim.AdamW(model.parameters(), lr=1e-3), train, batch_size=32, policy=given.policy,
        hosts_every=given.hosts_every, step="eager", record=False, quiet=True, timeout=30.0,
    )  # fmt: skip
    with trainer:
        started = time.perf_counter()
        for _ in trainer.epochs(given.epochs):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
        seconds = time.perf_counter() - started
        accuracy = trainer.evaluate(test, lambda m, b: {"accuracy": (m(b[0]).argmax(1) == b[1]).float().mean()})[
            "accuracy"
        ]
        if trainer.rank == 0:
            rate = len(train) * given.epochs / seconds
            print(
                f"{given.policy} on {trainer.ranks} processes: {rate:,.0f} samples a second, test accuracy {accuracy:.3f}"
            )


if __name__ == "__main__":
    main()
