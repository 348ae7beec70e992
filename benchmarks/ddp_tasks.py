"""The small real trainings of `ddp.py`: digits by a convolution net, the next byte of Python's own library by a transformer."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from step_models import Tokens
from torch import Tensor, nn, optim
from torch.nn import functional as F

import flodl as fl

__all__ = ["TASKS", "Task"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training: `model(seed)`, `optimizer(model)`, `loss(model, batch)`; train and test data as (x, y)."""

    model: Callable[[int], nn.Module]
    optimizer: Callable[[nn.Module], optim.Optimizer]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch_size: int

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The mean cross entropy over everything that is predicted, ()."""
        return F.cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss and accuracy on the test data."""
        model.eval()
        logits = torch.cat([model(x) for x in self.test[0].split(128)])
        model.train()
        y = self.test[1]
        return {"loss": F.cross_entropy(logits, y).item(), "accuracy": (logits.argmax(1) == y).float().mean().item()}


def digits() -> Task:
    """1,437 digits of 8 times 8; steps of about 3 ms."""

    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        body = (nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1))
        head = (nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10))
        return nn.Sequential(*body, *head)

    train, test = fl.data.Digits("train"), fl.data.Digits("test")
    parts = [ds[list(range(len(ds)))] for ds in (train, test)]
    return Task(
        model=model,
        optimizer=lambda m: optim.SGD(m.parameters(), lr=0.02, momentum=0.9),
        train=(parts[0][0], parts[0][1]),
        test=(parts[1][0], parts[1][1]),
        batch_size=16,
    )


def bytes_of_python() -> Task:
    """4,096 pieces of 64 bytes from the sources of Python's library; steps of about 6 ms."""
    text = b"\n".join(p.read_bytes() for p in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")))[:2_000_000]
    numbers = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().clamp(max=127)
    pieces = numbers[: len(numbers) // 65 * 65].view(-1, 65)
    pieces = pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(5))]
    train, test = pieces[:4096], pieces[-512:]

    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Tokens(128, 64, heads=4, layers=2, hidden=256, tokens=64)

    return Task(
        model=model,
        optimizer=lambda m: optim.AdamW(m.parameters(), lr=3e-3),
        train=(train[:, :-1].contiguous(), train[:, 1:].contiguous()),
        test=(test[:, :-1].contiguous(), test[:, 1:].contiguous()),
        batch_size=16,
    )


TASKS: dict[str, Callable[[], Task]] = {"digits": digits, "bytes": bytes_of_python}
