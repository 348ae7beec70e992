"""Iterables: samples or batches in their own order, of unknown length."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from flodl import DataError
from flodl.data import Batches, Loader

WAYS: list[dict[str, int]] = [
    {"workers": 0, "prefetch": 0},
    {"workers": 0},
    {},
    {"prefetch": 3},
    {"workers": 1},
    {"workers": 2},
]


class Numbers(IterableDataset[Any]):
    """0, 1, ... as torch's IterableDataset, sharded by worker as its users write it."""

    def __init__(self, n: int = 23) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        yield from range(info.id, self.n, info.num_workers) if info else range(self.n)


class Shuffled(Numbers):
    """A shuffle buffer and noise from the global generators."""

    def __iter__(self) -> Iterator[Any]:
        start = random.random()
        buffer: list[int] = []
        for i in range(self.n):
            buffer.append(i)
            if len(buffer) > 5:
                yield buffer.pop(random.randrange(5)), start + torch.rand(()).item()
        while buffer:
            yield buffer.pop(), start


class Stateful:
    """Knows where it is."""

    def __init__(self, n: int = 23) -> None:
        self.n, self.at = n, 0
        self.read: list[int] = []
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        while self.at < self.n:
            self.at += 1
            self.read.append(self.at - 1)
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def flat(loader: Loader, epoch: int = 0, start: int = 0) -> list[int]:
    return [int(i) for batch in loader.epoch(epoch, start) for i in batch]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("source", [Numbers(), Stateful()], ids=["torch", "own"])
def test_every_sample_comes_once_in_its_order_from_any_place(way: dict[str, int], source: Any) -> None:
    loader = Loader(source, 4, **way)
    assert flat(loader) == list(range(23))
    assert [n for _, n in loader.counted(1)] == [4, 4, 4, 4, 4, 3]
    for start in (0, 3, 4, 12, 22, 23):
        assert flat(Loader(source, 4, **way), 0, start) == list(range(start, 23))
    assert flat(Loader(source, 4, drop_last=True, **way)) == list(range(20))
    assert not psutil.Process().children(recursive=True)


def test_the_length_is_unknown() -> None:
    loader = Loader(Numbers(), 4)
    assert loader.samples is None
    assert loader.batches is None
    assert loader.order(0) is None
    assert loader
    with pytest.raises(TypeError, match="Numbers is not known"):
        len(loader)
    with pytest.raises(DataError, match="no index"):
        loader.fetch_indices(torch.tensor([0]))
    with pytest.raises(DataError, match="after sample -1"):
        loader.epoch(0, -1)


def test_more_workers_than_one_are_not_used_and_it_says_so() -> None:
    loader = Loader(Numbers(), 4, workers=2)
    assert flat(loader) == list(range(23)), "each sample would come twice"
    assert "one worker" in str(loader.note)


def test_random_streams_resume_to_the_same_bits_wherever_they_are_read() -> None:
    expected = [(a.tolist(), b.tolist()) for a, b in Loader(Shuffled(), 4, workers=0, prefetch=0).epoch(3)]
    assert sorted(i for a, _ in expected for i in a) == list(range(23))
    for way in WAYS:
        for start in (0, 4, 20):
            random.seed(start), torch.manual_seed(start)
            states = random.getstate(), torch.get_rng_state()
            got = [(a.tolist(), b.tolist()) for a, b in Loader(Shuffled(), 4, **way).epoch(3, start)]
            assert got == expected[start // 4 :], (way, start)
            assert states[0] == random.getstate()
            assert torch.equal(states[1], torch.get_rng_state())
    other = [a.tolist() for a, _ in Loader(Shuffled(), 4).epoch(4)]
    assert other != [a for a, _ in expected]


def test_a_random_stream_is_never_read_in_a_thread() -> None:
    threads = set()

    class Watched(Shuffled):
        def __iter__(self) -> Iterator[Any]:
            for sample in super().__iter__():
                threads.add(threading.current_thread())
                yield sample

    list(Loader(Watched(), 2, workers=0, prefetch=2).epoch(0))
    assert threads == {threading.main_thread()}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_stream_with_a_state_resumes_without_reading_again(way: dict[str, int]) -> None:
    first = Loader(Stateful(), 4, **way)
    batches = first.counted(2)
    for batch, _ in islice(batches, 3):
        last = batch.tolist()
    saved = first.state_dict()
    batches.close()  # type: ignore[attr-defined]
    assert last == [8, 9, 10, 11]
    assert saved == {"epoch": 2, "sample": 12, "source": {"at": 12}}, (
        "the place of the batch given, not of the prefetch"
    )

    source = Stateful()
    second = Loader(source, 4, **way)
    second.load_state_dict(saved)
    assert flat(second, 2, 12) == list(range(12, 23))
    assert "read anew" not in str(second.note)
    if not way.get("workers"):
        assert source.read == list(range(12, 23)), "read again what was done"
        assert source.epochs == [2]
    assert flat(second, 3) == list(range(23))


def test_reading_again_is_told() -> None:
    loader = Loader(Numbers(), 4, prefetch=0)
    assert loader.note is None
    assert flat(loader, 0, 8) == list(range(8, 23))
    assert loader.note == "Numbers is read anew as far as sample 8 of the epoch"


def test_a_loader_without_such_a_stream_has_no_state() -> None:
    loader = Loader(Numbers(), 4)
    flat(loader)
    assert loader.state_dict() == {}
    loader.load_state_dict({})


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_iterable_of_batches(way: dict[str, int]) -> None:
    sizes = [3, 1, 5, 2, 2, 2, 1]
    made = [{"x": torch.full((n, 2), float(i)), "y": None} for i, n in enumerate(sizes)]

    class Source:
        def __iter__(self) -> Iterator[Any]:
            return iter(made)

    loader = Loader(Batches(Source()), 64, **way)
    assert [n for _, n in loader.counted(0)] == sizes
    for got, expected in zip(loader.epoch(0, 4), made[2:], strict=True):
        assert torch.equal(got["x"], expected["x"])
    with pytest.raises(DataError, match="inside one"):
        list(loader.epoch(0, 5))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_error_in_the_middle(way: dict[str, int]) -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            yield from range(12)
            raise OSError("the disk is gone")

    got: list[int] = []
    with pytest.raises((OSError, DataError), match="the disk is gone"):
        for batch in Loader(Broken(), 4, **way).epoch(0):
            got += batch.tolist()
    assert got == list(range(12))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((i for i in range(3)), "generator can be read only once"),
        (iter([1, 2]), "list_iterator can be read only once"),
    ],
)
def test_what_can_be_read_once_is_refused(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Loader(source, 2)


def test_an_empty_stream_is_an_error() -> None:
    with pytest.raises(DataError, match="Numbers gave no batch in epoch 0"):
        flat(Loader(Numbers(0), 4))


def test_grouping_by_length_needs_an_index() -> None:
    with pytest.raises(DataError, match="group_by_length.*Numbers"):
        Loader(Numbers(), 4, group_by_length=True)
