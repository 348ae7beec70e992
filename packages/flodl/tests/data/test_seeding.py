from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from flodl.data.seeding import DrawWatch, seed_all, seeded, untouched


def draw() -> tuple[float, ...]:
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(()).item()


def states() -> tuple[Any, ...]:
    return random.getstate(), repr(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()


def test_a_key_is_a_stream_and_neighbours_share_nothing() -> None:
    drawn = []
    for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0, 1), (2**40, 0, 7)]:
        with seeded(*key):
            drawn.append(draw())
        with seeded(*key):
            assert draw() == drawn[-1]
    assert len({number for numbers in drawn for number in numbers}) == 5 * len(drawn)


def test_the_streams_never_change() -> None:
    """A resumed run augments as the one before, also under a later release."""
    with seeded(1, 2, 3):
        assert random.random() == 0.41852096475110767
        assert np.random.rand() == 0.5567792081052679


@pytest.mark.parametrize("cached", [False, True])
def test_the_runs_streams_go_on_even_after_an_error(cached: bool) -> None:
    if cached:
        random.gauss(0, 1), np.random.randn()  # both keep a second gaussian
    before = states()
    with pytest.raises(ZeroDivisionError), untouched():
        draw()
        raise ZeroDivisionError
    assert states() == before


DRAWS = [
    random.random,
    lambda: random.gauss(0, 1),
    np.random.rand,
    np.random.randn,
    lambda: np.random.rand(624 * 2),
    lambda: torch.rand(()),
    lambda: torch.randperm(10),
    lambda: random.shuffle([1, 2, 3]),
]


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("cached", [False, True])
def test_every_way_to_draw_is_noticed_and_undone(kind: Any, cached: bool) -> None:
    np.random.seed(0), random.seed(0)
    if cached:
        np.random.randn()
    for fetches_before in (0, 3):
        watch, calls = DrawWatch(), []
        for _ in range(fetches_before):
            watch.fetch(lambda: None)
        assert not watch.draws

        def fetch(calls: list[int] = calls) -> Any:
            calls.append(1)
            return kind()

        if cached and fetches_before and kind is np.random.randn:
            continue  # takes numpy's ready gaussian, the only draw that is not seen, and only the first time
        before = states()
        first = watch.fetch(fetch, 1, 2, 3)
        assert watch.draws
        assert len(calls) == 2
        assert states() == before or (cached and fetches_before), kind
        again = watch.fetch(fetch, 1, 2, 3)
        assert len(calls) == 3, "known now"
        assert str(first) == str(again)


def test_what_draws_nothing_is_fetched_once() -> None:
    watch, calls = DrawWatch(), []
    for _ in range(3):
        watch.fetch(lambda: calls.append(1), 1)
    assert len(calls) == 3
    assert not watch.draws


def test_another_generator_of_numpy_is_watched_too() -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        watch = DrawWatch()
        watch.fetch(lambda: None)
        assert not watch.draws
    finally:
        np.random.set_bit_generator(before)


def test_a_seed_of_any_size() -> None:
    with untouched():
        seed_all(2**70, 0)
