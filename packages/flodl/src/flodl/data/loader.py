"""Batches of a dataset in a reproducible order, from any position."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from flodl.data.batch import Batch, pinned, to_device
from flodl.data.dataset import BatchDataset, as_dataset
from flodl.data.fetching import Fetching
from flodl.data.fingerprint import fingerprint
from flodl.data.lengths import lengths_of
from flodl.data.order import epoch_order, length_order
from flodl.data.source import Batches, Given, Indexed, Item, Place, Stream
from flodl.data.tensors import Tensors
from flodl.data.torch_loader import SamplerPlan, take_apart
from flodl.errors import DataError

__all__ = ["Loader"]

_LONG_S = 1.0  # of a start that is worth a word
_SPLIT = 256  # batches whose indices are made at once: faster than each by itself, and few in memory
_RESIDENT_SHARE = 0.5  # of the device's free memory; the rest is for the model, its gradients and activations


class Loader:
    """Batches of `dataset` on `device`.

    dataset: anything that `as_dataset` takes; an iterable of samples (torch's `IterableDataset`, or any object that can
    be iterated anew each epoch), of unknown length and in its own order; `Batches` of an iterable that gives whole ones;
    a torch `DataLoader`, whose batch size, collate, samplers and number of workers are then used.

    The order is a pure function of (seed, epoch), a place in it is a number of samples: `epoch(e, start=s)` gives
    exactly the samples that a loop stopped after `s` samples had not seen. The last batch is short where the batch size
    does not divide the dataset, unless `drop_last`. Random augmentation that draws from the global generators is a
    function of (seed, epoch, place) too, whatever `workers` and `prefetch` are.

    Tensor datasets are moved to the device once when they take at most half of its free memory (`resident`), and a
    batch is one gather per tensor. Others are fetched per batch and moved: here, ahead in a thread, or ahead in
    `workers` processes. With None the first batches are measured and nothing is started that would not help; `note`
    then says what was chosen and why. `prefetch`: batches ready ahead (of each worker); 0 for none.

    `group_by_length`: batches of samples of similar length; True reads the lengths from the dataset, or give them.
    `collate`: makes a batch of a list of samples; `pad_collate()` for sequences.

    Raises DataError: a batch size below 1 or no integer; `drop_last` with less than one batch of samples.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        prefetch: int | None = None,
        group_by_length: bool | Sequence[int] | Tensor = False,
        collate: Callable[[list[Any]], Batch] | None = None,
    ) -> None:
        plan: SamplerPlan | None = None
        notes: list[str] = []
        if isinstance(dataset, DataLoader):
            parts = take_apart(dataset)
            dataset, collate = parts.dataset, collate or parts.collate
            if parts.batch_size and parts.batch_size != batch_size:
                notes.append(f"batches of {parts.batch_size}, as the DataLoader has them, not of {batch_size}")
                batch_size = parts.batch_size
            shuffle = shuffle if parts.shuffle is None else parts.shuffle
            drop_last = drop_last or parts.drop_last
            workers = parts.workers if workers is None else workers
            prefetch = parts.prefetch if prefetch is None else prefetch
            plan = parts.plan(seed) if parts.plan else None
        for name, number in (("workers", workers), ("prefetch", prefetch)):
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
                raise DataError(f"{name} is an integer of at least 0, or None, not {number!r}.")
        self.batch_size = _checked_batch_size(batch_size)
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.device = torch.device(device)
        epoch_order(0, seed, 0)  # a seed that cannot be used is refused here, not in the first epoch
        self._sampler = plan
        self._lengths: Tensor | None = None
        self.resident = False
        source: Indexed | Stream
        if _is_stream(dataset):
            if group_by_length is not False:
                raise DataError(f"group_by_length needs a dataset with an index, not {type(dataset).__name__}.")
            whole = isinstance(dataset, Batches)
            source = Stream(
                dataset.source if whole else dataset,
                None if whole else self.batch_size,
                seed,
                collate=collate,
                drop_last=drop_last,
            )
            self.dataset: Any = source.source
        else:
            self.dataset = as_dataset(dataset, collate=collate)
            self._check_size()
            if group_by_length is not False:
                if plan:
                    raise DataError("group_by_length has no effect on a DataLoader with a sampler of its own.")
                begun = time.perf_counter()
                self._lengths = lengths_of(self.dataset, group_by_length)
                if (seconds := time.perf_counter() - begun) > _LONG_S:
                    notes.append(
                        f"the lengths of all samples were read in {seconds:.1f} s; group_by_length takes them, too"
                    )
            self.resident = plan is None and isinstance(self.dataset, Tensors) and _fits(self.dataset, self.device)
            if self.resident and isinstance(self.dataset, Tensors):
                self.dataset = self.dataset.to(self.device)
            source = Indexed(self.dataset, plan or self._plan, seed)
        self._source = source
        self._ways = (workers, prefetch, pinned if self.device.type == "cuda" else None)
        self._fetching = Fetching(source, *self._ways)
        self._handed_out: tuple[Given, Fetching] | None = None
        self._waited = 0.0
        self._notes = notes

    def __len__(self) -> int:
        """Batches in a whole epoch. Raises TypeError where that is unknown."""
        if self.batches is None:
            raise TypeError(f"the number of batches in {type(self.dataset).__name__} is not known before they are read")
        return self.batches

    def __bool__(self) -> bool:
        return True  # else `if loader` would ask for its length

    @property
    def samples(self) -> int | None:
        """Samples in a whole epoch, of whole batches only with `drop_last`. None: unknown before they are read."""
        if isinstance(self._source, Stream):
            return None
        if self._sampler:
            return self._sampler.samples
        n = len(self.dataset)
        return n - n % self.batch_size if self.drop_last else n

    @property
    def batches(self) -> int | None:
        """Batches in a whole epoch. None: unknown before they are read."""
        if self._sampler:
            return self._sampler.batches
        return None if self.samples is None else -(-self.samples // self.batch_size)

    @property
    def wait_seconds(self) -> float:
        """How long the loop waited for batches, over all epochs so far."""
        handed_out = self._handed_out[1].wait_seconds if self._handed_out else 0.0
        return self._waited + self._fetching.wait_seconds + handed_out

    @property
    def note(self) -> str | None:
        """One line on what was chosen and found out by now, where there is something to say; None otherwise."""
        return "; ".join([*self._notes, *([self._fetching.note] if self._fetching.note else [])]) or None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `epoch` (from 0) after its first `start` samples, as the loop unpacks them."""
        return (batch for batch, _ in self.counted(epoch, start))

    def counted(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        """As `epoch`, each batch with its number of samples: their running sum plus `start` is the position.

        However the loop is left, no thread or process stays behind. Raises DataError that names the batch when a worker
        process fails or dies.
        """
        if isinstance(self._source, Stream):
            if start < 0:
                raise DataError(f"An epoch cannot be resumed after sample {start}.")
            resume = self._source.resume
            if start and (resume is None or resume[:2] != (epoch, start)):
                self._notes.append(f"{type(self.dataset).__name__} is read anew as far as sample {start} of the epoch")
            return self._streamed(epoch, start)
        if self.resident:
            return self._resident(self._remaining(epoch, start))
        if self._sampler is None:
            self._check_start(start)
        return self._streamed(epoch, start)

    def order(self, epoch: int, start: int = 0) -> Tensor | None:
        """The indices of the samples of epoch `epoch` after the first `start`, int64; None for an iterable."""
        if isinstance(self._source, Stream):
            return None
        if self._sampler is None:
            return self._remaining(epoch, start)
        plan = self._sampler(epoch, start)
        return torch.cat(plan) if plan else torch.empty(0, dtype=torch.int64)

    def fetch_indices(self, index: Tensor, *, epoch: int = 0, first: int = 0) -> Batch:
        """The batch at any `index`, int64 (batch,), on the device; random augmentation is that of (epoch, first).

        For planners that share an epoch's `order` among devices. Raises DataError for an iterable.
        """
        if isinstance(self._source, Stream):
            raise DataError(f"{type(self.dataset).__name__} is an iterable: its samples have no index.")
        if self.resident:
            return self.dataset.fetch(index.to(self.device))
        return to_device(self._source.fetch(index, epoch, first, Place()), self.device, non_blocking=True)

    def given(self, pieces: Sequence[tuple[Tensor, int, int]]) -> Iterator[tuple[Batch, int]]:
        """The batches that a planner hands out, fetched as those of an epoch are, each with its number of samples.

        pieces: of each batch the indices, int64 (batch,), the epoch, and the place of its first sample in that epoch's
        order, of which random augmentation is a function. Raises DataError for an iterable.
        """
        if isinstance(self._source, Stream):
            raise DataError(
                f"{type(self.dataset).__name__} is an iterable: its samples have no index, so several devices cannot "
                "share them. Give a dataset with __getitem__ and __len__, or iterate a loader of your own on each."
            )
        if self.resident:
            return ((self.dataset.fetch(index.to(self.device)), len(index)) for index, _, _ in pieces)
        if self._handed_out is None:
            source = Given(self._source.dataset, self.seed)
            self._handed_out = (source, Fetching(source, *self._ways))
        source, fetching = self._handed_out
        source.pieces = pieces
        return self._moved(fetching.items(0, 0, len(pieces)))

    def identity(self) -> dict[str, Any]:
        """What a resumed run must agree on for its data to come in the same order: plain values."""
        found = {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "samples": self.samples,
            "fingerprint": fingerprint(self.dataset),
        }
        return found if self._lengths is None else {**found, "grouped_by": self.batch_size}

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch given, with the state of an iterable that has `state_dict`; else empty."""
        if self._fetching.state is None or self._fetching.state[2] is None:
            return {}
        epoch, sample, state = self._fetching.state
        return {"epoch": epoch, "sample": sample, "source": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of an iterable; used when the epoch is then entered at its place."""
        if state and isinstance(self._source, Stream):
            self._source.resume = (state["epoch"], state["sample"], state["source"])

    def close(self) -> None:
        """End threads and processes of epochs that are still open. The loader can be used again."""
        self._fetching.close()
        if self._handed_out:
            self._handed_out[1].close()

    def _plan(self, epoch: int, start: int) -> Iterable[Tensor]:
        order, size = self._remaining(epoch, start), self.batch_size
        return (order[at : at + size] for at in range(0, len(order), size))

    def _remaining(self, epoch: int, start: int) -> Tensor:
        self._check_start(start)
        if self._lengths is None:
            order = epoch_order(len(self.dataset), self.seed, epoch, self.shuffle)[start:]
        else:
            order = length_order(self._lengths, self.batch_size, self.seed, epoch, self.shuffle)[start:]
        return order[: len(order) - len(order) % self.batch_size] if self.drop_last else order

    def _check_start(self, start: int) -> None:
        if not 0 <= start <= len(self.dataset):
            raise DataError(f"An epoch of {len(self.dataset)} samples cannot be resumed after sample {start}.")

    def _check_size(self) -> None:
        if self.drop_last and self.batch_size > len(self.dataset):
            raise DataError(
                f"drop_last leaves no batch: the dataset has {len(self.dataset)} samples, the batch size is "
                f"{self.batch_size}."
            )

    def _resident(self, order: Tensor) -> Iterator[tuple[Batch, int]]:
        fetch, size, now = self.dataset.fetch, self.batch_size, time.perf_counter
        if not len(order):  # of which split() would make one empty batch
            return
        for part in order.to(self.device).split(_SPLIT * size):  # type: ignore[no-untyped-call]
            for index in part.split(size):
                begun = now()
                batch = fetch(index)
                self._waited += now() - begun
                yield batch, len(index)

    def _streamed(self, epoch: int, start: int) -> Iterator[tuple[Batch, int]]:
        left = None if self.batches is None else self.batches - start // self.batch_size
        return self._moved(self._fetching.items(epoch, start, left))

    def _moved(self, items: Generator[Item, None, None]) -> Iterator[tuple[Batch, int]]:
        try:
            for item in items:
                yield to_device(item.batch, self.device, non_blocking=True), item.samples
        finally:
            items.close()


def _is_stream(source: Any) -> bool:
    if isinstance(source, (Batches, IterableDataset)):
        return True
    if isinstance(source, (Tensor, BatchDataset, str, bytes, list, tuple, type)) or hasattr(source, "__getitem__"):
        return False
    return hasattr(source, "__iter__")


def _checked_batch_size(batch_size: Any) -> int:
    try:
        size = operator.index(batch_size)
    except TypeError:
        size = 0
    if size < 1 or isinstance(batch_size, bool):
        raise DataError(f"The batch size must be an integer of at least 1, not {batch_size!r}.")
    return size


def _fits(dataset: Tensors, device: torch.device) -> bool:
    if device.type == dataset.device.type == "cpu":
        return True
    if dataset.device.type == device.type and device.index in (None, dataset.device.index):
        return True
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return dataset.nbytes <= _RESIDENT_SHARE * free
