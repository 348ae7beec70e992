from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from flodl.data import Loader, Tensors, as_dataset, fingerprint

X, Y = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)), torch.arange(100)


class Rows:
    def __init__(self, x: torch.Tensor = X, noise: bool = False) -> None:
        self.x, self.noise, self.read = x, noise, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return self.x[int(index)] + (torch.rand(()) + random.random() if self.noise else 0), "text"


def test_the_same_data_has_the_same_and_any_difference_another() -> None:
    given = [
        Tensors(X, Y),
        Tensors(X[:99], Y[:99]),
        Tensors(X.double(), Y),
        Tensors(X, Y + 1),
        Tensors(X.flip(0), Y),
        Tensors({"x": X, "y": Y}),
        as_dataset(Rows()),
        as_dataset(Rows(X + 1)),
    ]
    prints = [fingerprint(ds) for ds in given]
    assert len(set(prints)) == len(prints)
    assert prints[0] == fingerprint(Tensors(X.clone(), Y.clone()))
    assert len(prints[0]) == 16


def test_augmentation_changes_nothing_and_draws_nothing() -> None:
    states = torch.get_rng_state(), random.getstate()
    assert fingerprint(as_dataset(Rows(noise=True))) == fingerprint(as_dataset(Rows(noise=True)))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


def test_it_reads_few_samples() -> None:
    rows = Rows(X.repeat(100, 1))
    ds = as_dataset(rows)
    rows.read = 0
    fingerprint(ds)
    assert rows.read == 8


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_small_datasets(n: int) -> None:
    assert fingerprint(Tensors(X[:n])) != fingerprint(Tensors(X[: n + 1]))


def test_the_identity_of_a_loader_is_plain_and_complete() -> None:
    identity = Loader((X, Y), 8, seed=3).identity()
    assert identity == {"seed": 3, "shuffle": True, "samples": 100, "fingerprint": fingerprint(Tensors(X, Y))}
    grouped = Loader((X, Y), 8, group_by_length=Y.tolist()).identity()
    assert grouped["grouped_by"] == 8

    class Stream:
        def __iter__(self) -> Any:
            return iter(X)

    assert Loader(Stream(), 8).identity()["samples"] is None
