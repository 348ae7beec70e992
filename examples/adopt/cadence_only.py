"""A plain PyTorch loop that adopts only the cadence: several processes of unequal speed, in the loop that you have.

`Trainer.setup` hooks the optimizer, so `loss.backward(); optimizer.step()` is where the processes meet when it is due. The loop
keeps its own DataLoader: each process trains a part of the data.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

import flodl as fl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--devices", default="cpu:2")
    given = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    trainer = fl.Trainer.setup(model, optimizer, devices=given.devices, policy="cadence", record=False, quiet=True)

    train, test = fl.data.Digits("train"), fl.data.Digits("test")
    everything = TensorDataset(*train[list(range(len(train)))])
    part = Subset(everything, range(trainer.rank, len(everything), trainer.ranks))
    for _ in range(given.epochs):
        for x, y in DataLoader(part, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    trainer.close()  # stays in the meetings of the others until all are done

    x, y = test[list(range(len(test)))]
    accuracy = (model(x).argmax(1) == y).float().mean().item()
    if trainer.rank == 0:
        print(f"{trainer.ranks} processes: test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
