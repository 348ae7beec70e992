"""Plain types: what a file may hold so that it loads with `weights_only=True`, without running code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.errors import CheckpointError

__all__ = ["joined", "plain", "split"]

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_MARK = "\0tensor"  # {_MARK: key} stands for a tensor that is kept elsewhere


def plain(value: Any, place: str, tensor: Callable[[Tensor, str], Any] | None = None) -> Any:
    """`value` with numpy scalars and subclasses of dict, list and tuple made plain.

    tensor: what becomes of a tensor and its place; else it is detached, and copied when it shows a small part of a larger
    storage, or the whole storage would go into the file. Raises CheckpointError that names the place of a value of any
    other type.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Tensor):
        return _detached(value) if tensor is None else tensor(value.detach(), place)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        if _MARK in value:
            raise CheckpointError(f"{place} has the key {_MARK!r}, which checkpoints keep for themselves.")
        items = {
            plain(key, f"{place} (a key)"): plain(item, f"{place}[{key!r}]", tensor) for key, item in value.items()
        }
        return Counter(items) if type(value) is Counter else items  # torch's schedulers keep one
    if isinstance(value, tuple):
        return tuple([plain(item, f"{place}[{i}]", tensor) for i, item in enumerate(value)])
    if isinstance(value, list):
        return [plain(item, f"{place}[{i}]", tensor) for i, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return {plain(item, f"{place} (an item)") for item in value}
    hint = " (torch.from_numpy makes it a tensor)" if isinstance(value, np.ndarray) else ""
    raise CheckpointError(
        f"{place} is of type {type(value).__name__}: a checkpoint holds tensors, numbers, strings, None and "
        f"dicts, lists, tuples and sets of them{hint}."
    )


def split(value: Any, place: str, keep: Callable[[Tensor, str], str | None]) -> Any:
    """`value` made plain; a tensor that `keep(tensor, place)` gives a key for is replaced by a mark with that key."""

    def marked(tensor: Tensor, where: str) -> Any:
        key = keep(tensor, where)
        return _detached(tensor) if key is None else {_MARK: key}

    return plain(value, place, marked)


def joined(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `split` took apart."""
    if type(value) is dict:
        if _MARK in value:
            return tensors[value[_MARK]]
        return {key: joined(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(joined(item, tensors) for item in value)
    return value


def _detached(tensor: Tensor) -> Tensor:
    part = tensor.detach()
    whole = part.layout != torch.strided or part.untyped_storage().nbytes() <= part.numel() * part.element_size()
    return part if whole else part.clone()
