from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from flodl import DataError
from flodl.data import BatchDataset, Tensors, as_dataset

X, Y = torch.arange(24.0).view(8, 3), torch.arange(8)
INDEX = torch.tensor([5, 0, 7])


class Rows(Dataset[Any]):
    """Counts how it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(index)
        return self.sample(index)

    def sample(self, index: Any) -> Any:
        return X[index], Y[index]


class PerSample(Rows):
    def sample(self, index: Any) -> Any:
        return X[int(index)], int(Y[index])


class Standardised(Rows):
    """Takes a list without complaint, and means something else by it."""

    def sample(self, index: Any) -> Any:
        return X[index] - X[index].mean(), Y[index]


class Augmented(Rows):
    def sample(self, index: Any) -> Any:
        return X[index] + torch.rand(()) + random.random() + np.random.rand(), Y[index]


class Many(PerSample):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(("many", indices))
        return [self.sample(i) for i in indices]


class Arrays(Rows):
    def sample(self, index: Any) -> Any:
        return {"x": X.numpy()[index], "y": Y.numpy()[index]}


class Streaming(Rows):
    def fetch(self, index: torch.Tensor, /) -> Any:
        return X[index], Y[index]


@pytest.mark.parametrize(
    "source",
    [
        (X, Y),
        [X, Y.numpy()],
        TensorDataset(X, Y),
        Tensors(X, Y),
        Rows(),
        PerSample(),
        Many(),
        Streaming(),
        Subset(Rows(), range(8)),
    ],
    ids=lambda s: type(s).__name__,
)
def test_every_kind_gives_the_same_batch(source: Any) -> None:
    ds = as_dataset(source)
    assert isinstance(ds, BatchDataset)
    assert len(ds) == 8
    x, y = ds.fetch(INDEX)
    assert torch.equal(x, X[INDEX])
    assert torch.equal(y, Y[INDEX])


def test_dicts_arrays_and_single_tensors() -> None:
    for source in ({"x": X, "y": Y}, Arrays()):
        batch = as_dataset(source).fetch(INDEX)
        assert list(batch) == ["x", "y"]
        assert torch.equal(batch["x"], X[INDEX])
        assert torch.equal(batch["y"], Y[INDEX])
    assert torch.equal(as_dataset(X).fetch(INDEX), X[INDEX])
    (only,) = as_dataset(TensorDataset(X)).fetch(INDEX)
    assert torch.equal(only, X[INDEX])


def test_a_dataset_that_answers_lists_is_asked_once_a_batch() -> None:
    source = Rows()
    ds = as_dataset(source)
    source.asked.clear()
    ds.fetch(INDEX)
    assert source.asked == [[5, 0, 7]]


def test_one_that_means_something_else_by_a_list_is_asked_sample_by_sample() -> None:
    source = Standardised()
    ds = as_dataset(source)
    source.asked.clear()
    x, _ = ds.fetch(INDEX)
    assert source.asked == [5, 0, 7]
    assert torch.allclose(x.mean(1), torch.zeros(3))


def test_getitems_is_used() -> None:
    source = Many()
    ds = as_dataset(source)
    source.asked.clear()
    ds.fetch(INDEX)
    assert source.asked == [("many", [5, 0, 7])]


def test_probing_draws_no_random_number_of_the_run() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = (random.random(), np.random.rand(), torch.rand(()).item())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    source = Augmented()
    as_dataset(source)
    assert source.asked, "the dataset was not probed"
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def test_a_dataset_of_one_sample() -> None:
    x, y = as_dataset(Subset(Rows(), [3])).fetch(torch.tensor([0]))
    assert torch.equal(x, X[[3]])
    assert torch.equal(y, Y[[3]])


class Ragged(Rows):
    def sample(self, index: Any) -> Any:
        return X[: int(index) + 1]


def test_samples_that_do_not_stack_are_named_and_collate_helps() -> None:
    ds = as_dataset(Ragged())
    with pytest.raises(DataError, match=r"Samples \[5, 0, 7\] of Ragged do not make a batch.*collate"):
        ds.fetch(INDEX)
    padded = as_dataset(Ragged(), collate=lambda s: torch.nn.utils.rnn.pad_sequence(s, batch_first=True))
    assert padded.fetch(INDEX).shape == (3, 8, 3)


class Broken(Rows):
    def sample(self, index: Any) -> Any:
        raise OSError("the disk is gone")


def test_an_error_of_the_dataset_itself_is_shown_as_it_is() -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        as_dataset(Broken())


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


class Empty(Rows):
    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "type int"),
        ("mnist", "type str"),
        (None, "type NoneType"),
        ([], "a list of nothing"),
        ([(X, 1), (X, 2)], "a list of tuple"),
        (range(3).__iter__(), "type range_iterator"),
        (Rows, "type type"),
        (DataLoader(TensorDataset(X, Y)), "give it to Loader or Trainer, or pass its dataset"),
        (Numbers(), "Numbers is an IterableDataset"),
        (Empty(), r"len\(Empty\) is 0"),
        ((X, Y[:3]), r"\[0\] has 8, \[1\] has 3"),
    ],
)
def test_anything_else_is_refused_with_what_it_is(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_dataset(source)
