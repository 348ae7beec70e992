"""Whether two datasets are the same, without reading all of them."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from flodl.data.batch import leaves
from flodl.data.seeding import seeded

__all__ = ["fingerprint"]

_SAMPLES = 8


def fingerprint(dataset: Any) -> str:
    """16 hexadecimal digits that differ, all but surely, between datasets of other length, structure, shapes, dtypes or
    values in eight samples spread over the whole.

    dataset: a `BatchDataset`, as `as_dataset` makes it. Of anything without a length, only the type counts. Samples are
    read under fixed random numbers, so augmentation changes nothing.
    """
    digest = hashlib.sha256()
    if not hasattr(dataset, "fetch"):
        digest.update(f"{type(dataset).__module__}.{type(dataset).__qualname__}".encode())
        return digest.hexdigest()[:16]
    digest.update(f"{len(dataset)}".encode())
    with seeded(0):
        for at in sorted({i * (len(dataset) - 1) // (_SAMPLES - 1) for i in range(_SAMPLES)}):
            for place, leaf in leaves(dataset.fetch(torch.tensor([at]))):
                _add(digest, place, leaf)
    return digest.hexdigest()[:16]


def _add(digest: Any, place: str, leaf: Any) -> None:
    if not isinstance(leaf, Tensor):
        plain = isinstance(leaf, (bool, int, float, str, bytes))
        digest.update(f"{place} {type(leaf).__name__} {leaf if plain else ''}".encode())
        return
    digest.update(f"{place} {leaf.dtype} {tuple(leaf.shape)}".encode())
    if leaf.layout == torch.strided:
        flat = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
