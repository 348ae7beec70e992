"""A mixture of experts, soft (all run, weighted) and hard (each sample has one): what is learnt, and who is used for what."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import flodl as fl

EXPERTS = 4


def expert() -> fl.FlowBuilder:
    """(batch, 64) -> (batch, 32)"""
    return fl.flow(nn.Linear(64, 32)).through(nn.GELU()).through(nn.Linear(32, 32))


def learn(model: fl.Graph, epochs: int) -> float:
    """The accuracy on the test images."""
    trainer = fl.Trainer.setup(
        model, optim.AdamW(model.parameters(), lr=3e-3), fl.data.Digits("train"), batch_size=64, step="eager", record=False,
        quiet=True,
    )  # fmt: skip
    with trainer:
        for _ in trainer.epochs(epochs):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
        test = fl.data.Digits("test")
        return trainer.evaluate(test, lambda m, b: {"accuracy": (m(b[0]).argmax(1) == b[1]).float().mean()})["accuracy"]


def by_half(x: Tensor) -> Tensor:
    """Which half of the image has more ink: 0 the upper, 1 the lower. x: (batch, 64) -> (batch,)"""
    rows = x.view(-1, 2, 32).sum(2)
    return (rows[:, 1] > rows[:, 0]).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args()

    torch.manual_seed(0)
    router = fl.SoftmaxRouter(64, EXPERTS)
    soft = fl.flow(nn.Identity()).gate(router, [expert() for _ in range(EXPERTS)]).through(nn.Linear(32, 10)).build()
    print(f"soft, {EXPERTS} experts: test accuracy {learn(soft, given.epochs):.3f}")
    x, y = fl.data.Digits("test")[list(range(297))]
    with torch.no_grad():
        weights = router(x)
    for number in range(EXPERTS):
        favourite = max(range(10), key=lambda digit: weights[y == digit, number].mean().item())
        print(f"  expert {number}: {weights[:, number].mean():.0%} of the weight, most for the digit {favourite}")

    torch.manual_seed(0)
    hard = (
        fl.flow(nn.Identity()).switch(by_half, [expert(), expert()], per_sample=True).through(nn.Linear(32, 10)).build()
    )
    print(f"hard, by which half has more ink: test accuracy {learn(hard, given.epochs):.3f}")
    chosen = by_half(x).bincount(minlength=2)
    print(f"  upper half: {int(chosen[0])} images, lower half: {int(chosen[1])}")


if __name__ == "__main__":
    main()
