from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flodl import DataError
from flodl.data import epoch_order


@given(n=st.integers(0, 500), seed=st.integers(0, 2**64), epoch=st.integers(0, 10**6))
def test_an_order_is_a_permutation_and_the_same_each_time(n: int, seed: int, epoch: int) -> None:
    order = epoch_order(n, seed, epoch)
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(n))
    assert torch.equal(order, epoch_order(n, seed, epoch))


def test_the_order_never_changes_between_releases() -> None:
    assert epoch_order(10, seed=0, epoch=0).tolist() == GOLDEN_0_0
    assert epoch_order(10, seed=42, epoch=7).tolist() == GOLDEN_42_7


GOLDEN_0_0 = [6, 1, 0, 5, 3, 8, 7, 9, 2, 4]
GOLDEN_42_7 = [3, 6, 9, 1, 7, 2, 8, 5, 4, 0]


def test_neighbouring_seeds_and_epochs_share_no_order() -> None:
    orders = {tuple(epoch_order(20, seed, epoch).tolist()) for seed in range(30) for epoch in range(30)}
    assert len(orders) == 900


def test_every_place_is_equally_likely() -> None:
    counts = torch.zeros(8, 8)
    for epoch in range(4000):
        counts[torch.arange(8), epoch_order(8, seed=3, epoch=epoch)] += 1
    chi_square = ((counts - 500) ** 2 / 500).sum().item()
    assert chi_square < 100  # 49 degrees of freedom; the stream is fixed, so this does not vary


def test_without_shuffle_it_is_the_dataset_order() -> None:
    assert epoch_order(5, seed=3, epoch=9, shuffle=False).tolist() == [0, 1, 2, 3, 4]


def test_no_global_random_state_is_read_or_changed() -> None:
    expected = epoch_order(50, 1, 2)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert torch.equal(epoch_order(50, 1, 2), expected)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (0, -1), (1.5, 0), (None, 0)])
def test_seeds_and_epochs_that_are_none_are_refused(seed: int, epoch: int) -> None:
    with pytest.raises(DataError, match=f"seed={seed}, epoch={epoch}"):
        epoch_order(5, seed, epoch)
