"""The order of samples: a pure function of (seed, epoch, number of samples)."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from flodl.errors import DataError

__all__ = ["Position", "epoch_order", "length_order"]

_GROUP = 50  # batches that are sorted by length together


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in the data: `sample` samples of epoch `epoch` are done. `dataclasses.asdict` makes it plain to save."""

    epoch: int = 0
    sample: int = 0


def epoch_order(n: int, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """The indices of all samples in the order in which epoch `epoch` visits them: int64, (n,).

    The same arguments give the same order on every machine and in every later release, and no global random state is
    read or changed. Raises DataError for a `seed` or an `epoch` that is negative or no integer.
    """
    if not all(isinstance(number, Integral) and number >= 0 for number in (seed, epoch)):
        raise DataError(f"The order of samples needs integers of at least 0, not seed={seed!r}, epoch={epoch!r}.")
    order = np.arange(n, dtype=np.int64)
    if shuffle:
        _stream(seed, epoch).shuffle(order)
    return torch.from_numpy(order)


def length_order(lengths: Tensor, batch_size: int, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """As `epoch_order`, but so that each batch of `batch_size` has samples of similar length. lengths: (n,).

    Fifty batches of shuffled samples are sorted by length together, then whole batches change places. The short last
    batch stays last. A function of the batch size too: with another one the order is another.
    """
    order = epoch_order(len(lengths), seed, epoch, shuffle).numpy()
    group = np.arange(len(order)) // (_GROUP * batch_size)
    order = order[np.lexsort((-lengths.numpy()[order], group))]  # stable: equal lengths stay shuffled
    whole = len(order) - len(order) % batch_size
    if shuffle:
        batches = np.arange(whole // batch_size)
        _stream(seed, epoch, 1).shuffle(batches)
        order[:whole] = order[:whole].reshape(-1, batch_size)[batches].reshape(-1)
    return torch.from_numpy(order)


def _stream(*key: int) -> np.random.RandomState:
    # SeedSequence hashes the key, so neighbours share nothing (seed + epoch would repeat seed 1's epochs in seed 0).
    # RandomState and not Generator or torch.randperm: numpy promises that its stream never changes.
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(key)))
