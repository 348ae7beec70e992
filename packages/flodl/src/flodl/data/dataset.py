"""What can be trained on: anything that answers a tensor of indices with a batch, and the adapters that make it so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from flodl.data.batch import Batch, leaves, map_structure
from flodl.data.seeding import untouched
from flodl.data.tensors import Tensors
from flodl.errors import DataError

__all__ = ["BatchDataset", "array_to_tensor", "as_dataset", "collated"]

Collate = Callable[[list[Any]], Batch]


@runtime_checkable
class BatchDataset(Protocol):
    """A dataset that answers many indices at once. Your own class may be one: it is then used as it is."""

    def __len__(self) -> int:
        """The number of samples."""

    def fetch(self, index: Tensor, /) -> Batch:
        """The batch of the samples at `index`: int64, (batch,)."""


def as_dataset(source: Any, *, collate: Collate | None = None) -> BatchDataset:
    """`source` as a dataset that answers a tensor of indices with a batch.

    Taken: a `BatchDataset` (`fl.data.Tensors`); a tensor or numpy array, a tuple or list of them, a dict of them;
    torch's `TensorDataset`; a map-style dataset (`__len__` and `__getitem__`). The latter is asked for a list of indices
    at once when it answers `ds[[i, j]]` with the same batch as `ds[i]` and `ds[j]` stacked; else for `__getitems__` or
    sample by sample, and `collate` (default: torch's `default_collate`) makes the batch.

    Raises DataError for anything else, and for an empty dataset.
    """
    if isinstance(source, (Tensor, np.ndarray, Mapping)):
        return Tensors(source)
    if isinstance(source, (tuple, list)) and source and all(isinstance(t, (Tensor, np.ndarray)) for t in source):
        return Tensors(tuple(source))
    if type(source) is TensorDataset and collate is None:
        return Tensors(source.tensors)
    if isinstance(source, BatchDataset):
        return _not_empty(source)
    if isinstance(source, DataLoader):
        raise DataError("A torch DataLoader is no dataset: give it to Loader or Trainer, or pass its dataset here.")
    if isinstance(source, IterableDataset):
        raise DataError(f"{type(source).__name__} is an IterableDataset: its samples have no index to be shuffled by.")
    if isinstance(source, (str, bytes, tuple, list)) or not _is_map_style(source):
        raise DataError(
            f"Cannot train on {_describe(source)}: give tensors or arrays (x, y), a dict of tensors, fl.data.Tensors or "
            "a torch Dataset with __len__ and __getitem__."
        )
    _not_empty(source)
    if collate is None and _answers_lists(source):
        return _ByList(source)
    return _BySample(source, collate or default_collate)


class _ByList:
    """`source[[i, j]]` is a batch."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, index: Tensor, /) -> Batch:
        return map_structure(array_to_tensor, self.source[index.tolist()])


class _BySample:
    """`source[i]` (or `source.__getitems__([i, j])`) gives samples, `collate` the batch."""

    def __init__(self, source: Any, collate: Collate) -> None:
        self.source = source
        self.collate = collate

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, index: Tensor, /) -> Batch:
        many = getattr(self.source, "__getitems__", None)
        wanted = index.tolist()
        samples = many(wanted) if many is not None else [self.source[i] for i in wanted]
        some = f"{wanted[:4]}{'...' if len(wanted) > 4 else ''}"
        return collated(self.collate, samples, f"Samples {some} of {type(self.source).__name__}")


def collated(collate: Collate, samples: list[Any], what: str) -> Batch:
    """`collate(samples)`; raises DataError that names `what` when they do not make a batch."""
    try:
        return collate(samples)
    except (RuntimeError, TypeError, KeyError) as error:
        # RuntimeError: shapes that do not stack; TypeError: a type that collate does not know; KeyError: a key less.
        raise DataError(
            f"{what} do not make a batch: {error}. Give collate=, such as fl.data.pad_collate() for sequences of "
            "different lengths."
        ) from error


def _is_map_style(source: Any) -> bool:
    return not isinstance(source, type) and hasattr(source, "__len__") and hasattr(source, "__getitem__")


def _describe(source: Any) -> str:
    if isinstance(source, (tuple, list)):
        kinds = sorted({type(item).__name__ for item in source})
        return f"a {type(source).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"an object of type {type(source).__name__}"


def _not_empty(source: BatchDataset) -> BatchDataset:
    if len(source) == 0:
        raise DataError(f"An empty dataset cannot be trained on: len({type(source).__name__}) is 0.")
    return source


def _answers_lists(source: Any) -> bool:
    """Whether `source[[i, j]]` is the batch of `source[i]` and `source[j]`: same structure, shapes, dtypes and values.

    Values too, because code written for one sample may take a batch and mean another thing (`x - x.mean()`).
    """
    pair = [0, len(source) - 1]
    with untouched():  # random augmentation draws numbers here that the run must not miss
        samples = [source[i] for i in pair]
        try:
            stacked = default_collate(samples)
            got = map_structure(array_to_tensor, source[pair])
        except Exception:
            return False  # refusing a list is the usual case; an error of the dataset's own was raised by source[i]
    ours, theirs = list(leaves(stacked)), list(leaves(got))
    return len(ours) == len(theirs) and all(
        place == other and _same(a, b) for (place, a), (other, b) in zip(ours, theirs, strict=True)
    )


def _same(a: Any, b: Any) -> bool:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return type(a) is type(b) and bool(a == b)
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, equal_nan=True)


def array_to_tensor(leaf: Any) -> Any:
    return torch.as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
