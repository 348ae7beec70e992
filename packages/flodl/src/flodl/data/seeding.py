"""Python's, numpy's and torch's global random generators around a fetch.

A batch is fetched under generators that depend on nothing but (seed, epoch, first sample), and the run's own streams
do not notice: so random augmentation is the same wherever, whenever and after whatever a batch is fetched.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator

__all__ = ["DrawWatch", "seed_all", "seeded", "untouched"]

_T = TypeVar("_T")
_States = tuple[Any, Any, Any]


def seed_all(*key: int) -> None:
    """Seed the three generators from integers of at least 0. CUDA's are left alone: datasets work on the CPU."""
    words = np.random.SeedSequence(key).generate_state(4)  # hashes, so that neighbouring keys share nothing
    random.seed(int(words[0]) << 32 | int(words[1]))
    np.random.seed(words[2])
    torch.default_generator.manual_seed(int(words[3]))


@contextmanager
def untouched() -> Iterator[None]:
    """Whatever is drawn or seeded inside, the three generators go on as if it had not been. Costs 70 µs."""
    before = _states()
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


class DrawWatch:
    """Fetches under generators seeded from a key, at the price of 20 µs for a fetch that draws nothing.

    Most datasets draw nothing. So the generators are not seeded first: when a fetch turns out to have drawn, they are
    put back, and it is made again; from then on all are seeded.
    """

    def __init__(self) -> None:
        self.draws = False
        """Whether something was seen to draw."""
        self._watched = False

    def fetch(self, fetch: Callable[[], _T], *key: int) -> _T:
        """What `fetch()` gives under generators seeded from `key`."""
        if not self.draws:
            states = None if self._watched else _states()
            self._watched = True
            before = _marks()
            result = fetch()
            if _same(_marks(), before) and not (states and _took_gaussian(states)):
                return result
            self.draws = True
            _restore(states or _states_of(before))
        with seeded(*key):
            return fetch()

    @contextmanager
    def seeded(self, *key: int) -> Iterator[None]:
        """For what cannot be made again: seeded from `key` inside, and it is noticed whether something draws."""
        with seeded(*key):
            before = _marks()
            yield
            self.draws = self.draws or not _same(_marks(), before)


def _states() -> _States:
    return random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()


def _restore(states: _States) -> None:
    python, numpy, own = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.default_generator.set_state(own)


def _marks() -> _States:
    """The states in a form that is quick to take and to compare."""
    return random.getstate(), _numpy_words(), torch.default_generator.get_state().numpy().tobytes()


def _same(a: _States, b: _States) -> bool:
    python, other = a[0], b[0]
    # Position, first word and second gaussian of Python's generator: any draw changes one of them.
    return bool(
        python[1][-1] == other[1][-1]
        and python[1][0] == other[1][0]
        and python[2] == other[2]
        and a[1] == b[1]
        and a[2] == b[2]
    )


def _states_of(marks: _States) -> _States:
    """The states that `marks` were taken of. They do not tell of a second gaussian that numpy keeps: there was none,
    unless the run itself draws them from numpy's old interface."""
    python, words, own = marks
    numpy = np.random.get_state(legacy=False)
    if isinstance(words, bytes):
        flat = np.frombuffer(words, dtype=np.uint32)
        numpy["has_gauss"], numpy["gauss"] = 0, 0.0
        numpy["state"] = {"key": flat[:624].copy(), "pos": int(flat[624])}
    return python, numpy, torch.frombuffer(bytearray(own), dtype=torch.uint8)


def _took_gaussian(before: _States) -> bool:
    return bool(before[1]["has_gauss"] and not np.random.get_state(legacy=False)["has_gauss"])


_view: tuple[Any, Any] | None = None  # the global generator of numpy and its memory: get_state takes 24 µs


def _numpy_words() -> Any:
    global _view
    generator = get_bit_generator()
    if _view is None or _view[0] is not generator:
        _view = (generator, _memory(generator))
    return bytes(_view[1]) if _view[1] is not None else repr(generator.state)


def _memory(generator: Any) -> Any:
    """The key and position of a Mersenne twister; None for another generator or layout."""
    if type(generator) is not np.random.MT19937:
        return None
    words = (ctypes.c_uint32 * 625).from_address(generator.ctypes.state_address)
    state = generator.state["state"]
    as_said = state["pos"] == words[624] and np.array_equal(state["key"], np.frombuffer(bytes(words), np.uint32)[:624])
    return words if as_said else None
