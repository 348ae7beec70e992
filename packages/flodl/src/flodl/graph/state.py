"""State carried between calls: a name used before the step that makes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flodl.errors import StepError

__all__ = ["StateAdd", "StateCell"]


class StateCell(nn.Module):
    """Holds the value of one tag between calls. Moves with `.to()`, is in no `state_dict`, copies without its history."""

    value: Tensor | None

    def __init__(self, tag: str) -> None:
        super().__init__()
        self.tag = tag
        self.register_buffer("value", None, persistent=False)

    def read(self, like: Tensor) -> Tensor:
        """The value of the previous call; zeros shaped as `like: (batch, ...)`, the step's own input, at first.

        Raises `StepError` when the batch size changed since the previous call.
        """
        if self.value is None:
            return torch.zeros_like(like)
        if self.value.shape[:1] != like.shape[:1]:
            raise StepError(
                f"state '{self.tag}' holds a batch of {self.value.shape[0]}, this batch has {like.shape[0]}: "
                "call reset_state() between sequences of different batch size"
            )
        return self.value

    def write(self, value: Tensor) -> None:
        """Keep `value` for the next call, with its gradient history (`detach` cuts it)."""
        self.value = value

    def detach(self) -> None:
        """Cut the gradient history, keep the value."""
        if self.value is not None:
            self.value = self.value.detach()

    def reset(self) -> None:
        """Forget the value."""
        self.value = None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self.value is not None:
            state["_buffers"] = {**self._buffers, "value": self.value.detach()}
        return state


class StateAdd(nn.Module):
    """`x + state` where `state` is passed by tag name; `x` alone while there is no state."""

    def forward(self, x: Tensor, **state: Tensor | None) -> Tensor:
        """x: any shape; each state: a shape that broadcasts with x, or None."""
        for value in state.values():
            if value is not None:
                x = x + value
        return x
