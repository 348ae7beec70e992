"""Plain types: what a file may hold so that it loads with `weights_only=True`, without running code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.errors import CheckpointError

__all__ = ["plain"]

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def plain(value: Any, place: str) -> Any:
    """`value` with numpy scalars and subclasses of dict, list and tuple made plain; tensors are detached.

    A tensor that shows a small part of a larger storage is copied, or the whole storage would go into the file.
    Raises CheckpointError that names the place of a value of any other type.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Tensor):
        part = value.detach()
        whole = part.layout != torch.strided or part.untyped_storage().nbytes() <= part.numel() * part.element_size()
        return part if whole else part.clone()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {plain(key, f"{place} (a key)"): plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple([plain(item, f"{place}[{i}]") for i, item in enumerate(value)])
    if isinstance(value, list):
        return [plain(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return {plain(item, f"{place} (an item)") for item in value}
    hint = " (torch.from_numpy makes it a tensor)" if isinstance(value, np.ndarray) else ""
    raise CheckpointError(
        f"{place} is of type {type(value).__name__}: a checkpoint holds tensors, numbers, strings, None and "
        f"dicts, lists, tuples and sets of them{hint}."
    )
