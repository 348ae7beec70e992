"""Python's, numpy's and torch's global random generators around a fetch.

A batch is fetched under generators that depend on nothing but (seed, epoch, first sample), and the run's own streams
do not notice: so random augmentation is the same wherever, whenever and after whatever a batch is fetched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

__all__ = ["fetch_watched", "seed_all", "seeded", "snapshot", "untouched"]

_T = TypeVar("_T")


def seed_all(*key: int) -> None:
    """Seed the three generators from integers of at least 0. CUDA's are left alone: datasets work on the CPU."""
    words = np.random.SeedSequence(key).generate_state(4)  # hashes, so that neighbouring keys share nothing
    random.seed(int(words[0]) << 32 | int(words[1]))
    np.random.seed(words[2])
    torch.default_generator.manual_seed(int(words[3]))


@contextmanager
def untouched() -> Iterator[None]:
    """Whatever is drawn or seeded inside, the three generators go on as if it had not been."""
    before = snapshot()
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """`untouched`, with the generators seeded from `key` inside."""
    with untouched():
        seed_all(*key)
        yield


def snapshot() -> tuple[Any, Any, Any]:
    """The states of the three generators: 33 µs, most of it numpy's."""
    return random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()


def drawn_since(before: tuple[Any, Any, Any]) -> bool:
    """Whether anything was drawn since `before`."""
    python, numpy, own = before
    if not torch.equal(own, torch.default_generator.get_state()) or python != random.getstate():
        return True
    now = np.random.get_state(legacy=False)
    return bool(
        numpy["state"]["pos"] != now["state"]["pos"]
        or numpy["has_gauss"] != now["has_gauss"]
        or not np.array_equal(numpy["state"]["key"], now["state"]["key"])
    )


def fetch_watched(fetch: Callable[[], _T], *key: int) -> tuple[_T, bool]:
    """What `fetch()` gives under generators seeded from `key`, and whether it drew from them.

    Most datasets draw nothing. So the generators are not seeded first: when a fetch turns out to have drawn, they are
    put back, and it is made again.
    """
    before = snapshot()
    result = fetch()
    if not drawn_since(before):
        return result, False
    _restore(before)
    with seeded(*key):
        return fetch(), True


def _restore(states: tuple[Any, Any, Any]) -> None:
    python, numpy, own = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.default_generator.set_state(own)
