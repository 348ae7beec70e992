"""Batches: a tensor, or tensors nested in tuples, lists, dicts and dataclasses; other values pass unchanged."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from flodl.errors import DataError

__all__ = ["Batch", "batch_size_of", "leaves", "map_structure", "pinned", "to_device"]

Batch: TypeAlias = Any
"""What the training loop unpacks: `Tensor | tuple | list | Mapping | dataclass | None`, nested. The first dimension of
its tensors counts the samples. Python's type system cannot say "the same structure as the dataset", hence `Any`."""


def map_structure(fn: Callable[[Any], Any], batch: Batch) -> Batch:
    """The same structure with `fn` applied to each value that is no container (tensors, arrays, numbers, strings).

    `None` stays `None`. Containers keep their type: named tuples, subclasses of dict, dataclasses (also frozen ones).
    """
    if batch is None or isinstance(batch, Tensor):
        return None if batch is None else fn(batch)
    if type(batch) is tuple:
        return tuple([map_structure(fn, item) for item in batch])
    if type(batch) is dict:
        return {key: map_structure(fn, item) for key, item in batch.items()}
    if isinstance(batch, PackedSequence):  # a named tuple whose parts do not move alike
        return fn(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[map_structure(fn, item) for item in batch])
    if isinstance(batch, (tuple, list)):
        return type(batch)([map_structure(fn, item) for item in batch])
    if isinstance(batch, Mapping):
        changed: Any = copy.copy(batch)
        for key, item in batch.items():
            changed[key] = map_structure(fn, item)
        return changed
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        # Not dataclasses.replace: it runs __post_init__ again and refuses fields with init=False.
        changed = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(changed, field.name, map_structure(fn, getattr(batch, field.name)))
        return changed
    return fn(batch)


def leaves(batch: Batch, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that `map_structure` would visit, with its place as an index expression: `"['x'][0]"`, `".mask"`."""
    if batch is None:
        return
    if isinstance(batch, Mapping):
        for key, item in batch.items():
            yield from leaves(item, f"{place}[{key!r}]")
    elif isinstance(batch, (tuple, list)):
        names = getattr(batch, "_fields", None)
        for i, item in enumerate(batch):
            yield from leaves(item, f"{place}.{names[i]}" if names else f"{place}[{i}]")
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from leaves(getattr(batch, field.name), f"{place}.{field.name}")
    else:
        yield place, batch


def batch_size_of(batch: Batch) -> int:
    """The number of samples: the first dimension of the first tensor in `batch` that has one.

    Raises DataError when no tensor in it has a dimension.
    """
    if isinstance(batch, Tensor) and batch.ndim:
        return batch.shape[0]
    for _, leaf in leaves(batch):
        if isinstance(leaf, Tensor) and leaf.ndim:
            return leaf.shape[0]
    raise DataError(f"A batch of type {type(batch).__name__} has no tensor with a first dimension to count samples by.")


def to_device(batch: Batch, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
    """`batch` with its tensors on `device`; a tensor that is there already is not copied, other values are kept.

    An object that knows how to move (a method `to`, such as `PackedSequence` or a graph) moves itself.
    """

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return leaf.to(device) if _is_movable(leaf) else leaf

    return map_structure(move, batch)


def pinned(batch: Batch) -> Batch:
    """`batch` with its CPU tensors in page-locked memory, from which CUDA copies without waiting."""

    def pin(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.pin_memory() if leaf.device.type == "cpu" and leaf.layout == torch.strided else leaf
        return leaf.pin_memory() if _is_movable(leaf) and callable(getattr(leaf, "pin_memory", None)) else leaf

    return map_structure(pin, batch)


def _is_movable(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "to", None))
