"""The bare backbone: texts become vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from flodl.hf.head import Head

__all__ = ["AutoModel"]


class AutoModel(Head):
    """A transformer without a head."""

    task: ClassVar[str] = "FEATURE_EXTRACTION"

    def predict(self, texts: Sequence[str], *, batch_size: int = 32) -> Tensor:
        """(texts, hidden): the mean of the last layer over each text's tokens."""
        rows: dict[int, Tensor] = {}
        for index, outputs, mask in self._outputs(self._tokens(list(texts)), batch_size):
            weights = mask[..., None].to(outputs.last_hidden_state.dtype)
            means = (outputs.last_hidden_state * weights).sum(1) / weights.sum(1)
            rows.update(zip(index, means.cpu(), strict=True))
        return torch.stack([rows[i] for i in range(len(rows))])
