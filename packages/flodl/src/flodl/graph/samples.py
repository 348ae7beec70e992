"""Values by sample: which rows of the named values belong to which rows of the stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flodl.errors import StepError

__all__ = ["rows_of"]


def rows_of(named: Mapping[str, Any], rows: Tensor, batch: int) -> dict[str, Any]:
    """The named values for the samples `rows: (chosen,)` of a batch of `batch`.

    A tensor has one row per sample and gives the chosen ones; one with a single row, a scalar and anything else is the
    same for every sample. Raises `StepError` for a tensor with another number of rows.
    """
    chosen = {}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.ndim and value.shape[0] != 1:
            if value.shape[0] != batch:
                raise StepError(f"'{name}' {tuple(value.shape)} has no row for each of the {batch} samples")
            value = value.index_select(0, rows)
        chosen[name] = value
    return chosen
