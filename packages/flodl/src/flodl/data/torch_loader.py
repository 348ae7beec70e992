"""A torch `DataLoader` as what it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from flodl.data.batch import Batch
from flodl.data.seeding import seeded
from flodl.data.source import Batches
from flodl.errors import DataError

__all__ = ["Parts", "SamplerPlan", "take_apart"]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a `DataLoader` was made of; None where it leaves the choice."""

    dataset: Any
    batch_size: int | None
    shuffle: bool | None
    drop_last: bool
    collate: Callable[[list[Any]], Batch] | None
    workers: int | None
    prefetch: int | None
    plan: Callable[[int], SamplerPlan] | None
    """Of a sampler of the user's own, by the seed."""


def take_apart(loader: DataLoader[Any]) -> Parts:
    """The parts of `loader`. Torch's own samplers say only whether it shuffles; any other one is kept."""
    dataset: Any = loader.dataset
    batch_size, drop_last, sampler = loader.batch_size, loader.drop_last, loader.sampler
    if type(loader.batch_sampler) is BatchSampler:  # given as such, the loader says nothing of its parts
        given = loader.batch_sampler
        batch_size, drop_last, sampler = given.batch_size, given.drop_last, given.sampler
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    shuffle: bool | None = None
    plan: Callable[[int], SamplerPlan] | None = None
    if isinstance(dataset, IterableDataset):
        if batch_size is None:
            dataset = Batches(dataset)
    elif loader.batch_sampler is None:  # batch_size=None: each item is a batch
        dataset = Batches(_Items(dataset, sampler))
    elif type(loader.batch_sampler) is BatchSampler and type(sampler) is SequentialSampler:
        shuffle = False
    elif type(loader.batch_sampler) is BatchSampler and _is_permutation(sampler, dataset):
        shuffle = True
    else:
        generator = loader.generator

        def plan(seed: int) -> SamplerPlan:
            return SamplerPlan(loader.batch_sampler, sampler, generator, len(dataset), seed)

    return Parts(
        dataset=dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        collate=collate,
        workers=loader.num_workers or None,
        prefetch=loader.prefetch_factor if loader.num_workers else None,
        plan=plan,
    )


class SamplerPlan:
    """The index batches of a sampler. It draws from generators seeded by (seed, epoch), and is read anew at a resume."""

    def __init__(
        self, batch_sampler: Any, sampler: Any, generator: torch.Generator | None, samples: int, seed: int
    ) -> None:
        self.batch_sampler, self.sampler = batch_sampler, sampler
        self.seed = seed
        self._endless = 1000 + 100 * samples
        owners = [getattr(owner, "generator", None) for owner in (batch_sampler, sampler)]
        found = [g for g in (generator, *owners) if isinstance(g, torch.Generator)]
        self._generators = list({id(g): g for g in found}.values())

    def __call__(self, epoch: int, start: int) -> list[Tensor]:
        """The indices of each batch of `epoch` after `start` samples."""
        for owner in (self.batch_sampler, self.sampler):
            _set_epoch(owner, epoch)
        batches, at = [], 0
        with self._seeded(epoch):
            for keys in self.batch_sampler:
                rest = keys[max(start - at, 0) :]
                at += len(keys)
                if len(rest):
                    batches.append(_index(rest))
                if at > self._endless:
                    raise DataError(f"The sampler of the DataLoader does not end: {at} samples in one epoch.")
        return batches

    @property
    def samples(self) -> int | None:
        """In an epoch, where the samplers tell it."""
        try:
            n = len(self.sampler) if type(self.batch_sampler) is BatchSampler else None
        except TypeError:
            return None
        if n is not None and self.batch_sampler.drop_last:
            n -= n % self.batch_sampler.batch_size
        return n

    @property
    def batches(self) -> int | None:
        """In an epoch, where the sampler tells it."""
        try:
            return len(self.batch_sampler)
        except TypeError:
            return None

    @contextmanager
    def _seeded(self, epoch: int) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(seeded(self.seed, epoch, 0, 1))  # (..., 0) is the first batch's
            for generator in self._generators:
                stack.callback(generator.set_state, generator.get_state())
                key = np.random.SeedSequence([generator.initial_seed(), self.seed, epoch])
                generator.manual_seed(int(key.generate_state(1)[0]))
            yield


def _set_epoch(sampler: Any, epoch: int) -> None:
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


def _is_permutation(sampler: Any, dataset: Any) -> bool:
    return type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset)


def _index(keys: Any) -> Tensor:
    try:
        return torch.as_tensor(keys, dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise DataError(f"The sampler of the DataLoader gives keys that are no integers: {keys[:3]}.") from error


@dataclass(frozen=True)
class _Items:
    """A dataset whose items are batches, in the order of a sampler."""

    dataset: Any
    sampler: Any

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[key] for key in self.sampler)

    def set_epoch(self, epoch: int) -> None:
        _set_epoch(self.sampler, epoch)
        generator = getattr(self.sampler, "generator", None)
        if generator is not None:
            generator.manual_seed(epoch)
