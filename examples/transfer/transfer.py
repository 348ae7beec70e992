"""Transfer by label path: an encoder learns five digits, its part is saved, and another model learns the other five with it."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import flodl as fl


def make_model() -> fl.Graph:
    """(batch, 64) -> (batch, 5), with an encoder that has an address"""
    encoder = fl.flow(nn.Linear(64, 64)).through(nn.GELU()).also(nn.Linear(64, 64)).through(nn.GELU()).label("encoder")
    return fl.flow(encoder).through(nn.Linear(64, 5)).build()


def digits(which: range, split: str, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Images and labels of five digits, counted from 0."""
    data = fl.data.Digits(split)
    x, y = data[list(range(len(data)))]
    chosen = (y >= which.start) & (y < which.stop)
    return x[chosen][:most], y[chosen][:most] - which.start


def learn(model: fl.Graph, data: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], epochs: int) -> float:
    """The accuracy on `test` afterwards."""
    optimizer = optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    trainer = fl.Trainer.setup(model, optimizer, data, batch_size=16, step="eager", quiet=True, record=False)
    with trainer:
        for _ in trainer.epochs(epochs):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
        return trainer.evaluate(test, lambda m, b: {"accuracy": (m(b[0]).argmax(1) == b[1]).float().mean()})["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=20, help="images of the other five digits to learn from")
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    first, other = range(5), range(5, 10)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        source = make_model()
        accuracy = learn(source, digits(first, "train"), digits(first, "test"), given.epochs)
        print(f"digits 0 to 4: {accuracy:.3f}")
        part = fl.checkpoint.save(Path(folder, "encoder"), model=source, only="encoder")

        few, test = digits(other, "train", given.few), digits(other, "test")
        torch.manual_seed(1)
        scratch = learn(make_model(), few, test, given.epochs)
        torch.manual_seed(1)
        model = make_model()
        fl.checkpoint.load(part, model=model, into="encoder")
        model.freeze("encoder")
        transferred = learn(model, few, test, given.epochs)
    print(
        f"digits 5 to 9 from {given.few} images: from scratch {scratch:.3f}, with the frozen encoder {transferred:.3f}"
    )


if __name__ == "__main__":
    main()
