"""Values by sample: which rows of the named values belong to which rows of the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from flodl.errors import StepError

__all__ = ["in_tensors", "rows_of"]


def rows_of(named: Mapping[str, Any], rows: Tensor, batch: int) -> dict[str, Any]:
    """The named values for the samples `rows: (chosen,)` of a batch of `batch`.

    A tensor, also inside tuples, lists and dictionaries, has one row per sample and gives the chosen ones; one with a
    single row, a scalar and anything else is the same for every sample. Raises `StepError` for a tensor with another
    number of rows.
    """

    def chosen(name: str, value: Tensor) -> Tensor:
        if not value.ndim or value.shape[0] == 1:
            return value
        if value.shape[0] != batch:
            raise StepError(f"'{name}' {tuple(value.shape)} has no row for each of the {batch} samples")
        return value.index_select(0, rows)

    return {name: in_tensors(partial(chosen, name), value) for name, value in named.items()}


def in_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The value with `function` applied to each tensor in it, through tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return function(value)
    return _pytree.tree_map_only(Tensor, function, value)
