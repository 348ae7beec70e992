"""Transfer by label path: an encoder learns from coarse labels, of which there are many; with it a model learns the digits
themselves from twenty images."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import flodl as fl

Images = tuple[Tensor, Tensor]


def make_model(classes: int) -> fl.Graph:
    """(batch, 64) -> (batch, classes), with an encoder that has an address"""
    encoder = fl.flow(nn.Linear(64, 64)).through(nn.GELU()).also(nn.Linear(64, 64)).through(nn.GELU()).label("encoder")
    return fl.flow(encoder).through(nn.Linear(64, classes)).build()


def learn(model: fl.Graph, data: Images, test: Images, epochs: int) -> float:
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
    parser.add_argument("--few", type=int, default=20, help="images whose digits are known")
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    (x, y), (test_x, test_y) = (data[list(range(len(data)))] for data in map(fl.data.Digits, ("train", "test")))

    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        source = make_model(5)
        accuracy = learn(source, (x, y // 2), (test_x, test_y // 2), given.epochs)
        print(f"which pair of digits, from {len(x):,} images: {accuracy:.3f}")
        part = fl.checkpoint.save(Path(folder, "encoder"), model=source, only="encoder")

        found = {}
        for name in ("from scratch", "with the frozen encoder", "with the encoder, trained on"):
            torch.manual_seed(1)
            model = make_model(10)
            if name != "from scratch":
                fl.checkpoint.load(part, model=model, into="encoder")
            if "frozen" in name:
                model.freeze("encoder")
            found[name] = learn(model, (x[: given.few], y[: given.few]), (test_x, test_y), given.epochs)
    print(f"which digit, from {given.few} images: {', '.join(f'{name} {share:.3f}' for name, share in found.items())}")


if __name__ == "__main__":
    main()
