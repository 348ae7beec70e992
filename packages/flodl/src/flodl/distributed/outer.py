"""The outer step: the ranks' averaged change as the gradient of an optimizer of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["OuterStep"]


class OuterStep:
    """Nesterov momentum on the averaged change (DiLoCo, arXiv 2311.08105; a learning rate and momentum that helped here).

    x <- x - lr * (g + momentum * v), where g = x - average and v <- momentum * v + g. With lr 1 and momentum 0 it is the
    average itself.
    """

    def __init__(self, *, lr: float = 0.7, momentum: float = 0.6) -> None:
        self.lr, self.momentum = lr, momentum
        self._from: Tensor | None = None
        self._velocity: Tensor | None = None

    def start(self, weights: Tensor) -> None:
        """The weights, (n,), that all ranks begin with."""
        self._from, self._velocity = weights.clone(), torch.zeros_like(weights)

    def __call__(self, average: Tensor) -> Tensor:
        """What all ranks go on from instead of `average`, (n,)."""
        if self._from is None or self._velocity is None or self._from.numel() != average.numel():
            self.start(average)
            return average
        change = self._from - average
        self._velocity.mul_(self.momentum).add_(change)
        self._from = self._from - self.lr * (change + self.momentum * self._velocity)
        return self._from.clone()

    def state_dict(self) -> dict[str, Any]:
        """Tensors."""
        return {"from": self._from, "velocity": self._velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self._from, self._velocity = state["from"], state["velocity"]
