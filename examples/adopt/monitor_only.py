"""A plain PyTorch loop that adopts only the monitor: recorded, to be watched live, and nothing else changes."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from flodl import monitor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--port", type=int, help="serve the dashboard there while it trains")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    given = parser.parse_args()

    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    if given.port is not None:
        monitor.serve(given.port, folder=given.folder)
    with monitor.Recorder(given.folder, config={"lr": 3e-3}, total_epochs=given.epochs) as recorder:
        step = 0
        for epoch in range(given.epochs):
            losses = []
            for index in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x[index]), y[index])
                loss.backward()
                optimizer.step()
                step += 1
                losses.append(loss.item())
                recorder.metric("loss", losses[-1], step=step, epoch=epoch)
            recorder.epoch(epoch, {"loss": sum(losses) / len(losses)}, step=step)
    with monitor.RunView(recorder.folder) as run:
        print(
            f"{run.info().state}: {len(run.series('loss'))} steps in {recorder.folder}; `fdl dash {given.folder}` shows them"
        )


if __name__ == "__main__":
    main()
