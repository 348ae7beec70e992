"""A torch DataLoader given as the dataset: what it was made of is kept, its order becomes exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from flodl import DataError
from flodl.data import Loader

N = 22
TENSORS = TensorDataset(torch.arange(N))


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return int(index)


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(N))


def batches(loader: Loader, epoch: int = 0, start: int = 0) -> list[list[int]]:
    return [(b[0] if isinstance(b, (list, tuple)) else b).tolist() for b in loader.epoch(epoch, start)]


def flat(loader: Loader, epoch: int = 0, start: int = 0) -> list[int]:
    return [i for batch in batches(loader, epoch, start) for i in batch]


def test_its_dataset_batch_size_and_drop_last_are_used() -> None:
    loader = Loader(DataLoader(TENSORS, batch_size=5, drop_last=True), 64)
    assert loader.resident, "tensors are gathered, not collated"
    assert loader.batch_size == 5
    assert loader.note == "batches of 5, as the DataLoader has them, not of 64"
    assert batches(loader) == [list(range(at, at + 5)) for at in (0, 5, 10, 15)]
    assert (loader.samples, loader.batches) == (20, 4)


def test_shuffling_is_kept_and_is_this_loaders_own() -> None:
    own = Loader(Rows(), 5, seed=3)
    given = Loader(DataLoader(Rows(), batch_size=5, shuffle=True), 64, seed=3)
    assert batches(given, 2) == batches(own, 2)
    assert not Loader(DataLoader(Rows(), batch_size=5), 64, shuffle=True).shuffle


def test_collate_and_workers_are_used() -> None:
    source = DataLoader(Rows(), batch_size=5, collate_fn=lambda rows: torch.tensor(rows) + 100, num_workers=2)
    assert flat(Loader(source, 64, seed=1)) == [100 + i for i in range(N)]


@pytest.mark.parametrize("start", [0, 4, 6, 22])
@pytest.mark.parametrize(
    "sampler",
    [
        WeightedRandomSampler([0.1] * 11 + [0.9] * 11, N),
        SubsetRandomSampler(range(N)),
        RandomSampler(Rows(), replacement=True, generator=torch.Generator().manual_seed(5)),
        DistributedSampler(Rows(), num_replicas=1, rank=0),
    ],
    ids=lambda s: type(s).__name__,
)
def test_a_sampler_of_the_users_own_is_a_function_of_seed_and_epoch(sampler: Any, start: int) -> None:
    def make(seed: int) -> Loader:
        return Loader(DataLoader(Rows(), batch_size=4, sampler=sampler), 64, seed=seed)

    states = torch.get_rng_state()
    loader = make(0)
    expected = flat(loader, 3)
    assert len(expected) == loader.samples == N
    assert loader.batches == 6
    assert flat(loader, 2) != expected
    assert flat(loader, 3, start) == expected[start:]
    torch.manual_seed(start)
    assert flat(make(0), 3) == expected, "drawn from the run's own generator"
    assert loader.order(3, start).tolist() == expected[start:]  # type: ignore[union-attr]
    if not isinstance(sampler, DistributedSampler):
        assert flat(make(1), 3) != expected
    torch.set_rng_state(states)


class Uneven(Sampler[list[int]]):
    """Batches of 1, 2, 3, ... samples, of unknown number."""

    def __iter__(self) -> Iterator[list[int]]:
        at, size = 0, 1
        while at < N:
            yield list(range(at, min(at + size, N)))
            at, size = at + size, size + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_sampler_of_the_users_own(workers: int) -> None:
    loader = Loader(DataLoader(Rows(), batch_sampler=Uneven()), 64, workers=workers)
    expected = [[0], [1, 2], [3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17, 18, 19, 20], [21]]
    assert batches(loader) == expected
    assert [n for _, n in loader.counted(0)] == [len(b) for b in expected]
    assert batches(loader, 0, 6) == expected[3:]
    assert batches(loader, 0, 8) == [[8, 9], *expected[4:]]
    assert loader.samples is None
    assert loader.batches is None


def test_torchs_own_batch_sampler_given_as_one() -> None:
    loader = Loader(
        DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(Rows()), 5, drop_last=True)), 64, seed=3
    )
    assert batches(loader, 2) == batches(Loader(Rows(), 5, seed=3, drop_last=True), 2)
    reverse = Loader(DataLoader(Rows(), batch_sampler=BatchSampler(range(N)[::-1], 5, drop_last=True)), 64)
    assert flat(reverse) == list(range(N))[::-1][:20]
    assert (reverse.samples, reverse.batches) == (20, 4)


def test_a_sampler_that_does_not_end_is_refused() -> None:
    class Endless(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            while True:
                yield 0

    with pytest.raises(DataError, match="does not end"):
        flat(Loader(DataLoader(Rows(), batch_size=4, sampler=Endless()), 64))


def test_keys_that_are_no_integers_are_refused() -> None:
    sampler = BatchSampler(["a", "b"], 2, False)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no integers.*'a'"):
        flat(Loader(DataLoader(Rows(), batch_sampler=sampler), 64))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterable_dataset_in_a_data_loader(workers: int) -> None:
    loader = Loader(DataLoader(Numbers(), batch_size=5, drop_last=True, num_workers=workers), 64)
    assert batches(loader, 0, 5) == [list(range(at, at + 5)) for at in (5, 10, 15)]
    assert loader.samples is None


def test_without_batching_each_item_is_a_batch() -> None:
    class Chunks(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.arange(index, index + 1 + index % 2)

    loader = Loader(DataLoader(Chunks(), batch_size=None), 64)
    assert batches(loader)[:3] == [[0], [1, 2], [2]]
    assert batches(loader, 0, 3)[0] == [2]
    shuffled = DataLoader(Chunks(), batch_size=None, shuffle=True, generator=torch.Generator().manual_seed(1))
    first, again = Loader(shuffled, 64), Loader(shuffled, 64)
    assert batches(first, 1) == batches(again, 1) != batches(again, 0)
    stream = Loader(DataLoader(Numbers(), batch_size=None, collate_fn=lambda i: torch.tensor([i])), 64)
    assert flat(stream) == list(range(N))


def test_grouping_by_length_has_no_say_over_a_sampler() -> None:
    with pytest.raises(DataError, match="sampler of its own"):
        Loader(DataLoader(Rows(), batch_size=4, sampler=range(N)), 64, group_by_length=[1] * N)
