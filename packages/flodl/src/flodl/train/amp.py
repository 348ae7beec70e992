"""Mixed precision for a model's forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flodl.data import map_structure

__all__ = ["Autocast"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Autocast:
    """Runs a model's forward in mixed precision, its outputs in float32 for the loss.

    While `on`, it stands in the module's own `forward`, so that `trainer.model` stays the user's object, a compiler sees
    through it, and copies and pickles of the model have it too.
    """

    def __init__(self, model: nn.Module, amp: str, device: torch.device) -> None:
        self._model, self._type, self._dtype = model, device.type, _DTYPES[amp]
        self._forward = model.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self._type, self._dtype):
            return map_structure(_widened, self._forward(*args, **kwargs))

    @property
    def on(self) -> bool:
        """Whether the model computes in mixed precision now."""
        return self._model.__dict__.get("forward") is self

    @on.setter
    def on(self, wanted: bool) -> None:
        if wanted:
            self._model.forward = self
        elif self.on:
            del self._model.forward


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value
