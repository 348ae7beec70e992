"""A dataset whose samples are rows of tensors."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from flodl.data.batch import Batch, leaves, map_structure
from flodl.errors import DataError

__all__ = ["IGNORE_INDEX", "LABEL_NAMES", "Tensors", "labels_of"]

IGNORE_INDEX = -100
"""The label that losses skip (`ignore_index` of torch's cross entropy)."""

LABEL_NAMES = ("labels", "label", "targets", "target", "y")

_Self = TypeVar("_Self", bound="Tensors")


class Tensors:
    """Samples as rows of tensors: `Tensors(x, y)`, `Tensors({"x": x, "y": y})`, `Tensors(x)`.

    Each tensor or numpy array has shape `(samples, ...)`; they are used as they are, not copied. `ds[i]` is a sample and
    `ds[[i, j, k]]` a batch, both of the structure given: several arguments are a tuple, one argument is itself.

    `classes`: the number of classes. Labels, the last tensor of a tuple or the entry of a dict named `labels`, `label`,
    `targets`, `target` or `y`, must then be integers in `0 .. classes - 1`, or -100, which losses ignore.

    Raises DataError: no samples, tensors of different lengths, a value that is no tensor, labels out of range.
    """

    structure: Batch
    classes: int | None
    class_names: tuple[str, ...] | None

    def __init__(self, *columns: Any, classes: int | None = None, class_names: Sequence[str] | None = None) -> None:
        if not columns:
            raise DataError("Tensors() got no tensor: give x, or x and y, or a dict of tensors.")
        given = columns[0] if len(columns) == 1 else columns
        places = {id(leaf): place for place, leaf in leaves(given)}
        self.structure = map_structure(lambda leaf: _as_tensor(leaf, places[id(leaf)]), given)
        self._length = _common_length(self.structure)
        self._is_flat = type(self.structure) is tuple and all(isinstance(t, Tensor) for t in self.structure)
        self.classes = classes
        self.class_names = None if class_names is None else tuple(class_names)
        if classes is not None:
            _check_labels(*labels_of(self.structure), classes)

    def __len__(self) -> int:
        return self._length

    def fetch(self, index: Tensor, /) -> Batch:
        """The batch of the samples at `index`, int64 (batch,) on the tensors' device: one gather for each tensor."""
        if self._is_flat:  # the usual case skips the general walk
            return tuple([tensor.index_select(0, index) for tensor in self.structure])
        return map_structure(lambda t: t.index_select(0, index), self.structure)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Batch:
        """A sample for an integer, a batch for a list, a slice or an int64 tensor. Raises IndexError out of range."""
        if isinstance(index, slice):
            return map_structure(lambda t: t[index], self.structure)
        if isinstance(index, (Sequence, np.ndarray)) or (isinstance(index, Tensor) and index.ndim):
            chosen = torch.as_tensor(index, device=self.device)
            if chosen.numel() == 0:
                chosen = chosen.long()
            return map_structure(lambda t: t[chosen], self.structure)
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"sample {at} of a dataset of {len(self)}")
        return map_structure(lambda t: t[at], self.structure)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{place} {tuple(t.shape)}".strip() for place, t in leaves(self.structure))
        return f"{type(self).__name__}({shapes})"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return next(leaf for _, leaf in leaves(self.structure)).device  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        return sum(t.numel() * t.element_size() for _, t in leaves(self.structure))

    def to(self: _Self, device: torch.device | str) -> _Self:
        """The same dataset with its tensors on `device`; what is there already is not copied."""
        moved = copy.copy(self)
        moved.structure = map_structure(lambda t: t.to(device), self.structure)
        return moved


def _as_tensor(leaf: Any, place: str) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf.detach()
    if not isinstance(leaf, np.ndarray):
        raise DataError(f"A dataset holds tensors or numpy arrays; {place or 'the argument'} is {_kind(leaf)}.")
    with warnings.catch_warnings():
        # A read-only array (a memory map) is shared, not copied: nothing here writes to it.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        try:
            return torch.from_numpy(np.ascontiguousarray(leaf))
        except TypeError as error:
            raise DataError(f"The array {place} of dtype {leaf.dtype} cannot be a tensor: {error}") from error


def _kind(value: Any) -> str:
    return f"{value!r} of type {type(value).__name__}" if isinstance(value, (int, float, str)) else type(value).__name__


def _common_length(structure: Batch) -> int:
    tensors = list(leaves(structure))
    if not tensors:
        raise DataError(f"A dataset needs at least one tensor; got an empty {type(structure).__name__}.")
    for place, tensor in tensors:
        if tensor.ndim == 0:
            raise DataError(f"The tensor {place} is a single number: a dataset's tensors have shape (samples, ...).")
    lengths = {tensor.shape[0] for _, tensor in tensors}
    if len(lengths) > 1:
        listed = ", ".join(f"{place} has {t.shape[0]}" for place, t in tensors)
        raise DataError(f"A dataset's tensors must have the same number of samples: {listed}.")
    (length,) = lengths
    if length == 0:
        listed = ", ".join(f"{place} {tuple(t.shape)}".strip() for place, t in tensors)
        raise DataError(f"An empty dataset cannot be trained on: {listed}.")
    return int(length)


def labels_of(structure: Batch) -> tuple[str, Tensor]:
    """Where the labels of samples or of a batch are, and they: a dict's by name, else the last tensor."""
    if isinstance(structure, Mapping):
        for name in LABEL_NAMES:
            if isinstance(structure.get(name), Tensor):
                return f"[{name!r}]", structure[name]
        raise DataError(
            f"No labels: they are one of {', '.join(LABEL_NAMES)}; the dict has {', '.join(map(repr, structure))}."
        )
    return list(leaves(structure))[-1]


def _check_labels(place: str, labels: Tensor, classes: int) -> None:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(f"Labels of {classes} classes are integers; {place or 'the tensor'} is {labels.dtype}.")
    labels = labels.long()  # compared with bytes, -100 and 1000 would wrap around
    wrong = ((labels < 0) | (labels >= classes)) & (labels != IGNORE_INDEX)
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        value = labels[tuple(at)].item()
        where = str(at[0]) if len(at) == 1 else str(tuple(at))
        raise DataError(
            f"Label {value} of sample {where} is outside 0..{classes - 1} ({int(wrong.sum())} of {labels.numel()} labels "
            f"are; {IGNORE_INDEX} marks a label to ignore)."
        )
