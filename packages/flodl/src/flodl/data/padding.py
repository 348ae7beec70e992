"""Batches of samples of different length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from flodl.data.batch import Batch
from flodl.data.tensors import IGNORE_INDEX, LABEL_NAMES
from flodl.errors import DataError

__all__ = ["pad_collate"]

_ZERO = ("attention_mask", "token_type_ids", "special_tokens_mask")  # of tokenizers: padding is none of it


def pad_collate(
    pad_value: float = 0, *, labels: int = IGNORE_INDEX, multiple_of: int = 1
) -> Callable[[list[Any]], Batch]:
    """A `collate` that pads sequences to the longest of their batch, or to the next multiple of `multiple_of`.

    A sequence is a tensor, an array or a list of numbers; its first dimension is padded, the others must agree. Samples
    may be sequences, dicts of them (as tokenizers give), tuples or dataclasses, nested; numbers and sequences of one
    length are stacked. `labels` pads what is a label: an entry named `labels`, `label`, `targets`, `target` or `y`, and
    the last of a tuple of several. A tokenizer's masks are padded with 0, the rest with `pad_value`.

    The collate raises DataError for samples of different structure.
    """
    if multiple_of < 1:
        raise DataError(f"Sequences cannot be padded to a multiple of {multiple_of}.")
    return _Pad(pad_value, labels, multiple_of)


@dataclasses.dataclass(frozen=True)
class _Pad:
    """A class, so that it pickles."""

    pad_value: float
    labels: int
    multiple_of: int

    def __call__(self, samples: list[Any]) -> Batch:
        return self._batch(samples, self.pad_value, "")

    def _batch(self, values: Sequence[Any], pad: float, place: str) -> Batch:
        first = values[0]
        if first is None and all(value is None for value in values):
            return None
        if isinstance(first, Mapping):
            missing = [key for key in first if not all(isinstance(v, Mapping) and key in v for v in values)]
            if missing or any(len(v) != len(first) for v in values):
                raise DataError(f"Samples with different keys do not make a batch{_at(place)}: {missing or 'see all'}.")
            return {
                key: self._batch([v[key] for v in values], self._pad_of(key, pad), f"{place}[{key!r}]") for key in first
            }
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            names = [field.name for field in dataclasses.fields(first) if field.init]
            parts = {
                name: self._batch([getattr(v, name) for v in values], self._pad_of(name, pad), f"{place}.{name}")
                for name in names
            }
            return type(first)(**parts)
        if isinstance(first, tuple):
            if len({len(value) for value in values}) > 1:
                raise DataError(f"Tuples of different length do not make a batch{_at(place)}.")
            last = len(first) - 1
            columns = [
                self._batch(column, self.labels if last and i == last else pad, f"{place}[{i}]")
                for i, column in enumerate(zip(*values, strict=True))
            ]
            return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
        if isinstance(first, (Tensor, np.ndarray, list)):
            return self._padded([_tensor(value, place) for value in values], pad, place)
        return default_collate(list(values))

    def _pad_of(self, name: Any, pad: float) -> float:
        if name in LABEL_NAMES:
            return self.labels
        return 0 if name in _ZERO else pad

    def _padded(self, tensors: list[Tensor], pad: float, place: str) -> Tensor:
        shapes = [tuple(t.shape) for t in tensors]
        if len({shape[1:] for shape in shapes}) > 1 or len({len(shape) for shape in shapes}) > 1:
            raise DataError(f"Only the first dimension is padded{_at(place)}; the samples have shapes {shapes[:4]}.")
        if not shapes[0]:
            return torch.stack(tensors)
        longest = max(shape[0] for shape in shapes)
        if self.multiple_of > 1:
            longest = -(-longest // self.multiple_of) * self.multiple_of
        elif all(shape[0] == longest for shape in shapes):
            return torch.stack(tensors)
        dtype = next((t.dtype for t in tensors if len(t)), tensors[0].dtype)  # an empty list tells none
        batch = torch.full((len(tensors), longest, *shapes[0][1:]), pad, dtype=dtype)
        for row, tensor in zip(batch, tensors, strict=True):
            row[: len(tensor)] = tensor
        return batch


def _tensor(value: Any, place: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"A value of type {type(value).__name__} cannot be padded{_at(place)}: {error}") from error


def _at(place: str) -> str:
    return f" at {place}" if place else ""
