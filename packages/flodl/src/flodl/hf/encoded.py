"""Tokenised samples in flat memory: a batch is padded to its longest by one gather for each column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from flodl.errors import DataError

__all__ = ["Encoded"]

Batch = dict[str, Tensor]


class Encoded:
    """A dataset of token sequences for `fl.Trainer` and `fl.data.Loader`.

    sequences: columns of one list of integers a sample (`input_ids`, `token_type_ids`, `labels`), all of a sample's equally
    long. rows: columns of one value a sample, (samples, ...). pads: what a column is padded with (default 0).
    finish: makes of each batch another, such as one with masked tokens; it may draw from torch's generator.
    multiple_of: batches are padded to a multiple of so many tokens.

    A batch is a dict of (batch, tokens) or (batch, ...), with `attention_mask` from the lengths. Raises DataError for
    columns that do not fit together, and for no samples.
    """

    lengths: Tensor
    """Tokens of each sample: int64, (samples,)."""

    def __init__(
        self,
        sequences: Mapping[str, Sequence[Sequence[int]]],
        rows: Mapping[str, Tensor] | None = None,
        *,
        pads: Mapping[str, int] | None = None,
        finish: Callable[[Batch], Batch] | None = None,
        multiple_of: int = 1,
    ) -> None:
        first = sequences["input_ids"]
        if len(first) == 0:
            raise DataError("There are no samples to train on.")
        counts = np.fromiter((len(s) for s in first), np.int64, len(first))
        for name, column in sequences.items():
            if len(column) != len(first):
                raise DataError(f"{name} has {len(column)} samples, input_ids has {len(first)}.")
            wrong = next((i for i, s in enumerate(column) if len(s) != counts[i]), None)
            if wrong is not None:
                raise DataError(f"{name} of sample {wrong} has {len(column[wrong])} values for {counts[wrong]} tokens.")
        self.lengths = torch.from_numpy(counts)
        self._starts = self.lengths.cumsum(0) - self.lengths
        self._flat = {
            name: torch.from_numpy(np.concatenate([np.asarray(s, dtype=np.int64) for s in column]))
            for name, column in sequences.items()
        }
        self._rows = dict(rows or {})
        for name, values in self._rows.items():
            if len(values) != len(first):
                raise DataError(f"There are {len(values)} {name} for {len(first)} samples.")
        self._pads, self._finish, self._multiple_of = dict(pads or {}), finish, multiple_of

    def __len__(self) -> int:
        return len(self.lengths)

    def fetch(self, index: Tensor, /) -> Batch:
        """The padded batch of the samples at `index`, int64 (batch,)."""
        lengths = self.lengths[index]
        longest = -(-int(lengths.max()) // self._multiple_of) * self._multiple_of
        place = torch.arange(longest)
        inside = place < lengths[:, None]
        at = (self._starts[index][:, None] + place)[inside]
        batch = {}
        for name, flat in self._flat.items():
            column = torch.full(inside.shape, self._pads.get(name, 0))
            column[inside] = flat[at]
            batch[name] = column
        batch["attention_mask"] = inside.long()
        for name, values in self._rows.items():
            batch[name] = values[index]
        return self._finish(batch) if self._finish else batch

    def __repr__(self) -> str:
        columns = ", ".join([*self._flat, *self._rows])
        return (
            f"Encoded({len(self)} samples of {int(self.lengths.min())} to {int(self.lengths.max())} tokens: {columns})"
        )
