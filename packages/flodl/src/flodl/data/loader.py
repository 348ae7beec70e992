"""Batches of a dataset in a reproducible order, from any position."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from torch import Tensor

from flodl.data.batch import Batch, to_device
from flodl.data.dataset import as_dataset
from flodl.data.order import epoch_order
from flodl.data.tensors import Tensors
from flodl.errors import DataError

__all__ = ["Loader"]

_RESIDENT_SHARE = 0.5  # of the device's free memory; the rest is for the model, its gradients and activations


class Loader:
    """Batches of `dataset` (anything that `as_dataset` takes) on `device`.

    The order is a pure function of (seed, epoch), a place in it is a number of samples: `epoch(e, start=s)` gives
    exactly the samples that a loop stopped after `s` samples had not seen. The last batch is short where the batch size
    does not divide the dataset, unless `drop_last`.

    Tensor datasets are moved to the device once when they take at most half of its free memory (`resident`), and a
    batch is one gather per tensor. Others are fetched per batch and moved.

    Raises DataError: a batch size below 1 or no integer; `drop_last` with less than one batch of samples.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.dataset = as_dataset(dataset)
        self.batch_size = _checked_batch_size(batch_size)
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.device = torch.device(device)
        if drop_last and self.batch_size > len(self.dataset):
            raise DataError(
                f"drop_last leaves no batch: the dataset has {len(self.dataset)} samples, the batch size is "
                f"{self.batch_size}."
            )
        epoch_order(0, seed, 0)  # a seed that cannot be used is refused here, not in the first epoch
        self.resident = isinstance(self.dataset, Tensors) and _fits(self.dataset, self.device)
        if self.resident and isinstance(self.dataset, Tensors):
            self.dataset = self.dataset.to(self.device)

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return -(-self.samples // self.batch_size)

    @property
    def batches(self) -> int | None:
        """Batches in a whole epoch, None where that is not known."""
        return len(self)

    @property
    def samples(self) -> int:
        """Samples in a whole epoch: `len(dataset)`, or the whole batches' part of it with `drop_last`."""
        n = len(self.dataset)
        return n - n % self.batch_size if self.drop_last else n

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `epoch` (from 0) after its first `start` samples, as the loop unpacks them."""
        return (batch for batch, _ in self.counted(epoch, start))

    def counted(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        """As `epoch`, each batch with its number of samples: their running sum plus `start` is the position."""
        order = self._remaining(epoch, start)
        return self._resident(order) if self.resident else self._streamed(order)

    def _remaining(self, epoch: int, start: int) -> Tensor:
        if not 0 <= start <= len(self.dataset):
            raise DataError(f"An epoch of {len(self.dataset)} samples cannot be resumed after sample {start}.")
        order = epoch_order(len(self.dataset), self.seed, epoch, self.shuffle)[start:]
        return order[: len(order) - len(order) % self.batch_size] if self.drop_last else order

    def _resident(self, order: Tensor) -> Iterator[tuple[Batch, int]]:
        fetch, size, total = self.dataset.fetch, self.batch_size, len(order)
        order = order.to(self.device)
        whole = total - total % size
        for at in range(0, whole, size):
            yield fetch(order.narrow(0, at, size)), size
        if whole < total:
            yield fetch(order.narrow(0, whole, total - whole)), total - whole

    def _streamed(self, order: Tensor) -> Iterator[tuple[Batch, int]]:
        for index in (order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)):
            yield to_device(self.dataset.fetch(index), self.device, non_blocking=True), len(index)


def _checked_batch_size(batch_size: Any) -> int:
    try:
        size = operator.index(batch_size)
    except TypeError:
        size = 0
    if size < 1 or isinstance(batch_size, bool):
        raise DataError(f"The batch size must be an integer of at least 1, not {batch_size!r}.")
    return size


def _fits(dataset: Tensors, device: torch.device) -> bool:
    if device.type == dataset.device.type == "cpu":
        return True
    if dataset.device.type == device.type and device.index in (None, dataset.device.index):
        return True
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return dataset.nbytes <= _RESIDENT_SHARE * free
