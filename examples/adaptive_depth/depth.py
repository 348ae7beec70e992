"""Adaptive depth: each digit leaves the loop when the model has seen enough of it (adaptive computation time, Graves 2016)."""

from __future__ import annotations

import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F

import flodl as fl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--most", type=int, default=8, help="iterations at most")
    parser.add_argument("--price", type=float, default=0.06, help="of an iteration, in the loss")
    given = parser.parse_args()

    torch.manual_seed(0)
    halt = fl.LearnedHalt(64)
    body = fl.flow(nn.LayerNorm(64)).through(nn.Linear(64, 64)).through(nn.GELU())
    model = (
        fl.flow(nn.Linear(64, 64))
        .loop_body(fl.flow(nn.Identity()).also(body))
        .until_cond(halt, max=given.most)
        .through(nn.Linear(64, 10))
        .build()
    )
    train, test = fl.data.Digits("train"), fl.data.Digits("test")
    trainer = fl.Trainer.setup(model, optim.AdamW(model.parameters(), lr=2e-3), train, batch_size=64, step="eager")
    with trainer:
        for _ in trainer.epochs(given.epochs):
            for x, y in trainer.batches():
                answer = F.cross_entropy(trainer.model(x), y)
                cost = halt.ponder_cost.mean()
                trainer.step(answer + given.price * cost, cost=cost.detach())

    model.eval()
    x, y = test[list(range(len(test)))]
    with torch.no_grad():
        scores = model(x)
    right, depth = scores.argmax(1) == y, halt.ponder_cost.detach().ceil() - 1  # the cost is iterations and a remainder
    print(f"test accuracy {right.float().mean():.3f}, {depth.mean():.2f} iterations of at most {given.most}")
    if bool((~right).any()):
        print(
            f"digits that it got right took {depth[right].mean():.2f}, those that it got wrong {depth[~right].mean():.2f}"
        )
    by_digit = {digit: depth[y == digit].mean().item() for digit in range(10)}
    easiest, hardest = min(by_digit, key=by_digit.__getitem__), max(by_digit, key=by_digit.__getitem__)
    print(
        f"least for the digit {easiest} ({by_digit[easiest]:.2f}), most for the digit {hardest} ({by_digit[hardest]:.2f})"
    )


if __name__ == "__main__":
    main()
