"""NaN and infinity: where they are looked for, by policy, and what is said of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

__all__ = ["NonFinite"]

_LOOK_SECONDS = 5.0  # between looks at the weights, which take as long as reading all of them


class NonFinite:
    """The watch of one training. `policy`: "warn", "skip" or "stop"."""

    def __init__(self, policy: str, model: nn.Module) -> None:
        self.policy = policy
        self.looks = policy != "warn"
        """Whether losses and gradients are read before an update."""
        self._model = model
        self._warned = False
        self._look_at = 0.0

    def refusal(self, loss: Tensor | None) -> str:
        """Why the update that comes must not be made; empty if it may. Under "warn" nothing is read.

        Where the loop did not say the loss, the gradients are looked at.
        """
        if self.policy == "warn":
            return ""
        if loss is not None:
            value = loss.item()
            return "" if math.isfinite(value) else f"the loss is {value}"
        return "" if _finite(p.grad for p in self._model.parameters()) else "a gradient is NaN or infinite"

    def news(self, points: list[tuple[int, str, float]], step: int, *, at_once: bool = False) -> tuple[int, str] | None:
        """What has to be said, once, with its step: of the losses among `points` (step, name, value), else of the weights."""
        if self._warned:
            return None
        losses = [(at, value) for at, name, value in points if name == "loss"]
        bad = [at for at, value in losses if not math.isfinite(value)]
        if bad:
            self._warned = True
            return bad[0], f"a loss is NaN or infinite at step {bad[0]} (nan_policy is {self.policy})"
        now = time.monotonic()
        if losses or not (at_once or now > self._look_at):
            return None
        self._look_at = now + _LOOK_SECONDS
        if _finite(self._model.parameters()):
            return None
        self._warned = True
        return step, f"weights are NaN or infinite at step {step} (nan_policy is {self.policy})"


def _finite(tensors: Iterable[Tensor | None]) -> bool:
    """Whether all numbers are: one norm over all tensors, read once."""
    present = [t.detach() for t in tensors if t is not None]
    return not present or bool(torch.isfinite(get_total_norm(present)))
