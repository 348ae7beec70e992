from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from flodl import DataError
from flodl.data import Loader, Tensors


class Rows(Dataset[Any]):
    """Streamed: sample by sample."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return float(index), int(index)


def numbers(n: int, resident: bool) -> Any:
    return Tensors(torch.arange(n).float(), torch.arange(n)) if resident else Rows(n)


def seen(loader: Loader, epoch: int, start: int = 0) -> list[int]:
    return [int(i) for _, y in loader.epoch(epoch, start) for i in y]


@given(
    n=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
    resident=st.booleans(),
)
def test_every_sample_is_seen_once_an_epoch(n: int, batch_size: int, epoch: int, shuffle: bool, resident: bool) -> None:
    loader = Loader(numbers(n, resident), batch_size, shuffle=shuffle)
    batches = list(loader.counted(epoch))
    assert sorted(seen(loader, epoch)) == list(range(n))
    assert len(batches) == len(loader)
    assert [count for _, count in batches] == [len(y) for (_, y), _ in batches]
    assert all(count == batch_size for _, count in batches[:-1])
    assert all(torch.equal(x.long(), y) for (x, y), _ in batches)
    assert loader.samples == n


@given(data=st.data(), n=st.integers(1, 60), batch_size=st.integers(1, 70), resident=st.booleans())
def test_resuming_gives_exactly_the_rest(data: st.DataObject, n: int, batch_size: int, resident: bool) -> None:
    start = data.draw(st.integers(0, n))
    loader = Loader(numbers(n, resident), batch_size, seed=7)
    assert seen(loader, 3, start) == seen(loader, 3)[start:]


@given(n=st.integers(1, 60), batch_size=st.integers(1, 60), resident=st.booleans())
def test_drop_last_has_whole_batches_only(n: int, batch_size: int, resident: bool) -> None:
    if batch_size > n:
        with pytest.raises(DataError, match=f"{n} samples.*{batch_size}|{batch_size}.*{n} samples"):
            Loader(numbers(n, resident), batch_size, drop_last=True)
        return
    loader = Loader(numbers(n, resident), batch_size, drop_last=True)
    counts = [count for _, count in loader.counted(0)]
    assert counts == [batch_size] * (n // batch_size)
    assert len(loader) == n // batch_size
    assert loader.samples == sum(counts)
    assert seen(loader, 0, batch_size) == seen(loader, 0)[batch_size:]


def test_resident_and_streamed_batches_are_the_same() -> None:
    resident, streamed = Loader(numbers(50, True), 8, seed=1), Loader(numbers(50, False), 8, seed=1)
    assert resident.resident
    assert not streamed.resident
    assert seen(resident, 2) == seen(streamed, 2)


def test_epochs_and_seeds_differ_and_repeat() -> None:
    loader = Loader(numbers(50, True), 8)
    assert seen(loader, 0) != seen(loader, 1)
    assert seen(loader, 0) != seen(Loader(numbers(50, True), 8, seed=1), 0)
    assert seen(loader, 1) == seen(Loader(numbers(50, True), 13), 1)
    assert seen(Loader(numbers(50, True), 8, shuffle=False), 4) == list(range(50))


def test_on_the_cpu_tensors_are_used_as_they_are() -> None:
    ds = numbers(10, True)
    loader = Loader(ds, 4)
    assert isinstance(loader.dataset, Tensors)
    assert loader.dataset.structure[0].data_ptr() == ds.structure[0].data_ptr()


def test_the_batch_is_what_the_loop_unpacks() -> None:
    for x, y in Loader(numbers(10, True), 4).epoch(0):
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
    for batch in Loader({"x": torch.zeros(10, 2)}, 4).epoch(0):
        assert list(batch) == ["x"]


@pytest.mark.parametrize("batch_size", [0, -3, 2.5, "8", None, True])
def test_a_batch_size_that_is_none_is_refused(batch_size: Any) -> None:
    with pytest.raises(DataError, match=f"at least 1, not {batch_size!r}"):
        Loader(numbers(10, True), batch_size)


def test_a_batch_size_beyond_the_dataset_gives_one_short_batch() -> None:
    assert [count for _, count in Loader(numbers(3, True), 100).counted(0)] == [3]


@pytest.mark.parametrize("start", [-1, 11])
def test_a_position_outside_the_epoch_is_refused_at_once(start: int) -> None:
    with pytest.raises(DataError, match=f"10 samples cannot be resumed after sample {start}"):
        Loader(numbers(10, True), 4).epoch(0, start)


def test_a_seed_that_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(DataError, match="seed=-1"):
        Loader(numbers(10, True), 4, seed=-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_are_on_the_gpu() -> None:
    for resident in (True, False):
        loader = Loader(numbers(50, resident), 8, device="cuda")
        assert loader.resident is resident
        assert all(x.is_cuda and y.is_cuda for x, y in loader.epoch(0))
        assert seen(loader, 2) == seen(Loader(numbers(50, True), 8), 2)


def test_nothing_is_left_after_an_epochs_last_sample() -> None:
    loader = Loader((torch.arange(12.0), torch.arange(12)), 4)
    assert list(loader.epoch(0, start=12)) == []
    assert sum(1 for _ in loader.epoch(0, start=8)) == 1
