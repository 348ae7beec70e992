"""A model of somebody else, to which `fl.Graph.of` gives addresses, observation and a drawing; the model stays as it is."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import flodl as fl


class Residual(nn.Module):
    """x: (batch, 16, h, w) -> the same"""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv2(torch.relu(self.conv1(x)))


class Net(nn.Module):
    """x: (batch, 1, 8, 8) -> (batch, 10)"""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.blocks = nn.ModuleList(Residual() for _ in range(3))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", type=Path, default=Path("net.svg"), help="where the drawing goes")
    given = parser.parse_args()

    torch.manual_seed(0)
    net = Net()
    graph = fl.Graph.of(net)
    print(graph.tree_summary())

    graph.freeze("blocks.0")
    trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    print(f"{trained:,} of {sum(p.numel() for p in net.parameters()):,} parameters are trained")

    graph.observe("blocks.2")
    images, _ = fl.data.Digits("test", flat=False)[list(range(32))]
    net(images)
    value = graph.tagged("blocks.2")
    print(f"blocks.2 gives {tuple(value.shape)}, mean {value.mean():.3f}")

    fl.checkpoint.save("stem", model=net, only="stem")
    graph.svg(given.svg, example=images)
    print(f"drawn: {given.svg}")


if __name__ == "__main__":
    main()
