"""An epoch's items in their order, fetched where it is best: here, in a thread, in worker processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from flodl.data.ahead import Ahead
from flodl.data.batch import Batch
from flodl.data.pace import Choice, Pace
from flodl.data.source import Indexed, Item, Place, Stream
from flodl.data.workers import WorkerError, Workers
from flodl.errors import DataError

__all__ = ["Fetching"]

_DEPTH = 2  # batches ready ahead, of each worker
_PROBED = 3  # batches fetched here before a thread is started: a dataset that draws random numbers is then known


class Fetching:
    """Fetches the items of `source`; what it learned in one epoch it knows in the next.

    `workers` processes (None: chosen), `prefetch` items ahead (None: chosen, 0: none). `pin`: applied to each batch as
    early as can be.
    """

    def __init__(
        self, source: Indexed | Stream, workers: int | None, prefetch: int | None, pin: Callable[[Batch], Batch] | None
    ) -> None:
        self.source = source
        self.wait_seconds = 0.0
        self.note: str | None = None
        self.state: tuple[int, int, Any] | None = None
        """Epoch, sample, and the source's own state behind the last item."""
        self._workers, self._pin = workers, pin
        self._depth = _DEPTH if prefetch is None else max(prefetch, 1)
        self._asked = bool(prefetch)
        self._choice: Choice | None = None
        self._open: set[_Supply] = set()
        most = 1 if isinstance(source, Stream) else None
        if workers:
            self._choice = Choice(kind="worker", workers=min(workers, most or workers))
            if workers > 1 and most:
                self.note = "an iterable is read by one worker process: its order does not depend on their number"
        elif prefetch == 0:
            self._choice = Choice()

    def close(self) -> None:
        """End every thread and process of epochs that are not over."""
        for supply in list(self._open):
            supply.close()

    def items(self, epoch: int, start: int, batches: int | None) -> Generator[Item, None, None]:
        """The items of `epoch` after `start` samples, about `batches` of them."""
        pace = Pace() if self._choice is None else None
        supply = self._supply(self._choice or Choice(), epoch, start)
        at, number = start, 0
        try:
            while True:
                if supply.closed:
                    raise DataError("The loader was closed in this epoch: no more batches come of it.")
                begun = time.perf_counter()
                try:
                    item = pace.fetch(supply.take) if pace else supply.take()
                except WorkerError as error:
                    raise DataError(f"{self._where(epoch, at)} failed: {error}") from (error.original or error)
                except Exception as error:
                    if supply.choice.kind != "thread" or isinstance(self.source, Stream):
                        raise
                    # An error of the dataset comes again here, with the caller's own frames. If it does not, the
                    # dataset is one that may not be used in another thread.
                    supply.close()
                    supply, pace = self._supply(Choice(), epoch, at), None
                    item = supply.take()
                    self._choice = Choice()
                    self.note = f"batches are fetched without a thread, which gave {type(error).__name__}: {error}"
                self.wait_seconds += time.perf_counter() - begun
                if item is None:
                    return
                at, number = at + item.samples, number + 1
                self.state = (epoch, at, item.state)
                yield item
                if pace and (choice := self._chosen(pace, number, batches)):
                    pace.close()
                    pace, self._choice = None, choice
                    supply = self._moved(supply, choice, epoch, at)
        finally:
            if pace:
                pace.close()
            supply.close()

    def _chosen(self, pace: Pace, number: int, batches: int | None) -> Choice | None:
        draws = self.source.watch.draws
        most = 0 if self._workers == 0 else 1 if isinstance(self.source, Stream) else 1 << 10
        if self._asked:
            if number < _PROBED:
                return None
            if not draws:
                return Choice(kind="thread", why="prefetch is set")
            if self._workers == 0:
                self.note = "nothing is prefetched: the dataset draws from the global random generators; set workers"
                return Choice()
            return Choice(kind="worker", workers=1, why="prefetch is set and the dataset draws random numbers")
        left = None if batches is None else batches - number
        choice = pace.choice(draws=draws, batches_left=left, most_workers=most)
        if choice and choice.kind != "here":
            self.note = f"batches are fetched ahead in {_places(choice)}: {choice.why}"
        return choice

    def _supply(self, choice: Choice, epoch: int, at: int) -> _Supply:
        if choice.kind == "worker":
            workers = Workers(_Share(self.source, epoch, at), choice.workers, self._depth)
            return _Supply(self, choice, workers, workers=workers)
        place = Place(choice.kind)
        return _Supply(self, choice, self.source.items(epoch, at, place), place=place)

    def _moved(self, supply: _Supply, choice: Choice, epoch: int, at: int) -> _Supply:
        """The rest of `supply` by another way. A thread takes the iterator over, processes start at the position."""
        if choice.kind == "here":
            return supply
        if choice.kind == "thread":
            supply.close()
            assert supply.place
            supply.place.kind = "thread"
            return _Supply(self, choice, supply.source, place=supply.place)
        supply.close()
        if isinstance(self.source, Stream) and self.state and self.state[2] is not None:
            self.source.resume = self.state
        try:
            return self._supply(choice, epoch, at)
        except OSError as error:  # no process or memory left: nobody asked for workers, so it goes on without
            self._choice = Choice()
            self.note = f"batches are not fetched ahead, no worker process could be started: {error}"
            return self._supply(self._choice, epoch, at)

    def _where(self, epoch: int, at: int) -> str:
        if isinstance(self.source, Stream):
            return f"The batch after sample {at} of epoch {epoch}"
        index = next(iter(self.source.plan(epoch, at))).tolist()
        some = ", ".join(map(str, index[:8])) + (", ..." if len(index) > 8 else "")
        return f"The batch of samples {at} to {at + len(index) - 1} of epoch {epoch} (items {some} of the dataset)"


def _places(choice: Choice) -> str:
    if choice.kind == "thread":
        return "a thread"
    return "a worker process" if choice.workers == 1 else f"{choice.workers} worker processes"


class _Share:
    """The items of one worker: can be pickled, where workers are not forked."""

    def __init__(self, source: Indexed | Stream, epoch: int, at: int) -> None:
        self.source, self.epoch, self.at = source, epoch, at

    def __call__(self, number: int, count: int) -> Iterator[Item]:
        return self.source.items(self.epoch, self.at, Place("worker", number, count))


class _Supply:
    """An iterator of items with what has to be ended after it."""

    def __init__(
        self,
        owner: Fetching,
        choice: Choice,
        source: Iterator[Item],
        *,
        place: Place | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.choice, self.source, self.place = choice, source, place
        self._owner, self._workers = owner, workers
        self._thread: Ahead | None = None
        items = source if owner._pin is None else map(_Pinned(owner._pin), source)
        if choice.kind == "thread" or (choice.kind == "worker" and owner._pin):
            items = self._thread = Ahead(items, owner._depth)
        self._items = items
        self.closed = False
        owner._open.add(self)

    def take(self) -> Item | None:
        return next(self._items, None)

    def close(self) -> None:
        self.closed = True
        self._owner._open.discard(self)
        if self._workers:
            self._workers.stop()
        if self._thread:
            self._thread.close()
        if self._workers:
            self._workers.close()


class _Pinned:
    def __init__(self, pin: Callable[[Batch], Batch]) -> None:
        self._pin = pin

    def __call__(self, item: Item) -> Item:
        return Item(self._pin(item.batch), item.samples, item.state)
