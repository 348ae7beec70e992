"""The lengths of a dataset's samples, to make batches of similar ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flodl.data.batch import leaves
from flodl.data.seeding import untouched
from flodl.data.tensors import Tensors
from flodl.errors import DataError

__all__ = ["lengths_of"]


def lengths_of(dataset: Any, given: Any) -> Tensor:
    """int64, (samples,). `given` is the lengths, or True: then the dataset's attribute `lengths`, the sums of its
    `attention_mask`, or the first sequence of each sample, for which all samples are read once.

    Raises DataError where there is no such thing, or the number of lengths is another than that of samples.
    """
    own = getattr(dataset, "source", dataset)  # of an adapter
    if given is True:
        given = getattr(own, "lengths", None)
        if given is None and isinstance(dataset, Tensors):
            given = _of_tensors(dataset)
        elif given is None:
            given = _of_samples(own)
    lengths = torch.as_tensor(given).to("cpu", torch.int64)
    if lengths.shape != (len(dataset),):
        raise DataError(f"group_by_length got lengths of shape {tuple(lengths.shape)} for {len(dataset)} samples.")
    return lengths


def _of_tensors(dataset: Tensors) -> Tensor:
    structure = dataset.structure
    if isinstance(structure, Mapping) and isinstance(structure.get("attention_mask"), Tensor):
        return structure["attention_mask"].flatten(1).sum(1)  # type: ignore[no-any-return]
    raise DataError(
        "group_by_length: rows of a tensor are all equally long, and there is no attention_mask; give the lengths."
    )


def _of_samples(dataset: Any) -> list[int]:
    if not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"group_by_length: {type(dataset).__name__} gives batches only; give the lengths, or it an attribute lengths."
        )
    with untouched():
        return [_length(dataset[i], i, type(dataset).__name__) for i in range(len(dataset))]


def _length(sample: Any, number: int, name: str) -> int:
    if isinstance(sample, Mapping) and sample:
        parts: list[Any] = [sample.get("input_ids"), *sample.values()]
    else:
        parts = list(sample) if isinstance(sample, tuple) else [sample]
    for part in parts:
        if isinstance(part, (list, str)):
            return len(part)
        for _, leaf in leaves(part):
            if getattr(leaf, "ndim", 0):
                return int(leaf.shape[0])
    raise DataError(f"group_by_length: sample {number} of {name} has no sequence; give the lengths.")
