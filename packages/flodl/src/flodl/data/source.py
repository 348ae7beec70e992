"""Where an epoch's batches come from: a dataset by index, or an iterable in its own order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from flodl.data.batch import Batch, batch_size_of, map_structure
from flodl.data.dataset import BatchDataset, array_to_tensor, collated
from flodl.data.seeding import DrawWatch, seed_all
from flodl.errors import DataError

__all__ = ["Batches", "Given", "Indexed", "Item", "Place", "Stream"]


@dataclass(frozen=True)
class Item:
    """A batch on its way to the loop."""

    batch: Batch
    samples: int
    state: Any = None  # of an iterable that can tell where it is, after this batch


@dataclass
class Place:
    """Where batches are fetched. In this process each is fetched with the global generators guarded; a thread must not
    touch them; a worker process has them for itself."""

    kind: str = "here"  # "here", "thread", "worker"
    number: int = 0
    of: int = 1


class Indexed:
    """Batches of `dataset` by index. `plan(epoch, start)` gives the indices of each batch after `start` samples."""

    def __init__(self, dataset: BatchDataset, plan: Callable[[int, int], Iterable[Tensor]], seed: int) -> None:
        self.dataset = dataset
        self.plan = plan
        self.seed = seed
        self.watch = DrawWatch()

    def items(self, epoch: int, start: int, place: Place) -> Iterator[Item]:
        """The batches of `epoch` after `start` samples, of those every `place.of`-th."""
        return self._items(self.plan(epoch, start), epoch, start, place)

    def _items(self, plan: Iterable[Tensor], epoch: int, first: int, place: Place) -> Iterator[Item]:
        for turn, index in enumerate(plan):
            if turn % place.of == place.number:
                yield Item(self.fetch(index, epoch, first, place), len(index))
            first += len(index)

    def fetch(self, index: Tensor, epoch: int, first: int, place: Place) -> Batch:
        """The batch at `index`, the same in every kind of place."""
        key = (self.seed, epoch, first)
        if place.kind == "here":
            return self.watch.fetch(lambda: self.dataset.fetch(index), *key)
        if place.kind == "worker":
            seed_all(*key)
        return self.dataset.fetch(index)


class Given(Indexed):
    """Batches that a planner hands out: `pieces` are the indices of each, its epoch and its place in that epoch's order."""

    def __init__(self, dataset: BatchDataset, seed: int) -> None:
        super().__init__(dataset, lambda _epoch, start: (index for index, _, _ in self._left(start)), seed)
        self.pieces: Sequence[tuple[Tensor, int, int]] = ()

    def items(self, epoch: int, start: int, place: Place) -> Iterator[Item]:
        """The pieces after the first `start` samples of them, of those every `place.of`-th."""
        for turn, (index, of_epoch, first) in enumerate(self._left(start)):
            if turn % place.of == place.number:
                yield Item(self.fetch(index, of_epoch, first, place), len(index))

    def _left(self, start: int) -> Iterator[tuple[Tensor, int, int]]:
        at = 0
        for piece in self.pieces:
            if at >= start:
                yield piece
            at += len(piece[0])


class Batches:
    """Says that `source`, any iterable that can be read once an epoch, gives whole batches and not samples.

    Their tensors' first dimension counts the samples.
    """

    def __init__(self, source: Iterable[Batch]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.source)


class Stream:
    """Batches of an iterable, in its own order. `batch_size` None: it gives batches.

    A place in it is found again by its own `state_dict` and `load_state_dict` when it has them, else by reading as far.
    """

    def __init__(
        self,
        source: Iterable[Any],
        batch_size: int | None,
        seed: int,
        *,
        collate: Callable[[list[Any]], Batch] | None = None,
        drop_last: bool = False,
    ) -> None:
        if isinstance(source, Iterator):
            raise DataError(
                f"{type(source).__name__} can be read only once: give something that can be iterated anew each epoch, "
                "such as a class with __iter__."
            )
        self.source = source
        self.batch_size = batch_size
        self.seed = seed
        self.watch = DrawWatch()
        self.drop_last = drop_last
        self.has_state = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self.resume: tuple[int, int, Any] | None = None
        """Epoch, sample and the source's state there."""
        self._collate = collate or (default_collate if batch_size else None)

    def items(self, epoch: int, start: int, place: Place) -> Iterator[Item]:
        """The batches of `epoch` after its first `start` samples."""
        source: Any = self.source
        if hasattr(source, "set_epoch"):
            source.set_epoch(epoch)
        at = self._restored(source, epoch, start)
        with self._guarded(place, epoch, at):
            samples = iter(source)
        while True:
            with self._guarded(place, epoch, at):
                item = self._next(samples, at, start)
            if item is None:
                break
            at += item.samples
            if at > start:
                yield item
        if at == 0:
            raise DataError(f"{type(source).__name__} gave no batch in epoch {epoch}.")

    def _restored(self, source: Any, epoch: int, start: int) -> int:
        if self.resume is None or self.resume[:2] != (epoch, start):
            return 0
        source.load_state_dict(copy.deepcopy(self.resume[2]))
        return start

    def _guarded(self, place: Place, epoch: int, first: int) -> AbstractContextManager[None]:
        if place.kind == "here":
            return self.watch.seeded(self.seed, epoch, first)
        if place.kind == "worker":
            seed_all(self.seed, epoch, first)
        return nullcontext()

    def _next(self, samples: Iterator[Any], at: int, start: int) -> Item | None:
        if self.batch_size is None:
            for batch in samples:
                batch = map_structure(array_to_tensor, self._collate(batch) if self._collate else batch)
                count = batch_size_of(batch)
                if at < start < at + count:
                    raise DataError(f"A stream of batches cannot be resumed inside one: at sample {start}.")
                return Item(batch, count, self._state())
            return None
        wanted = self.batch_size if at >= start else min(self.batch_size, start - at)
        chosen = list(islice(samples, wanted))
        if not chosen or (self.drop_last and at >= start and len(chosen) < self.batch_size):
            return None
        if at < start:  # read over
            return Item(None, len(chosen))
        assert self._collate
        what = f"Samples {at} to {at + len(chosen) - 1} of {type(self.source).__name__}"
        return Item(collated(self._collate, chosen, what), len(chosen), self._state())

    def _state(self) -> Any:
        return copy.deepcopy(self.source.state_dict()) if self.has_state else None  # type: ignore[attr-defined]
